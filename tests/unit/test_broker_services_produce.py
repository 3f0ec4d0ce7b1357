"""Produce: what is stored, what is refused, and what the answer says of it."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from quire.errors import (
    BatchTooLargeError,
    ChecksumMismatchError,
    DiskFullError,
    InvalidArgumentError,
    LogBusyError,
    LogOfflineError,
    MalformedBatchError,
    NotEnoughReplicasError,
    NotLeaderError,
    OutcomeUnknownError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    QuireError,
    StaleEpochError,
    UnavailableError,
    UnknownPartitionError,
    UnknownTopicError,
    UnsupportedBatchError,
)
from quire.records.header import Attributes
from quire.v1 import broker_pb2, durability_pb2, records_pb2, topics_pb2
from tests.unit.broker_services_harness import (
    MIB,
    NOW_MS,
    Call,
    World,
    altered,
    at,
    batch,
    batches,
    decoded,
    enter,
    entry,
    numbered,
    raw,
    received,
    ref,
    refusal_in,
    settle,
    unread,
    values_of,
    virtual,
)

NONE: Final = durability_pb2.ACKS_NONE
LEADER: Final = durability_pb2.ACKS_LEADER
ALL: Final = durability_pb2.ACKS_ALL
OS: Final = durability_pb2.FlushPolicy(mode=durability_pb2.FLUSH_MODE_OS)


def durability(replicas: int, *, fsynced: bool) -> durability_pb2.Durability:
    return durability_pb2.Durability(replicas=replicas, fsynced=fsynced)


async def refused(world: World, records: records_pb2.RecordSet | None, **fields: Any) -> QuireError:
    [stored] = await world.produce(entry("orders", records, **fields))
    assert (stored.base_offset, stored.end_offset) == (-1, -1)
    return refusal_in(stored)


# --- durability -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [durability_pb2.ACKS_UNSPECIFIED, LEADER, ALL])
@virtual
async def test_stored_and_synced(acks: durability_pb2.Acks.ValueType) -> None:
    async with World() as world:
        await world.create("orders")
        [stored] = await world.produce(entry("orders", raw(b"a", b"b")), acks=acks)
        assert (stored.base_offset, stored.end_offset, stored.duplicate, stored.leader_epoch) == (0, 2, False, 1)
        assert stored.durability == durability(1, fsynced=True)
        assert not stored.HasField("refusal")


@virtual
async def test_an_answer_waits_for_the_sync() -> None:
    async with World() as world:
        await world.create("orders")
        world.aside.hold()
        answer = asyncio.create_task(world.produce(entry("orders", raw(b"a")), acks=LEADER))
        await settle()
        assert not answer.done()
        [fetched] = await world.fetch(at())
        assert not fetched.HasField("records"), "what is not synced is not read"
        world.aside.let_go()
        [stored] = await answer
        assert stored.durability.fsynced


@virtual
async def test_without_syncs_the_answer_says_so() -> None:
    async with World() as world:
        await world.create("orders", flush=OS)
        [stored] = await world.produce(entry("orders", raw(b"a")))
        assert stored.durability == durability(1, fsynced=False)


@virtual
async def test_acks_none_says_nothing_and_stores() -> None:
    async with World() as world:
        await world.create("orders")
        world.aside.hold()
        [stored] = await world.produce(entry("orders", raw(b"a")), acks=NONE)
        assert (stored.base_offset, stored.end_offset) == (-1, -1)
        assert stored.durability == durability(0, fsynced=False)
        assert world.memory.requests.used_bytes > 0, "it is in memory until it is written"
        world.aside.let_go()
        await settle()
        [fetched] = await world.fetch(at())
        assert values_of(fetched) == [b"a"]


@virtual
async def test_acks_all_waits_for_the_high_watermark() -> None:
    async with World() as world:
        await world.create("orders", isr=(1, 2), min_isr=1)
        [led] = await world.produce(entry("orders", raw(b"a")), acks=LEADER)
        assert led.durability == durability(1, fsynced=True)
        answer = asyncio.create_task(world.produce(entry("orders", raw(b"b")), acks=ALL))
        await settle()
        assert not answer.done()
        await world.change_isr("orders", 1)
        [stored] = await answer
        assert (stored.base_offset, stored.durability) == (1, durability(1, fsynced=True))


@virtual
async def test_too_few_replicas_refuse_before_anything_is_written() -> None:
    async with World() as world:
        await world.create("orders", isr=(1,), replicas=(1, 2), min_isr=2)
        [stored] = await world.produce(entry("orders", raw(b"a")), acks=ALL)
        assert isinstance(refusal_in(stored), NotEnoughReplicasError)
        assert world.partition().writer.log.end_offset == 0
        [stored] = await world.produce(entry("orders", raw(b"a")), acks=LEADER)
        assert stored.base_offset == 0


# --- time, and leaderships that end ---------------------------------------------------------------------------------


@virtual
async def test_what_does_not_hold_in_time_is_unknown() -> None:
    async with World() as world:
        await world.create("slow", isr=(1, 2), min_isr=1)
        await world.create("quick")
        began = asyncio.get_running_loop().time()
        slow, quick = await world.produce(
            entry("slow", raw(b"a")), entry("quick", raw(b"b")), acks=ALL, wait_ms_max=5_000
        )
        assert isinstance(refusal_in(slow), OutcomeUnknownError)
        assert quick.base_offset == 0, "what is known is told"
        assert not quick.HasField("refusal")
        assert asyncio.get_running_loop().time() - began == pytest.approx(5, abs=0.2)


@virtual
async def test_the_answer_comes_before_the_caller_hangs_up() -> None:
    async with World() as world:
        await world.create("slow", isr=(1, 2), min_isr=1)
        enter(deadline=asyncio.get_running_loop().time() + 2)
        [slow] = await world.produce(entry("slow", raw(b"a")), acks=ALL, call=Call(remaining_s=2.2))
        assert isinstance(refusal_in(slow), OutcomeUnknownError)


@pytest.mark.parametrize("acks", [LEADER, ALL])
@virtual
async def test_a_leadership_that_ends_meanwhile_acknowledges_nothing(acks: durability_pb2.Acks.ValueType) -> None:
    async with World() as world:
        await world.create("orders", isr=(1, 2), min_isr=1)
        world.aside.hold()
        answer = asyncio.create_task(world.produce(entry("orders", raw(b"a")), acks=acks))
        await settle()
        world.elect_now("orders", leader=2)
        world.aside.let_go()
        [stored] = await answer
        assert isinstance(refusal_in(stored), OutcomeUnknownError)


@virtual
async def test_a_lease_that_ends_meanwhile_acknowledges_nothing() -> None:
    """As in a process that was stopped, and goes on when somebody else leads."""
    async with World() as world:
        await world.create("orders")
        world.aside.hold()
        answer = asyncio.create_task(world.produce(entry("orders", raw(b"a")), acks=LEADER))
        await settle()
        world.may_lead = False
        world.aside.let_go()
        [stored] = await answer
        assert isinstance(refusal_in(stored), OutcomeUnknownError)


@virtual
async def test_refused_batches_stay_refused_when_the_leadership_ends() -> None:
    async with World() as world:
        await world.create("orders")
        answer = asyncio.create_task(world.produce(entry("orders", records_pb2.RecordSet(raw_batches=b"x" * 99))))
        world.elect_now("orders", leader=2)
        [stored] = await answer
        assert isinstance(refusal_in(stored), MalformedBatchError)


@virtual
async def test_who_leads() -> None:
    async with World() as world:
        await world.create("orders", isr=(1, 2), min_isr=1)
        await world.create("theirs", isr=(1, 2), leader=2)
        assert isinstance(await refused(world, raw(b"a"), leader_epoch=2), NotLeaderError)
        assert await world.elect("orders", isr=(1,)) == 2
        stale = await refused(world, raw(b"a"), leader_epoch=1)
        assert isinstance(stale, StaleEpochError)
        assert stale.details["epoch"] == "2"
        [stored] = await world.produce(entry("orders", raw(b"a"), leader_epoch=2))
        assert stored.leader_epoch == 2
        [stored] = await world.produce(entry("theirs", raw(b"a")))
        assert isinstance(refusal_in(stored), NotLeaderError)
        world.may_lead = False
        assert isinstance(await refused(world, raw(b"a")), NotLeaderError)


@virtual
async def test_a_failed_log_says_so() -> None:
    async with World() as world:
        await world.create("orders")
        await world.store(b"a")
        world.disk.failing_syncs.add(f"{world.partition().place.records}/{0:020}.log")
        failed = await refused(world, raw(b"b"))
        assert isinstance(failed, OutcomeUnknownError | QuireError)
        assert failed.reason in ("SYNC_FAILED", "OUTCOME_UNKNOWN", "DISK_IO")
        assert isinstance(await refused(world, raw(b"c")), LogOfflineError)


# --- idempotence ----------------------------------------------------------------------------------------------------


@virtual
async def test_a_duplicate_is_answered_with_the_first_offset() -> None:
    async with World() as world:
        await world.create("orders")
        await world.store(b"before")
        for expected in (False, True, True):
            [stored] = await world.produce(entry("orders", batches(numbered(0, b"a", b"b"))))
            assert (stored.base_offset, stored.end_offset, stored.duplicate) == (1, 3, expected)
            assert stored.durability == durability(1, fsynced=True)
        assert world.partition().writer.log.end_offset == 3


@virtual
async def test_a_duplicate_waits_for_the_same_as_the_original() -> None:
    async with World() as world:
        await world.create("orders", isr=(1, 2), min_isr=1)
        original = asyncio.create_task(world.produce(entry("orders", batches(numbered(0, b"a")))))
        await settle()
        duplicate = asyncio.create_task(world.produce(entry("orders", batches(numbered(0, b"a")))))
        await settle()
        assert not original.done()
        assert not duplicate.done(), "the original is not committed"
        await world.change_isr("orders", 1)
        [[first], [second]] = await asyncio.gather(original, duplicate)
        assert (first.base_offset, first.duplicate) == (second.base_offset, not second.duplicate) == (0, False)


@virtual
async def test_a_duplicate_of_what_is_not_synced_waits_for_the_sync() -> None:
    async with World() as world:
        await world.create("orders")
        world.aside.hold()
        tasks = [
            asyncio.create_task(world.produce(entry("orders", batches(numbered(0, b"a"))), acks=LEADER))
            for _ in range(2)
        ]
        await settle()
        assert not any(task.done() for task in tasks)
        world.aside.let_go()
        answers = [(await task)[0] for task in tasks]
        assert [each.duplicate for each in answers] == [False, True]
        assert all(each.durability.fsynced for each in answers)


@virtual
async def test_gaps_and_old_epochs_are_refused() -> None:
    async with World() as world:
        await world.create("orders")
        gap = await refused(world, batches(numbered(1, b"b")))
        assert isinstance(gap, OutOfOrderSequenceError)
        assert gap.details["expected"] == "0"
        await world.produce(entry("orders", batches(numbered(0, b"a"))))
        assert isinstance(await refused(world, batches(numbered(2, b"c"))), OutOfOrderSequenceError)
        await world.produce(entry("orders", batches(numbered(0, b"a", epoch=1))))
        assert isinstance(await refused(world, batches(numbered(1, b"b", epoch=0))), ProducerFencedError)


# --- several batches ------------------------------------------------------------------------------------------------


@virtual
async def test_batches_of_an_entry_that_lie_together() -> None:
    async with World() as world:
        await world.create("orders")
        [stored] = await world.produce(entry("orders", batches(batch(b"a"), batch(b"b", b"c"))))
        assert (stored.base_offset, stored.end_offset) == (0, 3)
        assert not stored.batches


@virtual
async def test_batches_of_an_entry_that_do_not_fare_alike() -> None:
    async with World() as world:
        await world.create("orders")
        await world.produce(entry("orders", batches(numbered(0, b"a"))))
        damaged = bytearray(batch(b"x"))
        damaged[-1] ^= 1
        [stored] = await world.produce(
            entry("orders", batches(numbered(0, b"a"), bytes(damaged), numbered(1, b"b", b"c")))
        )
        assert isinstance(refusal_in(stored), ChecksumMismatchError)
        assert (stored.base_offset, stored.end_offset, stored.duplicate) == (0, 3, False)
        first, second, third = stored.batches
        assert (first.base_offset, first.duplicate) == (0, True)
        assert second.base_offset == -1
        assert isinstance(refusal_in(second), ChecksumMismatchError)
        assert (third.base_offset, third.duplicate) == (1, False)


@virtual
async def test_only_refused_batches_store_nothing() -> None:
    async with World() as world:
        await world.create("orders")
        [stored] = await world.produce(entry("orders", batches(numbered(5, b"a"), numbered(9, b"b"))))
        assert (stored.base_offset, stored.end_offset, stored.duplicate) == (-1, -1, False)
        assert stored.durability == durability(0, fsynced=False)
        assert len(stored.batches) == 2


@virtual
async def test_one_partitions_refusal_fails_no_other() -> None:
    async with World() as world:
        await world.create("orders", partitions=2)
        answers = await world.produce(
            entry("orders", raw(b"a"), partition=0),
            entry("nothing", raw(b"b")),
            entry("orders", raw(b"c"), partition=7),
            entry("orders", raw(b"d"), partition=1),
        )
        assert [each.base_offset for each in answers] == [0, -1, -1, 0]
        assert isinstance(refusal_in(answers[1]), UnknownTopicError)
        assert isinstance(refusal_in(answers[2]), UnknownPartitionError)


@virtual
async def test_several_entries_of_a_partition_keep_their_order() -> None:
    async with World() as world:
        await world.create("orders")
        answers = await world.produce(*[entry("orders", raw(b"%d" % number)) for number in range(120)])
        assert [each.base_offset for each in answers] == list(range(120))


# --- batches that are not what they say -----------------------------------------------------------------------------

GOOD: Final = batch(b"value")
TAMPERED: Final[dict[str, tuple[bytes, type[QuireError]]]] = {
    "nothing": (b"", MalformedBatchError),
    "one byte": (b"\0", MalformedBatchError),
    "half a header": (GOOD[:40], MalformedBatchError),
    "a header alone": (GOOD[:61], MalformedBatchError),
    "cut off": (GOOD[:-1], MalformedBatchError),
    "followed by more": (GOOD + b"\0", MalformedBatchError),
    "noise": (b"\xff" * 500, MalformedBatchError),
    "zeros": (bytes(500), MalformedBatchError),
    "negative length": (GOOD[:8] + b"\xff\xff\xff\xff" + GOOD[12:], MalformedBatchError),
    "enormous length": (GOOD[:8] + b"\x7f\xff\xff\xff" + GOOD[12:], BatchTooLargeError),
    "old magic": (GOOD[:16] + b"\x01" + GOOD[17:], MalformedBatchError),
    "wrong CRC": (GOOD[:-1] + bytes([GOOD[-1] ^ 1]), ChecksumMismatchError),
    "too many records": (altered(GOOD, record_count=1000, last_offset_delta=999), MalformedBatchError),
    "fewer records than offsets": (altered(GOOD, last_offset_delta=1), MalformedBatchError),
    "no records": (altered(GOOD, record_count=0, last_offset_delta=0), MalformedBatchError),
    "negative count": (altered(GOOD, record_count=-1, last_offset_delta=-2), MalformedBatchError),
    "count beyond all limits": (
        altered(batch(b"v", codec=4), record_count=2**31 - 1, last_offset_delta=2**31 - 2),
        BatchTooLargeError,
    ),
    "producer without epoch": (altered(GOOD, producer_id=3), MalformedBatchError),
    "producer without sequence": (altered(GOOD, producer_id=3, producer_epoch=0), MalformedBatchError),
    "transactional": (altered(GOOD, attributes=Attributes.TRANSACTIONAL), UnsupportedBatchError),
    "control": (altered(GOOD, attributes=Attributes.CONTROL), UnsupportedBatchError),
    "append time": (altered(GOOD, attributes=Attributes.LOG_APPEND_TIME), UnsupportedBatchError),
    "delete horizon": (altered(GOOD, attributes=Attributes.DELETE_HORIZON), UnsupportedBatchError),
    "lane": (altered(GOOD, attributes=1 << Attributes.LANE_SHIFT), UnsupportedBatchError),
    "reserved lane": (altered(GOOD, attributes=Attributes.LANE_MASK), UnsupportedBatchError),
    "delayed": (altered(GOOD, attributes=Attributes.DELAYED), UnsupportedBatchError),
    "TTL": (altered(GOOD, attributes=Attributes.HAS_TTL), UnsupportedBatchError),
    "traced": (altered(GOOD, attributes=Attributes.TRACED), UnsupportedBatchError),
    "reserved bits": (altered(GOOD, attributes=0x2000), UnsupportedBatchError),
    "the sign bit": (altered(GOOD, attributes=-0x8000), UnsupportedBatchError),
    "unknown codec": (altered(GOOD, attributes=5), UnsupportedBatchError),
}


@pytest.mark.parametrize("name", TAMPERED)
@virtual
async def test_what_no_honest_client_sends(name: str) -> None:
    data, kind = TAMPERED[name]
    async with World() as world:
        await world.create("orders")
        error = await refused(world, records_pb2.RecordSet(raw_batches=data))
        assert type(error) is kind, repr(error)
        assert world.partition().writer.log.end_offset == 0


@virtual
async def test_offsets_and_epochs_of_clients_mean_nothing() -> None:
    async with World() as world:
        await world.create("orders")
        made = altered(GOOD, base_offset=-7, leader_epoch=2**31 - 1)
        [stored] = await world.produce(entry("orders", batches(made)))
        assert stored.base_offset == 0


@virtual
async def test_times_of_clients_may_be_any() -> None:
    async with World() as world:
        await world.create("orders")
        for moment in (-(2**63), -1, 0, 2**63 - 1):
            made = altered(GOOD, base_timestamp_ms=moment, max_timestamp_ms=moment)
            [stored] = await world.produce(entry("orders", batches(made)))
            assert not stored.HasField("refusal")
        await world.partitions.apply_retention()


# --- records as messages --------------------------------------------------------------------------------------------

Record: Final = records_pb2.Record


@virtual
async def test_records_as_messages_come_back_as_they_were() -> None:
    sent = [
        Record(key=b"k", value=b"v", timestamp_ms=5, headers=[records_pb2.Header(key="h", value=b"x")]),
        Record(value=b""),
        Record(key=b"", headers=[records_pb2.Header(key="null")]),
        Record(lane=records_pb2.LANE_NORMAL, offset=99, timestamp_type=records_pb2.TIMESTAMP_TYPE_LOG_APPEND_TIME),
    ]
    async with World() as world:
        await world.create("orders")
        [stored] = await world.produce(entry("orders", decoded(*sent)))
        assert (stored.base_offset, stored.end_offset) == (0, 4)
        [fetched] = await world.fetch(at(), form=broker_pb2.RECORD_FORM_UNSPECIFIED)
        got = list(fetched.records.decoded.records)
        assert [(each.offset, each.timestamp_ms) for each in got] == [(0, 5), (1, NOW_MS), (2, NOW_MS), (3, NOW_MS)]
        for ours, theirs in zip(sent, got, strict=True):
            assert (ours.HasField("key"), ours.key) == (theirs.HasField("key"), theirs.key)
            assert (ours.HasField("value"), ours.value) == (theirs.HasField("value"), theirs.value)
            assert list(ours.headers) == list(theirs.headers)


@pytest.mark.parametrize(
    ("records", "kind"),
    [
        ([], InvalidArgumentError),
        ([Record(lane=records_pb2.LANE_HIGH)], UnsupportedBatchError),
        ([Record(lane=records_pb2.LANE_LOW)], UnsupportedBatchError),
        ([Record(headers=[records_pb2.Header(key="quire.deliver-at")])], InvalidArgumentError),
        ([Record(timestamp_ms=-1)], InvalidArgumentError),
        ([Record(value=bytes(2 * MIB))], BatchTooLargeError),
        ([Record(value=bytes(17 * MIB))], BatchTooLargeError),
        ([Record()] * 10_001, InvalidArgumentError),
    ],
)
@virtual
async def test_records_as_messages_that_are_refused(
    records: list[records_pb2.Record], kind: type[QuireError]
) -> None:
    async with World() as world:
        await world.create("orders")
        error = await refused(world, decoded(*records))
        assert type(error) is kind, repr(error)


@virtual
async def test_records_as_messages_are_counted_over_all_entries() -> None:
    async with World() as world:
        await world.create("orders", partitions=2)
        few, many = decoded(*[Record()] * 10), decoded(*[Record()] * 9_991)
        first, second = await world.produce(entry("orders", few), entry("orders", many, partition=1))
        assert first.end_offset == 10
        assert isinstance(refusal_in(second), InvalidArgumentError)


@virtual
async def test_batches_are_counted_over_all_entries() -> None:
    async with World() as world:
        await world.create("orders", partitions=2)
        many = batches(*[GOOD] * 3_999)
        first, second, third = await world.produce(
            entry("orders", many), entry("orders", raw(b"a"), partition=1), entry("orders", raw(b"b"), partition=1)
        )
        assert (first.base_offset, first.end_offset) == (0, 3_999)
        assert second.base_offset == 0
        assert isinstance(refusal_in(third), InvalidArgumentError)


# --- requests that are refused as a whole ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [{"partitions": []}, {"acks": 17}, {"acks": -1}, {"wait_ms_max": -1}, {"wait_ms_max": 300_001}],
)
@virtual
async def test_requests_that_make_no_sense(fields: dict[str, Any]) -> None:
    async with World() as world:
        await world.create("orders")
        request = broker_pb2.ProduceRequest(**{"partitions": [entry("orders", raw(b"a"))], **fields})
        with pytest.raises(InvalidArgumentError):
            await world.producing.produce(received(request), Call())
        request = broker_pb2.ProduceRequest(partitions=[entry("orders", raw(b"a"))] * 1_001)
        with pytest.raises(InvalidArgumentError):
            await world.producing.produce(received(request), Call())


@pytest.mark.parametrize(
    "topic",
    [
        topics_pb2.TopicRef(),
        *[ref(name) for name in ("", "../../x", "\0", "x" * 10_000, "оrders", "orders ", "ORDERS")],
        *[ref(topic_id) for topic_id in (b"", b"\0" * 16, b"x" * 10_000)],
    ],
)
@virtual
async def test_topics_that_are_not_there(topic: topics_pb2.TopicRef) -> None:
    async with World() as world:
        await world.create("orders")
        [stored] = await world.produce(broker_pb2.PartitionRecords(topic=topic, records=raw(b"a")))
        error = refusal_in(stored)
        assert isinstance(error, UnknownTopicError)
        assert len(error.message) < 300


@pytest.mark.parametrize("partition", [-1, -(2**31), 1, 2**31 - 1])
@virtual
async def test_partitions_that_are_not_there(partition: int) -> None:
    async with World() as world:
        await world.create("orders")
        assert isinstance(await refused(world, raw(b"a"), partition=partition), UnknownPartitionError)


@virtual
async def test_topics_of_others_are_not_there() -> None:
    async with World() as world:
        topic_id = await world.create("theirs", tenant="other")
        for topic in ("theirs", topic_id):
            [stored] = await world.produce(entry(topic, raw(b"a")))
            assert isinstance(refusal_in(stored), UnknownTopicError)


@virtual
async def test_topics_of_quire_are_not_written_to() -> None:
    async with World() as world:
        await world.create("__groups", internal=True)
        [stored] = await world.produce(entry("__groups", raw(b"a")))
        assert isinstance(refusal_in(stored), InvalidArgumentError)


@virtual
async def test_no_records_at_all() -> None:
    async with World() as world:
        await world.create("orders")
        assert isinstance(await refused(world, None), InvalidArgumentError)
        assert isinstance(await refused(world, records_pb2.RecordSet()), InvalidArgumentError)


# --- limits ---------------------------------------------------------------------------------------------------------


@virtual
async def test_the_disks_watermark() -> None:
    async with World() as world:
        await world.create("orders")
        await world.store(b"a")
        world.has_room = False
        with pytest.raises(DiskFullError) as found:
            await world.produce(entry("orders", raw(b"b")))
        assert found.value.retry_after_ms == 5_000
        [fetched] = await world.fetch(at())
        assert values_of(fetched) == [b"a"], "reads go on"
        world.has_room = True
        assert (await world.store(b"b")).base_offset == 1


@virtual
async def test_a_full_disk_is_an_answer_that_passes() -> None:
    async with World() as world:
        await world.create("orders")
        world.disk.capacity_bytes = world.disk.used_bytes() + 200
        [stored] = await world.produce(entry("orders", raw(bytes(500))))
        assert isinstance(refusal_in(stored), DiskFullError)
        world.disk.capacity_bytes = None
        assert (await world.store(b"a")).base_offset == 0


@virtual
async def test_more_than_a_partition_may_have_waiting() -> None:
    async with World(partition_bytes_max=1000) as world:
        await world.create("orders")
        world.aside.hold()
        first = asyncio.create_task(world.produce(entry("orders", raw(bytes(900)))))
        await settle()
        busy = await refused(world, raw(bytes(900)))
        assert isinstance(busy, LogBusyError)
        assert busy.retry_after_ms == 100
        world.aside.let_go()
        assert not (await first)[0].HasField("refusal")


@virtual
async def test_more_than_a_connection_or_the_process_may_have_in_memory() -> None:
    async with World(process_bytes_max=200_000, connection_bytes_max=60_000) as world:
        await world.create("orders")
        world.aside.hold()

        def producing(connection: int) -> asyncio.Task[list[broker_pb2.PartitionStored]]:
            call = Call(peer=f"ipv4:10.0.0.1:{connection}")
            return asyncio.create_task(world.produce(entry("orders", raw(bytes(40_000))), call=call))

        first = producing(1)
        await settle()
        busy = producing(1)
        with pytest.raises(LogBusyError) as found:
            await busy
        assert "this connection" in found.value.message
        assert found.value.retry_after_ms is not None
        second, third = producing(2), producing(3)
        await settle()
        with pytest.raises(LogBusyError) as found:
            await third
        assert "this broker" in found.value.message
        world.aside.let_go()
        for each in (first, second):
            assert not (await each)[0].HasField("refusal")


@virtual
async def test_one_request_always_finds_room() -> None:
    async with World(process_bytes_max=1_000, connection_bytes_max=1_000, partition_bytes_max=1_000) as world:
        await world.create("orders")
        assert (await world.store(bytes(100_000))).base_offset == 0


@virtual
async def test_callers_who_hang_up_free_nothing_that_is_still_in_memory() -> None:
    async with World() as world:
        await world.create("orders")
        world.aside.hold()
        for _ in range(5):
            call = asyncio.create_task(world.produce(entry("orders", raw(bytes(10_000)))))
            await settle()
            call.cancel()
            await asyncio.wait([call])
        assert world.memory.requests.used_bytes >= 50_000
        world.aside.let_go()
        await settle()
        assert world.memory.requests.used_bytes == 0
        assert (await world.store(b"a")).base_offset == 5, "to hang up takes nothing back"


@virtual
async def test_an_answer_counts_until_it_is_taken() -> None:
    async with World() as world:
        await world.create("orders")
        request = broker_pb2.ProduceRequest(partitions=[entry("nothing", raw(b"a"))] * 100)
        task = asyncio.create_task(unread(world.producing.produce(received(request), Call())))
        await settle()
        assert world.memory.requests.used_bytes >= 100 * 200
        task.cancel()
        await settle()
        assert world.memory.requests.used_bytes == 0


@virtual
async def test_nothing_is_taken_while_the_broker_stops() -> None:
    async with World() as world:
        await world.create("orders")
        world.aside.hold()
        before = asyncio.create_task(world.produce(entry("orders", raw(b"a"))))
        await settle()
        world.producing.stop()
        with pytest.raises(UnavailableError):
            await world.produce(entry("orders", raw(b"b")))
        world.aside.let_go()
        assert (await before)[0].base_offset == 0, "what was taken is answered"
