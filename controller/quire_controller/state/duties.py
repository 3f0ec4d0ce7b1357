"""What the leading controller has to propose by itself, given the state, the leases and the time.

| duty | when |
|---|---|
| fence | a lease has ended |
| complete a move | the old leader has applied that it leads no more |
| elect from the last ISR | nobody leads, a restarted member is back, and the others were waited for |
| elect uncleanly | the same, but no member is back, and the topic allows it |
| finish a reassignment | the new replicas are in sync |
| drain | a broker is to be rid of something that it has |
| elect the preferred leader | it is back for long enough not to be a flickering one |

What is proposed names the partition epoch, or the broker epoch, that it was decided from. So it does nothing if
something else came first, and it does not matter that it may be proposed twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple

from quire.v1 import commands_pb2
from quire_controller.state import elections, limits, placement, reassignments
from quire_controller.state.elections import Roster
from quire_controller.state.leases import LeaseKeeper
from quire_controller.state.model import DrainGoal, Partition, PartitionKey
from quire_controller.state.tables import Tables


@dataclass(frozen=True, slots=True)
class DutyConfig:
    election_wait_ms: int = 10_000
    """For how long the other members of a last ISR are waited for once one is back."""
    preferred_wait_ms: int = 60_000
    """For how long a broker must be active before leaderships are moved back to it."""
    repeat_ms: int = 2_000
    """What was proposed is not proposed again for so long: its fate may not be known yet."""
    moves_max: int = 64
    """Leaderships on the way at once: nobody leads those partitions meanwhile."""
    reassignments_max: int = 16
    """Partitions that a drain copies at once."""
    commands_max: int = 16
    """Commands given by one call."""


class Proposal(NamedTuple):
    """What was proposed: of what kind, about whom, decided from which epoch."""

    kind: str
    about: int | PartitionKey
    epoch: int

    def is_over(self, tables: Tables) -> bool:
        """Whether the partition is not any more what it was when this was decided."""
        if isinstance(self.about, int):
            return False
        partition = tables.partitions.get(self.about)
        return partition is None or partition.partition_epoch != self.epoch


class Duties:
    """Of one controller in one term. `due` is called every now and then; what it gives is proposed in that order."""

    def __init__(self, keeper: LeaseKeeper, config: DutyConfig | None = None) -> None:
        self._keeper = keeper
        self._config = config or DutyConfig()
        self._proposed: dict[Proposal, int] = {}
        """When it was given."""
        self._leaderless_since: dict[PartitionKey, tuple[int, int]] = {}
        """(leader epoch, when it was first seen that somebody could be elected)."""
        self._active_since: dict[int, tuple[int, int]] = {}
        """(broker epoch, when it was first seen active)."""

    def due(self, tables: Tables, now_ms: int) -> list[commands_pb2.Command]:
        """What to propose now: no more than can be proposed at once, the rest the next time."""
        self._keeper.observe(tables.brokers, now_ms)
        self._look(tables, now_ms)
        roster = Roster(tables.brokers)
        duties = (
            self._fences(now_ms),
            self._complete_moves(tables, now_ms),
            self._elections(tables, roster, now_ms),
            self._finished_reassignments(tables, roster, now_ms),
            self._drained_leaderships(tables, roster, now_ms),
            self._drained_replicas(tables, now_ms),
            self._preferred(tables, roster, now_ms),
        )
        # Generators, so that what does not fit is not taken for proposed.
        return list(islice(chain.from_iterable(duties), self._config.commands_max))

    # -- duties ----------------------------------------------------------------------------------------------------

    def _fences(self, now_ms: int) -> Iterator[commands_pb2.Command]:
        for broker_id, broker_epoch in self._keeper.expired(now_ms):
            if self._is_new(Proposal("fence", broker_id, broker_epoch), now_ms):
                yield commands_pb2.Command(
                    fence_broker=commands_pb2.FenceBroker(
                        broker_id=broker_id,
                        broker_epoch=broker_epoch,
                        cause=commands_pb2.FENCE_CAUSE_LEASE_EXPIRED,
                        term=self._keeper.term,
                    )
                )

    def _complete_moves(self, tables: Tables, now_ms: int) -> Iterator[commands_pb2.Command]:
        def has_let_go(partition: Partition) -> bool:
            move = partition.move
            return move is not None and self._keeper.has_applied(
                broker_id=move.from_broker, broker_epoch=move.from_broker_epoch, version=move.version
            )

        moving = (tables.partitions[key] for key in sorted(tables.moving))
        for chunk in self._chunks("complete", filter(has_let_go, moving), now_ms):
            yield commands_pb2.Command(complete_moves=commands_pb2.CompleteMoves(partitions=map(_at, chunk)))

    def _elections(self, tables: Tables, roster: Roster, now_ms: int) -> Iterator[commands_pb2.Command]:
        waited = [
            partition
            for partition in (tables.partitions[key] for key in sorted(self._leaderless_since))
            if now_ms - self._leaderless_since[partition.key][1] >= self._config.election_wait_ms
        ]
        last_isr = (partition for partition in waited if elections.best_report(partition, roster) is not None)
        for chunk in self._chunks("last ISR", last_isr, now_ms):
            yield commands_pb2.Command(elect_last_isr=commands_pb2.ElectLastIsr(partitions=map(_at, chunk)))
        unclean = (partition for partition in waited if elections.best_report(partition, roster) is None)
        for chunk in self._chunks("unclean", unclean, now_ms):
            yield commands_pb2.Command(elect_unclean=commands_pb2.ElectUnclean(partitions=map(_at, chunk)))

    def _finished_reassignments(self, tables: Tables, roster: Roster, now_ms: int) -> Iterator[commands_pb2.Command]:
        reassigning = (tables.partitions[key] for key in sorted(tables.reassigning))
        ready = (partition for partition in reassigning if reassignments.can_finish(partition, roster))
        for chunk in self._chunks("reassigned", ready, now_ms):
            yield commands_pb2.Command(
                complete_reassignments=commands_pb2.CompleteReassignments(partitions=map(_at, chunk))
            )

    def _drained_leaderships(self, tables: Tables, roster: Roster, now_ms: int) -> Iterator[commands_pb2.Command]:
        successors = {}
        for broker_id in sorted(tables.brokers):
            if tables.brokers[broker_id].drain is not DrainGoal.NONE:
                for partition in tables.partitions_on(broker_id):
                    successor = _successor(partition, roster) if partition.leader == broker_id else None
                    if successor is not None:
                        successors[partition.key] = successor
        led = (tables.partitions[key] for key in sorted(successors))
        for chunk in self._chunks("move", islice(led, self._moves_left(tables)), now_ms):
            moves = [
                commands_pb2.LeaderTarget(partition=_at(partition), to_broker=successors[partition.key])
                for partition in chunk
            ]
            yield commands_pb2.Command(move_leaders=commands_pb2.MoveLeaders(moves=moves))

    def _drained_replicas(self, tables: Tables, now_ms: int) -> Iterator[commands_pb2.Command]:
        takers: list[placement.Candidate] | None = None
        for broker_id in sorted(tables.brokers):
            if tables.brokers[broker_id].drain is not DrainGoal.REPLICAS:
                continue
            takers = takers if takers is not None else placement.candidates(tables)
            for partition in tables.partitions_on(broker_id):
                if len(tables.reassigning) + self._proposed_count("reassign") >= self._config.reassignments_max:
                    return
                if partition.reassignment is not None or partition.leader is None:
                    continue
                taker = _taker(tables, partition, broker_id, takers)
                proposal = Proposal("reassign", partition.key, partition.partition_epoch)
                if taker is None or not self._is_new(proposal, now_ms):
                    continue
                takers = [_busier(other) if other.broker_id == taker else other for other in takers]
                target = [taker if replica == broker_id else replica for replica in partition.replicas]
                yield commands_pb2.Command(
                    reassign_partition=commands_pb2.ReassignPartition(partition=_at(partition), target=target)
                )

    def _preferred(self, tables: Tables, roster: Roster, now_ms: int) -> Iterator[commands_pb2.Command]:
        def is_settled(partition: Partition) -> bool:
            broker_id = partition.preferred_leader
            since = self._active_since.get(broker_id)
            return (
                since is not None
                and now_ms - since[1] >= self._config.preferred_wait_ms
                and partition.reassignment is None
                and broker_id in partition.isr
                and elections.can_lead(partition, broker_id, roster)
                and not roster.is_draining(broker_id)
            )

        left = self._moves_left(tables)
        if left:
            elsewhere_led = (tables.partitions[key] for key in sorted(tables.elsewhere_led))
            for chunk in self._chunks("move", islice(filter(is_settled, elsewhere_led), left), now_ms):
                yield commands_pb2.Command(
                    elect_preferred_leaders=commands_pb2.ElectPreferredLeaders(partitions=map(_at, chunk))
                )

    # -- inside ----------------------------------------------------------------------------------------------------

    def _look(self, tables: Tables, now_ms: int) -> None:
        """Forget what is over, and note the time of what has begun."""
        for proposal, given_ms in list(self._proposed.items()):
            if now_ms - given_ms >= self._config.repeat_ms or proposal.is_over(tables):
                del self._proposed[proposal]
        active = {broker_id: broker for broker_id, broker in tables.brokers.items() if not broker.fenced}
        self._active_since = {
            broker_id: _since(self._active_since.get(broker_id), broker.broker_epoch, now_ms)
            for broker_id, broker in active.items()
        }
        waiting = (tables.partitions[key] for key in tables.leaderless)
        roster = Roster(tables.brokers)
        self._leaderless_since = {
            partition.key: _since(self._leaderless_since.get(partition.key), partition.leader_epoch, now_ms)
            for partition in waiting
            if _is_electable(tables, partition, roster)
        }

    def _is_new(self, proposal: Proposal, now_ms: int) -> bool:
        """Whether it was not given lately. It is now."""
        if proposal in self._proposed:
            return False
        self._proposed[proposal] = now_ms
        return True

    def _chunks(self, kind: str, partitions: Iterable[Partition], now_ms: int) -> Iterator[list[Partition]]:
        """Those that were not given lately, as many at a time as a command may name."""
        new = (
            partition
            for partition in partitions
            if self._is_new(Proposal(kind, partition.key, partition.partition_epoch), now_ms)
        )
        while chunk := list(islice(new, limits.PARTITIONS_PER_COMMAND_MAX)):
            yield chunk

    def _moves_left(self, tables: Tables) -> int:
        """How many leaderships may be set on their way now."""
        return max(0, self._config.moves_max - len(tables.moving) - self._proposed_count("move"))

    def _proposed_count(self, kind: str) -> int:
        return sum(proposal.kind == kind for proposal in self._proposed)


def _since(known: tuple[int, int] | None, epoch: int, now_ms: int) -> tuple[int, int]:
    return known if known is not None and known[0] == epoch else (epoch, now_ms)


def _is_electable(tables: Tables, partition: Partition, roster: Roster) -> bool:
    """Whether an election could give a leader, if the others that may be waited for do not come back."""
    if elections.best_report(partition, roster) is not None:
        return True
    unclean = tables.topics[partition.key.topic_id].config.unclean_election
    return bool(unclean) and any(roster.is_active(broker_id) for broker_id in partition.replicas)


def _successor(partition: Partition, roster: Roster) -> int | None:
    """Who can take the leadership over from a broker that is drained, and is not drained itself."""
    for broker_id in elections.leading_order(partition, roster, None):
        if broker_id == partition.leader or broker_id not in partition.isr or roster.is_draining(broker_id):
            continue
        if elections.can_lead(partition, broker_id, roster):
            return broker_id
    return None


def _taker(tables: Tables, partition: Partition, drained: int, takers: Sequence[placement.Candidate]) -> int | None:
    """Who is to get the replica of a broker that is drained."""
    kept = [
        placement.Candidate(replica, placement.rack_of(tables.brokers[replica]), (0, 0))
        for replica in partition.replicas
        if replica != drained
    ]
    seed = int.from_bytes(partition.key.topic_id[:8], "big") + partition.key.partition
    return placement.replacement(takers, kept=kept, seed=seed)


def _busier(candidate: placement.Candidate) -> placement.Candidate:
    return candidate._replace(load=(candidate.load[0], candidate.load[1] + 1))


def _at(partition: Partition) -> commands_pb2.PartitionAt:
    return commands_pb2.PartitionAt(
        topic_id=partition.key.topic_id,
        partition=partition.key.partition,
        partition_epoch=partition.partition_epoch,
    )
