"""Errors that take a hand to provoke: damaged disks, batches written wrong, a producer id that somebody else took."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import grpc.aio
import pytest

from quire import Consumer, Producer
from quire.errors import DamagedRangeError, PoisonBatchError, ProducerFencedError
from quire.records import HEADER_BYTES, encode_columns, pack_batch, parse_batch
from quire.v1 import broker_pb2, broker_pb2_grpc, durability_pb2, records_pb2, topics_pb2
from tests.integration.sdk_cluster import SdkCluster, eventually, sdk_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SdkCluster]:
    yield from sdk_cluster(tmp_path_factory)


def store(cluster: SdkCluster, topic: str, batch: bytes) -> int:
    """As a client of somebody else's might do it; the first offset."""

    async def produce() -> int:
        async with grpc.aio.insecure_channel(cluster.addresses[0]) as channel:
            answer = await broker_pb2_grpc.BrokerServiceStub(channel).Produce(
                broker_pb2.ProduceRequest(
                    acks=durability_pb2.ACKS_ALL,
                    partitions=[
                        broker_pb2.PartitionRecords(
                            topic=topics_pb2.TopicRef(name=topic),
                            records=records_pb2.RecordSet(raw_batches=batch),
                        )
                    ],
                ),
                timeout=30,
            )
            assert not answer.partitions[0].HasField("refusal"), answer
            return answer.partitions[0].base_offset

    return asyncio.run(produce())


def test_batch_that_does_not_decode(cluster: SdkCluster) -> None:
    topic = cluster.topic()
    good = encode_columns([b"good"], timestamp_ms=1)
    wrong = pack_batch(parse_batch(good), b"\xff" * (len(good) - HEADER_BYTES))
    with Producer(cluster.addresses) as producer:
        producer.send(topic, b"good").result(30)
    assert [store(cluster, topic, batch) for batch in (wrong, good)] == [1, 2]
    with Consumer(cluster.addresses, topic, start="earliest") as consumer:
        assert [message.offset for message in consumer.poll(timeout_s=30)] == [0]
        for _ in range(2):
            with pytest.raises(PoisonBatchError, match="Seek to 2") as caught:
                consumer.poll(timeout_s=30)
        assert consumer.position((topic, 0)) == 1
        consumer.seek((topic, 0), int(caught.value.details["end_offset"]))
        assert next(consumer).value == b"good"


def test_producer_id_that_somebody_else_took(cluster: SdkCluster) -> None:
    topic = cluster.topic()
    with Producer(cluster.addresses) as producer:
        producer.send(topic, b"mine").result(30)
        outbox = producer._accumulator.topic(topic)
        assert outbox is not None
        taken = encode_columns(
            [b"theirs"],
            timestamp_ms=1,
            producer_id=outbox.outboxes[0].producer_id,
            producer_epoch=outbox.outboxes[0].epoch + 1,
            base_sequence=0,
        )
        store(cluster, topic, taken)
        assert isinstance(producer.send(topic, b"late").exception(30), ProducerFencedError)
        # What was taken before it was heard of ends in the same way.
        eventually(lambda: _is_refused(producer, topic), "the producer goes on as if nothing had happened")
        with pytest.raises(ProducerFencedError):
            producer.send_many(topic, [b"later"])
    with Consumer(cluster.addresses, topic, start="earliest") as consumer:
        assert [next(consumer).value for _ in range(2)] == [b"mine", b"theirs"]
        assert consumer.end_offsets()[consumer.assignment()[0]] == 2


def _is_refused(producer: Producer, topic: str) -> bool:
    try:
        assert isinstance(producer.send(topic, b"later").exception(30), ProducerFencedError)
    except ProducerFencedError:
        return True
    return False


def test_damage_on_the_disk(cluster: SdkCluster) -> None:
    topic = cluster.topic()
    with Producer(cluster.addresses) as producer:
        for number in range(20):  # more than a broker remembers of what it has just written
            producer.send(topic, b"%02d" % number * 2_000).result(30)
    (log,) = Path(cluster.broker.data_dir).glob(f"**/{topic}-*/0/records/*.log")
    with log.open("r+b") as file:
        file.seek(log.read_bytes().index(b"07" * 50))
        file.write(b"x")
    with Consumer(cluster.addresses, topic, start="earliest") as consumer:
        seen: list[int] = []
        with pytest.raises(DamagedRangeError, match="seek to 8") as caught:
            seen.extend(message.offset for message in consumer)
        assert seen == list(range(7))
        assert (caught.value.first_offset, caught.value.end_offset) == (7, 8)
        consumer.seek((topic, 0), caught.value.end_offset)
        assert [next(consumer).offset for _ in range(12)] == list(range(8, 20))
