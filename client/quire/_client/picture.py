"""What a client knows of the cluster: brokers, topics, leaders. Made of FollowTopics messages. Pure.

Versions never go back: the stream is asked for nothing older than what is known. A leader epoch never does either, so
an answer that was overtaken cannot undo a newer one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from quire.v1 import broker_pb2, metadata_pb2


class BrokerPlace(NamedTuple):
    """A broker, as this client reaches it."""

    broker_id: int
    host: str
    port: int
    tls: bool
    active: bool

    @property
    def is_reachable(self) -> bool:
        """Whether it has an address by the listener that we came by."""
        return bool(self.host)


class Leadership(NamedTuple):
    leader: int
    """0 for none."""
    epoch: int


NOBODY = Leadership(0, -1)


@dataclass(frozen=True, slots=True)
class Changes:
    """What one message changed."""

    topics: tuple[str, ...] = ()
    """Names of topics that are now another, have more partitions, other settings, or are gone."""
    partitions: tuple[tuple[bytes, int], ...] = ()
    """Partitions with another leadership."""
    brokers: bool = False


@dataclass(slots=True)
class Picture:
    cluster_id: str = ""
    version: int = 0
    brokers: dict[int, BrokerPlace] = field(default_factory=dict)
    limits: broker_pb2.BrokerLimits = field(default_factory=broker_pb2.BrokerLimits)
    _topics: dict[str, metadata_pb2.Topic] = field(default_factory=dict)
    _missing: dict[str, None] = field(default_factory=dict)
    _leaders: dict[tuple[bytes, int], Leadership] = field(default_factory=dict)

    def topic(self, name: str) -> metadata_pb2.Topic | None:
        return self._topics.get(name)

    def is_missing(self, name: str) -> bool:
        """Whether the newest word of it was that there is no such topic."""
        return name in self._missing

    def leader(self, topic_id: bytes, partition: int) -> Leadership:
        return self._leaders.get((topic_id, partition), NOBODY)

    def apply(self, message: broker_pb2.FollowTopicsResponse, *, asked: Iterable[str]) -> Changes:
        """Take in a message of a stream that was asked for these topics; what it says of others is of the past."""
        wanted = set(asked)
        self.cluster_id = message.cluster_id or self.cluster_id
        self.version = max(self.version, message.version)
        if message.HasField("limits"):
            self.limits = message.limits
        brokers = self._apply_brokers(message)
        topics = [topic.name for topic in message.topics if topic.name in wanted and self._apply_topic(topic)]
        for ref in message.missing:
            if ref.name in wanted and not self.is_missing(ref.name):
                self._forget(ref.name)
                self._missing[ref.name] = None
                topics.append(ref.name)
        partitions = [(each.topic_id, each.partition) for each in message.partitions if self._apply_partition(each)]
        return Changes(tuple(topics), tuple(partitions), brokers)

    def forget(self, names: Iterable[str]) -> None:
        """Nobody asks for these topics any more."""
        for name in names:
            self._forget(name)
            self._missing.pop(name, None)

    def _forget(self, name: str) -> None:
        topic = self._topics.pop(name, None)
        if topic is not None:
            for partition in range(topic.partition_count):
                self._leaders.pop((topic.topic_id, partition), None)

    def _apply_brokers(self, message: broker_pb2.FollowTopicsResponse) -> bool:
        before = dict(self.brokers)
        for each in message.brokers:
            self.brokers[each.broker_id] = BrokerPlace(each.broker_id, each.host, each.port, each.tls, each.active)
        for broker_id in message.brokers_removed:
            self.brokers.pop(broker_id, None)
        return self.brokers != before

    def _apply_topic(self, topic: metadata_pb2.Topic) -> bool:
        before = self._topics.get(topic.name)
        if before == topic:
            return False
        if before is not None and before.topic_id != topic.topic_id:
            self._forget(topic.name)
        self._topics[topic.name] = topic
        self._missing.pop(topic.name, None)
        return True

    def _apply_partition(self, each: broker_pb2.PartitionLeader) -> bool:
        key = (each.topic_id, each.partition)
        now = Leadership(each.leader, each.leader_epoch)
        before = self._leaders.get(key, NOBODY)
        if now.epoch < before.epoch or now == before:
            return False
        self._leaders[key] = now
        return True
