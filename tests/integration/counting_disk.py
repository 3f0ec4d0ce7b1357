"""The operating system's disk, with a count of what is read from it."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Sequence

from quire.disk.os_disk import OsDisk
from quire.disk.port import DiskFile
from quire.types import Buffer


class CountingFile:
    def __init__(self, file: DiskFile, suffix: str, counts: Counter[str]) -> None:
        self._file = file
        self._suffix = suffix
        self._counts = counts

    def size(self) -> int:
        return self._file.size()

    def read(self, position: int, size: int) -> bytes:
        data = self._file.read(position, size)
        self._counts[self._suffix] += len(data)
        return data

    def write(self, position: int, buffers: Sequence[Buffer]) -> int:
        return self._file.write(position, buffers)

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def sync(self) -> None:
        self._file.sync()

    @property
    def descriptor(self) -> int | None:
        return self._file.descriptor

    def close(self) -> None:
        self._file.close()


class CountingDisk(OsDisk):
    def __init__(self) -> None:
        self.read_bytes: Counter[str] = Counter()
        """By the file's suffix, or its name where it has none."""

    def open(self, path: str, *, create: bool = False) -> CountingFile:  # type: ignore[override]  # also a DiskFile
        name, suffix = posixpath.splitext(posixpath.basename(path))
        return CountingFile(super().open(path, create=create), suffix or name, self.read_bytes)
