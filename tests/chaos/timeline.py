"""What a history says of time: rates, latencies, who led, which faults there were."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

BINS: Final = 400
BIN_S_MIN: Final = 0.5
ACTIVE_MIN: Final = 0.3
"""A bin of which less than this share was traffic says nothing."""


@dataclass(frozen=True)
class Span:
    began_s: float
    ended_s: float

    def overlap(self, other: Span) -> float:
        return max(0.0, min(self.ended_s, other.ended_s) - max(self.began_s, other.began_s))


@dataclass(frozen=True)
class FaultSpan(Span):
    name: str
    nodes: tuple[str, ...]
    well_s: float | None
    """When all was well again; None if it never was."""
    silent_s: float
    """The longest time without an acknowledgement, from its beginning until all was well."""


@dataclass(frozen=True)
class Reign(Span):
    """A broker led a partition. None: nobody did, or nobody knows."""

    partition: int
    leader: int | None
    in_sync: int
    known: bool


@dataclass(frozen=True)
class Bin:
    at_s: float
    per_s: float | None
    p50_ms: float | None
    p99_ms: float | None


@dataclass
class Timeline:
    about: dict[str, Any] = field(default_factory=dict)
    """The history's first line."""
    duration_s: float = 0.0
    bin_s: float = BIN_S_MIN
    bins: list[Bin] = field(default_factory=list)
    faults: list[FaultSpan] = field(default_factory=list)
    reigns: list[Reign] = field(default_factory=list)
    elections: int = 0
    comparisons: int = 0
    failure: str | None = None
    lines: dict[int, str] = field(default_factory=dict)
    """Those that were asked for, by number."""


def read(history: Path, *, lines: Iterable[int] = ()) -> Timeline:
    """`lines`: numbers of those that are to be kept as they stand."""
    found, wanted = Timeline(), frozenset(lines)
    acks: list[tuple[float, float]] = []
    quiet: list[Span] = []
    faults: list[tuple[float, str, dict[str, Any]]] = []
    watched: list[tuple[float, dict[str, Any]]] = []
    over_s: float | None = None
    with history.open("rb") as file:
        for number, text in enumerate(file, 1):
            if number in wanted:
                found.lines[number] = text.decode("utf-8", "backslashreplace").strip()
            line = json.loads(text)
            if number == 1:
                found.about = line
                continue
            at_s, op = line["time"], line["op"]
            found.duration_s = at_s
            if op == "send" and line["type"] == "ok":
                acks.append((at_s, line["took_ms"]))
            elif op == "fault":
                faults.append((at_s, line["what"], line))
                over_s = at_s if line["what"] == "is over" else over_s
            elif op == "compare":
                found.comparisons += 1
                quiet.append(Span(over_s if over_s is not None else at_s, at_s))
                over_s = None
            elif op == "watch":
                watched.append((at_s, line))
            elif op == "failure":
                found.failure = line["why"]
    found.bin_s = max(BIN_S_MIN, found.duration_s / BINS)
    found.bins = list(_bins(acks, quiet, found))
    found.faults = list(_faults(faults, [at_s for at_s, _ in acks], found.duration_s))
    found.reigns = list(_reigns(watched, found.duration_s))
    found.elections = sum(
        before.partition == after.partition and after.leader is not None and before.leader != after.leader
        for before, after in pairwise(sorted(found.reigns, key=lambda each: (each.partition, each.began_s)))
    )
    return found


def _bins(acks: list[tuple[float, float]], quiet: list[Span], about: Timeline) -> Iterator[Bin]:
    by_bin: dict[int, list[float]] = {}
    for at_s, took_ms in acks:
        by_bin.setdefault(int(at_s / about.bin_s), []).append(took_ms)
    last = int(acks[-1][0] / about.bin_s) if acks else -1
    for number in range(last + 1):
        span = Span(number * about.bin_s, (number + 1) * about.bin_s)
        active_s = about.bin_s - sum(span.overlap(each) for each in quiet)
        took = sorted(by_bin.get(number, ()))
        per_s = len(took) / active_s if active_s >= ACTIVE_MIN * about.bin_s else None
        p50, p99 = (median(took), took[int(len(took) * 0.99)]) if took else (None, None)
        yield Bin(span.began_s, per_s, p50, p99)


def _faults(events: list[tuple[float, str, dict[str, Any]]], acks: list[float], end_s: float) -> Iterator[FaultSpan]:
    for index, (at_s, what, line) in enumerate(events):
        if what != "begins":
            continue
        later = {}
        for when_s, then, _ in events[index + 1 :]:
            if then == "begins":
                break
            later[then] = when_s
        well_s = later.get("is over")
        until_s = end_s if well_s is None else well_s
        yield FaultSpan(
            at_s,
            later.get("ends", until_s),
            line["name"],
            tuple(line["nodes"]),
            well_s,
            _longest_gap(acks, at_s, until_s),
        )


def _longest_gap(acks: list[float], began_s: float, ended_s: float) -> float:
    within = [began_s, *(at_s for at_s in acks if began_s < at_s < ended_s), ended_s]
    return max(after - before for before, after in pairwise(within))


def _reigns(watched: list[tuple[float, dict[str, Any]]], end_s: float) -> Iterator[Reign]:
    by_partition: dict[int, list[tuple[float, dict[str, Any]]]] = {}
    for at_s, line in watched:
        if line["known"]:
            by_partition.setdefault(line["partition"], []).append((at_s, line))
    unknown = [(at_s, line) for at_s, line in watched if not line["known"]]
    for partition, changes in sorted(by_partition.items()):
        everything = sorted([*changes, *unknown], key=lambda each: each[0])
        ends = [at_s for at_s, _ in everything[1:]] + [end_s]
        for (at_s, line), ended_s in zip(everything, ends, strict=True):
            known = line["known"]
            leader = line.get("leader") if known else None
            yield Reign(at_s, ended_s, partition, leader, len(line["isr"]) if known else 0, known)
