"""Commands that move a partition's replicas to other brokers.

| step | replicas | over when |
|---|---|---|
| `ReassignPartition` | those of the target, then those that go | the leader has added all of the target to the ISR |
| `CompleteReassignments` | those of the target | at once, or when the leadership of one that goes was moved |
| `CancelReassignment` | those that it had | the same, but nobody has to become in sync |
"""

from __future__ import annotations

from dataclasses import replace

from quire.errors import (
    BrokerFencedError,
    InvalidArgumentError,
    NoEligibleLeaderError,
    NoReassignmentInProgressError,
    ReassignmentInProgressError,
)
from quire.v1 import commands_pb2
from quire_controller.state import elections
from quire_controller.state.checks import check_distinct, partition_at
from quire_controller.state.elections import Roster
from quire_controller.state.model import DrainGoal, Partition, Reassignment
from quire_controller.state.partitions import for_each, key_of
from quire_controller.state.results import Decision, done
from quire_controller.state.tables import Tables


def reassign_partition(tables: Tables, index: int, body: commands_pb2.ReassignPartition) -> Decision:
    partition = partition_at(tables, body.partition)
    topic = tables.topics[partition.key.topic_id]
    if partition.reassignment is not None:
        raise ReassignmentInProgressError(f"the replicas of partition {partition.key} are being moved already")
    target = tuple(body.target)
    if len(target) != topic.replication_factor:
        raise InvalidArgumentError(
            f"topic '{topic.name}' has {topic.replication_factor} replicas a partition, and the target {len(target)}"
        )
    check_distinct("brokers of a target", target)
    for broker_id in target:
        broker = tables.broker(broker_id)
        if broker_id in partition.replicas:
            continue
        if broker.drain is not DrainGoal.NONE:
            raise InvalidArgumentError(f"broker {broker_id} is being drained and gets no new replicas")
        if broker.fenced:
            raise BrokerFencedError(f"broker {broker_id} is fenced and gets no new replicas", broker_id=broker_id)
    if target == partition.replicas:
        return done([])
    going = tuple(broker_id for broker_id in partition.replicas if broker_id not in target)
    after = elections.changed(
        partition,
        replace(
            partition, replicas=target + going, reassignment=Reassignment(target=target, original=partition.replicas)
        ),
    )
    return done([] if after is None else [after])


def cancel_reassignment(tables: Tables, index: int, body: commands_pb2.CancelReassignment) -> Decision:
    partition = partition_at(tables, body.partition)
    reassignment = partition.reassignment
    if reassignment is None:
        raise NoReassignmentInProgressError(f"the replicas of partition {partition.key} are not being moved")
    if reassignment.cancelled:
        return done([])
    back = Reassignment(target=reassignment.original, original=reassignment.target, cancelled=True)
    going = tuple(broker_id for broker_id in partition.replicas if broker_id not in back.target)
    turned = replace(partition, replicas=back.target + going, reassignment=back)
    after = elections.changed(partition, _finished(turned, Roster(tables.brokers), version=index) or turned)
    return done([] if after is None else [after])


def complete_reassignments(tables: Tables, index: int, body: commands_pb2.CompleteReassignments) -> Decision:
    roster = Roster(tables.brokers)

    def complete(at: commands_pb2.PartitionAt) -> Partition:
        partition = partition_at(tables, at)
        if partition.reassignment is None:
            raise NoReassignmentInProgressError(f"the replicas of partition {partition.key} are not being moved")
        after = _finished(partition, roster, version=index)
        if after is None:
            raise ReassignmentInProgressError(f"partition {partition.key} cannot do without its old replicas yet")
        return after

    return for_each(tables, body.partitions, key_of, complete)


def can_finish(partition: Partition, roster: Roster) -> bool:
    """Whether `CompleteReassignments` would do something for the partition."""
    return partition.reassignment is not None and _finished(partition, roster, version=0) is not None


def _finished(partition: Partition, roster: Roster, *, version: int) -> Partition | None:
    """The partition after the next step of its reassignment; None while that cannot be taken.

    Only under a leader: without one the old replicas may be the only ones that hold everything. And not while the
    leadership is on its way, since the old leader is among those who can take it back.
    """
    reassignment = partition.reassignment
    if reassignment is None or partition.leader is None:
        return None
    target = reassignment.target
    if not reassignment.cancelled and not set(target) <= set(partition.isr):
        return None
    if partition.leader in target:
        return replace(
            partition,
            replicas=target,
            isr=tuple(member for member in partition.isr if member in target),
            eligible=tuple(member for member in partition.eligible if member in target),
            reserve=tuple(report for report in partition.reserve if report.broker_id in target),
            reassignment=None,
        )
    for broker_id in target:
        try:
            return elections.begin_move(partition, broker_id, roster, version=version)
        except NoEligibleLeaderError:
            continue
    return None
