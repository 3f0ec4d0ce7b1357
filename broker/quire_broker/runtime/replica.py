"""This broker's replica of a partition: carries out what the cores of replication decide.

    metadata · messages · the log's progress · time  ──►  core  ──►  effects, one after the other

Effects of one event are carried out before the next event is looked at. What takes its time (to begin an epoch, to
cut the log) is done by a task of the replica, after the writes that came before it; its end is an event, too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple, Protocol

from quire.errors import DamagedRangeError, InvariantViolation, OffsetOutOfRangeError, QuireError
from quire.process import logs
from quire.process.run import fail_fast
from quire.records.header import iter_batches
from quire.types import Buffer
from quire_broker.log.epochs import EpochStart
from quire_broker.log.log import Log
from quire_broker.log.place import PartitionKey
from quire_broker.log.ranges import OffsetRange
from quire_broker.log.reader import Batches
from quire_broker.replica.config import ReplicaConfig
from quire_broker.replica.effects import (
    AdvanceStart,
    Append,
    Counted,
    FollowerEffect,
    HandOver,
    HighWatermark,
    IsrMember,
    LeaderEffect,
    Mend,
    MenderEffect,
    NotFollowing,
    Proposal,
    Propose,
    PushReady,
    Reset,
    Send,
    Stop,
    Trim,
    Truncate,
)
from quire_broker.replica.follower import FollowerCore
from quire_broker.replica.leader import Answer, LeaderCore, Offer, Picture
from quire_broker.replica.mending import Batch, Mender
from quire_broker.replica.messages import Ack, Join, JoinAnswer, Message, Push, Rejoin, Want
from quire_broker.replica.streams import RECORDS
from quire_broker.runtime.log_writer import LogWriter
from quire_broker.runtime.replica_wire import Piece

PIECE_BYTES_MAX: Final = 1024 * 1024

FRUITLESS_MAX: Final = 3
"""How often each of the others is asked in vain before readers are told that a range is lost."""

Effect = LeaderEffect | FollowerEffect | MenderEffect

_NO_DATA: Final = memoryview(b"")

_log = logs.get("replica")
_problems = logs.Throttled(_log)


class Exchange(Protocol):
    """The ways to the other brokers and to the controllers."""

    def send(self, to: int, key: PartitionKey, message: Message | Piece, data: Buffer = b"") -> None:
        """Send in the session that there is, soon; drop it if there is none."""

    def link_to(self, broker_id: int) -> bytes | None:
        """The id of the session with a broker, while there is one."""

    def push_ready(self, to: int, replica: Replica, effect: PushReady) -> None: ...

    def counted(self, replica: Replica, effect: Counted) -> None: ...

    def not_following(self, replica: Replica, effect: NotFollowing) -> None: ...

    def forget(self, replica: Replica) -> None:
        """The replica leads no more: nothing of it is to be pushed."""

    def propose(self, replica: Replica, proposal: Proposal) -> None: ...

    def hand_over(self, replica: Replica, to: int) -> None: ...


class _View:
    """The log as the cores see it."""

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer
        self._log = writer.log

    @property
    def start_offset(self) -> int:
        return self._log.start_offset

    @property
    def end_offset(self) -> int:
        return self._log.end_offset

    @property
    def counted_offset(self) -> int:
        return self._writer.counted_offset

    @property
    def latest_epoch(self) -> int:
        return self._log.latest_epoch

    @property
    def epochs(self) -> Iterable[EpochStart]:
        return self._log.epochs

    @property
    def quarantined(self) -> list[OffsetRange]:
        return self._log.quarantined

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        return self._log.epoch_end(epoch)


class _Attempt(NamedTuple):
    """Of a follower to follow."""

    core: FollowerCore
    number: int


class Replica:
    def __init__(
        self,
        key: PartitionKey,
        writer: LogWriter,
        *,
        name: str,
        exchange: Exchange,
        config: ReplicaConfig,
        on_high_watermark: Callable[[int], None],
    ) -> None:
        self.key = key
        self._name = name
        self._writer = writer
        self._exchange = exchange
        self._config = config
        self._on_high_watermark = on_high_watermark
        self._loop = asyncio.get_running_loop()
        self._logs = {RECORDS: _View(writer)}
        self._high_watermarks: Mapping[int, int] = {RECORDS: writer.log.start_offset}
        self._leader: LeaderCore | None = None
        self._follower: FollowerCore | None = None
        self._attempts = 0
        self._leader_id: int | None = None
        """Whom it follows."""
        self._failed: _Attempt | None = None
        """In which an append failed: those behind it are dropped."""
        self._mender = Mender(logs=self._logs, config=config)
        self._others: tuple[int, ...] = ()
        self._events: deque[Callable[[], Iterable[Effect]]] = deque()
        self._is_running = False
        self._progress_noted = False
        self._work: deque[Callable[[], object]] = deque()
        """What is done to the log in its turn: appends behind something that takes its time, and that itself."""
        self._working: asyncio.Task[None] | None = None
        self._data: memoryview = _NO_DATA
        """The batches of the push at hand. Kept no longer: they are a part of a frame, which may be large."""
        self._stopped: str | None = None

    # -- what it knows ---------------------------------------------------------------------------------------------

    @property
    def leader(self) -> LeaderCore | None:
        return self._leader

    @property
    def high_watermark(self) -> int:
        core = self._leader or self._follower
        return (self._high_watermarks if core is None else core.high_watermarks()).get(RECORDS, 0)

    @property
    def stopped(self) -> str | None:
        """Why it follows nobody, where that is for an operator to decide."""
        return self._stopped

    @property
    def may_be_mended(self) -> bool:
        """Whether there is another replica that may have what is damaged here."""
        return self._mender.fruitless < FRUITLESS_MAX * len(self._others)

    # -- roles -----------------------------------------------------------------------------------------------------

    def step_down(self) -> None:
        """Neither lead nor follow from now on. What was handed to the log is still written."""
        core = self._leader or self._follower
        if core is not None:
            self._high_watermarks = core.high_watermarks()
        if self._follower is not None:
            self._attempts = self._follower.attempt
        if self._leader is not None:
            self._exchange.forget(self)
        self._leader = self._follower = None
        self._events.clear()
        self._progress_noted = False

    async def settle_down(self) -> None:
        """Step down, and return once nothing is on its way to the log. Raises LogOfflineError if it has failed."""
        self.step_down()
        while self._working is not None:
            await asyncio.wait([self._working])
        await self._writer.exclusively(lambda log: log.require_online())
        # What was being cut for the last leader has been cut by now, committed records too where the topic allows it.
        log = self._writer.log
        known = min(self._high_watermarks.get(RECORDS, 0), log.end_offset)
        self._high_watermarks = {RECORDS: max(known, log.start_offset)}

    async def lead(self, picture: Picture, me: IsrMember) -> None:
        """Lead in this epoch. The caller has seen to it that nobody else changes the role meanwhile."""
        await self.settle_down()
        await self._writer.exclusively(lambda log: log.begin_epoch(picture.leader_epoch))
        self._stopped = None
        self._leader = LeaderCore(
            me=me,
            picture=picture,
            logs=self._logs,
            high_watermarks=self._high_watermarks,
            config=self._config,
            now_ms=self._now_ms(),
        )
        self._others = tuple(broker for broker in picture.replicas if broker != me.broker_id)
        self.on_progress()

    async def follow(
        self, *, leader: int | None, leader_epoch: int, replicas: tuple[int, ...], me: IsrMember, may_lose: bool
    ) -> None:
        """Follow this leader, or wait for one."""
        await self.settle_down()
        self._stopped = None
        self._others = tuple(broker for broker in replicas if broker != me.broker_id)
        self._follower = FollowerCore(
            broker_epoch=me.broker_epoch,
            logs=self._logs,
            high_watermarks=self._high_watermarks,
            config=self._config,
            attempts=self._attempts,
        )
        self.on_leader(leader=leader, leader_epoch=leader_epoch, may_lose=may_lose)

    def on_picture(self, picture: Picture) -> None:
        """While it leads: the metadata is now so, in the same leader epoch."""
        if self._leader is not None:
            core = self._leader
            self._run(lambda: core.on_metadata(picture, self._now_ms()))

    def on_leader(self, *, leader: int | None, leader_epoch: int, may_lose: bool) -> None:
        """While it follows: who leads is now so."""
        if self._follower is None:
            return
        core = self._follower
        self._run(
            lambda: core.on_metadata(
                leader=leader, leader_epoch=leader_epoch, may_lose=may_lose, now_ms=self._now_ms()
            )
        )
        self._leader_id = leader
        self._look_for_link()

    # -- events ----------------------------------------------------------------------------------------------------

    def on_link(self, broker_id: int, link: bytes, *, is_up: bool) -> None:
        """There is another session with a broker, or none."""
        if self._follower is not None and broker_id == self._leader_id:
            self._look_for_link()
        if self._leader is not None and not is_up:
            core = self._leader
            self._run(lambda: core.on_link_lost(broker_id, link, self._now_ms()))

    def on_message(self, broker_id: int, link: bytes, message: Message | Piece, data: memoryview) -> None:
        if isinstance(message, Want):
            self._give(broker_id, message)
        elif isinstance(message, Piece):
            self._take(message, data)
        elif self._leader is not None:
            self._to_leader(self._leader, broker_id, link, message)
        elif (
            self._follower is not None and link == self._exchange.link_to(broker_id) and broker_id == self._leader_id
        ):
            self._to_follower(self._follower, message, data)

    def on_progress(self) -> None:
        """The log has changed. To be called from anywhere, also while effects are carried out."""
        if self._progress_noted:
            return
        self._progress_noted = True
        self._run(self._local)

    def on_answered(self, proposal: Proposal, answer: Answer) -> None:
        if self._leader is not None:
            core = self._leader
            self._run(lambda: core.on_answered(proposal, answer, self._now_ms()))

    def on_tick(self) -> None:
        now_ms = self._now_ms()
        if self._leader is not None:
            self._run(partial(self._leader.on_tick, now_ms))
        elif self._follower is not None:
            self._run(partial(self._follower.on_tick, now_ms))
        if self._writer.log.quarantined or self._mender.wanted is not None:
            self._run(lambda: self._mender.on_tick(self._sources(), now_ms))

    # -- pushing ---------------------------------------------------------------------------------------------------

    def next_push(self, to: int) -> Offer | None:
        return None if self._leader is None else self._leader.next_push(to, RECORDS)

    def read_for(self, offset: int, *, bytes_max: int) -> Batches | None:
        """Batches to push; None where they cannot be read."""
        try:
            return self._writer.read(offset, bytes_max=bytes_max)
        except DamagedRangeError:
            self.on_progress()
        except QuireError as error:
            _problems.warning("cannot read what is to be pushed", key=self.key, partition=self._name, why=str(error))
        return None

    # -- inside ----------------------------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _run(self, event: Callable[[], Iterable[Effect]]) -> None:
        self._events.append(event)
        if self._is_running:
            return
        self._is_running = True
        try:
            while self._events:
                for effect in self._events.popleft()():
                    self._carry_out(effect)
        except InvariantViolation as error:
            fail_fast(error)
        finally:
            self._is_running = False
            self._data = _NO_DATA

    def _local(self) -> Iterable[Effect]:
        self._progress_noted = False
        now_ms = self._now_ms()
        if self._leader is not None:
            return self._leader.on_local(now_ms)
        return self._follower.on_local(now_ms) if self._follower is not None else ()

    def _to_leader(self, core: LeaderCore, broker_id: int, link: bytes, message: Message) -> None:
        if isinstance(message, Ack):
            self._run(lambda: core.on_ack(broker_id, link, message, self._now_ms()))
        elif isinstance(message, Join):
            self._run(lambda: core.on_join(broker_id, link, message, self._now_ms()))

    def _to_follower(self, core: FollowerCore, message: Message, data: memoryview) -> None:
        now_ms = self._now_ms()
        if isinstance(message, Push):

            def push() -> Iterable[Effect]:
                self._data = data
                return core.on_push(message, now_ms)

            self._run(push)
        elif isinstance(message, JoinAnswer):
            self._run(lambda: core.on_join_answer(message, now_ms))
        elif isinstance(message, Rejoin):
            self._run(lambda: core.on_rejoin(message, now_ms))

    def _look_for_link(self) -> None:
        core = self._follower
        if core is not None:
            link = None if self._leader_id is None else self._exchange.link_to(self._leader_id)
            self._run(lambda: core.on_link(link, self._now_ms()))

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case HighWatermark():
                self._on_high_watermark(effect.offset)
            case PushReady():
                self._exchange.push_ready(effect.to, self, effect)
            case Counted():
                self._exchange.counted(self, effect)
            case Append():
                self._append(effect, self._data)
            case Send():
                self._exchange.send(effect.to, self.key, effect.message)
            case NotFollowing():
                self._exchange.not_following(self, effect)
            case Propose():
                self._exchange.propose(self, effect.proposal)
            case HandOver():
                self._exchange.hand_over(self, effect.to)
            case Trim():
                self._do(partial(self._trim, self._follower, effect))
            case AdvanceStart():
                self._do(partial(self._advance_start, effect))
            case Mend():
                self._do(partial(self._mend, self._data))
            case Stop():
                self._stopped = effect.reason
                _log.error("this replica cannot follow", partition=self._name, why=effect.reason)

    # -- what is done to the log -----------------------------------------------------------------------------------

    def _append(self, effect: Append, data: memoryview) -> None:
        core = self._follower
        if core is None:
            return
        if self._working is None and not self._writer.is_waiting:
            try:
                if _is_of_epoch(data, self._writer.log.latest_epoch):
                    self._writer.append_stored(data)
                    return
            except QuireError as error:
                self._fail_append(core, error)
                return
        self._do(partial(self._append_in_turn, _Attempt(core, core.attempt), data))

    async def _append_in_turn(self, attempt: _Attempt, data: memoryview) -> None:
        if self._failed == attempt:
            return  # what lay before it was not written
        writer = self._writer
        try:
            if not writer.is_waiting and _is_of_epoch(data, writer.log.latest_epoch):
                # Else each would wait for a sync of its own, and while they come as fast, so would all that follow.
                writer.append_stored(data)
            else:
                await writer.exclusively(lambda log: log.append_stored(data, now_ms=writer.now_ms()))
        except QuireError as error:
            self._failed = attempt
            self._fail_append(attempt.core, error)

    def _fail_append(self, core: FollowerCore, error: QuireError) -> None:
        _problems.warning("cannot write what the leader sent", key=self.key, partition=self._name, why=error.message)
        if self._follower is core:
            self._run(lambda: core.on_append_failed(self._now_ms()))

    async def _trim(self, core: FollowerCore | None, trim: Trim) -> None:
        try:
            for step in trim.steps:
                await self._writer.exclusively(partial(_cut, step=step))
        except QuireError as error:
            _problems.warning(
                "cannot cut what its leader lacks", key=self.key, partition=self._name, why=error.message
            )
            if core is not None and self._follower is core:
                self._run(lambda: core.on_trim_failed(self._now_ms()))
            return
        _log.info("cut what its leader lacks", partition=self._name, steps=", ".join(map(str, trim.steps)))
        if core is not None and self._follower is core:
            self._run(lambda: core.on_trimmed(self._now_ms()))

    async def _advance_start(self, effect: AdvanceStart) -> None:
        await self._writer.exclusively(lambda log: log.advance_start(effect.start_offset))

    async def _mend(self, data: memoryview) -> None:
        await self._writer.exclusively(lambda log: log.mend(data, now_ms=self._writer.now_ms()))
        _log.info("mended a damaged range", partition=self._name, left=str(self._writer.log.quarantined))

    def _do(self, work: Callable[[], object]) -> None:
        self._work.append(work)
        if self._working is None:
            self._working = self._loop.create_task(self._work_off(), name=f"replica-{self.key}")
            self._working.add_done_callback(self._on_worked_off)

    async def _work_off(self) -> None:
        while self._work:
            work = self._work.popleft()()
            if asyncio.iscoroutine(work):
                try:
                    await work
                except QuireError as error:
                    _problems.warning("cannot change a log", key=self.key, partition=self._name, why=error.message)

    def _on_worked_off(self, task: asyncio.Task[None]) -> None:
        self._working, self._failed = None, None
        if not task.cancelled() and (error := task.exception()) is not None:
            fail_fast(error)
        if self._work:
            self._do(self._work.popleft())

    # -- damaged ranges --------------------------------------------------------------------------------------------

    def _sources(self) -> list[int]:
        return [broker for broker in self._others if self._exchange.link_to(broker) is not None]

    def _give(self, to: int, want: Want) -> None:
        """Answer with what this log has of a range that another replica lost."""
        data: Buffer = b""
        if want.stream == RECORDS:
            try:
                found = self._writer.log.read(want.base_offset, bytes_max=PIECE_BYTES_MAX, end_offset=want.end_offset)
                if found.base_offset == want.base_offset:
                    data = found.data
            except (DamagedRangeError, OffsetOutOfRangeError):
                data = b""
            except QuireError as error:
                _problems.warning("cannot help another replica", key=self.key, partition=self._name, why=str(error))
        self._exchange.send(to, self.key, Piece(want.request_id), data)

    def _take(self, piece: Piece, data: memoryview) -> None:
        try:
            batches = [Batch(h.base_offset, h.end_offset, h.leader_epoch) for _, h in iter_batches(data)]
        except QuireError:
            batches = []  # damaged there, too, or on the way

        def take() -> Iterable[Effect]:
            effects = self._mender.on_piece(piece.request_id, batches, self._now_ms())
            for effect in effects:
                if isinstance(effect, Mend):
                    self._data = _up_to(data, effect.end_offset)
            return effects

        self._run(take)


def _is_of_epoch(data: memoryview, epoch: int) -> bool:
    return all(header.leader_epoch == epoch for _, header in iter_batches(data, check=False))


def _up_to(data: memoryview, end_offset: int) -> memoryview:
    end = 0
    for position, header in iter_batches(data, check=False):
        if header.end_offset > end_offset:
            break
        end = position + header.size_bytes
    return data[:end]


def _cut(log: Log, *, step: Truncate | Reset) -> None:
    if isinstance(step, Reset):
        log.reset(step.start_offset)
    else:
        log.truncate(step.end_offset)
