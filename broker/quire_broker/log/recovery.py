"""Opening a log: from what is on the disk to what may be believed.

Below the recovery point indexes and seals are believed until something contradicts them. Past it every batch is
checked, and where one does not check the question is whether it was ever acknowledged: docs/STORAGE.md, "Opening".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from quire.disk.framed import TEMPORARY_SUFFIX
from quire.disk.port import Disk
from quire.errors import DamagedFileError, DiskIoError, MalformedBatchError
from quire.records.header import HEADER_BYTES, parse_header
from quire_broker.log import checkpoint as checkpoints
from quire_broker.log import snapshots, synced_mark
from quire_broker.log.checkpoint import Checkpoint
from quire_broker.log.config import LogConfig
from quire_broker.log.epochs import LeaderEpochs
from quire_broker.log.index import SealedIndex
from quire_broker.log.producers import Producers
from quire_broker.log.promise import Promise
from quire_broker.log.ranges import OffsetRange, OffsetRanges
from quire_broker.log.scan import Anchor, Damage, Found, scan
from quire_broker.log.segment import DELETED_SUFFIX, Segment
from quire_broker.log.sidecar import SidecarKind
from quire_broker.log.state import LogState

_SEGMENT_NAME = re.compile(r"(\d{20})\.log")
_REWRITE_BYTES: Final = 1024 * 1024
_SECTOR_BYTES: Final = 512


@dataclass(frozen=True)
class TornTail:
    """What was cut off the end: written, as far as can be told, but never acknowledged."""

    path: str
    position: int
    offset: int
    reason: str


@dataclass
class RecoveryReport:
    """What opening found, for logs and people."""

    distrusted: str | None = None
    """Why nothing was believed and everything scanned."""
    torn: TornTail | None = None
    damaged: list[Damage] = field(default_factory=list)
    missing: list[OffsetRange] = field(default_factory=list)
    """Offsets of which not even damaged bytes are there."""
    rebuilt: list[str] = field(default_factory=list)
    """Segments whose index had to be made anew."""
    scanned_bytes: int = 0


def segment_bases(names: Iterable[str]) -> list[int]:
    """The base offsets of the segments among a directory's names."""
    return sorted(int(match[1]) for name in names if (match := _SEGMENT_NAME.fullmatch(name)))


def recover(
    disk: Disk, directory: str, *, config: LogConfig, kinds: tuple[SidecarKind, ...], now_ms: int
) -> tuple[LogState, RecoveryReport]:
    """What the log in a directory is, or is to become. Files are mended; what was mended is not yet synced."""
    disk.make_dirs(directory)
    _sweep(disk, directory)
    saved = checkpoints.load(disk, directory)
    bases = segment_bases(disk.names(directory))
    if saved is None and not bases:
        saved = Checkpoint()
        checkpoints.save(disk, directory, saved)
    if isinstance(saved, Checkpoint):
        bases = _finish_removals(disk, directory, saved, bases, kinds)
    recovery = _Recovery(disk, directory, config, kinds, now_ms, saved, bases)
    try:
        return recovery.run()
    except BaseException:
        recovery.let_go()
        raise


def _sweep(disk: Disk, directory: str) -> None:
    """Remove what a crash left half written or half removed."""
    for name in disk.names(directory):
        if name.endswith((TEMPORARY_SUFFIX, DELETED_SUFFIX)):
            disk.remove(f"{directory}/{name}")


def _finish_removals(
    disk: Disk, directory: str, saved: Checkpoint, bases: list[int], kinds: tuple[SidecarKind, ...]
) -> list[int]:
    """Carry out what the checkpoint says was meant: a higher start, a lower end."""
    if saved.cut is not None:
        for base in reversed([base for base in bases if base > saved.cut.segment]):
            Segment(disk, directory, base, kinds).remove()
        bases = [base for base in bases if base <= saved.cut.segment]
        if bases and bases[-1] == saved.cut.segment:
            segment = Segment(disk, directory, bases[-1], kinds)
            cut_segment(segment, saved.cut.position)
            segment.close()
    while len(bases) > 1 and bases[1] <= saved.start_offset:
        Segment(disk, directory, bases.pop(0), kinds).remove()
    return bases


def cut_segment(segment: Segment, position: int) -> None:
    """Shorten a segment's file, durably: later writes must find zeros behind the cut and not what was there."""
    # Also where the file seems to end there already: a truncation whose sync failed is only in memory.
    segment.file.truncate(min(position, segment.file.size()))
    segment.file.sync()
    segment.remove_beside()


class _Recovery:
    def __init__(
        self,
        disk: Disk,
        directory: str,
        config: LogConfig,
        kinds: tuple[SidecarKind, ...],
        now_ms: int,
        saved: Checkpoint | DamagedFileError | None,
        bases: list[int],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._config = config
        self._kinds = kinds
        self._now_ms = now_ms
        self._bases = bases
        self._report = RecoveryReport()
        self._trusted = isinstance(saved, Checkpoint)
        if isinstance(saved, Checkpoint):
            self._epochs = LeaderEpochs(saved.epochs)
        else:
            self._report.distrusted = "the checkpoint is not there" if saved is None else saved.message
            saved = Checkpoint(start_offset=bases[0] if bases else 0)
            self._epochs = self._gather_epochs()
        self._start = saved.start_offset
        self._point = max(saved.recovery_point, saved.start_offset)
        mark = synced_mark.load(disk, directory)
        if saved.cut is not None:
            # Durably, before the checkpoint forgets about the cut: by an older mark alone it would look like loss.
            mark = min(mark, saved.cut.offset)
            synced_mark.lower(disk, directory, mark)
        self._promise = Promise(max(self._point, mark), trusted=self._trusted)
        self._quarantined = OffsetRanges(saved.quarantined)
        self._changed = not self._trusted or saved.cut is not None
        self._segments: list[Segment] = []
        self._producers = Producers(producers_max=config.producers_max, expiry_ms=config.producer_expiry_ms)
        proven = self._point if self._trusted else -1
        snapshots.remove_after(disk, directory, proven)
        self._replay_from = snapshots.load_newest(disk, directory, self._producers, at_most=proven)

    def run(self) -> tuple[LogState, RecoveryReport]:
        for n, base in enumerate(self._bases):
            following = self._bases[n + 1] if n + 1 < len(self._bases) else None
            segment = Segment(self._disk, self._directory, base, self._kinds)
            self._note_missing(self._end(), base)
            self._segments.append(segment)
            believed = following is not None and following <= min(self._point, self._replay_from)
            if believed and following is not None and self._is_as_sealed(segment, following):
                continue
            if not self._examine(segment, following):
                break
        self._note_missing(self._end(), self._promise.acknowledged)
        end = self._end()
        if not self._segments or self._segments[-1].end_offset < end:
            # Behind what is lost a new segment begins: nothing is ever appended to a file that lies about itself.
            segment = Segment(self._disk, self._directory, end, self._kinds)
            segment.create()
            self._segments.append(segment)
            self._changed = True
        # One that begins at the end stays: its first batch is yet to come.
        self._changed |= self._epochs.truncate(end + 1)
        self._quarantined.forget_below(self._start)
        self._quarantined.truncate(end)
        self._segments[-1].first_append_ms = self._first_append_ms(self._segments[-1])
        state = LogState(
            disk=self._disk,
            directory=self._directory,
            config=self._config,
            kinds=self._kinds,
            segments=self._segments,
            start_offset=self._start,
            recovery_point=self._point,
            # Whatever lies before the last segment is synced by now: see _examine.
            synced_offset=max(self._point, min(self._segments[-1].base_offset, end)),
            epochs=self._epochs,
            quarantined=self._quarantined,
            producers=self._producers,
            last_ms=self._now_ms,
            unsaved=self._changed,
        )
        return state, self._report

    def let_go(self) -> None:
        for segment in self._segments:
            segment.close()

    def _end(self) -> int:
        """Where the next offset is expected: behind the last batch, or behind what is known to be lost."""
        end = max(self._start, self._segments[-1].end_offset) if self._segments else self._start
        lost = self._quarantined.holding(end)
        return end if lost is None else lost.end_offset

    def _note_missing(self, first: int, end: int) -> None:
        if first < end:
            self._report.missing.append(OffsetRange(first, end))
            self._quarantined.add(first, end)
            self._changed = True

    def _is_as_sealed(self, segment: Segment, following: int) -> bool:
        seal = SealedIndex(self._disk, segment.stem).seal(segment.base_offset)
        fits = seal is not None and seal.end_offset <= following and seal.size_bytes <= segment.file.size()
        segment.close()
        if seal is not None and fits:
            segment.end_offset, segment.size_bytes, segment.max_timestamp_ms = seal
            segment.become_sealed()
        return fits

    # -- segments that have to prove themselves --------------------------------------------------------------------

    def _examine(self, segment: Segment, following: int | None) -> bool:
        """Scan what cannot be believed. False if the log ends within this segment."""
        size = segment.file.size()
        anchors = self._resume(segment, size, following)
        scanned_from = segment.size_bytes
        torn, ended = self._take_stock(segment, size, following, anchors)
        if torn is None and not ended and self._promise.ends_early(segment.end_offset, following):
            torn = TornTail(segment.path, segment.size_bytes, segment.end_offset, "the file ends too early")
        self._report.scanned_bytes += size - scanned_from
        if following is not None and following <= self._point:
            self._report.rebuilt.append(segment.path)
            self._changed = True
        if torn is not None:
            self._cut(segment, torn)
        if segment.end_offset > self._point:
            self._changed = True
            # A seal is written when the data is synced, so what fits one needs no rewriting.
            if SealedIndex(self._disk, segment.stem).seal(segment.base_offset) != segment.seal:
                self._rewrite(segment, scanned_from)
        if following is not None and torn is None:
            # Here and not by the log's first sync, which would need every file open at once.
            if segment.end_offset > self._point:
                segment.file.sync()
            segment.close()
        return torn is None

    def _take_stock(
        self, segment: Segment, size: int, following: int | None, anchors: list[Anchor]
    ) -> tuple[TornTail | None, bool]:
        """Take what checks into index and bounds. Answers where to cut, and whether damage reaches the file's end."""
        for item in scan(
            segment.file,
            path=segment.path,
            position=segment.size_bytes,
            end_position=size,
            expected_offset=segment.end_offset,
            epochs=self._epochs,
            end_offset=self._promise.acknowledged if following is None else following,
            anchors=anchors,
        ):
            if isinstance(item, Found):
                if following is not None and item.header.end_offset > following:
                    break
                segment.note(
                    item.header, item.header.base_offset, index_interval_bytes=self._config.index_interval_bytes
                )
                if item.header.base_offset >= self._replay_from:
                    self._producers.learn(item.header, now_ms=self._now_ms)
            elif self._promise.is_torn(item, following):
                return TornTail(segment.path, item.position, item.first_offset, item.reason), False
            else:
                self._quarantine(item, following)
                if item.end_offset is None or (following is not None and item.end_offset > following):
                    return None, True
                segment.pass_over(position=item.end_position, offset=item.end_offset)
        return None, False

    def _quarantine(self, damage: Damage, following: int | None) -> None:
        end = self._promise.lost_until(damage, following)
        if end > self._start:  # below nobody reads
            self._report.damaged.append(damage)
            self._changed = True
            self._quarantined.add(damage.first_offset, end)

    def _resume(self, segment: Segment, size: int, following: int | None) -> list[Anchor]:
        """Skip what lies below the recovery point, if index and sidecars were saved as of then.

        A sidecar that has seen more was saved just before the crash, and may have seen what is now to be cut.
        """
        if not self._trusted:
            return []
        end = self._point if following is None else min(self._point, following)
        places = segment.saved_places(end_relative=end - segment.base_offset)
        anchors = [Anchor(segment.base_offset + entry.relative_offset, entry.position) for entry in places]
        index = segment.saved_index(end_relative=self._point - segment.base_offset)
        if index is None:
            return anchors
        sidecars = segment.saved_sidecars()
        last, _ = index.last()
        offset = segment.base_offset + last.relative_offset
        if (
            sidecars is not None
            and all(folded.end_offset <= self._point for folded in sidecars.values())
            and offset <= self._replay_from
            and self._is_batch(segment, offset, last.position, size)
        ):
            segment.resume(index, sidecars)
        return anchors

    def _is_batch(self, segment: Segment, offset: int, position: int, size: int) -> bool:
        items = scan(
            segment.file,
            path=segment.path,
            position=position,
            end_position=size,
            expected_offset=offset,
            epochs=self._epochs,
        )
        return position <= size and isinstance(next(items, None), Found | None)

    def _cut(self, segment: Segment, torn: TornTail) -> None:
        self._report.torn = torn
        self._changed = True
        for base in reversed([base for base in self._bases if base > segment.base_offset]):
            Segment(self._disk, self._directory, base, self._kinds).remove()
        cut_segment(segment, torn.position)

    def _rewrite(self, segment: Segment, position: int) -> None:
        """Write the tail once more before it is synced.

        After a sync that failed Linux has the pages marked clean, though they never reached the disk: syncing them
        again would succeed and do nothing.
        """
        step_bytes = _REWRITE_BYTES
        while position < segment.size_bytes:
            size = min(step_bytes, segment.size_bytes - position)
            try:
                chunk = segment.file.read(position, size)
            except DiskIoError:
                if step_bytes == _REWRITE_BYTES:
                    step_bytes = _SECTOR_BYTES  # around what cannot be read
                else:
                    position += size
                continue
            segment.file.write(position, [chunk])
            position += size

    # -- the rest --------------------------------------------------------------------------------------------------

    def _first_append_ms(self, active: Segment) -> int | None:
        """When the active segment was begun, as far as its first batch tells."""
        if not active.size_bytes:
            return None
        try:
            timestamp_ms = parse_header(active.file.read(0, HEADER_BYTES)).max_timestamp_ms
        except MalformedBatchError:
            return self._now_ms
        return timestamp_ms if 0 <= timestamp_ms < self._now_ms else self._now_ms

    def _gather_epochs(self) -> LeaderEpochs:
        """The leader epochs by the batches' own word, for want of a better."""
        runs: list[_Run] = []
        for base in self._bases:
            segment = Segment(self._disk, self._directory, base)
            for item in scan(
                segment.file,
                path=segment.path,
                position=0,
                end_position=segment.file.size(),
                expected_offset=base,
                epochs=None,
            ):
                if isinstance(item, Found):
                    _add_run(runs, _Run(item.header.leader_epoch, item.header.base_offset, item.header.end_offset))
            segment.close()
        return LeaderEpochs((run.epoch, run.first_offset) for run in _rising(runs))


class _Run(NamedTuple):
    """Neighbouring batches of one leader epoch."""

    epoch: int
    first_offset: int
    end_offset: int

    @property
    def size(self) -> int:
        return self.end_offset - self.first_offset


def _add_run(runs: list[_Run], run: _Run) -> None:
    if runs and runs[-1].epoch == run.epoch:
        run = run._replace(first_offset=runs.pop().first_offset)
    runs.append(run)


def _rising(runs: list[_Run]) -> list[_Run]:
    """Epochs only rise: of all choices of runs that do, the one with the most records to its name."""
    best: list[tuple[int, int]] = []  # of those that end with each run: records, and the run before it
    for n, run in enumerate(runs):
        records, before = max(((best[m][0], m) for m in range(n) if runs[m].epoch <= run.epoch), default=(0, -1))
        best.append((records + run.size, before))
    at = max(range(len(runs)), key=lambda n: best[n][0], default=-1)
    chosen: list[_Run] = []
    while at >= 0:
        chosen.append(runs[at])
        at = best[at][1]
    merged: list[_Run] = []
    for run in reversed(chosen):
        _add_run(merged, run)
    return merged
