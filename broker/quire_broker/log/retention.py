"""Which of a log's oldest segments have served their time."""

from __future__ import annotations

from collections.abc import Sequence

from quire_broker.log.config import LogConfig
from quire_broker.log.segment import Segment


def expired_count(segments: Sequence[Segment], *, config: LogConfig, now_ms: int, end_offset_max: int) -> int:
    """How many segments from the first one on may go. None that reaches past `end_offset_max`, and never the last.

    By age a segment goes when its newest record is too old. One without any timestamp has no age and stays.
    """
    total_bytes = sum(segment.size_bytes for segment in segments)
    count = 0
    for segment in segments[:-1]:
        if segment.end_offset > end_offset_max:
            break
        too_old = config.retention_ms is not None and 0 <= segment.max_timestamp_ms < now_ms - config.retention_ms
        too_large = config.retention_bytes is not None and total_bytes - segment.size_bytes >= config.retention_bytes
        too_many = config.retention_segments is not None and len(segments) - count > config.retention_segments
        if not (too_old or too_large or too_many):
            break
        total_bytes -= segment.size_bytes
        count += 1
    return count
