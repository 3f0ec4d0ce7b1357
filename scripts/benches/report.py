"""What a bench found, a row for each thing that it measured, some of them with a gate."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table


class Report:
    def __init__(self, title: str) -> None:
        self._title = title
        self._rows: list[tuple[str, str, str, str]] = []
        self._missed = False

    def add(
        self,
        what: str,
        value: str,
        against: str = "",
        ratio: float | None = None,
        *,
        most: float | None = None,
        least: float | None = None,
    ) -> None:
        """One row; it is told at once, too. A ratio above `most` or below `least` is a miss."""
        shown = "" if ratio is None else f"{ratio:.2f} x"
        if ratio is not None and (most is not None or least is not None):
            missed = (most is not None and ratio > most) or (least is not None and ratio < least)
            self._missed |= missed
            bound = f"<= {most:g}" if most is not None else f">= {least:g}"
            shown = f"{'MISS' if missed else 'PASS'}: {shown} ({bound})"
        self._rows.append((what, value, against, shown))
        print(f"  {what}: {value} {against} {shown}".rstrip(), file=sys.stderr, flush=True)

    def show(self) -> int:
        """Print the table; 1 if a gate was missed."""
        table = Table(title=self._title)
        for column in ("measured", "value", "against", "gate"):
            table.add_column(column)
        for row in self._rows:
            table.add_row(*row)
        # A width of its own: in a pipe there is no terminal to ask, and the names would be cut.
        Console(width=130 if not sys.stdout.isatty() else None).print(table)
        return int(self._missed)


def percentile(values: Sequence[float], percent: int) -> float:
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]
