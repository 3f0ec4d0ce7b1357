"""What Admin tells of topics and of the cluster: plain data, made of messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from quire._client import topic_config
from quire._client.topic_config import Setting
from quire.v1 import controller_pb2, metadata_pb2


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicSummary:
    name: str
    topic_id: UUID
    """A topic that is deleted and made anew has another one."""
    partitions: int
    replication_factor: int
    internal: bool
    """Whether it is Quire's own."""
    config: Mapping[str, Setting]
    """The settings that do not have their defaults."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionDescription:
    partition: int
    leader: int | None
    """The broker that leads it; None at the moment without one."""
    leader_epoch: int
    replicas: tuple[int, ...]
    """The brokers that have it, the preferred leader first."""
    isr: tuple[int, ...]
    """Those that are in sync."""
    target: tuple[int, ...] | None
    """The brokers that are to have it; None unless it is being moved."""
    original: tuple[int, ...] | None = None
    """The brokers that had it before; None unless it is being moved."""
    cancelled: bool = False
    """Whether its move is being turned back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicDescription:
    name: str
    topic_id: UUID
    replication_factor: int
    internal: bool
    config: Mapping[str, Setting]
    partitions: tuple[PartitionDescription, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionOffsets:
    earliest: int
    """The first offset that can be read."""
    latest: int
    """The one that the next committed record gets."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FollowerLag:
    """What the leader of a partition knows of another replica."""

    broker_id: int
    records: int | None
    """How many it does not have yet; None for one that does not follow."""
    size_bytes: int | None
    """Their size, and up to an index interval more; None where that is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MoveDescription:
    """A partition whose replicas are being moved to other brokers."""

    topic: str
    partition: int
    original: tuple[int, ...]
    """The brokers that had it, or have it if this move is being turned back."""
    target: tuple[int, ...]
    """The brokers that are to have it."""
    cancelled: bool
    """Whether it is being turned back."""
    followers: tuple[FollowerLag, ...]
    """How far its replicas are; empty where the leader did not say."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ListenerDescription:
    name: str
    protocol: str
    """`grpc`, `peer`, `http` or `kafka`."""
    host: str
    port: int
    tls: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerDescription:
    broker_id: int
    broker_epoch: int
    """Which registration this is."""
    node_id: str
    rack: str
    listeners: tuple[ListenerDescription, ...]
    fenced: bool
    """Whether it is shut out: it leads nothing."""
    drain: str | None
    """What it is to be rid of: `leaderships` or `replicas`."""
    replicas: int
    leaderships: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterDescription:
    cluster_id: str
    feature_level: int
    version: int
    """Of the metadata that this shows."""
    controller_id: str
    """The controller that leads."""
    brokers: tuple[BrokerDescription, ...]
    topics: int
    partitions: int
    leaderless: int
    """Partitions that nobody leads."""
    under_replicated: int
    """Partitions with fewer replicas in sync than they have replicas."""
    moving: int
    """Leaderships on their way to another broker."""
    reassigning: int
    """Partitions whose replicas are being moved."""
    deleted_topics: int
    """Deleted topics of which some broker may still have files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QuorumMember:
    member_id: str
    peer_address: str
    grpc_address: str
    connected: bool
    match_index: int | None
    """Up to where it has the leader's entries; only the leader knows."""
    problem: str
    """Why there is no session with it, where that is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QuorumDescription:
    """The controllers, as the one that was asked sees them."""

    cluster_id: str
    member_id: str
    """The one that answered."""
    role: str
    """What it does: `follower`, `candidate`, `leader` or `learner`."""
    leader_id: str | None
    term: int
    commit_index: int
    applied_index: int
    first_index: int
    last_index: int
    snapshot_index: int
    journal_bytes: int
    disk_full: bool
    members: tuple[QuorumMember, ...]


# --- made of messages ----------------------------------------------------------------------------------------------


def topic_summary(topic: metadata_pb2.Topic) -> TopicSummary:
    return TopicSummary(
        name=topic.name,
        topic_id=UUID(bytes=topic.topic_id),
        partitions=topic.partition_count,
        replication_factor=topic.replication_factor,
        internal=topic.internal,
        config=topic_config.from_wire(topic.config),
    )


def topic_description(answer: controller_pb2.DescribeTopicResponse) -> TopicDescription:
    topic = answer.topic
    return TopicDescription(
        name=topic.name,
        topic_id=UUID(bytes=topic.topic_id),
        replication_factor=topic.replication_factor,
        internal=topic.internal,
        config=topic_config.from_wire(topic.config),
        partitions=tuple(
            PartitionDescription(
                partition=each.partition,
                leader=each.leader or None,
                leader_epoch=each.leader_epoch,
                replicas=tuple(each.replicas),
                isr=tuple(each.isr),
                target=tuple(each.reassignment.target) if each.HasField("reassignment") else None,
                original=tuple(each.reassignment.original) if each.HasField("reassignment") else None,
                cancelled=each.reassignment.cancelled,
            )
            for each in answer.partitions
        ),
    )


def cluster_description(answer: controller_pb2.DescribeClusterResponse) -> ClusterDescription:
    return ClusterDescription(
        cluster_id=answer.cluster.cluster_id,
        feature_level=answer.cluster.feature_level,
        version=answer.version,
        controller_id=answer.active_controller.controller_id,
        brokers=tuple(map(_broker, answer.brokers)),
        topics=answer.topics,
        partitions=answer.partitions,
        leaderless=answer.leaderless,
        under_replicated=answer.under_replicated,
        moving=answer.moving,
        reassigning=answer.reassigning,
        deleted_topics=answer.deleted_topics,
    )


def quorum_description(answer: controller_pb2.DescribeQuorumResponse) -> QuorumDescription:
    return QuorumDescription(
        cluster_id=answer.cluster_id,
        member_id=answer.member_id,
        role=_word(controller_pb2.QuorumRole.Name(answer.role), "QUORUM_ROLE_"),
        leader_id=answer.leader_id or None,
        term=answer.term,
        commit_index=answer.commit_index,
        applied_index=answer.applied_index,
        first_index=answer.first_index,
        last_index=answer.last_index,
        snapshot_index=answer.snapshot_index,
        journal_bytes=answer.journal_bytes,
        disk_full=answer.disk_full,
        members=tuple(
            QuorumMember(
                member_id=each.member_id,
                peer_address=each.peer_address,
                grpc_address=each.grpc_address,
                connected=each.connected,
                match_index=each.match_index if each.HasField("match_index") else None,
                problem=each.problem,
            )
            for each in answer.members
        ),
    )


def _broker(described: controller_pb2.BrokerDescription) -> BrokerDescription:
    broker = described.broker
    return BrokerDescription(
        broker_id=broker.broker_id,
        broker_epoch=broker.broker_epoch,
        node_id=broker.node_id,
        rack=broker.rack,
        listeners=tuple(
            ListenerDescription(
                name=each.name,
                protocol=_word(metadata_pb2.ListenerProtocol.Name(each.protocol), "LISTENER_PROTOCOL_"),
                host=each.host,
                port=each.port,
                tls=each.tls,
            )
            for each in broker.listeners
        ),
        fenced=broker.fenced,
        drain=_word(metadata_pb2.DrainGoal.Name(broker.drain), "DRAIN_GOAL_") if broker.drain else None,
        replicas=described.replicas,
        leaderships=described.leaderships,
    )


def _word(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).lower()
