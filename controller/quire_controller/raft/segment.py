"""A journal file: a header, then records end to end. Pure but for the `Disk` port.

    header   magic (4) · version (2) · zero (2) · first index (8) · previous term (8) · mark (4) · crc (4)
    record   mark (4) · crc (4) · size (4) · kind (4) · index (8) · term (8) · synced (8) · data        big-endian

`mark` is random for each file, so records of another file, or bytes that look like a record by accident, are not
taken for its own; the CRC32-C of a record covers all that follows it. `synced` is the position up to which the file
was known to be on the disk when the record was written.

**What a bad record means** is decided by `synced`. A write that a crash tore was not synced, so nothing that follows
it in the file can claim that it was: such a tail is cut. If a later record says that the bad place had been synced,
then what is bad now was good once, and entries that this member has acknowledged are gone: it must not go on.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from quire.disk.port import Disk, DiskFile
from quire.errors import DamagedFileError
from quire.types import Buffer
from quire_controller.raft.entry import Entry

HEADER: Final = struct.Struct(">4sHHQQ4s")
CRC: Final = struct.Struct(">I")
HEADER_BYTES: Final = HEADER.size + CRC.size
RECORD: Final = struct.Struct(">4sI")
FIELDS: Final = struct.Struct(">IIQQQ")
RECORD_BYTES: Final = RECORD.size + FIELDS.size

MAGIC: Final = b"QRJ1"
VERSION: Final = 1
KIND_ENTRY: Final = 0
KIND_SYNCED: Final = 1
"""No entry: only says what has been synced, written when there was nothing else to write."""


@dataclass(frozen=True, slots=True)
class Header:
    first_index: int
    previous_term: int
    """The term of the entry before the first one."""
    mark: bytes


@dataclass(frozen=True, slots=True)
class Scanned:
    """What a journal file holds."""

    header: Header
    entries: list[Entry]
    positions: list[int]
    """Where the record of each entry begins."""
    end: int
    """Where the last good record ends."""
    size: int
    """The size of the file. What lies between is room made ahead, or a torn write."""
    is_torn: bool


def encode_header(header: Header) -> bytes:
    data = HEADER.pack(MAGIC, VERSION, 0, header.first_index, header.previous_term, header.mark)
    return data + CRC.pack(crc32c(data))


def encode_record(mark: bytes, kind: int, entry: Entry, *, synced: int) -> bytes:
    data, index, term = entry
    fields = FIELDS.pack(len(data), kind, index, term, synced)
    return RECORD.pack(mark, crc32c(data, crc32c(fields))) + fields + data


def create(disk: Disk, path: str, header: Header) -> DiskFile:
    """A new, empty journal file, on the disk but for its name."""
    file = disk.open(path, create=True)
    try:
        file.truncate(0)
        file.write(0, [encode_header(header)])
        file.sync()
    except BaseException:
        file.close()
        raise
    return file


def scan(file: DiskFile, path: str, *, is_last: bool) -> Scanned | None:
    """Read a journal file whole. None for a last one whose beginning was torn: it holds nothing yet.

    Raises DamagedFileError, which names the place, for all that a crash cannot explain.
    """
    data = file.read(0, file.size())
    header = _decode_header(data)
    if header is None:
        if is_last and len(data) <= HEADER_BYTES:
            return None
        raise damaged(path, 0, "its header does not check")
    entries: list[Entry] = []
    positions: list[int] = []
    position = HEADER_BYTES
    while position < len(data):
        record = _decode_record(data, position, header.mark)
        if record is None:
            break
        kind, entry, _, end = record
        if kind == KIND_ENTRY:
            if entry[1] != header.first_index + len(entries):
                raise damaged(
                    path, position, f"entry {entry[1]} stands where {header.first_index + len(entries)} should"
                )
            entries.append(entry)
            positions.append(position)
        position = end
    is_torn = any(data[position:])
    if position < len(data):
        if not is_last:
            raise damaged(path, position, "a record does not check, and another file follows")
        if is_torn and _synced_later(data, position, header.mark) > position:
            raise damaged(path, position, "a record does not check that had been written to the disk completely")
    return Scanned(header, entries, positions, position, len(data), is_torn)


def damaged(path: str, position: int, what: str) -> DamagedFileError:
    return DamagedFileError(
        f"{path} is damaged at byte {position}: {what}. This member does not start with a hole in its journal. If a "
        "majority of the others is well, move its directory away and start it again: it comes back without a vote, "
        "catches up, and is admitted by the leader",
        path=path,
        position=position,
    )


def _decode_header(data: bytes) -> Header | None:
    if len(data) < HEADER_BYTES:
        return None
    magic, version, zero, first_index, previous_term, mark = HEADER.unpack_from(data)
    if (magic, version, zero) != (MAGIC, VERSION, 0):
        return None
    if CRC.unpack_from(data, HEADER.size)[0] != crc32c(data[: HEADER.size]):
        return None
    return Header(first_index, previous_term, mark)


def _decode_record(data: bytes, position: int, mark: bytes) -> tuple[int, Entry, int, int] | None:
    """(kind, entry, synced, where the next record begins)."""
    if position + RECORD_BYTES > len(data):
        return None
    found, crc = RECORD.unpack_from(data, position)
    size, kind, index, term, synced = FIELDS.unpack_from(data, position + RECORD.size)
    end = position + RECORD_BYTES + size
    if found != mark or end > len(data) or kind not in (KIND_ENTRY, KIND_SYNCED):
        return None
    checked: Buffer = memoryview(data)[position + RECORD.size : end]
    if crc32c(checked) != crc:
        return None
    return kind, (data[position + RECORD_BYTES : end], index, term), synced, end


def _synced_later(data: bytes, position: int, mark: bytes) -> int:
    """The furthest position that a good record after `position` says had been synced."""
    furthest = 0
    at = data.find(mark, position + 1)
    while at >= 0:
        record = _decode_record(data, at, mark)
        if record is not None:
            furthest = max(furthest, record[2])
        at = data.find(mark, at + 1)
    return furthest
