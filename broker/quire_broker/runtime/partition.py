"""One partition of which this broker has a copy: its log, who may write to it, and up to where it may be read.

    submit ──► written ──► counted (as the flush policy demands) ──► committed: below the high watermark ──► readers

Everything here runs on the loop's thread. Whoever waits for records watches the partition and is called when there
may be some; nobody looks again and again.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final

from quire.errors import (
    DamagedRangeError,
    LogOfflineError,
    NotLeaderError,
    OffsetOutOfRangeError,
    OutcomeUnknownError,
    QuireError,
    StaleEpochError,
    UnavailableError,
)
from quire.types import Buffer
from quire_broker.log.place import PartitionKey, Place
from quire_broker.log.reader import Batches, TimestampOffset
from quire_broker.replica.config import ReplicaConfig
from quire_broker.replica.effects import IsrMember
from quire_broker.replica.leader import Picture
from quire_broker.replica.streams import RECORDS
from quire_broker.runtime.log_writer import LogWriter, Outcome
from quire_broker.runtime.replica import Exchange, Replica

NO_EPOCH: Final = -1
NO_OFFSET: Final = -1


class Partition:
    def __init__(self, place: Place, *, topic: str) -> None:
        self.key: PartitionKey = place.key
        self.place = place
        self.topic = topic
        """Its topic's name, for texts."""
        self.closed = False
        self._writer: LogWriter | None = None
        self._replica: Replica | None = None
        self._epoch = NO_EPOCH
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = count()
        self._watchers: dict[Callable[[], None], None] = {}

    def __str__(self) -> str:
        return f"{self.topic}/{self.key.partition}"

    def open(self, writer: LogWriter, exchange: Exchange, config: ReplicaConfig) -> None:
        """The log is there. Its `on_progress` is to call `on_progress` of this."""
        self._writer = writer
        self._replica = Replica(
            self.key,
            writer,
            name=str(self),
            exchange=exchange,
            config=config,
            on_high_watermark=self._on_high_watermark,
        )

    @property
    def writer(self) -> LogWriter:
        if self._writer is None:
            raise UnavailableError(f"the log of {self} is still being opened", retry_after_ms=100)
        return self._writer

    @property
    def replica(self) -> Replica:
        if self._replica is None:
            raise UnavailableError(f"the log of {self} is still being opened", retry_after_ms=100)
        return self._replica

    @property
    def is_offline(self) -> bool:
        """The log has failed, and serves nothing until the broker is started again."""
        return self._writer is not None and self._writer.log.offline is not None

    # -- leading ---------------------------------------------------------------------------------------------------

    @property
    def leader_epoch(self) -> int:
        """The leader epoch under which this broker leads it; -1 if it does not."""
        return self._epoch

    @property
    def high_watermark(self) -> int:
        return self.replica.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """There are no transactions, so nothing keeps it back."""
        return self.high_watermark

    async def lead(self, picture: Picture, me: IsrMember) -> None:
        """Lead from now on, once the log knows the epoch."""
        self.resign()
        await self.replica.lead(picture, me)
        self._epoch = picture.leader_epoch
        self._call_watchers()

    async def follow(
        self, *, leader: int | None, leader_epoch: int, replicas: tuple[int, ...], me: IsrMember, may_lose: bool
    ) -> None:
        """Follow from now on, once everything is written that this broker took as the leader."""
        self.resign()
        await self.replica.follow(
            leader=leader, leader_epoch=leader_epoch, replicas=replicas, me=me, may_lose=may_lose
        )

    def resign(self) -> None:
        """Neither lead nor follow. Whoever waits for records to be committed cannot know whether they will be."""
        if self._replica is not None:
            self._replica.step_down()
        if self._epoch == NO_EPOCH:
            return
        self._epoch = NO_EPOCH
        self._fail_waiting(self._lost())
        self._call_watchers()

    def check_leads(self, epoch: int | None) -> int:
        """The leader epoch. Raises what a client that knows `epoch` has to do if it is wrong here."""
        mine = self._epoch
        if mine == NO_EPOCH:
            if self.is_offline:
                raise LogOfflineError(
                    f"the log of {self} has failed on this broker; another broker may lead, or a restart opens it"
                )
            raise NotLeaderError(f"this broker does not lead {self}; find its leader anew")
        if epoch is not None and epoch != mine:
            if epoch > mine:
                raise NotLeaderError(f"{self} is at leader epoch {epoch}, of which this broker has not heard yet")
            raise StaleEpochError(f"{self} is at leader epoch {mine}, not {epoch}; find its leader anew", epoch=mine)
        return mine

    # -- writing ---------------------------------------------------------------------------------------------------

    def submit(self, batches: Sequence[Buffer]) -> asyncio.Future[list[Outcome]]:
        """Write batches as the leader, after all that were submitted before; see `LogWriter.submit`."""
        return self.writer.submit(batches, epoch=self._epoch)

    def check_enough_replicas(self) -> None:
        """Raise NotEnoughReplicasError if what is written now could not be committed."""
        if (leader := self.replica.leader) is not None:
            leader.require_enough_replicas()

    def replicas_counting(self, end_offset: int) -> int:
        """How many replicas count everything below as written."""
        leader = self.replica.leader
        return 1 if leader is None else leader.replicas_counting(RECORDS, end_offset)

    def committed(self, end_offset: int, *, epoch: int) -> asyncio.Future[None] | None:
        """Done when everything below `end_offset` is below the high watermark; None if it is so already.

        Fails with OutcomeUnknownError if the leadership of `epoch` ends before.
        """
        if epoch != self._epoch:
            raise self._lost()
        if end_offset <= self.high_watermark:
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (end_offset, next(self._numbers), future))
        return future

    def on_progress(self) -> None:
        """Something was written or synced, or has failed."""
        if self._replica is None:
            return
        if self.is_offline:
            self.resign()
        else:
            self._replica.on_progress()

    def _on_high_watermark(self, offset: int) -> None:
        while self._waiting and self._waiting[0][0] <= offset:
            _, _, future = heapq.heappop(self._waiting)
            if not future.done():
                future.set_result(None)
        self._call_watchers()

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self, offset: int, *, bytes_max: int) -> Batches:
        """Committed batches from the one that holds `offset` on; none if there are none yet.

        Raises OffsetOutOfRangeError for what the log does not reach, DamagedRangeError for what cannot be read.
        """
        log = self.writer.log
        end = log.end_offset
        if not log.start_offset <= offset <= end:
            raise OffsetOutOfRangeError(
                f"offset {offset} is not in {self}, which has {log.start_offset} to {self.high_watermark}; start "
                "from the earliest or the latest offset",
                offset=offset,
                start_offset=log.start_offset,
                end_offset=self.high_watermark,
            )
        try:
            return self.writer.read(offset, bytes_max=bytes_max, end_offset=self.high_watermark)
        except DamagedRangeError as error:
            self.replica.on_progress()  # to be mended, or handed over to a broker with a copy that is whole
            if self.replica.may_be_mended:
                raise UnavailableError(
                    f"a part of {self} is damaged on this broker, and another copy is being looked for",
                    retry_after_ms=200,
                ) from error
            raise

    @property
    def start_offset(self) -> int:
        return self.writer.log.start_offset

    def latest_offset(self) -> int:
        """The offset that the next committed record gets. Raises UnavailableError while a new leader cannot know."""
        leader = self.replica.leader
        if leader is not None and not leader.is_latest_known(RECORDS):
            raise UnavailableError(
                f"the leader of {self} has just been elected and does not know yet what is committed",
                retry_after_ms=50,
            )
        return self.high_watermark

    def find_time(self, timestamp_ms: int) -> TimestampOffset | None:
        """The first committed record with this timestamp or a later one."""
        found = self.writer.log.find_time(timestamp_ms)
        return found if found is not None and found.offset < self.high_watermark else None

    def watch(self, callback: Callable[[], None]) -> None:
        """Call when there may be more to read, or this broker begins or ceases to lead."""
        self._watchers[callback] = None

    def unwatch(self, callback: Callable[[], None]) -> None:
        self._watchers.pop(callback, None)

    def wake(self) -> None:
        """Let whoever watches look again: what it may be told has changed for another reason than the partition's."""
        self._call_watchers()

    # -- the end ---------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        self.resign()
        self.closed = True
        self._fail_waiting(LogOfflineError(f"the log of {self} is closed"))
        if self._writer is not None:
            await self._writer.close()

    def _lost(self) -> QuireError:
        return OutcomeUnknownError(f"the leadership of {self} ended before the records were committed everywhere")

    def _fail_waiting(self, error: QuireError) -> None:
        waiting, self._waiting = self._waiting, []
        for _, _, future in waiting:
            if not future.done():
                future.set_exception(error)

    def _call_watchers(self) -> None:
        for callback in list(self._watchers):
            callback()
