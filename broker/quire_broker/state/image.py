"""The published metadata as this broker knows it, kept up to date from a controller's stream.

    deltas      each says which version one must have reached before; a gap is refused, and nothing is changed
    snapshot    comes in parts, which are put together aside and take the place of everything with the last one
    alive       nothing

The version never goes back, whichever controllers are followed one after the other. Messages that are given out
belong to the image: they are replaced and never changed, so that whoever keeps one can tell by identity whether it is
new.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

from google.protobuf.message import Message

from quire.errors import UnavailableError
from quire.v1 import controller_pb2, metadata_pb2

K = TypeVar("K")
M = TypeVar("M", bound=Message)


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """What is now so, or no more: the image says which. All in ascending order."""

    version: int
    cluster: bool = False
    """The cluster itself, say its feature level."""
    brokers: tuple[int, ...] = ()
    topics: tuple[bytes, ...] = ()
    partitions: tuple[tuple[bytes, int], ...] = ()
    """Those of topics that were deleted, too."""
    deleted_topics: tuple[bytes, ...] = ()
    """Those that were deleted, or of which fewer brokers have files by now. Not those that are forgotten."""
    everything: bool = False
    """The image was replaced as a whole. The rest says how the new one differs from the one before."""


@dataclass(slots=True)
class _Tables:
    cluster: metadata_pb2.Cluster | None = None
    controller: metadata_pb2.ActiveController | None = None
    brokers: dict[int, metadata_pb2.Broker] = field(default_factory=dict)
    topics: dict[bytes, metadata_pb2.Topic] = field(default_factory=dict)
    topic_ids: dict[tuple[str, str], bytes] = field(default_factory=dict)
    deleted: dict[bytes, metadata_pb2.DeletedTopic] = field(default_factory=dict)
    partitions: dict[bytes, dict[int, metadata_pb2.Partition]] = field(default_factory=dict)


class _Notes:
    """What has changed so far."""

    def __init__(self) -> None:
        self.cluster = False
        self.brokers: set[int] = set()
        self.topics: set[bytes] = set()
        self.partitions: set[tuple[bytes, int]] = set()
        self.deleted: set[bytes] = set()

    def changes(self, version: int, tables: _Tables, *, everything: bool) -> Changes:
        return Changes(
            version=version,
            cluster=self.cluster,
            brokers=tuple(sorted(self.brokers)),
            topics=tuple(sorted(self.topics)),
            partitions=tuple(sorted(self.partitions)),
            deleted_topics=tuple(sorted(topic_id for topic_id in self.deleted if topic_id in tables.deleted)),
            everything=everything,
        )


class _Assembly:
    """A snapshot of which not all parts have come."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.tables = _Tables()
        self.notes = _Notes()


class MetadataImage:
    def __init__(self) -> None:
        self._tables = _Tables()
        self._version = 0
        self._assembly: _Assembly | None = None

    # -- what is known ---------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """0 as long as nothing is known."""
        return self._version

    @property
    def cluster_id(self) -> str:
        """Empty as long as it is not known."""
        return "" if self._tables.cluster is None else self._tables.cluster.cluster_id

    @property
    def feature_level(self) -> int:
        """The finalized one; 0 as long as it is not known."""
        return 0 if self._tables.cluster is None else self._tables.cluster.feature_level

    @property
    def active_controller(self) -> metadata_pb2.ActiveController | None:
        """The controller that leads, as it announced itself."""
        return self._tables.controller

    @property
    def brokers(self) -> Mapping[int, metadata_pb2.Broker]:
        return MappingProxyType(self._tables.brokers)

    @property
    def topics(self) -> Mapping[bytes, metadata_pb2.Topic]:
        """By id."""
        return MappingProxyType(self._tables.topics)

    @property
    def deleted_topics(self) -> Mapping[bytes, metadata_pb2.DeletedTopic]:
        """By id: those of which some broker may still have files."""
        return MappingProxyType(self._tables.deleted)

    def is_deleted(self, topic_id: bytes) -> bool:
        """Whether it is known to be deleted. That a topic is not known says nothing about it."""
        return topic_id in self._tables.deleted

    def topic(self, topic_id: bytes) -> metadata_pb2.Topic | None:
        return self._tables.topics.get(topic_id)

    def topic_named(self, tenant: str, name: str) -> metadata_pb2.Topic | None:
        topic_id = self._tables.topic_ids.get((tenant, name))
        return None if topic_id is None else self._tables.topics[topic_id]

    def partition(self, topic_id: bytes, index: int) -> metadata_pb2.Partition | None:
        of_topic = self._tables.partitions.get(topic_id)
        return None if of_topic is None else of_topic.get(index)

    def partitions_of(self, topic_id: bytes) -> list[metadata_pb2.Partition]:
        """In ascending order."""
        of_topic = self._tables.partitions.get(topic_id, {})
        return [of_topic[index] for index in sorted(of_topic)]

    def partitions(self) -> Iterator[metadata_pb2.Partition]:
        """All of them. Nothing may be applied meanwhile."""
        for of_topic in self._tables.partitions.values():
            yield from of_topic.values()

    # -- what is heard ---------------------------------------------------------------------------------------------

    def on_stream_begun(self) -> None:
        """Another stream: the parts that came by the last one are worth nothing."""
        self._assembly = None

    def apply(self, message: controller_pb2.WatchMetadataResponse) -> Changes | None:
        """What changed; None if not even the version did. Raises UnavailableError for what does not fit.

        After that the image is what it was, and another stream is to be begun.
        """
        match message.WhichOneof("kind"):
            case "deltas":
                return self._apply_deltas(message.deltas)
            case "snapshot":
                return self._apply_part(message.snapshot)
            case "alive":
                if message.alive.version > self._version:
                    raise _misfit(f"nothing was sent between version {self._version} and {message.alive.version}")
        return None

    def _apply_deltas(self, message: controller_pb2.MetadataDeltas) -> Changes | None:
        if self._assembly is not None:
            raise _misfit("a snapshot was not sent to its end")
        reached = self._version
        for delta in message.deltas:
            # All are looked at before the first is applied: what raises has changed nothing.
            if delta.version <= reached:
                continue
            if delta.previous_version > reached:
                raise _misfit(f"what led from version {reached} to {delta.previous_version} was left out")
            reached = delta.version
        if reached == self._version:
            return None
        notes = _Notes()
        for delta in message.deltas:
            if delta.version > self._version:
                for record in delta.records:
                    _put(self._tables, record, known=self._tables, notes=notes, is_delta=True)
                self._version = delta.version
        return notes.changes(self._version, self._tables, everything=False)

    def _apply_part(self, part: metadata_pb2.MetadataSnapshot) -> Changes | None:
        if part.version < self._version:
            raise _misfit(f"version {part.version} is older than {self._version}, which is known here")
        if part.first:
            self._assembly = _Assembly(part.version)
        assembly = self._assembly
        if assembly is None or assembly.version != part.version:
            raise _misfit(f"a part of a snapshot of version {part.version} comes without the first one")
        for record in part.records:
            _put(assembly.tables, record, known=self._tables, notes=assembly.notes, is_delta=False)
        if not part.last:
            return None
        self._assembly = None
        _note_gone(self._tables, assembly.tables, assembly.notes)
        self._tables, self._version = assembly.tables, part.version
        return assembly.notes.changes(self._version, self._tables, everything=True)


def _misfit(what: str) -> UnavailableError:
    return UnavailableError(f"the controller's stream of metadata does not fit ({what}); it is begun anew")


def _put(
    tables: _Tables, record: metadata_pb2.MetadataRecord, *, known: _Tables, notes: _Notes, is_delta: bool
) -> None:
    """One record. `known` is what was so before; it may be `tables` itself."""
    match record.WhichOneof("kind"):
        case "partition":
            partition = record.partition
            topic_id, index = partition.topic_id, partition.partition
            before = known.partitions.get(topic_id, {}).get(index)
            tables.partitions.setdefault(topic_id, {})[index] = kept = _kept(partition, before, is_delta)
            if kept is not before:
                notes.partitions.add((topic_id, index))
        case "topic":
            topic_id, was = record.topic.topic_id, known.topics.get(record.topic.topic_id)
            tables.topics[topic_id] = topic = _kept(record.topic, was, is_delta)
            tables.topic_ids[topic.tenant, topic.name] = topic_id
            if topic is not was:
                notes.topics.add(topic_id)
        case "topic_deleted":
            _delete(tables, record.topic_deleted, known=known, notes=notes, is_delta=is_delta)
        case "deleted_topic_forgotten":
            tables.deleted.pop(record.deleted_topic_forgotten, None)
        case "broker":
            broker_id, registered = record.broker.broker_id, known.brokers.get(record.broker.broker_id)
            tables.brokers[broker_id] = broker = _kept(record.broker, registered, is_delta)
            if broker is not registered:
                notes.brokers.add(broker_id)
        case "broker_removed":
            if tables.brokers.pop(record.broker_removed, None) is not None:
                notes.brokers.add(record.broker_removed)
        case "cluster":
            cluster = known.cluster
            tables.cluster = _kept(record.cluster, cluster, is_delta)
            notes.cluster |= tables.cluster is not cluster
        case "active_controller":
            tables.controller = _kept(record.active_controller, known.controller, is_delta)
        case None:
            pass  # a kind that this version may do without, or it would not have been sent


def _delete(
    tables: _Tables, deleted: metadata_pb2.DeletedTopic, *, known: _Tables, notes: _Notes, is_delta: bool
) -> None:
    topic_id, before = deleted.topic_id, known.deleted.get(deleted.topic_id)
    topic = tables.topics.pop(topic_id, None)
    if topic is not None:
        notes.topics.add(topic_id)
        if tables.topic_ids.get((topic.tenant, topic.name)) == topic_id:
            del tables.topic_ids[topic.tenant, topic.name]
    notes.partitions.update((topic_id, index) for index in tables.partitions.pop(topic_id, ()))
    tables.deleted[topic_id] = kept = _kept(deleted, before, is_delta)
    if kept is not before:
        notes.deleted.add(topic_id)


def _kept(message: M, before: M | None, is_delta: bool) -> M:
    """The message to keep: the one that there was, if nothing is different.

    A delta's are copied, because a part of a message keeps all of it in memory. A snapshot's are not: nearly all of
    them stay.
    """
    if before is not None and before == message:
        return before
    if not is_delta:
        return message
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def _note_gone(before: _Tables, after: _Tables, notes: _Notes) -> None:
    """What the image had and the one that replaces it has not."""
    notes.brokers.update(before.brokers.keys() - after.brokers.keys())
    notes.topics.update(before.topics.keys() - after.topics.keys())
    for topic_id, of_topic in before.partitions.items():
        left = after.partitions.get(topic_id, {})
        notes.partitions.update((topic_id, index) for index in of_topic.keys() - left.keys())
