"""Does what the members hold in the end keep what clients were told?

Clients append unique values one at a time and retry each until it is acknowledged; members drop what they have
already. So each replica is to be one list in which every acknowledged value stands exactly once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final

from tests.raftkill.history import History, Write

SHOWN_MAX: Final = 5
SHOWN_CHARS_MAX: Final = 24


class Kind(StrEnum):
    LOST = "lost"
    """Acknowledged and not there."""
    DUPLICATE = "duplicate"
    """There more than once."""
    DIVERGED = "diverged"
    """Two members differ."""
    ORDER = "order"
    """A client's later value stands before its earlier one."""
    REAL_TIME = "real-time"
    """A value that was acknowledged before another was first asked for stands behind it."""
    INDEX = "index"
    """The indexes that acknowledgements named do not rise along the list."""
    PHANTOM = "phantom"
    """Nobody asked for it."""
    REFUSED = "refused"
    """Each attempt was said to have failed, and it is there."""
    WEDGED = "wedged"
    """Members stopped making progress, or never came to agree. Seen by the harness, not in the lists."""
    CRASHED = "crashed"
    """A member ended by itself. Seen by the harness, not in the lists."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    kind: Kind
    member: str
    values: tuple[str, ...]
    detail: str = ""

    def __str__(self) -> str:
        shown = ", ".join(value[:SHOWN_CHARS_MAX] for value in self.values[:SHOWN_MAX])
        shown += ", …" if len(self.values) > SHOWN_MAX else ""
        parts = [f"{len(self.values)}: {shown}" if self.values else "", self.detail]
        return f"{self.kind} at {self.member}: " + "; ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Replica:
    """What one member holds."""

    applied_index: int
    values: tuple[str, ...]


def check(history: History, replicas: Mapping[str, Replica]) -> list[Anomaly]:
    """At most one anomaly a kind and member, with all values concerned."""
    writes = history.writes()
    found = [
        Anomaly(kind, member, values)
        for member, replica in sorted(replicas.items())
        for kind, values in _check_one(writes, replica.values)
        if values
    ]
    return found + list(_differences(replicas))


def lost_everywhere(anomalies: Sequence[Anomaly], members: Collection[str]) -> set[str]:
    """The acknowledged values that no member has. What only some lack may still be on its way to them."""
    missing = {member: set[str]() for member in members}
    for anomaly in anomalies:
        if anomaly.kind is Kind.LOST:
            missing[anomaly.member].update(anomaly.values)
    return set.intersection(*missing.values()) if missing else set()


def _check_one(writes: Mapping[str, Write], values: Sequence[str]) -> Iterator[tuple[Kind, tuple[str, ...]]]:
    counts = Counter(values)
    acked = [write for write in writes.values() if write.acked_at is not None]
    yield Kind.LOST, tuple(write.value for write in acked if write.value not in counts)
    yield Kind.DUPLICATE, tuple(value for value, count in counts.items() if count > 1)
    yield Kind.PHANTOM, tuple(value for value in counts if value not in writes)
    yield Kind.REFUSED, tuple(value for value in counts if value in writes and writes[value].is_refused)

    # A duplicate is named as such; its first place alone is compared with its neighbours'.
    known = [writes[value] for value in counts if value in writes]
    yield Kind.ORDER, _out_of_order(known)
    yield Kind.REAL_TIME, _out_of_real_time(known)
    yield Kind.INDEX, _out_of_index(known)


def _out_of_order(known: Sequence[Write]) -> tuple[str, ...]:
    seq_last: dict[str, int] = {}
    found = []
    for write in known:
        if write.seq <= seq_last.get(write.client, -1):
            found.append(write.value)
        else:
            seq_last[write.client] = write.seq
    return tuple(found)


def _out_of_real_time(known: Sequence[Write]) -> tuple[str, ...]:
    invoked_at_max = -1
    found = []
    for write in known:
        if write.acked_at is not None and write.acked_at < invoked_at_max:
            found.append(write.value)
        invoked_at_max = max(invoked_at_max, write.invoked_at)
    return tuple(found)


def _out_of_index(known: Sequence[Write]) -> tuple[str, ...]:
    indexed = [(write.index, write.value) for write in known if write.index is not None]
    return tuple(value for (before, _), (index, value) in pairwise(indexed) if index <= before)


def _differences(replicas: Mapping[str, Replica]) -> Iterator[Anomaly]:
    """Each member against the first, so that one that differs is named once."""
    if not replicas:
        return
    (first, expected), *others = sorted(replicas.items())
    for member, replica in others:
        if replica.values != expected.values:
            yield Anomaly(Kind.DIVERGED, member, (), _first_difference(first, expected.values, replica.values))
        elif replica.applied_index != expected.applied_index:
            indexes = f"applied {replica.applied_index}, {first} {expected.applied_index}"
            yield Anomaly(Kind.DIVERGED, member, (), indexes)


def _first_difference(other: str, theirs: Sequence[str], ours: Sequence[str]) -> str:
    both = min(len(theirs), len(ours))
    at = next((place for place in range(both) if theirs[place] != ours[place]), both)
    here = ours[at][:SHOWN_CHARS_MAX] if at < len(ours) else "nothing"
    there = theirs[at][:SHOWN_CHARS_MAX] if at < len(theirs) else "nothing"
    return f"at place {at} {here}, at {other} {there}; {len(ours)} values against {len(theirs)}"
