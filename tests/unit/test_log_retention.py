"""Which segments have served their time."""

from __future__ import annotations

from typing import Any

import pytest

from quire.disk.sim_disk import SimDisk
from quire_broker.log.config import LogConfig
from quire_broker.log.index import TIMESTAMP_NONE
from quire_broker.log.retention import expired_count
from quire_broker.log.segment import Segment


def segments(*newest_ms: int) -> list[Segment]:
    """Segments of ten records and 100 bytes each."""
    made = []
    for n, max_timestamp_ms in enumerate(newest_ms):
        segment = Segment(SimDisk(), "/d", 10 * n)
        segment.end_offset, segment.size_bytes, segment.max_timestamp_ms = 10 * n + 10, 100, max_timestamp_ms
        made.append(segment)
    return made


def count(made: list[Segment], *, now_ms: int = 0, end_offset_max: int = 1_000, **limits: Any) -> int:
    config = LogConfig(**{"retention_ms": None, **limits})
    return expired_count(made, config=config, now_ms=now_ms, end_offset_max=end_offset_max)


def test_without_limits_nothing_goes() -> None:
    assert count(segments(1, 2, 3), now_ms=1 << 50) == 0


@pytest.mark.parametrize(("now_ms", "gone"), [(109, 0), (110, 0), (111, 1), (121, 2), (10_000, 2)])
def test_age_is_that_of_the_newest_record(now_ms: int, gone: int) -> None:
    assert count(segments(10, 20, 30), now_ms=now_ms, retention_ms=100) == gone


def test_a_young_segment_keeps_the_older_ones_behind_it() -> None:
    assert count(segments(10, 5_000, 30, 40), now_ms=4_000, retention_ms=100) == 1


@pytest.mark.parametrize("timestamp_ms", [TIMESTAMP_NONE, -1])
def test_a_segment_without_a_timestamp_has_no_age(timestamp_ms: int) -> None:
    assert count(segments(timestamp_ms, 10, 20), now_ms=1 << 50, retention_ms=100) == 0


@pytest.mark.parametrize(("limit", "gone"), [(400, 0), (301, 0), (300, 1), (200, 2), (199, 2), (100, 3), (0, 3)])
def test_what_stays_is_at_least_as_large_as_the_limit(limit: int, gone: int) -> None:
    assert count(segments(1, 2, 3, 4), retention_bytes=limit) == gone


@pytest.mark.parametrize(("limit", "gone"), [(5, 0), (4, 0), (3, 1), (1, 3), (0, 3)])
def test_no_more_segments_stay_than_the_limit_and_always_one(limit: int, gone: int) -> None:
    assert count(segments(1, 2, 3, 4), retention_segments=limit) == gone


@pytest.mark.parametrize(("end_offset_max", "gone"), [(0, 0), (9, 0), (10, 1), (25, 2), (40, 3)])
def test_nothing_goes_that_reaches_past_the_bound(end_offset_max: int, gone: int) -> None:
    assert count(segments(1, 2, 3, 4), retention_segments=1, end_offset_max=end_offset_max) == gone
