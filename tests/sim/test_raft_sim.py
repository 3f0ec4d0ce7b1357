"""The Raft package under every fault that the simulation knows. A failing seed fails again: run it with -k."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.raft_chaos import Chaos
from tests.sim.raft_planted import PLANTED
from tests.sim.raft_world import Violation

ROOT = Path(__file__).resolve().parents[2]
SEEDS_A_TEST = 10
FIRST = int(os.environ.get("QUIRE_SIM_FIRST_SEED", "0"))
COUNT = int(os.environ.get("QUIRE_SIM_SEEDS", "240"))

PLANTED_FROM = {
    # The seed from which on the search begins, one that was seen to catch it; and how many are tried.
    "vote_not_persisted": (133, 500),
    "blind_truncation": (3, 200),
    "acks_before_sync": (25, 100),
    "no_sync": (1, 20),
    "wiped_member_votes": (65, 200),
    "read_without_a_round": (1, 100),
}


@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, SEEDS_A_TEST))
def test_nothing_acknowledged_is_lost_and_nobody_disagrees(first: int) -> None:
    for seed in range(first, first + SEEDS_A_TEST):
        # Three members or five; bare messages, which may be lost, doubled and reordered, or the real peer link.
        Chaos(seed, 5 if seed % 3 == 2 else 3, over_link=seed % 5 == 4).run()


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(bug: str) -> None:
    first, count = PLANTED_FROM[bug]
    with PLANTED[bug]():
        for seed in range(first, first + count):
            try:
                Chaos(seed, 3 if seed % 2 else 5).run()
            except Violation:
                return
    pytest.fail(f"{count} seeds did not notice '{bug}'")


@pytest.mark.parametrize("arguments", ["17, 3", "18, 5", "19, 3, over_link=True"])
def test_the_same_seed_gives_the_same_trace(arguments: str) -> None:
    program = f"from tests.sim.test_raft_sim import trace_of; print(trace_of({arguments}))"
    traces = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("0", "1", "2")
    }
    assert len(traces) == 1


def trace_of(seed: int, size: int, *, over_link: bool = False) -> str:
    chaos = Chaos(seed, size, over_link=over_link)
    chaos.run()
    return hashlib.sha256("\n".join(chaos.world.trace).encode()).hexdigest()


def test_every_fault_happens() -> None:
    seen: set[str] = set()
    for seed in range(6):
        chaos = Chaos(seed, 3)
        chaos.run()
        seen.update(chaos.faults)
    assert seen == {
        *("_partition", "_one_way", "_bridge", "_storm", "_pause", "_kill_some", "_kill_all"),
        *("_die_in_a_write", "_fill_a_disk", "_wipe", "_heal"),
    }
