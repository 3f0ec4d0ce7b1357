"""One stream of one partition: a log of record batches that keeps what it acknowledged.

Everything here runs on one thread, except `SyncPlan.run`. Only one plan is in flight at a time; operations that
rewrite what a plan may be writing are called *exclusive* and refuse to run meanwhile. `runtime.log_writer` sees to
both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import takewhile
from typing import Final

from quire.disk.port import Disk
from quire.errors import (
    DamagedFileError,
    DiskFullError,
    DiskIoError,
    LogOfflineError,
    QuireError,
    SyncFailedError,
    invariant,
)
from quire.records.produced import PRODUCIBLE_ATTRIBUTES
from quire.types import Buffer
from quire_broker.log import snapshots
from quire_broker.log.appender import Appended, LogAppender
from quire_broker.log.config import LogConfig
from quire_broker.log.epochs import EpochStart
from quire_broker.log.index import MisleadingIndexError
from quire_broker.log.mender import LogMender
from quire_broker.log.producers import Producers
from quire_broker.log.ranges import OffsetRange
from quire_broker.log.reader import Batches, LogReader, TimestampOffset
from quire_broker.log.recovery import RecoveryReport, recover
from quire_broker.log.segment import Segment
from quire_broker.log.sidecar import Sidecar, SidecarKind
from quire_broker.log.state import LogState
from quire_broker.log.sync_plan import Books, SyncPlan
from quire_broker.log.synced_mark import SyncedMark
from quire_broker.log.trimmer import LogTrimmer

_SNAPSHOT_SHARE: Final = 4
"""A checkpoint waits until the log has grown by this many times what the last one wrote: a log with very many
producers would otherwise write more about them than of them."""


class Log:
    def __init__(self, state: LogState, report: RecoveryReport) -> None:
        self._state = state
        self._mark = SyncedMark(state.disk, state.directory)
        self._reader = LogReader(state)
        self._appender = LogAppender(state)
        self._trimmer = LogTrimmer(state, self._reader, self._mark, partial(self.sync, checkpoint=True))
        self._mender = LogMender(state, self._reader, self._keep_books)
        self._plan: SyncPlan | None = None
        self._books: Books | None = None
        self._names_synced = 0
        self._books_bytes = 0
        self.recovery = report
        self.cuts = 0
        """How often the end was moved back: what was appended before may be gone."""
        self.books_error: DiskFullError | DiskIoError | None = None
        """Why the books could not be kept; it is tried again with the next sync."""

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

        One that is there opens on a full disk too, unless it has to be mended; books are then kept later.
        """
        state, report = recover(disk, directory, config=config, kinds=tuple(sidecars), now_ms=now_ms)
        log = cls(state, report)
        if state.unsaved:
            try:
                log.sync()
            except BaseException:
                log._let_go()
                raise
        return log

    # -- what it is ------------------------------------------------------------------------------------------------

    @property
    def directory(self) -> str:
        return self._state.directory

    @property
    def config(self) -> LogConfig:
        return self._state.config

    def configure(self, config: LogConfig) -> None:
        """Go on with other settings."""
        self._state.config = config

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
        return self._state.synced_offset

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
    def last_batch_epoch(self) -> int:
        """The leader epoch of the last batch; -1 for an empty log. Later epochs may have begun without one."""
        return self._state.epochs.at(self.end_offset - 1)

    @property
    def producers(self) -> Producers:
        return self._state.producers

    @property
    def offline(self) -> LogOfflineError | None:
        """Why the log serves nothing any more, if so."""
        return self._state.offline

    @property
    def syncing(self) -> bool:
        """A plan is in flight."""
        return self._state.syncing

    def require_online(self) -> None:
        """Raise why the log serves nothing any more, if so."""
        self._state.require_online()

    @property
    def busy(self) -> bool:
        """A sync is in flight, or books are being kept: nothing exclusive can run."""
        return self._state.syncing or self._state.keeping_books

    @property
    def has_unsealed(self) -> bool:
        """A segment is full, and its index is not on the disk yet: the next sync seals it."""
        return bool(self._state.unsealed)

    def bytes_from(self, offset: int) -> int:
        """How many bytes there are from an offset to the end, and up to an index interval more.

        Raises DamagedFileError where the index does not say: the next read makes it anew, which is too much for this.
        """
        if offset >= self.end_offset:
            return 0
        segment = self._state.segment_at(offset)
        behind = sum(each.size_bytes for each in self._state.segments if each.base_offset > segment.base_offset)
        try:
            place = segment.index.floor_offset(max(0, offset - segment.base_offset))
        except MisleadingIndexError as error:
            raise DamagedFileError(f"the index of {segment.path} is damaged: {error}") from error
        if place.position > segment.size_bytes:
            raise DamagedFileError(f"the index of {segment.path} leads past its end")
        return behind + segment.size_bytes - place.position

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
        self._state.require_online()
        return self._reader.read(offset, bytes_max=bytes_max, end_offset=end_offset)

    def find_time(self, timestamp_ms: int) -> TimestampOffset | None:
        """The first record, by offset, with this timestamp or a later one."""
        self._state.require_online()
        return self._reader.find_time(timestamp_ms)

    # -- appending -------------------------------------------------------------------------------------------------

    def begin_epoch(self, epoch: int) -> None:
        """Let batches from here on be of `epoch`. Exclusive, and durable before it returns."""
        self._state.require_online()
        self._appender.begin_epoch(epoch)

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
        self._state.require_online()
        return self._appender.append(batches, epoch=epoch, now_ms=now_ms, attributes_allowed=attributes_allowed)

    def append_stored(self, data: Buffer, *, now_ms: int) -> int:
        """Append batches that a leader has stored, offsets and epochs as they are, and return the new end.

        Nothing is written unless all of them continue the log. After a full disk some may have been: go on from
        `end_offset`. With a new leader epoch in them this is exclusive.
        """
        self._state.require_online()
        return self._appender.append_stored(data, now_ms=now_ms)

    # -- syncing ---------------------------------------------------------------------------------------------------

    def begin_sync(self, *, checkpoint: bool = False) -> SyncPlan | None:
        """A plan to sync all that was appended so far; None when there is nothing to do. At most one is in flight.

        It brings books along when it is time for them, or when `checkpoint` asks: they move the recovery point.
        """
        state = self._state
        state.require_online()
        invariant(not state.syncing, "one sync at a time")
        end = state.end_offset
        due = state.appended_bytes >= max(state.config.checkpoint_bytes, _SNAPSHOT_SHARE * self._books_bytes)
        # What the disk had no room for is tried again with the next data, not over and over.
        patient = self.books_error is not None and end == state.synced_offset and not checkpoint
        wanted = due or state.unsealed or state.unsaved or (checkpoint and state.appended_bytes)
        books = self._plan_books() if wanted and not patient and not state.keeping_books else None
        if books is None and end == state.synced_offset:
            return None
        self._plan = SyncPlan(
            disk=state.disk,
            directory=state.directory,
            end_offset=end,
            files=[s.file for s in takewhile(lambda s: s.end_offset > state.synced_offset, reversed(state.segments))],
            files_made=state.files_made,
            sync_names=state.files_made > self._names_synced,
            mark=self._mark,
            books=books,
        )
        state.syncing = True
        return self._plan

    def _plan_books(self) -> Books:
        """As of now: the log may grow before they are kept, and on another thread."""
        state = self._state
        end = state.end_offset
        files = [item for segment in state.unsealed for item in segment.unsaved(sealed=True)]
        files += state.active.unsaved(sealed=False)
        files.append((snapshots.path_of(state.directory, end), partial(state.producers.copy().to_bytes, end)))
        state.unsaved = False  # and true again as soon as anything is learned that these do not say
        return Books(
            disk=state.disk,
            directory=state.directory,
            checkpoint=state.checkpoint(recovery_point=end),
            files=files,
            segment_bases=[segment.base_offset for segment in state.segments],
            sealed=[(segment, segment.index) for segment in state.unsealed],
            log_bytes=state.appended_bytes,
        )

    def finish_sync(self, plan: SyncPlan) -> Books | None:
        """Take in what became of a plan, and answer what to run next. Look at `synced_offset` and `offline` too."""
        invariant(plan is self._plan, "a plan is finished once, by the log that made it")
        state = self._state
        self._plan, state.syncing = None, False
        # Gone offline meanwhile: another sync of the same file may have been told of the one error there was.
        if plan.synced and state.offline is None:
            state.synced_offset = max(state.synced_offset, plan.end_offset)
            self._names_synced = plan.files_made
        if plan.error is not None and not (plan.synced and isinstance(plan.error, DiskFullError)):
            state.go_offline(plan.error)
        if plan.books is None or state.offline is not None:
            return None
        self._books, state.keeping_books = plan.books, True
        return plan.books

    def finish_books(self, books: Books) -> None:
        """Take in what became of the books. Only a failed sync is final; what had no room is tried again."""
        invariant(books is self._books, "books are finished once, by the log that planned them")
        state = self._state
        self._books, state.keeping_books = None, False
        self.books_error = books.error
        if books.kept:
            state.recovery_point = books.checkpoint.recovery_point
            state.appended_bytes -= books.log_bytes
            self._books_bytes = books.written_bytes
            for segment, index in books.sealed:
                if segment.index is index:
                    self._seal(segment)
            state.find_unsealed()
        else:
            state.unsaved = True
        if isinstance(books.error, SyncFailedError):
            state.go_offline(books.error)

    def _seal(self, segment: Segment) -> None:
        try:
            segment.become_sealed()
        except DiskIoError as error:  # closing a file may tell of what went wrong before
            self._state.go_offline(error)

    def sync(self, *, checkpoint: bool = False) -> None:
        """Sync here and now, books included if it is time for them. Exclusive."""
        self._state.require_exclusive()
        plan = self.begin_sync(checkpoint=checkpoint)
        if plan is not None:
            plan.run()
            books = self.finish_sync(plan)
            if books is not None:
                books.run()
                self.finish_books(books)
            self._state.require_online()

    def _keep_books(self) -> None:
        """Sync everything, and have all that is known on the disk too. Raises why that cannot be."""
        self.sync(checkpoint=True)
        if self._state.unsaved and self.books_error is not None:
            raise self.books_error

    # -- mending ---------------------------------------------------------------------------------------------------

    def mend(self, data: Buffer, *, now_ms: int) -> int:
        """Put good copies of stored batches in the place of damaged ones, and return where they end.

        `data` is the beginning of a quarantined range, or all of it: whole batches, offsets and epochs as the leader
        stored them. What it covers can be read from then on, the rest stays quarantined. Exclusive, and durable
        before it returns; on error the range is as damaged as before.

        Refuses what contradicts itself (MalformedBatchError, ChecksumMismatchError), what is of another epoch than
        this log knows for the offsets (StaleEpochError), and what is not the beginning of a damaged range or does not
        fit between the good batches around it (InvalidArgumentError).
        """
        return self._mender.mend(data, now_ms=now_ms)

    # -- removing --------------------------------------------------------------------------------------------------

    def truncate(self, end_offset: int) -> int:
        """Remove everything from `end_offset` on and return the new end. Exclusive, and durable before it returns.

        A batch that reaches across goes whole, so the new end may be lower. Leader epochs without a batch go too: the
        next batch may be of an older one.
        """
        self.cuts += end_offset < self.end_offset
        return self._trimmer.truncate(end_offset)

    def reset(self, start_offset: int) -> None:
        """Remove everything and go on at another offset: a replica too far behind to catch up. Exclusive, durable."""
        self.cuts += 1
        self._trimmer.reset(start_offset)

    def advance_start(self, start_offset: int) -> None:
        """Forget all that lies below an offset. Segments wholly below it are removed. Exclusive, durable."""
        self._trimmer.advance_start(start_offset)

    def apply_retention(self, *, now_ms: int, end_offset_max: int | None = None) -> int:
        """Remove the oldest segments as the settings demand, none past `end_offset_max`. Exclusive, durable.

        Returns how many went. An active segment that is too old is rolled first, so that it may go too.
        """
        return self._trimmer.apply_retention(now_ms=now_ms, end_offset_max=end_offset_max)

    def close(self) -> None:
        """Sync everything, so that the next opening need not scan, and let go of the files. Exclusive."""
        try:
            if self._state.offline is None:
                self.sync(checkpoint=True)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        for segment in self._state.segments:
            segment.close()
        self._mark.close()
