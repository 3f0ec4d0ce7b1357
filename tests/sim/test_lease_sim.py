"""Leases under pauses, cuts and controller failovers: nobody leads while somebody else may."""

from __future__ import annotations

import os

import pytest

from tests.sim.lease_world import LeaseWorld
from tests.sim.raft_world import Violation

SEEDS_A_TEST = 10
FIRST = int(os.environ.get("QUIRE_SIM_FIRST_SEED", "0"))
COUNT = int(os.environ.get("QUIRE_SIM_SEEDS", "240"))


@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, SEEDS_A_TEST))
def test_leases_never_overlap(first: int) -> None:
    leaderships = 0
    for seed in range(first, first + SEEDS_A_TEST):
        world = LeaseWorld(seed, 5 if seed % 4 == 3 else 3)
        world.run()
        leaderships += len(world.leaderships)
    # Else nothing was tried: leaderships must have moved about.
    assert leaderships > SEEDS_A_TEST * len(world.keys)


def test_a_lease_that_counts_from_the_answer_is_caught() -> None:
    for seed in range(50):
        try:
            LeaseWorld(seed, counts_from_answer=True).run()
        except Violation:
            return
    pytest.fail("50 seeds did not notice that a broker believes in its lease for too long")
