"""What the state consists of. Values are replaced and never changed, so that a copy of the tables is a picture."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

UNLIMITED = -1
"""What a retention setting says to keep everything."""


class PartitionKey(NamedTuple):
    topic_id: bytes
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id.hex()}-{self.partition}"


class Partitioner(enum.IntEnum):
    """quire.v1.Partitioner, by number."""

    DEFAULT = 0
    MURMUR3 = 1
    MURMUR2 = 2


class CleanupPolicy(enum.IntEnum):
    """quire.v1.CleanupPolicy, by number."""

    DEFAULT = 0
    DELETE = 1
    COMPACT = 2
    COMPACT_AND_DELETE = 3


class FlushMode(enum.IntEnum):
    """quire.v1.FlushMode, by number."""

    DEFAULT = 0
    FSYNC = 1
    INTERVAL = 2
    OS = 3


class ListenerProtocol(enum.IntEnum):
    """quire.v1.ListenerProtocol, by number."""

    GRPC = 1
    PEER = 2
    HTTP = 3
    KAFKA = 4


class DrainGoal(enum.IntEnum):
    """quire.v1.DrainGoal, by number."""

    NONE = 0
    LEADERSHIPS = 1
    REPLICAS = 2


@dataclass(frozen=True, slots=True)
class Flush:
    mode: FlushMode
    interval_ms: int | None = None


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic's settings; None, or DEFAULT, where it sets nothing. quire.v1.TopicConfig says what they mean."""

    partitioner: Partitioner = Partitioner.DEFAULT
    flush: Flush | None = None
    min_isr: int | None = None
    retention_ms: int | None = None
    retention_bytes: int | None = None
    retention_segments: int | None = None
    segment_bytes: int | None = None
    cleanup: CleanupPolicy = CleanupPolicy.DEFAULT
    message_bytes_max: int | None = None
    unclean_election: bool | None = None


@dataclass(frozen=True, slots=True)
class Topic:
    topic_id: bytes
    tenant: str
    name: str
    internal: bool
    partition_count: int
    replication_factor: int
    config: TopicConfig

    @property
    def min_isr(self) -> int:
        """How many must be in sync for the high watermark to move. Brokers count in the same way."""
        return self.replication_factor // 2 + 1 if self.config.min_isr is None else self.config.min_isr

    def partition_keys(self) -> list[PartitionKey]:
        return [PartitionKey(self.topic_id, partition) for partition in range(self.partition_count)]


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """A topic that is no more, while some broker may have files of it."""

    topic_id: bytes
    tenant: str
    name: str
    version: int
    brokers: tuple[int, ...]
    """Who has not confirmed that its files are gone."""


@dataclass(frozen=True, slots=True)
class LastIsrReport:
    """What a restarted replica found in its log."""

    broker_id: int
    broker_epoch: int
    last_epoch: int
    log_end_offset: int
    """-1: it said nothing about this partition, and cannot lead it."""


@dataclass(frozen=True, slots=True)
class LeaderMove:
    """A leadership on its way from a live broker to another."""

    from_broker: int
    from_broker_epoch: int
    to_broker: int
    version: int


@dataclass(frozen=True, slots=True)
class Reassignment:
    target: tuple[int, ...]
    original: tuple[int, ...]
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Partition:
    key: PartitionKey
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    """In ascending order. Without a leader: the last one."""
    eligible: tuple[int, ...] = ()
    """Outside of the ISR, and holding everything below the high watermark all the same. In ascending order."""
    leader: int | None = None
    leader_epoch: int = 0
    partition_epoch: int = 0
    reports: tuple[LastIsrReport, ...] = ()
    """Of the members of the last ISR that restarted while nobody led: they may have lost what they had not synced."""
    move: LeaderMove | None = None
    reassignment: Reassignment | None = None
    reserve: tuple[LastIsrReport, ...] = ()
    """Of those that restarted and left, the ISR being below its minimum since: who is left if its last is wiped."""

    @property
    def preferred_leader(self) -> int:
        return self.replicas[0]

    @property
    def restarted(self) -> frozenset[int]:
        return frozenset(report.broker_id for report in self.reports)


@dataclass(frozen=True, slots=True)
class Listener:
    name: str
    protocol: ListenerProtocol
    host: str
    port: int
    tls: bool


@dataclass(frozen=True, slots=True)
class Broker:
    broker_id: int
    broker_epoch: int
    incarnation_id: bytes
    node_id: str
    rack: str
    listeners: tuple[Listener, ...]
    level_min: int
    level_max: int
    fenced: bool = True
    drain: DrainGoal = DrainGoal.NONE
    lease_ms: int = 0


@dataclass(frozen=True, slots=True)
class Cluster:
    cluster_id: str
    feature_level: int


@dataclass(frozen=True, slots=True)
class ActiveController:
    term: int
    controller_id: str


@dataclass(frozen=True, slots=True)
class ProducerIds:
    next_producer_id: int


class ClientKey(NamedTuple):
    """A process that proposes commands."""

    client_id: str
    incarnation: bytes


@dataclass(frozen=True, slots=True)
class Session:
    """The newest commands of a proposer, and what they were answered."""

    key: ClientKey
    index: int
    results: tuple[tuple[int, bytes], ...]
    """(sequence, serialized CommandResult), in ascending order of sequences."""


@dataclass(frozen=True, slots=True)
class BrokerRemoved:
    broker_id: int


@dataclass(frozen=True, slots=True)
class DeletedTopicForgotten:
    topic_id: bytes


Published = (
    Cluster | ActiveController | Broker | BrokerRemoved | Topic | DeletedTopic | DeletedTopicForgotten | Partition
)
"""Changes that everyone is told of: something is now so, or is no more. DeletedTopic takes the topic away."""

Record = Published | ProducerIds | Session
"""All that can change."""
