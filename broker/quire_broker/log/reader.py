"""Reading a log: what leaves it has been checked, and what does not check is quarantined on the spot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from quire.errors import (
    DamagedRangeError,
    DiskIoError,
    MalformedBatchError,
    OffsetOutOfRangeError,
    UnsupportedBatchError,
    invariant,
)
from quire.records import decode
from quire.records.header import HEADER_BYTES, BatchHeader, check_crc, iter_batches, parse_header
from quire_broker.log.index import MisleadingIndexError
from quire_broker.log.scan import Anchor, Found, scan
from quire_broker.log.segment import Place, Segment, anchors_of
from quire_broker.log.state import LogState

_CURSORS_MAX: Final = 64
_TRIES_MAX: Final = 3
"""The first finds damage, the second reads around it. Should the third fail too, the disk changes its mind."""
_STRETCH_BYTES: Final = 1024 * 1024


class Batches(NamedTuple):
    """Whole batches, laid end to end, as they are stored."""

    data: memoryview
    base_offset: int
    """Of the first one, which may begin before the offset that was asked for."""
    end_offset: int
    """Where to read on."""


class TimestampOffset(NamedTuple):
    timestamp_ms: int
    offset: int


class _NotAsExpected(Exception):
    """A batch does not check. Never leaves this module: it leads to a scan of the segment."""


class LogReader:
    def __init__(self, state: LogState) -> None:
        self._state = state
        self._cursors: dict[int, tuple[Segment, int]] = {}
        """Where reads have ended, so that the next one need not search: end offset → segment, position."""
        self._opened: dict[int, Segment] = {}
        """Sealed segments with an open file, the one used longest ago first."""
        self.investigations = 0
        """How often a segment was scanned because a read met something odd."""

    def forget_places(self) -> None:
        """Call when segments were cut or removed: what was known of places in them no longer holds."""
        self._cursors.clear()
        for segment in self._opened.values():
            segment.close()
        self._opened.clear()

    def read(self, offset: int, *, bytes_max: int, end_offset: int | None = None) -> Batches:
        """Batches from the one that holds `offset` on, of one segment, below `end_offset`.

        At most `bytes_max`, except that the first batch always comes whole. Nothing at the log's end.
        """
        state = self._state
        log_end = state.end_offset
        if not state.start_offset <= offset <= log_end:
            raise OffsetOutOfRangeError(
                f"offset {offset} is not in the log, which goes from {state.start_offset} to {log_end}",
                offset=offset,
                start_offset=state.start_offset,
                end_offset=log_end,
            )
        limit = log_end if end_offset is None else min(end_offset, log_end)
        if offset >= limit:
            return Batches(memoryview(b""), offset, offset)
        for _ in range(_TRIES_MAX):
            self._refuse_lost(offset)
            segment = state.segment_at(offset)
            try:
                return self._read_at(segment, self._place_of(segment, offset), offset, bytes_max, limit)
            except (MisleadingIndexError, _NotAsExpected):
                self.investigate(segment)
        raise DiskIoError(f"{segment.path} reads differently each time", path=segment.path)

    def headers(self, first: int, end: int) -> Iterator[BatchHeader]:
        """The headers of all batches that can be read between two offsets, which must lie at their edges."""
        while first < end:
            try:
                batches = self.read(first, bytes_max=_STRETCH_BYTES, end_offset=end)
            except DamagedRangeError as error:
                first = error.end_offset
                continue
            invariant(batches.end_offset > first, "headers are asked for up to the middle of a batch")
            for _, header in iter_batches(batches.data, check=False):
                yield header
            first = batches.end_offset

    def find_time(self, timestamp_ms: int) -> TimestampOffset | None:
        """The first record, by offset, with this timestamp or a later one; None without one.

        What is damaged is passed over.
        """
        state = self._state
        for segment in list(state.segments):
            if segment.max_timestamp_ms < timestamp_ms or segment.end_offset <= state.start_offset:
                continue
            for _ in range(_TRIES_MAX):
                try:
                    found = self._find_time_in(segment, timestamp_ms)
                    break
                except (MisleadingIndexError, _NotAsExpected):
                    self.investigate(segment)
            else:
                raise DiskIoError(f"{segment.path} reads differently each time", path=segment.path)
            if found is not None:
                return found
        return None

    def place_of_edge(self, offset: int) -> tuple[Segment, Place]:
        """Where the batch that holds `offset` begins, or what is lost around it, or else the end.

        Proven by the batch before it or by itself: it is where the log will be cut.
        """
        for _ in range(_TRIES_MAX):
            edge = offset
            lost = self._state.quarantined.holding(offset)
            while lost is not None:
                edge = lost.first_offset
                lost = self._state.quarantined.holding(edge - 1)
            segment = self._state.segment_at(edge)
            if edge >= segment.end_offset:
                return segment, Place(segment.size_bytes, segment.end_offset)
            try:
                return segment, self._proven_place(segment, edge)
            except (MisleadingIndexError, _NotAsExpected):
                self.investigate(segment)
        raise DiskIoError(f"{segment.path} reads differently each time", path=segment.path)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _refuse_lost(self, offset: int) -> None:
        lost = self._state.quarantined.holding(offset)
        if lost is not None:
            raise DamagedRangeError(
                f"offsets {lost.first_offset} to {lost.end_offset - 1} are damaged in {self._state.directory}; "
                f"another replica may have them, reading goes on at {lost.end_offset}",
                first_offset=lost.first_offset,
                end_offset=lost.end_offset,
            )

    def _stretch_end(self, offset: int) -> int:
        """Up to where nothing is known to be lost."""
        lost_from = self._state.quarantined.next_start(offset)
        return self._state.end_offset if lost_from is None else lost_from

    def _place_of(self, segment: Segment, offset: int) -> Place:
        self._keep_open(segment)
        cursor = self._cursors.pop(offset, None)
        if cursor is not None and cursor[0] is segment:
            return Place(cursor[1], offset)
        return segment.locate(
            offset,
            until_offset=self._stretch_end(offset),
            index_interval_bytes=self._state.config.index_interval_bytes,
        )

    def _proven_place(self, segment: Segment, edge: int) -> Place:
        if edge == segment.base_offset:
            return Place(0, edge)
        behind_damage = self._state.quarantined.holding(edge - 1) is not None
        entry = segment.index.floor_offset((edge if behind_damage else edge - 1) - segment.base_offset)
        place = Place(entry.position, segment.base_offset + entry.relative_offset)
        if behind_damage:
            self._read_at(segment, place, edge, 0, segment.end_offset)
        while place.base_offset < edge:
            batch = self._read_at(segment, place, place.base_offset, 0, segment.end_offset)
            if batch.end_offset > edge:
                break
            place = Place(place.position + len(batch.data), batch.end_offset)
        return place

    def _keep_open(self, segment: Segment) -> None:
        """Bound how many sealed segments have an open file. A sync may be using those that are not sealed."""
        if segment.is_sealed:
            self._opened.pop(segment.base_offset, None)
            self._opened[segment.base_offset] = segment
            if len(self._opened) > self._state.config.open_files_max:
                self._opened.pop(next(iter(self._opened))).close()

    def _read_at(self, segment: Segment, place: Place, offset: int, bytes_max: int, limit: int) -> Batches:
        """Read from a place where the batch that holds `offset` should begin."""
        position, expected = place
        try:
            data = segment.file.read(position, min(max(bytes_max, HEADER_BYTES), segment.size_bytes - position))
        except DiskIoError as error:
            if bytes_max:
                # A sector that cannot be read, perhaps behind batches that can.
                return self._read_at(segment, place, offset, 0, limit)
            raise _NotAsExpected from error
        certain_end = min(segment.end_offset, self._stretch_end(place.base_offset))
        epochs = self._state.epochs
        epoch, epoch_end = epochs.span(expected)
        at, size = 0, len(data)
        try:
            while size - at >= HEADER_BYTES:
                header = parse_header(data, at)
                if expected >= epoch_end:
                    epoch, epoch_end = epochs.span(expected)
                end = header.end_offset
                if header.base_offset != expected or header.leader_epoch != epoch or not offset < end <= certain_end:
                    raise _NotAsExpected
                if end > limit:
                    break
                batch_bytes = header.size_bytes
                if batch_bytes > size - at:
                    if at:
                        break
                    # Whole, however large: a reader could not get past it otherwise.
                    data += self._rest(segment, position + size, batch_bytes - size)
                    if len(data) < batch_bytes:
                        raise _NotAsExpected
                    size = batch_bytes
                check_crc(data, header, at)
                at += batch_bytes
                expected = end
            else:
                if not at:
                    raise _NotAsExpected
        except MalformedBatchError:
            # After good batches the next read will meet it first.
            if not at:
                raise _NotAsExpected from None
        except _NotAsExpected:
            if not at:
                raise
        if not at:
            return Batches(memoryview(b""), offset, offset)
        if position + at < segment.size_bytes:
            if len(self._cursors) >= _CURSORS_MAX:
                del self._cursors[next(iter(self._cursors))]
            self._cursors[expected] = (segment, position + at)
        return Batches(memoryview(data)[:at], place.base_offset, expected)

    def _rest(self, segment: Segment, position: int, size: int) -> bytes:
        try:
            return segment.file.read(position, size)
        except DiskIoError as error:
            raise _NotAsExpected from error

    def _find_time_in(self, segment: Segment, timestamp_ms: int) -> TimestampOffset | None:
        first = max(segment.base_offset, self._state.start_offset)
        while first < segment.end_offset:
            lost = self._state.quarantined.holding(first)
            if lost is not None:
                first = lost.end_offset
                continue
            self._keep_open(segment)
            until = min(self._stretch_end(first), segment.end_offset)
            place = segment.locate_time(
                timestamp_ms,
                from_offset=first,
                until_offset=until,
                index_interval_bytes=self._state.config.index_interval_bytes,
            )
            if place is None:
                first = until
                continue
            batches = self._read_at(segment, place, place.base_offset, 0, segment.end_offset)
            header = parse_header(batches.data)
            found = _find_time_in_batch(batches.data, header, timestamp_ms, self._state.start_offset)
            if found is not None:
                return found
            first = header.end_offset
        return None

    def investigate(self, segment: Segment) -> None:
        """Scan a segment in which something does not fit, quarantine what is damaged and make its index anew."""
        self.investigations += 1
        self.take_stock(segment, self._state.new_segment(segment.base_offset))

    def take_stock(self, segment: Segment, fresh: Segment, *, anchors: Iterable[Anchor] = ()) -> None:
        """Check `segment` from where `fresh` stands, and let it go on with the index and sidecars that this gives.

        `anchors` are what is known of places beyond what its index tells.
        """
        state = self._state
        for item in scan(
            segment.file,
            path=segment.path,
            position=fresh.size_bytes,
            end_position=min(segment.size_bytes, segment.file.size()),
            expected_offset=fresh.end_offset,
            epochs=state.epochs,
            end_offset=segment.end_offset,
            anchors=sorted({*anchors_of(segment), *anchors}),
        ):
            end_offset = item.header.end_offset if isinstance(item, Found) else item.end_offset
            if end_offset is None or end_offset > segment.end_offset:
                break  # what claims to lie behind the segment's end is as damaged as what is not there
            if isinstance(item, Found):
                if state.quarantined.holding(item.header.base_offset - 1) is not None:
                    # Also where what is quarantined has turned good meanwhile: one may begin to read behind it.
                    fresh.pass_over(position=item.position, offset=item.header.base_offset)
                fresh.note(
                    item.header, item.header.base_offset, index_interval_bytes=state.config.index_interval_bytes
                )
            else:
                self._quarantine(item.first_offset, end_offset)
                fresh.pass_over(position=item.end_position, offset=end_offset)
        if fresh.end_offset < segment.end_offset:
            self._quarantine(fresh.end_offset, segment.end_offset)
            fresh.pass_over(position=segment.size_bytes, offset=segment.end_offset)
        segment.adopt(fresh)
        self._cursors.clear()
        self._opened.pop(segment.base_offset, None)
        state.unsaved = True
        state.find_unsealed()

    def _quarantine(self, first: int, end: int) -> None:
        if end > self._state.start_offset:
            self._state.quarantined.add(first, end)


def _find_time_in_batch(
    batch: memoryview, header: BatchHeader, timestamp_ms: int, start_offset: int
) -> TimestampOffset | None:
    if header.max_timestamp_ms < timestamp_ms:
        return None
    try:
        for record in decode(batch, check=False):
            if record.timestamp >= timestamp_ms and record.offset >= start_offset:
                return TimestampOffset(record.timestamp, record.offset)
    except (UnsupportedBatchError, MalformedBatchError):
        # Its records do not decode; whoever reads from its beginning is told so.
        return TimestampOffset(header.max_timestamp_ms, max(header.base_offset, start_offset))
    if header.base_offset < start_offset:
        return None  # it lies below the start
    # The header claims a time that no record has. Its producer's word is taken for it: to go on looking would be to
    # decode a whole log of such batches, while nothing else happens.
    return TimestampOffset(header.max_timestamp_ms, header.base_offset)
