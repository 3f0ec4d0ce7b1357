"""Holding a segment's `.index` and `.timeindex` against its batches, as those come by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from quire.disk.framed import read_whole
from quire.errors import DamagedFileError
from quire_broker.cli.log_picture import Picture, SegmentFile
from quire_broker.log.index import (
    INDEX_SUFFIX,
    TIME_SUFFIX,
    TIMESTAMP_NONE,
    IndexEntry,
    MisleadingIndexError,
    TimeRow,
    offset_rows,
    time_rows,
)
from quire_broker.log.scan import Found

_BYTES_MAX: Final = 256 * 1024 * 1024


class IndexCheck:
    """Of each file the first thing that is wrong is kept: it is made anew as a whole.

    Of a segment that the checkpoint takes for sealed both files must be there and end with a seal. Of a later one
    each may be missing, older or newer than the other: a crash between writing the two leaves them so.
    """

    def __init__(self, picture: Picture, segment: SegmentFile) -> None:
        self._segment = segment
        self._max_timestamp_ms = TIMESTAMP_NONE
        self._damaged = False
        self._sealed = picture.must_be_sealed(segment)
        self._offsets = _File(segment, INDEX_SUFFIX, must_end=self._sealed)
        self._times = _File(segment, TIME_SUFFIX, must_end=self._sealed)
        self._first_half: IndexEntry | None = None
        self._seal: TimeRow | None = None
        # In the order in which they are written: with a second half of a seal there is a first one.
        self._load_offsets(self._read(picture, self._offsets))
        self._load_times(self._read(picture, self._times))

    def _read(self, picture: Picture, file: _File) -> bytes:
        path = self._segment.stem + file.suffix
        if not picture.disk.exists(path):
            if self._sealed:
                file.fail("it is not there")
            return b""
        try:
            return read_whole(picture.disk, path, bytes_max=_BYTES_MAX)
        except DamagedFileError as error:
            file.fail(error.message)
            return b""

    def _load_offsets(self, data: bytes) -> None:
        try:
            entries = offset_rows(data)
        except MisleadingIndexError as error:
            self._offsets.fail(str(error))
            return
        self._offsets.rows = [_Row(*entry) for entry in entries]
        self._first_half = entries[-1] if entries else None

    def _load_times(self, data: bytes) -> None:
        try:
            rows = time_rows(data)
        except MisleadingIndexError as error:
            self._times.fail(str(error))
            return
        self._times.rows = [_Row(row.relative_offset, row.timestamp_ms) for row in rows]
        for n, row in enumerate(rows[:-1]):
            if not row.is_entry:
                self._times.fail(f"row {n} does not match its checksum")
        if rows and not rows[-1].is_entry:
            self._seal = rows[-1]

    def on_batch(self, batch: Found) -> None:
        relative = batch.header.base_offset - self._segment.base_offset
        self._offsets.meet(relative, batch.position)
        # An index that was made before some batch was damaged knows of timestamps that are gone.
        self._times.meet(relative, self._max_timestamp_ms, or_more=self._damaged)
        self._max_timestamp_ms = max(self._max_timestamp_ms, batch.header.max_timestamp_ms)

    def pass_over(self, first_offset: int, end_offset: int | None) -> None:
        """Go past what is damaged, or was taken for it. An entry that leads there may be as right as any."""
        self._damaged = True
        if end_offset is not None:
            first, end = first_offset - self._segment.base_offset, end_offset - self._segment.base_offset
            self._offsets.skip(first, end)
            self._times.skip(first, end)

    def finish(self, end_offset: int, *, ends_otherwise: bool) -> Iterator[tuple[str, str]]:
        """(suffix, reason) of the files that are wrong.

        `ends_otherwise` if the segment does not end as it did when they were written, or was not read to its end.
        """
        relative, size_bytes = end_offset - self._segment.base_offset, self._segment.size_bytes
        end = IndexEntry(relative, size_bytes)
        if ends_otherwise or self._segment.next_base_offset is None:
            end = self._first_half or end  # they can only be held against each other
        if self._seal is not None and not self._seal.is_seal(end):
            self._times.fail("its last row does not match its checksum")
        if self._sealed and self._seal is None:
            self._times.fail("it has no seal")
        if not ends_otherwise:
            self._offsets.end(relative, size_bytes)
            self._times.end(relative, self._max_timestamp_ms, or_more=self._damaged)
        for file in (self._offsets, self._times):
            if file.wrong is not None:
                yield file.suffix, file.wrong


class _Row(NamedTuple):
    relative_offset: int
    value: int
    """A position, or the largest timestamp before."""


class _File:
    """The rows of one of the two, of which the next is waiting for its batch."""

    def __init__(self, segment: SegmentFile, suffix: str, *, must_end: bool) -> None:
        self.suffix = suffix
        self.rows: list[_Row] = []
        self.wrong: str | None = None
        self._base_offset = segment.base_offset
        self._is_last = segment.next_base_offset is None
        self._must_end = must_end
        self._next = 0

    def fail(self, reason: str) -> None:
        if self.wrong is None:
            self.wrong = reason

    def meet(self, relative_offset: int, value: int, *, or_more: bool = False) -> None:
        """Compare what the file says of the batch that begins at an offset, if it says something."""
        self._refuse_below(relative_offset)
        if self._next < len(self.rows) and self.rows[self._next].relative_offset == relative_offset:
            self._compare(value, or_more=or_more)
            self._next += 1

    def skip(self, first: int, end: int) -> None:
        """Let the rows be whose offsets lie in a range."""
        self._refuse_below(first)
        while self._next < len(self.rows) and self.rows[self._next].relative_offset < end:
            self._next += 1

    def end(self, relative_offset: int, value: int, *, or_more: bool = False) -> None:
        """Compare the seal, if there is one or must be one, with where the segment ends."""
        self._refuse_below(relative_offset)
        left = self.rows[self._next :]
        if self._is_last:
            # A broker may have written them after we looked at the log; then they lead past what we saw of it.
            if self.suffix == INDEX_SUFFIX and left and left[0].value < value:
                self.fail(f"row {self._next} leads to offset {self._offset(left[0])}, which lies further on")
        elif len(left) == 1 and left[0].relative_offset == relative_offset:
            self._compare(value, or_more=or_more)
        elif left or self._must_end:
            where = f"goes on at offset {self._offset(left[0])}" if left else "has no seal"
            self.fail(f"it {where}, and the segment ends at {self._base_offset + relative_offset}")

    def _refuse_below(self, relative_offset: int) -> None:
        if self._next < len(self.rows) and self.rows[self._next].relative_offset < relative_offset:
            self.fail(
                f"row {self._next} leads to offset {self._offset(self.rows[self._next])}, where no batch begins"
            )

    def _compare(self, value: int, *, or_more: bool) -> None:
        row = self.rows[self._next]
        if row.value != value and not (or_more and row.value > value):
            self.fail(f"row {self._next}, for offset {self._offset(row)}, says {row.value} where {value} belongs")

    def _offset(self, row: _Row) -> int:
        return self._base_offset + row.relative_offset
