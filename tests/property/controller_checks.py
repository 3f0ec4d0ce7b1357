"""What must hold of the controller's state after every command, whatever it was.

The checkers know nothing of how elections are decided. `CommittedData` plays the worst broker that there can be: as
soon as the metadata allows it, a leader acknowledges records that only its ISR holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from quire_controller.state.machine import ControllerState
from quire_controller.state.model import Partition, PartitionKey
from quire_controller.state.tables import Tables


def check_partition(state: ControllerState, partition: Partition) -> None:
    """What holds of a partition at any moment."""
    topic, brokers = state.topics[partition.key.topic_id], state.brokers
    replicas, isr, eligible = set(partition.replicas), set(partition.isr), set(partition.eligible)
    assert len(replicas) == len(partition.replicas)
    assert replicas <= set(brokers)
    for members in (partition.isr, partition.eligible):
        assert list(members) == sorted(set(members))
        assert set(members) <= replicas
    assert not isr & eligible
    reserve = [report.broker_id for report in partition.reserve]
    assert reserve == sorted(set(reserve))
    assert set(reserve) <= replicas - isr - eligible
    assert isr or (partition.leader is None and not eligible and not reserve), "nothing is left but the ISR is empty"
    reporting = [report.broker_id for report in partition.reports]
    assert set(reporting) <= isr | eligible
    assert partition.leader is None or not (reporting or partition.move)
    if partition.leader is not None:
        assert partition.leader in isr
        assert not any(brokers[member].fenced for member in isr), "the leader waits for somebody who is shut out"
        assert not (eligible or reserve) or len(isr) < topic.min_isr
    if partition.move is not None:
        mover = brokers[partition.move.from_broker]
        assert not mover.fenced
        assert mover.broker_epoch == partition.move.from_broker_epoch
        assert mover.broker_id in isr
    if partition.reassignment is None:
        assert len(replicas) == topic.replication_factor
    else:
        assert set(partition.reassignment.target) | set(partition.reassignment.original) == replicas


def check_indexes(tables: Tables) -> None:
    """The indexes are what one gets by making them anew."""
    anew = Tables()
    anew.replay(tables.everything())
    for name in (
        "topic_ids",
        "replicas_on",
        "preferred_count",
        "leaderless",
        "moving",
        "reassigning",
        "elsewhere_led",
    ):
        assert getattr(tables, name) == getattr(anew, name), name


@dataclass
class History:
    """What holds from one moment to the next."""

    leaders: dict[tuple[PartitionKey, int], int] = field(default_factory=dict)
    before: dict[PartitionKey, Partition] = field(default_factory=dict)

    def check(self, partitions: Mapping[PartitionKey, Partition]) -> None:
        for key, partition in partitions.items():
            before = self.before.get(key)
            if before is None:
                assert partition.partition_epoch == 0
            elif before is not partition and before != partition:
                assert partition.partition_epoch == before.partition_epoch + 1
                assert partition.leader_epoch >= before.leader_epoch
                if partition.leader != before.leader:
                    assert partition.leader_epoch > before.leader_epoch
            else:
                assert partition.partition_epoch == before.partition_epoch
            if partition.leader is not None:
                first = self.leaders.setdefault((key, partition.leader_epoch), partition.leader)
                assert first == partition.leader, "two leaders in one epoch"
        self.before = dict(partitions)


@dataclass
class CommittedData:
    """Up to where records are acknowledged, and which replica holds how many of them."""

    high_watermark: dict[PartitionKey, int] = field(default_factory=dict)
    holds: dict[tuple[PartitionKey, int], int] = field(default_factory=dict)
    restarted: set[tuple[PartitionKey, int]] = field(default_factory=set)
    """Replicas that restarted and were not made in sync since: the only ones that may lack something and lead."""

    def on_wiped(self, broker_id: int, partitions: Mapping[PartitionKey, Partition]) -> None:
        for key in partitions:
            self.holds[key, broker_id] = 0

    def on_restarted(self, broker_id: int, partitions: Mapping[PartitionKey, Partition], *, lost: int) -> None:
        """The broker comes back without the last of what it held."""
        for key in partitions:
            self.holds[key, broker_id] = max(0, self.holds.get((key, broker_id), 0) - lost)
            if lost:
                self.restarted.add((key, broker_id))

    def ends(
        self, broker_id: int, partitions: Mapping[PartitionKey, Partition]
    ) -> dict[PartitionKey, tuple[int, int]]:
        return {key: (0, self.holds.get((key, broker_id), 0)) for key in partitions}

    def on_in_sync(self, key: PartitionKey, broker_id: int) -> None:
        """A leader found that the broker has caught up."""
        self.holds[key, broker_id] = self.high_watermark.get(key, 0)
        self.restarted.discard((key, broker_id))

    def check_and_go_on(
        self, state: ControllerState, before: Mapping[PartitionKey, Partition], *, unclean: bool, waited: bool
    ) -> None:
        """Nobody counts as in sync who lacks something; then leaders acknowledge more, where they may."""
        for key, partition in state.partitions.items():
            known = before.get(key)
            if known is not None and partition.leader is not None and known.leader_epoch != partition.leader_epoch:
                self._on_elected(state, known, partition.leader, unclean=unclean, waited=waited)
            acknowledged = self.high_watermark.get(key, 0)
            for member in (*partition.isr, *partition.eligible):
                held = self.holds.get((key, member), 0)
                assert held >= acknowledged or member in partition.restarted, (
                    f"{key}: broker {member} counts as in sync and lacks what was acknowledged"
                )
            for report in partition.reserve:
                held = self.holds.get((key, report.broker_id), 0)
                assert held >= acknowledged or (key, report.broker_id) in self.restarted, (
                    f"{key}: broker {report.broker_id} is kept in reserve and has never had what was acknowledged"
                )
            if partition.leader is not None and len(partition.isr) >= state.topics[key.topic_id].min_isr:
                self.high_watermark[key] = acknowledged + 1
                for member in partition.isr:
                    self.holds[key, member] = acknowledged + 1
        for key in [key for key in self.high_watermark if key not in state.partitions]:
            del self.high_watermark[key]

    def _on_elected(
        self, state: ControllerState, before: Partition, leader: int, *, unclean: bool, waited: bool
    ) -> None:
        """Whoever lost records in a restart may lead only if nobody else can, and if it has the longest log."""
        key, last, reports = before.key, {*before.isr, *before.eligible}, before.reports
        # One that registers at this moment, and is not waited for, was wiped: there is nothing to wait for.
        gone = {member for member in before.replicas if state.brokers[member].broker_epoch == state.version}
        if last <= gone:
            reports = tuple(report for report in before.reserve if report.broker_id not in gone)
            last = {report.broker_id for report in reports}
        restarted = {report.broker_id for report in reports}
        if leader in restarted and not (unclean or waited):
            back = {member for member in restarted if not state.brokers[member].fenced}
            assert back | gone >= last, "others of the last ISR were not waited for"
        if not unclean and (key, leader) in self.restarted:
            assert leader in restarted
            for member in last:
                assert state.brokers[member].fenced or member in restarted, (
                    f"{key}: broker {member} has everything, and broker {leader} was elected"
                )
            for report in reports:
                # Who is in reserve follows whoever leads: what it reported may have been cut off since.
                held = min(report.log_end_offset, self.holds.get((key, report.broker_id), 0))
                assert state.brokers[report.broker_id].fenced or held <= self.holds[key, leader]
        if unclean or (key, leader) in self.restarted:
            # Lost, as it was said that it may be. What the leader lacks is nobody's any more.
            self.high_watermark[key] = min(self.high_watermark.get(key, 0), self.holds.get((key, leader), 0))
            for replica in before.replicas:
                self.holds[key, replica] = min(self.holds.get((key, replica), 0), self.high_watermark[key])
        self.restarted.discard((key, leader))
