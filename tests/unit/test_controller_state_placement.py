"""New partitions are spread over racks and brokers, the same way on every member."""

from __future__ import annotations

from collections import Counter

import pytest

from quire_controller.state.placement import Candidate, candidates, place, replacement
from tests.unit.controller_crafting import Controller


def brokers(*racks: str, load: int = 0) -> list[Candidate]:
    """Brokers from 1 on, in these racks."""
    return [Candidate(number, rack, (load, load)) for number, rack in enumerate(racks, start=1)]


def rack_by_id(row: list[Candidate]) -> dict[int, str]:
    return {broker.broker_id: broker.rack for broker in row}


SHAPES = [
    (brokers("a", "b", "c"), 3),
    (brokers("a", "a", "b", "b", "c", "c"), 3),
    (brokers("a", "a", "a", "b"), 2),
    (brokers("a", "b", "c", "d", "e"), 2),
    (brokers("a", "a", "a"), 3),
    (brokers("a", "a", "b", "b"), 3),
    (brokers("a"), 1),
    (brokers(*"aabbbcccc"), 3),
]


@pytest.mark.parametrize(("row", "factor"), SHAPES)
@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_replicas_are_different_brokers_on_as_many_racks_as_can_be(
    row: list[Candidate], factor: int, seed: int
) -> None:
    racks = rack_by_id(row)
    for replicas in place(row, partition_count=50, replication_factor=factor, seed=seed):
        assert len(set(replicas)) == len(replicas) == factor
        assert len({racks[broker] for broker in replicas}) == min(factor, len(set(racks.values())))


@pytest.mark.parametrize(("row", "factor"), SHAPES)
def test_leaders_are_spread_evenly(row: list[Candidate], factor: int) -> None:
    placed = place(row, partition_count=len(row) * 7 + 1, replication_factor=factor, seed=5)
    led = Counter(replicas[0] for replicas in placed)
    assert sorted(led.values()) == [7] * (len(row) - 1) + [8]


def test_replicas_are_spread_evenly_where_racks_allow_it() -> None:
    row = brokers(*"abcabcabc")
    placed = place(row, partition_count=90, replication_factor=3, seed=5)
    held = Counter(broker for replicas in placed for broker in replicas)
    assert max(held.values()) - min(held.values()) <= 6
    pairs = {frozenset(replicas[:2]) for replicas in placed}
    assert len(pairs) >= 20, "two brokers do not share all that they have"


def test_seed_decides_between_equals_and_nothing_else_does() -> None:
    row = brokers(*"abcdefgh")
    first = place(row, partition_count=8, replication_factor=2, seed=1)
    assert place(row, partition_count=8, replication_factor=2, seed=1) == first
    assert place(list(reversed(row)), partition_count=8, replication_factor=2, seed=1) == first
    assert any(place(row, partition_count=8, replication_factor=2, seed=seed) != first for seed in range(2, 9))


def test_least_loaded_come_first() -> None:
    row = [Candidate(1, "a", (5, 9)), Candidate(2, "b", (1, 9)), Candidate(3, "c", (1, 3)), Candidate(4, "d", (7, 0))]
    assert place(row, partition_count=1, replication_factor=2, seed=0) == [(3, 4)]


def test_many_small_topics_are_spread_evenly() -> None:
    controller = Controller([1, 2, 3, 4], racks={1: "a", 2: "a", 3: "b", 4: "b"})
    for number in range(1, 41):
        controller.topic(f"t{number}", number=number, partition_count=1, replication_factor=2, placement_seed=number)
    led = Counter(partition.leader for partition in controller.state.partitions.values())
    held = Counter(broker for partition in controller.state.partitions.values() for broker in partition.replicas)
    assert sorted(led.values()) == [10, 10, 10, 10]
    assert sum(held.values()) == 80
    assert max(held.values()) <= 25


def test_brokers_without_a_rack_share_none() -> None:
    controller = Controller([1, 2], racks={1: "a"})
    assert len({candidate.rack for candidate in candidates(controller.state.tables)}) == 2


def test_replacement_is_on_another_rack_and_has_little_to_do() -> None:
    row = [Candidate(1, "a", (0, 0)), Candidate(2, "a", (0, 1)), Candidate(3, "b", (0, 9)), Candidate(4, "c", (0, 5))]
    assert replacement(row, kept=row[:1], seed=0) == 4
    assert replacement(row, kept=[row[0], row[3]], seed=0) == 3
    assert replacement(row[:2], kept=row[:1], seed=0) == 2
    assert replacement(row[:1], kept=row[:1], seed=0) is None
