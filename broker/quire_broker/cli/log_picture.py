"""A log directory as it is at one moment, read and never written: what `stat`, `dump` and `verify` all stand on.

A broker may be writing meanwhile, so the order of looking matters: first what was acknowledged, then the files, whose
sizes hold at least that, then the checkpoint, which knows every leader epoch that those bytes can be of.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, TypeVar

from quire.disk.port import Disk
from quire.errors import DiskIoError
from quire_broker.log import checkpoint as checkpoints
from quire_broker.log import synced_mark
from quire_broker.log.checkpoint import Checkpoint
from quire_broker.log.epochs import LeaderEpochs
from quire_broker.log.index import (
    BEGINNING,
    TIMESTAMP_NONE,
    IndexEntry,
    Seal,
    SealedIndex,
    SegmentIndex,
    load_places,
)
from quire_broker.log.promise import Promise
from quire_broker.log.ranges import OffsetRanges
from quire_broker.log.recovery import segment_bases
from quire_broker.log.scan import Anchor, Damage, Found, scan
from quire_broker.log.segment import LOG_SUFFIX

_TRIES_MAX: Final = 5
T = TypeVar("T")


class UnusableError(Exception):
    """There is nothing here to work on. The message is for the one who named the path."""


@dataclass(frozen=True)
class SegmentFile:
    directory: str
    base_offset: int
    size_bytes: int
    """How much of the file belongs to the picture; more may come."""
    next_base_offset: int | None
    """Where the following segment begins; None for the last one."""

    @property
    def stem(self) -> str:
        return f"{self.directory}/{self.base_offset:020d}"

    @property
    def path(self) -> str:
        return self.stem + LOG_SUFFIX


@dataclass(frozen=True)
class Picture:
    disk: Disk
    directory: str
    checkpoint: Checkpoint
    """What the log knows of itself, or for want of that what can be said without."""
    checkpoint_error: str | None
    """Why the checkpoint cannot be trusted, if so. Then nothing is known of epochs and quarantined ranges."""
    synced_mark: int | None
    """None where it is there and not whole."""
    acknowledged: int
    """Below this nothing is a torn tail: someone was told that it is stored."""
    segments: tuple[SegmentFile, ...]
    leaving: tuple[str, ...] = field(default=())
    """Segments that a removal under way, or cut short by a crash, no longer counts."""

    @property
    def trusted(self) -> bool:
        return self.checkpoint_error is None

    @property
    def start_offset(self) -> int:
        return self.checkpoint.start_offset

    @property
    def recovery_point(self) -> int:
        return self.checkpoint.recovery_point

    @cached_property
    def epochs(self) -> LeaderEpochs | None:
        return LeaderEpochs(self.checkpoint.epochs) if self.trusted else None

    @cached_property
    def quarantined(self) -> OffsetRanges:
        return OffsetRanges(self.checkpoint.quarantined)

    def must_be_sealed(self, segment: SegmentFile) -> bool:
        """Whether its index was complete on the disk when the checkpoint was written."""
        # Where the next one begins just at the recovery point, this one may have been the last by then.
        following = segment.next_base_offset
        return self.trusted and following is not None and following < self.recovery_point

    def seal(self, segment: SegmentFile) -> Seal | None:
        """What the index of a segment that is not the last says of it."""
        if segment.next_base_offset is None:
            return None
        return SealedIndex(self.disk, segment.stem).seal(segment.base_offset)

    def scan(
        self,
        segment: SegmentFile,
        begin: IndexEntry = BEGINNING,
        *,
        on_progress: Callable[[int], None] | None = None,
    ) -> Iterator[Found | Damage]:
        """Check a segment's batches, with what is known of it, as the broker would at opening."""
        file = self.disk.open(segment.path)
        try:
            yield from scan(
                file,
                path=segment.path,
                position=begin.position,
                end_position=segment.size_bytes,
                expected_offset=segment.base_offset + begin.relative_offset,
                epochs=self.epochs,
                end_offset=self.acknowledged if segment.next_base_offset is None else segment.next_base_offset,
                anchors=[Anchor(segment.base_offset + e.relative_offset, e.position) for e in self._places(segment)],
                on_progress=on_progress,
            )
        finally:
            file.close()

    def floor(self, segment: SegmentFile, offset: int) -> tuple[IndexEntry, int]:
        """The last place at or before `offset` where the index knows of a batch, and the largest timestamp before it.

        The segment's beginning where the index has none, or leads astray.
        """
        index = self._index(segment)
        index.keep_below(max(0, offset + 1 - segment.base_offset))
        entry, timestamp_before_ms = index.last()
        if entry != BEGINNING and not isinstance(next(self.scan(segment, entry), None), Found):
            return BEGINNING, TIMESTAMP_NONE
        return entry, timestamp_before_ms

    def is_torn(self, damage: Damage, segment: SegmentFile) -> bool:
        """Whether the broker will take damage for a write that was never acknowledged, and cut it off."""
        return self._promise.is_torn(damage, segment.next_base_offset)

    def ends_early(self, segment: SegmentFile, end_offset: int) -> bool:
        """Whether the log ends where this segment does, though a later one is there."""
        return self._promise.ends_early(end_offset, segment.next_base_offset)

    def lost_until(self, damage: Damage, segment: SegmentFile) -> int:
        """Where offsets go on behind damage that is no torn tail."""
        return self._promise.lost_until(damage, segment.next_base_offset)

    @property
    def _promise(self) -> Promise:
        return Promise(self.acknowledged, trusted=self.trusted)

    def _index(self, segment: SegmentFile) -> SegmentIndex:
        """What was on the disk of its index when the checkpoint was written; empty where that cannot be believed."""
        if not self.trusted:
            return SegmentIndex()
        return SegmentIndex.load(self.disk, segment.stem, end_relative=self._indexed(segment)) or SegmentIndex()

    def _places(self, segment: SegmentFile) -> list[IndexEntry]:
        """Where the index knows of batches, also if only one of its files can be believed."""
        if not self.trusted:
            return []
        return load_places(self.disk, segment.stem, end_relative=self._indexed(segment))

    def _indexed(self, segment: SegmentFile) -> int:
        """How many of a segment's offsets the index has seen."""
        end = self.recovery_point
        if segment.next_base_offset is not None:
            end = min(end, segment.next_base_offset)
        return max(0, end - segment.base_offset)


def find_logs(disk: Disk, path: str) -> list[str]:
    """The log in a directory, or else all the logs somewhere below it, in the order of their names."""
    path = path.rstrip("/") or "/"
    try:
        is_directory = stat.S_ISDIR(os.stat(path).st_mode)
    except FileNotFoundError:
        raise UnusableError(f"{path}: no such directory; give that of a log, or one above it") from None
    except OSError as error:
        raise _unlistable(error) from error
    if not is_directory:
        raise UnusableError(f"{path}: not a directory; give the directory of the log that it belongs to")
    if _holds_log(disk.names(path)):
        return [path]
    found = []

    def refuse(error: OSError) -> None:
        raise _unlistable(error) from error

    for directory, below, names in os.walk(path, onerror=refuse):
        below.sort()
        if _holds_log(names):
            found.append(directory)
            below.clear()
    if not found:
        raise UnusableError(
            f"{path}: no log here or below; a log's directory holds a checkpoint and files like {0:020d}{LOG_SUFFIX}"
        )
    return found


def _unlistable(error: OSError) -> DiskIoError:
    return DiskIoError(f"cannot list {error.filename}: {error.strerror}", path=error.filename, errno=error.errno)


def _holds_log(names: list[str]) -> bool:
    return checkpoints.NAME in names or bool(segment_bases(names))


def take(disk: Disk, directory: str) -> Picture:
    """Look at a log."""
    mark = synced_mark.load_whole(disk, directory)
    before = checkpoints.load(disk, directory)
    sizes = {}
    for base in segment_bases(disk.names(directory)):
        file = disk.open(f"{directory}/{base:020d}{LOG_SUFFIX}")
        sizes[base] = file.size()
        file.close()
    saved = checkpoints.load(disk, directory)
    error = None
    if not isinstance(saved, Checkpoint):
        error = f"{directory}/{checkpoints.NAME} is not there" if saved is None else saved.message
        saved = Checkpoint(start_offset=min(sizes, default=0))
    point = max(saved.recovery_point, saved.start_offset)
    if isinstance(before, Checkpoint):
        # The files may have grown since, but hold at least what was acknowledged before they were looked at.
        point = min(point, max(before.recovery_point, before.start_offset))
    acknowledged = max(point, saved.start_offset, mark or 0)
    leaving = []
    if saved.cut is not None:
        acknowledged = min(acknowledged, max(saved.cut.offset, saved.start_offset))
        leaving += [base for base in sizes if base > saved.cut.segment]
        if saved.cut.segment in sizes:
            sizes[saved.cut.segment] = min(sizes[saved.cut.segment], saved.cut.position)
    bases = [base for base in sorted(sizes) if base not in leaving]
    while error is None and len(bases) > 1 and bases[1] <= saved.start_offset:
        leaving.append(bases.pop(0))
    return Picture(
        disk=disk,
        directory=directory,
        checkpoint=replace(saved, recovery_point=point),
        checkpoint_error=error,
        synced_mark=mark,
        acknowledged=acknowledged,
        segments=tuple(
            SegmentFile(directory, base, sizes[base], following)
            for base, following in zip(bases, [*bases[1:], None], strict=False)
        ),
        leaving=tuple(f"{directory}/{base:020d}{LOG_SUFFIX}" for base in sorted(leaving)),
    )


def steadily(disk: Disk, directory: str, look: Callable[[Picture], T]) -> T:
    """What a look at a log gives, taken again when a broker has removed a file before it was read."""
    for tries_left in reversed(range(_TRIES_MAX)):
        try:
            return look(take(disk, directory))
        except DiskIoError as error:
            if error.details.get("errno") != str(errno.ENOENT) or not tries_left:
                raise
    raise AssertionError  # not reached: the last try returns or raises
