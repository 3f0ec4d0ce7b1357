"""Who may lead a partition, and what its ISR becomes. Functions from a partition to what it is to be.

A replica *can lead* when it is in the ISR, or eligible, its broker is active, and it has not restarted since: then it
holds everything below the high watermark. One that restarted may have lost what was not on its disk; it is
trusted only when nobody else is left, and compared with the others of the last ISR (`elect_last_isr`).

| what happens to a member | another one can lead | none can |
|---|---|---|
| fenced | leaves the ISR; eligible if the ISR is then below its minimum | stays, as the last ISR |
| restarted | leaves the ISR and is not eligible | stays, with a report of its log |
| wiped | leaves the ISR and is not eligible | the same: what is left of the last ISR are the others |

One that restarted and left is kept in reserve while the ISR is below its minimum: nothing is committed meanwhile that
it has not got. When the last member of the ISR is wiped and nobody is eligible, the reserve is the last ISR.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import replace

from quire.errors import NoEligibleLeaderError, invariant
from quire_controller.state.model import Broker, DrainGoal, LastIsrReport, LeaderMove, Partition


class Roster:
    """The brokers as they will be once the command at hand is carried out."""

    def __init__(self, brokers: Mapping[int, Broker], changed: Broker | None = None) -> None:
        self._brokers = brokers
        self._changed = changed

    def get(self, broker_id: int) -> Broker | None:
        if self._changed is not None and self._changed.broker_id == broker_id:
            return self._changed
        return self._brokers.get(broker_id)

    def is_active(self, broker_id: int) -> bool:
        broker = self.get(broker_id)
        return broker is not None and not broker.fenced

    def is_draining(self, broker_id: int) -> bool:
        broker = self.get(broker_id)
        return broker is not None and broker.drain is not DrainGoal.NONE


class Departure(enum.Enum):
    """What happened to a broker."""

    FENCED = enum.auto()
    RESTARTED = enum.auto()
    WIPED = enum.auto()
    """It came back with another disk, or an empty one."""


def changed(before: Partition, after: Partition) -> Partition | None:
    """What to record: the partition under a new partition epoch, or None where nothing is different."""
    return None if after == before else replace(after, partition_epoch=before.partition_epoch + 1)


def can_lead(partition: Partition, broker_id: int, roster: Roster) -> bool:
    """Whether the broker could lead at this moment and nothing would be lost."""
    return (
        (broker_id in partition.isr or broker_id in partition.eligible)
        and roster.is_active(broker_id)
        and broker_id not in partition.restarted
    )


def on_departure(
    partition: Partition,
    broker_id: int,
    how: Departure,
    roster: Roster,
    *,
    min_isr: int,
    report: LastIsrReport,
) -> Partition:
    """The partition after one of its brokers was fenced or has registered anew; the roster has it fenced by now.

    `report` is what counts if nobody can lead: what the broker found in its log after a restart.
    """
    was_leading = partition.leader == broker_id
    if was_leading:
        partition = replace(partition, leader=None)
    if partition.move is not None and partition.move.from_broker == broker_id:
        # Its lease is over, so nothing is to be waited for.
        partition = replace(partition, move=None)
    if how is Departure.WIPED:
        partition = _forget(partition, broker_id)
    elif how is Departure.FENCED:
        if broker_id in partition.isr and any(can_lead(partition, other, roster) for other in partition.isr):
            partition = _shrink(partition, broker_id, min_isr=min_isr)
    elif broker_id in partition.isr or broker_id in partition.eligible:
        if any(can_lead(partition, other, roster) for other in partition.replicas):
            partition = _keep_in_reserve(_forget(partition, broker_id), [report], min_isr=min_isr)
        else:
            partition = replace(partition, reports=_with_report(partition.reports, report))
    elif any(kept.broker_id == broker_id for kept in partition.reserve):
        partition = _keep_in_reserve(_forget(partition, broker_id), [report], min_isr=min_isr)
    partition = elect(partition, roster, min_isr=min_isr)
    if was_leading and partition.leader is None:
        # A new epoch although nobody follows: what the old leader still sends must be refused.
        partition = replace(partition, leader_epoch=partition.leader_epoch + 1)
    return partition


def elect(partition: Partition, roster: Roster, *, min_isr: int, prefer: int | None = None) -> Partition:
    """The partition with a leader, if it has none, is not being moved, and somebody can lead it."""
    if partition.leader is not None or partition.move is not None:
        return partition
    order = leading_order(partition, roster, prefer)
    # An eligible replica only where no member of the ISR can: the members hold at least as much.
    for pool in (partition.isr, partition.eligible):
        for broker_id in order:
            if broker_id in pool and can_lead(partition, broker_id, roster):
                return _led_by(partition, broker_id, roster, min_isr=min_isr)
    if _all_reported(partition, roster):
        best = best_report(partition, roster)
        if best is not None:
            return _led_by(partition, best, roster, min_isr=min_isr)
    return partition


def elect_last_isr(partition: Partition, roster: Roster, *, min_isr: int) -> Partition:
    """The partition led by the restarted member of its last ISR that has the longest log of those that are back."""
    best = None if partition.leader is not None or partition.move is not None else best_report(partition, roster)
    if best is None:
        raise NoEligibleLeaderError(
            f"partition {partition.key} has no restarted member of its last ISR that is back and reported its log",
            isr=_text(partition.isr),
            eligible=_text(partition.eligible),
        )
    return _led_by(partition, best, roster, min_isr=min_isr)


def elect_unclean(partition: Partition, roster: Roster) -> Partition:
    """The partition led by whoever is there, because nobody is who would lose nothing."""
    active = [broker_id for broker_id in leading_order(partition, roster, None) if roster.is_active(broker_id)]
    if partition.leader is not None or partition.move is not None or best_report(partition, roster) is not None:
        raise NoEligibleLeaderError(f"partition {partition.key} has, or can have, a leader that loses nothing")
    if not active:
        raise NoEligibleLeaderError(f"partition {partition.key} has no replica on an active broker")
    return replace(
        partition,
        leader=active[0],
        leader_epoch=partition.leader_epoch + 1,
        isr=(active[0],),
        eligible=(),
        reports=(),
        reserve=(),
    )


def may_move(partition: Partition, to_broker: int, roster: Roster) -> bool:
    """Whether `begin_move` would do it."""
    return (
        partition.leader is not None
        and roster.get(partition.leader) is not None
        and to_broker in partition.isr
        and can_lead(partition, to_broker, roster)
    )


def begin_move(partition: Partition, to_broker: int, roster: Roster, *, version: int) -> Partition:
    """The partition without its leader, who is alive and first has to let go."""
    leader = None if partition.leader is None else roster.get(partition.leader)
    if leader is None:
        raise NoEligibleLeaderError(f"partition {partition.key} has no leader whose leadership could be moved")
    if to_broker not in partition.isr or not can_lead(partition, to_broker, roster):
        raise NoEligibleLeaderError(
            f"broker {to_broker} is not an active member of the ISR of partition {partition.key}",
            isr=_text(partition.isr),
        )
    return replace(
        partition,
        leader=None,
        leader_epoch=partition.leader_epoch + 1,
        move=LeaderMove(leader.broker_id, leader.broker_epoch, to_broker, version),
    )


def complete_move(partition: Partition, roster: Roster, *, min_isr: int) -> Partition:
    """The partition led by the one that it was to be moved to or, if that one cannot any more, by another."""
    if partition.move is None:
        raise NoEligibleLeaderError(f"the leadership of partition {partition.key} is not being moved")
    to_broker = partition.move.to_broker
    after = elect(replace(partition, move=None), roster, min_isr=min_isr, prefer=to_broker)
    # The old leader is in the ISR and active, or its departure would have ended the move.
    invariant(after.leader is not None, f"nobody leads partition {partition.key} after a move")
    return after


def with_isr(partition: Partition, isr: Iterable[int], *, min_isr: int, damaged: Iterable[int] = ()) -> Partition:
    """The partition with the ISR that its leader asks for."""
    members, damaged = tuple(sorted(isr)), set(damaged)
    left = {*partition.isr, *partition.eligible} - {*members, *damaged}
    # From the minimum on the high watermark moves without the others, so they may lack what is acknowledged.
    after = replace(partition, isr=members, eligible=tuple(sorted(left)) if len(members) < min_isr else ())
    kept = tuple(report for report in partition.reserve if report.broker_id not in damaged)
    return _keep_in_reserve(replace(after, reserve=kept), (), min_isr=min_isr)


def leading_order(partition: Partition, roster: Roster, prefer: int | None) -> list[int]:
    """The replicas, those first that are best to lead: not about to be rid of it again."""
    target = partition.replicas if partition.reassignment is None else partition.reassignment.target
    return sorted(
        partition.replicas,  # sorting is stable: their own order decides where nothing else does
        key=lambda broker_id: (broker_id not in target, broker_id != prefer, roster.is_draining(broker_id)),
    )


def best_report(partition: Partition, roster: Roster) -> int | None:
    """Of those of the last ISR that are back the one with the longest log; None if none is."""
    best: LastIsrReport | None = None
    for broker_id in partition.replicas:
        for report in partition.reports:
            if report.broker_id != broker_id or report.log_end_offset < 0 or not roster.is_active(broker_id):
                continue
            if best is None or _length(report) > _length(best):
                best = report
    return None if best is None else best.broker_id


# --- inside --------------------------------------------------------------------------------------------------------


def _forget(partition: Partition, broker_id: int) -> Partition:
    """Without a broker that may lack records. If it was the last of the ISR, the eligible ones are what is left, or
    else the reserve."""
    isr = tuple(member for member in partition.isr if member != broker_id)
    eligible = tuple(member for member in partition.eligible if member != broker_id)
    reports = tuple(report for report in partition.reports if report.broker_id != broker_id)
    reserve = tuple(report for report in partition.reserve if report.broker_id != broker_id)
    if isr:
        return replace(partition, isr=isr, eligible=eligible, reports=reports, reserve=reserve)
    if eligible:
        return replace(partition, isr=eligible, eligible=(), reports=reports, reserve=reserve)
    last = tuple(report.broker_id for report in reserve)
    return replace(partition, isr=last, eligible=(), reports=reserve, reserve=())


def _keep_in_reserve(partition: Partition, reports: Iterable[LastIsrReport], *, min_isr: int) -> Partition:
    """These too, of those that are not in the ISR; nobody once the ISR has its minimum."""
    reserve: tuple[LastIsrReport, ...] = ()
    if len(partition.isr) < min_isr:
        reserve = tuple(report for report in partition.reserve if report.broker_id not in partition.isr)
        for report in reports:
            if report.broker_id not in partition.isr and report.log_end_offset >= 0:
                reserve = _with_report(reserve, report)
    return replace(partition, reserve=reserve)


def _with_report(reports: Iterable[LastIsrReport], report: LastIsrReport) -> tuple[LastIsrReport, ...]:
    others = [other for other in reports if other.broker_id != report.broker_id]
    return tuple(sorted([*others, report], key=lambda other: other.broker_id))


def _shrink(partition: Partition, broker_id: int, *, min_isr: int) -> Partition:
    return with_isr(partition, (member for member in partition.isr if member != broker_id), min_isr=min_isr)


def _led_by(partition: Partition, broker_id: int, roster: Roster, *, min_isr: int) -> Partition:
    """A leader waits for members that can follow it at once; the others leave the ISR."""
    members = partition.isr if broker_id in partition.isr else ()
    isr = {broker_id, *(member for member in members if can_lead(partition, member, roster))}
    left = {*partition.isr, *partition.eligible} - isr - partition.restarted
    led = replace(
        partition,
        leader=broker_id,
        leader_epoch=partition.leader_epoch + 1,
        isr=tuple(sorted(isr)),
        eligible=tuple(sorted(left)) if len(isr) < min_isr else (),
        reports=(),
    )
    return _keep_in_reserve(led, partition.reports, min_isr=min_isr)


def _all_reported(partition: Partition, roster: Roster) -> bool:
    """Whether every member of the last ISR is back, so that to wait longer would bring nobody else."""
    return all(
        member in partition.restarted and roster.is_active(member) for member in (*partition.isr, *partition.eligible)
    )


def _length(report: LastIsrReport) -> tuple[int, int]:
    return report.last_epoch, report.log_end_offset


def _text(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, brokers))
