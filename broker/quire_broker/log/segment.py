"""One file of batches with its index and sidecars."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from quire.disk.framed import frame, read_whole, unframe
from quire.disk.port import Disk, DiskFile
from quire.errors import DamagedFileError, DiskIoError, MalformedBatchError
from quire.records.header import HEADER_BYTES, BatchHeader, parse_header
from quire.types import Buffer
from quire_broker.log.index import (
    INDEX_SUFFIX,
    TIME_SUFFIX,
    TIMESTAMP_NONE,
    IndexEntry,
    MisleadingIndexError,
    Seal,
    SealedIndex,
    SegmentIndex,
    load_places,
)
from quire_broker.log.scan import Anchor
from quire_broker.log.sidecar import Sidecar, SidecarKind

LOG_SUFFIX: Final = ".log"
DELETED_SUFFIX: Final = ".deleted"
_SIDECAR_BYTES_MAX: Final = 256 * 1024 * 1024
_SIDECAR_END = struct.Struct(">q")


class Place(NamedTuple):
    """Where a batch must begin. Whoever reads it checks it."""

    position: int
    base_offset: int


class Folded(NamedTuple):
    """A sidecar, and the offset below which it has seen every batch of its segment."""

    sidecar: Sidecar
    end_offset: int


class Segment:
    """Batches from `base_offset` up to `end_offset`.

    The last segment of a log is *active*: it is appended to. The others are *sealed* once their index is on disk;
    until then it is in memory.
    """

    def __init__(self, disk: Disk, directory: str, base_offset: int, kinds: Iterable[SidecarKind] = ()) -> None:
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.size_bytes = 0
        self.max_timestamp_ms = TIMESTAMP_NONE
        self.first_append_ms: int | None = None
        self.stem = f"{directory}/{base_offset:020d}"
        self.index: SegmentIndex | SealedIndex = SegmentIndex()
        self._disk = disk
        self._kinds = tuple(kinds)
        self._file: DiskFile | None = None
        self._sidecars: dict[str, Folded] | None = {
            kind.name: Folded(kind.new(), base_offset) for kind in self._kinds
        }

    def __repr__(self) -> str:
        return f"<Segment {self.base_offset}–{self.end_offset}, {self.size_bytes} bytes>"

    @property
    def path(self) -> str:
        return self.stem + LOG_SUFFIX

    @property
    def file(self) -> DiskFile:
        if self._file is None:
            self._file = self._disk.open(self.path)
        return self._file

    @property
    def is_sealed(self) -> bool:
        """Its index is on disk, and it is synced."""
        return isinstance(self.index, SealedIndex)

    def create(self) -> None:
        """Make the file. Until the directory is synced it may vanish in a crash."""
        self._file = self._disk.open(self.path, create=True)
        self._file.truncate(0)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    # -- writing ---------------------------------------------------------------------------------------------------

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Put bytes after the last batch. `note` each batch once this has returned."""
        self.file.write(self.size_bytes, buffers)

    def note(self, header: BatchHeader, base_offset: int, *, index_interval_bytes: int) -> None:
        """Take a batch that now stands at the end of the file into index, sidecars and bounds."""
        index = self.index
        if isinstance(index, SegmentIndex) and self.size_bytes - index.last_position >= index_interval_bytes:
            index.add(base_offset - self.base_offset, self.size_bytes, self.max_timestamp_ms)
        if self._sidecars:
            stored = header._replace(base_offset=base_offset)
            for sidecar, seen_until in self._sidecars.values():
                # One from a file goes further than the index that the segment was resumed with.
                if base_offset >= seen_until:
                    sidecar.observe(stored, self.size_bytes)
        if header.max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = header.max_timestamp_ms
        self.size_bytes += header.size_bytes
        self.end_offset = base_offset + header.last_offset_delta + 1

    def pass_over(self, *, position: int, offset: int) -> None:
        """Go on behind damage, with an entry for what follows it, so that no walk has to cross the damage."""
        self.size_bytes, self.end_offset = position, offset
        if isinstance(self.index, SegmentIndex) and position > self.index.last_position:
            self.index.add(offset - self.base_offset, position, self.max_timestamp_ms)

    def resume(self, index: SegmentIndex, sidecars: dict[str, Folded]) -> None:
        """Take over what was saved of the segment's beginning; it goes on at the last entry of the index.

        Or at the beginning, where a sidecar has not seen all up to there.
        """
        entry, max_timestamp_ms = index.last()
        end_offset = self.base_offset + entry.relative_offset
        if any(folded.end_offset < end_offset for folded in sidecars.values()):
            return
        self.size_bytes, self.end_offset, self.max_timestamp_ms = entry.position, end_offset, max_timestamp_ms
        self.index, self._sidecars = index, sidecars

    @property
    def seal(self) -> Seal:
        return Seal(self.end_offset, self.size_bytes, self.max_timestamp_ms)

    def unsaved(self, *, sealed: bool) -> Iterator[tuple[str, Callable[[], Buffer]]]:
        """(path, content) of the files that a reader of this segment would find useful.

        As they are now: the segment may grow before the contents are asked for, and on another thread.
        """
        if not isinstance(self.index, SegmentIndex):
            return
        index, base_offset, seal = self.index.copy(), self.base_offset, self.seal if sealed else None
        yield self.stem + INDEX_SUFFIX, partial(index.offsets_to_bytes, base_offset=base_offset, seal=seal)
        yield self.stem + TIME_SUFFIX, partial(index.times_to_bytes, base_offset=base_offset, seal=seal)
        for kind in self._kinds:
            if self._sidecars is not None:
                content = _SIDECAR_END.pack(self.end_offset) + self._sidecars[kind.name].sidecar.to_bytes()
                yield f"{self.stem}.{kind.name}", partial(frame, kind.name, kind.version, content)

    def adopt(self, fresh: Segment) -> None:
        """Take over the index and sidecars that a scan of this segment's file has made in another object."""
        self.index, self._sidecars = fresh.index, fresh._sidecars
        self.max_timestamp_ms = fresh.max_timestamp_ms

    def become_sealed(self) -> None:
        """Drop from memory what is now in files, and the open file until somebody reads it."""
        self.index = SealedIndex(self._disk, self.stem)
        self._sidecars = None
        self.close()

    def remove(self) -> None:
        """Delete the segment. The `.log` is renamed first, so that a crash in between leaves no half segment."""
        self.close()
        self._disk.rename(self.path, self.path + DELETED_SUFFIX)
        self.remove_beside()
        self._disk.remove(self.path + DELETED_SUFFIX)

    def remove_beside(self) -> None:
        """Delete what stands beside the `.log`. The second half of a seal never stands there without the first."""
        for suffix in (TIME_SUFFIX, INDEX_SUFFIX, *(f".{kind.name}" for kind in self._kinds)):
            if self._disk.exists(self.stem + suffix):
                self._disk.remove(self.stem + suffix)

    # -- reading ---------------------------------------------------------------------------------------------------

    def saved_index(self, *, end_relative: int) -> SegmentIndex | None:
        """The index from its files, below an offset; None where it has to be made again."""
        return SegmentIndex.load(self._disk, self.stem, end_relative=end_relative)

    def saved_places(self, *, end_relative: int) -> list[IndexEntry]:
        """Where `.index` knows of batches below an offset. To be checked, each of them."""
        return load_places(self._disk, self.stem, end_relative=end_relative)

    def saved_sidecars(self) -> dict[str, Folded] | None:
        """All sidecars from their files; None where one has to be made again."""
        found = {}
        for kind in self._kinds:
            folded = self._saved_sidecar(kind)
            if folded is None:
                return None
            found[kind.name] = folded
        return found

    def sidecar(self, name: str) -> Sidecar | None:
        """A sidecar by name; None where it has to be made again."""
        if self._sidecars is not None:
            return self._sidecars[name].sidecar
        folded = self._saved_sidecar(next(kind for kind in self._kinds if kind.name == name))
        return folded.sidecar if folded is not None and folded.end_offset == self.end_offset else None

    def _saved_sidecar(self, kind: SidecarKind) -> Folded | None:
        path = f"{self.stem}.{kind.name}"
        if not self._disk.exists(path):
            return None
        try:
            data = read_whole(self._disk, path, bytes_max=_SIDECAR_BYTES_MAX)
            payload = unframe(data, kind=kind.name, version_max=kind.version, path=path)
            [end_offset] = _SIDECAR_END.unpack_from(payload)
            return Folded(kind.from_bytes(payload[_SIDECAR_END.size :]), end_offset)
        except (DamagedFileError, ValueError, struct.error):
            return None

    def locate(self, offset: int, *, until_offset: int, index_interval_bytes: int) -> Place:
        """Where the batch that holds `offset` begins, by its neighbours' word, or where `until_offset` would."""
        entry = self.index.floor_offset(offset - self.base_offset)
        for place, header in self._walk(entry, until_offset, index_interval_bytes):
            if header is None or offset < header.end_offset:
                return place
        raise MisleadingIndexError(f"offset {offset} is not where the index of {self.path} leads to")

    def locate_time(
        self, timestamp_ms: int, *, from_offset: int, until_offset: int, index_interval_bytes: int
    ) -> Place | None:
        """Where the first batch between two offsets begins that may have a record of `timestamp_ms` or later."""
        entry = max(self.index.floor_time(timestamp_ms), self.index.floor_offset(from_offset - self.base_offset))
        for place, header in self._walk(entry, until_offset, index_interval_bytes):
            if place.base_offset >= until_offset:
                return None
            if header is None or (header.max_timestamp_ms >= timestamp_ms and from_offset < header.end_offset):
                return place
        return None

    def _walk(
        self, entry: IndexEntry, until_offset: int, interval_bytes: int
    ) -> Iterator[tuple[Place, BatchHeader | None]]:
        """Batches from an index entry on, by their headers, reading an interval of the log at a time.

        The last one comes without a header: it is where `until_offset` would begin, or the header lies across the
        end of the interval. In the second case too it is the last that can be meant, since what an entry leads to
        begins within the interval.
        """
        place = Place(entry.position, self.base_offset + entry.relative_offset)
        while place.position < self.size_bytes and place.base_offset < until_offset:
            start = place.position
            chunk = self._read_ahead(start, max(interval_bytes, HEADER_BYTES))
            while place.position - start + HEADER_BYTES <= len(chunk) and place.base_offset < until_offset:
                try:
                    header = parse_header(chunk, place.position - start)
                except MalformedBatchError as error:
                    raise MisleadingIndexError(f"{self.path} at {place.position}: {error.message}") from error
                if header.base_offset != place.base_offset:
                    raise MisleadingIndexError(f"{self.path} at {place.position}: offset {header.base_offset}")
                yield place, header
                place = Place(place.position + header.size_bytes, header.end_offset)
            if place.position < start + len(chunk):
                break
        if place.position >= self.size_bytes and place != (self.size_bytes, self.end_offset):
            raise MisleadingIndexError(f"{self.path} does not end at {place.position}, offset {place.base_offset}")
        yield place, None

    def _read_ahead(self, position: int, size: int) -> bytes:
        try:
            return self.file.read(position, min(size, self.size_bytes - position))
        except DiskIoError:
            # A sector that cannot be read, perhaps behind headers that can.
            try:
                return self.file.read(position, HEADER_BYTES)
            except DiskIoError as error:
                raise MisleadingIndexError(f"{self.path} at {position}: {error.message}") from error


def anchors_of(segment: Segment) -> list[Anchor]:
    """Where the index knows of batches."""
    if isinstance(segment.index, SegmentIndex):
        places: Iterable[IndexEntry] = segment.index
    else:
        places = segment.saved_places(end_relative=segment.end_offset - segment.base_offset)
    return [Anchor(segment.base_offset + entry.relative_offset, entry.position) for entry in places]
