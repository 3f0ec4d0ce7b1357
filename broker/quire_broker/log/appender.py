"""Putting batches at the end of a log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from quire.errors import DiskFullError, DiskIoError, MalformedBatchError, QuireError, StaleEpochError
from quire.records.header import (
    BATCH_BYTES_MAX,
    PREFIX_BYTES,
    BatchHeader,
    iter_batches,
    make_prefix,
    parse_batch,
)
from quire.records.produced import check_produced
from quire.types import Buffer
from quire_broker.log.config import INDEX_NUMBER_MAX
from quire_broker.log.epochs import LeaderEpochs
from quire_broker.log.segment import Segment
from quire_broker.log.state import LogState


class Appended(NamedTuple):
    """Where a batch is."""

    base_offset: int
    end_offset: int
    duplicate: bool
    """It was there before. It counts as stored only under the condition that the original is under."""


class _Checked(NamedTuple):
    """A batch that may be written."""

    outcome: int
    """Its place among the outcomes."""
    header: BatchHeader
    base_offset: int


class LogAppender:
    def __init__(self, state: LogState) -> None:
        self._state = state

    def begin_epoch(self, epoch: int) -> None:
        """Let batches from here on be of `epoch`. Exclusive, and durable before it returns.

        A batch whose epoch the log does not know is damage. Were the epoch not on the disk before its first batch,
        a crash could make damage of good batches.
        """
        state = self._state
        if epoch == state.epochs.latest:
            return
        epochs = LeaderEpochs(state.epochs)
        epochs.begin(epoch, state.end_offset)
        state.require_exclusive()
        state.save(state.checkpoint(epochs=epochs))
        state.epochs = epochs

    def append(
        self, batches: Sequence[Buffer], *, epoch: int, now_ms: int, attributes_allowed: int
    ) -> list[Appended | QuireError]:
        state = self._state
        if epoch < 0 or epoch != state.epochs.latest:
            raise StaleEpochError(
                f"append by leader epoch {epoch}, but {state.directory} is at {state.epochs.latest}", epoch=epoch
            )
        state.last_ms = now_ms
        outcomes: list[Appended | QuireError] = []
        group: list[_Checked] = []
        buffers: list[Buffer] = []
        size, offset, admission = 0, state.end_offset, state.producers.plan()
        batch_bytes_max = state.config.batch_bytes_max
        try:
            for batch in batches:
                try:
                    header, batch_bytes = parse_batch(batch, batch_bytes_max=batch_bytes_max), len(batch)
                    if header.size_bytes != batch_bytes:
                        raise MalformedBatchError(f"{batch_bytes - header.size_bytes} bytes follow the batch")
                    check_produced(header, attributes_allowed=attributes_allowed)
                    end = offset + header.last_offset_delta + 1
                    if self._is_full(size, batch_bytes, end, now_ms):
                        # Before the batch is admitted: what is admitted by then is committed with this write.
                        self._write(group, buffers, now_ms)
                        admission.commit()
                        group, buffers, size = [], [], 0
                        state.roll()
                    original = admission.admit(header, offset, now_ms=now_ms)
                except (DiskFullError, DiskIoError):
                    raise
                except QuireError as error:
                    outcomes.append(error)
                    continue
                if original is not None:
                    outcomes.append(Appended(original, original + header.record_count, duplicate=True))
                    continue
                group.append(_Checked(len(outcomes), header, offset))
                outcomes.append(Appended(offset, end, duplicate=False))
                buffers.append(make_prefix(base_offset=offset, length=header.length, leader_epoch=epoch))
                buffers.append(memoryview(batch)[PREFIX_BYTES:])
                size, offset = size + batch_bytes, end
            self._write(group, buffers, now_ms)
            admission.commit()
        except (DiskFullError, DiskIoError) as error:
            # From the first one that was not written on: what was said of those behind it took it for written.
            del outcomes[group[0].outcome if group else len(outcomes) :]
            outcomes += [error] * (len(batches) - len(outcomes))
        return outcomes

    def append_stored(self, data: Buffer, *, now_ms: int) -> int:
        """Append batches that a leader has stored, offsets and epochs as they are, and return the new end.

        Nothing is written unless all of them continue the log. After a full disk some may have been: go on from
        `end_offset`. With a new leader epoch in them this is exclusive.
        """
        state = self._state
        state.last_ms = now_ms
        view, expected, latest = memoryview(data), state.end_offset, state.epochs.latest
        headers = [header for _, header in iter_batches(view, batch_bytes_max=BATCH_BYTES_MAX)]
        for header in headers:
            if header.base_offset != expected or header.record_count != header.last_offset_delta + 1:
                raise MalformedBatchError(
                    f"batch at offset {header.base_offset} with {header.record_count} records does not continue "
                    f"{state.directory}, which goes on at {expected}"
                )
            if header.leader_epoch < latest:
                raise StaleEpochError(
                    f"batch of leader epoch {header.leader_epoch} after one of {latest}", epoch=latest
                )
            expected, latest = header.end_offset, header.leader_epoch
        group: list[_Checked] = []
        position = size = 0
        for header in headers:
            full = self._is_full(size, header.size_bytes, header.end_offset, now_ms)
            if full or header.leader_epoch != state.epochs.latest:
                self._write_stored(group, view[position : position + size], now_ms)
                group, position, size = [], position + size, 0
                if full:
                    state.roll()
                self.begin_epoch(header.leader_epoch)
            group.append(_Checked(0, header, header.base_offset))
            size += header.size_bytes
        self._write_stored(group, view[position : position + size], now_ms)
        return state.end_offset

    def _write_stored(self, group: list[_Checked], data: memoryview, now_ms: int) -> None:
        self._write(group, [data], now_ms)
        for checked in group:
            self._state.producers.learn(checked.header, now_ms=now_ms)

    def _is_full(self, pending_bytes: int, batch_bytes: int, end_offset: int, now_ms: int) -> bool:
        """Whether a batch must go to a new segment. An empty one takes any: a larger batch gets one of its own."""
        active, config = self._state.active, self._state.config
        bytes_before = active.size_bytes + pending_bytes
        return bytes_before > 0 and (
            bytes_before + batch_bytes > config.segment_bytes
            or end_offset - active.base_offset > INDEX_NUMBER_MAX
            or (active.first_append_ms is not None and now_ms - active.first_append_ms >= config.segment_ms)
        )

    def _write(self, group: list[_Checked], buffers: Sequence[Buffer], now_ms: int) -> None:
        if not group:
            return
        active, interval_bytes = self._state.active, self._state.config.index_interval_bytes
        try:
            active.write(buffers)
        except DiskFullError:
            self._take_back(active)
            raise
        except DiskIoError as error:
            self._state.go_offline(error)
            raise
        if active.first_append_ms is None:
            active.first_append_ms = now_ms
        size_before = active.size_bytes
        for _, header, base_offset in group:
            active.note(header, base_offset, index_interval_bytes=interval_bytes)
        self._state.appended_bytes += active.size_bytes - size_before

    def _take_back(self, active: Segment) -> None:
        """Remove what a failed write left. Durably: after a power cut it must not be there again."""
        try:
            if active.file.size() > active.size_bytes:
                active.file.truncate(active.size_bytes)
                active.file.sync()
        except (DiskFullError, DiskIoError) as error:
            self._state.go_offline(error)
