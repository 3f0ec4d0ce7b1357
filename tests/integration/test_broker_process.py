"""One broker and one controller as real processes: what is stored can be read, also after they were killed."""

from __future__ import annotations

from pathlib import Path

from quire.records import decode, encode_columns, iter_batches
from quire.v1 import broker_pb2, durability_pb2, records_pb2, topics_pb2
from tests.integration.broker_cluster import BrokerCluster, BrokerProcess, broker_cluster
from tests.integration.controller_cluster import told

NOW_MS = 4_000_000_000_000
TOPIC = topics_pb2.TopicRef(name="orders")


def raw(*values: bytes) -> records_pb2.RecordSet:
    return records_pb2.RecordSet(raw_batches=encode_columns(list(values), timestamp_ms=NOW_MS))


async def produce(broker: BrokerProcess, *values: bytes, partition: int = 0) -> broker_pb2.PartitionStored:
    request = broker_pb2.ProduceRequest(
        partitions=[broker_pb2.PartitionRecords(topic=TOPIC, partition=partition, records=raw(*values))]
    )
    return (await told(broker.stub.Produce(request, timeout=20))).partitions[0]


async def values_of(broker: BrokerProcess, partition: int = 0) -> list[bytes]:
    found: list[bytes] = []
    offset = 0
    while True:
        request = broker_pb2.FetchRequest(
            form=broker_pb2.RECORD_FORM_RAW,
            partitions=[broker_pb2.FetchFrom(topic=TOPIC, partition=partition, offset=offset)],
        )
        fetched = (await told(broker.stub.Fetch(request, timeout=20))).partitions[0]
        assert not fetched.HasField("refusal"), fetched
        data = fetched.records.raw_batches
        for position, _ in iter_batches(data):
            found += [record.value or b"" for record in decode(data, position) if record.offset >= offset]
        if fetched.next_offset == offset:
            return found
        offset = fetched.next_offset


async def test_what_is_stored_can_be_read_also_after_a_kill(tmp_path: Path) -> None:
    async with broker_cluster(tmp_path) as cluster:
        await cluster.create_topic("orders", partitions=2)
        broker = cluster.brokers[0]
        stored = await produce(broker, b"a", b"b")
        assert (stored.base_offset, stored.end_offset, stored.duplicate) == (0, 2, False)
        assert stored.durability == durability_pb2.Durability(replicas=1, fsynced=True)
        await produce(broker, b"c")
        await produce(broker, b"other", partition=1)
        await kill_and_restart(cluster)
        assert await values_of(broker) == [b"a", b"b", b"c"]
        assert await values_of(broker, 1) == [b"other"]
        again = await produce(broker, b"d")
        assert (again.base_offset, again.leader_epoch > stored.leader_epoch) == (3, True)


async def kill_and_restart(cluster: BrokerCluster) -> None:
    broker = cluster.brokers[0]
    broker.die()
    await broker.hang_up()
    broker.start()
    await broker.ready()
    await cluster.leader_of("orders")
    await cluster.leader_of("orders", 1)
