"""Which seed catches which planted bug: recorded in a file beside this, replayed by tests, found by `scripts/sim`.

A seed is another history once the code has changed, so one that caught a bug may not do so any more. Then
`scripts/sim --find-planted` looks for another, and records what it sees.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Mapping, Sequence
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Final, NamedTuple

from tests.sim.cluster_planted import PLANTED
from tests.sim.cluster_world import PARTITIONS, Cluster, shape_of
from tests.sim.raft_world import Violation

RECORD: Final = Path(__file__).with_name("cluster_catching.json")
SEEDS_A_BUG_MAX: Final = 400
CAUGHT_CHARS_MAX: Final = 160


class Catch(NamedTuple):
    seed: int
    caught: str
    """What was seen of the bug."""


def recorded() -> dict[str, Catch]:
    return {bug: Catch(**each) for bug, each in json.loads(RECORD.read_text()).items()}


def caught(bug: str, seed: int) -> str:
    """What a seed shows of a bug; empty for nothing."""
    with PLANTED[bug]():
        try:
            Cluster(seed).run()
        except Violation as error:
            return str(error).partition("\n")[0][:CAUGHT_CHARS_MAX]
    return ""


def find_all(*, workers: int) -> int:
    """Find a seed for each bug whose recorded one does not do, and record it. How many bugs are left."""
    known = recorded() if RECORD.exists() else {}
    catches = {bug: catch for bug, catch in known.items() if bug in PLANTED}
    missed = 0
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for bug in sorted(PLANTED):
            began = time.monotonic()
            first = [catches.pop(bug).seed] if bug in catches else []
            catch = _find(pool, bug, [*first, *filter(is_quick, range(1, SEEDS_A_BUG_MAX))], at_once=workers)
            if catch is None:
                missed += 1
                print(f"{bug}: not one of {SEEDS_A_BUG_MAX} seeds catches it", flush=True)
            else:
                Cluster(catch.seed).run()  # without the bug it is to keep every promise; else there is another bug
                catches[bug] = catch
                print(f"{bug}: seed {catch.seed}, in {time.monotonic() - began:.0f} s: {catch.caught}", flush=True)
            _record(catches)
    return missed


def is_quick(seed: int) -> bool:
    return shape_of(seed).partitions == PARTITIONS


def _find(pool: Pool, bug: str, seeds: Sequence[int], *, at_once: int) -> Catch | None:
    for begin in range(0, len(seeds), at_once):
        chunk = seeds[begin : begin + at_once]
        for seed, what in zip(chunk, pool.starmap(caught, [(bug, seed) for seed in chunk]), strict=True):
            if what:
                return Catch(seed, what)
    return None


def _record(catches: Mapping[str, Catch]) -> None:
    document = {bug: catches[bug]._asdict() for bug in sorted(catches)}
    RECORD.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
