"""The part of the Disk port that only looks, on the operating system's files: for tools that must change nothing.

Files are opened for reading alone, so it also works on a read-only mount, and for a user who may not write.
"""

from __future__ import annotations

import os
from typing import NoReturn

from quire.disk.os_disk import OsDisk, OsFile
from quire.errors import DiskIoError, invariant


class ReadOnlyDisk(OsDisk):
    def open(self, path: str, *, create: bool = False) -> OsFile:
        invariant(not create, f"a reader would make {path}")
        try:
            return OsFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            raise DiskIoError(f"cannot open {path}: {error.strerror}", path=path, errno=error.errno) from error

    def make_dirs(self, directory: str) -> None:
        _refuse(directory)

    def rename(self, old: str, new: str) -> None:
        _refuse(old)

    def remove(self, path: str) -> None:
        _refuse(path)

    def remove_dir(self, directory: str) -> None:
        _refuse(directory)

    def sync_dir(self, directory: str) -> None:
        _refuse(directory)


def _refuse(path: str) -> NoReturn:
    invariant(False, f"a reader would change {path}")
    raise AssertionError  # not reached; the type checker cannot know
