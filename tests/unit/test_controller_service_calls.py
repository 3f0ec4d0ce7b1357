"""What the services make of requests: which commands, which answers, and what is refused before anybody is asked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quire.errors import (
    BrokerNotEmptyError,
    InvalidArgumentError,
    InvalidTopicNameError,
    LimitExceededError,
    NotEnoughBrokersError,
    OutcomeUnknownError,
    PeerRefusedError,
    StalePartitionEpochError,
    UnavailableError,
    UnknownBrokerError,
    UnknownTopicError,
    UnsupportedFeatureError,
)
from quire.v1 import commands_pb2, controller_pb2, errors_pb2, metadata_pb2, topics_pb2
from quire_controller.state import limits
from quire_controller.state.model import DrainGoal
from tests.unit.controller_service_harness import FEATURES, Services, called_by


@pytest.fixture
async def services() -> Services:
    return Services()


def change_id(sequence: int) -> controller_pb2.ChangeId:
    return controller_pb2.ChangeId(client_id="t", client_incarnation=b"i" * 16, sequence=sequence)


def named(name: str) -> topics_pb2.TopicRef:
    return topics_pb2.TopicRef(name=name)


def at(name: str, partition: int, **settings: Any) -> controller_pb2.PartitionRef:
    return controller_pb2.PartitionRef(topic=named(name), partition=partition, **settings)


# --- topics --------------------------------------------------------------------------------------------------------


async def test_topic_gets_a_random_id_and_as_many_replicas_as_there_are_brokers(services: Services) -> None:
    await services.register(1)
    assert services.state.topics[await services.create("one")].replication_factor == 1
    for broker_id in (2, 3, 4, 5):
        await services.register(broker_id)
    topic_id = await services.create("three")
    assert services.state.topics[topic_id].replication_factor == 3
    assert (len(topic_id), topic_id[6] >> 4, topic_id[8] >> 6) == (16, 4, 2), "a UUID of version 4"
    assert topic_id != await services.create("other")


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"name": "__own"}, InvalidTopicNameError),
        ({"name": "../x"}, InvalidTopicNameError),
        ({"partition_count": -1}, InvalidArgumentError),
        ({"partition_count": 10_001}, InvalidArgumentError),
        ({"replication_factor": 16}, InvalidArgumentError),
        ({"replication_factor": 1, "config": metadata_pb2.TopicConfig(min_isr=2)}, InvalidArgumentError),
        ({"change_id": controller_pb2.ChangeId(client_id="t", sequence=1)}, InvalidArgumentError),
        ({"assignments": [commands_pb2.ReplicaAssignment(replicas=[1])] * 10_001}, LimitExceededError),
    ],
)
async def test_what_makes_no_sense_reaches_no_quorum(
    services: Services, settings: dict[str, Any], kind: type[Exception]
) -> None:
    await services.register(1)
    before = len(services.quorum.proposed)
    with pytest.raises(kind):
        await services.create(**{"name": "new", **settings})
    assert len(services.quorum.proposed) == before


async def test_topics_of_quires_own_are_made_once_and_kept(services: Services) -> None:
    await services.register(1)
    request = controller_pb2.EnsureInternalTopicRequest(name="__groups", partition_count=5)
    first = await services.brokers.EnsureInternalTopic(request, None)
    again = await services.brokers.EnsureInternalTopic(request, None)
    assert first.topic_id == again.topic_id
    assert services.state.topics[first.topic_id].internal
    for change in (
        services.admin.DeleteTopic(controller_pb2.DeleteTopicRequest(topic=named("__groups")), None),
        services.admin.AddPartitions(
            controller_pb2.AddPartitionsRequest(topic=named("__groups"), partition_count=9), None
        ),
    ):
        with pytest.raises(InvalidArgumentError, match="of Quire's own"):
            await change
    with pytest.raises(InvalidTopicNameError):
        await services.brokers.EnsureInternalTopic(
            controller_pb2.EnsureInternalTopicRequest(name="groups", partition_count=5), None
        )
    listed = await services.admin.ListTopics(controller_pb2.ListTopicsRequest(), None)
    assert list(listed.topics) == []
    listed = await services.admin.ListTopics(controller_pb2.ListTopicsRequest(include_internal=True), None)
    assert [topic.name for topic in listed.topics] == ["__groups"]


async def test_tenant_sees_its_own_topics_alone(services: Services) -> None:
    await services.register(1)
    topic_id = await services.create("secret")
    called_by(tenant="other")
    by_id = topics_pb2.TopicRef(topic_id=topic_id)
    for ref in (named("secret"), by_id):
        with pytest.raises(UnknownTopicError):
            await services.admin.DescribeTopic(controller_pb2.DescribeTopicRequest(topic=ref), None)
        with pytest.raises(UnknownTopicError):
            await services.admin.DeleteTopic(controller_pb2.DeleteTopicRequest(topic=ref), None)
    assert not (await services.admin.ListTopics(controller_pb2.ListTopicsRequest(), None)).topics


# --- once ----------------------------------------------------------------------------------------------------------


async def test_change_whose_answer_was_lost_is_answered_from_the_state(services: Services) -> None:
    await services.register(1)
    making = controller_pb2.CreateTopicRequest(change_id=change_id(1), name="t", replication_factor=1)
    services.quorum.fate = "unknown"
    with pytest.raises(OutcomeUnknownError) as unknown:
        await services.admin.CreateTopic(making, None)
    assert "no change id" not in unknown.value.message
    services.quorum.fate = "committed"
    made = await services.admin.CreateTopic(making, None)
    assert services.state.topics[made.topic_id].name == "t"

    deleting = controller_pb2.DeleteTopicRequest(change_id=change_id(2), topic=named("t"))
    services.quorum.fate = "unavailable"
    with pytest.raises(UnavailableError):  # it could not even look
        await services.admin.DeleteTopic(deleting, None)
    services.quorum.fate = "committed"
    gone = await services.admin.DeleteTopic(deleting, None)
    assert await services.admin.DeleteTopic(deleting, None) == gone


async def test_refusal_is_remembered_too(services: Services) -> None:
    await services.register(1)
    topic_id = await services.create("t")
    shrink = controller_pb2.AddPartitionsRequest(change_id=change_id(1), topic=named("t"), partition_count=1)
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match="can only get more"):
            await services.admin.AddPartitions(shrink, None)
    assert services.state.topics[topic_id].partition_count == 1


async def test_change_id_of_another_kind_of_change_is_refused(services: Services) -> None:
    await services.register(1)
    await services.create("t", change_id=change_id(1))
    with pytest.raises(InvalidArgumentError, match="of another kind"):
        await services.admin.DrainBroker(controller_pb2.DrainBrokerRequest(change_id=change_id(1), broker_id=1), None)
    with pytest.raises(InvalidArgumentError, match="of another kind"):
        await services.admin.DeleteTopic(
            controller_pb2.DeleteTopicRequest(change_id=change_id(1), topic=named("t")), None
        )
    assert services.state.topic_named("default", "t") is not None


async def test_without_a_change_id_the_outcome_is_told_as_unknown(services: Services) -> None:
    await services.register(1)
    services.quorum.fate = "unknown"
    with pytest.raises(OutcomeUnknownError, match="had no change id"):
        await services.create("t", replication_factor=1)


async def test_deadline_of_a_change_is_an_unknown_outcome_and_of_a_read_is_not(services: Services) -> None:
    await services.register(1)
    services.quorum.fate = "silent"
    called_by(within_s=0.05)
    with pytest.raises(OutcomeUnknownError):
        await services.create("t", replication_factor=1)
    assert services.state.topic_named("default", "t") is not None, "it was carried out"
    before = len(services.quorum.proposed)
    with pytest.raises(UnavailableError):  # it has passed by now: nothing is proposed any more
        await services.create("u", replication_factor=1)
    assert len(services.quorum.proposed) == before
    called_by(within_s=0.05)
    with pytest.raises(UnavailableError):
        await services.admin.DescribeTopic(controller_pb2.DescribeTopicRequest(topic=named("t")), None)
    stale = controller_pb2.DescribeTopicRequest(topic=named("t"), stale_ok=True)
    assert (await services.admin.DescribeTopic(stale, None)).topic.name == "t"


# --- brokers -------------------------------------------------------------------------------------------------------


async def test_node_speaks_for_its_own_broker_alone(services: Services) -> None:
    called_by("n1")
    epoch = await services.register(1)
    assert services.state.brokers[1].node_id == "n1", "as its certificate says"
    with pytest.raises(PeerRefusedError):
        await services.register(2, node_id="n2")
    called_by("n2")
    calls: list[tuple[Any, Any]] = [
        (controller_pb2.HeartbeatRequest(broker_id=1, broker_epoch=epoch), services.brokers.Heartbeat),
        (
            controller_pb2.FenceBrokerRequest(
                broker_id=1, broker_epoch=epoch, cause=commands_pb2.FENCE_CAUSE_STOPPING
            ),
            services.brokers.FenceBroker,
        ),
        (controller_pb2.UnfenceBrokerRequest(broker_id=1, broker_epoch=epoch), services.brokers.UnfenceBroker),
        (
            controller_pb2.AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch, count=1),
            services.brokers.AllocateProducerIds,
        ),
    ]
    for request, method in calls:
        with pytest.raises(PeerRefusedError, match="the certificate is of node 'n2'"):
            await method(request, None)


async def test_heartbeat_elsewhere_names_the_leader_and_its_address(services: Services) -> None:
    services.quorum.is_leader = False
    services.quorum.leader_id = "c2"
    with pytest.raises(UnavailableError) as elsewhere:
        await services.brokers.Heartbeat(controller_pb2.HeartbeatRequest(broker_id=1), None)
    assert elsewhere.value.details == {"leader": "c2", "leader_address": "10.0.0.2:7401"}


async def test_work_of_a_broker(services: Services) -> None:
    one, two = await services.register(1), await services.register(2)
    topic_id = await services.create("t", partition_count=2, replication_factor=2)
    ids = await services.brokers.AllocateProducerIds(
        controller_pb2.AllocateProducerIdsRequest(broker_id=1, broker_epoch=one, count=10), None
    )
    assert (ids.first_producer_id, ids.count) == (0, 10)
    partition = services.state.partitions_of(topic_id)[0]
    leader = partition.leader or 0
    changes = [
        commands_pb2.IsrChange(
            topic_id=topic_id,
            partition=0,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition_epoch,
            isr=[commands_pb2.IsrMember(broker_id=leader, broker_epoch={1: one, 2: two}[leader])],
        )
        for partition_epoch in (partition.partition_epoch, partition.partition_epoch)
    ]
    changes[1].partition = 7
    altered = await services.brokers.AlterPartitions(
        controller_pb2.AlterPartitionsRequest(
            broker_id=leader, broker_epoch={1: one, 2: two}[leader], changes=changes
        ),
        None,
    )
    assert [outcome.error for outcome in altered.outcomes] == [
        errors_pb2.ERROR_REASON_UNSPECIFIED,
        errors_pb2.ERROR_REASON_UNKNOWN_PARTITION,
    ]
    described = await services.admin.DescribeCluster(controller_pb2.DescribeClusterRequest(), None)
    assert (described.partitions, described.under_replicated, described.leaderless) == (2, 1, 0)
    assert [(each.replicas, each.leaderships) for each in described.brokers] == [(2, 1), (2, 1)]
    await services.admin.DeleteTopic(controller_pb2.DeleteTopicRequest(topic=named("t")), None)
    for broker_id, epoch in ((1, one), (2, two)):
        await services.brokers.ConfirmDeletions(
            controller_pb2.ConfirmDeletionsRequest(broker_id=broker_id, broker_epoch=epoch, topic_ids=[topic_id]),
            None,
        )
    assert not services.state.deleted_topics


async def test_broker_is_drained_and_unregistered(services: Services) -> None:
    for broker_id in (1, 2):
        await services.register(broker_id)
    await services.create("t", replication_factor=2)
    drain = controller_pb2.DrainBrokerRequest(
        change_id=change_id(2), broker_id=1, goal=metadata_pb2.DRAIN_GOAL_REPLICAS
    )
    await services.register(3)
    begun = await services.admin.DrainBroker(drain, None)
    await services.admin.DrainBroker(
        controller_pb2.DrainBrokerRequest(broker_id=3, goal=metadata_pb2.DRAIN_GOAL_LEADERSHIPS), None
    )
    assert await services.admin.DrainBroker(drain, None) == begun  # asked again, it is answered as it was
    with pytest.raises(BrokerNotEmptyError):
        await services.admin.UnregisterBroker(controller_pb2.UnregisterBrokerRequest(broker_id=1), None)
    await services.admin.DeleteTopic(controller_pb2.DeleteTopicRequest(topic=named("t")), None)
    again = controller_pb2.UnregisterBrokerRequest(change_id=change_id(1), broker_id=1)
    gone = await services.admin.UnregisterBroker(again, None)
    assert sorted(services.state.brokers) == [2, 3]
    assert await services.admin.UnregisterBroker(again, None) == gone


async def test_broker_is_not_drained_where_its_replicas_have_nowhere_to_go(services: Services) -> None:
    for broker_id in (1, 2):
        await services.register(broker_id)
    await services.create("t", replication_factor=2)
    drain = controller_pb2.DrainBrokerRequest(broker_id=1, goal=metadata_pb2.DRAIN_GOAL_REPLICAS)
    with pytest.raises(NotEnoughBrokersError, match="such as that of t/0"):
        await services.admin.DrainBroker(drain, None)
    with pytest.raises(UnknownBrokerError):
        await services.admin.DrainBroker(
            controller_pb2.DrainBrokerRequest(broker_id=9, goal=metadata_pb2.DRAIN_GOAL_REPLICAS), None
        )
    await services.admin.DrainBroker(
        controller_pb2.DrainBrokerRequest(broker_id=1, goal=metadata_pb2.DRAIN_GOAL_LEADERSHIPS), None
    )
    await services.register(3)
    await services.admin.DrainBroker(drain, None)
    assert services.state.brokers[1].drain is DrainGoal.REPLICAS


async def test_replica_that_is_on_its_way_does_not_keep_a_broker_from_being_drained(services: Services) -> None:
    for broker_id in (1, 2, 3):
        await services.register(broker_id)
    await services.create("t", assignments=[commands_pb2.ReplicaAssignment(replicas=[1, 2])])
    await services.admin.ReassignPartition(
        controller_pb2.ReassignPartitionRequest(partition=at("t", 0), target=[3, 2]), None
    )
    drain = metadata_pb2.DRAIN_GOAL_REPLICAS
    await services.admin.DrainBroker(controller_pb2.DrainBrokerRequest(broker_id=1, goal=drain), None)
    with pytest.raises(NotEnoughBrokersError, match="such as that of t/0"):
        await services.admin.DrainBroker(controller_pb2.DrainBrokerRequest(broker_id=2, goal=drain), None)


async def test_brokers_are_not_drained_where_one_place_is_free_for_the_replicas_of_two(services: Services) -> None:
    for broker_id in (1, 2, 3):
        await services.register(broker_id)
    await services.create("t", assignments=[commands_pb2.ReplicaAssignment(replicas=[1, 2])])
    drain = metadata_pb2.DRAIN_GOAL_REPLICAS
    await services.admin.DrainBroker(controller_pb2.DrainBrokerRequest(broker_id=1, goal=drain), None)
    with pytest.raises(NotEnoughBrokersError):
        await services.admin.DrainBroker(controller_pb2.DrainBrokerRequest(broker_id=2, goal=drain), None)
    await services.register(4)
    await services.admin.DrainBroker(controller_pb2.DrainBrokerRequest(broker_id=2, goal=drain), None)


async def test_feature_level_rises_only_with_all_controllers(services: Services) -> None:
    with pytest.raises(UnsupportedFeatureError):
        await services.admin.RaiseFeatureLevel(controller_pb2.RaiseFeatureLevelRequest(level=2), None)
    await services.admin.RaiseFeatureLevel(controller_pb2.RaiseFeatureLevelRequest(level=1), None)
    with pytest.raises(InvalidArgumentError):
        await services.admin.RaiseFeatureLevel(controller_pb2.RaiseFeatureLevelRequest(), None)


# --- leaders and replicas ------------------------------------------------------------------------------------------


async def test_leaders_and_replicas_are_moved(services: Services) -> None:
    for broker_id in (1, 2, 3):
        await services.register(broker_id)
    topic_id = await services.create("t", assignments=[commands_pb2.ReplicaAssignment(replicas=[1, 2])])
    old = at("t", 0, partition_epoch=99)
    with pytest.raises(StalePartitionEpochError):
        await services.admin.ReassignPartition(
            controller_pb2.ReassignPartitionRequest(partition=old, target=[2, 3]), None
        )
    move = controller_pb2.ReassignPartitionRequest(change_id=change_id(1), partition=at("t", 0), target=[2, 3])
    begun = await services.admin.ReassignPartition(move, None)
    assert await services.admin.ReassignPartition(move, None) == begun, "although the partition has another epoch now"
    described = await services.admin.DescribeTopic(controller_pb2.DescribeTopicRequest(topic=named("t")), None)
    assert list(described.partitions[0].reassignment.target) == [2, 3]
    await services.admin.CancelReassignment(controller_pb2.CancelReassignmentRequest(partition=at("t", 0)), None)
    assert services.state.partitions_of(topic_id)[0].replicas == (1, 2)

    moved = await services.admin.MoveLeaders(
        controller_pb2.MoveLeadersRequest(
            moves=[controller_pb2.LeaderChoice(partition=at("t", 0), to_broker=broker_id) for broker_id in (2,)]
        ),
        None,
    )
    assert [outcome.error for outcome in moved.outcomes] == [errors_pb2.ERROR_REASON_UNSPECIFIED]
    partition = services.state.partitions_of(topic_id)[0]
    assert partition.move is not None
    assert partition.move.to_broker == 2
    elected = await services.admin.ElectPreferredLeaders(controller_pb2.ElectPreferredLeadersRequest(), None)
    assert (list(elected.outcomes), elected.left) == ([], 0), "nobody leads it yet"
    unclean = await services.admin.ElectUncleanLeaders(
        controller_pb2.ElectUncleanLeadersRequest(partitions=[at("t", 0)]), None
    )
    assert [outcome.error for outcome in unclean.outcomes] == [errors_pb2.ERROR_REASON_NO_ELIGIBLE_LEADER]
    with pytest.raises(InvalidArgumentError):
        await services.admin.MoveLeaders(controller_pb2.MoveLeadersRequest(), None)


async def test_leaders_that_are_away_do_not_keep_others_from_being_elected(services: Services) -> None:
    epochs = {broker_id: await services.register(broker_id) for broker_id in (1, 2, 3)}
    away = [commands_pb2.ReplicaAssignment(replicas=[1, 3])] * limits.PARTITIONS_PER_COMMAND_MAX
    topic_id = await services.create("t", assignments=[*away, commands_pb2.ReplicaAssignment(replicas=[2, 3])])
    for broker_id in (2, 1):  # both lose what they lead, and one comes back
        await services.brokers.FenceBroker(
            controller_pb2.FenceBrokerRequest(
                broker_id=broker_id, broker_epoch=epochs[broker_id], cause=commands_pb2.FENCE_CAUSE_STOPPING
            ),
            None,
        )
    led = services.state.partitions_of(topic_id)
    assert {partition.leader for partition in led} == {3}
    epochs[2] = await services.register(2)
    led = services.state.partitions_of(topic_id)
    change = commands_pb2.IsrChange(
        topic_id=topic_id,
        partition=led[-1].key.partition,
        leader_epoch=led[-1].leader_epoch,
        partition_epoch=led[-1].partition_epoch,
        isr=[commands_pb2.IsrMember(broker_id=each, broker_epoch=epochs[each]) for each in (2, 3)],
    )
    altered = await services.brokers.AlterPartitions(
        controller_pb2.AlterPartitionsRequest(broker_id=3, broker_epoch=epochs[3], changes=[change]), None
    )
    assert [outcome.error for outcome in altered.outcomes] == [errors_pb2.ERROR_REASON_UNSPECIFIED]
    for goal, outcomes in (
        (metadata_pb2.DRAIN_GOAL_LEADERSHIPS, []),
        (metadata_pb2.DRAIN_GOAL_UNSPECIFIED, [errors_pb2.ERROR_REASON_UNSPECIFIED]),
    ):
        await services.admin.DrainBroker(controller_pb2.DrainBrokerRequest(broker_id=2, goal=goal), None)
        elected = await services.admin.ElectPreferredLeaders(controller_pb2.ElectPreferredLeadersRequest(), None)
        assert ([outcome.error for outcome in elected.outcomes], elected.left) == (outcomes, 0)


# --- those who watch -----------------------------------------------------------------------------------------------


async def test_slow_reader_gets_everything_that_he_missed_at_once(services: Services) -> None:
    await services.register(1)
    version = services.state.version
    stream = services.watches.watch(controller_pb2.WatchMetadataRequest(from_version=version))
    assert (await anext(stream)).alive.version == version
    for number in range(20):
        await services.create(f"t{number}", replication_factor=1)
    response = await anext(stream)
    assert len(response.deltas.deltas) == 20
    assert response.deltas.deltas[-1].version == services.state.version
    assert (await anext(stream)).alive.version == services.state.version
    await stream.aclose()  # type: ignore[attr-defined]  # it is a generator


async def test_large_changes_come_as_a_snapshot_in_parts(services: Services) -> None:
    called_by(within_s=600)  # 50,000 partitions take their time on a machine with other things to do
    for broker_id in (1, 2, 3):
        await services.register(broker_id)
    version = services.state.version
    for number in range(5):
        await services.create(f"t{number}", partition_count=10_000, replication_factor=3)
    # Fencing changes every partition that the broker has: one delta of more than a message may have.
    await services.brokers.FenceBroker(
        controller_pb2.FenceBrokerRequest(
            broker_id=1,
            broker_epoch=services.state.brokers[1].broker_epoch,
            cause=commands_pb2.FENCE_CAUSE_CRASHED,
        ),
        None,
    )
    stream = services.watches.watch(controller_pb2.WatchMetadataRequest(from_version=version))
    parts: list[metadata_pb2.MetadataSnapshot] = []
    while not parts or not parts[-1].last:
        response = await anext(stream)
        assert response.ByteSize() < 1 << 20
        parts.append(response.snapshot)
    assert len(parts) > 5
    assert [part.first for part in parts] == [True, *[False] * (len(parts) - 1)]
    assert {part.version for part in parts} == {services.state.version}
    assert sum(len(part.records) for part in parts) > 50_000
    await stream.aclose()  # type: ignore[attr-defined]  # it is a generator


async def test_streams_end_when_the_member_stops_or_is_alone(services: Services) -> None:
    await services.register(1)
    request = controller_pb2.WatchMetadataRequest(from_version=services.state.version)
    first, second = services.watches.watch(request), services.watches.watch(request)
    await anext(first)
    services.is_current = False
    with pytest.raises(UnavailableError, match="no leader"):
        await anext(first)
    services.is_current = True
    await anext(second)
    waiting = asyncio.ensure_future(anext(second))
    await asyncio.sleep(0)
    services.watches.stop()
    with pytest.raises(UnavailableError, match="stopping"):
        await waiting
    assert not services.watches._wakers


async def test_registration_carries_what_the_broker_says(services: Services) -> None:
    listener = metadata_pb2.Listener(
        name="inside", protocol=metadata_pb2.LISTENER_PROTOCOL_GRPC, host="10.0.0.1", port=7400
    )
    await services.register(1, rack="r1", listeners=[listener], node_id="n1")
    broker = services.state.brokers[1]
    assert (broker.rack, broker.node_id, broker.listeners[0].host) == ("r1", "n1", "10.0.0.1")
    assert not broker.fenced
    assert broker.lease_ms == services.runtime.lease_ms
    wrong = controller_pb2.RegisterBrokerRequest(
        cluster_id="c", broker_id=2, incarnation_id=b"short", features=FEATURES
    )
    with pytest.raises(InvalidArgumentError):
        await services.brokers.RegisterBroker(wrong, None)
