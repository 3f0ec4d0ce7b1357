"""The consumer's promises: order, nothing twice, nothing left out, bounded memory, whatever streams do."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Final

import pytest

from quire._client.collector import PAUSED
from quire._client.intake import HAND_MAX, Intake, SubscribeOrders
from quire._client.message import Message
from quire._client.reading import Reading, Stream
from quire._client.starts import EARLIEST, LATEST, Place
from quire._client.stored import TopicPartition
from quire.errors import (
    ChecksumMismatchError,
    DamagedRangeError,
    LogBusyError,
    NotLeaderError,
    OffsetOutOfRangeError,
    PoisonBatchError,
    QuireError,
    UnknownTopicError,
)
from quire.link.backoff import Backoff
from quire.records import BatchBuilder, Record, decode, pack_batch, parse_batch, patch
from quire.records.header import HEADER_BYTES
from quire.refusals import refusal_of
from quire.types import Buffer
from quire.v1 import broker_pb2

CREDIT: Final = 2_000
PIECE: Final = 600
TOPIC: Final = "orders"
TOPIC_ID: Final = bytes(16)


def batch(base_offset: int, count: int, *, control: bool = False) -> bytes:
    builder = BatchBuilder()
    for index in range(count):
        builder.append(None, b"%d" % (base_offset + index), [], 1_000)
    made = bytearray(builder.build(control=control, producer_id=1, producer_epoch=0, base_sequence=0))
    patch(made, base_offset=base_offset, leader_epoch=3)
    return bytes(made)


@dataclass
class Log:
    """One partition: batches by base offset, with gaps as compaction leaves them."""

    leader: int = 1
    batches: list[tuple[int, int, bytes]] = field(default_factory=list)
    """(base offset, end offset, bytes), ascending."""
    offsets: list[int] = field(default_factory=list)
    """Of the records that users are to see."""
    end: int = 0

    def append(self, count: int, *, gap: int = 0, control: bool = False) -> None:
        base = self.end + gap
        self.end = base + count
        self.batches.append((base, self.end, batch(base, count, control=control)))
        if not control:
            self.offsets += range(base, self.end)

    def read(self, offset: int) -> tuple[bytes, int]:
        """Whole batches from this offset on: some bytes of them, and where they end."""
        data, end = b"", offset
        for _, batch_end, encoded in self.batches:
            if batch_end > offset and (not data or len(data) + len(encoded) <= PIECE):
                data, end = data + encoded, batch_end
            elif data:
                break
        return data, end


class BrokerStream:
    """What a broker makes of one subscription."""

    def __init__(self, world: World, broker_id: int) -> None:
        self.world = world
        self.stream = Stream(broker_id, CREDIT)
        self.credit = CREDIT
        self.feeds: dict[int, tuple[int, int]] = {}
        """By number: partition and next offset."""
        self.wire: list[broker_pb2.SubscribeResponse] = []

    def told(self, orders: SubscribeOrders) -> None:
        for number in orders.removed:
            self.feeds.pop(number, None)
        for asked in orders.added:
            for number, (partition, _) in list(self.feeds.items()):
                if partition == asked.partition:
                    del self.feeds[number]
            assert asked.correlation_id not in self.feeds
            self.feeds[asked.correlation_id] = (asked.partition, asked.offset)
        self.credit += orders.credit_bytes
        assert self.credit <= CREDIT, "more credit is given than there was"

    def send(self) -> None:
        """One message: a piece of each partition, as far as the credit reaches."""
        answer = broker_pb2.SubscribeResponse()
        for number, (partition, offset) in list(self.feeds.items()):
            log = self.world.logs[partition]
            if log.leader != self.stream.broker_id:
                answer.partitions.add(
                    partition=partition,
                    correlation_id=number,
                    refusal=refusal_of(NotLeaderError("another one leads")),
                    next_offset=offset,
                )
                del self.feeds[number]
                continue
            if self.credit <= 0:
                continue
            data, end = log.read(offset)
            if data:
                entry = answer.partitions.add(
                    partition=partition, correlation_id=number, next_offset=end, credit_bytes=len(data)
                )
                entry.records.raw_batches = data
                self.credit -= len(data)
                self.feeds[number] = (partition, end)
        self.wire.append(answer)


class World:
    def __init__(self, seed: int = 0, *, partitions: int = 3, policy: str = "error") -> None:
        self.random = random.Random(seed)
        self.now_ms = 0.0
        self.logs = [Log(leader=1 + number % 2) for number in range(partitions)]
        self.streams: dict[int, BrokerStream] = {}
        self.arrivals = self.wakes = 0
        self.intake = Intake(
            lock=nullcontext(),
            on_out_of_range=policy,
            wake=self._wake,
            arrived=self._arrived,
            now_ms=lambda: self.now_ms,
            decoding=PAUSED,
        )
        self.leader_error: QuireError | None = None
        self.readings = [self.reading(number, 0) for number in range(partitions)]
        for reading in self.readings:
            self.intake.assign(reading)
        self.expected = [0] * partitions
        """The offset from which each partition is to go on."""

    def _wake(self) -> None:
        self.wakes += 1

    def _arrived(self) -> None:
        self.arrivals += 1

    def reading(self, partition: int, start: int | Place) -> Reading:
        backoff = Backoff(ms_min=10, ms_max=50, uniform=self.random.uniform)
        return Reading(TopicPartition(TOPIC, partition), TOPIC_ID, start, backoff=backoff)

    # -- what may happen ---------------------------------------------------------------------------------------------

    def append(self) -> None:
        log = self.random.choice(self.logs)
        dice = self.random.random()
        log.append(self.random.randint(1, 12), gap=3 if dice < 0.1 else 0, control=dice > 0.95)

    def plan(self) -> float:
        streams = {broker: each.stream for broker, each in self.streams.items()}
        orders, lacking, again_ms = self.intake.plan(self._leader_of, streams, self.now_ms)
        for broker, order in orders.items():
            self.streams[broker].told(order)
        for broker in lacking:
            self.streams[broker] = BrokerStream(self, broker)
        return again_ms

    def _leader_of(self, reading: Reading) -> int | QuireError:
        return self.leader_error or self.logs[reading.partition.partition].leader

    def send(self) -> None:
        if self.streams:
            self.random.choice(list(self.streams.values())).send()

    def deliver(self) -> None:
        if self.streams:
            source = self.random.choice(list(self.streams.values()))
            if source.wire:
                self.intake.received(source.stream, source.wire.pop(0))
                # What is held is what was sent, and the sum of both is what the broker may have sent.
                assert source.stream.held_bytes + source.stream.owed_bytes <= CREDIT + PIECE

    def take(self) -> None:
        if self.random.random() < 0.5:
            messages = self.intake.take(self.random.choice((1, 5, 100)))
        else:
            message = self.intake.next()
            messages = [] if message is None else [message]
        self.check(messages)

    def check(self, messages: list[Message]) -> None:
        for message in messages:
            log = self.logs[message.partition]
            wanted = next(offset for offset in log.offsets if offset >= self.expected[message.partition])
            assert message.offset == wanted, f"partition {message.partition}: {message.offset} instead of {wanted}"
            assert message.value == b"%d" % message.offset
            assert (message.topic, message.timestamp_ms, message.leader_epoch) == (TOPIC, 1_000, 3)
            self.expected[message.partition] = message.offset + 1

    def end_stream(self) -> None:
        if self.streams:
            broker = self.random.choice(list(self.streams))
            self.intake.stream_ended(self.streams.pop(broker).stream, pause_ms=5)

    def move(self) -> None:
        self.random.choice(self.logs).leader = self.random.randint(1, 2)

    def seek(self) -> None:
        partition = self.random.randrange(len(self.logs))
        log = self.logs[partition]
        if log.offsets:
            offset = self.random.choice(log.offsets)
            self.intake.seek(self.readings[partition], offset)
            assert self.intake.position(self.readings[partition]) == offset
            self.expected[partition] = offset

    def pause(self) -> None:
        reading = self.random.choice(self.readings)
        before = self.intake.position(reading)
        (self.intake.resume if reading.paused else self.intake.pause)(reading)
        assert self.intake.position(reading) == before

    def reassign(self) -> None:
        partition = self.random.randrange(len(self.logs))
        self.intake.unassign(self.readings[partition].partition)
        self.readings[partition] = self.reading(partition, self.expected[partition])
        self.intake.assign(self.readings[partition])

    def pass_time(self) -> None:
        self.now_ms += self.random.choice((1, 20, 100))

    def settle(self) -> None:
        """Until everything was handed out."""
        for reading in self.readings:
            self.intake.resume(reading)
        for _ in range(20_000):
            if all(
                not [offset for offset in log.offsets if offset >= expected]
                for log, expected in zip(self.logs, self.expected, strict=True)
            ):
                return
            self.plan()
            for step in (self.send, self.deliver, self.deliver, self.take, self.take, self.pass_time):
                step()
        raise AssertionError("it does not come to an end")


@pytest.mark.parametrize("seed", range(150))
def test_messages_come_in_order_once_and_all_of_them(seed: int) -> None:
    world = World(seed)
    quiet: list[Callable[[], object]] = [
        *(world.append, world.plan, world.plan, world.send, world.send),
        *(world.deliver, world.deliver, world.take, world.take, world.pass_time),
    ]
    loud: list[Callable[[], object]] = [world.end_stream, world.move, world.seek, world.pause, world.reassign]
    for _ in range(500):
        world.random.choice(quiet * 4 + loud)()
    world.settle()
    for reading, log in zip(world.readings, world.logs, strict=True):
        if log.offsets:
            assert world.intake.position(reading) >= log.offsets[-1] + 1


def test_credit_comes_back_in_full() -> None:
    world = World(1)
    for _ in range(200):
        world.append()
    world.settle()
    world.plan()
    for source in world.streams.values():
        assert (source.stream.held_bytes, source.stream.owed_bytes, source.credit) == (0, 0, CREDIT)


# --- one partition, step by step -----------------------------------------------------------------------------------


class Single:
    """One partition at one broker, and entries made by hand."""

    def __init__(self, *, policy: str = "error", start: int | Place = 0) -> None:
        self.world = World(partitions=1, policy=policy)
        self.intake = self.world.intake
        (self.reading,) = self.world.readings
        if start:
            self.intake.seek(self.reading, start)
        self.stream = Stream(1, CREDIT)

    def subscribe(self) -> broker_pb2.SubscribeFrom | None:
        orders, _, _ = self.intake.plan(lambda reading: 1, {1: self.stream}, self.world.now_ms)
        return orders[1].added[0] if 1 in orders and orders[1].added else None

    def receive(self, data: bytes, *, end: int, number: int | None = None) -> None:
        message = broker_pb2.SubscribeResponse()
        entry = message.partitions.add(
            correlation_id=self.reading.number if number is None else number, next_offset=end, credit_bytes=len(data)
        )
        entry.records.raw_batches = data
        self.intake.received(self.stream, message)

    def refuse(self, error: QuireError) -> None:
        message = broker_pb2.SubscribeResponse()
        message.partitions.add(correlation_id=self.reading.number, refusal=refusal_of(error))
        self.intake.received(self.stream, message)

    def offsets(self) -> list[int]:
        return [message.offset for message in self.intake.take(1000)]


def test_batch_that_begins_before_the_position_is_cut() -> None:
    kit = Single(start=3)
    assert kit.subscribe() is not None
    kit.receive(batch(0, 6), end=6)
    assert kit.offsets() == [3, 4, 5]


def test_nobody_looks_for_cycles_while_a_batch_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    was_on: list[bool] = []

    def watched(data: Buffer, at: int) -> Sequence[Record]:
        was_on.append(gc.isenabled())
        return decode(data, at)

    monkeypatch.setattr("quire._client.intake.decode", watched)
    world = World(partitions=1)
    for _ in range(3):
        world.append()
    world.settle()
    assert was_on
    assert not any(was_on)
    assert gc.isenabled()


def test_what_comes_twice_is_handed_out_once() -> None:
    kit = Single()
    kit.subscribe()
    kit.receive(batch(0, 3), end=3)
    kit.receive(batch(0, 3), end=3)
    kit.receive(batch(0, 3) + batch(3, 2), end=5)
    assert kit.offsets() == [0, 1, 2, 3, 4]
    assert kit.stream.held_bytes == 0


def test_what_was_read_for_another_number_is_dropped_and_paid_for() -> None:
    kit = Single()
    kit.subscribe()
    old = kit.reading.number
    kit.intake.seek(kit.reading, 10)
    kit.subscribe()
    kit.receive(batch(0, 3), end=3, number=old)
    kit.receive(batch(10, 1), end=11, number=99)
    assert kit.offsets() == []
    assert kit.stream.owed_bytes == len(batch(0, 3)) + len(batch(10, 1))
    kit.receive(batch(10, 1), end=11)
    assert kit.offsets() == [10]


def test_signs_of_life_wake_nobody() -> None:
    kit = Single()
    kit.subscribe()
    before = (kit.world.arrivals, kit.world.wakes)
    kit.intake.received(kit.stream, broker_pb2.SubscribeResponse())
    assert (kit.world.arrivals, kit.world.wakes) == before


def test_leader_that_has_moved_is_left_without_a_word() -> None:
    kit = Single()
    kit.subscribe()
    number = kit.reading.number
    orders, lacking, _ = kit.intake.plan(lambda reading: 2, {1: kit.stream}, 0.0)
    assert (orders[1].removed, lacking) == ([number], [2])
    assert kit.offsets() == []


def test_refusal_that_time_mends_is_tried_again_after_its_pause() -> None:
    kit = Single()
    kit.subscribe()
    kit.refuse(LogBusyError("later", retry_after_ms=400))
    assert kit.offsets() == []
    assert kit.subscribe() is None
    kit.world.now_ms = 400
    again = kit.subscribe()
    assert again is not None
    assert again.offset == 0


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (OffsetOutOfRangeError("gone"), "on_out_of_range"),
        (DamagedRangeError("damaged", first_offset=0, end_offset=7), "seek to 7"),
        (QuireError("strange"), "try again"),
    ],
)
def test_what_only_the_user_can_decide_is_told_again_and_again(error: QuireError, advice: str) -> None:
    kit = Single()
    kit.subscribe()
    for _ in range(3):
        kit.refuse(error)
        with pytest.raises(type(error), match=advice) as caught:
            kit.intake.take(10)
        assert caught.value.details["topic"] == TOPIC
        assert kit.offsets() == [], "told once, it is left alone for a while"
        assert kit.subscribe() is None
        kit.world.now_ms += 1_000
        assert kit.subscribe() is not None
    assert kit.intake.position(kit.reading) == 0


def test_what_was_read_before_is_handed_out_before_an_error() -> None:
    kit = Single()
    kit.subscribe()
    kit.receive(batch(0, 2), end=2)
    kit.refuse(OffsetOutOfRangeError("gone"))
    assert kit.offsets() == [0, 1]
    with pytest.raises(OffsetOutOfRangeError):
        kit.intake.take(10)


def test_seek_takes_an_error_back() -> None:
    kit = Single()
    kit.subscribe()
    kit.refuse(OffsetOutOfRangeError("gone"))
    kit.intake.seek(kit.reading, 5)
    assert kit.offsets() == []
    asked = kit.subscribe()
    assert asked is not None
    assert asked.offset == 5


def test_policy_looks_up_another_start_once_all_is_handed_out() -> None:
    kit = Single(policy="latest")
    kit.subscribe()
    kit.receive(batch(0, 2), end=2)
    kit.refuse(OffsetOutOfRangeError("gone"))
    assert kit.intake.unresolved(kit.world.now_ms) == {}
    assert kit.offsets() == [0, 1]
    kit.world.now_ms = 100
    kit.subscribe()
    kit.refuse(OffsetOutOfRangeError("gone"))
    assert kit.intake.unresolved(kit.world.now_ms) == {kit.reading: LATEST}
    assert kit.subscribe() is None
    kit.intake.found(kit.reading, EARLIEST, 3)
    assert kit.intake.position(kit.reading) == 2, "an answer to another question"
    kit.intake.found(kit.reading, LATEST, 9)
    asked = kit.subscribe()
    assert asked is not None
    assert asked.offset == 9


def test_start_that_cannot_be_looked_up_is_tried_again_or_told() -> None:
    kit = Single(start=EARLIEST)
    kit.intake.not_found([kit.reading], NotLeaderError("nobody leads"))
    assert kit.offsets() == []
    assert kit.intake.unresolved(kit.world.now_ms) == {}
    _, _, again_ms = kit.intake.plan(lambda reading: 1, {}, kit.world.now_ms)
    assert again_ms == 1_000
    kit.world.now_ms = 1_000
    assert kit.intake.unresolved(kit.world.now_ms) == {kit.reading: EARLIEST}
    kit.intake.not_found([kit.reading], QuireError("forbidden"))
    with pytest.raises(QuireError, match="forbidden"):
        kit.intake.take(1)


def test_topic_that_is_gone_is_told_while_it_is() -> None:
    kit = Single()
    kit.subscribe()
    error = UnknownTopicError("there is no topic")
    for _ in range(2):
        _, _, again_ms = kit.intake.plan(lambda reading: error, {1: kit.stream}, kit.world.now_ms)
        with pytest.raises(UnknownTopicError):
            kit.intake.take(1)
        kit.world.now_ms += 1_000
        assert again_ms <= kit.world.now_ms


def broken(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def poison(base_offset: int, count: int) -> bytes:
    """A batch whose CRC holds, and whose records do not decode."""
    good = batch(base_offset, count)
    header = parse_batch(good)
    made = bytearray(pack_batch(header, b"\xff" * (len(good) - HEADER_BYTES)))
    patch(made, base_offset=base_offset, leader_epoch=3)
    return bytes(made)


def test_bytes_that_are_damaged_on_their_way_are_read_again() -> None:
    kit = Single()
    kit.subscribe()
    kit.receive(batch(0, 2) + broken(batch(2, 2)), end=4)
    assert kit.offsets() == [0, 1]
    asked = kit.subscribe()
    assert asked is not None
    assert asked.offset == 2
    kit.receive(batch(2, 2), end=4)
    assert kit.offsets() == [2, 3]


def test_bytes_that_are_always_damaged_are_told() -> None:
    kit = Single()
    for _ in range(3):
        assert kit.subscribe() is not None
        kit.receive(broken(batch(0, 2)), end=2)
        assert kit.offsets() == []
    kit.subscribe()
    kit.receive(broken(batch(0, 2)), end=2)
    with pytest.raises(ChecksumMismatchError, match="offset 0"):
        kit.intake.take(10)


def test_batch_that_does_not_decode_is_told_and_can_be_stepped_over() -> None:
    kit = Single()
    kit.subscribe()
    kit.receive(batch(0, 2) + poison(2, 3), end=5)
    assert kit.offsets() == [0, 1]
    with pytest.raises(PoisonBatchError, match="Seek to 5") as caught:
        kit.intake.take(10)
    assert caught.value.details["end_offset"] == "5"
    assert kit.intake.position(kit.reading) == 2
    kit.intake.seek(kit.reading, 5)
    kit.subscribe()
    kit.receive(batch(5, 1), end=6)
    assert kit.offsets() == [5]


def test_control_batches_and_gaps_move_the_position() -> None:
    kit = Single()
    kit.subscribe()
    kit.receive(batch(0, 1, control=True) + batch(5, 1), end=9)
    assert kit.offsets() == [5]
    assert kit.intake.position(kit.reading) == 9


def test_whoever_iterates_sees_the_same_as_whoever_polls() -> None:
    kit = Single()
    kit.subscribe()
    kit.receive(batch(0, 5), end=5)
    first = kit.intake.next()
    assert first is not None
    assert first.offset == 0
    assert kit.intake.position(kit.reading) == 1
    assert [message.offset for message in kit.intake.take(2)] == [1, 2]
    kit.intake.pause(kit.reading)
    assert kit.intake.position(kit.reading) == 3
    assert kit.intake.next() is None
    kit.intake.resume(kit.reading)
    asked = kit.subscribe()
    assert asked is not None
    assert asked.offset == 3
    assert HAND_MAX > 5
