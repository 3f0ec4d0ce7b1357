"""What carries out the decisions of replication: appends in their turn, failures of a log, frames, proposals."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from quire.disk.sim_disk import SimDisk
from quire.errors import DiskIoError, LogOfflineError
from quire.link.config import LinkConfig
from quire.link.frames import HEADER_BYTES_MAX
from quire.link.handshake import NodeIdentity
from quire.link.network import Address, Network
from quire.link.session import Session
from quire.records import encode_columns, iter_batches
from quire.types import Buffer
from quire.v1 import commands_pb2, controller_pb2, errors_pb2, metadata_pb2
from quire_broker.log.config import LogConfig
from quire_broker.log.log import Log
from quire_broker.log.place import PartitionKey
from quire_broker.ports import Controllers
from quire_broker.replica.config import ReplicaConfig
from quire_broker.replica.effects import Counted, IsrMember, NotFollowing, Proposal, PushReady, Send
from quire_broker.replica.leader import Answer, LeaderCore, Picture
from quire_broker.replica.messages import (
    Ack,
    Join,
    JoinAnswer,
    Message,
    Push,
    Rejoin,
    StreamComparison,
    StreamCount,
    StreamPosition,
)
from quire_broker.replica.streams import RECORDS, STREAMS_MAX, LogView
from quire_broker.runtime.log_writer import LogWriter
from quire_broker.runtime.replica import Replica
from quire_broker.runtime.replica_wire import FrameBuilder, Piece, received
from quire_broker.runtime.replication import Replication
from quire_broker.state.image import MetadataImage

KEY = PartitionKey(b"t" * 16, 0)
EPOCH = 1
LINK = b"link"
CONFIG = ReplicaConfig(join_ms_min=1, join_ms_max=2)


class HeldPool(Executor):
    """Runs what it is given when told so, on the thread that says it."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        self.waiting.append(run)
        return future

    def release(self) -> None:
        waiting, self.waiting = self.waiting, []
        for run in waiting:
            run()


class Wires:
    """An exchange that remembers what was sent."""

    def __init__(self) -> None:
        self.sent: list[Message | Piece] = []

    def send(self, to: int, key: PartitionKey, message: Message | Piece, data: Buffer = b"") -> None:
        self.sent.append(message)

    def link_to(self, broker_id: int) -> bytes | None:
        return LINK

    def push_ready(self, to: int, replica: Replica, effect: PushReady) -> None: ...

    def counted(self, replica: Replica, effect: Counted) -> None: ...

    def not_following(self, replica: Replica, effect: NotFollowing) -> None: ...

    def forget(self, replica: Replica) -> None: ...

    def propose(self, replica: Replica, proposal: Proposal) -> None: ...

    def hand_over(self, replica: Replica, to: int) -> None: ...

    @property
    def joins(self) -> list[Join]:
        return [each for each in self.sent if isinstance(each, Join)]


@dataclass
class Follower:
    """A replica of broker 2 that follows broker 1."""

    disk: SimDisk
    log: Log
    writer: LogWriter
    replica: Replica
    wires: Wires
    pool: HeldPool
    source: list[memoryview] = field(default_factory=list)
    """The batches of the leader's log, one record each."""

    async def follow(self) -> None:
        await self.replica.follow(leader=1, leader_epoch=EPOCH, replicas=(1, 2), me=IsrMember(2, 1), may_lose=False)

    def agree(self) -> None:
        """The leader's answer: go on from where the log ends."""
        join = self.wires.joins[-1]
        at = join.streams[0]
        epoch = max(at.last_epoch, 0) and EPOCH
        answer = StreamComparison(RECORDS, 0, len(self.source), epoch, len(self.source))
        self.hear(JoinAnswer(EPOCH, join.attempt, True, (answer,)))

    def push(self, offset: int, *, log_start_offset: int = 0) -> None:
        attempt = self.wires.joins[-1].attempt
        message = Push(EPOCH, attempt, RECORDS, offset, offset + 1, log_start_offset, 0)
        self.hear(message, self.source[offset])

    def hear(self, message: Message, data: memoryview | None = None) -> None:
        self.replica.on_message(1, LINK, message, memoryview(b"") if data is None else data)

    async def joins_again(self) -> None:
        count = len(self.wires.joins)
        while len(self.wires.joins) == count:
            self.replica.on_tick()
            await asyncio.sleep(0.001)


async def settled() -> None:
    """Whatever needs nothing but turns of the loop has been done."""
    for _ in range(20):
        await asyncio.sleep(0)


def batches_of_leader(count: int) -> list[memoryview]:
    log = Log.open(SimDisk(), "/leader", LogConfig(), now_ms=0)
    log.begin_epoch(EPOCH)
    log.append([encode_columns([b"%d" % each], timestamp_ms=1) for each in range(count)], epoch=EPOCH, now_ms=0)
    data = log.read(0, bytes_max=1 << 20).data
    return [data[at : at + header.size_bytes] for at, header in iter_batches(data)]


@asynccontextmanager
async def follower(records: int = 8) -> AsyncIterator[Follower]:
    disk, pool, wires = SimDisk(), HeldPool(), Wires()
    log = Log.open(disk, "/follower", LogConfig(), now_ms=0)
    writer = LogWriter(log, pool=cast(Any, pool), now_ms=lambda: 0, on_progress=lambda: replica.on_progress())
    replica = Replica(
        KEY, writer, name="orders/0", exchange=wires, config=CONFIG, on_high_watermark=lambda offset: None
    )
    yield Follower(disk, log, writer, replica, wires, pool, batches_of_leader(records))
    closing = asyncio.ensure_future(writer.close())
    while not closing.done():
        pool.release()
        await asyncio.sleep(0)
    await closing


async def start(at: Follower) -> None:
    """Follow, with the first batch written and its sync held back."""
    await at.follow()
    at.agree()
    at.push(0)  # of a new epoch, so it waits for its turn
    await settled()
    assert at.log.end_offset == 1
    assert len(at.pool.waiting) == 1


async def test_appends_that_had_to_wait_are_written_together() -> None:
    async with follower() as at:
        await start(at)
        turn = asyncio.ensure_future(at.writer.exclusively(lambda log: log.end_offset))
        await settled()
        for offset in range(1, 6):
            at.push(offset)
        assert at.log.end_offset == 1
        at.pool.release()
        await settled()
        assert await turn == 1
        assert at.log.end_offset == 6


async def test_what_is_dropped_behind_a_failed_append_is_of_that_attempt() -> None:
    async with follower() as at:
        await start(at)
        at.push(1)
        turn = asyncio.ensure_future(at.writer.exclusively(lambda log: log.end_offset))
        await settled()
        at.disk.capacity_bytes = at.disk.used_bytes()
        at.push(2)
        at.push(3, log_start_offset=1)  # to forget a record waits for the next sync, and what comes then behind it
        at.pool.release()
        await settled()
        assert await turn == 2
        assert at.log.end_offset == 2
        assert at.log.start_offset == 0
        at.disk.capacity_bytes = None
        await at.joins_again()
        at.agree()
        at.push(2)
        at.push(3)
        at.pool.release()
        await settled()
        assert (at.log.start_offset, at.log.end_offset) == (1, 4)


async def test_what_was_written_before_the_disk_was_full_is_synced() -> None:
    async with follower() as at:
        await start(at)
        at.pool.release()
        await settled()
        assert at.log.synced_offset == 1
        # A full segment makes one write of two, of which the first one fits.
        at.writer.configure(LogConfig(segment_bytes=len(at.source[0]) + len(at.source[1])))
        at.disk.capacity_bytes = at.disk.used_bytes() + len(at.source[1])
        attempt = at.wires.joins[-1].attempt
        at.hear(Push(EPOCH, attempt, RECORDS, 1, 3, 0, 0), memoryview(b"".join(at.source[1:3])))
        assert at.log.end_offset == 2
        at.pool.release()
        await settled()
        assert at.log.synced_offset == 2


async def test_a_failed_log_is_not_followed_with() -> None:
    async with follower() as at:
        await start(at)
        at.disk.failing_syncs.add("/follower/00000000000000000000.log")
        at.pool.release()
        await settled()
        assert at.log.offline is not None
        count = len(at.wires.sent)
        with pytest.raises(LogOfflineError):
            await at.follow()
        assert len(at.wires.sent) == count
        assert not isinstance(at.log.offline, DiskIoError)


async def test_a_trim_that_fails_is_tried_again_some_time_later() -> None:
    async with follower() as at:
        await start(at)
        at.push(1)
        at.pool.release()
        await settled()
        at.pool.release()
        await settled()
        assert at.log.synced_offset == 2
        at.hear(Rejoin(EPOCH, at.wires.joins[-1].attempt))
        await at.joins_again()
        at.disk.capacity_bytes = at.disk.used_bytes()
        joins = len(at.wires.joins)
        lacks = StreamComparison(RECORDS, 0, 1, EPOCH, 1)
        at.hear(JoinAnswer(EPOCH, at.wires.joins[-1].attempt, False, (lacks,)))
        await settled()
        assert at.log.end_offset == 2
        assert len(at.wires.joins) == joins
        at.disk.capacity_bytes = None
        await at.joins_again()
        at.hear(JoinAnswer(EPOCH, at.wires.joins[-1].attempt, False, (lacks,)))
        await settled()
        assert at.log.end_offset == 1


# --- the leader's core ---------------------------------------------------------------------------------------------


def leader_of(log: Log, *, isr: tuple[int, ...] = (1, 2)) -> LeaderCore:
    picture = Picture((1, 2, 3), isr, (), EPOCH, 1, 2, {1: 1, 2: 1, 3: 1})
    return LeaderCore(
        me=IsrMember(1, 1),
        picture=picture,
        logs={RECORDS: cast(LogView, _Counts(log))},
        high_watermarks={},
        config=ReplicaConfig(lag_ms_max=2_000),
        now_ms=0,
    )


class _Counts:
    """A log that counts everything."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def __getattr__(self, name: str) -> object:
        return self._log.end_offset if name == "counted_offset" else getattr(self._log, name)


def led_log(records: int) -> Log:
    log = Log.open(SimDisk(), "/leader", LogConfig(), now_ms=0)
    log.begin_epoch(EPOCH)
    log.append([encode_columns([b"v"], timestamp_ms=1) for _ in range(records)], epoch=EPOCH, now_ms=0)
    return log


def test_what_could_not_be_read_is_offered_again() -> None:
    core = leader_of(led_log(3))
    core.on_join(2, LINK, Join(EPOCH, 1, 1, False, (StreamPosition(RECORDS, 0, 0, -1),)), 0)
    assert PushReady(2, RECORDS, False) in core.on_tick(100)


def test_a_follower_that_counts_nothing_of_what_it_was_sent_gives_its_room_to_others() -> None:
    core = leader_of(led_log(3))
    core.on_join(2, LINK, Join(EPOCH, 1, 1, False, (StreamPosition(RECORDS, 0, 0, -1),)), 0)
    core.push(2, RECORDS, base_offset=0, end_offset=2)
    for now_ms in range(0, 1_000, 100):
        assert NotFollowing(2) not in core.on_tick(now_ms)
    core.on_ack(2, LINK, Ack(EPOCH, 1, False, (StreamCount(RECORDS, 1),)), 1_000)
    for now_ms in range(1_000, 2_001, 100):
        assert NotFollowing(2) not in core.on_tick(now_ms)
    effects = core.on_tick(2_100)
    assert effects.index(NotFollowing(2)) < effects.index(Send(2, Rejoin(EPOCH, 1)))


# --- frames --------------------------------------------------------------------------------------------------------


def test_a_full_header_is_one_that_the_link_takes() -> None:
    frame, most = FrameBuilder(), 2**31 - 1
    streams = tuple(StreamComparison(most, 2**63 - 1, 2**63 - 1, most, 2**63 - 1) for _ in range(STREAMS_MAX))
    while not frame.is_full:
        frame.add(PartitionKey(b"\xff" * 16, most), JoinAnswer(most, 2**31 - 1, True, streams))
    header, _ = frame.build()
    assert len(header) <= frame.header_bytes <= HEADER_BYTES_MAX


class Talk:
    """A session that remembers what was sent."""

    peer_id = "b2"
    session_id = LINK
    outgoing_bytes = 0

    def __init__(self) -> None:
        self.frames: list[tuple[bytes, Sequence[Buffer]]] = []

    def send(self, kind: int, header: bytes, body: Sequence[Buffer]) -> None:
        assert len(header) <= HEADER_BYTES_MAX
        self.frames.append((header, body))

    def heard(self) -> list[tuple[PartitionKey, Message | Piece]]:
        return [(each.key, each.message) for header, body in self.frames for each in received(header, b"".join(body))]


class Quorum:
    """Controllers that answer every proposal alike."""

    def __init__(self, error: errors_pb2.ErrorReason.ValueType) -> None:
        self.error = error

    async def alter_partitions(
        self, request: controller_pb2.AlterPartitionsRequest, *, timeout_s: float
    ) -> controller_pb2.AlterPartitionsResponse:
        outcomes = [commands_pb2.PartitionOutcome(error=self.error) for _ in request.changes]
        return controller_pb2.AlterPartitionsResponse(outcomes=outcomes)


def replication(controllers: object = None) -> Replication:
    image = MetadataImage()
    brokers = [
        metadata_pb2.MetadataRecord(
            broker=metadata_pb2.Broker(broker_id=number, broker_epoch=1, node_id=f"b{number}")
        )
        for number in (1, 2)
    ]
    image.apply(
        controller_pb2.WatchMetadataResponse(
            snapshot=metadata_pb2.MetadataSnapshot(version=1, records=brokers, first=True, last=True)
        )
    )
    return Replication(
        image,
        cast(Controllers, controllers),
        broker_id=1,
        local=NodeIdentity("cluster", "b1"),
        network=cast(Network, None),
        listen=Address("b1", 7410),
        randomness=random.Random(1),
        broker_epoch=lambda: 1,
        replica_of=lambda key: None,
        replicas=list,
        link=LinkConfig(),
    )


async def test_what_many_partitions_say_at_once_goes_in_as_many_frames_as_it_needs() -> None:
    exchange, talk = replication(), Talk()
    exchange.on_up(cast(Session, talk))
    positions = (StreamPosition(RECORDS, 0, 10**9, 5),)
    said = [(PartitionKey(b"t" * 16, number), Join(EPOCH, 1, 1, False, positions)) for number in range(3_000)]
    for key, message in said:
        exchange.send(2, key, message)
    await settled()
    assert talk.heard() == said
    assert len(talk.frames) > 1


# --- proposals -----------------------------------------------------------------------------------------------------


@dataclass
class _Leads:
    proposal: Proposal | None


class Proposer:
    """As much of a replica as proposals need."""

    key = KEY

    def __init__(self, proposal: Proposal) -> None:
        self.leader = _Leads(proposal)
        self.answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def on_answered(self, proposal: Proposal, answer: Answer) -> None:
        assert proposal == self.leader.proposal
        self.answered.set_result(answer)


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (errors_pb2.ERROR_REASON_UNSPECIFIED, Answer.COMMITTED),
        (errors_pb2.ERROR_REASON_STALE_PARTITION_EPOCH, Answer.STALE),
        (errors_pb2.ERROR_REASON_BROKER_FENCED, Answer.REFUSED),
        # A member has registered anew. The partition's metadata need not change for that, so nothing else would ever
        # take the proposal back, and the high watermark would wait for that member for ever.
        (errors_pb2.ERROR_REASON_STALE_BROKER_EPOCH, Answer.REFUSED),
    ],
)
async def test_what_becomes_of_a_proposal(error: errors_pb2.ErrorReason.ValueType, answer: Answer) -> None:
    exchange = replication(Quorum(error))
    proposal = Proposal(EPOCH, 1, (IsrMember(1, 1), IsrMember(2, 1)), ())
    proposer = Proposer(proposal)
    running = asyncio.ensure_future(exchange.run())
    exchange.propose(cast(Replica, proposer), proposal)
    assert await proposer.answered is answer
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
