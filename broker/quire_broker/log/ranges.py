"""A set of offsets as sorted, disjoint ranges: what a log has quarantined."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class OffsetRange(NamedTuple):
    first_offset: int
    end_offset: int


class OffsetRanges:
    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._ranges: list[OffsetRange] = []
        for first, end in ranges:
            self.add(first, end)

    def __iter__(self) -> Iterator[OffsetRange]:
        return iter(self._ranges)

    def __len__(self) -> int:
        return len(self._ranges)

    def add(self, first: int, end: int) -> None:
        """Put a range in, merging it with those it overlaps. Where two only touch, a batch is known to begin."""
        if end <= first:
            return
        left = [r for r in self._ranges if r.end_offset <= first]
        right = [r for r in self._ranges if r.first_offset >= end]
        for r in self._ranges[len(left) : len(self._ranges) - len(right)]:
            first, end = min(first, r.first_offset), max(end, r.end_offset)
        self._ranges = [*left, OffsetRange(first, end), *right]

    def remove(self, first: int, end: int) -> None:
        """Take offsets out; what is left of a range on either side stays."""
        left = [r._replace(end_offset=min(first, r.end_offset)) for r in self._ranges if r.first_offset < first]
        right = [r._replace(first_offset=max(end, r.first_offset)) for r in self._ranges if r.end_offset > end]
        self._ranges = [*left, *right]

    def forget_below(self, offset: int) -> None:
        """Drop ranges that end at or before `offset`. One that reaches across stays whole, as its batches do."""
        self._ranges = [r for r in self._ranges if r.end_offset > offset]

    def truncate(self, end: int) -> None:
        """Drop what lies at or after `end`."""
        self._ranges = [r._replace(end_offset=min(end, r.end_offset)) for r in self._ranges if r.first_offset < end]

    def holding(self, offset: int) -> OffsetRange | None:
        """The range that `offset` lies in, if any."""
        at = bisect_right(self._ranges, offset, key=lambda r: r.first_offset) - 1
        return self._ranges[at] if at >= 0 and offset < self._ranges[at].end_offset else None

    def next_start(self, offset: int) -> int | None:
        """Where the first range at or after `offset` begins."""
        at = bisect_right(self._ranges, offset - 1, key=lambda r: r.first_offset)
        return self._ranges[at].first_offset if at < len(self._ranges) else None
