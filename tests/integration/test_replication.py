"""Three brokers as real processes: what was acknowledged stays, whoever dies."""

from __future__ import annotations

from pathlib import Path

from quire.v1 import broker_pb2, controller_pb2, durability_pb2
from tests.integration.broker_cluster import BrokerCluster, broker_cluster
from tests.integration.controller_cluster import eventually, told
from tests.integration.test_broker_process import TOPIC, raw, values_of


async def produce(cluster: BrokerCluster, *values: bytes) -> broker_pb2.PartitionStored:
    """Store with acks=all, wherever the leader is by now."""
    answers: list[broker_pb2.PartitionStored] = []

    async def is_stored() -> bool:
        leader = await cluster.leader_of("orders")
        request = broker_pb2.ProduceRequest(
            acks=durability_pb2.ACKS_ALL,
            partitions=[broker_pb2.PartitionRecords(topic=TOPIC, partition=0, records=raw(*values))],
        )
        answers[:] = (await told(leader.stub.Produce(request, timeout=20))).partitions
        return not answers[0].HasField("refusal")

    await eventually(is_stored, lambda: f"not stored: {answers}")
    return answers[0]


async def test_what_was_acknowledged_survives_its_leader(tmp_path: Path) -> None:
    async with broker_cluster(tmp_path, brokers=3, lease_ms=1_600, broker_heartbeat_ms=200) as cluster:
        await cluster.create_topic("orders", replication_factor=3)
        stored = await produce(cluster, b"a", b"b")
        assert stored.durability.fsynced
        assert stored.durability.replicas >= 2
        leader = await cluster.leader_of("orders")
        leader.die()
        await leader.hang_up()
        again = await produce(cluster, b"c")
        assert again.base_offset == 2
        assert again.leader_epoch > stored.leader_epoch
        successor = await cluster.leader_of("orders")
        assert successor is not leader
        assert await values_of(successor) == [b"a", b"b", b"c"]
        leader.start()
        await leader.ready()
        await in_sync(cluster, 3)


async def in_sync(cluster: BrokerCluster, count: int) -> None:
    """Until so many replicas are in sync."""
    isr: list[int] = []

    async def is_so() -> bool:
        answer = await told(
            cluster.running[0].admin.DescribeTopic(controller_pb2.DescribeTopicRequest(topic=TOPIC), timeout=10)
        )
        isr[:] = answer.partitions[0].isr
        return len(isr) == count

    await eventually(is_so, lambda: f"in sync are {isr}")
