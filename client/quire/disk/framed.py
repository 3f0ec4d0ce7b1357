"""Small files that are written whole: a line with kind, version and CRC, then the payload.

They replace their predecessor by write, fsync, rename, fsync of the directory, so a reader finds the old one or the
new one; what it finds is checked all the same, because disks rot.
"""

from __future__ import annotations

import re
from typing import Final

from crc32c import crc32c

from quire.disk.port import Disk
from quire.errors import DamagedFileError, DiskFullError
from quire.types import Buffer

TEMPORARY_SUFFIX: Final = ".tmp"

_FIRST_LINE = re.compile(rb"quire-([a-z-]{1,32}) v(\d{1,5}) crc=([0-9a-f]{8}) bytes=(\d{1,10})\n")
_FIRST_LINE_BYTES_MAX: Final = 96


def frame(kind: str, version: int, payload: Buffer) -> bytes:
    crc = _checksum(kind, version, payload)
    return b"quire-%s v%d crc=%08x bytes=%d\n%s" % (kind.encode(), version, crc, len(payload), payload)


def unframe(data: bytes, *, kind: str, version_max: int, path: str) -> bytes:
    """The payload, or DamagedFileError."""
    match = _FIRST_LINE.match(data[:_FIRST_LINE_BYTES_MAX])
    if match is None or match[1] != kind.encode():
        raise DamagedFileError(f"{path} does not begin as a {kind} file", path=path)
    payload, version = data[match.end() :], int(match[2])
    if len(payload) != int(match[4]) or _checksum(kind, version, payload) != int(match[3], 16):
        raise DamagedFileError(f"{path} is damaged: its checksum does not hold", path=path)
    if not 1 <= version <= version_max:
        # Not damage, but as unreadable; what reads it must not guess.
        raise DamagedFileError(
            f"{path} has version {version}, this Quire reads up to {version_max}", path=path, version=version
        )
    return payload


def _checksum(kind: str, version: int, payload: Buffer) -> int:
    """Also of the version: one that a flipped bit has changed must not pass for that of a newer Quire."""
    return int(crc32c(payload, crc32c(b"%s v%d" % (kind.encode(), version))))


def read_whole(disk: Disk, path: str, *, bytes_max: int) -> bytes:
    file = disk.open(path)
    try:
        size = file.size()
        if size > bytes_max:
            raise DamagedFileError(f"{path} has {size} bytes, more than the {bytes_max} it can have", path=path)
        return file.read(0, size)
    finally:
        file.close()


def stage(disk: Disk, path: str, data: Buffer) -> None:
    """Put a synced file in place of what may be there. The new name is durable only once the directory is synced."""
    temporary = path + TEMPORARY_SUFFIX
    file = disk.open(temporary, create=True)
    try:
        file.truncate(0)
        file.write(0, [data])
        file.sync()
    except DiskFullError:
        # What was written of it takes room that somebody needs.
        disk.remove(temporary)
        raise
    finally:
        file.close()
    disk.rename(temporary, path)
