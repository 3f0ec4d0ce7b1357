"""What a healthy cluster refuses, and with which error: producers out of their order, changes that cannot be."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from quire.errors import (
    BrokerFencedError,
    BrokerNotEmptyError,
    DuplicateSequenceError,
    LimitExceededError,
    NoEligibleLeaderError,
    NoReassignmentInProgressError,
    NotEnoughBrokersError,
    NotLeaderError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    QuireError,
    ReassignmentInProgressError,
    StaleBrokerEpochError,
    StaleEpochError,
    StalePartitionEpochError,
    UnknownBrokerError,
    UnsupportedFeatureError,
)
from quire.records import encode_columns
from quire.refusals import from_refusal
from quire.v1 import broker_pb2, controller_pb2, errors_pb2, records_pb2
from tests.integration.broker_cluster import BrokerCluster, BrokerProcess
from tests.integration.broker_probe import CALL_S, NOW_MS, entry, fetch, ref
from tests.integration.controller_cluster import eventually, refusal, told

TOPIC = "orders"
LEASE_MS = 20_000
"""So long that nobody is fenced while it is paused."""


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    cluster = BrokerCluster(tmp_path_factory.mktemp("refusals"), brokers=2, controllers=1, lease_ms=LEASE_MS)

    async def start() -> None:
        await cluster.start()
        await cluster.create_topic(TOPIC, replication_factor=1)
        await cluster.hang_up()

    try:
        asyncio.run(start())
        yield cluster
    finally:
        cluster.end()


@pytest.fixture
async def cluster(processes: BrokerCluster) -> AsyncIterator[BrokerCluster]:
    yield processes
    await processes.hang_up()


# --- producers ------------------------------------------------------------------------------------------------------


async def store(
    broker: BrokerProcess,
    producer_id: int,
    *,
    epoch: int,
    sequence: int,
    topic: str = TOPIC,
    leader_epoch: int | None = None,
) -> QuireError | None:
    """Send a record of an idempotent producer; the error, if it is not stored."""
    batch = encode_columns(
        [b"v"], timestamp_ms=NOW_MS, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
    )
    records = broker_pb2.PartitionRecords(
        topic=ref(topic), leader_epoch=leader_epoch, records=records_pb2.RecordSet(raw_batches=batch)
    )
    request = broker_pb2.ProduceRequest(partitions=[records])
    [stored] = (await told(broker.stub.Produce(request, timeout=CALL_S))).partitions
    return from_refusal(stored.refusal) if stored.HasField("refusal") else None


async def test_sequences_out_of_their_order(cluster: BrokerCluster) -> None:
    leader = await cluster.leader_of(TOPIC)
    made = await told(leader.stub.InitProducer(broker_pb2.InitProducerRequest(), timeout=CALL_S))
    mine, epoch = made.producer_id, made.producer_epoch
    assert isinstance(await store(leader, mine, epoch=epoch, sequence=5), OutOfOrderSequenceError)
    for sequence in range(10):
        assert await store(leader, mine, epoch=epoch, sequence=sequence) is None
    assert isinstance(await store(leader, mine, epoch=epoch, sequence=11), OutOfOrderSequenceError)
    assert (
        await store(leader, mine, epoch=epoch, sequence=9) is None
    )  # the same once more: answered as the first time
    assert isinstance(await store(leader, mine, epoch=epoch, sequence=0), DuplicateSequenceError)
    assert await store(leader, mine, epoch=epoch + 1, sequence=0) is None
    assert isinstance(await store(leader, mine, epoch=epoch, sequence=10), ProducerFencedError)
    init = broker_pb2.InitProducerRequest(transactional_id="x")
    assert isinstance(await refusal(leader.stub.InitProducer(init, timeout=CALL_S)), UnsupportedFeatureError)


async def test_leaders_that_are_none(cluster: BrokerCluster) -> None:
    leader = await cluster.leader_of(TOPIC)
    [other] = [broker for broker in cluster.brokers if broker is not leader]
    request = broker_pb2.ProduceRequest(partitions=[entry(TOPIC, encode_columns([b"v"], timestamp_ms=NOW_MS))])
    [stored] = (await told(other.stub.Produce(request, timeout=CALL_S))).partitions
    assert isinstance(from_refusal(stored.refusal), NotLeaderError)
    assert isinstance(await refusal(fetch(other.stub, TOPIC)), NotLeaderError)
    assert isinstance(await store(leader, -1, epoch=-1, sequence=-1, leader_epoch=-1), StaleEpochError)


# --- changes --------------------------------------------------------------------------------------------------------


def partition(topic: str, **epoch: int) -> controller_pb2.PartitionRef:
    return controller_pb2.PartitionRef(topic=ref(topic), partition=0, **epoch)


async def outcome(call: Any) -> str:
    """The reason for which a change of one partition was not made."""
    [found] = (await told(call)).outcomes
    return errors_pb2.ErrorReason.Name(found.error).removeprefix("ERROR_REASON_")


async def test_changes_that_cannot_be_made(cluster: BrokerCluster) -> None:
    admin = cluster.brokers[0].admin
    await cluster.create_topic("moved", replication_factor=2)

    create = controller_pb2.CreateTopicRequest(name="wide", partition_count=1, replication_factor=3)
    assert isinstance(await refusal(admin.CreateTopic(create, timeout=CALL_S)), NotEnoughBrokersError)
    many = controller_pb2.ElectUncleanLeadersRequest(partitions=[partition("moved")] * 65)
    assert isinstance(await refusal(admin.ElectUncleanLeaders(many, timeout=CALL_S)), LimitExceededError)

    drain = controller_pb2.DrainBrokerRequest(broker_id=9)
    assert isinstance(await refusal(admin.DrainBroker(drain, timeout=CALL_S)), UnknownBrokerError)
    described = await told(admin.DescribeCluster(controller_pb2.DescribeClusterRequest(), timeout=CALL_S))
    epochs = {each.broker.broker_id: each.broker.broker_epoch for each in described.brokers}
    unregister = controller_pb2.UnregisterBrokerRequest(broker_id=1, broker_epoch=epochs[1])
    assert isinstance(await refusal(admin.UnregisterBroker(unregister, timeout=CALL_S)), BrokerNotEmptyError)
    unregister = controller_pb2.UnregisterBrokerRequest(broker_id=1, broker_epoch=epochs[1] - 1)
    assert isinstance(await refusal(admin.UnregisterBroker(unregister, timeout=CALL_S)), StaleBrokerEpochError)

    cancel = controller_pb2.CancelReassignmentRequest(partition=partition("moved"))
    assert isinstance(await refusal(admin.CancelReassignment(cancel, timeout=CALL_S)), NoReassignmentInProgressError)
    elect = controller_pb2.ElectUncleanLeadersRequest(partitions=[partition("moved", partition_epoch=77)])
    assert await outcome(admin.ElectUncleanLeaders(elect, timeout=CALL_S)) == StalePartitionEpochError.reason
    elect = controller_pb2.ElectUncleanLeadersRequest(partitions=[partition("moved")])
    assert await outcome(admin.ElectUncleanLeaders(elect, timeout=CALL_S)) == NoEligibleLeaderError.reason
    level = controller_pb2.RaiseFeatureLevelRequest(level=99)
    assert isinstance(await refusal(admin.RaiseFeatureLevel(level, timeout=CALL_S)), UnsupportedFeatureError)


async def test_replicas_do_not_move_twice_at_once_nor_to_who_is_away(cluster: BrokerCluster) -> None:
    await cluster.create_topic("pending", replication_factor=1)
    here = await cluster.leader_of("pending")
    [away] = [broker for broker in cluster.brokers if broker is not here]
    move = controller_pb2.ReassignPartitionRequest(partition=partition("pending"), target=[away.id])
    away.kill(signal.SIGSTOP)  # within its lease: it may get replicas, and does not catch up
    try:
        await told(here.admin.ReassignPartition(move, timeout=CALL_S))
        assert isinstance(
            await refusal(here.admin.ReassignPartition(move, timeout=CALL_S)), ReassignmentInProgressError
        )
    finally:
        away.kill(signal.SIGCONT)

    async def has_moved() -> bool:
        return await cluster.isr("pending") == [away.id]

    await eventually(has_moved, lambda: "the move does not come to its end")

    await cluster.create_topic("beside", replication_factor=1)
    here = await cluster.leader_of("beside")
    [away] = [broker for broker in cluster.brokers if broker is not here]
    away.kill(signal.SIGTERM)  # who stops says so, and is fenced at once
    assert away.ended() == 0
    reassign = controller_pb2.ReassignPartitionRequest(partition=partition("beside"), target=[away.id])
    assert isinstance(await refusal(here.admin.ReassignPartition(reassign, timeout=CALL_S)), BrokerFencedError)
    await cluster.restart(away)
