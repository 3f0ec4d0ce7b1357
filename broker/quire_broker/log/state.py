"""What a log is made of, shared by those who read it and those who change it."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from quire_broker.log.config import LogConfig
from quire_broker.log.epochs import LeaderEpochs
from quire_broker.log.producers import Producers
from quire_broker.log.ranges import OffsetRanges
from quire_broker.log.segment import Segment
from quire_broker.log.sidecar import SidecarKind
from quire_broker.ports import Disk


@dataclass
class LogState:
    disk: Disk
    directory: str
    config: LogConfig
    kinds: tuple[SidecarKind, ...]
    segments: list[Segment]
    """By base offset; the last one is active."""
    start_offset: int
    recovery_point: int
    """As the checkpoint on the disk has it: everything below is synced and indexed."""
    epochs: LeaderEpochs
    quarantined: OffsetRanges
    producers: Producers
    unsaved: bool
    """The checkpoint on the disk does not say all that is known by now."""

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    @property
    def end_offset(self) -> int:
        return self.segments[-1].end_offset

    def new_segment(self, base_offset: int) -> Segment:
        return Segment(self.disk, self.directory, base_offset, self.kinds)

    def segment_at(self, offset: int) -> Segment:
        """The last segment that begins at or before an offset, or the first one."""
        at = bisect_right(self.segments, offset, key=lambda segment: segment.base_offset)
        return self.segments[max(0, at - 1)]
