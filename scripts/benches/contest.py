"""Subject and baseline take turns and medians are compared, so that whatever else the machine does hits both.

Rates differ between machines; the ratios are what to look at.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from rich.console import Console
from rich.table import Table

Work = Callable[[], object]


@dataclass(frozen=True)
class Contest:
    """One row: the same work done by us and by a baseline."""

    what: str
    unit: str
    """What `count` counts."""
    count: float
    subject: Work
    baseline_name: str = ""
    baseline: Work | None = None
    ratio_min: float | None = None


@dataclass(frozen=True)
class Outcome:
    contest: Contest
    subject_rate: float
    baseline_rate: float | None

    @property
    def ratio(self) -> float | None:
        return self.subject_rate / self.baseline_rate if self.baseline_rate else None

    @property
    def missed(self) -> bool:
        return self.contest.ratio_min is not None and (self.ratio or 0.0) < self.contest.ratio_min


def measure(contest: Contest, *, rounds: int, round_s_min: float) -> Outcome:
    """Let both take turns, each repeating its work for about `round_s_min` in a turn."""
    works = [contest.subject] if contest.baseline is None else [contest.subject, contest.baseline]
    repeats = []
    for work in works:
        work()  # caches are part of how it runs for long
        repeats.append(max(1, round(round_s_min / max(_time(work, 1), 1e-9))))
    times: list[list[float]] = [[] for _ in works]
    # When the garbage collector runs depends on what ran before, and decoding makes much for it to look at: whoever
    # it happens to hit would pay for both.
    gc.disable()
    try:
        for _ in range(rounds):
            for work, repeat, taken in zip(works, repeats, times, strict=True):
                taken.append(_time(work, repeat) / repeat)
    finally:
        gc.enable()
    rates = [contest.count / median(taken) for taken in times]
    return Outcome(contest, rates[0], rates[1] if len(rates) > 1 else None)


def _time(work: Work, repeat: int) -> float:
    start = perf_counter()
    for _ in range(repeat):
        work()
    return perf_counter() - start


def arguments_for(prog: str, description: str | None) -> argparse.ArgumentParser:
    """What every bench can be told."""
    parser = argparse.ArgumentParser(prog=f"scripts/bench {prog}", description=description)
    parser.add_argument("--rounds", type=int, default=15, help="turns that each side takes (15)")
    parser.add_argument("--round-ms", type=float, default=10.0, help="about how long a turn lasts (10)")
    parser.add_argument("--only", default="", help="only the rows whose name contains this")
    return parser


def run(title: str, contests: Iterable[Contest], arguments: argparse.Namespace) -> int:
    """Measure the rows that were asked for and print them; 1 if a gate was missed, 2 if there is no such row."""
    outcomes = [
        measure(contest, rounds=arguments.rounds, round_s_min=arguments.round_ms / 1000)
        for contest in contests
        if arguments.only in contest.what
    ]
    if not outcomes:
        print(f"no row has '{arguments.only}' in its name; leave out --only to see them all", file=sys.stderr)
        return 2
    return _report(title, outcomes)


def _report(title: str, outcomes: Sequence[Outcome]) -> int:
    """Print the table; 1 if a gate was missed, else 0."""
    table = Table(title=title)
    for column in ("work", "unit", "quire", "baseline", "", "ratio", "gate"):
        table.add_column(column, justify="right" if column in ("quire", "", "ratio") else "left")
    for outcome in outcomes:
        contest = outcome.contest
        gate = ""
        if contest.ratio_min is not None:
            gate = f"{'MISS' if outcome.missed else 'PASS'} (>= {contest.ratio_min:g}x)"
        table.add_row(
            contest.what,
            contest.unit,
            f"{outcome.subject_rate:.3f}",
            contest.baseline_name,
            "" if outcome.baseline_rate is None else f"{outcome.baseline_rate:.3f}",
            "" if outcome.ratio is None else f"{outcome.ratio:.2f}x",
            gate,
        )
    # A width of its own: in a pipe there is no terminal to ask, and the names would be cut.
    Console(width=120 if not sys.stdout.isatty() else None).print(table)
    return int(any(outcome.missed for outcome in outcomes))
