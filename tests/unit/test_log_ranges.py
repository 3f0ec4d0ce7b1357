"""Sets of offsets."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from quire_broker.log.ranges import OffsetRanges


def test_ranges_hold_the_offsets_that_were_put_in() -> None:
    chance = random.Random(1)
    for _ in range(200):
        ranges, model = OffsetRanges(), set[int]()
        for _ in range(chance.randint(0, 8)):
            first = chance.randint(0, 40)
            end = first + chance.randint(0, 8)
            ranges.add(first, end)
            model |= set(range(first, end))
        assert {offset for offset in range(60) if ranges.holding(offset)} == model
        found = list(ranges)
        assert all(before.end_offset <= after.first_offset for before, after in pairwise(found))


def test_overlapping_ranges_merge_and_touching_ones_do_not() -> None:
    ranges = OffsetRanges([(10, 20), (30, 40), (20, 25), (50, 60)])
    assert list(ranges) == [(10, 20), (20, 25), (30, 40), (50, 60)]
    ranges.add(24, 51)
    assert list(ranges) == [(10, 20), (20, 60)]
    assert len(ranges) == 2


def test_an_empty_range_is_none() -> None:
    assert list(OffsetRanges([(5, 5), (7, 6)])) == []


@pytest.mark.parametrize(
    ("offset", "left"),
    [(0, [(10, 20), (30, 40)]), (19, [(10, 20), (30, 40)]), (20, [(30, 40)]), (35, [(30, 40)]), (40, [])],
)
def test_a_range_is_forgotten_once_it_ends_below(offset: int, left: list[tuple[int, int]]) -> None:
    ranges = OffsetRanges([(10, 20), (30, 40)])
    ranges.forget_below(offset)
    assert list(ranges) == left


@pytest.mark.parametrize(
    ("end", "left"), [(50, [(10, 20), (30, 40)]), (35, [(10, 20), (30, 35)]), (30, [(10, 20)]), (10, [])]
)
def test_a_truncation_cuts_ranges(end: int, left: list[tuple[int, int]]) -> None:
    ranges = OffsetRanges([(10, 20), (30, 40)])
    ranges.truncate(end)
    assert list(ranges) == left


@pytest.mark.parametrize(("offset", "start"), [(0, 10), (10, 10), (11, 30), (30, 30), (31, None)])
def test_the_next_range_begins_at_or_after_an_offset(offset: int, start: int | None) -> None:
    assert OffsetRanges([(10, 20), (30, 40)]).next_start(offset) == start
