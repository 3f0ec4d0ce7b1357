"""Fetch and ListOffsets: what is read, how much, how long is waited, and what reading may cost."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from quire.errors import (
    BatchTooLargeError,
    DamagedRangeError,
    InvalidArgumentError,
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
from quire_broker.service import answers
from tests.unit import records_crafting
from tests.unit.broker_services_harness import (
    MIB,
    NOW_MS,
    Call,
    World,
    altered,
    at,
    batch,
    batches,
    enter,
    entry,
    ref,
    refusal_in,
    settle,
    unread,
    values_of,
    virtual,
)

DECODED: Final = broker_pb2.RECORD_FORM_DECODED
RAW: Final = broker_pb2.RECORD_FORM_RAW


def now() -> float:
    return asyncio.get_running_loop().time()


# --- what is read ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [RAW, DECODED])
@virtual
async def test_what_is_stored_is_read(form: broker_pb2.RecordForm.ValueType) -> None:
    async with World() as world:
        topic_id = await world.create("orders")
        await world.store(b"a", b"b")
        await world.store(b"c")
        [fetched] = await world.fetch(at(), form=form)
        assert values_of(fetched) == [b"a", b"b", b"c"]
        assert (fetched.topic_id, fetched.partition, fetched.leader_epoch) == (topic_id, 0, 1)
        assert (fetched.next_offset, fetched.high_watermark, fetched.last_stable_offset) == (3, 3, 3)
        assert fetched.log_start_offset == 0
        [middle] = await world.fetch(at(offset=1), form=form)
        assert values_of(middle, offset=1) == [b"b", b"c"]


@virtual
async def test_at_the_end_and_past_it() -> None:
    async with World() as world:
        await world.create("orders")
        await world.store(b"a")
        [end] = await world.fetch(at(offset=1))
        assert not end.HasField("refusal")
        assert (end.next_offset, end.high_watermark) == (1, 1)
        for offset in (2, 2**63 - 1, -1, -(2**63)):
            [fetched] = await world.fetch(at(offset=offset))
            error = refusal_in(fetched)
            assert isinstance(error, OffsetOutOfRangeError)
            assert (error.details["start_offset"], error.details["end_offset"]) == ("0", "1")


@virtual
async def test_what_is_not_committed_is_awaited_not_read() -> None:
    async with World() as world:
        await world.create("orders", isr=(1, 2), min_isr=1)
        producing = asyncio.create_task(world.produce(entry("orders", batches(batch(b"a")))))
        await settle()
        [fetched] = await world.fetch(at())
        assert (values_of(fetched), fetched.high_watermark) == ([], 0)
        waiting = asyncio.create_task(world.fetch(at(), wait_ms_max=10_000))
        await settle()
        assert not waiting.done()
        await world.change_isr("orders", 1)
        assert values_of((await waiting)[0]) == [b"a"]
        await producing


@virtual
async def test_entries_with_news_are_all_that_is_answered() -> None:
    async with World() as world:
        await world.create("orders", partitions=3)
        await world.store(b"a", partition=1)
        everything = [at(partition=index) for index in range(3)]
        assert [each.partition for each in await world.fetch(*everything)] == [1]
        await world.fetch(*everything[:1])
        assert len(await world.fetch(*everything[:1], *everything[2:])) == 2, "all of them if none has any"
        refused = await world.fetch(*everything, at(partition=9))
        assert [each.partition for each in refused] == [1, 9]
        assert isinstance(refusal_in(refused[1]), UnknownPartitionError)


@virtual
async def test_who_leads() -> None:
    async with World() as world:
        await world.create("orders")
        await world.create("theirs", isr=(1, 2), leader=2)
        await world.elect("orders")
        expected: list[tuple[broker_pb2.FetchFrom, type[QuireError]]] = [
            (at("orders", leader_epoch=1), StaleEpochError),
            (at("orders", leader_epoch=3), NotLeaderError),
            (at("theirs"), NotLeaderError),
            (at("nothing"), UnknownTopicError),
            (at("../orders"), UnknownTopicError),
            (at(partition=-1), UnknownPartitionError),
        ]
        for asked, kind in expected:
            [fetched] = await world.fetch(asked, wait_ms_max=30_000)
            assert type(refusal_in(fetched)) is kind
        assert not (await world.fetch(at("orders", leader_epoch=2)))[0].HasField("refusal")
        world.may_lead = False
        [fetched] = await world.fetch(at("orders", leader_epoch=2))
        assert isinstance(refusal_in(fetched), NotLeaderError)


@virtual
async def test_retention_removes_what_is_read() -> None:
    async with World() as world:
        await world.create("orders", segment_bytes=16 * 1024, retention_segments=1)
        for _ in range(6):
            await world.store(bytes(10_000))
        await world.partitions.apply_retention()
        start = world.partition().start_offset
        assert start > 0
        [fetched] = await world.fetch(at())
        error = refusal_in(fetched)
        assert isinstance(error, OffsetOutOfRangeError)
        assert error.details["start_offset"] == str(start)
        [fetched] = await world.fetch(at(offset=start))
        assert fetched.next_offset == 6


@virtual
async def test_damage_is_told_and_passed_over() -> None:
    async with World() as world:
        await world.create("orders")
        for value in (b"a", b"b", b"c"):
            await world.store(value)
        # From now on what was just written is read from the file, too.
        await world.partition().writer.exclusively(lambda log: None)
        path = f"{world.partition().place.records}/{0:020}.log"
        world.disk.flip(path, len(batch(b"a")) + 65, 1)
        [fetched] = await world.fetch(at())
        assert values_of(fetched) == [b"a"]
        [fetched] = await world.fetch(at(offset=1))
        error = refusal_in(fetched)
        assert isinstance(error, DamagedRangeError)
        assert error.end_offset == 2
        [fetched] = await world.fetch(at(offset=error.end_offset))
        assert values_of(fetched) == [b"c"]


# --- how much -------------------------------------------------------------------------------------------------------


@virtual
async def test_no_more_than_asked_for_but_one_batch() -> None:
    async with World() as world:
        await world.create("orders", partitions=3)
        for index in range(3):
            for _ in range(4):
                await world.store(bytes(1_000), partition=index)
        size = len(batch(bytes(1_000)))
        everything = [at(partition=index) for index in range(3)]

        async def sizes(*asked: broker_pb2.FetchFrom, **fields: Any) -> list[int]:
            return [len(each.records.raw_batches) // size for each in await world.fetch(*asked, **fields)]

        assert await sizes(*everything) == [4, 4, 4]
        assert await sizes(*everything, bytes_max=1) == [1], "else it could never be read"
        assert await sizes(*everything, bytes_max=6 * size) == [4, 2]
        assert await sizes(*everything, bytes_max=6 * size + size // 2) == [4, 2], (
            "no half batch, and no larger answer"
        )
        limited = [at(partition=0, bytes_max=size), at(partition=1, bytes_max=3 * size)]
        assert await sizes(*limited) == [1, 3]
        assert await sizes(at(bytes_max=1)) == [1]


@virtual
async def test_a_large_read_crosses_segments() -> None:
    async with World() as world:
        await world.create("orders", segment_bytes=16 * 1024)
        for _ in range(20):
            await world.store(bytes(5_000))
        [fetched] = await world.fetch(at())
        assert fetched.next_offset == 20


@virtual
async def test_a_batch_that_inflates_is_not_inflated_beyond_a_limit() -> None:
    """A bomb of 40 KB would take 64 MiB of whoever decodes it."""
    async with World() as world:
        await world.create("orders")
        bomb = batch(bytes(20 * MIB), codec=Codec.ZSTD)
        assert len(bomb) < 50_000
        await world.produce(entry("orders", batches(batch(b"before"), bomb, batch(b"after"))))
        [fetched] = await world.fetch(at(), form=DECODED)
        assert values_of(fetched) == [b"before"]
        assert fetched.next_offset == 1
        [fetched] = await world.fetch(at(offset=1), form=DECODED)
        error = refusal_in(fetched)
        assert isinstance(error, BatchTooLargeError)
        assert (error.details["first_offset"], error.details["end_offset"]) == ("1", "2")
        [fetched] = await world.fetch(at(offset=2), form=DECODED)
        assert values_of(fetched) == [b"after"]
        [fetched] = await world.fetch(at(offset=1), form=RAW)
        assert fetched.next_offset == 3, "as a batch it is read"


@virtual
async def test_many_batches_that_inflate_are_read_one_by_one() -> None:
    async with World() as world:
        await world.create("orders")
        swollen = batch(bytes(5 * MIB), codec=Codec.ZSTD)
        await world.produce(entry("orders", batches(*[swollen] * 40)))
        offset = answers_taken = 0
        while offset < 40:
            [fetched] = await world.fetch(at(offset=offset), form=DECODED)
            assert fetched.ByteSize() < 6 * MIB
            assert fetched.next_offset > offset
            offset = fetched.next_offset
            answers_taken += 1
        assert answers_taken == 40


@virtual
async def test_what_does_not_decode_keeps_nothing_else_out() -> None:
    async with World() as world:
        await world.create("orders")
        poison = records_crafting.batch(b"\x99" * 30)
        await world.produce(entry("orders", batches(batch(b"a"), poison, batch(b"c"))))
        [fetched] = await world.fetch(at(), form=DECODED)
        assert (values_of(fetched), fetched.next_offset) == ([b"a"], 1)
        [fetched] = await world.fetch(at(offset=1), form=DECODED)
        error = refusal_in(fetched)
        assert isinstance(error, PoisonBatchError)
        assert not fetched.HasField("records")
        [fetched] = await world.fetch(at(offset=int(error.details["end_offset"])), form=DECODED)
        assert values_of(fetched) == [b"c"]


# --- how long -------------------------------------------------------------------------------------------------------


@virtual
async def test_a_wait_ends_with_the_first_record() -> None:
    async with World() as world:
        await world.create("orders", partitions=2)
        began = now()
        waiting = asyncio.create_task(world.fetch(at(), at(partition=1), wait_ms_max=30_000))
        await settle()
        assert not waiting.done()
        await world.store(b"a", partition=1)
        [fetched] = await waiting
        assert (fetched.partition, values_of(fetched)) == (1, [b"a"])
        assert now() - began < 1


@virtual
async def test_a_wait_ends_by_itself() -> None:
    async with World() as world:
        await world.create("orders")
        began = now()
        [fetched] = await world.fetch(at(), wait_ms_max=7_000)
        assert now() - began == pytest.approx(7, abs=0.1)
        assert (fetched.next_offset, fetched.HasField("refusal")) == (0, False)
        enter(deadline=now() + 2)
        began = now()
        await world.fetch(at(), wait_ms_max=7_000)
        assert now() - began == pytest.approx(2, abs=0.1), "the caller has less time than it asks for"


@virtual
async def test_as_many_bytes_as_are_asked_for() -> None:
    async with World() as world:
        await world.create("orders")
        waiting = asyncio.create_task(world.fetch(at(), wait_ms_max=30_000, bytes_min=2_500))
        for _ in range(2):
            await world.store(bytes(1_000))
            await asyncio.sleep(1)
            assert not waiting.done()
        await world.store(bytes(1_000))
        [fetched] = await waiting
        assert fetched.next_offset == 3
        began = now()
        [fetched] = await world.fetch(at(), wait_ms_max=3_000, bytes_min=2**31 - 1)
        assert fetched.next_offset == 3, "what there is, after that"
        assert now() - began == pytest.approx(3, abs=0.1)


@virtual
async def test_while_too_little_comes_it_is_not_read_again_for_each_record() -> None:
    """Or whoever asks for a lot would make each record as expensive as all that are waiting."""
    async with World() as world:
        await world.create("orders")
        reads = 0
        partition = world.partition()
        read = partition.read

        def counting(*args: Any, **kwargs: Any) -> Any:
            nonlocal reads
            reads += 1
            return read(*args, **kwargs)

        partition.read = counting  # type: ignore[method-assign]
        await world.store(bytes(1_000))
        waiting = asyncio.create_task(world.fetch(at(), wait_ms_max=30_000, bytes_min=MIB))
        for _ in range(500):
            await world.store(b"x")
            await asyncio.sleep(0)
        assert reads < 20
        await asyncio.sleep(31)
        assert (await waiting)[0].next_offset == 501


@pytest.mark.parametrize("how", ["another leader", "the lease", "deletion", "stopping"])
@virtual
async def test_a_wait_ends_with_the_leadership(how: str) -> None:
    async with World() as world:
        await world.create("orders", isr=(1, 2), min_isr=1)
        began = now()
        waiting = asyncio.create_task(world.fetch(at(), wait_ms_max=30_000))
        await settle()
        match how:
            case "another leader":
                await world.elect("orders", leader=2)
            case "the lease":
                world.may_lead = False
                world.partition().wake()
            case "deletion":
                await world.delete("orders")
            case "stopping":
                world.fetching.stop()
        [fetched] = await waiting
        assert now() - began < 1
        if how == "stopping":
            assert not fetched.HasField("refusal")
        else:
            assert isinstance(refusal_in(fetched), NotLeaderError)


@virtual
async def test_who_waits_holds_nothing_and_leaves_nothing() -> None:
    async with World(process_bytes_max=2 * MIB, connection_bytes_max=MIB) as world:
        await world.create("orders")
        waiting = [asyncio.create_task(world.fetch(at(), wait_ms_max=30_000, bytes_max=32 * MIB)) for _ in range(300)]
        await settle()
        assert world.memory.used_bytes == 0
        assert (await world.store(b"a")).base_offset == 0, "nobody is kept out"
        for each in await asyncio.gather(*waiting):
            assert values_of(each[0]) == [b"a"]
        gone = asyncio.create_task(world.fetch(at(offset=1), wait_ms_max=30_000))
        await settle()
        gone.cancel()
        await asyncio.wait([gone])
        assert not world.partition()._watchers


# --- what answers cost ----------------------------------------------------------------------------------------------


@virtual
async def test_answers_count_until_they_are_taken() -> None:
    async with World() as world:
        await world.create("orders")
        await world.store(bytes(100_000))
        request = broker_pb2.FetchRequest(partitions=[at()], form=RAW)
        task = asyncio.create_task(unread(world.fetching.fetch(request, Call())))
        await settle()
        assert world.memory.answers.used_bytes >= 200_000
        task.cancel()
        await settle()
        assert world.memory.used_bytes == 0


@virtual
async def test_answers_that_nobody_takes_are_hung_up_on() -> None:
    async with World() as world:
        await world.create("orders")
        await world.store(bytes(100_000))
        request = broker_pb2.FetchRequest(partitions=[at()], form=RAW)
        task = asyncio.create_task(unread(world.fetching.fetch(request, Call())))
        await asyncio.sleep(answers.STALL_S_MAX - 1)
        assert not task.done()
        await asyncio.sleep(2)
        assert task.cancelled()
        assert world.memory.used_bytes == 0


@virtual
async def test_a_reader_waits_for_room_and_the_slowest_makes_it() -> None:
    async with World(process_bytes_max=400_000) as world:
        await world.create("orders")
        await world.store(bytes(100_000))
        request = broker_pb2.FetchRequest(partitions=[at()], form=RAW)
        task = asyncio.create_task(unread(world.fetching.fetch(request, Call(peer="ipv4:10.0.0.2:1"))))
        await settle()
        with pytest.raises(LogBusyError) as found:
            await world.fetch(at())
        assert found.value.retry_after_ms is not None
        assert (await world.store(b"b")).base_offset == 1, "producers have room of their own"
        began = now()
        [fetched] = await world.fetch(at(), wait_ms_max=30_000)
        assert fetched.next_offset == 2
        assert now() - began <= answers.PATIENCE_S + 0.1
        assert task.cancelled()


# --- requests that make no sense ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"partitions": []},
        {"partitions": [at(partition=n) for n in range(1_001)]},
        {"partitions": [at(), at()]},
        {"partitions": [at(bytes_max=-1)]},
        {"wait_ms_max": -1},
        {"wait_ms_max": 30_001},
        {"bytes_min": -1},
        {"bytes_max": -1},
        {"bytes_max": 32 * MIB + 1},
        {"form": 9},
        {"isolation": 9},
    ],
)
@virtual
async def test_requests_that_make_no_sense(fields: dict[str, Any]) -> None:
    async with World() as world:
        await world.create("orders")
        with pytest.raises(InvalidArgumentError):
            await world.fetching.fetch(broker_pb2.FetchRequest(**{"partitions": [at()], **fields}), Call())


# --- offsets --------------------------------------------------------------------------------------------------------

EARLIEST: Final = broker_pb2.OFFSET_PLACE_EARLIEST
LATEST: Final = broker_pb2.OFFSET_PLACE_LATEST
TIMESTAMP: Final = broker_pb2.OFFSET_PLACE_TIMESTAMP


def query(place: broker_pb2.OffsetPlace.ValueType, topic: str = "orders", **fields: Any) -> broker_pb2.OffsetQuery:
    return broker_pb2.OffsetQuery(topic=ref(topic), place=place, **fields)


@virtual
async def test_offsets_are_found() -> None:
    async with World() as world:
        await world.create("orders", segment_bytes=16 * 1024, retention_segments=1)
        for number in range(6):
            data = batch(bytes(10_000), timestamp_ms=NOW_MS + 10 * number)
            await world.produce(entry("orders", batches(data)))
        await world.partitions.apply_retention()
        start = world.partition().start_offset
        found = await world.list_offsets(
            query(EARLIEST),
            query(LATEST),
            query(TIMESTAMP, timestamp_ms=NOW_MS + 41),
            query(TIMESTAMP, timestamp_ms=NOW_MS + 51),
            query(TIMESTAMP, timestamp_ms=0),
        )
        assert [each.offset for each in found] == [start, 6, 5, -1, start]
        assert [each.timestamp_ms for each in found[:4]] == [-1, -1, NOW_MS + 50, -1]
        assert all(each.leader_epoch == 1 for each in found)


@virtual
async def test_offsets_that_are_not_found() -> None:
    async with World() as world:
        await world.create("orders")
        await world.create("theirs", isr=(1, 2), leader=2)
        expected: list[tuple[broker_pb2.OffsetQuery, type[QuireError]]] = [
            (query(EARLIEST, "nothing"), UnknownTopicError),
            (query(LATEST, "theirs"), NotLeaderError),
            (query(LATEST, leader_epoch=9), NotLeaderError),
            (query(LATEST, partition=-1), UnknownPartitionError),
            (query(broker_pb2.OFFSET_PLACE_UNSPECIFIED), InvalidArgumentError),
            (query(TIMESTAMP, timestamp_ms=-1), InvalidArgumentError),
        ]
        found = await world.list_offsets(*[asked for asked, _ in expected])
        for each, (_, kind) in zip(found, expected, strict=True):
            assert type(refusal_in(each)) is kind
            assert each.offset == -1
        with pytest.raises(InvalidArgumentError):
            await world.list_offsets()
        with pytest.raises(InvalidArgumentError):
            await world.list_offsets(*[query(LATEST)] * 1_001)


@virtual
async def test_only_committed_records_have_a_time() -> None:
    async with World() as world:
        await world.create("orders", isr=(1, 2), min_isr=1)
        producing = asyncio.create_task(world.produce(entry("orders", batches(batch(b"a")))))
        await settle()
        [found] = await world.list_offsets(query(TIMESTAMP, timestamp_ms=0))
        assert found.offset == -1
        await world.change_isr("orders", 1)
        await producing


@virtual
async def test_lies_about_times_cost_one_batch() -> None:
    """A header may claim any time. A search that went on where it does not hold would decode the whole log."""
    async with World() as world:
        await world.create("orders")
        liar = altered(batch(b"x"), max_timestamp_ms=2**62)
        await world.produce(entry("orders", batches(*[liar] * 500)))
        [found] = await world.list_offsets(query(TIMESTAMP, timestamp_ms=2**61))
        assert (found.offset, found.timestamp_ms) == (0, 2**62)


@virtual
async def test_searches_end_with_the_callers_time() -> None:
    async with World() as world:
        await world.create("orders")
        await world.store(b"a")
        enter(deadline=now())
        [found] = await world.list_offsets(query(TIMESTAMP, timestamp_ms=0))
        assert isinstance(refusal_in(found), UnavailableError)
