"""Offsets that a reader passed over, and whether there were records in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(slots=True)
class Gap:
    place: int
    start: int
    end: int
    """Exclusive: where the reader went on."""
    process: int
    line_before: int
    line_after: int
    records: int = 0
    first: int = -1
    """Of the records that lie in it."""


class Gaps:
    """Sweeps over gaps and records, both in order of place and offset. At most a gap a reader is open at a time, but
    for readers that go back."""

    def __init__(self, gaps: Iterator[Gap]) -> None:
        self._coming = gaps
        self._next = next(gaps, None)
        self._open: list[Gap] = []

    def on_record(self, place: int, offset: int) -> Iterator[Gap]:
        """There is one here. The gaps that end before it."""
        here = (place, offset)
        while (gap := self._next) is not None and (gap.place, gap.start) <= here:
            self._open.append(gap)
            self._next = next(self._coming, None)
        if not self._open:
            return
        still = []
        for gap in self._open:
            if gap.place != place or gap.end <= offset:
                yield gap
            else:
                gap.records += 1
                gap.first = offset if gap.records == 1 else gap.first
                still.append(gap)
        self._open = still

    def rest(self) -> Iterator[Gap]:
        """After the last record."""
        yield from self._open
