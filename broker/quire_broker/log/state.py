"""What a log is made of, shared by those who read it and those who change it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from quire.disk.port import Disk
from quire.errors import DiskFullError, DiskIoError, LogOfflineError, QuireError, invariant
from quire_broker.log import checkpoint as checkpoints
from quire_broker.log.checkpoint import Checkpoint, Cut
from quire_broker.log.config import LogConfig
from quire_broker.log.epochs import LeaderEpochs
from quire_broker.log.producers import Producers
from quire_broker.log.ranges import OffsetRanges
from quire_broker.log.segment import Segment
from quire_broker.log.sidecar import SidecarKind


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
    last_ms: int
    """The newest time that anybody gave: what is learned anew is as of then."""
    unsaved: bool
    """The checkpoint on the disk does not say all that is known by now."""
    synced_offset: int
    """Everything below survives a power cut."""
    appended_bytes: int = field(default=0, init=False)
    """Since the recovery point was moved."""
    files_made: int = field(default=1, init=False)
    """Segments made since opening; the one that was active may have been new too. Their names need a sync."""
    syncing: bool = field(default=False, init=False)
    """A sync plan is in flight."""
    keeping_books: bool = field(default=False, init=False)
    """Indexes, snapshot and checkpoint are being written."""
    offline: LogOfflineError | None = field(default=None, init=False)
    """Why the log serves nothing any more, if so."""

    unsealed: list[Segment] = field(init=False)
    """Segments before the active one whose index is only in memory."""

    def __post_init__(self) -> None:
        self.find_unsealed()

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    @property
    def end_offset(self) -> int:
        return self.segments[-1].end_offset

    # -- guards ----------------------------------------------------------------------------------------------------

    def require_online(self) -> None:
        if self.offline is not None:
            raise self.offline

    def require_exclusive(self) -> None:
        """For what rewrites files that somebody may be writing on another thread."""
        self.require_online()
        invariant(not (self.syncing or self.keeping_books), "an exclusive operation while a sync is in flight")

    def go_offline(self, cause: QuireError) -> None:
        if self.offline is None:
            self.offline = LogOfflineError(
                f"{self.directory} is offline since a disk error: {cause.message}; mend the disk, restart the broker",
                cause=cause.reason,
            )

    @contextmanager
    def offline_on_error(self) -> Iterator[None]:
        """What fails in the middle of a removal is finished by opening the log anew, and by nothing else."""
        try:
            yield
        except (DiskFullError, DiskIoError) as error:
            self.go_offline(error)
            raise

    @contextmanager
    def offline_on_io_error(self) -> Iterator[None]:
        """Only want of room leaves things as they were; after any other error nobody knows what is on the disk."""
        try:
            yield
        except DiskIoError as error:
            self.go_offline(error)
            raise

    # -- the checkpoint --------------------------------------------------------------------------------------------

    def checkpoint(
        self,
        *,
        start_offset: int | None = None,
        recovery_point: int | None = None,
        epochs: LeaderEpochs | None = None,
        quarantined: OffsetRanges | None = None,
        cut: Cut | None = None,
    ) -> Checkpoint:
        """What is to be known at the next opening: the state, but for what is given."""
        start = self.start_offset if start_offset is None else start_offset
        return Checkpoint(
            start_offset=start,
            recovery_point=max(start, self.recovery_point if recovery_point is None else recovery_point),
            epochs=tuple(self.epochs if epochs is None else epochs),
            quarantined=tuple(self.quarantined if quarantined is None else quarantined),
            cut=cut,
        )

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint on the disk at once. A failed sync is final, also here."""
        # Whatever the error: the new checkpoint may be in place, and what it says is not in memory.
        with self.offline_on_io_error():
            checkpoints.save(self.disk, self.directory, checkpoint)

    # -- segments --------------------------------------------------------------------------------------------------

    def roll(self) -> None:
        """Begin a new segment. On error nothing has changed."""
        segment = self.new_segment(self.end_offset)
        try:
            segment.create()
        except DiskIoError as error:
            # The file may be there. Were it appended to the old one, the two would overlap.
            self.go_offline(error)
            raise
        self.unsealed.append(self.active)
        self.segments.append(segment)
        self.files_made += 1

    def find_unsealed(self) -> None:
        """Call when segments were removed or lost their index; a roll sees to itself."""
        self.unsealed = [segment for segment in self.segments[:-1] if not segment.is_sealed]

    def new_segment(self, base_offset: int) -> Segment:
        return Segment(self.disk, self.directory, base_offset, self.kinds)

    def segment_at(self, offset: int) -> Segment:
        """The last segment that begins at or before an offset, or the first one."""
        at = bisect_right(self.segments, offset, key=lambda segment: segment.base_offset)
        return self.segments[max(0, at - 1)]
