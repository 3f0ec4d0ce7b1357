"""`quire log verify`: every batch of a log and every file beside it, held against each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from quire.disk.port import Disk
from quire_broker.cli.log_indexes import IndexCheck
from quire_broker.cli.log_picture import Picture, SegmentFile, steadily
from quire_broker.cli.log_snapshots import SnapshotCheck
from quire_broker.cli.log_verdict import Finding, Kind, Note, NoteKind, SegmentCount, Verdict
from quire_broker.log import checkpoint as checkpoints
from quire_broker.log import synced_mark
from quire_broker.log.index import INDEX_SUFFIX
from quire_broker.log.ranges import OffsetRange, OffsetRanges
from quire_broker.log.scan import Damage, Found

_INDEX_ADVICE: Final = "nothing is lost: it is rebuilt at the next opening, or by the first read that it misleads"
_SNAPSHOT_ADVICE: Final = "nothing is lost: what it held is rebuilt at the next opening, from the batches"
_PROGRESS_BYTES: Final = 1024 * 1024


OnProgress = Callable[[int, int], None]
"""Told how many bytes are done, and of how many."""


def verify_steadily(disk: Disk, directory: str, on_progress: OnProgress) -> Verdict:
    """Check a log. What looks like damage is looked at once more if a broker changed the log meanwhile."""
    before = _fingerprint(disk, directory)
    verdict = steadily(disk, directory, lambda picture: _Verification(picture, on_progress).run())
    if not verdict.sound and (between := _fingerprint(disk, directory)) != before:
        verdict = steadily(disk, directory, lambda picture: _Verification(picture, on_progress).run())
        if not verdict.sound and _fingerprint(disk, directory) != between:
            verdict.notes.append(
                Note(
                    "changing",
                    directory,
                    "a broker was writing to this log all the while; what is said of it may be out of date",
                )
            )
    return verdict


def _fingerprint(disk: Disk, directory: str) -> object:
    """Something that changes with each removal, new segment and checkpoint."""
    return disk.names(directory), checkpoints.load(disk, directory)


class _Verification:
    def __init__(self, picture: Picture, on_progress: OnProgress) -> None:
        self._picture = picture
        self._on_progress = on_progress
        self._done_bytes = 0
        self._total_bytes = sum(segment.size_bytes for segment in picture.segments)
        self._verdict = Verdict(picture.directory, picture.start_offset, picture.start_offset)
        self._lost = OffsetRanges()
        """Offsets that some finding tells of."""
        self._snapshots = SnapshotCheck(picture)

    def run(self) -> Verdict:
        picture, verdict = self._picture, self._verdict
        self._check_books()
        expected = picture.start_offset
        for segment in picture.segments:
            if expected < segment.base_offset:
                self._add_missing(expected, segment.base_offset, "no file holds them")
            count = SegmentCount(segment.path, segment.base_offset, segment.base_offset)
            verdict.segments.append(count)
            ended = self._check_segment(segment, count)
            expected = max(expected, count.end_offset)
            if ended:
                break
        if expected < picture.acknowledged:
            self._add_missing(
                expected,
                picture.acknowledged,
                f"offsets up to {picture.acknowledged} were synced, the log ends before",
            )
        verdict.end_offset = max(expected, picture.acknowledged)
        for path, reason in self._snapshots.finish(self._lost):
            verdict.damage.append(Finding("producers", path, reason, _SNAPSHOT_ADVICE))
        for known in picture.quarantined:
            if not _overlaps(self._lost, known):
                self._add_lost(
                    Finding(
                        "quarantined",
                        f"{picture.directory}/{checkpoints.NAME}",
                        "the broker has quarantined these offsets, though their bytes check now",
                        _restore(known.end_offset),
                        first_offset=known.first_offset,
                        end_offset=known.end_offset,
                    )
                )
        return verdict

    def _check_books(self) -> None:
        picture = self._picture
        if picture.checkpoint_error is not None:
            self._verdict.damage.append(
                Finding(
                    "checkpoint",
                    f"{picture.directory}/{checkpoints.NAME}",
                    picture.checkpoint_error,
                    "the next opening scans the whole log and writes it anew; until then neither leader epochs nor "
                    "what was acknowledged can be checked against it",
                )
            )
        if picture.synced_mark is None:
            self._note(
                "synced_mark",
                f"{picture.directory}/{synced_mark.NAME}",
                "the synced mark is not whole, as a power cut may leave it; only the recovery point counts",
            )
        for path in picture.leaving:
            self._note("removal", path, "is being removed; the next opening finishes it")

    # -- batches ---------------------------------------------------------------------------------------------------

    def _check_segment(self, segment: SegmentFile, count: SegmentCount) -> bool:
        """Check the batches, and what indexes and snapshots say of them. True if the log ends in this segment."""
        picture = self._picture
        indexes = IndexCheck(picture, segment)
        ends_otherwise = torn = False
        next_report = 0

        def progress(position: int) -> None:
            nonlocal next_report
            if position >= next_report:
                self._on_progress(self._done_bytes + position, self._total_bytes)
                next_report = position + _PROGRESS_BYTES

        for item in picture.scan(segment, on_progress=progress):
            if isinstance(item, Damage):
                if picture.is_torn(item, segment):
                    torn = True
                    self._note_torn(segment, item.position, item.first_offset, item.reason)
                    break
                count.end_offset = self._add_damage(item, segment)
                ends_otherwise = item.end_offset is None
                indexes.pass_over(item.first_offset, item.end_offset)
                continue
            if segment.next_base_offset is not None and item.header.end_offset > segment.next_base_offset:
                self._add_overlap(item, segment, segment.next_base_offset)
                count.end_offset, ends_otherwise = segment.next_base_offset, True
                break
            count.batches += 1
            count.records += item.header.record_count
            count.end_offset = item.header.end_offset
            count.checked_bytes += item.header.size_bytes
            if picture.quarantined.holding(item.header.base_offset) is None:
                indexes.on_batch(item)
            else:  # an index that was made since leaves it out
                indexes.pass_over(item.header.base_offset, item.header.end_offset)
            self._snapshots.on_batch(item.header)
        self._done_bytes += segment.size_bytes
        self._on_progress(self._done_bytes, self._total_bytes)
        following = segment.next_base_offset
        if not torn and following is not None and count.end_offset < following:
            if picture.ends_early(segment, count.end_offset) and not ends_otherwise:
                torn = True
                self._note_torn(segment, segment.size_bytes, count.end_offset, "the file ends too early")
            else:
                ends_otherwise |= self._is_shortened(segment, count)
        for suffix, reason in indexes.finish(count.end_offset, ends_otherwise=torn or ends_otherwise):
            kind: Kind = "index" if suffix == INDEX_SUFFIX else "timeindex"
            self._verdict.damage.append(Finding(kind, segment.stem + suffix, reason, _INDEX_ADVICE))
        return torn

    def _is_shortened(self, segment: SegmentFile, count: SegmentCount) -> bool:
        """Whether a segment that ends with a good batch was longer once, by the word of its index."""
        seal = self._picture.seal(segment)
        if seal is None or seal.size_bytes <= segment.size_bytes or seal.end_offset <= count.end_offset:
            return False
        self._add_lost(
            Finding(
                "segment",
                segment.path,
                f"the file ends at byte {segment.size_bytes}, its index says at {seal.size_bytes}",
                _restore(seal.end_offset),
                position=segment.size_bytes,
                end_position=seal.size_bytes,
                first_offset=count.end_offset,
                end_offset=seal.end_offset,
            )
        )
        count.end_offset = seal.end_offset
        return True

    def _add_damage(self, damage: Damage, segment: SegmentFile) -> int:
        end = self._picture.lost_until(damage, segment)
        seal = self._picture.seal(segment)
        if damage.end_offset is None and seal is not None and damage.first_offset < seal.end_offset < end:
            end = seal.end_offset  # the rest up to the next segment is missing for another reason
        if end <= self._picture.start_offset:
            self._note(
                "below_start",
                damage.path,
                f"{damage.reason}; it lies below the log's start, where nobody reads",
                damage.position,
                damage.first_offset,
            )
            self._lost.add(damage.first_offset, end)
            return end
        self._add_lost(
            Finding(
                "batch",
                damage.path,
                damage.reason,
                _restore(end),
                position=damage.position,
                end_position=damage.end_position,
                first_offset=damage.first_offset,
                end_offset=end,
            )
        )
        return end

    def _add_overlap(self, item: Found, segment: SegmentFile, following: int) -> None:
        self._add_lost(
            Finding(
                "batch",
                segment.path,
                f"the batch goes on to offset {item.header.end_offset - 1}, the next segment begins at {following}",
                _restore(following),
                position=item.position,
                end_position=segment.size_bytes,
                first_offset=item.header.base_offset,
                end_offset=following,
            )
        )

    def _add_missing(self, first: int, end: int, reason: str) -> None:
        self._add_lost(
            Finding("missing", self._picture.directory, reason, _restore(end), first_offset=first, end_offset=end)
        )

    def _add_lost(self, finding: Finding) -> None:
        first, end = finding.first_offset, finding.end_offset
        if first is not None and end is not None:
            self._lost.add(first, end)
            known = self._picture.quarantined.holding(first)
            if known is not None and end <= known.end_offset:
                finding = replace(finding, quarantined=True)
        self._verdict.damage.append(finding)

    # -- notes -----------------------------------------------------------------------------------------------------

    def _note_torn(self, segment: SegmentFile, position: int, offset: int, reason: str) -> None:
        self._note(
            "torn_tail",
            segment.path,
            f"{reason}; from offset {offset} on nothing was acknowledged: a broker is writing it now, or the next "
            f"opening cuts it off",
            position,
            offset,
        )

    def _note(
        self,
        kind: NoteKind,
        path: str,
        text: str,
        position: int | None = None,
        offset: int | None = None,
    ) -> None:
        self._verdict.notes.append(Note(kind, path, text, position, offset))


def _restore(end_offset: int) -> str:
    return (
        f"restore these offsets from another replica; the broker does not serve them, readers go on at {end_offset}"
    )


def _overlaps(ranges: Iterable[OffsetRange], wanted: OffsetRange) -> bool:
    return any(r.first_offset < wanted.end_offset and wanted.first_offset < r.end_offset for r in ranges)
