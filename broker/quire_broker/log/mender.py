"""Writing good copies of batches over a damaged range.

A batch is the same on every replica, so what is lost had the size of its copy, and the batches around it are where
they were: the copy is written in place, or behind what was left of its segment, or into a segment of its own. The
range stays quarantined until the copy and all that the log knows of it are on the disk. A single new checkpoint then
lifts the quarantine, so a crash at any point leaves the range damaged or mended, and nothing else changed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from quire.disk.framed import stage
from quire.errors import (
    DiskFullError,
    DiskIoError,
    InvalidArgumentError,
    MalformedBatchError,
    StaleEpochError,
)
from quire.records.header import BATCH_BYTES_MAX, BatchHeader, iter_batches
from quire.types import Buffer
from quire_broker.log import snapshots
from quire_broker.log.config import INDEX_NUMBER_MAX
from quire_broker.log.ranges import OffsetRange, OffsetRanges
from quire_broker.log.reader import LogReader
from quire_broker.log.scan import Anchor
from quire_broker.log.segment import Segment
from quire_broker.log.state import LogState


class _Copy(NamedTuple):
    """A batch as some replica has it."""

    header: BatchHeader
    data: memoryview


class _Piece(NamedTuple):
    """Neighbouring copies, and where in which segment they belong."""

    segment: Segment
    position: int
    copies: list[_Copy]

    @property
    def end_offset(self) -> int:
        return self.copies[-1].header.end_offset

    @property
    def data(self) -> bytes:
        return b"".join(copy.data for copy in self.copies)


class LogMender:
    """Everything here is exclusive, and durable before it returns."""

    def __init__(self, state: LogState, reader: LogReader, keep_books: Callable[[], None]) -> None:
        """`keep_books` syncs everything and writes the books, or raises why it cannot."""
        self._state = state
        self._reader = reader
        self._keep_books = keep_books

    def mend(self, data: Buffer, *, now_ms: int) -> int:
        state = self._state
        state.require_exclusive()
        copies = self._check(data)
        first, end = copies[0].header.base_offset, copies[-1].header.end_offset
        self._find_range(copies)
        for segment in state.segments:
            if segment.base_offset < end and first < segment.end_offset:
                self._reader.investigate(segment)
        lost = self._find_range(copies)  # more may be damaged than was known
        pieces = list(self._place(copies, lost))
        # Where good batches go on behind the damage must be known to the next opening, whatever is left of a write.
        self._keep_books()
        for piece in pieces:
            self._write(piece)
        headers = [copy.header for copy in copies]
        for header in headers:
            state.producers.learn_late(header, now_ms=now_ms)
        with state.offline_on_io_error():
            snapshots.learn_late(
                state.disk, state.directory, headers, scratch=state.producers.emptied(), now_ms=now_ms
            )
        self._keep_books()
        quarantined = OffsetRanges(state.quarantined)
        quarantined.remove(first, end)
        quarantined.forget_below(state.start_offset)
        state.save(state.checkpoint(quarantined=quarantined))
        state.quarantined = quarantined
        return end

    # -- what is refused -------------------------------------------------------------------------------------------

    def _check(self, data: Buffer) -> list[_Copy]:
        """Whole batches, one after the other, each of the epoch that this log knows for it."""
        state, view = self._state, memoryview(data)
        copies = [
            _Copy(header, view[position : position + header.size_bytes])
            for position, header in iter_batches(view, batch_bytes_max=BATCH_BYTES_MAX)
        ]
        if not copies:
            raise InvalidArgumentError(f"no batches to mend {state.directory} with")
        expected = copies[0].header.base_offset
        for header, _ in copies:
            if header.base_offset != expected or header.record_count != header.last_offset_delta + 1:
                raise MalformedBatchError(
                    f"batch at offset {header.base_offset} with {header.record_count} records does not continue the "
                    f"one before it, which ends at {expected}"
                )
            epoch, epoch_end = state.epochs.span(expected)
            expected = header.end_offset
            if header.leader_epoch != epoch or expected > epoch_end:
                raise StaleEpochError(
                    f"batch of leader epoch {header.leader_epoch} for offsets {header.base_offset} to "
                    f"{expected - 1}, which were written in epoch {epoch}",
                    epoch=epoch,
                )
        return copies

    def _find_range(self, copies: Sequence[_Copy]) -> OffsetRange:
        """The quarantined range that begins where the copies do.

        Where the log's start lies in it they may begin with the batch that holds the start: no replica may have more.
        """
        state, header = self._state, copies[0].header
        first, end = header.base_offset, copies[-1].header.end_offset
        lost = state.quarantined.holding(max(first, state.start_offset))
        holds_start = first <= state.start_offset < header.end_offset
        if lost is None or end > lost.end_offset or not (first == lost.first_offset or holds_start):
            damaged = ", ".join(f"{r.first_offset} to {r.end_offset - 1}" for r in state.quarantined)
            raise InvalidArgumentError(
                f"offsets {first} to {end - 1} are not the beginning of a damaged range of {state.directory}; "
                f"damaged are {damaged or 'none'}"
            )
        return lost

    def _misfit(self, first: int, end: int, why: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"offsets {first} to {end - 1} do not fit into {self._state.directory}: {why}", first_offset=first
        )

    # -- where they belong -----------------------------------------------------------------------------------------

    def _place(self, copies: Sequence[_Copy], lost: OffsetRange) -> Iterator[_Piece]:
        segments = self._state.segments
        for at, group in groupby(copies, key=lambda copy: self._segment_number(copy.header.base_offset)):
            inside = list(group)
            first, end = inside[0].header.base_offset, inside[-1].header.end_offset
            following = segments[at + 1].base_offset if at + 1 < len(segments) else self._state.end_offset
            if end > following:
                raise self._misfit(first, end, f"a batch reaches across {following}, where a segment begins")
            if at >= 0 and first < segments[at].end_offset and self._state.quarantined.holding(first) is None:
                raise self._misfit(first, end, f"offset {first} is not damaged")
            if at < 0 or first > segments[at].end_offset:
                yield from self._lay_out(None, 0, inside)
            elif segments[at].end_offset < following and lost.end_offset > segments[at].end_offset:
                # Behind what is left of the segment there is nothing that could be overwritten.
                yield from self._lay_out(segments[at], self._position(segments[at], inside), inside)
            else:
                yield _Piece(segments[at], self._position_between(segments[at], inside), inside)

    def _segment_number(self, offset: int) -> int:
        """The last segment that begins at or before an offset; -1 for none."""
        return bisect_right(self._state.segments, offset, key=lambda segment: segment.base_offset) - 1

    def _lay_out(self, segment: Segment | None, position: int, copies: Sequence[_Copy]) -> Iterator[_Piece]:
        """Fill a segment up, and then new ones, to the size that they would have had."""
        segment_end = -1 if segment is None else segment.end_offset
        piece: list[_Copy] = []
        begin = position
        for copy in copies:
            header = copy.header
            full = segment is None or (
                position > 0
                and header.base_offset >= segment_end
                and (
                    position + header.size_bytes > self._state.config.segment_bytes
                    or header.end_offset - segment.base_offset > INDEX_NUMBER_MAX
                )
            )
            if full:
                if segment is not None and piece:
                    yield _Piece(segment, begin, piece)
                segment, begin, position, piece = self._state.new_segment(header.base_offset), 0, 0, []
            piece.append(copy)
            position += header.size_bytes
        if segment is not None:
            yield _Piece(segment, begin, piece)

    def _position(self, segment: Segment, copies: Sequence[_Copy]) -> int:
        """Where copies begin, by the word of what lies before them."""
        first = copies[0].header.base_offset
        position = self._position_behind(segment, first)
        if position is None:
            raise self._misfit(first, copies[-1].header.end_offset, "what lies before them is damaged too")
        return position

    def _position_between(self, segment: Segment, copies: Sequence[_Copy]) -> int:
        """The same, where good batches follow: their word counts too, and the copies must fit in between."""
        first, end = copies[0].header.base_offset, copies[-1].header.end_offset
        size = sum(copy.header.size_bytes for copy in copies)
        lost_end, limit = self._end_of_damage(segment, first)
        position = self._position_behind(segment, first)
        if position is None and end == lost_end:
            edge_segment, place = self._reader.place_of_edge(first)
            damaged_from = place.position if edge_segment is segment else 0
            position = limit - size if limit - size > damaged_from else None
        if position is None:
            raise self._misfit(first, end, "what lies before them is damaged too")
        if position + size != limit if end == lost_end else position + size >= limit:
            raise self._misfit(
                first, end, f"they take {size} bytes where {limit - position} belong to offsets below {lost_end}"
            )
        return position

    def _position_behind(self, segment: Segment, offset: int) -> int | None:
        """Where `offset` belongs, by the word of a good batch before it, or as it is the segment's first or next."""
        if offset == segment.base_offset:
            return 0
        if offset == segment.end_offset:
            return segment.size_bytes
        _, place = self._reader.place_of_edge(offset)
        return place.position if place.base_offset == offset else None

    def _end_of_damage(self, segment: Segment, first: int) -> tuple[int, int]:
        """(the first good offset after `first`, its position) in a segment, or the segment's end."""
        end, quarantined = first, self._state.quarantined
        while end < segment.end_offset and (lost := quarantined.holding(end)) is not None:
            end = lost.end_offset
        if end >= segment.end_offset:
            return segment.end_offset, segment.size_bytes
        entry = segment.index.floor_offset(end - segment.base_offset)
        if entry.relative_offset != end - segment.base_offset:
            raise self._misfit(first, end, f"the index of {segment.path} does not tell where {end} begins")
        return end, entry.position

    # -- writing ---------------------------------------------------------------------------------------------------

    def _write(self, piece: _Piece) -> None:
        """Bring a piece to the disk, and have the segments say what is there now."""
        state, segment = self._state, piece.segment
        if segment in state.segments:
            self._overwrite(segment, piece.position, piece.data)
            if piece.end_offset > segment.end_offset:
                segment.end_offset, segment.size_bytes = piece.end_offset, piece.position + len(piece.data)
            begin = Anchor(piece.copies[0].header.base_offset, piece.position)
            self._reader.take_stock(segment, state.new_segment(segment.base_offset), anchors=[begin])
            return
        with state.offline_on_io_error():
            stage(state.disk, segment.path, piece.data)
        for header, _ in piece.copies:
            segment.note(header, header.base_offset, index_interval_bytes=state.config.index_interval_bytes)
        # At once, also if a later piece finds no room: a file that the log does not know of would outlive a
        # truncation, and come back at the next opening.
        state.segments.insert(self._segment_number(segment.base_offset) + 1, segment)
        state.find_unsealed()
        state.unsaved = True

    def _overwrite(self, segment: Segment, position: int, data: bytes) -> None:
        file, state = segment.file, self._state
        size_bytes = file.size()
        with state.offline_on_io_error():
            try:
                file.write(position, [data])
            except DiskFullError:
                with state.offline_on_error():
                    if file.size() > size_bytes:
                        file.truncate(size_bytes)
                        file.sync()
                raise
            file.sync()
        if file.read(position, len(data)) != data:
            raise DiskIoError(f"{segment.path} does not keep what is written at {position}", path=segment.path)
