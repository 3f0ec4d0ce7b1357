"""Every public method of the synchronous producer, against a real broker process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from quire import Admin, Consumer, Delivery, Durability, Message, Producer, Stored, TopicPartition
from quire._client.loop_thread import LoopThread
from quire.errors import (
    BatchTooLargeError,
    InvalidArgumentError,
    LogBusyError,
    OutcomeUnknownError,
    QuireError,
    UnavailableError,
    UnknownPartitionError,
    UnknownTopicError,
)
from tests.integration.sdk_cluster import SdkCluster, eventually, sdk_cluster

murmur2_keys = [b"customer-%d" % number for number in range(50)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SdkCluster]:
    yield from sdk_cluster(tmp_path_factory)


@pytest.fixture
def producer(cluster: SdkCluster) -> Iterator[Producer]:
    with Producer(cluster.addresses) as made:
        yield made


def read(cluster: SdkCluster, topic: str, count: int) -> list[Message]:
    """All of a topic, which is to hold so many messages."""
    with Consumer(cluster.addresses, topic, start="earliest") as consumer:
        messages: list[Message] = []
        while len(messages) < count:
            taken = consumer.poll(timeout_s=30)
            assert taken, f"only {len(messages)} of {count} messages"
            messages += taken
        assert sum(consumer.end_offsets().values()) == count
        return messages


# --- one record ----------------------------------------------------------------------------------------------------


def test_delivery_tells_where_a_record_is_and_how_safe(cluster: SdkCluster, producer: Producer) -> None:
    topic = cluster.topic()
    deliveries = [producer.send(topic, b"%d" % number, timestamp_ms=1000 + number) for number in range(10)]
    stored = [delivery.result(timeout_s=30) for delivery in deliveries]
    assert stored == [
        Stored(topic, 0, offset, 1000 + offset, False, Durability(replicas=1, fsynced=True)) for offset in range(10)
    ]
    assert all(delivery.done() and delivery.exception() is None for delivery in deliveries)
    assert "stored" in repr(deliveries[0])


def test_all_of_a_record_arrives(cluster: SdkCluster, producer: Producer) -> None:
    topic = cluster.topic()
    producer.send(topic, b"v", key=b"k", headers={"a": b"1", "none": None}, timestamp_ms=7)
    producer.send(topic, None, key=b"", headers=[("a", b"1"), ("a", b"")])
    producer.send(topic, b"")
    producer.flush()
    first, second, third = read(cluster, topic, 3)
    assert first == Message(topic, 0, 0, 7, b"k", b"v", (("a", b"1"), ("none", None)), first.leader_epoch)
    assert (second.key, second.value, second.headers) == (b"", None, (("a", b"1"), ("a", b"")))
    assert (third.key, third.value, third.headers) == (None, b"", ())
    assert abs(third.timestamp_ms - second.timestamp_ms) < 60_000


@pytest.mark.parametrize("acks", ["all", "leader", "none"])
def test_acks(cluster: SdkCluster, acks: Any) -> None:
    topic = cluster.topic()
    with Producer(cluster.addresses, acks=acks) as producer:
        stored = producer.send(topic, b"v").result(30)
    if acks == "none":
        assert (stored.offset, stored.durability) == (-1, Durability(0, False))
    else:
        assert (stored.offset, stored.durability) == (0, Durability(1, True))
    assert [message.value for message in read(cluster, topic, 1)] == [b"v"]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compression(cluster: SdkCluster, compression: Any) -> None:
    topic = cluster.topic()
    values = [b"the same again " * 20 + b"%d" % number for number in range(200)]
    with Producer(cluster.addresses, compression=compression, client_id="tests") as producer:
        for value in values:
            producer.send(topic, value)
    assert [message.value for message in read(cluster, topic, 200)] == values


def test_without_idempotence(cluster: SdkCluster) -> None:
    topic = cluster.topic()
    with Producer(cluster.addresses, idempotent=False, linger_ms=1) as producer:
        for number in range(1000):
            producer.send(topic, b"%d" % number)
    assert [message.value for message in read(cluster, topic, 1000)] == [b"%d" % number for number in range(1000)]


def test_callbacks_are_called_once_whenever_they_are_added(cluster: SdkCluster, producer: Producer) -> None:
    topic = cluster.topic()
    called: list[Delivery] = []
    delivery = producer.send(topic, b"v")
    delivery.add_done_callback(called.append)
    delivery.result(30)
    delivery.add_done_callback(called.append)
    eventually(lambda: called == [delivery, delivery], "the callbacks were not called")


def test_callback_that_fails_harms_nobody(
    cluster: SdkCluster, producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    topic = cluster.topic()
    producer.send(topic, b"v").add_done_callback(lambda delivery: 1 / 0)
    producer.flush()
    assert producer.send(topic, b"w").result(30).offset == 1
    assert "ZeroDivisionError" in caplog.text


def test_callback_cannot_wait_for_what_comes_after_it(cluster: SdkCluster, producer: Producer) -> None:
    topic = cluster.topic()
    told: list[QuireError] = []

    def wait(_: Delivery) -> None:
        for call in (producer.send(topic, b"w").result, producer.flush, producer.close):
            try:
                call()
            except QuireError as error:
                told.append(error)

    producer.send(topic, b"v").add_done_callback(wait)
    eventually(lambda: len(told) == 3, "the callback was not called")
    assert {type(error) for error in told} == {InvalidArgumentError}


# --- many ----------------------------------------------------------------------------------------------------------


def test_many_records_at_once(cluster: SdkCluster, producer: Producer) -> None:
    topic = cluster.topic(partitions=3)
    values = [b"%d" % number for number in range(50_000)]
    deliveries = producer.send_many(topic, values, timestamp_ms=5)
    ranges = deliveries.result(30)
    assert deliveries.done()
    assert deliveries.exception() is None
    assert len(deliveries) == sum(each.record_count for each in ranges) == 50_000
    assert {each.timestamp_ms for each in ranges} == {5}
    messages = read(cluster, topic, 50_000)
    assert sorted(message.value or b"" for message in messages) == sorted(values)


def test_many_records_with_keys_keep_their_order(cluster: SdkCluster, producer: Producer) -> None:
    topic = cluster.topic(partitions=3)
    keys = [b"%d" % (number % 10) for number in range(1000)]
    values = [b"%06d" % number for number in range(1000)]
    producer.send_many(topic, values, keys=keys).result(30)
    by_key: dict[bytes | None, list[bytes | None]] = {}
    partitions: dict[bytes | None, set[int]] = {}
    for message in read(cluster, topic, 1000):
        by_key.setdefault(message.key, []).append(message.value)
        partitions.setdefault(message.key, set()).add(message.partition)
    assert by_key == {b"%d" % key: values[key::10] for key in range(10)}
    assert all(len(where) == 1 for where in partitions.values())


def test_many_records_to_one_partition(cluster: SdkCluster, producer: Producer) -> None:
    topic = cluster.topic(partitions=3)
    (only,) = producer.send_many(topic, [b"a", None, b"c"], partition=2).result(30)
    assert (only.partition, only.offset, only.record_count) == (2, 0, 3)
    with pytest.raises(UnknownPartitionError):
        producer.send_many(topic, [b"a"], partition=3)
    assert producer.send(topic, b"d", partition=2).result(30).offset == 3


# --- partitions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partitioner", ["murmur3", "murmur2"])
def test_topic_decides_where_keys_go(cluster: SdkCluster, producer: Producer, partitioner: str) -> None:
    import mmh3
    from murmurhash2 import murmurhash2

    topic = cluster.topic(partitions=7, partitioner=partitioner)
    for key in murmur2_keys:
        hashed = mmh3.hash(key, 0, False) if partitioner == "murmur3" else murmurhash2(key, 0x9747B28C) & 0x7FFFFFFF
        assert producer.send(topic, b"v", key=key).result(30).partition == hashed % 7


def test_records_without_keys_reach_all_partitions(cluster: SdkCluster, producer: Producer) -> None:
    topic = cluster.topic(partitions=3)
    deliveries = [producer.send(topic, bytes(1000)) for _ in range(1500)]
    assert {delivery.result(30).partition for delivery in deliveries} == {0, 1, 2}


def test_other_partitioners(cluster: SdkCluster) -> None:
    topic = cluster.topic(partitions=3)
    with Producer(cluster.addresses, partitioner="round-robin") as producer:
        partitions = [producer.send(topic, b"v", key=b"same").result(30).partition for _ in range(6)]
        assert partitions[:3] == partitions[3:]
        assert sorted(partitions[:3]) == [0, 1, 2]
    with Producer(cluster.addresses, partitioner=lambda key, count: len(key or b"") % count) as producer:
        assert [producer.send(topic, b"", key=key).result(30).partition for key in (None, b"k", b"kk")] == [0, 1, 2]
        assert producer.send(topic, b"", key=b"k", partition=2).result(30).partition == 2
        assert {each.partition for each in producer.send_many(topic, [b""] * 3, keys=[b"k"] * 3).result(30)} == {1}
    with Producer(cluster.addresses, partitioner="sticky") as producer:
        sent = [producer.send(topic, b"", key=b"%d" % number).result(30).partition for number in range(10)]
        assert len(set(sent)) == 1


def test_partitions_that_are_added_are_used(cluster: SdkCluster, producer: Producer) -> None:
    topic = cluster.topic()
    assert producer.send(topic, b"v").result(30).partition == 0
    with pytest.raises(UnknownPartitionError, match="it has 1"):
        producer.send(topic, b"v", partition=1)
    with Admin(cluster.addresses) as admin:
        admin.add_partitions(topic, 2)

    def is_there() -> bool:
        try:
            return producer.send(topic, b"v", partition=1).result(30).partition == 1
        except UnknownPartitionError:
            return False

    eventually(is_there, "the producer did not hear of the new partition")


# --- flush, close, and what is not looked at -----------------------------------------------------------------------


def test_flush_does_not_linger(cluster: SdkCluster) -> None:
    topic = cluster.topic()
    with Producer(cluster.addresses, linger_ms=60_000) as producer:
        delivery = producer.send(topic, b"v")
        with pytest.raises(OutcomeUnknownError, match="still on their way"):
            delivery.result(timeout_s=0.01)
        producer.flush()
        assert delivery.done()
        last = producer.send(topic, b"w")
    assert last.result().offset == 1, "to close is to flush"


def test_failure_that_nobody_looks_at_is_raised_by_flush_and_close(cluster: SdkCluster) -> None:
    topic = cluster.topic(message_bytes_max=2048)
    too_large = os.urandom(10_000)
    producer = Producer(cluster.addresses, compression="zstd")
    producer.send(topic, too_large)
    with pytest.raises(BatchTooLargeError):
        producer.flush()
    producer.flush()
    looked_at = producer.send(topic, too_large)
    assert isinstance(looked_at.exception(30), BatchTooLargeError)
    producer.flush()
    producer.send(topic, too_large)
    with pytest.raises(BatchTooLargeError):
        producer.close()
    producer.close()


def test_with_block_tells_its_own_error_first(cluster: SdkCluster) -> None:
    topic = cluster.topic(message_bytes_max=2048)
    with pytest.raises(KeyError), Producer(cluster.addresses, compression="zstd") as producer:  # noqa: PT012 -- the exit, too
        producer.send(topic, os.urandom(10_000))
        _fail()


def _fail() -> None:
    raise KeyError


def test_refused_batch_does_not_hold_up_those_behind_it(cluster: SdkCluster) -> None:
    topic = cluster.topic(message_bytes_max=2048)
    with Producer(cluster.addresses, compression="zstd", batch_bytes=1000) as producer:
        deliveries = []
        for number in range(100):
            value = os.urandom(10_000) if number % 10 == 3 else b"%04d" % number
            deliveries.append(producer.send(topic, value))
        failed = [number for number, delivery in enumerate(deliveries) if delivery.exception(30) is not None]
    assert failed == list(range(3, 100, 10))
    values = [message.value for message in read(cluster, topic, 90)]
    assert values == [b"%04d" % number for number in range(100) if number % 10 != 3]


def test_record_that_no_batch_can_hold_is_refused_at_once(cluster: SdkCluster, producer: Producer) -> None:
    topic = cluster.topic(message_bytes_max=2048)
    with pytest.raises(BatchTooLargeError, match="message_bytes_max"):
        producer.send(topic, bytes(3000))
    with pytest.raises(BatchTooLargeError):
        producer.send_many(topic, [b"", bytes(3000)])
    assert producer.send(topic, bytes(1500)).result(30).offset == 0


def test_closed_producer_says_so(cluster: SdkCluster) -> None:
    producer = Producer(cluster.addresses)
    producer.send(cluster.topic(), b"v")
    producer.close()
    for call in (lambda: producer.send("x", b""), producer.flush, lambda: producer.send_many("x", [b""])):
        with pytest.raises(UnavailableError, match="closed"):
            call()
    assert "closed" in repr(producer)


def test_last_client_to_close_ends_the_thread(cluster: SdkCluster) -> None:
    with Producer(cluster.addresses) as producer:
        producer.send(cluster.topic(), b"v")
        assert any(thread.name == "quire-client" for thread in threading.enumerate())
    assert LoopThread._shared is None
    assert not any(thread.name == "quire-client" for thread in threading.enumerate())


def test_producer_that_nobody_closes_warns_and_delivers(cluster: SdkCluster) -> None:
    topic = cluster.topic()
    producer = Producer(cluster.addresses)
    producer.send(topic, b"v").result(30)
    with pytest.warns(ResourceWarning, match="unclosed"):
        del producer


def test_program_that_ends_without_closing_loses_nothing(cluster: SdkCluster) -> None:
    topic = cluster.topic()
    script = (
        "import sys, quire; p = quire.Producer(sys.argv[1])\nfor n in range(1000): p.send(sys.argv[2], b'%d' % n)"
    )
    subprocess.run([sys.executable, "-c", script, cluster.addresses[0], topic], check=True, timeout=60)
    assert len(read(cluster, topic, 1000)) == 1000


def test_clients_of_one_loop_after_another_leave_no_trace(cluster: SdkCluster) -> None:
    # gRPC keeps one thread for all event loops of a process, and complains of what outlives its loop to the next one.
    topic = cluster.topic()
    script = """
import asyncio, sys
from quire import Admin, Consumer, Producer, aio
async def use(address, topic):
    async with aio.Producer(address) as producer, aio.Consumer(address, topic) as consumer:
        await (await producer.send(topic, b""))
        await anext(consumer)
for _ in range(10):
    with Producer(sys.argv[1]) as producer, Consumer(*sys.argv[1:]) as consumer, Admin(sys.argv[1]) as admin:
        producer.send(sys.argv[2], b"").result()
        next(consumer)
        admin.list_topics()
    asyncio.run(use(*sys.argv[1:]))
"""
    command = [sys.executable, "-W", "error", "-c", script, cluster.addresses[0], topic]
    ran = subprocess.run(command, check=True, timeout=120, capture_output=True)
    assert ran.stderr == b""


def test_threads_share_a_producer(cluster: SdkCluster, producer: Producer) -> None:
    topic = cluster.topic()

    def work(name: int) -> None:
        for number in range(2000):
            producer.send(topic, b"%d %d" % (name, number))

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    producer.flush()
    seen: dict[bytes, list[int]] = {}
    for message in read(cluster, topic, 8000):
        name, number = (message.value or b"").split()
        seen.setdefault(name, []).append(int(number))
    assert seen == {b"%d" % name: list(range(2000)) for name in range(4)}


# --- topics that are not there -------------------------------------------------------------------------------------


def test_unknown_topic(producer: Producer) -> None:
    with pytest.raises(UnknownTopicError, match="quire topic create nowhere"):
        producer.send("nowhere", b"v")
    with pytest.raises(UnknownTopicError):
        producer.send_many("nowhere", [b"v"])


def test_topic_made_a_moment_ago_is_found(cluster: SdkCluster, producer: Producer) -> None:
    producer.send(cluster.topic(), b"v").result(30)
    timer = threading.Timer(0.3, lambda: _create(cluster, "made-late"))
    timer.start()
    assert producer.send("made-late", b"v").result(30).offset == 0
    timer.join()


def _create(cluster: SdkCluster, name: str) -> None:
    with Admin(cluster.addresses) as admin:
        admin.create_topic(name)


def test_topic_that_is_deleted_and_made_anew(cluster: SdkCluster, producer: Producer) -> None:
    topic = cluster.topic()
    assert producer.send(topic, b"old").result(30).offset == 0
    with Admin(cluster.addresses) as admin:
        admin.delete_topic(topic)

        def is_unknown() -> bool:
            try:
                return isinstance(producer.send(topic, b"lost").exception(30), UnknownTopicError)
            except UnknownTopicError:
                return True

        eventually(is_unknown, "the producer did not hear of it")
        admin.create_topic(topic)
    assert producer.send(topic, b"new").result(30).offset == 0
    assert [message.value for message in read(cluster, topic, 1)] == [b"new"]


# --- a broker that does nothing, and one that is not there ---------------------------------------------------------


def test_full_buffer_holds_senders_up_and_then_refuses(cluster: SdkCluster) -> None:
    topic = cluster.topic()
    with Producer(cluster.addresses, buffer_bytes=50_000, buffer_wait_ms_max=300) as producer:
        deliveries = [producer.send(topic, b"first")]
        deliveries[0].result(30)
        with cluster.paused():
            with pytest.raises(LogBusyError, match="buffer_bytes"):
                deliveries.extend(producer.send(topic, bytes(1000)) for _ in range(1000))
            with pytest.raises(LogBusyError):
                producer.send_many(topic, [bytes(1000)] * 10)
            with pytest.raises(InvalidArgumentError, match="fewer at once"):
                producer.send_many(topic, [bytes(1000)] * 100)
            assert len(deliveries) > 40
        waiting = threading.Timer(0, lambda: deliveries.append(producer.send(topic, bytes(1000))))
        waiting.start()
        waiting.join()
        assert [delivery.result(30).offset for delivery in deliveries] == list(range(len(deliveries)))


def test_record_that_nobody_answers_for_is_unknown(cluster: SdkCluster) -> None:
    topic = cluster.topic()
    with Producer(cluster.addresses, delivery_ms_max=1000) as producer:
        producer.send(topic, b"before").result(30)
        with cluster.paused():
            lost = producer.send(topic, b"during")
            error = lost.exception(30)
            assert isinstance(error, OutcomeUnknownError)
            assert "Look before you send" in error.message
            assert error.details["topic"] == topic
        # It goes on, in order, and under an epoch that shuts out what may still be on its way.
        eventually(lambda: producer.send(topic, b"after").exception(30) is None, "nothing is delivered any more")
    values = [message.value for message in all_of(cluster, topic)]
    assert values[0] == b"before"
    assert values.count(b"during") <= 1
    assert values[-1] == b"after"
    assert b"during" not in values or values.index(b"during") == 1


def all_of(cluster: SdkCluster, topic: str) -> list[Message]:
    with Consumer(cluster.addresses, topic, start="earliest") as consumer:
        ends = consumer.end_offsets()
        messages: list[Message] = []
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            messages += consumer.poll(timeout_s=30)
        return messages


def test_no_broker_says_how_to_start_one() -> None:
    with Producer("127.0.0.1:1", connect_ms_max=200) as producer, pytest.raises(UnavailableError, match="quire up"):
        producer.send("orders", b"v")


def test_closing_in_a_hurry_leaves_no_record_without_an_outcome(cluster: SdkCluster) -> None:
    topic = cluster.topic()
    producer = Producer(cluster.addresses)
    producer.send(topic, b"v").result(30)
    with cluster.paused():
        delivery = producer.send(topic, b"w")
        with pytest.raises(OutcomeUnknownError):
            producer.close(timeout_s=0.2)
        assert isinstance(delivery.exception(), OutcomeUnknownError)


@pytest.mark.parametrize(
    "given",
    [
        {"acks": "some"},
        {"compression": "rar"},
        {"linger_ms": -1},
        {"batch_bytes": 0},
        {"buffer_bytes": "1"},
        {"delivery_ms_max": 1},
        {"partitioner": "mine"},
        {"client_id": "x" * 200},
        {"client_id": "\n"},
        {"tls_ca": "/nowhere/ca.pem"},
    ],
)
def test_arguments_that_make_no_sense(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        Producer("localhost:7400", **given)
    assert LoopThread._shared is None


def test_topic_partition_reads_well() -> None:
    assert str(TopicPartition("orders", 2)) == "'orders', partition 2"
