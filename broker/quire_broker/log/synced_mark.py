"""How far the log was synced, as far as can be known without a sync of its own.

The recovery point is durable and trails. This mark is written after each sync and never synced itself, except when it
must go back: a killed process leaves it exact, a power cut may leave an older one, and none ever leaves one
that is too high. What lies below it was acknowledged, so damage there is never taken for a torn tail.
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

from quire.disk.port import Disk, DiskFile

NAME: Final = "synced"
_MARK = struct.Struct(">q")
_CRC = struct.Struct(">I")


class SyncedMark:
    def __init__(self, disk: Disk, directory: str) -> None:
        self._file: DiskFile = disk.open(f"{directory}/{NAME}", create=True)

    def write(self, offset: int) -> None:
        mark = _MARK.pack(offset)
        self._file.write(0, [mark + _CRC.pack(crc32c(mark))])

    def lower(self, offset: int) -> None:
        """Go back, durably: a higher mark than the log's end would be taken for loss."""
        self.write(offset)
        self._file.sync()

    def close(self) -> None:
        self._file.close()


def lower(disk: Disk, directory: str, offset: int) -> None:
    mark = SyncedMark(disk, directory)
    try:
        mark.lower(offset)
    finally:
        mark.close()


def load(disk: Disk, directory: str) -> int:
    """The offset; 0 where the mark is not there or not whole, which claims nothing."""
    return load_whole(disk, directory) or 0


def load_whole(disk: Disk, directory: str) -> int | None:
    """The offset; 0 where none was written yet, None where one was that is not whole."""
    path = f"{directory}/{NAME}"
    if not disk.exists(path):
        return 0
    file = disk.open(path)
    try:
        data = file.read(0, _MARK.size + _CRC.size)
    finally:
        file.close()
    if not data:
        return 0
    if len(data) < _MARK.size + _CRC.size or _CRC.unpack_from(data, _MARK.size)[0] != crc32c(data[: _MARK.size]):
        return None
    return int(_MARK.unpack_from(data)[0])
