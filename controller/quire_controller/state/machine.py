"""The state machine as a whole: a command in, a result out; freeze, restore, and what those who follow are told.

    bytes ──► parse ──► known feature level? ──► came before? ──► handler ──► records ──► replay ──► result
                 └────────── refused ─────────────────┘   └── refused ──► result

A handler sees the state as it was and gives records; nothing changes until it has returned, so a refusal leaves no
trace but the result that is remembered for a retry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, get_args

from google.protobuf.message import DecodeError

from quire.errors import InvalidArgumentError, QuireError, UnavailableError, UnsupportedFeatureError, invariant
from quire.v1 import commands_pb2, metadata_pb2
from quire_controller.state import brokers, cluster, limits, partitions, reassignments, snapshots, topics
from quire_controller.state.changes import RecentChanges
from quire_controller.state.codec import has_unknown_fields, metadata_record
from quire_controller.state.model import (
    ActiveController,
    Broker,
    ClientKey,
    Cluster,
    DeletedTopic,
    Partition,
    PartitionKey,
    Published,
    Record,
    Topic,
)
from quire_controller.state.results import Decision, encode, refusal
from quire_controller.state.sessions import client_of, earlier_result, with_result
from quire_controller.state.tables import Tables

HANDLERS: Final[Mapping[str, Callable[[Tables, int, Any], Decision]]] = {
    "initialize_cluster": cluster.initialize_cluster,
    "begin_term": cluster.begin_term,
    "raise_feature_level": cluster.raise_feature_level,
    "allocate_producer_ids": cluster.allocate_producer_ids,
    "register_broker": brokers.register_broker,
    "fence_broker": brokers.fence_broker,
    "unfence_broker": brokers.unfence_broker,
    "drain_broker": brokers.drain_broker,
    "unregister_broker": brokers.unregister_broker,
    "create_topic": topics.create_topic,
    "delete_topic": topics.delete_topic,
    "configure_topic": topics.configure_topic,
    "add_partitions": topics.add_partitions,
    "confirm_deletions": topics.confirm_deletions,
    "alter_partitions": partitions.alter_partitions,
    "move_leaders": partitions.move_leaders,
    "elect_preferred_leaders": partitions.elect_preferred_leaders,
    "complete_moves": partitions.complete_moves,
    "elect_last_isr": partitions.elect_last_isr,
    "elect_unclean": partitions.elect_unclean,
    "reassign_partition": reassignments.reassign_partition,
    "cancel_reassignment": reassignments.cancel_reassignment,
    "complete_reassignments": reassignments.complete_reassignments,
}
"""What carries out each kind of `Command.body`. Any: a handler's own signature says which message it takes."""

BEFORE_INITIALIZATION: Final = ("initialize_cluster", "begin_term")
_PUBLISHED: Final = get_args(Published)


class ControllerState:
    """Implements `quire_controller.ports.StateMachine`."""

    def __init__(self) -> None:
        self._tables = Tables()
        self._changes = RecentChanges()
        self._version = 0

    # -- the port --------------------------------------------------------------------------------------------------

    def apply(self, index: int, command: bytes) -> bytes:
        """Carry out a command and give the serialized `CommandResult`; for a bad one, one that says so."""
        invariant(index > self._version, f"index {index} is applied after {self._version}")
        key: ClientKey | None = None
        try:
            parsed = _parsed(command)
            _check_level(self._tables, parsed)
            key = client_of(parsed)
            session = None if key is None else self._tables.sessions.get(key)
            earlier = earlier_result(session, parsed.sequence)
        except QuireError as error:
            # Nobody is known whose command this could be, or it is too old: there is nothing to remember.
            self._version = index
            return encode(refusal(error), index=index)
        if earlier is not None:
            self._version = index
            return earlier
        try:
            decision = _decide(self._tables, index, parsed)
        except QuireError as error:
            decision = Decision([], refusal(error))
        result = encode(decision.result, index=index)
        records: list[Record] = list(decision.records)
        if key is not None:
            invariant(len(result) <= limits.RESULT_BYTES_MAX, f"a result of {len(result)} bytes")
            records.append(with_result(session, key, sequence=parsed.sequence, result=result, index=index))
        self._tables.replay(records)
        self._changes.add(index, [record for record in decision.records if isinstance(record, _PUBLISHED)])
        self._version = index
        return result

    def freeze(self) -> Iterator[bytes]:
        return snapshots.pieces(
            self._tables.picture(), version=self._version, published_version=self._changes.published_version
        )

    def restore(self, pieces: Iterable[bytes]) -> None:
        """Become what `freeze` gave. Raises DamagedFileError and stays what it was if the pieces are not readable."""
        found = snapshots.restored(pieces)
        self._tables = found.tables
        self._version = found.version
        self._changes = RecentChanges(published_version=found.published_version)

    # -- those who follow ------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The index of the last command that was applied."""
        return self._version

    @property
    def published_version(self) -> int:
        """The last version at which something changed that brokers are told of."""
        return self._changes.published_version

    def changes_since(self, version: int) -> list[metadata_pb2.MetadataDelta] | None:
        """What to tell someone who has applied `version`; the last delta reaches the current version.

        None if he is too far behind, or ahead: send him `snapshot_records` at `version`. Not to be changed.
        """
        return self._changes.since(version, current=self._version)

    def snapshot_records(self) -> Iterator[metadata_pb2.MetadataRecord]:
        """All published metadata of this moment, in the order in which it can be applied to an empty picture."""
        picture = self._tables.picture()
        return (metadata_record(value) for value in picture.everything() if isinstance(value, _PUBLISHED))

    # -- reading ---------------------------------------------------------------------------------------------------

    @property
    def tables(self) -> Tables:
        """Everything, to be read by what decides: `duties`. Only `apply` changes it."""
        return self._tables

    @property
    def cluster(self) -> Cluster | None:
        return self._tables.cluster

    @property
    def controller(self) -> ActiveController | None:
        """The controller that leads, as it announced itself."""
        return self._tables.controller

    @property
    def next_producer_id(self) -> int:
        return self._tables.producer_ids.next_producer_id

    @property
    def brokers(self) -> Mapping[int, Broker]:
        return MappingProxyType(self._tables.brokers)

    @property
    def topics(self) -> Mapping[bytes, Topic]:
        return MappingProxyType(self._tables.topics)

    @property
    def deleted_topics(self) -> Mapping[bytes, DeletedTopic]:
        return MappingProxyType(self._tables.deleted_topics)

    @property
    def partitions(self) -> Mapping[PartitionKey, Partition]:
        return MappingProxyType(self._tables.partitions)

    def topic_named(self, tenant: str, name: str) -> Topic | None:
        topic_id = self._tables.topic_ids.get((tenant, name))
        return None if topic_id is None else self._tables.topics[topic_id]

    def partitions_of(self, topic_id: bytes) -> list[Partition]:
        """In ascending order. Raises UnknownTopicError."""
        return self._tables.partitions_of(self._tables.topic(topic_id))

    def leaderless(self) -> list[Partition]:
        """Those that nobody leads, but for those whose leadership is on its way. In ascending order."""
        return [self._tables.partitions[key] for key in sorted(self._tables.leaderless)]

    def moving(self) -> list[Partition]:
        """Those whose leadership is on its way. In ascending order."""
        return [self._tables.partitions[key] for key in sorted(self._tables.moving)]

    def reassigning(self) -> list[Partition]:
        """Those whose replicas are being moved. In ascending order."""
        return [self._tables.partitions[key] for key in sorted(self._tables.reassigning)]

    def partitions_on(self, broker_id: int) -> list[Partition]:
        """Those that have a replica on the broker, in ascending order."""
        return self._tables.partitions_on(broker_id)


def _parsed(command: bytes) -> commands_pb2.Command:
    if len(command) > limits.COMMAND_BYTES_MAX:
        raise InvalidArgumentError(
            f"a command of {len(command)} bytes is over the limit of {limits.COMMAND_BYTES_MAX}"
        )
    try:
        parsed = commands_pb2.Command.FromString(command)
    except DecodeError as error:
        raise InvalidArgumentError("the command does not parse") from error
    return parsed


def _check_level(tables: Tables, command: commands_pb2.Command) -> None:
    """Refuse what some member may not understand, before this one looks at whether it does."""
    level = limits.FEATURE_LEVEL_MIN if tables.cluster is None else tables.cluster.feature_level
    if command.feature_level > level:
        raise UnsupportedFeatureError(
            f"the command needs feature level {command.feature_level}, and the cluster is at {level}", level=level
        )
    if has_unknown_fields(command) or command.WhichOneof("body") is None:
        raise UnsupportedFeatureError("the command is of a kind, or has a field, that this version does not know")


def _decide(tables: Tables, index: int, command: commands_pb2.Command) -> Decision:
    kind = command.WhichOneof("body")
    invariant(kind is not None, "a command without a body")
    if tables.cluster is None and kind not in BEFORE_INITIALIZATION:
        raise UnavailableError("the cluster has no id yet; initialize it first")
    return HANDLERS[str(kind)](tables, index, getattr(command, str(kind)))
