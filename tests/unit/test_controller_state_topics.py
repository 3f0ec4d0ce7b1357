"""Topics are made, configured, given partitions and deleted; and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from quire.v1 import commands_pb2 as c
from quire.v1 import durability_pb2, metadata_pb2
from quire_controller.state import limits
from quire_controller.state.model import Flush, FlushMode, PartitionKey, TopicConfig
from tests.unit.controller_crafting import TENANT, Controller, uuid_of

Config = metadata_pb2.TopicConfig


def creation(**changes: Any) -> c.CreateTopic:
    values: dict[str, Any] = {
        "topic_id": uuid_of(1),
        "tenant": TENANT,
        "name": "orders",
        "partition_count": 2,
        "replication_factor": 2,
        "placement_seed": 9,
    }
    return c.CreateTopic(**(values | changes))


# --- making them ---------------------------------------------------------------------------------------------------


def test_topic_is_found_by_name_and_id_and_is_led() -> None:
    controller = Controller([1, 2, 3])
    result = controller.ok(create_topic=creation())
    assert result.topic_created.topic_id == uuid_of(1)
    topic = controller.state.topic_named(TENANT, "orders")
    assert topic is not None
    assert topic is controller.state.topics[uuid_of(1)]
    assert (topic.partition_count, topic.replication_factor, topic.min_isr) == (2, 2, 2)
    for partition in controller.state.partitions_of(uuid_of(1)):
        assert partition.isr == tuple(sorted(partition.replicas))
        assert partition.leader == partition.preferred_leader
        assert (partition.leader_epoch, partition.partition_epoch) == (0, 0)


def test_name_is_unique_within_a_tenant_only() -> None:
    controller = Controller([1, 2])
    controller.ok(create_topic=creation())
    error = controller.refused(create_topic=creation(topic_id=uuid_of(2)))
    assert (error.reason, error.details["topic_id"]) == ("TOPIC_ALREADY_EXISTS", uuid_of(1).hex())
    controller.ok(create_topic=creation(topic_id=uuid_of(2), tenant="other"))
    assert controller.state.topic_named("other", "orders") is controller.state.topics[uuid_of(2)]


def test_same_topic_again_is_no_error_also_from_a_proposer_that_was_forgotten() -> None:
    controller = Controller([1, 2])
    first = controller.ok(create_topic=creation())
    partitions = dict(controller.state.partitions)
    again = controller.ok(create_topic=creation(partition_count=9))
    assert again.topic_created == first.topic_created
    assert controller.state.partitions == partitions


def test_id_is_never_used_again() -> None:
    controller = Controller([1, 2])
    controller.ok(create_topic=creation())
    assert controller.refused(create_topic=creation(name="other")).reason == "INVALID_ARGUMENT"
    controller.ok(delete_topic=c.DeleteTopic(topic_id=uuid_of(1)))
    assert controller.refused(create_topic=creation()).reason == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a" * 250, "../../x", "a/b", "a b", "a\0b", "ордер", "topic\n", "__groups"],
)
def test_name_that_cannot_be_is_refused(name: str) -> None:
    assert Controller([1, 2]).refused(create_topic=creation(name=name)).reason == "INVALID_TOPIC_NAME"


def test_names_of_internal_topics_begin_with_two_underscores() -> None:
    controller = Controller([1, 2])
    assert controller.refused(create_topic=creation(internal=True)).reason == "INVALID_TOPIC_NAME"
    controller.ok(create_topic=creation(name="__groups", internal=True))
    assert controller.state.topics[uuid_of(1)].internal


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"topic_id": b"short"}, "INVALID_ARGUMENT"),
        ({"topic_id": bytes(16)}, "INVALID_ARGUMENT"),
        ({"tenant": ""}, "INVALID_ARGUMENT"),
        ({"tenant": "a" * 64}, "INVALID_ARGUMENT"),
        ({"partition_count": 0}, "INVALID_ARGUMENT"),
        ({"partition_count": -1}, "INVALID_ARGUMENT"),
        ({"partition_count": limits.PARTITIONS_PER_TOPIC_MAX + 1}, "LIMIT_EXCEEDED"),
        ({"replication_factor": 0}, "INVALID_ARGUMENT"),
        ({"replication_factor": limits.REPLICATION_FACTOR_MAX + 1}, "INVALID_ARGUMENT"),
        ({"replication_factor": 4}, "NOT_ENOUGH_BROKERS"),
        ({"config": Config(min_isr=3)}, "INVALID_ARGUMENT"),
    ],
)
def test_creation_that_makes_no_sense_is_refused(changes: dict[str, Any], reason: str) -> None:
    assert Controller([1, 2, 3]).refused(create_topic=creation(**changes)).reason == reason


def test_only_active_brokers_that_are_not_drained_get_partitions() -> None:
    controller = Controller([1, 2, 3, 4])
    controller.fence(1)
    controller.drain(2, metadata_pb2.DRAIN_GOAL_LEADERSHIPS)
    controller.ok(create_topic=creation(partition_count=20))
    assert {broker for each in controller.state.partitions.values() for broker in each.replicas} == {3, 4}
    error = controller.refused(create_topic=creation(topic_id=uuid_of(2), name="b", replication_factor=3))
    assert (error.reason, error.details) == ("NOT_ENOUGH_BROKERS", {"wanted": "3", "available": "2"})


def test_explicit_assignment_is_taken_and_fenced_brokers_are_not_in_sync() -> None:
    controller = Controller([1, 2, 3])
    controller.fence(2)
    topic_id = controller.topic("orders", [2, 1], [3, 2])
    first, second = controller.state.partitions_of(topic_id)
    assert (first.replicas, first.isr, first.leader) == ((2, 1), (1,), 1)
    assert (second.replicas, second.isr, second.leader) == ((3, 2), (3,), 3)


@pytest.mark.parametrize(
    ("assignments", "reason"),
    [
        ([[1, 2], [1]], "INVALID_ARGUMENT"),
        ([[1, 1], [1, 2]], "INVALID_ARGUMENT"),
        ([[1, 2]], "INVALID_ARGUMENT"),
        ([[1, 2], [1, 9]], "UNKNOWN_BROKER"),
        ([[1, 2], [1, 4]], "INVALID_ARGUMENT"),
        ([[1, 2], [3, 5]], "NOT_ENOUGH_BROKERS"),
    ],
)
def test_explicit_assignment_that_makes_no_sense_is_refused(assignments: list[list[int]], reason: str) -> None:
    controller = Controller([1, 2, 3, 4, 5])
    controller.fence(3, 5)
    controller.drain(4, metadata_pb2.DRAIN_GOAL_LEADERSHIPS)
    rows = [c.ReplicaAssignment(replicas=replicas) for replicas in assignments]
    assert controller.refused(create_topic=creation(assignments=rows)).reason == reason


def test_numbers_of_topics_and_partitions_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TOPICS_MAX", 1)
    monkeypatch.setattr(limits, "PARTITIONS_MAX", 3)
    controller = Controller([1, 2])
    controller.ok(create_topic=creation())
    error = controller.refused(create_topic=creation(topic_id=uuid_of(2), name="b"))
    assert (error.reason, error.details) == ("LIMIT_EXCEEDED", {"what": "topics", "limit": "1"})
    error = controller.refused(add_partitions=c.AddPartitions(topic_id=uuid_of(1), partition_count=4))
    assert (error.reason, error.details) == ("LIMIT_EXCEEDED", {"what": "partitions", "limit": "3"})


# --- settings ------------------------------------------------------------------------------------------------------


def test_settings_are_set_and_unset() -> None:
    controller = Controller([1, 2, 3])
    topic_id = controller.topic("orders", [1, 2, 3])

    def configure(*unset: str, **changes: Any) -> TopicConfig:
        controller.ok(configure_topic=c.ConfigureTopic(topic_id=topic_id, set=Config(**changes), unset=unset))
        return controller.state.topics[topic_id].config

    flush = durability_pb2.FlushPolicy(mode=durability_pb2.FLUSH_MODE_INTERVAL, interval_ms=100)
    config = configure(min_isr=3, retention_ms=-1, flush=flush, unclean_election=False)
    assert config == TopicConfig(
        min_isr=3, retention_ms=-1, flush=Flush(FlushMode.INTERVAL, 100), unclean_election=False
    )
    config = configure("min_isr", "flush", segment_bytes=1 << 20)
    assert config == TopicConfig(retention_ms=-1, unclean_election=False, segment_bytes=1 << 20)
    assert controller.state.topics[topic_id].min_isr == 2
    published = controller.state.published_version
    assert configure(segment_bytes=1 << 20) == config
    assert controller.state.published_version == published, "nothing changed, so nothing is published"


@pytest.mark.parametrize(
    "changes",
    [
        {"min_isr": 0},
        {"min_isr": 4},
        {"retention_ms": 0},
        {"retention_ms": -2},
        {"retention_bytes": limits.RETENTION_BYTES_MAX + 1},
        {"retention_segments": 0},
        {"segment_bytes": 1},
        {"segment_bytes": limits.SEGMENT_BYTES_MAX + 1},
        {"message_bytes_max": 10},
        {"message_bytes_max": limits.MESSAGE_BYTES_MAX_MAX + 1},
        {"flush": durability_pb2.FlushPolicy(mode=durability_pb2.FLUSH_MODE_INTERVAL)},
        {"flush": durability_pb2.FlushPolicy(mode=durability_pb2.FLUSH_MODE_OS, interval_ms=5)},
        {"flush": durability_pb2.FlushPolicy(mode=77)},  # type: ignore[arg-type]  # a newer version's
        {"cleanup": 77},
        {"partitioner": 77},
        {"partitioner": metadata_pb2.PARTITIONER_MURMUR2},
    ],
)
def test_setting_out_of_bounds_is_refused(changes: dict[str, Any]) -> None:
    controller = Controller([1, 2, 3])
    topic_id = controller.topic("orders", [1, 2, 3])
    body = c.ConfigureTopic(topic_id=topic_id, set=Config(**changes))
    assert controller.refused(configure_topic=body).reason == "INVALID_ARGUMENT"


def test_unset_needs_a_name_that_is_not_set_as_well() -> None:
    controller = Controller([1, 2, 3])
    topic_id = controller.topic("orders", [1, 2, 3])
    for body in (
        c.ConfigureTopic(topic_id=topic_id, unset=["no_such_setting"]),
        c.ConfigureTopic(topic_id=topic_id, set=Config(min_isr=1), unset=["min_isr"]),
    ):
        assert controller.refused(configure_topic=body).reason == "INVALID_ARGUMENT"


def test_partitioner_may_be_named_again_but_not_changed() -> None:
    controller = Controller([1])
    controller.topic("orders", [1])
    same = Config(partitioner=metadata_pb2.PARTITIONER_MURMUR3)
    controller.ok(configure_topic=c.ConfigureTopic(topic_id=uuid_of(1), set=same))


def test_unknown_topic_is_refused_by_every_command() -> None:
    controller = Controller([1])
    gone = uuid_of(9)
    for body in (
        {"delete_topic": c.DeleteTopic(topic_id=gone)},
        {"configure_topic": c.ConfigureTopic(topic_id=gone)},
        {"add_partitions": c.AddPartitions(topic_id=gone, partition_count=2)},
        {"reassign_partition": c.ReassignPartition(partition=c.PartitionAt(topic_id=gone), target=[1])},
        {"cancel_reassignment": c.CancelReassignment(partition=c.PartitionAt(topic_id=gone))},
    ):
        assert controller.refused(**body).reason == "UNKNOWN_TOPIC"


def test_lower_minimum_makes_those_outside_of_the_isr_ineligible() -> None:
    # With a minimum of 1 the leader goes on alone, and who does not follow falls behind.
    controller = Controller([1, 2, 3])
    key = PartitionKey(controller.topic("orders", [1, 2, 3], min_isr=3), 0)
    controller.fence(3)
    assert controller.picture(key) == "1 of 1,2 +3"
    before = controller.partition(key).partition_epoch
    controller.ok(configure_topic=c.ConfigureTopic(topic_id=key.topic_id, set=Config(min_isr=2)))
    assert controller.picture(key) == "1 of 1,2"
    assert controller.partition(key).partition_epoch == before + 1


def test_lower_minimum_leaves_a_partition_alone_that_nobody_leads() -> None:
    controller = Controller([1, 2])
    key = PartitionKey(controller.topic("orders", [1, 2]), 0)
    controller.fence(1, 2)
    assert controller.picture(key) == "- of 2 +1"
    controller.ok(configure_topic=c.ConfigureTopic(topic_id=key.topic_id, set=Config(min_isr=1)))
    assert controller.picture(key) == "- of 2 +1"
    controller.unfence(1)
    assert controller.picture(key) == "1 of 1"


# --- partitions ----------------------------------------------------------------------------------------------------


def test_topic_gets_more_partitions() -> None:
    controller = Controller([1, 2, 3])
    topic_id = controller.topic("orders", [1, 2])
    controller.ok(add_partitions=c.AddPartitions(topic_id=topic_id, partition_count=4))
    rows = [c.ReplicaAssignment(replicas=[3, 1])]
    controller.ok(add_partitions=c.AddPartitions(topic_id=topic_id, partition_count=5, assignments=rows))
    partitions = controller.state.partitions_of(topic_id)
    assert [each.key.partition for each in partitions] == [0, 1, 2, 3, 4]
    assert partitions[4].replicas == (3, 1)
    assert all(len(each.replicas) == 2 for each in partitions)


def test_topic_cannot_get_fewer_partitions() -> None:
    controller = Controller([1, 2])
    topic_id = controller.topic("orders", [1, 2], [2, 1])
    for count, reason in ((1, "INVALID_ARGUMENT"), (2, "INVALID_ARGUMENT"), (10_001, "LIMIT_EXCEEDED")):
        body = c.AddPartitions(topic_id=topic_id, partition_count=count)
        assert controller.refused(add_partitions=body).reason == reason
    rows = [c.ReplicaAssignment(replicas=[1, 2])] * 2
    body = c.AddPartitions(topic_id=topic_id, partition_count=3, assignments=rows)
    assert controller.refused(add_partitions=body).reason == "INVALID_ARGUMENT"


# --- deletion ------------------------------------------------------------------------------------------------------


def test_deleted_topic_is_remembered_until_every_broker_has_deleted_its_files() -> None:
    controller = Controller([1, 2, 3])
    topic_id = controller.topic("orders", [1, 2], [2, 3])
    controller.ok(delete_topic=c.DeleteTopic(topic_id=topic_id))
    assert (controller.state.topics, controller.state.partitions) == ({}, {})
    assert controller.state.topic_named(TENANT, "orders") is None
    assert controller.state.partitions_on(2) == []
    deleted = controller.state.deleted_topics[topic_id]
    assert (deleted.brokers, deleted.version) == ((1, 2, 3), controller.index)

    def confirm(broker_id: int) -> None:
        controller.ok(
            confirm_deletions=c.ConfirmDeletions(
                broker_id=broker_id, broker_epoch=controller.epoch(broker_id), topic_ids=[topic_id, uuid_of(77)]
            )
        )

    confirm(2)
    confirm(2)
    assert controller.state.deleted_topics[topic_id].brokers == (1, 3)
    controller.register(1, disk=55)
    assert controller.state.deleted_topics[topic_id].brokers == (3,), "a wiped disk has no files"
    confirm(3)
    assert controller.state.deleted_topics == {}
    confirm(3)


def test_unregistered_broker_is_not_waited_for() -> None:
    controller = Controller([1])
    topic_id = controller.topic("orders", [1])
    controller.ok(delete_topic=c.DeleteTopic(topic_id=topic_id))
    body = c.UnregisterBroker(broker_id=1, broker_epoch=controller.epoch(1))
    controller.ok(unregister_broker=body)
    assert controller.state.deleted_topics == {}


def test_same_name_again_is_another_topic() -> None:
    controller = Controller([1])
    controller.topic("orders", [1])
    controller.ok(delete_topic=c.DeleteTopic(topic_id=uuid_of(1)))
    controller.topic("orders", [1], number=2)
    topic = controller.state.topic_named(TENANT, "orders")
    assert topic is not None
    assert topic.topic_id == uuid_of(2)


def test_of_too_many_deleted_topics_the_first_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DELETED_TOPICS_MAX", 2)
    controller = Controller([1])
    for number in (3, 1, 2):
        controller.topic(f"t{number}", [1], number=number)
        controller.ok(delete_topic=c.DeleteTopic(topic_id=uuid_of(number)))
    assert sorted(controller.state.deleted_topics) == [uuid_of(1), uuid_of(2)]


def test_confirmation_is_refused_from_an_old_process_and_when_it_makes_no_sense() -> None:
    controller = Controller([1])
    stale = c.ConfirmDeletions(broker_id=1, broker_epoch=1, topic_ids=[uuid_of(1)])
    assert controller.refused(confirm_deletions=stale).reason == "STALE_BROKER_EPOCH"
    epoch = controller.epoch(1)
    twice = c.ConfirmDeletions(broker_id=1, broker_epoch=epoch, topic_ids=[uuid_of(1)] * 2)
    assert controller.refused(confirm_deletions=twice).reason == "INVALID_ARGUMENT"
    many = c.ConfirmDeletions(broker_id=1, broker_epoch=epoch, topic_ids=[uuid_of(n) for n in range(1001)])
    assert controller.refused(confirm_deletions=many).reason == "LIMIT_EXCEEDED"
