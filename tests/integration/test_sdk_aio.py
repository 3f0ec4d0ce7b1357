"""Every public method of `quire.aio`, against a real broker process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import quire
from quire import aio
from quire.errors import (
    BatchTooLargeError,
    BrokerNotEmptyError,
    InvalidArgumentError,
    LogBusyError,
    NoReassignmentInProgressError,
    OffsetOutOfRangeError,
    OutcomeUnknownError,
    TopicAlreadyExistsError,
    UnavailableError,
    UnknownPartitionError,
    UnknownTopicError,
)
from tests.integration.sdk_cluster import SdkCluster, sdk_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SdkCluster]:
    yield from sdk_cluster(tmp_path_factory)


async def make_topic(cluster: SdkCluster, **given: Any) -> str:
    return await asyncio.to_thread(cluster.topic, **given)


async def taken(consumer: aio.Consumer, count: int) -> list[aio.Message]:
    messages: list[aio.Message] = []
    while len(messages) < count:
        polled = await consumer.poll(timeout_s=30, records_max=count - len(messages))
        assert polled, f"only {len(messages)} of {count} messages"
        messages += polled
    return messages


def test_both_faces_have_the_same_names() -> None:
    assert aio.__all__ == quire.__all__
    assert set(quire.__all__) <= set(dir(quire))
    with pytest.raises(AttributeError, match="nothing"):
        _ = quire.nothing
    for name in ("Producer", "Consumer", "Admin", "Delivery", "Deliveries"):
        ours, theirs = getattr(quire, name), getattr(aio, name)
        public = {each for each in dir(ours) if not each.startswith("_")}
        assert public == {each for each in dir(theirs) if not each.startswith("_")}, name


# --- producer ------------------------------------------------------------------------------------------------------


async def test_delivery_is_awaited(cluster: SdkCluster) -> None:
    topic = await make_topic(cluster)
    called: list[aio.Delivery] = []
    async with aio.Producer(cluster.addresses) as producer:
        deliveries = [await producer.send(topic, b"%d" % number, timestamp_ms=number) for number in range(10)]
        deliveries[0].add_done_callback(called.append)
        assert [await delivery for delivery in deliveries] == [
            aio.Stored(topic, 0, offset, offset, False, aio.Durability(1, True)) for offset in range(10)
        ]
        assert await deliveries[3].result(timeout_s=5) == await deliveries[3]
        assert await deliveries[3].exception() is None
        assert deliveries[3].done()
        assert called == [deliveries[0]]
        many = await producer.send_many(topic, [b"a", b"b"], keys=[b"k", b"k"])
        (only,) = await many
        assert (only.offset, only.record_count, len(many), many.done()) == (10, 2, 2, True)
        assert await many.exception() is None
        assert "stored" in repr(deliveries[0])
    assert "closed" in repr(producer)


async def test_many_tasks_share_a_producer(cluster: SdkCluster) -> None:
    topic = await make_topic(cluster, partitions=3)
    async with aio.Producer(cluster.addresses) as producer:

        async def send(number: int) -> aio.Stored:
            return await (await producer.send(topic, b"%d" % number, key=b"%d" % number))

        stored = await asyncio.gather(*(send(number) for number in range(500)))
    assert len({(each.partition, each.offset) for each in stored}) == 500


async def test_loop_that_only_sends_is_delivered_meanwhile(cluster: SdkCluster) -> None:
    topic = await make_topic(cluster)
    async with aio.Producer(cluster.addresses, batch_bytes=1000) as producer:
        first = await producer.send(topic, bytes(100))
        for _ in range(300_000):  # less than fills the buffer, so that sending waits for nothing
            if first.done():
                break
            last = await producer.send(topic, bytes(100))
        assert first.done(), "nothing was sent while records were handed over"
        await producer.flush()
        assert last.done()


async def test_failures_of_sending(cluster: SdkCluster) -> None:
    topic = await make_topic(cluster)
    async with aio.Producer(cluster.addresses) as producer:
        with pytest.raises(UnknownTopicError, match="quire topic create nowhere"):
            await producer.send("nowhere", b"v")
        with pytest.raises(UnknownPartitionError):
            await producer.send(topic, b"v", partition=1)
        with pytest.raises(UnknownPartitionError):
            await producer.send_many(topic, [b"v"], partition=1)
        with pytest.raises(BatchTooLargeError):
            await producer.send(topic, bytes(1 << 21))
        with pytest.raises(InvalidArgumentError, match="encode"):
            await producer.send(topic, "text")  # type: ignore[arg-type]  # that is what is tested
        assert (await (await producer.send(topic, b"v"))).offset == 0
    with pytest.raises(UnavailableError, match="closed"):
        await producer.send(topic, b"v")
    with pytest.raises(UnavailableError, match="closed"):
        await producer.flush()


async def test_full_buffer_and_deadlines(cluster: SdkCluster) -> None:
    topic = await make_topic(cluster)
    producer = aio.Producer(cluster.addresses, buffer_bytes=20_000, buffer_wait_ms_max=200, delivery_ms_max=1_000)
    await (await producer.send(topic, b"before"))
    with cluster.paused():
        first = await producer.send(topic, bytes(1000))
        with pytest.raises(OutcomeUnknownError, match="still on their way"):
            await first.result(timeout_s=0.05)
        with pytest.raises(LogBusyError):
            await asyncio.gather(*(producer.send(topic, bytes(1000)) for _ in range(100)))
        with pytest.raises(LogBusyError):
            await producer.send_many(topic, [bytes(1000)] * 10)
        assert isinstance(await first.exception(), OutcomeUnknownError)
        with pytest.raises(OutcomeUnknownError):
            await producer.flush()
    await producer.flush()
    await producer.close()


async def test_waiting_that_is_cancelled_takes_no_room(cluster: SdkCluster) -> None:
    topic = await make_topic(cluster)
    async with aio.Producer(cluster.addresses, buffer_bytes=5_000) as producer:
        await (await producer.send(topic, b"before"))
        with cluster.paused():
            held = [await producer.send(topic, bytes(1000)) for _ in range(4)]
            waiting = asyncio.create_task(producer.send(topic, bytes(1000)))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        for delivery in held:
            await delivery
        await asyncio.gather(*[await producer.send(topic, bytes(1000)) for _ in range(10)])


# --- consumer ------------------------------------------------------------------------------------------------------


async def test_consumer(cluster: SdkCluster) -> None:
    topic = await make_topic(cluster, partitions=2)
    first, second = aio.TopicPartition(topic, 0), aio.TopicPartition(topic, 1)
    async with aio.Producer(cluster.addresses) as producer, aio.Consumer(cluster.addresses, topic) as consumer:
        assert consumer.assignment() == [first, second]
        for number in range(10):
            await producer.send(topic, b"%d" % number, partition=0, timestamp_ms=1000 * number)
        await producer.flush()
        seen = []
        async for message in consumer:
            seen.append(message.offset)
            if message.offset == 4:
                break
        assert seen == [0, 1, 2, 3, 4]
        assert consumer.position(first) == 5
        consumer.pause(first)
        assert await consumer.poll(timeout_s=0.05) == []
        consumer.resume()
        assert [message.offset for message in await taken(consumer, 5)] == [5, 6, 7, 8, 9]
        await consumer.seek(first, 2)
        assert (await anext(consumer)).offset == 2
        await consumer.seek_to_time(first, 7000)
        assert (await anext(consumer)).offset == 7
        await consumer.seek(first, "earliest")
        assert (await anext(consumer)).offset == 0
        assert await consumer.beginning_offsets() == {first: 0, second: 0}
        assert await consumer.end_offsets([first]) == {first: 10}
        assert await consumer.offsets_at(3500) == {first: 4, second: None}
        await consumer.assign([second], start="earliest")
        assert consumer.assignment() == [second]
        await producer.send(topic, b"x", partition=1)
        assert (await anext(consumer)).value == b"x"
    assert "closed" in repr(consumer)
    with pytest.raises(UnavailableError, match="closed"):
        await consumer.poll()
    assert [message async for message in consumer] == []


async def test_consumer_that_is_not_entered_begins_with_the_first_poll(cluster: SdkCluster) -> None:
    topic = await make_topic(cluster)
    consumer = aio.Consumer(cluster.addresses, topic, start="earliest")
    async with aio.Producer(cluster.addresses) as producer:
        await producer.send(topic, b"v")
    assert consumer.assignment() == []
    assert [message.value for message in await consumer.poll(timeout_s=30)] == [b"v"]
    reading = asyncio.create_task(_count(consumer))
    await asyncio.sleep(0)
    await consumer.close()
    assert await reading == 0
    await consumer.close()


async def _count(consumer: aio.Consumer) -> int:
    return len([message async for message in consumer])


async def test_failures_of_consuming(cluster: SdkCluster) -> None:
    topic = await make_topic(cluster)
    with pytest.raises(UnknownTopicError):
        async with aio.Consumer(cluster.addresses, "nowhere"):
            pass
    async with aio.Consumer(cluster.addresses) as consumer:
        with pytest.raises(InvalidArgumentError, match="nothing is assigned"):
            await consumer.poll()
        with pytest.raises(InvalidArgumentError):
            await consumer.seek((topic, 0), "middle")  # type: ignore[arg-type]  # that is what is tested
        await consumer.assign([(topic, 0)], start=7)
        with pytest.raises(OffsetOutOfRangeError):
            await consumer.poll(timeout_s=30)


# --- admin ---------------------------------------------------------------------------------------------------------


async def test_admin(cluster: SdkCluster) -> None:
    async with aio.Admin(cluster.addresses) as admin:
        topic_id = await admin.create_topic("aio-orders", partitions=2, config={"retention_ms": 1000})
        with pytest.raises(TopicAlreadyExistsError):
            await admin.create_topic("aio-orders")
        await admin.alter_topic("aio-orders", {"flush": "os"}, ["retention_ms"])
        await admin.add_partitions("aio-orders", 3)
        described = await admin.describe_topic("aio-orders")
        assert (described.topic_id, len(described.partitions), described.config) == (topic_id, 3, {"flush": "os"})
        assert "aio-orders" in [each.name for each in await admin.list_topics()]
        assert await admin.offsets("aio-orders") == {
            index: aio.PartitionOffsets(earliest=0, latest=0) for index in range(3)
        }
        assert (await admin.describe_cluster()).cluster_id == (await admin.describe_quorum()).cluster_id == "test"
        await admin.delete_topic("aio-orders")
        with pytest.raises(UnknownTopicError):
            await admin.describe_topic("aio-orders")
    with pytest.raises(UnavailableError, match="closed"):
        await admin.list_topics()
    assert "closed" in repr(admin)
    admin = aio.Admin(cluster.addresses)
    await admin.close()
    await admin.close()
    with pytest.raises(UnavailableError, match="closed"):
        await admin.list_topics()


async def test_moves_and_drains(cluster: SdkCluster) -> None:
    topic = await make_topic(cluster)
    async with aio.Admin(cluster.addresses) as admin:
        assert all(not followers for followers in (await admin.follower_lag(topic)).values())
        await admin.move_partition(topic, 0, [1])
        assert await admin.list_moves() == []
        with pytest.raises(NoReassignmentInProgressError):
            await admin.cancel_move(topic, 0)
        assert await admin.elect_preferred(topic) == 0
        await admin.drain_broker(1, leaderships_only=True)
        await admin.undrain(1)
        with pytest.raises(BrokerNotEmptyError):
            await admin.unregister_broker(1)


async def test_lag_can_be_asked_of_any_number_of_topics(cluster: SdkCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = await make_topic(cluster)
    monkeypatch.setattr("quire._client.cluster.TOPICS_MAX", 0)
    async with aio.Admin(cluster.addresses) as admin:
        partitions = (await admin.describe_topic(topic)).partitions
        assert await admin.follower_lag(topic) == {each.partition: () for each in partitions}


async def test_clients_that_nobody_closes_warn(cluster: SdkCluster) -> None:
    topic = await make_topic(cluster)
    producer, consumer, admin = (
        aio.Producer(cluster.addresses),
        aio.Consumer(cluster.addresses, topic),
        aio.Admin(cluster.addresses),
    )
    await producer.send(topic, b"v")
    await producer.flush()
    await consumer.poll(timeout_s=0)
    await admin.list_topics()
    for client in (producer, consumer, admin):
        with pytest.warns(ResourceWarning, match="unclosed"):
            client.__del__()
        await client.close()
