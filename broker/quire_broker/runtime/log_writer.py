"""Lets many write to one log: what arrives together is written together and synced together.

    append ──► queue ──► one write ──► (flush=fsync) wait ──► one sync aside ──► answers
                                                                      └──► now and then: books on a thread

While a sync is in flight everything that arrives is written and waits for the next one. *Exclusive* operations of the
log run when neither a sync nor books are under way.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple, TypeVar

from quire.errors import (
    DiskFullError,
    DiskIoError,
    LogBusyError,
    LogOfflineError,
    OutcomeUnknownError,
    QuireError,
    StaleEpochError,
)
from quire.records.header import LENGTH_FIELD_END, PREFIX_BYTES, make_prefix
from quire.records.produced import PRODUCIBLE_ATTRIBUTES
from quire.types import Buffer
from quire_broker.log.appender import Appended
from quire_broker.log.config import LogConfig
from quire_broker.log.log import Log
from quire_broker.log.reader import Batches
from quire_broker.log.sync_plan import Books, SyncPlan
from quire_broker.runtime.kernel_syncs import KernelSyncs
from quire_broker.runtime.tail import Tail, TailRoom

T = TypeVar("T")

WAITING_BYTES_MAX: Final = 32 * 1024 * 1024
"""What may wait to be written or synced, of one log."""


class Stored(NamedTuple):
    """Where a batch is, and how safe."""

    base_offset: int
    end_offset: int
    duplicate: bool
    fsynced: bool


Outcome = Stored | QuireError


class _Request(NamedTuple):
    batches: Sequence[Buffer]
    size_bytes: int
    epoch: int
    answer: asyncio.Future[list[Outcome]]


def _nobody() -> None:
    """Told of progress where nobody wants to know."""


class _Written(NamedTuple):
    """A request whose batches are in the file."""

    request: _Request
    outcomes: list[Appended | QuireError]
    end_offset: int
    """The answer is due once everything below is synced."""


class LogWriter:
    """Owns a log: nobody else changes it. Reading is free.

    `pool` bounds how many syncs a disk has to do at once; all logs of a disk share it, and it outlives their writers.
    """

    def __init__(
        self,
        log: Log,
        *,
        pool: ThreadPoolExecutor,
        kernel: KernelSyncs | None = None,
        tails: TailRoom | None = None,
        now_ms: Callable[[], int],
        waiting_bytes_max: int = WAITING_BYTES_MAX,
        attributes_allowed: int = PRODUCIBLE_ATTRIBUTES,
        on_progress: Callable[[], None] = _nobody,
    ) -> None:
        """`kernel`, where there is one, syncs what it can in place of `pool`; `tails` bounds what readers find here.

        `on_progress` is called when something was written or synced, or the log went offline.

        That is in the same turn of the loop in which those who wait are answered, so before they hear of it.
        """
        self._log = log
        self._pool = pool
        self._kernel = kernel
        self._tail = Tail(tails or TailRoom())
        self._now_ms = now_ms
        self._waiting_bytes_max = waiting_bytes_max
        self._waiting_bytes = 0
        self._loop = asyncio.get_running_loop()
        self._flush = log.config.flush
        self._attributes_allowed = attributes_allowed
        self._on_progress = on_progress
        self._queue: list[_Request] = []
        self._unsynced: deque[_Written] = deque()
        self._exclusive: deque[Callable[[], None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._overdue = False
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def log(self) -> Log:
        return self._log

    @property
    def waiting_bytes(self) -> int:
        """Of batches that came and are not answered yet."""
        return self._waiting_bytes

    @property
    def is_waiting(self) -> bool:
        """Exclusive operations have not had their turn yet: what is written now is written before them."""
        return bool(self._exclusive)

    def now_ms(self) -> int:
        return self._now_ms()

    @property
    def counted_offset(self) -> int:
        """Everything below counts as written, as the flush policy demands."""
        return self._log.synced_offset if self._flush.kind == "fsync" else self._log.end_offset

    def submit(self, batches: Sequence[Buffer], *, epoch: int) -> asyncio.Future[list[Outcome]]:
        """Write batches as the leader of `epoch`, and answer as the log's flush policy says. One outcome a batch.

        They are written in the order of these calls. To cancel the answer does not take anything back.
        """
        size_bytes = sum(map(len, batches))
        self._require_open()
        # A single request always fits an empty queue, or it never would.
        if self._waiting_bytes and self._waiting_bytes + size_bytes > self._waiting_bytes_max:
            raise LogBusyError(
                f"{self._waiting_bytes} bytes wait to be written to {self._log.directory}; try again soon",
                waiting_bytes=self._waiting_bytes,
                limit_bytes=self._waiting_bytes_max,
            )
        self._waiting_bytes += size_bytes
        if not self._queue:
            # Not at once: whoever is about to run in this turn of the loop joins the same write.
            self._loop.call_soon(self._write_queued)
        answer: asyncio.Future[list[Outcome]] = self._loop.create_future()
        self._queue.append(_Request(batches, size_bytes, epoch, answer))
        return answer

    async def append(self, batches: Sequence[Buffer], *, epoch: int) -> list[Outcome]:
        """The same, and wait for the answer."""
        return await self.submit(batches, epoch=epoch)

    def append_stored(self, data: Buffer) -> int:
        """Write batches that a leader has stored, offsets as they are, and return the new end; a sync follows.

        Those of a new leader epoch are refused: `exclusively` begins it first.
        """
        self._require_open()
        self._tail.forget()
        try:
            return self._log.append_stored(data, now_ms=self._now_ms())
        finally:
            # Also where it failed: some may have been written, and are to be synced.
            self._on_progress()
            self._go_on()

    def read(self, offset: int, *, bytes_max: int, end_offset: int | None = None) -> Batches:
        """As `Log.read`, and without it where that is asked for which was just written."""
        log = self._log
        # What is kept is good, but nobody is to hide from whom the log that a part of it is not, or was given up.
        if log.start_offset <= offset and log.offline is None and not log.quarantined:
            end = log.end_offset
            kept = self._tail.read(
                offset, bytes_max=bytes_max, end_offset=end if end_offset is None else min(end_offset, end)
            )
            if kept is not None:
                return kept
        return log.read(offset, bytes_max=bytes_max, end_offset=end_offset)

    def configure(self, config: LogConfig) -> None:
        """Go on with other settings. What waits for a sync under the old ones still gets it."""
        self._log.configure(config)
        self._flush = config.flush
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._overdue = self._overdue or self._log.synced_offset < self._log.end_offset
        self._go_on()

    async def exclusively(self, work: Callable[[Log], T]) -> T:
        """Run an exclusive operation of the log after everything that came before it, while no sync is in flight."""
        answer: asyncio.Future[T] = self._loop.create_future()

        def run() -> None:
            cuts = self._log.cuts
            self._tail.forget()
            try:
                result = work(self._log)
            except BaseException as error:
                if not answer.done():
                    answer.set_exception(error)
                if not isinstance(error, Exception):
                    raise
            else:
                if not answer.done():
                    answer.set_result(result)
            finally:
                if self._log.cuts != cuts:
                    # Their offsets will belong to others: a later sync must not answer them.
                    self._fail_all(StaleEpochError(f"{self._log.directory} was truncated"))
                self._on_progress()

        self._require_open()
        self._write_queued()
        self._exclusive.append(run)
        self._go_on()
        return await answer

    async def sync(self) -> None:
        """Return once everything written so far is on the disk."""
        end = self._log.end_offset
        while self._log.synced_offset < min(end, self._log.end_offset):
            self._require_open()
            self._log.require_online()
            self._overdue = True
            self._go_on()
            if not self._log.busy and self._log.synced_offset < min(end, self._log.end_offset):
                raise LogBusyError(f"{self._log.directory} cannot be synced now; try again soon")
            await self._idle.wait()

    async def close(self) -> None:
        """Write what is queued, sync everything, close the log."""
        if self._closing is None:
            self._write_queued()
            self._closed = True
            self._tail.forget()
            if self._timer is not None:
                self._timer.cancel()
            self._closing = self._loop.create_task(self._close())
        # To be cancelled here must not leave files open and writers without an answer.
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        while self._log.busy:
            await self._idle.wait()
        # Nobody else may change the log any more, so its last sync may run on another thread.
        try:
            await self._loop.run_in_executor(self._pool, self._log.close)
        finally:
            self._answer_synced(None)
            self._fail_all(LogOfflineError(f"{self._log.directory} is closed"))

    def _require_open(self) -> None:
        if self._closed:
            raise LogOfflineError(f"{self._log.directory} is closed")

    # -- inside ----------------------------------------------------------------------------------------------------

    def _write_queued(self) -> None:
        """Write everything in the queue: one call of the log, unless leader epochs differ."""
        queue, self._queue = self._queue, []
        while queue:
            epoch = queue[0].epoch
            count = next((n for n, request in enumerate(queue) if request.epoch != epoch), len(queue))
            requests, queue = queue[:count], queue[count:]
            try:
                self._write(requests, epoch)
            except BaseException as error:  # a bug, which must not leave anyone waiting
                for request in queue:
                    self._answer(request, error)
                raise
        self._go_on()

    def _write(self, requests: Sequence[_Request], epoch: int) -> None:
        batches = [batch for request in requests for batch in request.batches]
        try:
            outcomes = self._log.append(
                batches, epoch=epoch, now_ms=self._now_ms(), attributes_allowed=self._attributes_allowed
            )
        except BaseException as error:
            for request in requests:
                self._answer(request, error)
            if not isinstance(error, Exception):
                raise
            return
        first = 0
        for request in requests:
            own = outcomes[first : first + len(request.batches)]
            first += len(request.batches)
            end = 0
            for outcome in own:
                if isinstance(outcome, Appended) and outcome.end_offset > end:
                    end = outcome.end_offset
            written = _Written(request, own, end)
            self._keep(request, own)
            if self._flush.kind == "fsync" and end > self._log.synced_offset:
                self._unsynced.append(written)
            else:
                self._answer_written(written)
        # After the answers: those behind a sync are to leave first, and nobody reads what was just written sooner.
        self._on_progress()

    def _keep(self, request: _Request, outcomes: Sequence[Appended | QuireError]) -> None:
        for batch, outcome in zip(request.batches, outcomes, strict=True):
            if isinstance(outcome, Appended) and not outcome.duplicate:
                prefix = make_prefix(
                    base_offset=outcome.base_offset, length=len(batch) - LENGTH_FIELD_END, leader_epoch=request.epoch
                )
                self._tail.add(outcome.base_offset, outcome.end_offset, [prefix, memoryview(batch)[PREFIX_BYTES:]])

    def _go_on(self) -> None:
        """Do what comes next: operations that wait for the log to be idle, then the next sync."""
        while self._exclusive and not self._log.busy:
            self._exclusive.popleft()()
        if self._log.offline is not None:
            if not self._log.syncing:
                self._fail_all(self._log.offline)  # no sync will come to answer them
            return
        if self._log.syncing or self._closed:
            return
        if self._exclusive:
            return  # they wait for the books; a sync now could keep them waiting for ever
        if self._flush.kind == "fsync" or self._log.has_unsealed or self._overdue:
            self._start_sync()
        elif self._flush.kind == "interval" and not self._timer and self._log.synced_offset < self._log.end_offset:
            self._timer = self._loop.call_later(self._flush.interval_ms / 1000, self._sync_in_time)

    def _sync_in_time(self) -> None:
        self._timer, self._overdue = None, True
        self._go_on()

    def _start_sync(self) -> None:
        if self._log.syncing:
            return
        try:
            plan = self._log.begin_sync()
        except (DiskFullError, DiskIoError) as error:
            self._fail_all(error)
            return
        if plan is not None:
            self._overdue = False
            self._idle.clear()
            kernel, descriptor = self._kernel, plan.descriptor
            then = partial(self._synced_by_kernel, plan)
            if kernel is None or descriptor is None or not kernel.sync(descriptor, then):
                self._run_aside(plan.run, partial(self._finish_sync, plan))

    def _synced_by_kernel(self, plan: SyncPlan, why: str | None) -> None:
        try:
            plan.ran(why)
            self._finish_sync(plan)
        except BaseException as error:  # a bug, which must not leave anyone waiting
            self._fail_all(error)
            self._idle.set()
            raise

    def _finish_sync(self, plan: SyncPlan) -> None:
        books = self._log.finish_sync(plan)
        if books is not None:
            self._run_aside(books.run, partial(self._finish_books, books))
        self._on_progress()
        self._answer_synced(plan.error)
        self._note_idle()
        self._go_on()

    def _finish_books(self, books: Books) -> None:
        self._log.finish_books(books)
        self._on_progress()
        self._answer_synced(books.error)
        self._note_idle()
        self._go_on()

    def _note_idle(self) -> None:
        if not self._log.busy:
            self._idle.set()

    def _run_aside(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        """Run something on another thread, and go on with its result here."""

        def done(running: asyncio.Future[None]) -> None:
            try:
                running.result()
                then()
            except BaseException as error:  # no disk does this: a bug, which must not leave anyone waiting
                self._fail_all(error)
                self._idle.set()
                raise

        self._loop.run_in_executor(self._pool, work).add_done_callback(done)

    def _answer_synced(self, error: QuireError | None) -> None:
        synced = self._log.synced_offset
        while self._unsynced and self._unsynced[0].end_offset <= synced:
            self._answer_written(self._unsynced.popleft())
        if self._log.offline is not None:
            self._fail_all(error or self._log.offline)

    def _fail_all(self, error: BaseException) -> None:
        """Answer what is written and will not be synced. It may be there, so no error may say that it is not."""
        if isinstance(error, QuireError) and not isinstance(error, DiskIoError):
            error = OutcomeUnknownError(f"what was written may be kept or not: {error.message}", cause=error.reason)
        while self._unsynced:
            self._answer(self._unsynced.popleft().request, error)

    def _answer_written(self, written: _Written) -> None:
        synced = self._log.synced_offset
        self._answer(
            written.request,
            [
                Stored(outcome.base_offset, outcome.end_offset, outcome.duplicate, outcome.end_offset <= synced)
                if isinstance(outcome, Appended)
                else outcome
                for outcome in written.outcomes
            ],
        )

    def _answer(self, request: _Request, answer: list[Outcome] | BaseException) -> None:
        self._waiting_bytes -= request.size_bytes
        if request.answer.done():
            return  # whoever asked was cancelled meanwhile
        if isinstance(answer, BaseException):
            request.answer.set_exception(answer)
        else:
            request.answer.set_result(answer)
