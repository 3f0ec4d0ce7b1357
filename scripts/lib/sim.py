"""What scripts/sim runs."""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback

from tests.sim.cluster_world import Cluster


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/sim")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seeds", type=int, help="how many seeds to run")
    which.add_argument("--seed", type=int, help="the one seed to run and to show")
    parser.add_argument("--from", type=int, dest="first", help="the first of --seeds; a fresh one otherwise")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        return _show(arguments.seed)
    first = random.SystemRandom().randrange(10**6, 10**9) if arguments.first is None else arguments.first
    began, acked = time.monotonic(), 0
    for number, seed in enumerate(range(first, first + arguments.seeds)):
        cluster = Cluster(seed)
        try:
            cluster.run()
        except BaseException as error:
            print(f"seed {seed} after {number} good ones: {error}\nscripts/sim --seed {seed} shows it")
            if not isinstance(error, AssertionError):
                raise
            return 1
        acked += cluster.acked_count
        if (number + 1) % 100 == 0:
            print(f"{number + 1} seeds, {acked} acknowledged batches, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{arguments.seeds} seeds from {first} on, {acked} acknowledged batches: every promise was kept")
    return 0


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
