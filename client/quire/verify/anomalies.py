"""What checks find."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Final

SHOWN_MAX: Final = 100
"""How many anomalies of a kind are kept; all are counted."""


class Kind(enum.StrEnum):
    LOST_WRITE = "lost write"
    UNSEEN = "unseen"
    DUPLICATE = "duplicate"
    INCONSISTENT_OFFSET = "inconsistent offset"
    ABORTED_READ = "aborted read"
    PHANTOM = "phantom"
    REORDERED = "reordered"
    POLL_SKIP = "poll skip"
    NON_MONOTONIC_POLL = "non-monotonic poll"


@dataclass(frozen=True, kw_only=True, slots=True)
class Anomaly:
    kind: Kind
    topic: str
    partition: int
    offset: int | None
    value: str | None
    lines: tuple[int, ...]
    """Those that show it, as they stand in the history."""
    text: str

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind.value,
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "value": self.value,
            "lines": list(self.lines),
            "text": self.text,
        }


@dataclass(kw_only=True, slots=True)
class Verdict:
    """What one check came to."""

    kind: Kind
    checked: int = 0
    unit: str
    """Of what so many were checked."""
    count: int = 0
    anomalies: list[Anomaly] = field(default_factory=list)
    """The first of them."""

    def add(self, anomaly: Anomaly) -> None:
        self.count += 1
        self.anomalies.append(anomaly)
        if len(self.anomalies) >= 2 * SHOWN_MAX:
            self.settle()

    def settle(self) -> None:
        """Keep those that come first in the history."""
        self.anomalies.sort(key=lambda each: (each.lines, each.text))
        del self.anomalies[SHOWN_MAX:]


@dataclass(kw_only=True, slots=True)
class Report:
    """What all checks came to."""

    lines: int = 0
    sends: int = 0
    """Values that were sent: so many were acknowledged, failed, or are unknown."""
    acknowledged: int = 0
    failed: int = 0
    unknown: int = 0
    polled: int = 0
    """Records that were read along the way, and by full readers."""
    read: int = 0
    partitions: int = 0
    not_judged: int = 0
    """Acknowledged values of which nobody knows if they are there: no full reader read their place."""
    truncated: bool = False
    """Whether the last line was cut short: it was left out."""
    verdicts: dict[Kind, Verdict] = field(default_factory=dict)

    @property
    def anomalies(self) -> int:
        return sum(each.count for each in self.verdicts.values())

    def as_json(self) -> dict[str, Any]:
        return {
            "lines": self.lines,
            "truncated": self.truncated,
            "partitions": self.partitions,
            "sends": self.sends,
            "acknowledged": self.acknowledged,
            "failed": self.failed,
            "unknown": self.unknown,
            "polled": self.polled,
            "read": self.read,
            "not_judged": self.not_judged,
            "anomalies": self.anomalies,
            "verdicts": [
                {
                    "kind": each.kind.value,
                    "checked": each.checked,
                    "unit": each.unit,
                    "count": each.count,
                    "anomalies": [anomaly.as_json() for anomaly in each.anomalies],
                }
                for each in self.verdicts.values()
            ],
        }
