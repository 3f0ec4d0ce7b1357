"""Commands about the leaders and the ISRs of partitions. Each names many, and each of those goes well or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from quire.errors import (
    BrokerFencedError,
    InvalidArgumentError,
    NoEligibleLeaderError,
    QuireError,
    StaleBrokerEpochError,
    StaleEpochError,
)
from quire.v1 import commands_pb2, errors_pb2
from quire_controller.state import elections, limits
from quire_controller.state.checks import active_broker, check_distinct, check_limit, partition_at, text_of
from quire_controller.state.elections import Roster
from quire_controller.state.model import Partition, PartitionKey, Record
from quire_controller.state.results import Decision
from quire_controller.state.tables import Tables

Item = TypeVar("Item")


def alter_partitions(tables: Tables, index: int, body: commands_pb2.AlterPartitions) -> Decision:
    leader = active_broker(tables, body.broker_id, body.broker_epoch)

    def alter(change: commands_pb2.IsrChange) -> Partition:
        partition = tables.partition(PartitionKey(change.topic_id, change.partition))
        if (partition.leader, partition.leader_epoch) != (leader.broker_id, change.leader_epoch):
            raise StaleEpochError(
                f"broker {leader.broker_id} does not lead partition {partition.key} in epoch {change.leader_epoch}"
            )
        partition = partition_at(
            tables,
            commands_pb2.PartitionAt(
                topic_id=change.topic_id, partition=change.partition, partition_epoch=change.partition_epoch
            ),
        )
        _check_members(tables, partition, change)
        min_isr = tables.topics[partition.key.topic_id].min_isr
        members = [member.broker_id for member in change.isr]
        return elections.with_isr(partition, members, min_isr=min_isr, damaged=change.damaged)

    return for_each(tables, body.changes, lambda change: PartitionKey(change.topic_id, change.partition), alter)


def _check_members(tables: Tables, partition: Partition, change: commands_pb2.IsrChange) -> None:
    members = [member.broker_id for member in change.isr]
    check_distinct("members of an ISR", members)
    if partition.leader not in members or not set(members) <= set(partition.replicas):
        raise InvalidArgumentError(
            f"an ISR of partition {partition.key} has its leader, {partition.leader}, and otherwise some of its "
            f"replicas, {text_of(partition.replicas)}; not {text_of(members[:20])}"
        )
    for member in change.isr:
        broker = tables.broker(member.broker_id)
        # The leader saw a process in sync. One that has registered since may have lost what made it so.
        if broker.broker_epoch != member.broker_epoch:
            raise StaleBrokerEpochError(f"broker {broker.broker_id} has registered anew since it was in sync")
        if broker.fenced:
            raise BrokerFencedError(f"broker {broker.broker_id} is fenced and cannot join an ISR")


def move_leaders(tables: Tables, index: int, body: commands_pb2.MoveLeaders) -> Decision:
    roster = Roster(tables.brokers)

    def move(wanted: commands_pb2.LeaderTarget) -> Partition:
        partition = partition_at(tables, wanted.partition)
        return _moved(partition, wanted.to_broker, roster, version=index)

    return for_each(tables, body.moves, lambda wanted: key_of(wanted.partition), move)


def elect_preferred_leaders(tables: Tables, index: int, body: commands_pb2.ElectPreferredLeaders) -> Decision:
    roster = Roster(tables.brokers)

    def move(at: commands_pb2.PartitionAt) -> Partition:
        partition = partition_at(tables, at)
        return _moved(partition, partition.preferred_leader, roster, version=index)

    return for_each(tables, body.partitions, key_of, move)


def _moved(partition: Partition, to_broker: int, roster: Roster, *, version: int) -> Partition:
    if partition.leader == to_broker:
        return partition
    return elections.begin_move(partition, to_broker, roster, version=version)


def complete_moves(tables: Tables, index: int, body: commands_pb2.CompleteMoves) -> Decision:
    roster = Roster(tables.brokers)

    def complete(at: commands_pb2.PartitionAt) -> Partition:
        partition = partition_at(tables, at)
        min_isr = tables.topics[partition.key.topic_id].min_isr
        return elections.complete_move(partition, roster, min_isr=min_isr)

    return for_each(tables, body.partitions, key_of, complete)


def elect_last_isr(tables: Tables, index: int, body: commands_pb2.ElectLastIsr) -> Decision:
    roster = Roster(tables.brokers)

    def elect(at: commands_pb2.PartitionAt) -> Partition:
        partition = partition_at(tables, at)
        min_isr = tables.topics[partition.key.topic_id].min_isr
        return elections.elect_last_isr(partition, roster, min_isr=min_isr)

    return for_each(tables, body.partitions, key_of, elect)


def elect_unclean(tables: Tables, index: int, body: commands_pb2.ElectUnclean) -> Decision:
    roster = Roster(tables.brokers)

    def elect(at: commands_pb2.PartitionAt) -> Partition:
        partition = partition_at(tables, at)
        topic = tables.topics[partition.key.topic_id]
        if not topic.config.unclean_election:
            raise NoEligibleLeaderError(f"topic '{topic.name}' does not allow unclean elections")
        return elections.elect_unclean(partition, roster)

    return for_each(tables, body.partitions, key_of, elect)


# --- many partitions in one command --------------------------------------------------------------------------------


def key_of(at: commands_pb2.PartitionAt) -> PartitionKey:
    return PartitionKey(at.topic_id, at.partition)


def for_each(
    tables: Tables,
    items: Sequence[Item],
    key: Callable[[Item], PartitionKey],
    change: Callable[[Item], Partition],
) -> Decision:
    """What becomes of each partition, and how it went. A refusal of one does not keep the others."""
    check_limit("partitions in one command", len(items), limits.PARTITIONS_PER_COMMAND_MAX)
    # Each is decided as if it were alone, so one that is named twice would be changed from the same state twice.
    check_distinct("partitions in one command", [key(item) for item in items])
    records: list[Record] = []
    outcomes = []
    for item in items:
        now = tables.partitions.get(key(item))
        error = errors_pb2.ERROR_REASON_UNSPECIFIED
        try:
            after = change(item)
        except QuireError as refused:
            error = errors_pb2.ErrorReason.Value(f"ERROR_REASON_{refused.reason}")
        else:
            if now is not None and (changed := elections.changed(now, after)) is not None:
                records.append(changed)
                now = changed
        outcomes.append(
            commands_pb2.PartitionOutcome(
                error=error,
                partition_epoch=0 if now is None else now.partition_epoch,
                leader_epoch=0 if now is None else now.leader_epoch,
            )
        )
    result = commands_pb2.CommandResult(partitions=commands_pb2.PartitionOutcomes(outcomes=outcomes))
    return Decision(records, result)
