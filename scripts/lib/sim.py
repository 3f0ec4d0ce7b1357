"""What scripts/sim runs."""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import time
import traceback
from collections import Counter
from typing import NamedTuple

from tests.sim import cluster_catching
from tests.sim.cluster_world import Cluster


class Run(NamedTuple):
    """What became of one seed."""

    seed: int
    acked: int
    faults: frozenset[str]
    problem: str


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/sim")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seeds", type=int, help="how many seeds to run")
    which.add_argument("--seed", type=int, help="the one seed to run and to show")
    which.add_argument(
        "--find-planted",
        action="store_true",
        help="find and record a seed for each planted bug whose recorded one catches it no more",
    )
    parser.add_argument("--from", type=int, dest="first", help="the first of --seeds; a fresh one otherwise")
    parser.add_argument("--workers", type=int, default=1, help="how many processes run --seeds or --find-planted")
    parser.add_argument("--keep-going", action="store_true", help="run all --seeds, whatever some of them show")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        return _show(arguments.seed)
    if arguments.find_planted:
        return cluster_catching.find_all(workers=arguments.workers)
    first = random.SystemRandom().randrange(10**6, 10**9) if arguments.first is None else arguments.first
    return _many(first, arguments.seeds, workers=arguments.workers, keep_going=arguments.keep_going)


def _many(first: int, count: int, *, workers: int, keep_going: bool) -> int:
    began, acked, bad = time.monotonic(), 0, 0
    faults: Counter[str] = Counter()
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for number, run in enumerate(pool.imap(_run, range(first, first + count)), 1):
            acked += run.acked
            faults.update(run.faults)
            if run.problem:
                bad += 1
                print(f"seed {run.seed}: {run.problem}\nscripts/sim --seed {run.seed} shows it", flush=True)
                if not keep_going:
                    return 1
            if number % 100 == 0:
                took = f"{time.monotonic() - began:.0f} s"
                print(f"{number} seeds, {acked} acknowledged batches, {took}", flush=True)
    print("seeds in which it happened: " + ", ".join(f"{name} {n}" for name, n in sorted(faults.items())))
    verdict = f"{bad} seeds broke a promise" if bad else "every promise was kept"
    print(f"{count} seeds from {first} on, {acked} acknowledged batches: {verdict}")
    return int(bad > 0)


def _run(seed: int) -> Run:
    cluster = Cluster(seed)
    try:
        cluster.run()
    except AssertionError as error:
        return Run(seed, cluster.acked_count, frozenset(cluster.faults), str(error))
    except Exception:  # a bug of whatever kind: the seed is what one needs to find it
        return Run(seed, cluster.acked_count, frozenset(cluster.faults), traceback.format_exc())
    return Run(seed, cluster.acked_count, frozenset(cluster.faults), "")


def _show(seed: int) -> int:
    cluster = Cluster(seed)
    try:
        cluster.run()
    except AssertionError as error:
        print("\n".join(cluster.trace))
        traceback.print_exc()
        print(f"seed {seed}: {error}")
        return 1
    print("\n".join(cluster.trace))
    print(f"seed {seed}: {cluster.acked_count} acknowledged batches, every promise was kept")
    return 0


if __name__ == "__main__":
    sys.exit(main())
