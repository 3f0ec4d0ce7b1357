"""What the cores need from the world. `adapters/` implement it; `tests/contract` holds every implementation to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quire.types import Buffer


class DiskFile(Protocol):
    """An open file. Positions are explicit: there is no cursor to get wrong."""

    def size(self) -> int: ...

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only where the file ends."""
        ...

    def write(self, position: int, buffers: Sequence[Buffer]) -> int:
        """Write the buffers one after the other and return their total length.

        All of it or an error: DiskFullError, DiskIoError. After an error any part may have been written.
        """
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        ...

    def sync(self) -> None:
        """Return once all that was written and truncated survives a power cut. SyncFailedError is final.

        The only method that may run on another thread while the owner goes on reading and writing.
        """
        ...

    @property
    def descriptor(self) -> int | None:
        """By which the operating system knows the open file; None where it does not.

        For one who has it synced in another way than by `sync`, with the same result.
        """
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """A tree of files. Paths are strings with `/`; errors are those of `quire.errors`.

    Names are durable only after `sync_dir` of their directory: a created file may vanish, a removed one come back,
    a rename be undone, whatever was synced inside the file.
    """

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        """Open for reading and writing. `create` makes the file if it is not there; without it that is an error."""
        ...

    def exists(self, path: str) -> bool: ...

    def names(self, directory: str) -> list[str]:
        """The names in a directory, sorted; none if it does not exist."""
        ...

    def make_dirs(self, directory: str) -> None:
        """Make a directory and its parents, durably."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Atomic; replaces `new`."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_dir(self, directory: str) -> None:
        """Remove an empty directory."""
        ...

    def sync_dir(self, directory: str) -> None: ...

    def free_bytes(self, directory: str) -> int:
        """How much may still be written to where this directory is."""
        ...
