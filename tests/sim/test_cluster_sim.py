"""A whole cluster under every fault that the simulation knows. `scripts/sim --seed K` shows what happened in one."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.cluster_catching import caught, is_quick, recorded
from tests.sim.cluster_planted import PLANTED
from tests.sim.cluster_world import Cluster

ROOT = Path(__file__).resolve().parents[2]
SEEDS_A_TEST = 10
COUNT = int(os.environ.get("QUIRE_CLUSTER_SEEDS", "150"))
FIRST = int(os.environ.get("QUIRE_CLUSTER_FIRST_SEED", "0")) or random.SystemRandom().randrange(10**6, 10**9)
"""Fresh ones each time, unless they are said: a failure names its seed."""


@pytest.mark.parametrize("number", range(0, COUNT, SEEDS_A_TEST))
def test_nothing_acknowledged_is_lost_doubled_or_reordered(number: int) -> None:
    for seed in range(FIRST + number, FIRST + number + SEEDS_A_TEST):
        Cluster(seed).run()


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught_by_the_seed_that_is_recorded_for_it(bug: str) -> None:
    catch = recorded().get(bug)
    assert catch is not None, f"no seed is recorded for '{bug}'; scripts/sim --find-planted looks for one"
    assert caught(bug, catch.seed), (
        f"seed {catch.seed} does not catch '{bug}' any more. When the code has changed, it is another history: "
        "scripts/sim --find-planted looks for another seed, and records it in tests/sim/cluster_catching.json. "
        f"It had shown: {catch.caught}"
    )
    Cluster(catch.seed).run()  # and without the bug it keeps every promise: it was the bug that was caught


def test_no_seed_is_recorded_for_a_bug_that_is_no_more() -> None:
    assert set(recorded()) == set(PLANTED)


@pytest.mark.parametrize("seed", [4, 5])
def test_the_same_seed_gives_the_same_trace(seed: int) -> None:
    program = f"from tests.sim.test_cluster_sim import trace_of; print(trace_of({seed}))"
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


def trace_of(seed: int) -> str:
    cluster = Cluster(seed)
    cluster.run()
    return hashlib.sha256("\n".join(cluster.trace).encode()).hexdigest()


def test_every_fault_happens() -> None:
    wanted = {
        *("partition", "one way", "bridge", "broken links", "pause", "kill", "power", "power all", "wiped"),
        *("slow disk", "clock", "disk full", "controller", "heal", "late answers", "lost answers", "unknown outcome"),
    }
    for seed in filter(is_quick, range(60)):
        cluster = Cluster(seed)
        cluster.run()
        wanted -= cluster.faults
        if not wanted:
            return
    assert not wanted
