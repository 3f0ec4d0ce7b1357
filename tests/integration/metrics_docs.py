"""The metrics that a process shows, and those that docs/OPERATING.md says it does: (name, kind)."""

from __future__ import annotations

import re
from pathlib import Path

OPERATING = Path(__file__).resolve().parents[2] / "docs" / "OPERATING.md"


def metrics_in(text: str) -> set[tuple[str, str]]:
    """Of an answer of `/metrics`. When a series began is not told of."""
    shown = re.findall(r"^# TYPE (\S+) (gauge|counter|histogram)$", text, re.MULTILINE)
    return {(name, kind) for name, kind in shown if not name.endswith("_created")}


def documented_metrics(role: str) -> set[tuple[str, str]]:
    text = OPERATING.read_text(encoding="utf-8")
    section = text.partition(f"\n## Metrics of a {role}\n")[2].partition("\n## ")[0]
    found: set[tuple[str, str]] = set()
    for row in re.findall(r"^\| (`quire_.*)$", section, re.MULTILINE):
        names, kind, _ = row.split(" | ")
        found |= {(name, kind) for name in re.findall(r"`(quire_[a-z_]+)", names)}
    return found
