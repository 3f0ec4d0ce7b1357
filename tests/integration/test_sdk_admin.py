"""Every public method of the synchronous Admin, against a real broker process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from quire import Admin, PartitionOffsets, Producer
from quire.errors import (
    BrokerNotEmptyError,
    InvalidArgumentError,
    InvalidTopicNameError,
    NoReassignmentInProgressError,
    NotEnoughBrokersError,
    OutcomeUnknownError,
    TopicAlreadyExistsError,
    UnavailableError,
    UnknownBrokerError,
    UnknownTopicError,
)
from tests.integration.sdk_cluster import SdkCluster, sdk_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SdkCluster]:
    yield from sdk_cluster(tmp_path_factory)


@pytest.fixture
def admin(cluster: SdkCluster) -> Iterator[Admin]:
    with Admin(cluster.addresses, client_id="tests") as made:
        yield made


SETTINGS: dict[str, Any] = {
    "partitioner": "murmur2",
    "flush": "interval(100)",
    "min_isr": 1,
    "retention_ms": 60_000,
    "retention_bytes": -1,
    "retention_segments": 10,
    "segment_bytes": 1 << 20,
    "cleanup": "compact,delete",
    "message_bytes_max": 2048,
    "unclean_election": True,
}


def test_topic_from_its_making_to_its_end(admin: Admin) -> None:
    topic_id = admin.create_topic("orders", partitions=3, replication_factor=1, config=SETTINGS)
    assert isinstance(topic_id, UUID)
    described = admin.describe_topic("orders")
    assert (described.name, described.topic_id, described.replication_factor) == ("orders", topic_id, 1)
    assert described.config == SETTINGS
    assert not described.internal
    assert [(each.partition, each.leader, each.replicas, each.isr) for each in described.partitions] == [
        (index, 1, (1,), (1,)) for index in range(3)
    ]
    (listed,) = [each for each in admin.list_topics() if each.name == "orders"]
    assert (listed.topic_id, listed.partitions, listed.replication_factor) == (topic_id, 3, 1)
    assert listed.config == SETTINGS

    admin.alter_topic("orders", {"retention_ms": "5000", "flush": "os"}, unset=["cleanup", "unclean_election"])
    changed = admin.describe_topic("orders").config
    assert changed == {
        name: value for name, value in SETTINGS.items() if name not in ("cleanup", "unclean_election")
    } | {"retention_ms": 5000, "flush": "os"}
    admin.alter_topic("orders", set={"flush": "fsync", "unclean_election": "false"})
    assert admin.describe_topic("orders").config["flush"] == "fsync"
    assert admin.describe_topic("orders").config["unclean_election"] is False

    admin.add_partitions("orders", 5)
    assert len(admin.describe_topic("orders").partitions) == 5
    admin.delete_topic("orders")
    for call in (
        lambda: admin.describe_topic("orders"),
        lambda: admin.delete_topic("orders"),
        lambda: admin.alter_topic("orders", {"retention_ms": 1}),
        lambda: admin.add_partitions("orders", 9),
        lambda: admin.offsets("orders"),
    ):
        with pytest.raises(UnknownTopicError, match="quire topic create orders"):
            call()


def test_many_topics_come_in_pages_and_in_order(admin: Admin) -> None:
    names = [f"page-{number:02}" for number in range(12)]
    threads = [threading.Thread(target=admin.create_topic, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.name for each in admin.list_topics() if each.name.startswith("page-")] == names
    assert [each for each in admin.list_topics(include_internal=True) if each.name in names]


def test_offsets(cluster: SdkCluster, admin: Admin) -> None:
    topic = cluster.topic(partitions=2)
    with Producer(cluster.addresses) as producer:
        producer.send_many(topic, [b"v"] * 5, partition=1)
    assert admin.offsets(topic) == {
        0: PartitionOffsets(earliest=0, latest=0),
        1: PartitionOffsets(earliest=0, latest=5),
    }


def test_cluster(cluster: SdkCluster, admin: Admin) -> None:
    described = admin.describe_cluster()
    assert (described.cluster_id, described.controller_id, described.leaderless) == ("test", "c1", 0)
    (broker,) = described.brokers
    assert (broker.broker_id, broker.node_id, broker.fenced, broker.drain) == (1, "b1", False, None)
    clients = {each.name: each for each in broker.listeners}["client"]
    assert (f"{clients.host}:{clients.port}", clients.protocol, clients.tls) == (
        cluster.broker.address,
        "grpc",
        False,
    )
    assert broker.leaderships == broker.replicas == described.partitions


def test_moves_and_drains(cluster: SdkCluster, admin: Admin) -> None:
    topic = cluster.topic(partitions=2)
    admin.offsets(topic)  # once the leader knows that it leads
    assert admin.follower_lag(topic) == {0: (), 1: ()}
    admin.move_partition(topic, 0, [1])  # where it is
    assert admin.list_moves() == []
    with pytest.raises(NoReassignmentInProgressError):
        admin.cancel_move(topic, 0)
    with pytest.raises(InvalidArgumentError, match="1 replicas a partition, and the target 2"):
        admin.move_partition(topic, 0, [1, 2])
    with pytest.raises(UnknownBrokerError):
        admin.move_partition(topic, 0, [2])
    assert admin.elect_preferred() == admin.elect_preferred(topic) == 0
    with pytest.raises(NotEnoughBrokersError, match="no broker could take"):
        admin.drain_broker(1)
    admin.drain_broker(1, leaderships_only=True)
    assert admin.describe_cluster().brokers[0].drain == "leaderships"
    admin.undrain(1)
    assert admin.describe_cluster().brokers[0].drain is None
    with pytest.raises(BrokerNotEmptyError):
        admin.unregister_broker(1)
    for refused in (0, -1, True):
        with pytest.raises(InvalidArgumentError):
            admin.undrain(refused)


def test_quorum(admin: Admin) -> None:
    described = admin.describe_quorum()
    assert (described.cluster_id, described.member_id, described.role) == ("test", "c1", "leader")
    assert described.leader_id == "c1"
    (member,) = described.members
    assert (member.member_id, member.connected, member.problem) == ("c1", True, "")
    assert member.match_index == described.last_index


@pytest.mark.parametrize(
    ("name", "given", "error"),
    [
        ("../up", {}, InvalidTopicNameError),
        ("__internal", {}, InvalidTopicNameError),
        ("x", {"replication_factor": 3}, NotEnoughBrokersError),
        ("x", {"config": {"min_isr": 2}}, InvalidArgumentError),
        ("x", {"config": {"retentoin_ms": 2}}, InvalidArgumentError),
        ("x", {"config": {"retention_ms": "long"}}, InvalidArgumentError),
        ("x", {"config": {"retention_ms": 1 << 70}}, InvalidArgumentError),
        ("x", {"config": {"flush": "sometimes"}}, InvalidArgumentError),
        ("x", {"config": {"cleanup": "never"}}, InvalidArgumentError),
        ("x", {"config": {"unclean_election": "maybe"}}, InvalidArgumentError),
        ("x", {"partitions": 0}, InvalidArgumentError),
        ("x", {"partitions": 10_001}, InvalidArgumentError),
    ],
)
def test_topic_that_cannot_be_made(admin: Admin, name: str, given: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        admin.create_topic(name, **given)


def test_change_that_cannot_be_made(cluster: SdkCluster, admin: Admin) -> None:
    topic = cluster.topic(partitions=3)
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topic(topic)
    with pytest.raises(InvalidArgumentError):
        admin.add_partitions(topic, 2)
    with pytest.raises(InvalidArgumentError, match="there are partitioner, flush"):
        admin.alter_topic(topic, unset=["retentoin_ms"])
    with pytest.raises(InvalidArgumentError, match="partitioner"):
        admin.alter_topic(topic, {"partitioner": "murmur2"})


def test_change_without_an_answer_is_unknown(cluster: SdkCluster, admin: Admin) -> None:
    topic = cluster.topic()
    with Admin(cluster.addresses, call_ms_max=500) as impatient:
        impatient.list_topics()
        with cluster.paused(), pytest.raises(OutcomeUnknownError):
            impatient.add_partitions(topic, 2)
    # It has a name, so it was made once or not at all, and may be asked for again.
    assert len(admin.describe_topic(topic).partitions) in (1, 2)


def test_no_broker_says_how_to_start_one() -> None:
    with Admin("127.0.0.1:1", connect_ms_max=200) as admin, pytest.raises(UnavailableError, match="quire up"):
        admin.list_topics()


def test_closed_admin_says_so(cluster: SdkCluster) -> None:
    admin = Admin(cluster.addresses)
    admin.close()
    admin.close()
    with pytest.raises(UnavailableError, match="closed"):
        admin.list_topics()
    assert "closed" in repr(admin)


def test_admin_that_nobody_closes_warns(cluster: SdkCluster) -> None:
    admin = Admin(cluster.addresses)
    with pytest.warns(ResourceWarning, match="unclosed"):
        del admin
