"""What is committed stays, whatever dies and whatever happens when: the replication cores under seeded chaos.

A failing seed fails again: `pytest tests/property/test_replica_world.py -k fsync-3-40` runs the ten from 40 on.
"""

from __future__ import annotations

import pytest

from quire.errors import InvariantViolation, QuireError
from tests.property.replica_planted import PLANTED
from tests.property.replica_world import Flush, World

STEPS = 1_200
SEEDS_A_TEST = 10
SEEDS = 100

CAUGHT_BY: dict[str, tuple[Flush, int]] = {
    # One that was seen to catch it. When the schedule changes, it may be a later one.
    "ack_before_isr": ("os", 0),
    "high_watermark_from_leader_alone": ("fsync", 0),
    "no_epoch_truncation": ("os", 1),
    "one_truncation_round": ("os", 4),
    "unsynced_offsets_counted": ("fsync", 0),
    "leader_counts_unsynced": ("fsync", 2),
    "same_epoch_restart": ("os", 20),
    "acks_while_comparing": ("fsync", 6),
    "pushes_of_any_epoch": ("fsync", 45),
    "high_watermark_beyond_the_log": ("os", 0),
    "proposal_counts_at_once": ("os", 0),
    "proposal_does_not_count": ("os", 2),
    "min_isr_ignored": ("os", 1),
    "joins_below_epoch_start": ("os", 201),
    "one_stream_is_enough": ("os", 0),
    "broker_epoch_of_today": ("os", 129),
}
SEARCHED = 100
"""How many seeds from there on are tried."""


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_A_TEST))
@pytest.mark.parametrize("brokers", [3, 5])
@pytest.mark.parametrize("flush", ["fsync", "os"])
def test_what_is_committed_stays(flush: Flush, brokers: int, first: int) -> None:
    for seed in range(first, first + SEEDS_A_TEST // (1 if brokers == 3 else 3)):
        World(seed, flush=flush, brokers=brokers).run(STEPS)


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(bug: str) -> None:
    flush, first = CAUGHT_BY[bug]
    with PLANTED[bug]():
        for seed in range(first, first + SEARCHED):
            try:
                World(seed, flush=flush).run(STEPS)
            except (AssertionError, InvariantViolation, QuireError):
                return
    pytest.fail(f"{SEARCHED} seeds did not notice '{bug}'")


def test_the_schedules_are_worth_something() -> None:
    """Leaders change, logs part, and records are committed in spite of it."""
    worlds = [World(seed) for seed in range(20)]
    for world in worlds:
        world.run(STEPS)
    assert sum(len(world.oracle.leaders) for world in worlds) > 4 * len(worlds)
    assert sum(world.truncations for world in worlds) > len(worlds)
    assert sum(len(committed) for world in worlds for committed in world.oracle.committed.values()) > 20 * len(worlds)


def test_the_same_seed_gives_the_same_trace() -> None:
    traces = []
    for _ in range(2):
        world = World(7)
        world.run(STEPS)
        traces.append((world.trace, world.picture()))
    assert traces[0] == traces[1]
