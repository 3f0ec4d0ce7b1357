"""Files, as servers need them: a port, the operating system behind it, and a simulated twin that fails on demand.

It lives in the client package beside `link`, so that the broker and the controller share one without importing each
other. Clients do not use it.

    port            what a disk promises; `tests/contract/test_disk.py` holds every implementation to it
    os_disk         the real one; `read_only_disk` is the same without the means to change anything
    sim_disk        in memory, with power cuts, torn writes, full disks and flipped bits
    framed          small files that are written whole, with a checksum
"""
