"""One stream of one partition: a log of record batches that keeps what it acknowledged.

Everything here runs on one thread, except `SyncPlan.run`. Only one plan is in flight at a time; operations that
rewrite what a plan may be writing are called *exclusive* and refuse to run meanwhile. `runtime.log_writer` sees to
both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, NamedTuple

from quire.errors import (
    DiskFullError,
    DiskIoError,
    InvalidArgumentError,
    LogOfflineError,
    MalformedBatchError,
    QuireError,
    StaleEpochError,
    SyncFailedError,
    invariant,
)
from quire.records.header import (
    BATCH_BYTES_MAX,
    PREFIX_BYTES,
    BatchHeader,
    iter_batches,
    make_prefix,
    parse_batch,
)
from quire.records.produced import PRODUCIBLE_ATTRIBUTES, check_produced
from quire.types import Buffer
from quire_broker.log import checkpoint as checkpoints
from quire_broker.log import snapshots
from quire_broker.log.checkpoint import Checkpoint, Cut
from quire_broker.log.config import INDEX_NUMBER_MAX, LogConfig
from quire_broker.log.epochs import EpochStart, LeaderEpochs
from quire_broker.log.index import SegmentIndex
from quire_broker.log.producers import Producers
from quire_broker.log.ranges import OffsetRange, OffsetRanges
from quire_broker.log.reader import Batches, LogReader, TimestampOffset
from quire_broker.log.recovery import RecoveryReport, cut_segment, recover
from quire_broker.log.retention import expired_count
from quire_broker.log.segment import Segment
from quire_broker.log.sidecar import Sidecar, SidecarKind
from quire_broker.log.state import LogState
from quire_broker.log.sync_plan import Bookkeeping, SyncPlan
from quire_broker.log.synced_mark import SyncedMark
from quire_broker.ports import Disk

_SNAPSHOT_SHARE: Final = 4
"""A checkpoint waits until the log has grown by this many times what the last one wrote: a log with very many
producers would otherwise write more about them than of them."""


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


class Log:
    def __init__(self, state: LogState, report: RecoveryReport) -> None:
        self._state = state
        self._reader = LogReader(state)
        self._mark = SyncedMark(state.disk, state.directory)
        self._plan: SyncPlan | None = None
        self._offline: LogOfflineError | None = None
        self._new_names = 1  # the active segment may be new
        self._new_names_synced = 0
        self._synced_offset = state.recovery_point
        self._appended_bytes = 0
        self._books_bytes = 0
        self.recovery = report
        self.books_error: DiskFullError | DiskIoError | None = None
        """Why the last checkpoint could not be written; it is tried again with the next sync."""

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        config: LogConfig,
        *,
        now_ms: int,
        sidecars: Iterable[SidecarKind] = (),
    ) -> Log:
        """Open the log in a directory, or begin one. What was recovered is synced before this returns.

        A full disk does not keep it from opening: what was learned is then written down later.
        """
        state, report = recover(disk, directory, config=config, kinds=tuple(sidecars), now_ms=now_ms)
        log = cls(state, report)
        if state.unsaved:
            log.sync()
        return log

    # -- what it is ------------------------------------------------------------------------------------------------

    @property
    def directory(self) -> str:
        return self._state.directory

    @property
    def config(self) -> LogConfig:
        return self._state.config

    @property
    def start_offset(self) -> int:
        """The first offset that may be read."""
        return self._state.start_offset

    @property
    def end_offset(self) -> int:
        """The offset that the next record will get."""
        return self._state.end_offset

    @property
    def synced_offset(self) -> int:
        """Everything below survives a power cut."""
        return self._synced_offset

    @property
    def recovery_point(self) -> int:
        """Everything below is believed at the next opening."""
        return self._state.recovery_point

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._state.segments)

    @property
    def segment_count(self) -> int:
        return len(self._state.segments)

    @property
    def quarantined(self) -> list[OffsetRange]:
        """Ranges that are known to be damaged and are not served."""
        return list(self._state.quarantined)

    @property
    def epochs(self) -> Iterator[EpochStart]:
        return iter(self._state.epochs)

    @property
    def latest_epoch(self) -> int:
        return self._state.epochs.latest

    @property
    def producers(self) -> Producers:
        return self._state.producers

    @property
    def offline(self) -> LogOfflineError | None:
        """Why the log serves nothing any more, if so."""
        return self._offline

    @property
    def syncing(self) -> bool:
        return self._plan is not None

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """(the largest known epoch ≤ `epoch`, where it ends): what a follower at `epoch` compares itself with."""
        return self._state.epochs.end_of(epoch, self.end_offset)

    def sidecars(self, name: str) -> Iterator[tuple[int, Sidecar]]:
        """(base offset, sidecar) of each segment, made anew where it was lost."""
        for segment in self._state.segments:
            if segment.sidecar(name) is None:
                self._reader.investigate(segment)
            sidecar = segment.sidecar(name)
            invariant(sidecar is not None, f"no sidecar {name} after it was made anew")
            if sidecar is not None:
                yield segment.base_offset, sidecar

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self, offset: int, *, bytes_max: int, end_offset: int | None = None) -> Batches:
        """Checked batches from the one that holds `offset` on, below `end_offset`; at least one, if there is one."""
        self._require_online()
        return self._reader.read(offset, bytes_max=bytes_max, end_offset=end_offset)

    def find_time(self, timestamp_ms: int) -> TimestampOffset | None:
        """The first record, by offset, with this timestamp or a later one."""
        self._require_online()
        return self._reader.find_time(timestamp_ms)

    # -- appending -------------------------------------------------------------------------------------------------

    def append(
        self,
        batches: Sequence[Buffer],
        *,
        epoch: int,
        now_ms: int,
        attributes_allowed: int = PRODUCIBLE_ATTRIBUTES,
    ) -> list[Appended | QuireError]:
        """Give batches of producers their offsets and write them, as the leader of `epoch`.

        One outcome a batch: a bad one does not keep the others out. All of a segment go out in one write.
        """
        self._require_online()
        if epoch < 0 or epoch != self._state.epochs.latest:
            raise StaleEpochError(
                f"append by leader epoch {epoch}, but {self.directory} is at {self._state.epochs.latest}", epoch=epoch
            )
        state = self._state
        outcomes: list[Appended | QuireError] = []
        group: list[_Checked] = []
        buffers: list[Buffer] = []
        size, offset, admission = 0, self.end_offset, state.producers.plan()
        try:
            for batch in batches:
                try:
                    header = parse_batch(batch, batch_bytes_max=state.config.batch_bytes_max)
                    if header.size_bytes != len(batch):
                        raise MalformedBatchError(f"{len(batch) - header.size_bytes} bytes follow the batch")
                    check_produced(header, attributes_allowed=attributes_allowed)
                    end = offset + header.last_offset_delta + 1
                    if self._is_full(size, header.size_bytes, end, now_ms):
                        # Before the batch is admitted: what is admitted by then is committed with this write.
                        self._write(group, buffers, now_ms)
                        admission.commit()
                        group, buffers, size = [], [], 0
                        self._roll()
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
                size, offset = size + header.size_bytes, end
            self._write(group, buffers, now_ms)
            admission.commit()
        except (DiskFullError, DiskIoError) as error:
            for checked in group:
                outcomes[checked.outcome] = error
            # A duplicate may be of a batch in the group that was not written.
            unwritten = self.end_offset
            outcomes = [
                error if isinstance(outcome, Appended) and outcome.end_offset > unwritten else outcome
                for outcome in outcomes
            ]
            outcomes += [error] * (len(batches) - len(outcomes))
        return outcomes

    def append_stored(self, data: Buffer, *, now_ms: int) -> int:
        """Append batches that a leader has stored, offsets and epochs as they are, and return the new end.

        Nothing is written unless all of them continue the log. After a full disk some may have been: go on from
        `end_offset`. With a new leader epoch in them this is exclusive.
        """
        self._require_online()
        view, expected, latest = memoryview(data), self.end_offset, self.latest_epoch
        headers = [header for _, header in iter_batches(view, batch_bytes_max=BATCH_BYTES_MAX)]
        for header in headers:
            if header.base_offset != expected or header.record_count != header.last_offset_delta + 1:
                raise MalformedBatchError(
                    f"batch at offset {header.base_offset} with {header.record_count} records does not continue "
                    f"{self.directory}, which goes on at {expected}"
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
            if full or header.leader_epoch != self.latest_epoch:
                self._write_stored(group, view[position : position + size], now_ms)
                group, position, size = [], position + size, 0
                if full:
                    self._roll()
                self.begin_epoch(header.leader_epoch)
            group.append(_Checked(0, header, header.base_offset))
            size += header.size_bytes
        self._write_stored(group, view[position : position + size], now_ms)
        return self.end_offset

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
            self._go_offline(error)
            raise
        if active.first_append_ms is None:
            active.first_append_ms = now_ms
        size_before = active.size_bytes
        for _, header, base_offset in group:
            active.note(header, base_offset, index_interval_bytes=interval_bytes)
        self._appended_bytes += active.size_bytes - size_before

    def _take_back(self, active: Segment) -> None:
        """Remove what a failed write left. Durably: after a power cut it must not be there again."""
        try:
            if active.file.size() > active.size_bytes:
                active.file.truncate(active.size_bytes)
                active.file.sync()
        except (DiskFullError, DiskIoError) as error:
            self._go_offline(error)

    def _roll(self) -> None:
        segment = self._state.new_segment(self.end_offset)
        segment.create()
        self._state.segments.append(segment)
        self._new_names += 1

    # -- leader epochs ---------------------------------------------------------------------------------------------

    def begin_epoch(self, epoch: int) -> None:
        """Let batches from here on be of `epoch`. Exclusive, and durable before it returns.

        A batch whose epoch the log does not know is damage. Were the epoch not on the disk before its first batch,
        a crash could make damage of good batches.
        """
        self._require_online()
        if epoch == self.latest_epoch:
            return
        epochs = LeaderEpochs(self._state.epochs)
        epochs.begin(epoch, self.end_offset)
        self._require_idle()
        self._save_checkpoint(epochs=epochs)
        self._state.epochs = epochs

    # -- syncing ---------------------------------------------------------------------------------------------------

    def begin_sync(self, *, checkpoint: bool = False) -> SyncPlan | None:
        """A plan to sync all that was appended so far; None when there is nothing to do. At most one is in flight.

        `checkpoint` moves the recovery point along, as happens by itself every `checkpoint_bytes`.
        """
        self._require_online()
        self._require_idle()
        state = self._state
        end, sealed = state.end_offset, [s for s in state.segments[:-1] if not s.is_sealed]
        due = self._appended_bytes >= max(state.config.checkpoint_bytes, _SNAPSHOT_SHARE * self._books_bytes)
        bookkeeping = None
        if due or sealed or state.unsaved or (checkpoint and self._appended_bytes):
            bookkeeping = self._plan_books(sealed)
        if bookkeeping is None and end == self._synced_offset:
            return None
        self._plan = SyncPlan(
            disk=state.disk,
            directory=state.directory,
            end_offset=end,
            files=[s.file for s in state.segments if s.end_offset > self._synced_offset],
            new_names=self._new_names,
            sync_names=self._new_names > self._new_names_synced,
            mark=self._mark,
            bookkeeping=bookkeeping,
        )
        return self._plan

    def _plan_books(self, sealed: list[Segment]) -> Bookkeeping:
        state = self._state
        end = state.end_offset
        files = [item for segment in sealed for item in segment.unsaved(sealed=True)]
        files += state.active.unsaved(sealed=False)
        files.append((snapshots.path_of(state.directory, end), partial(state.producers.copy().to_bytes, end)))
        old = [offset for offset in snapshots.offsets(state.disk.names(state.directory)) if offset != end]
        bookkeeping = Bookkeeping(
            checkpoint=self._checkpoint(recovery_point=end),
            files=files,
            stale=[snapshots.path_of(state.directory, offset) for offset in old[: 1 - snapshots.KEPT]],
            sealed=sealed,
            log_bytes=self._appended_bytes,
        )
        state.unsaved = False
        return bookkeeping

    def finish_sync(self, plan: SyncPlan) -> None:
        """Take in what became of a plan. Look at `synced_offset` and `offline` afterwards."""
        invariant(plan is self._plan, "a plan is finished once, by the log that made it")
        self._plan = None
        if plan.data_synced:
            self._synced_offset = max(self._synced_offset, plan.end_offset)
            self._new_names_synced = plan.new_names
        books = plan.bookkeeping
        if books is not None:
            if plan.books_kept:
                self._state.recovery_point = books.checkpoint.recovery_point
                self._appended_bytes -= books.log_bytes
                self._books_bytes = books.written_bytes
                for segment in books.sealed:
                    segment.become_sealed()
            else:
                self._state.unsaved = True
        self.books_error = plan.error
        if plan.error is not None and not (plan.data_synced and isinstance(plan.error, DiskFullError)):
            self._go_offline(plan.error)

    def sync(self, *, checkpoint: bool = False) -> None:
        """Sync here and now. Exclusive."""
        plan = self.begin_sync(checkpoint=checkpoint)
        if plan is not None:
            plan.run()
            self.finish_sync(plan)
            self._require_online()

    # -- removing --------------------------------------------------------------------------------------------------

    def truncate(self, end_offset: int) -> int:
        """Remove everything from `end_offset` on and return the new end. Exclusive, and durable before it returns.

        A batch that reaches across goes whole, so the new end may be lower. Leader epochs without a batch go too: the
        next batch may be of an older one.
        """
        self._require_online()
        self._require_idle()
        state = self._state
        if end_offset < state.start_offset:
            raise InvalidArgumentError(
                f"cannot truncate {self.directory} to {end_offset}, it begins at {state.start_offset}; reset it"
            )
        epochs = LeaderEpochs(state.epochs)
        if end_offset >= self.end_offset:
            if epochs.truncate(self.end_offset):
                self._save_checkpoint(epochs=epochs)
                state.epochs = epochs
            return self.end_offset
        segment, place = self._reader.place_of_edge(end_offset)
        end = place.base_offset
        quarantined = OffsetRanges(state.quarantined)
        epochs.truncate(end)
        quarantined.truncate(end)
        cut = Cut(segment.base_offset, place.position, end)
        self._save_checkpoint(
            start_offset=min(state.start_offset, end),
            recovery_point=min(state.recovery_point, end),
            epochs=epochs,
            quarantined=quarantined,
            cut=cut,
        )
        state.start_offset, state.epochs, state.quarantined = min(state.start_offset, end), epochs, quarantined
        state.recovery_point = min(state.recovery_point, end)
        self._synced_offset = min(self._synced_offset, end)
        with self._offline_on_error():
            self._mark.lower(self._synced_offset)
            while state.active is not segment:
                state.segments.pop().remove()
            cut_segment(segment, place.position)
            snapshots.remove_after(state.disk, self.directory, end)
            self._reader.forget_places()
            self._restock(segment, end, place.position)
            self._replay_producers(end)
            state.disk.sync_dir(self.directory)
            self._save_checkpoint()
        return end

    def reset(self, start_offset: int) -> None:
        """Remove everything and go on at another offset: a replica too far behind to catch up. Exclusive, durable."""
        self._require_online()
        self._require_idle()
        if start_offset < 0:
            raise InvalidArgumentError(f"a log cannot begin at {start_offset}")
        state = self._state
        epochs = LeaderEpochs()
        self._save_checkpoint(
            start_offset=start_offset,
            recovery_point=start_offset,
            epochs=epochs,
            quarantined=OffsetRanges(),
            cut=Cut(-1, 0, start_offset),
        )
        with self._offline_on_error():
            self._mark.lower(0)
            for segment in reversed(state.segments):
                segment.remove()
            snapshots.remove_after(state.disk, self.directory, -1)
            fresh = state.new_segment(start_offset)
            fresh.create()
            state.segments[:] = [fresh]
            state.start_offset = state.recovery_point = self._synced_offset = start_offset
            state.epochs, state.quarantined = epochs, OffsetRanges()
            state.producers.clear()
            self._reader.forget_places()
            state.disk.sync_dir(self.directory)
            self._save_checkpoint()

    def advance_start(self, start_offset: int) -> None:
        """Forget all that lies below an offset. Segments wholly below it are removed. Exclusive, durable."""
        self._require_online()
        self._require_idle()
        state = self._state
        if not state.start_offset <= start_offset <= self.end_offset:
            raise InvalidArgumentError(
                f"{self.directory} goes from {state.start_offset} to {self.end_offset}: no start at {start_offset}"
            )
        if start_offset == state.start_offset:
            return
        if start_offset > self._synced_offset:
            self.sync()  # or a power cut could leave an end below the start
        going = 0
        while going < len(state.segments) - 1 and state.segments[going + 1].base_offset <= start_offset:
            going += 1
        epochs, quarantined = LeaderEpochs(state.epochs), OffsetRanges(state.quarantined)
        # Of the first segment that stays every batch must be provable, also those below the new start.
        epochs.forget_below(state.segments[going].base_offset)
        quarantined.forget_below(start_offset)
        try:
            self._save_checkpoint(start_offset=start_offset, epochs=epochs, quarantined=quarantined)
        except DiskFullError:
            if not going:
                raise
            # Here the intent cannot come first: there is no room for it until a segment is gone.
            state.segments.pop(0).remove()
            going -= 1
            self._save_checkpoint(start_offset=start_offset, epochs=epochs, quarantined=quarantined)
        state.start_offset, state.epochs, state.quarantined = start_offset, epochs, quarantined
        state.recovery_point = max(state.recovery_point, start_offset)
        self._reader.forget_places()
        with self._offline_on_error():
            for _ in range(going):
                state.segments.pop(0).remove()

    def apply_retention(self, *, now_ms: int, end_offset_max: int | None = None) -> int:
        """Remove the oldest segments as the settings demand, none past `end_offset_max`. Exclusive.

        Returns how many went. An active segment that is too old is rolled first, so that it may go too.
        """
        self._require_online()
        self._require_idle()
        state = self._state
        end_offset_max = self._synced_offset if end_offset_max is None else min(end_offset_max, self._synced_offset)
        if state.active.size_bytes and self._is_full(0, 0, self.end_offset, now_ms):
            self._roll()
        count = expired_count(state.segments, config=state.config, now_ms=now_ms, end_offset_max=end_offset_max)
        if count:
            self.advance_start(max(self.start_offset, state.segments[count].base_offset))
        return count

    def close(self) -> None:
        """Sync everything, so that the next opening need not scan, and let go of the files. Exclusive."""
        try:
            if self._offline is None:
                self.sync(checkpoint=True)
        finally:
            for segment in self._state.segments:
                segment.close()
            self._mark.close()

    # -- inside ----------------------------------------------------------------------------------------------------

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
        first = snapshots.load_newest(state.disk, self.directory, state.producers, at_most=end_offset)
        for header in self._reader.headers(max(first, state.start_offset), end_offset):
            state.producers.learn(header, now_ms=header.max_timestamp_ms)

    def _checkpoint(
        self,
        *,
        start_offset: int | None = None,
        recovery_point: int | None = None,
        epochs: LeaderEpochs | None = None,
        quarantined: OffsetRanges | None = None,
        cut: Cut | None = None,
    ) -> Checkpoint:
        state = self._state
        start = state.start_offset if start_offset is None else start_offset
        return Checkpoint(
            start_offset=start,
            recovery_point=max(start, state.recovery_point if recovery_point is None else recovery_point),
            epochs=tuple(state.epochs if epochs is None else epochs),
            quarantined=tuple(state.quarantined if quarantined is None else quarantined),
            cut=cut,
        )

    def _save_checkpoint(
        self,
        *,
        start_offset: int | None = None,
        recovery_point: int | None = None,
        epochs: LeaderEpochs | None = None,
        quarantined: OffsetRanges | None = None,
        cut: Cut | None = None,
    ) -> None:
        """Replace the checkpoint at once. A failed sync is final, also here."""
        checkpoint = self._checkpoint(
            start_offset=start_offset,
            recovery_point=recovery_point,
            epochs=epochs,
            quarantined=quarantined,
            cut=cut,
        )
        try:
            checkpoints.save(self._state.disk, self.directory, checkpoint)
        except SyncFailedError as error:
            self._go_offline(error)
            raise

    @contextmanager
    def _offline_on_error(self) -> Iterator[None]:
        """What fails in the middle of a removal is finished by opening the log anew, and by nothing else."""
        try:
            yield
        except (DiskFullError, DiskIoError) as error:
            self._go_offline(error)
            raise

    def _go_offline(self, cause: QuireError) -> None:
        if self._offline is None:
            self._offline = LogOfflineError(
                f"{self.directory} is offline since a disk error: {cause.message}; mend the disk, restart the broker",
                cause=cause.reason,
            )

    def _require_online(self) -> None:
        if self._offline is not None:
            raise self._offline

    def _require_idle(self) -> None:
        invariant(self._plan is None, "an exclusive operation while a sync is in flight")
