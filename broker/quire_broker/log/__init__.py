"""The partition log: segments of record batches on a `Disk`, with all that makes them findable and provable.

docs/STORAGE.md has the files and the invariants.
"""
