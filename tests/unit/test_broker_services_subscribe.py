"""Subscribe: what is sent when, credit, and readers that are slow, wrong or gone."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc.aio
import pytest

from quire.errors import (
    InvalidArgumentError,
    LimitExceededError,
    LogBusyError,
    NotLeaderError,
    OffsetOutOfRangeError,
    PoisonBatchError,
    QuireError,
    StaleEpochError,
    UnavailableError,
    UnknownPartitionError,
    UnknownTopicError,
)
from quire.records import Codec
from quire.v1 import broker_pb2
from quire_broker.service import answers, subscribe
from tests.unit import records_crafting
from tests.unit.broker_services_harness import (
    MIB,
    Call,
    Stream,
    World,
    add,
    batch,
    batches,
    credit,
    entry,
    feed,
    refusal_in,
    settle,
    values_of,
    virtual,
)

DECODED: Final = broker_pb2.RECORD_FORM_DECODED
SIZE: Final = len(batch(bytes(1_000)))


def remove(*numbers: int) -> broker_pb2.SubscribeRequest:
    return broker_pb2.SubscribeRequest(remove=broker_pb2.SubscribeRemove(correlation_ids=numbers))


async def pieces(stream: Stream, count: int) -> list[broker_pb2.PartitionFetched]:
    """The next so many pieces, whatever messages they come in."""
    found: list[broker_pb2.PartitionFetched] = []
    while len(found) < count:
        found += (await stream.next()).partitions
    assert len(found) == count
    return found


async def nothing_more(stream: Stream) -> None:
    """Nothing but signs of life for some seconds."""
    await asyncio.sleep(5)
    while not stream.call.answers.empty():
        assert not stream.call.answers.get_nowait().partitions


# --- what is sent ---------------------------------------------------------------------------------------------------


@virtual
async def test_records_come_as_they_are_committed() -> None:
    async with World() as world:
        topic_id = await world.create("orders", partitions=2)
        await world.store(b"a", b"b")
        stream = world.subscribe()
        stream.send(add(feed(10), feed(11, partition=1)))
        [first] = await pieces(stream, 1)
        assert (first.correlation_id, first.topic_id, first.partition) == (10, topic_id, 0)
        assert (values_of(first), first.next_offset, first.high_watermark) == ([b"a", b"b"], 2, 2)
        assert first.credit_bytes == len(first.records.raw_batches)
        await world.store(b"c", partition=1)
        [second] = await pieces(stream, 1)
        assert (second.correlation_id, values_of(second)) == (11, [b"c"])
        await nothing_more(stream)


@virtual
async def test_a_sign_of_life_comes_when_there_is_nothing_else() -> None:
    async with World() as world:
        stream = world.subscribe()
        await asyncio.sleep(3.5)
        assert stream.call.answers.qsize() == 3


@virtual
async def test_records_as_messages() -> None:
    async with World() as world:
        await world.create("orders")
        await world.store(b"a", b"b", b"c")
        stream = world.subscribe(form=DECODED)
        stream.send(add(feed(1, offset=1)))
        [piece] = await pieces(stream, 1)
        assert [record.offset for record in piece.records.decoded.records] == [1, 2]


@virtual
async def test_another_place_in_a_partition_replaces_the_first() -> None:
    async with World() as world:
        await world.create("orders")
        await world.store(b"a")
        await world.store(b"b")
        stream = world.subscribe()
        stream.send(add(feed(1, offset=2)), add(feed(2, offset=1)))
        [piece] = await pieces(stream, 1)
        assert (piece.correlation_id, values_of(piece)) == (2, [b"b"])
        await world.store(b"c")
        [piece] = await pieces(stream, 1)
        assert (piece.correlation_id, values_of(piece)) == (2, [b"c"])


@virtual
async def test_what_is_removed_is_sent_no_more() -> None:
    async with World() as world:
        await world.create("orders", partitions=2)
        stream = world.subscribe()
        stream.send(add(feed(1), feed(2, partition=1)), remove(1, 77))
        await settle()
        await world.store(b"a")
        await world.store(b"b", partition=1)
        [piece] = await pieces(stream, 1)
        assert piece.correlation_id == 2
        stream.send(add(feed(1)))
        [piece] = await pieces(stream, 1)
        assert (piece.correlation_id, values_of(piece)) == (1, [b"a"]), "its number may be used again"


@virtual
async def test_removed_while_it_is_being_decoded() -> None:
    async with World() as world:
        await world.create("orders", partitions=2)
        await world.store(*[b"x"] * 1_000)
        aside = world.reading._pool
        aside.hold()  # type: ignore[attr-defined]
        stream = world.subscribe(form=DECODED)
        stream.send(add(feed(1)))
        await settle()
        stream.send(remove(1), add(feed(2, partition=1)))
        await settle()
        aside.let_go()  # type: ignore[attr-defined]
        await nothing_more(stream)
        await world.store(b"y", partition=1)
        [piece] = await pieces(stream, 1)
        assert piece.correlation_id == 2


# --- what is refused ------------------------------------------------------------------------------------------------


@virtual
async def test_a_refusal_is_the_last_of_its_number() -> None:
    async with World() as world:
        await world.create("orders", partitions=2)
        await world.create("theirs", isr=(1, 2), leader=2)
        await world.elect("orders")
        expected: list[tuple[broker_pb2.SubscribeFrom, type[QuireError]]] = [
            (feed(1, "nothing"), UnknownTopicError),
            (feed(2, "../../x"), UnknownTopicError),
            (feed(3, partition=9), UnknownPartitionError),
            (feed(4, partition=-1), UnknownPartitionError),
            (feed(5, "theirs"), NotLeaderError),
            (feed(6, leader_epoch=1), StaleEpochError),
            (feed(7, offset=1), OffsetOutOfRangeError),
            (feed(8, offset=-5, partition=1), OffsetOutOfRangeError),
        ]
        stream = world.subscribe()
        stream.send(add(*[asked for asked, _ in expected]))
        found = {each.correlation_id: each for each in await pieces(stream, 8)}
        for asked, kind in expected:
            assert type(refusal_in(found[asked.correlation_id])) is kind
            assert found[asked.correlation_id].next_offset == asked.offset
        stream.send(add(feed(7)))
        await world.store(b"a")
        [piece] = await pieces(stream, 1)
        assert (piece.correlation_id, values_of(piece)) == (7, [b"a"])
        await nothing_more(stream)


@pytest.mark.parametrize("how", ["another leader", "the same leader", "the lease", "deletion"])
@virtual
async def test_the_end_of_a_leadership_is_told(how: str) -> None:
    async with World() as world:
        await world.create("orders", isr=(1, 2), min_isr=1)
        await world.create("others")
        stream = world.subscribe()
        stream.send(add(feed(1, leader_epoch=1), feed(2, "others")))
        await settle()
        match how:
            case "another leader":
                await world.elect("orders", leader=2)
            case "the same leader":
                await world.elect("orders")
            case "the lease":
                world.may_lead = False
                for partition in world.partitions:
                    partition.wake()
            case "deletion":
                await world.delete("orders")
        found = await pieces(stream, 2 if how == "the lease" else 1)
        assert isinstance(refusal_in(found[0]), NotLeaderError | StaleEpochError)
        if how != "the lease":
            await world.store(b"a", topic="others")
            [piece] = await pieces(stream, 1)
            assert (piece.correlation_id, values_of(piece)) == (2, [b"a"]), "the others go on"


@virtual
async def test_what_does_not_decode_ends_its_number_alone() -> None:
    async with World() as world:
        await world.create("orders", partitions=2)
        poison = records_crafting.batch(b"\x99" * 30)
        await world.produce(entry("orders", batches(batch(b"a"), poison)))
        stream = world.subscribe(form=DECODED)
        stream.send(add(feed(1), feed(2, partition=1)))
        good, bad = await pieces(stream, 2)
        assert values_of(good) == [b"a"]
        assert isinstance(refusal_in(bad), PoisonBatchError)
        await world.store(b"b", partition=1)
        assert values_of((await pieces(stream, 1))[0]) == [b"b"]


@pytest.mark.parametrize(
    ("messages", "kind"),
    [
        ([add(feed(1))], InvalidArgumentError),
        ([credit(5)], InvalidArgumentError),
        ([broker_pb2.SubscribeRequest()], InvalidArgumentError),
        ([{"credit_bytes": -1}], InvalidArgumentError),
        ([{"credit_bytes": 64 * MIB + 1}], InvalidArgumentError),
        ([{"bytes_max": -1}], InvalidArgumentError),
        ([{"bytes_max": 16 * MIB + 1}], InvalidArgumentError),
        ([{"form": 9}], InvalidArgumentError),
        ([{"isolation": 9}], InvalidArgumentError),
        ([{}, {}], InvalidArgumentError),
        ([{}, credit(0)], InvalidArgumentError),
        ([{}, credit(-(2**63))], InvalidArgumentError),
        ([{}, credit(2**63 - 1)], InvalidArgumentError),
        ([{}, credit(60 * MIB), credit(1)], InvalidArgumentError),
        ([{}, add(feed(1), feed(1))], InvalidArgumentError),
        ([{}, InvalidArgumentError("it does not parse")], InvalidArgumentError),
    ],
)
@virtual
async def test_what_ends_the_stream(messages: list[Any], kind: type[QuireError]) -> None:
    async with World() as world:
        await world.create("orders")
        stream = Stream(world.subscriptions.serve, Call())
        for each in messages:
            is_start = isinstance(each, dict)
            stream.send(broker_pb2.SubscribeRequest(start=broker_pb2.SubscribeStart(**each)) if is_start else each)
        assert type(await stream.closed()) is kind


@virtual
async def test_what_newer_clients_say_is_passed_over() -> None:
    async with World() as world:
        await world.create("orders")
        stream = world.subscribe()
        stream.send(broker_pb2.SubscribeRequest(), add(feed(1)))
        await world.store(b"a")
        assert values_of((await pieces(stream, 1))[0]) == [b"a"]


@virtual
async def test_who_opens_a_stream_and_says_nothing() -> None:
    async with World() as world:
        stream = Stream(world.subscriptions.serve, Call())
        assert isinstance(await stream.closed(), InvalidArgumentError)
        assert asyncio.get_running_loop().time() == pytest.approx(subscribe.START_S_MAX, abs=0.1)


# --- credit ---------------------------------------------------------------------------------------------------------


@virtual
async def test_no_more_is_sent_than_there_is_credit_for() -> None:
    async with World() as world:
        await world.create("orders", partitions=2)
        for index in (0, 1):
            for _ in range(20):
                await world.store(bytes(1_000), partition=index)
        stream = world.subscribe(credit_bytes=5 * SIZE + 1)
        stream.send(add(feed(1), feed(2, partition=1)))
        await settle()
        await asyncio.sleep(3)
        sent = sum(
            piece.credit_bytes
            for _ in range(stream.call.answers.qsize())
            for piece in stream.call.answers.get_nowait().partitions
        )
        assert sent == 6 * SIZE, "the last one goes beyond by one batch at most"
        stream.send(credit(SIZE - 1))
        await nothing_more(stream)
        stream.send(credit(1))
        [piece] = await pieces(stream, 1)
        assert piece.credit_bytes == SIZE


@virtual
async def test_one_batch_is_sent_for_any_credit() -> None:
    async with World() as world:
        await world.create("orders")
        for _ in range(3):
            await world.store(bytes(1_000))
        stream = world.subscribe(credit_bytes=1)
        stream.send(add(feed(1)))
        [piece] = await pieces(stream, 1)
        assert (piece.credit_bytes, piece.next_offset) == (SIZE, 1)
        await nothing_more(stream)


@virtual
async def test_partitions_take_turns() -> None:
    async with World() as world:
        await world.create("orders", partitions=3)
        for index in range(3):
            for _ in range(10):
                await world.store(bytes(1_000), partition=index)
        stream = world.subscribe(bytes_max=SIZE)
        stream.send(add(*[feed(index, partition=index) for index in range(3)]))
        assert [each.correlation_id for each in await pieces(stream, 30)] == [0, 1, 2] * 10


@virtual
async def test_decoded_records_take_the_credit_of_their_batches() -> None:
    async with World() as world:
        await world.create("orders")
        swollen = batch(bytes(5 * MIB), codec=Codec.ZSTD)
        await world.produce(entry("orders", batches(*[swollen] * 6)))
        stream = world.subscribe(form=DECODED, credit_bytes=6 * len(swollen))
        stream.send(add(feed(1)))
        found = await pieces(stream, 6)
        assert [each.credit_bytes for each in found] == [len(swollen)] * 6
        assert [each.next_offset for each in found] == [1, 2, 3, 4, 5, 6]


# --- who is slow, and who goes --------------------------------------------------------------------------------------


@virtual
async def test_a_client_that_has_said_all_gets_the_rest() -> None:
    async with World() as world:
        await world.create("orders")
        await world.store(b"a")
        stream = world.subscribe()
        stream.send(add(feed(1)))
        stream.end()
        assert values_of((await pieces(stream, 1))[0]) == [b"a"]
        assert await stream.closed() is None


@virtual
async def test_a_slow_reader_holds_back_only_itself() -> None:
    async with World() as world:
        await world.create("orders")
        calls = [Call(peer=f"ipv4:10.0.0.1:{number}") for number in range(50)]
        for call in calls:
            call.takes.clear()
            world.subscribe(call).send(add(feed(1)))
        quick = world.subscribe(Call(peer="ipv4:10.0.0.2:1"), credit_bytes=64 * MIB)
        quick.send(add(feed(1)))
        for number in range(20):
            stored = await world.store(bytes(MIB // 2))
            assert stored.base_offset == number
            assert (await pieces(quick, 1))[0].next_offset == number + 1
        assert world.memory.answers.used_bytes < 51 * 3 * MIB


@virtual
async def test_readers_who_take_nothing_make_room_for_others() -> None:
    async with World(process_bytes_max=8 * MIB) as world:
        await world.create("orders")
        await world.store(bytes(MIB // 2))
        stuck = []
        for number in range(50):
            call = Call(peer=f"ipv4:10.0.0.1:{number}")
            call.takes.clear()
            stuck.append(world.subscribe(call))
            stuck[-1].send(add(feed(1)))
        await settle()
        assert world.memory.answers.used_bytes < 6 * MIB, "the limit, and one message"
        quick = world.subscribe(Call(peer="ipv4:10.0.0.2:1"))
        quick.send(add(feed(1)))
        await asyncio.wait_for(pieces(quick, 1), 60)
        assert sum(each.task.cancelled() for each in stuck) > 0
        assert (await world.store(b"a")).base_offset == 1


@virtual
async def test_a_reader_who_takes_nothing_is_hung_up_on() -> None:
    async with World() as world:
        await world.create("orders")
        await world.store(b"a")
        call = Call()
        call.takes.clear()
        stream = world.subscribe(call)
        stream.send(add(feed(1)))
        await asyncio.sleep(answers.STALL_S_MAX - 0.5)
        assert not stream.task.done()
        await asyncio.sleep(1)
        assert stream.task.cancelled()
        assert not world.partition()._watchers


@virtual
async def test_clients_that_vanish_leave_nothing_behind() -> None:
    async with World() as world:
        await world.create("orders", partitions=5)
        await world.store(bytes(1_000))
        for turns in range(30):
            stream = world.subscribe()
            stream.send(add(*[feed(n, partition=n % 5) for n in range(20)], feed(99, "nothing")))
            for _ in range(turns):
                await asyncio.sleep(0)
            await stream.hang_up()
        await settle()
        assert world.memory.used_bytes == 0
        assert world.subscriptions.feeds.used_bytes == 0
        assert not any(partition._watchers for partition in world.partitions)
        assert [task.get_name() for task in asyncio.all_tasks() if "subscribe" in task.get_name()] == []


@virtual
async def test_how_many_partitions_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscribe, "PARTITIONS_MAX", 3)
    async with World() as world:
        await world.create("orders", partitions=5)
        stream = world.subscribe()
        stream.send(add(*[feed(n, partition=n) for n in range(4)]))
        assert isinstance(await stream.closed(), LimitExceededError)
        world.subscriptions.feeds.bytes_max = 2 * subscribe.FEED_BYTES
        stream = world.subscribe()
        stream.send(add(*[feed(n, partition=n) for n in range(3)]))
        assert isinstance(await stream.closed(), LogBusyError)
        assert world.subscriptions.feeds.used_bytes == 0


@virtual
async def test_a_feed_keeps_nothing_of_the_request() -> None:
    """Of a request with a name of megabytes, or with what newer clients say, all would stay in memory."""
    async with World() as world:
        topic_id = await world.create("orders")
        asked = broker_pb2.SubscribeFrom.FromString(
            feed(1, topic_id).SerializeToString() + b"\xfa\x7f\x80\x80\x04" + bytes(65_536)
        )
        stream = world.subscribe()
        stream.send(add(asked))
        await settle()
        [kept] = next(iter(world.subscriptions._streams))._feeds.values()
        assert not any(isinstance(getattr(kept, name), broker_pb2.SubscribeFrom) for name in kept.__slots__)


@virtual
async def test_stopping_ends_streams() -> None:
    async with World() as world:
        await world.create("orders")
        stream = world.subscribe()
        stream.send(add(feed(1)))
        await settle()
        world.subscriptions.stop()
        assert isinstance(await stream.closed(), UnavailableError)
        assert isinstance(await world.subscribe().closed(), UnavailableError)


@virtual
async def test_a_stream_that_breaks_while_it_is_sent_ends() -> None:
    async with World() as world:
        call = Call()
        call.is_gone = True
        stream = world.subscribe(call)
        await asyncio.wait([stream.task])
        assert stream.task.cancelled()
        over = Stream(world.subscriptions.serve, Call())
        over.send(grpc.aio.UsageError("RPC already finished."))
        assert await over.closed() is None
