"""Which brokers get a new partition.

Brokers stand in two rows, in which neighbours are of different racks as far as that goes: in one those come first
that are to lead the least, in the other those that have the least. Partition after partition the next of the first
row leads and the next ones of the second follow, one a rack while there are racks left: both are spread evenly. After
each round the second row is shifted, so that two brokers do not have all their partitions in common.

The same brokers, loads and seed give the same placement on every member.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from quire.errors import NotEnoughBrokersError
from quire_controller.state.model import Broker, DrainGoal
from quire_controller.state.tables import Tables

_MASK = (1 << 64) - 1


class Candidate(NamedTuple):
    broker_id: int
    rack: str
    load: tuple[int, int]
    """Of how many partitions it is the preferred leader, and how many it has."""


def candidates(tables: Tables) -> list[Candidate]:
    """The brokers that may be given replicas, in ascending order."""
    return [
        Candidate(
            broker_id,
            rack_of(tables.brokers[broker_id]),
            (tables.preferred_count.get(broker_id, 0), len(tables.replicas_on.get(broker_id, ()))),
        )
        for broker_id in sorted(tables.brokers)
        if may_get_replicas(tables.brokers[broker_id])
    ]


def may_get_replicas(broker: Broker) -> bool:
    return not broker.fenced and broker.drain is DrainGoal.NONE


def rack_of(broker: Broker) -> str:
    """A broker that names no rack shares nothing with others. No rack can have such a name."""
    return broker.rack or f"/{broker.broker_id}"


def place(
    brokers: Sequence[Candidate], *, partition_count: int, replication_factor: int, seed: int
) -> list[tuple[int, ...]]:
    """The replicas of each new partition, the preferred leader first."""
    if len(brokers) < replication_factor:
        raise NotEnoughBrokersError(
            f"{replication_factor} replicas need as many brokers, and {len(brokers)} can take one; "
            "start more, end drains, or ask for fewer replicas",
            wanted=replication_factor,
            available=len(brokers),
        )
    leaders = _row(brokers, seed, lambda broker: broker.load)
    followers = _row(brokers, seed, lambda broker: (broker.load[1], broker.load[0]))
    racks = len({broker.rack for broker in brokers})
    placed = []
    for number in range(partition_count):
        rounds, at = divmod(number, len(leaders))
        start = number * (replication_factor - 1) + rounds
        chosen = [leaders[at]]
        used = {leaders[at].rack}
        for fresh_racks_only in (True, False):
            for broker in _from(followers, start):
                if len(chosen) == replication_factor or (fresh_racks_only and len(used) == racks):
                    break
                if broker not in chosen and not (fresh_racks_only and broker.rack in used):
                    chosen.append(broker)
                    used.add(broker.rack)
        placed.append(tuple(broker.broker_id for broker in chosen))
    return placed


def replacement(brokers: Sequence[Candidate], *, kept: Sequence[Candidate], seed: int) -> int | None:
    """The broker to take a replica over beside those that are kept; None if there is no other."""
    racks = {broker.rack for broker in kept}
    taken = {broker.broker_id for broker in kept}
    free = [broker for broker in brokers if broker.broker_id not in taken]
    if not free:
        return None
    return min(
        free, key=lambda broker: (broker.rack in racks, broker.load[1], mixed(seed, broker.broker_id))
    ).broker_id


def _row(brokers: Sequence[Candidate], seed: int, load: Callable[[Candidate], tuple[int, int]]) -> list[Candidate]:
    """One broker of each rack in turn, the least loaded of each first; the rack of the least loaded of all begins."""
    by_rack: dict[str, list[Candidate]] = {}
    for broker in sorted(brokers, key=lambda broker: (load(broker), mixed(seed, broker.broker_id), broker.broker_id)):
        by_rack.setdefault(broker.rack, []).append(broker)
    columns = list(by_rack.values())  # in the order of each rack's first
    longest = max(map(len, columns))
    return [column[turn] for turn in range(longest) for column in columns if turn < len(column)]


def _from(row: Sequence[Candidate], start: int) -> Iterator[Candidate]:
    """The whole row, beginning somewhere in it."""
    return (row[(start + step) % len(row)] for step in range(len(row)))


def mixed(seed: int, value: int) -> int:
    """A number that looks random and is the same everywhere: the finalizer of SplitMix64."""
    z = (seed + value * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
