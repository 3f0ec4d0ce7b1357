"""Where in a segment to begin looking for an offset or a timestamp.

Entries stand at least `index_interval_bytes` of log apart. Entry *n* says: the batch with base offset
`base + relative` begins at `position`, and no record before it in this segment has a timestamp above
`timestamp_before_ms`. The first half is row *n* of `.index`, the second of `.timeindex`. A batch without an entry
therefore begins less than an interval after one that has one, or after the segment's beginning, which has none since
it needs none.

A sealed index ends with a seal: (end offset, file size) and (largest timestamp of all, end offset).

An `.index` row needs no checksum: the batch that it leads to has its own offset. A wrong timestamp would go unnoticed
and skip records, so each `.timeindex` row has one; the seal's is over its row in `.index` too.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from quire.disk.framed import read_whole
from quire.disk.port import Disk, DiskFile
from quire.errors import DamagedFileError

INDEX_SUFFIX: Final = ".index"
TIME_SUFFIX: Final = ".timeindex"
TIMESTAMP_NONE: Final = -(2**63)
"""Lower than any timestamp: what an empty stretch has."""

_OFFSET = struct.Struct(">II")
_TIME = struct.Struct(">qI")
_CRC = struct.Struct(">I")
_TIME_ROW_BYTES: Final = _TIME.size + _CRC.size
_BYTES_MAX: Final = 256 * 1024 * 1024


class MisleadingIndexError(Exception):
    """What an index says is not what is there. Never leaves the log: it leads to a scan that makes the index anew."""


class IndexEntry(NamedTuple):
    relative_offset: int
    position: int


BEGINNING: Final = IndexEntry(0, 0)


class Seal(NamedTuple):
    """What a sealed segment must look like."""

    end_offset: int
    size_bytes: int
    max_timestamp_ms: int


class TimeRow(NamedTuple):
    """A row of `.timeindex`, not yet believed."""

    timestamp_ms: int
    relative_offset: int
    crc: int

    @property
    def is_entry(self) -> bool:
        return self.crc == crc32c(_TIME.pack(self.timestamp_ms, self.relative_offset))

    def is_seal(self, first_half: IndexEntry) -> bool:
        """Whether it is the seal whose row in `.index` is `first_half`."""
        row = _TIME.pack(self.timestamp_ms, self.relative_offset)
        return self.crc == crc32c(row, _seal_seed(_OFFSET.pack(*first_half)))


class SegmentIndex:
    """The index of a segment that is being written, in memory."""

    def __init__(self) -> None:
        self._offsets = array("I")
        self._positions = array("I")
        self._times = array("q")
        self.last_position = 0
        """Of the newest entry."""

    def __len__(self) -> int:
        return len(self._offsets)

    def __iter__(self) -> Iterator[IndexEntry]:
        return map(IndexEntry._make, zip(self._offsets, self._positions, strict=True))

    def add(self, relative_offset: int, position: int, timestamp_before_ms: int) -> None:
        self._offsets.append(relative_offset)
        self._positions.append(position)
        self._times.append(timestamp_before_ms)
        self.last_position = position

    def last(self) -> tuple[IndexEntry, int]:
        """The newest entry and its timestamp."""
        if not self._offsets:
            return BEGINNING, TIMESTAMP_NONE
        return IndexEntry(self._offsets[-1], self._positions[-1]), self._times[-1]

    def keep_below(self, relative_offset: int) -> None:
        """Forget the entries from an offset on."""
        keep = bisect_left(self._offsets, relative_offset)
        for column in (self._offsets, self._positions, self._times):
            del column[keep:]
        self.last_position = self._positions[-1] if keep else 0

    def floor_offset(self, relative_offset: int) -> IndexEntry:
        """The last entry at or before an offset."""
        return self._entry(bisect_right(self._offsets, relative_offset))

    def floor_time(self, timestamp_ms: int) -> IndexEntry:
        """The last entry before which every record is older than `timestamp_ms`."""
        return self._entry(bisect_left(self._times, timestamp_ms))

    def _entry(self, count: int) -> IndexEntry:
        return IndexEntry(self._offsets[count - 1], self._positions[count - 1]) if count else BEGINNING

    def copy(self) -> SegmentIndex:
        other = SegmentIndex()
        other._offsets, other._positions, other._times = self._offsets[:], self._positions[:], self._times[:]
        other.last_position = self.last_position
        return other

    def offsets_to_bytes(self, *, base_offset: int, seal: Seal | None) -> bytes:
        """What `.index` holds."""
        rows = [_OFFSET.pack(*row) for row in zip(self._offsets, self._positions, strict=True)]
        if seal is not None:
            rows.append(_OFFSET.pack(seal.end_offset - base_offset, seal.size_bytes))
        return b"".join(rows)

    def times_to_bytes(self, *, base_offset: int, seal: Seal | None) -> bytes:
        """What `.timeindex` holds."""
        rows = [_time_row(*row) for row in zip(self._times, self._offsets, strict=True)]
        if seal is not None:
            first_half = _OFFSET.pack(seal.end_offset - base_offset, seal.size_bytes)
            rows.append(_time_row(seal.max_timestamp_ms, seal.end_offset - base_offset, _seal_seed(first_half)))
        return b"".join(rows)

    @classmethod
    def load(cls, disk: Disk, stem: str, *, end_relative: int) -> SegmentIndex | None:
        """The saved entries below an offset; None where they are not there or contradict each other."""
        if not (disk.exists(stem + INDEX_SUFFIX) and disk.exists(stem + TIME_SUFFIX)):
            return None
        try:
            offsets = read_whole(disk, stem + INDEX_SUFFIX, bytes_max=_BYTES_MAX)
            times = read_whole(disk, stem + TIME_SUFFIX, bytes_max=_BYTES_MAX)
        except DamagedFileError:
            return None
        if len(offsets) % _OFFSET.size or len(times) != len(offsets) // _OFFSET.size * _TIME_ROW_BYTES:
            return None
        index = cls()
        before, before_ms = BEGINNING, TIMESTAMP_NONE
        for n, (relative, position) in enumerate(_OFFSET.iter_unpack(offsets)):
            if relative >= end_relative:
                break
            row = times[n * _TIME_ROW_BYTES : (n + 1) * _TIME_ROW_BYTES]
            try:
                timestamp_ms, relative_again = _parse_time_row(row)
            except MisleadingIndexError:
                return None
            rising = relative > before.relative_offset and position > before.position and timestamp_ms >= before_ms
            if not rising or relative != relative_again:
                return None
            index.add(relative, position, timestamp_ms)
            before, before_ms = IndexEntry(relative, position), timestamp_ms
        return index


class SealedIndex:
    """The index of a sealed segment, searched in its files: nothing of it is kept in memory."""

    def __init__(self, disk: Disk, stem: str) -> None:
        self._disk = disk
        self._stem = stem

    def floor_offset(self, relative_offset: int) -> IndexEntry:
        """The last entry at or before an offset."""
        with _Rows(self._disk, self._stem + INDEX_SUFFIX, _OFFSET.size) as rows:
            n = _count_until(len(rows) - 1, lambda n: _OFFSET.unpack(rows[n])[0] <= relative_offset)
            return IndexEntry._make(_OFFSET.unpack(rows[n - 1])) if n else BEGINNING

    def floor_time(self, timestamp_ms: int) -> IndexEntry:
        """The last entry before which every record is older than `timestamp_ms`."""
        with _Rows(self._disk, self._stem + TIME_SUFFIX, _TIME_ROW_BYTES) as rows:
            n = _count_until(len(rows) - 1, lambda n: _parse_time_row(rows[n])[0] < timestamp_ms)
            if not n:
                return BEGINNING
            _, relative = _parse_time_row(rows[n - 1])
        with _Rows(self._disk, self._stem + INDEX_SUFFIX, _OFFSET.size) as rows:
            entry = IndexEntry._make(_OFFSET.unpack(rows[n - 1]))
        if entry.relative_offset != relative:
            raise MisleadingIndexError(f"row {n - 1} of {self._stem}: the two files differ")
        return entry

    def seal(self, base_offset: int) -> Seal | None:
        """What the index says of its segment; None if it is not there, has no seal or contradicts itself."""
        if not (self._disk.exists(self._stem + INDEX_SUFFIX) and self._disk.exists(self._stem + TIME_SUFFIX)):
            return None
        try:
            with (
                _Rows(self._disk, self._stem + INDEX_SUFFIX, _OFFSET.size) as offsets,
                _Rows(self._disk, self._stem + TIME_SUFFIX, _TIME_ROW_BYTES) as times,
            ):
                first_half, second_half = offsets[len(offsets) - 1], times[len(times) - 1]
                relative_end, size_bytes = _OFFSET.unpack(first_half)
                max_timestamp_ms, relative_end_again = _parse_time_row(second_half, seed=_seal_seed(first_half))
                if len(offsets) != len(times) or relative_end != relative_end_again:
                    return None
        except MisleadingIndexError:
            return None
        return Seal(base_offset + relative_end, size_bytes, max_timestamp_ms)


def load_places(disk: Disk, stem: str, *, end_relative: int) -> list[IndexEntry]:
    """The entries below an offset by the word of `.index` alone, as far as they rise.

    For whoever checks what they lead to. The other file may be gone, or newer: a crash comes between the two.
    """
    path = stem + INDEX_SUFFIX
    if not disk.exists(path):
        return []
    try:
        data = read_whole(disk, path, bytes_max=_BYTES_MAX)
    except DamagedFileError:
        return []
    places, before = [], BEGINNING
    for row in _OFFSET.iter_unpack(data[: len(data) // _OFFSET.size * _OFFSET.size]):
        entry = IndexEntry._make(row)
        if entry.relative_offset >= end_relative or entry.relative_offset <= before.relative_offset:
            break
        if entry.position <= before.position:
            break
        places.append(entry)
        before = entry
    return places


def offset_rows(data: bytes) -> list[IndexEntry]:
    """All rows of an `.index`, the seal included: nothing in this file tells it from an entry."""
    if len(data) % _OFFSET.size:
        raise MisleadingIndexError(f"its {len(data)} bytes are no whole number of rows")
    return list(map(IndexEntry._make, _OFFSET.iter_unpack(data)))


def time_rows(data: bytes) -> list[TimeRow]:
    """All rows of a `.timeindex`, the seal included."""
    if len(data) % _TIME_ROW_BYTES:
        raise MisleadingIndexError(f"its {len(data)} bytes are no whole number of rows")
    return [
        TimeRow(*_TIME.unpack_from(data, at), *_CRC.unpack_from(data, at + _TIME.size))
        for at in range(0, len(data), _TIME_ROW_BYTES)
    ]


class _Rows:
    """The rows of an index file, read one at a time."""

    def __init__(self, disk: Disk, path: str, row_bytes: int) -> None:
        self._path = path
        self._row_bytes = row_bytes
        if not disk.exists(path):
            raise MisleadingIndexError(f"{path} is not there")
        self._file: DiskFile = disk.open(path)

    def __enter__(self) -> _Rows:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return self._file.size() // self._row_bytes

    def __getitem__(self, n: int) -> bytes:
        row = self._file.read(n * self._row_bytes, self._row_bytes) if n >= 0 else b""
        if len(row) != self._row_bytes:
            raise MisleadingIndexError(f"{self._path} has no row {n}")
        return row


def _seal_seed(first_half: bytes) -> int:
    """A seal's checksum is over both of its rows. Nor can the last entry of an unsealed index be taken for a seal."""
    return crc32c(first_half, 1)


def _time_row(timestamp_ms: int, relative_offset: int, seed: int = 0) -> bytes:
    row = _TIME.pack(timestamp_ms, relative_offset)
    return row + _CRC.pack(crc32c(row, seed))


def _parse_time_row(row: bytes, *, seed: int = 0) -> tuple[int, int]:
    timestamp_ms, relative_offset = _TIME.unpack_from(row)
    if _CRC.unpack_from(row, _TIME.size)[0] != crc32c(row[: _TIME.size], seed):
        raise MisleadingIndexError("a row of a time index is damaged")
    return timestamp_ms, relative_offset


def _count_until(count: int, holds: Callable[[int], bool]) -> int:
    """How many of the first `count` rows hold, when those that do come before those that don't."""
    low, high = 0, max(0, count)
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            low = middle + 1
        else:
            high = middle
    return low
