"""Commands about topics: they are made, configured, given partitions, deleted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from quire.errors import (
    InvalidArgumentError,
    NotEnoughBrokersError,
    TopicAlreadyExistsError,
)
from quire.v1 import commands_pb2
from quire_controller.state import elections, limits, topic_settings
from quire_controller.state.checks import (
    check_distinct,
    check_limit,
    check_name,
    check_range,
    check_topic_name,
    check_uuid,
    current_broker,
    text_of,
)
from quire_controller.state.model import (
    DeletedTopic,
    DeletedTopicForgotten,
    DrainGoal,
    Partition,
    PartitionKey,
    Record,
    Topic,
)
from quire_controller.state.placement import candidates, place
from quire_controller.state.results import Decision, done
from quire_controller.state.tables import Tables


def create_topic(tables: Tables, index: int, body: commands_pb2.CreateTopic) -> Decision:
    topic_id = check_uuid("topic id", body.topic_id)
    check_name("tenant", body.tenant)
    name = check_topic_name(body.name, internal=body.internal)
    created = Decision([], commands_pb2.CommandResult(topic_created=commands_pb2.TopicCreated(topic_id=topic_id)))
    known = tables.topics.get(topic_id)
    if known is not None and (known.tenant, known.name) == (body.tenant, name):
        # The id is random, so this is the same command again, from a proposer that was forgotten meanwhile.
        return created
    if known is not None or topic_id in tables.deleted_topics:
        raise InvalidArgumentError("the topic id was used before; choose a random one")
    if (body.tenant, name) in tables.topic_ids:
        raise TopicAlreadyExistsError(
            f"tenant '{body.tenant}' has a topic '{name}' already",
            topic=name,
            topic_id=tables.topic_ids[body.tenant, name].hex(),
        )
    check_limit("topics", len(tables.topics) + 1, limits.TOPICS_MAX)
    partition_count, replication_factor = _shape(body)
    topic = Topic(
        topic_id=topic_id,
        tenant=body.tenant,
        name=name,
        internal=body.internal,
        partition_count=partition_count,
        replication_factor=replication_factor,
        config=topic_settings.checked(body.config, replication_factor=replication_factor),
    )
    partitions = _new_partitions(
        tables, topic, first=0, assignments=body.assignments, placement_seed=body.placement_seed
    )
    return replace(created, records=[topic, *partitions])


def add_partitions(tables: Tables, index: int, body: commands_pb2.AddPartitions) -> Decision:
    topic = tables.topic(body.topic_id)
    if body.partition_count <= topic.partition_count:
        raise InvalidArgumentError(
            f"topic '{topic.name}' has {topic.partition_count} partitions, and can only get more",
            partition_count=topic.partition_count,
        )
    check_limit("partitions of a topic", body.partition_count, limits.PARTITIONS_PER_TOPIC_MAX)
    grown = replace(topic, partition_count=body.partition_count)
    partitions = _new_partitions(
        tables, grown, first=topic.partition_count, assignments=body.assignments, placement_seed=body.placement_seed
    )
    return done([grown, *partitions])


def configure_topic(tables: Tables, index: int, body: commands_pb2.ConfigureTopic) -> Decision:
    topic = tables.topic(body.topic_id)
    change = topic_settings.checked(body.set, replication_factor=topic.replication_factor)
    configured = replace(topic, config=topic_settings.merged(topic.config, change, body.unset))
    if configured == topic:
        return done([])
    records: list[Record] = [configured]
    if configured.min_isr < topic.min_isr:
        # Where the ISR now is enough, its high watermark moves again, and who is outside of it falls behind.
        for partition in tables.partitions_of(topic):
            if partition.leader is not None and (partition.eligible or partition.reserve):
                after = elections.with_isr(partition, partition.isr, min_isr=configured.min_isr)
                if (changed := elections.changed(partition, after)) is not None:
                    records.append(changed)
    return done(records)


def delete_topic(tables: Tables, index: int, body: commands_pb2.DeleteTopic) -> Decision:
    topic = tables.topic(body.topic_id)
    holders = sorted({broker_id for partition in tables.partitions_of(topic) for broker_id in partition.replicas})
    records: list[Record] = [DeletedTopic(topic.topic_id, topic.tenant, topic.name, index, tuple(holders))]
    if len(tables.deleted_topics) >= limits.DELETED_TOPICS_MAX:
        oldest = min(tables.deleted_topics.values(), key=lambda deleted: deleted.version)
        records.append(DeletedTopicForgotten(oldest.topic_id))
    return done(records)


def confirm_deletions(tables: Tables, index: int, body: commands_pb2.ConfirmDeletions) -> Decision:
    broker = current_broker(tables, body.broker_id, body.broker_epoch)
    check_limit("topic ids in one command", len(body.topic_ids), limits.TOPIC_IDS_PER_COMMAND_MAX)
    check_distinct("topic ids", body.topic_ids)
    # Those that are forgotten by now are no mistake: the confirmation may come a second time.
    confirmed = [tables.deleted_topics[topic_id] for topic_id in body.topic_ids if topic_id in tables.deleted_topics]
    return done(
        [without_holder(deleted, broker.broker_id) for deleted in confirmed if broker.broker_id in deleted.brokers]
    )


def without_holder(deleted: DeletedTopic, broker_id: int) -> DeletedTopic | DeletedTopicForgotten:
    """The deleted topic after a broker has no files of it any more."""
    brokers = tuple(holder for holder in deleted.brokers if holder != broker_id)
    return replace(deleted, brokers=brokers) if brokers else DeletedTopicForgotten(deleted.topic_id)


# --- inside --------------------------------------------------------------------------------------------------------


def _shape(body: commands_pb2.CreateTopic) -> tuple[int, int]:
    """How many partitions, and how many replicas of each."""
    partition_count, replication_factor = body.partition_count, body.replication_factor
    if body.assignments:
        partition_count = partition_count or len(body.assignments)
        replication_factor = replication_factor or len(body.assignments[0].replicas)
    if partition_count < 1:
        raise InvalidArgumentError("a topic has at least one partition")
    check_limit("partitions of a topic", partition_count, limits.PARTITIONS_PER_TOPIC_MAX)
    return partition_count, check_range("replication_factor", replication_factor, 1, limits.REPLICATION_FACTOR_MAX)


def _new_partitions(
    tables: Tables,
    topic: Topic,
    *,
    first: int,
    assignments: Sequence[commands_pb2.ReplicaAssignment],
    placement_seed: int,
) -> list[Partition]:
    """The partitions of a topic from `first` on."""
    count = topic.partition_count - first
    check_limit("partitions", len(tables.partitions) + count, limits.PARTITIONS_MAX)
    if assignments and len(assignments) != count:
        raise InvalidArgumentError(f"{count} new partitions need as many assignments, not {len(assignments)}")
    placed = (
        [_assigned(tables, topic, assignment) for assignment in assignments]
        if assignments
        else place(
            candidates(tables),
            partition_count=count,
            replication_factor=topic.replication_factor,
            seed=placement_seed,
        )
    )
    return [
        _new_partition(tables, PartitionKey(topic.topic_id, first + number), replicas)
        for number, replicas in enumerate(placed)
    ]


def _assigned(tables: Tables, topic: Topic, assignment: commands_pb2.ReplicaAssignment) -> tuple[int, ...]:
    replicas = tuple(assignment.replicas)
    if len(replicas) != topic.replication_factor:
        raise InvalidArgumentError(
            f"an assignment names {len(replicas)} brokers, and the replication factor is {topic.replication_factor}"
        )
    check_distinct("brokers of an assignment", replicas)
    for broker_id in replicas:
        if tables.broker(broker_id).drain is not DrainGoal.NONE:
            raise InvalidArgumentError(f"broker {broker_id} is being drained and gets no new replicas")
    return replicas


def _new_partition(tables: Tables, key: PartitionKey, replicas: tuple[int, ...]) -> Partition:
    active = [broker_id for broker_id in replicas if not tables.brokers[broker_id].fenced]
    if not active:
        raise NotEnoughBrokersError(
            f"of the brokers {text_of(replicas)} none is active, so nobody could lead partition {key.partition}"
        )
    return Partition(key=key, replicas=replicas, isr=tuple(sorted(active)), leader=active[0])
