"""Brokers that are killed and come back: users see nothing of it but time."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from random import Random

import pytest

from quire import Admin, Consumer, Delivery, Message, Producer, TopicPartition, aio
from tests.integration.broker_cluster import BrokerProcess
from tests.integration.sdk_cluster import SdkCluster, eventually, sdk_cluster

KILLS = 20
"""SIGKILLs under load. Those that hit a broker while it starts come on top."""
PARTITIONS = 2


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SdkCluster]:
    yield from sdk_cluster(tmp_path_factory, brokers=2)


class Reader(threading.Thread):
    """Takes all that there is of a topic, from its beginning, until it is told to stop."""

    def __init__(self, consumer: Consumer) -> None:
        super().__init__(name="reader")
        self.consumer = consumer
        self.messages: list[Message] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.messages.extend(self.consumer)
        except BaseException as error:
            self.error = error


class Sender(threading.Thread):
    """Sends numbers to all partitions, a steady stream, until it is told to stop."""

    def __init__(self, producer: Producer, topic: str) -> None:
        super().__init__(name="sender")
        self.sent: dict[int, list[tuple[bytes, Delivery]]] = {partition: [] for partition in range(PARTITIONS)}
        self.stop = threading.Event()
        self._producer = producer
        self._topic = topic

    def run(self) -> None:
        for number in itertools.count():
            if self.stop.is_set():
                return
            for partition, records in self.sent.items():
                value = b"%08d" % number
                records.append((value, self._producer.send(self._topic, value, partition=partition)))
            if not number % 20:
                self.stop.wait(0.001)  # not as many as ever possible


def test_killed_brokers_lose_nothing_double_nothing_and_keep_the_order(cluster: SdkCluster) -> None:
    """At any moment: one or both, after any number of records, while they start, and just after a topic was made."""
    random = Random(4)  # the moments; what happens at them is another thing each time
    topic = cluster.topic(partitions=PARTITIONS)
    made: list[tuple[str, Delivery]] = []
    with Producer(cluster.addresses) as producer, Consumer(cluster.addresses, topic, start="earliest") as consumer:
        reader, sender = Reader(consumer), Sender(producer, topic)
        reader.start()
        sender.start()
        try:
            for kill in range(KILLS):
                _until(sender.sent, _settled(sender.sent) + random.randrange(1, 2_000))
                if kill % 4 == 1:
                    new = cluster.topic()
                    made.append((new, producer.send(new, b"first")))
                victims = random.choice([cluster.brokers[:1], cluster.brokers[1:], cluster.brokers])
                _kill(victims)
                if (
                    random.random() < 0.3
                ):  # anew, as soon as it has said some more lines of what it says when it starts
                    said, more = len(victims[0].events()), random.randrange(1, 6)
                    _start(victims)
                    eventually(lambda: len(victims[0].events()) >= said + more, "it does not start")  # noqa: B023  # called here
                    _kill(victims)
                _start(victims)
            _until(sender.sent, _settled(sender.sent) + 2_000)
        finally:
            sender.stop.set()
            sender.join()
        producer.flush(timeout_s=60)

        for partition, records in sender.sent.items():
            offsets = [delivery.result().offset for _, delivery in records]
            assert offsets == list(range(len(records))), f"partition {partition}: lost, doubled or out of order"
        total = sum(map(len, sender.sent.values()))
        eventually(lambda: len(reader.messages) >= total or reader.error is not None, "the reader misses messages")
        assert reader.error is None
        consumer.close()
        reader.join()
    for partition, records in sender.sent.items():
        read = [(message.offset, message.value) for message in reader.messages if message.partition == partition]
        assert read == list(enumerate(value for value, _ in records))
    assert len(made) == KILLS // 4
    with Consumer(cluster.addresses, *(name for name, _ in made), start="earliest") as consumer:
        first = _take(consumer, len(made))
        assert {(each.topic, each.offset, each.value) for each in first} == {(name, 0, b"first") for name, _ in made}
    assert [delivery.result().offset for _, delivery in made] == [0] * len(made)
    for broker in cluster.brokers:
        cluster.ready(broker)


def test_topic_survives_a_kill_while_it_is_made(cluster: SdkCluster) -> None:
    """Whoever makes it waits, and it is there once, with all that was stored in it."""
    for number in range(4):
        name = f"made-{number}"
        with Admin(cluster.addresses) as admin, Producer(cluster.addresses) as producer:
            making = threading.Thread(target=admin.create_topic, args=(name,), kwargs={"partitions": PARTITIONS})
            victims = cluster.brokers if number % 2 else cluster.brokers[:1]
            making.start()
            _kill(victims)
            _start(victims)
            making.join(60)
            assert [each.name for each in admin.list_topics()].count(name) == 1
            stored = [producer.send(name, b"v", partition=partition).result(60) for partition in range(PARTITIONS)]
            assert [each.offset for each in stored] == [0] * PARTITIONS
    for broker in cluster.brokers:
        cluster.ready(broker)


def _kill(brokers: list[BrokerProcess]) -> None:
    for broker in brokers:
        broker.kill()
    for broker in brokers:
        broker.ended()


def _start(brokers: list[BrokerProcess]) -> None:
    for broker in brokers:
        broker.start()


def _until(sent: dict[int, list[tuple[bytes, Delivery]]], count: int) -> None:
    eventually(lambda: _settled(sent) >= count, "nothing is acknowledged any more")


def _settled(sent: dict[int, list[tuple[bytes, Delivery]]]) -> int:
    """How many are settled for certain: of each partition, up to the first that is not."""
    count = 0
    for records in sent.values():
        low, high = 0, len(records)
        while low < high:
            middle = (low + high) // 2
            if records[middle][1].done():
                low = middle + 1
            else:
                high = middle
        count += low
    return count


def test_everything_waits_for_a_broker_that_is_not_there_yet(cluster: SdkCluster) -> None:
    topic = cluster.topic(partitions=PARTITIONS)
    with Producer(cluster.addresses) as first:
        for partition in range(PARTITIONS):
            first.send(topic, b"first", partition=partition).result(60)
    for broker in cluster.brokers:
        broker.die()
    outcomes: dict[str, object] = {}

    def produce() -> None:
        with Producer(cluster.addresses, connect_ms_max=60_000) as producer:
            outcomes["stored"] = producer.send(topic, b"v", partition=0).result(60)

    def look() -> None:
        with Admin(cluster.addresses, connect_ms_max=60_000, call_ms_max=60_000) as admin:
            outcomes["topics"] = [each.name for each in admin.list_topics()]

    def consume() -> None:
        with Consumer(cluster.addresses, topic, start="earliest", connect_ms_max=60_000) as consumer:
            outcomes["message"] = next(consumer).value

    threads = [threading.Thread(target=work) for work in (produce, look, consume)]
    for thread in threads:
        thread.start()
    for broker in cluster.brokers:
        broker.start()
    for thread in threads:
        thread.join(60)
    assert outcomes["message"] == b"first"
    assert topic in outcomes["topics"]  # type: ignore[operator]  # a list of names
    assert outcomes["stored"]
    for broker in cluster.brokers:
        cluster.ready(broker)


def test_seek_and_offsets_outlive_a_restart(cluster: SdkCluster) -> None:
    topic = cluster.topic()
    with Producer(cluster.addresses) as producer, Consumer(cluster.addresses, topic, start="earliest") as consumer:
        producer.send_many(topic, [b"%d" % number for number in range(100)]).result(60)
        assert len(consumer.poll(timeout_s=30, records_max=10)) == 10
        for broker in cluster.brokers:
            cluster.restart(broker)
        place = TopicPartition(topic, 0)
        assert consumer.position(place) == 10
        assert consumer.end_offsets() == {place: 100}
        consumer.seek(place, 50)
        assert next(consumer).value == b"50"


def test_broker_that_hangs_is_waited_for(cluster: SdkCluster) -> None:
    # Not long enough to lose its lease: it is the same leadership that goes on.
    topic = cluster.topic(partitions=PARTITIONS)
    with Producer(cluster.addresses) as producer, Consumer(cluster.addresses, topic, start="earliest") as consumer:
        for number in range(3):
            broker = cluster.brokers[number % len(cluster.brokers)]
            with cluster.paused(broker):
                deliveries = [producer.send(topic, b"%d" % each, partition=each % PARTITIONS) for each in range(10)]
            for delivery in deliveries:
                delivery.result(60)
        assert len({(message.partition, message.offset) for message in _take(consumer, 30)}) == 30


def _take(consumer: Consumer, count: int) -> list[Message]:
    messages: list[Message] = []
    while len(messages) < count:
        polled = consumer.poll(timeout_s=30)
        assert polled
        messages += polled
    assert len(messages) == count
    return messages


async def test_async_clients_outlive_a_restart(cluster: SdkCluster) -> None:
    topic = await asyncio.to_thread(cluster.topic, partitions=PARTITIONS)
    async with (
        aio.Producer(cluster.addresses) as producer,
        aio.Consumer(cluster.addresses, topic) as consumer,
        aio.Admin(cluster.addresses) as admin,
    ):
        for number, broker in enumerate(cluster.brokers):
            restarting = asyncio.create_task(asyncio.to_thread(cluster.restart, broker))
            deliveries = [
                await producer.send(topic, b"%d" % each, partition=each % PARTITIONS) for each in range(100)
            ]
            stored = [await delivery for delivery in deliveries]
            assert {each.offset for each in stored} == set(range(50 * number, 50 * (number + 1)))
            received = 0
            while received < 100:
                received += len(await consumer.poll(timeout_s=30))
            await restarting
            assert topic in [each.name for each in await admin.list_topics()]
