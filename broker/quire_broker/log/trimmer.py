"""Removing batches from a log, at either end.

What a removal leaves (a higher start, a lower end) is in the checkpoint before a file is touched, so a crash in the
middle is finished, or harmlessly not begun, at the next opening.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from quire.errors import DiskFullError, InvalidArgumentError
from quire_broker.log import snapshots
from quire_broker.log.checkpoint import Cut
from quire_broker.log.epochs import LeaderEpochs
from quire_broker.log.index import SegmentIndex
from quire_broker.log.ranges import OffsetRanges
from quire_broker.log.reader import LogReader
from quire_broker.log.recovery import cut_segment
from quire_broker.log.retention import expired_count
from quire_broker.log.segment import Segment
from quire_broker.log.state import LogState
from quire_broker.log.synced_mark import SyncedMark


class LogTrimmer:
    """Everything here is exclusive, and durable before it returns."""

    def __init__(self, state: LogState, reader: LogReader, mark: SyncedMark, sync: Callable[[], None]) -> None:
        self._state = state
        self._reader = reader
        self._mark = mark
        self._sync = sync

    def truncate(self, end_offset: int) -> int:
        """Remove everything from `end_offset` on and return the new end.

        A batch that reaches across goes whole, so the new end may be lower. Leader epochs without a batch go too: the
        next batch may be of an older one.
        """
        state = self._state
        state.require_exclusive()
        if end_offset < state.start_offset:
            raise InvalidArgumentError(
                f"cannot truncate {state.directory} to {end_offset}, it begins at {state.start_offset}; reset it"
            )
        epochs = LeaderEpochs(state.epochs)
        if end_offset >= state.end_offset:
            if epochs.truncate(state.end_offset):
                state.save(state.checkpoint(epochs=epochs))
                state.epochs = epochs
            return state.end_offset
        segment, place = self._reader.place_of_edge(end_offset)
        end = place.base_offset
        quarantined = OffsetRanges(state.quarantined)
        epochs.truncate(end)
        quarantined.truncate(end)
        cut = Cut(segment.base_offset, place.position, end)
        state.save(
            state.checkpoint(
                start_offset=min(state.start_offset, end),
                recovery_point=min(state.recovery_point, end),
                epochs=epochs,
                quarantined=quarantined,
                cut=cut,
            )
        )
        state.start_offset, state.epochs, state.quarantined = min(state.start_offset, end), epochs, quarantined
        state.recovery_point = min(state.recovery_point, end)
        state.synced_offset = min(state.synced_offset, end)
        with state.offline_on_error():
            self._mark.lower(state.synced_offset)
            while state.active is not segment:
                state.segments.pop().remove()
            cut_segment(segment, place.position)
            snapshots.remove_after(state.disk, state.directory, end)
            self._reader.forget_places()
            state.find_unsealed()
            self._restock(segment, end, place.position)
            self._replay_producers(end)
            state.disk.sync_dir(state.directory)
            state.save(state.checkpoint())
        return end

    def reset(self, start_offset: int) -> None:
        """Remove everything and go on at another offset: a replica too far behind to catch up."""
        self._state.require_exclusive()
        if start_offset < 0:
            raise InvalidArgumentError(f"a log cannot begin at {start_offset}")
        state = self._state
        epochs = LeaderEpochs()
        state.save(
            state.checkpoint(
                start_offset=start_offset,
                recovery_point=start_offset,
                epochs=epochs,
                quarantined=OffsetRanges(),
                cut=Cut(-1, 0, start_offset),
            )
        )
        with state.offline_on_error():
            self._mark.lower(0)
            for segment in reversed(state.segments):
                segment.remove()
            snapshots.remove_after(state.disk, state.directory, -1)
            fresh = state.new_segment(start_offset)
            fresh.create()
            state.segments[:] = [fresh]
            state.find_unsealed()
            state.start_offset = state.recovery_point = state.synced_offset = start_offset
            state.epochs, state.quarantined = epochs, OffsetRanges()
            state.producers.clear()
            self._reader.forget_places()
            state.disk.sync_dir(state.directory)
            state.save(state.checkpoint())

    def advance_start(self, start_offset: int) -> None:
        """Forget all that lies below an offset. Segments wholly below it are removed."""
        state = self._state
        state.require_exclusive()
        if not state.start_offset <= start_offset <= state.end_offset:
            raise InvalidArgumentError(
                f"{state.directory} goes from {state.start_offset} to {state.end_offset}: no start at {start_offset}"
            )
        if start_offset == state.start_offset:
            return
        going = 0
        while going < len(state.segments) - 1 and state.segments[going + 1].base_offset <= start_offset:
            going += 1
        if start_offset > state.synced_offset or (going and state.segments[going].base_offset > state.recovery_point):
            # Or a power cut could leave an end below the start, and nobody would know of the producers of what goes.
            self._sync()
        epochs, quarantined = LeaderEpochs(state.epochs), OffsetRanges(state.quarantined)
        # Of the first segment that stays every batch must be provable, also those below the new start.
        epochs.forget_below(state.segments[going].base_offset)
        quarantined.forget_below(start_offset)
        intent = state.checkpoint(start_offset=start_offset, epochs=epochs, quarantined=quarantined)
        while True:
            try:
                state.save(intent)
                break
            except DiskFullError:
                state.start_offset = max(state.start_offset, state.segments[0].base_offset)
                if not going:
                    raise
                # Here the intent cannot come first: there is no room for it until a segment is gone.
                self._reader.forget_places()
                with state.offline_on_error():
                    state.segments.pop(0).remove()
                state.find_unsealed()
                going -= 1
        state.start_offset, state.epochs, state.quarantined = start_offset, epochs, quarantined
        state.recovery_point = max(state.recovery_point, start_offset)
        self._reader.forget_places()
        with state.offline_on_error():
            for _ in range(going):
                state.segments.pop(0).remove()
        state.find_unsealed()
        if state.unsaved:
            self._sync()  # there may be room for the books by now

    def apply_retention(self, *, now_ms: int, end_offset_max: int | None = None) -> int:
        """Remove the oldest segments as the settings demand, none past `end_offset_max`.

        Returns how many went. An active segment that is too old is rolled first, so that it may go too.
        """
        state = self._state
        state.require_exclusive()
        end_offset_max = state.synced_offset if end_offset_max is None else min(end_offset_max, state.synced_offset)
        if self._is_too_old(state.active, now_ms):
            with suppress(DiskFullError):  # what is older may still go, and make the room
                state.roll()
        count = expired_count(state.segments, config=state.config, now_ms=now_ms, end_offset_max=end_offset_max)
        if count:
            self.advance_start(max(state.start_offset, state.segments[count].base_offset))
        return count

    def _is_too_old(self, active: Segment, now_ms: int) -> bool:
        config = self._state.config
        old_enough_to_roll = (
            active.first_append_ms is not None and now_ms - active.first_append_ms >= config.segment_ms
        )
        expired = config.retention_ms is not None and 0 <= active.max_timestamp_ms < now_ms - config.retention_ms
        return active.size_bytes > 0 and (old_enough_to_roll or expired)

    def _restock(self, segment: Segment, end_offset: int, size_bytes: int) -> None:
        """Make a cut segment's index and bounds fit again."""
        fresh = self._state.new_segment(segment.base_offset)
        if not self._state.kinds and isinstance(segment.index, SegmentIndex):
            segment.index.keep_below(end_offset - segment.base_offset)
            fresh.resume(segment.index, {})
        segment.end_offset, segment.size_bytes = end_offset, size_bytes
        self._reader.take_stock(segment, fresh)

    def _replay_producers(self, end_offset: int) -> None:
        state = self._state
        first = snapshots.load_newest(state.disk, state.directory, state.producers, at_most=end_offset)
        for header in self._reader.headers(max(first, state.start_offset), end_offset):
            state.producers.learn(header, now_ms=state.last_ms)
