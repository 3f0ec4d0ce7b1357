"""The state as tables, and the only place that changes them.

Besides what is kept there are indexes, made from it: they are in no snapshot, and nothing depends on the order in
which they were filled. Whoever goes through one whose order matters sorts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from quire.errors import InvariantViolation, UnknownBrokerError, UnknownPartitionError, UnknownTopicError, invariant
from quire_controller.state import limits
from quire_controller.state.codec import Kept
from quire_controller.state.model import (
    ActiveController,
    Broker,
    BrokerRemoved,
    ClientKey,
    Cluster,
    DeletedTopic,
    DeletedTopicForgotten,
    Partition,
    PartitionKey,
    ProducerIds,
    Record,
    Session,
    Topic,
)


@dataclass
class Tables:
    cluster: Cluster | None = None
    controller: ActiveController | None = None
    producer_ids: ProducerIds = field(default_factory=lambda: ProducerIds(0))
    brokers: dict[int, Broker] = field(default_factory=dict)
    topics: dict[bytes, Topic] = field(default_factory=dict)
    deleted_topics: dict[bytes, DeletedTopic] = field(default_factory=dict)
    partitions: dict[PartitionKey, Partition] = field(default_factory=dict)
    sessions: dict[ClientKey, Session] = field(default_factory=dict)
    """The one silent longest first."""

    # Indexes. Of a dict with None as values only the keys count.
    topic_ids: dict[tuple[str, str], bytes] = field(default_factory=dict)
    """By (tenant, name)."""
    replicas_on: dict[int, dict[PartitionKey, None]] = field(default_factory=dict)
    preferred_count: dict[int, int] = field(default_factory=dict)
    """Of how many partitions a broker is the preferred leader."""
    leaderless: dict[PartitionKey, None] = field(default_factory=dict)
    """Partitions that nobody leads, but for those whose leadership is being moved."""
    moving: dict[PartitionKey, None] = field(default_factory=dict)
    reassigning: dict[PartitionKey, None] = field(default_factory=dict)
    elsewhere_led: dict[PartitionKey, None] = field(default_factory=dict)
    """Partitions led by another than their preferred leader."""

    # -- reading ---------------------------------------------------------------------------------------------------

    def known_cluster(self) -> Cluster:
        """For handlers of all commands but those that are taken before the cluster has an id."""
        if self.cluster is None:
            raise InvariantViolation("a cluster without an id")
        return self.cluster

    def topic(self, topic_id: bytes) -> Topic:
        topic = self.topics.get(topic_id)
        if topic is None:
            raise UnknownTopicError(
                f"there is no topic with the id {topic_id[:16].hex() or 'of no bytes'}; it may have been deleted",
                topic_id=topic_id[:16].hex(),
            )
        return topic

    def partition(self, key: PartitionKey) -> Partition:
        partition = self.partitions.get(key)
        if partition is None:
            topic = self.topic(key.topic_id)
            raise UnknownPartitionError(
                f"topic '{topic.name}' has the partitions 0 to {topic.partition_count - 1}, not {key.partition}",
                topic_id=topic.topic_id.hex(),
                partition=key.partition,
            )
        return partition

    def broker(self, broker_id: int) -> Broker:
        broker = self.brokers.get(broker_id)
        if broker is None:
            raise UnknownBrokerError(f"no broker {broker_id} is registered", broker_id=broker_id)
        return broker

    def partitions_on(self, broker_id: int) -> list[Partition]:
        """In ascending order."""
        return [self.partitions[key] for key in sorted(self.replicas_on.get(broker_id, ()))]

    def partitions_of(self, topic: Topic) -> list[Partition]:
        """In ascending order."""
        return [self.partitions[key] for key in topic.partition_keys()]

    def everything(self) -> Iterator[Kept]:
        """Every value, in an order that depends on nothing but the values and in which they can be replayed."""
        if self.cluster is not None:
            yield self.cluster
        if self.controller is not None:
            yield self.controller
        yield self.producer_ids
        yield from (self.brokers[broker_id] for broker_id in sorted(self.brokers))
        topics = [self.topics[topic_id] for topic_id in sorted(self.topics)]
        yield from topics
        yield from (self.deleted_topics[topic_id] for topic_id in sorted(self.deleted_topics))
        # Their order too, and without sorting them all at once: a snapshot is made while commands are carried out.
        for topic in topics:
            for partition in range(topic.partition_count):
                yield self.partitions[PartitionKey(topic.topic_id, partition)]
        yield from sorted(self.sessions.values(), key=lambda session: session.index)

    def picture(self) -> Tables:
        """What is kept, as it is now, without the indexes."""
        return Tables(
            cluster=self.cluster,
            controller=self.controller,
            producer_ids=self.producer_ids,
            brokers=dict(self.brokers),
            topics=dict(self.topics),
            deleted_topics=dict(self.deleted_topics),
            partitions=dict(self.partitions),
            sessions=dict(self.sessions),
        )

    # -- changing --------------------------------------------------------------------------------------------------

    def replay(self, records: Iterable[Record]) -> None:
        """Make the records true, one after the other."""
        for record in records:
            match record:
                case Partition():
                    self._put_partition(record)
                case Session():
                    self._put_session(record)
                case Topic():
                    self.topics[record.topic_id] = record
                    self.topic_ids[record.tenant, record.name] = record.topic_id
                case DeletedTopic():
                    self._put_deleted_topic(record)
                case DeletedTopicForgotten():
                    del self.deleted_topics[record.topic_id]
                case Broker():
                    self.brokers[record.broker_id] = record
                case BrokerRemoved():
                    del self.brokers[record.broker_id]
                case Cluster():
                    self.cluster = record
                case ActiveController():
                    self.controller = record
                case ProducerIds():
                    self.producer_ids = record

    def _put_partition(self, partition: Partition) -> None:
        key = partition.key
        invariant(key.topic_id in self.topics, f"partition {key} without a topic")
        before = self.partitions.get(key)
        if before is None or before.replicas != partition.replicas:
            if before is not None:
                self._leave_brokers(before)
            for broker_id in partition.replicas:
                self.replicas_on.setdefault(broker_id, {})[key] = None
            preferred = partition.preferred_leader
            self.preferred_count[preferred] = self.preferred_count.get(preferred, 0) + 1
        self.partitions[key] = partition
        led, moved = partition.leader is not None, partition.move is not None
        _mark(self.leaderless, key, not led and not moved)
        _mark(self.moving, key, moved)
        _mark(self.reassigning, key, partition.reassignment is not None)
        _mark(self.elsewhere_led, key, led and partition.leader != partition.preferred_leader)

    def _leave_brokers(self, partition: Partition) -> None:
        for broker_id in partition.replicas:
            held = self.replicas_on[broker_id]
            del held[partition.key]
            if not held:
                del self.replicas_on[broker_id]
        preferred = partition.preferred_leader
        self.preferred_count[preferred] -= 1
        if not self.preferred_count[preferred]:
            del self.preferred_count[preferred]

    def _put_deleted_topic(self, deleted: DeletedTopic) -> None:
        topic = self.topics.pop(deleted.topic_id, None)
        if topic is not None:
            del self.topic_ids[topic.tenant, topic.name]
            for key in topic.partition_keys():
                self._leave_brokers(self.partitions.pop(key))
                for index in (self.leaderless, self.moving, self.reassigning, self.elsewhere_led):
                    index.pop(key, None)
        self.deleted_topics[deleted.topic_id] = deleted

    def _put_session(self, session: Session) -> None:
        self.sessions.pop(session.key, None)
        self.sessions[session.key] = session
        while len(self.sessions) > limits.CLIENTS_MAX:
            del self.sessions[next(iter(self.sessions))]


def _mark(index: dict[PartitionKey, None], key: PartitionKey, present: bool) -> None:
    if present:
        index[key] = None
    else:
        index.pop(key, None)
