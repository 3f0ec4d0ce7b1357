"""Commands about brokers: they register, are let in and shut out, are drained, and go."""

from __future__ import annotations

from dataclasses import replace

from quire.errors import BrokerNotEmptyError, InvalidArgumentError, UnsupportedFeatureError
from quire.v1 import commands_pb2, metadata_pb2
from quire_controller.state import elections, limits
from quire_controller.state.checks import (
    HOST,
    LABEL,
    check_distinct,
    check_limit,
    check_name,
    check_range,
    check_uuid,
    current_broker,
)
from quire_controller.state.cluster import check_cluster_id, deposed
from quire_controller.state.codec import read_listener
from quire_controller.state.elections import Departure, Roster
from quire_controller.state.model import (
    Broker,
    BrokerRemoved,
    DeletedTopic,
    DrainGoal,
    LastIsrReport,
    Listener,
    PartitionKey,
    Record,
)
from quire_controller.state.results import Decision, done
from quire_controller.state.tables import Tables
from quire_controller.state.topics import without_holder


def register_broker(tables: Tables, index: int, body: commands_pb2.RegisterBroker) -> Decision:
    check_cluster_id(tables, body.cluster_id)
    check_range("broker_id", body.broker_id, 1, limits.BROKER_ID_MAX)
    check_uuid("incarnation id", body.incarnation_id)
    node_id = check_name("node id", body.node_id or str(body.broker_id))
    if body.rack:
        check_name("rack", body.rack, LABEL)
    _check_features(tables, body)
    if any(other.node_id == node_id and other.broker_id != body.broker_id for other in tables.brokers.values()):
        raise InvalidArgumentError(f"node '{node_id}' is registered under another broker id")
    log_ends = _log_ends(body)

    before = tables.brokers.get(body.broker_id)
    if before is None:
        check_limit("brokers", len(tables.brokers) + 1, limits.BROKERS_MAX)
    broker = Broker(
        broker_id=body.broker_id,
        broker_epoch=index,
        incarnation_id=body.incarnation_id,
        node_id=node_id,
        rack=body.rack,
        listeners=_listeners(body),
        level_min=body.features.level_min,
        level_max=body.features.level_max,
        # What an operator wants of a broker outlasts its process.
        drain=DrainGoal.NONE if before is None else before.drain,
    )
    wiped = before is None or before.incarnation_id != broker.incarnation_id
    records: list[Record] = [broker]
    records += _departed(tables, broker, Departure.WIPED if wiped else Departure.RESTARTED, log_ends)
    if wiped:
        records += [
            without_holder(deleted, broker.broker_id) for deleted in _deleted_topics_on(tables, broker.broker_id)
        ]
    registered = commands_pb2.BrokerRegistered(broker_epoch=index)
    return Decision(records, commands_pb2.CommandResult(broker_registered=registered))


def fence_broker(tables: Tables, index: int, body: commands_pb2.FenceBroker) -> Decision:
    broker = current_broker(tables, body.broker_id, body.broker_epoch)
    if body.cause not in (
        commands_pb2.FENCE_CAUSE_LEASE_EXPIRED,
        commands_pb2.FENCE_CAUSE_CRASHED,
        commands_pb2.FENCE_CAUSE_STOPPING,
    ):
        raise InvalidArgumentError("a broker is fenced because its lease expired, it crashed, or it is stopping")
    expired = body.cause == commands_pb2.FENCE_CAUSE_LEASE_EXPIRED
    if expired and (tables.controller is None or body.term != tables.controller.term):
        # A controller that was deposed without noticing hears no heartbeats, and would shut out the living.
        raise deposed(tables, body.term)
    if broker.fenced:
        return done([])
    broker = replace(broker, fenced=True)
    return done([broker, *_departed(tables, broker, Departure.FENCED, {})])


def unfence_broker(tables: Tables, index: int, body: commands_pb2.UnfenceBroker) -> Decision:
    broker = current_broker(tables, body.broker_id, body.broker_epoch)
    check_range("lease_ms", body.lease_ms, limits.LEASE_MS_MIN, limits.LEASE_MS_MAX)
    if not broker.fenced:
        # Also with another lease: the broker counts on the one that it was granted.
        return done([])
    broker = replace(broker, fenced=False, lease_ms=body.lease_ms)
    roster = Roster(tables.brokers, broker)
    records: list[Record] = [broker]
    for partition in tables.partitions_on(broker.broker_id):
        min_isr = tables.topics[partition.key.topic_id].min_isr
        after = elections.changed(partition, elections.elect(partition, roster, min_isr=min_isr))
        if after is not None:
            records.append(after)
    return done(records)


def drain_broker(tables: Tables, index: int, body: commands_pb2.DrainBroker) -> Decision:
    broker = tables.broker(body.broker_id)
    try:
        goal = DrainGoal(body.goal)
    except ValueError as error:
        raise InvalidArgumentError("a broker is drained of leaderships, of replicas, or not at all") from error
    return done([] if broker.drain is goal else [replace(broker, drain=goal)])


def unregister_broker(tables: Tables, index: int, body: commands_pb2.UnregisterBroker) -> Decision:
    broker = current_broker(tables, body.broker_id, body.broker_epoch)
    held = tables.replicas_on.get(broker.broker_id, {})
    if held:
        raise BrokerNotEmptyError(
            f"broker {broker.broker_id} has {len(held)} replicas; drain it of them first", replicas=len(held)
        )
    gone: list[Record] = [
        without_holder(deleted, broker.broker_id) for deleted in _deleted_topics_on(tables, broker.broker_id)
    ]
    return done([*gone, BrokerRemoved(broker.broker_id)])


# --- inside --------------------------------------------------------------------------------------------------------


def _departed(
    tables: Tables, broker: Broker, how: Departure, log_ends: dict[PartitionKey, commands_pb2.LogEnd]
) -> list[Record]:
    """What becomes of the partitions of a broker that was fenced or has registered anew."""
    roster = Roster(tables.brokers, broker)
    records: list[Record] = []
    for partition in tables.partitions_on(broker.broker_id):
        found = log_ends.get(partition.key)
        report = LastIsrReport(
            broker.broker_id,
            broker.broker_epoch,
            last_epoch=-1 if found is None else found.last_epoch,
            log_end_offset=-1 if found is None else found.log_end_offset,
        )
        min_isr = tables.topics[partition.key.topic_id].min_isr
        after = elections.on_departure(partition, broker.broker_id, how, roster, min_isr=min_isr, report=report)
        if (changed := elections.changed(partition, after)) is not None:
            records.append(changed)
    return records


def _deleted_topics_on(tables: Tables, broker_id: int) -> list[DeletedTopic]:
    return [deleted for _, deleted in sorted(tables.deleted_topics.items()) if broker_id in deleted.brokers]


def _check_features(tables: Tables, body: commands_pb2.RegisterBroker) -> None:
    level_min, level_max = body.features.level_min, body.features.level_max
    if not 1 <= level_min <= level_max:
        raise InvalidArgumentError(f"{level_min} to {level_max} is no range of feature levels")
    level = tables.known_cluster().feature_level
    if not level_min <= level <= level_max:
        raise UnsupportedFeatureError(
            f"the cluster is at feature level {level}, and broker {body.broker_id} can work at {level_min} to "
            f"{level_max}; upgrade the one that is older",
            level=level,
        )


def _listeners(body: commands_pb2.RegisterBroker) -> tuple[Listener, ...]:
    check_limit("listeners", len(body.listeners), limits.LISTENERS_MAX)
    check_distinct("listeners' names", [listener.name for listener in body.listeners])
    return tuple(sorted(map(_listener, body.listeners), key=lambda listener: listener.name))


def _listener(message: metadata_pb2.Listener) -> Listener:
    check_name("listener's name", message.name, LABEL)
    check_range("port", message.port, 1, 65_535)
    check_name("host", message.host, HOST)
    try:
        return read_listener(message)
    except ValueError as error:
        raise InvalidArgumentError(f"listener '{message.name}' speaks no protocol that is known") from error


def _log_ends(body: commands_pb2.RegisterBroker) -> dict[PartitionKey, commands_pb2.LogEnd]:
    check_limit("log ends", len(body.log_ends), limits.LOG_ENDS_MAX)
    found = {}
    for end in body.log_ends:
        check_range("last_epoch", end.last_epoch, -1, limits.EPOCH_MAX)
        check_range("log_end_offset", end.log_end_offset, 0, limits.OFFSET_MAX)
        found[PartitionKey(end.topic_id, end.partition)] = end
    check_distinct("partitions of log ends", [(end.topic_id, end.partition) for end in body.log_ends])
    return found
