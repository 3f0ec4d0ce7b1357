"""The journal: the entries of the Raft log on disk, in files that are appended to, rolled and removed as a whole.

    journal-<first index, 20 digits>.log, the last of which is written to

In memory it is the list that PySyncObj works on, whose item 0 is the entry before the first one that is kept. `add`
and the deletions change the list; `flush` brings the disk up to it and returns when it is there. Nothing may be told
to anyone else that depends on entries which have not been flushed.

Invariants:
- what `flush` has returned for is there after any crash, or the member refuses to start;
- the files are contiguous, and all but the last are synced whole before the next one gets its name;
- a file is cut only after those behind it are gone, and the cut is synced before anything new is written.

Zeros are written ahead of the records, so that most flushes change no file's size: a file system then has the data
alone to sync, which takes a quarter less.
"""

from __future__ import annotations

import random
from typing import Any, Final

from quire.disk.port import Disk, DiskFile
from quire.errors import DamagedFileError, DiskFullError, invariant
from quire.types import Buffer
from quire_controller.raft import segment
from quire_controller.raft.entry import FIRST, Entry
from quire_controller.raft.segment import HEADER_BYTES, KIND_ENTRY, KIND_SYNCED, Header, damaged

SEGMENT_BYTES: Final = 16 * 1024 * 1024
AHEAD_BYTES: Final = 256 * 1024
_PREFIX: Final = "journal-"
_SUFFIX: Final = ".log"


class _Segment:
    """One file, as far as it is written."""

    def __init__(
        self, path: str, file: DiskFile, header: Header, positions: list[int], *, end: int, room: int
    ) -> None:
        self.path = path
        self.file = file
        self.header = header
        self.positions = positions
        """Where the record of each entry begins, from the first index on."""
        self.end = end
        self.room = room
        """How large the file is: zeros are written ahead of the records, see `Journal`."""

    @property
    def end_index(self) -> int:
        """The index that the next entry of this file would have."""
        return self.header.first_index + len(self.positions)


class Journal:
    def __init__(
        self, disk: Disk, directory: str, randomness: random.Random, *, segment_bytes: int, ahead_bytes: int
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._randomness = randomness
        self._segment_bytes = segment_bytes
        self._ahead_bytes = ahead_bytes
        self._segments: list[_Segment] = []
        self._entries: list[Entry] = [FIRST]
        self._synced = HEADER_BYTES
        """How much of the last file is on the disk."""
        self._marked = HEADER_BYTES
        """Up to where a record in the last file says that it is."""
        self._written_end = FIRST[1] + 1
        """The index after the last entry that is on the disk."""
        self._tail_is_dirty = False
        """A write failed: bytes behind the end of the last file may look like records that nobody added."""
        self._cut_from: int | None = None
        """Entries from here on were deleted from the list and may still be on the disk."""
        self.torn: list[str] = []
        """What was cut when the journal was opened."""

    # -- opening ---------------------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        disk: Disk,
        directory: str,
        randomness: random.Random,
        *,
        previous: Entry = FIRST,
        segment_bytes: int = SEGMENT_BYTES,
        ahead_bytes: int = 0,
    ) -> Journal:
        """An empty journal whose first entry will follow `previous`, in place of whatever is there."""
        journal = cls(disk, directory, randomness, segment_bytes=segment_bytes, ahead_bytes=ahead_bytes)
        # From the last to the first, so that what a crash leaves is contiguous.
        for name in reversed(_names(disk, directory)):
            disk.remove(f"{directory}/{name}")
        disk.sync_dir(directory)
        journal._entries = [(b"", previous[1], previous[2])]
        journal._written_end = previous[1] + 1
        journal._roll()
        return journal

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        randomness: random.Random,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        ahead_bytes: int = 0,
    ) -> Journal:
        """The journal that is there. Raises DamagedFileError where it cannot be trusted."""
        journal = cls(disk, directory, randomness, segment_bytes=segment_bytes, ahead_bytes=ahead_bytes)
        names = _names(disk, directory)
        for number, name in enumerate(names):
            journal._read(f"{directory}/{name}", name, is_last=number == len(names) - 1)
        if not journal._segments:
            raise DamagedFileError(
                f"{directory} has no journal although its member had begun. Put the files {_PREFIX}*{_SUFFIX} back, "
                "or move the directory away and start the member again: it comes back without a vote and catches up",
                path=directory,
            )
        journal._written_end = journal._entries[-1][1] + 1
        last = journal._segments[-1]
        # What was whole may not be on the disk, only in the cache: of a process that was killed, or, after a sync
        # that failed, in pages that nobody would write any more. Written anew, it is synced for sure.
        # The same goes for what was cut off.
        last.file.write(0, [last.file.read(0, last.end)])
        last.file.truncate(last.end)
        last.room = last.end
        last.file.sync()
        disk.sync_dir(directory)
        journal._synced = last.end
        journal._marked = HEADER_BYTES
        return journal

    def _read(self, path: str, name: str, *, is_last: bool) -> None:
        file = self._disk.open(path)
        scanned = segment.scan(file, path, is_last=is_last)
        if scanned is None and self._segments:
            # It was being made when the process died. Whoever makes it again finds the name free.
            file.close()
            self._disk.remove(path)
            self.torn.append(f"{path}: removed, it was being made")
            return
        if scanned is None:
            raise damaged(path, 0, "its header does not check, and there is no other file")
        header = scanned.header
        if header.first_index != _first_index(name):
            raise damaged(path, 0, f"its header says that it begins with entry {header.first_index}")
        if not self._segments:
            self._entries = [(b"", header.first_index - 1, header.previous_term)]
        elif (header.first_index - 1, header.previous_term) != self._entries[-1][1:]:
            before = self._entries[-1]
            raise damaged(path, 0, f"the journal before it ends with entry {before[1]} of term {before[2]}")
        room = scanned.size
        if scanned.is_torn:
            file.truncate(scanned.end)
            file.sync()
            self.torn.append(f"{path}: cut at byte {scanned.end}, {room - scanned.end} bytes of a torn write")
            room = scanned.end
        self._segments.append(_Segment(path, file, header, scanned.positions, end=scanned.end, room=room))
        self._entries += scanned.entries

    # -- the list that PySyncObj works on --------------------------------------------------------------------------

    def add(self, command: bytes, index: int, term: int) -> None:
        invariant(index == self._entries[-1][1] + 1, "entries are to be contiguous")
        self._entries.append((command, index, term))

    def deleteEntriesFrom(self, position: int) -> None:
        invariant(position >= 1, "the entry before the journal cannot be deleted")
        if position < len(self._entries):
            index = self._entries[position][1]
            self._cut_from = index if self._cut_from is None else min(self._cut_from, index)
            del self._entries[position:]

    def __getitem__(self, item: Any) -> Any:
        return self._entries[item]

    def __len__(self) -> int:
        return len(self._entries)

    # -- the disk --------------------------------------------------------------------------------------------------

    @property
    def first_index(self) -> int:
        """Of the entries that are kept."""
        return self._entries[0][1] + 1

    @property
    def last_index(self) -> int:
        return self._entries[-1][1]

    @property
    def is_dirty(self) -> bool:
        """Whether the disk lags behind the list."""
        return self._cut_from is not None or self._written_end <= self._entries[-1][1]

    @property
    def size_bytes(self) -> int:
        return sum(one.end for one in self._segments)

    def flush(self) -> None:
        """Bring the disk up to the list. May be called again after DiskFullError; SyncFailedError is final."""
        self._clean_tail()
        self._cut()
        first = self._entries[0][1]
        new = self._entries[self._written_end - first :]
        if not new:
            return
        if self._segments[-1].end >= self._segment_bytes:
            self._roll()
        last = self._segments[-1]
        buffers: list[Buffer] = []
        positions = []
        end = last.end
        for entry in new:
            record = segment.encode_record(last.header.mark, KIND_ENTRY, entry, synced=self._synced)
            positions.append(end)
            end += len(record)
            buffers.append(record)
        self._tail_is_dirty = True
        last.file.write(last.end, [b"".join(buffers)])
        last.room = max(last.room, end)
        self._write_ahead(last, end)
        last.file.sync()
        self._tail_is_dirty = False
        last.positions += positions
        last.end = end
        self._marked, self._synced = self._synced, end
        self._written_end = new[-1][1] + 1

    def mark(self) -> None:
        """Leave a record that says what was synced, if none does yet, so that damage to the last one is noticed."""
        last = self._segments[-1]
        if self.is_dirty or self._tail_is_dirty or self._marked >= self._synced:
            return
        record = segment.encode_record(last.header.mark, KIND_SYNCED, (b"", 0, 0), synced=self._synced)
        self._tail_is_dirty = True
        last.file.write(last.end, [record])
        self._tail_is_dirty = False
        last.end += len(record)
        last.room = max(last.room, last.end)
        self._marked = self._synced

    def roll(self) -> None:
        """Go on in a new file, so that all entries that are on the disk so far can be removed together."""
        self._clean_tail()
        self._cut()
        if self._segments[-1].positions:
            self._roll()

    def trim(self, index: int) -> None:
        """Remove the files that hold no entry after `index`, but not the last. A synced snapshot must contain it."""
        count = 0
        while count < len(self._segments) - 1 and self._segments[count + 1].header.first_index <= index + 1:
            count += 1
        if count == 0:
            return
        for one in self._segments[:count]:
            one.file.close()
            self._disk.remove(one.path)
        self._disk.sync_dir(self._directory)
        del self._segments[:count]
        header = self._segments[0].header
        position = header.first_index - 1 - self._entries[0][1]
        self._entries = [(b"", header.first_index - 1, header.previous_term), *self._entries[position + 1 :]]

    def close(self) -> None:
        for one in self._segments:
            one.file.close()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _clean_tail(self) -> None:
        if self._tail_is_dirty:
            last = self._segments[-1]
            last.file.truncate(last.end)
            last.file.sync()
            last.room = self._synced = last.end
            self._tail_is_dirty = False

    def _write_ahead(self, last: _Segment, end: int) -> None:
        """Make room for further records while this one's sync is paid for anyway."""
        if self._ahead_bytes and end + self._ahead_bytes // 4 > last.room:
            room = end + self._ahead_bytes
            try:
                last.file.write(last.room, [bytes(room - last.room)])
                last.room = room
            except DiskFullError:
                # There is not much left, and others need it more.
                self._ahead_bytes = 0
                last.file.truncate(last.room)

    def let_go_of_room(self) -> None:
        """Give back what was taken ahead: somebody has no room for something that matters more."""
        last = self._segments[-1]
        self._ahead_bytes = 0
        if last.room > last.end and not self._tail_is_dirty:
            last.file.truncate(last.end)
            last.room = last.end

    def _cut(self) -> None:
        """Take what was deleted from the list off the disk."""
        if self._cut_from is None:
            return
        index = self._cut_from
        if index < self._written_end:
            while self._segments[-1].header.first_index > index:
                gone = self._segments.pop()
                gone.file.close()
                self._disk.remove(gone.path)
                self._disk.sync_dir(self._directory)
            last = self._segments[-1]
            keep = index - last.header.first_index
            if keep < len(last.positions):
                last.end = last.positions[keep]
                del last.positions[keep:]
                last.file.truncate(last.end)
                last.room = last.end
                # Before anything is written here: else old records could stand behind new ones after a crash, and
                # say of a torn write that it had been synced.
                last.file.sync()
            self._synced = last.end
            self._marked = HEADER_BYTES
            self._written_end = index
        self._cut_from = None

    def _roll(self) -> None:
        first = self._entries[0][1]
        previous = self._entries[self._written_end - 1 - first]
        header = Header(self._written_end, previous[2], self._randomness.randbytes(4))
        path = f"{self._directory}/{_PREFIX}{header.first_index:020}{_SUFFIX}"
        if self._segments:
            # Its last record may be a mark, which nobody has synced; and no file but the last has room ahead.
            last = self._segments[-1]
            self._clean_tail()
            last.file.truncate(last.end)
            last.room = last.end
            last.file.sync()
        try:
            file = segment.create(self._disk, path, header)
        except DiskFullError:
            # What there is of it must be gone for good before another file comes behind it.
            if self._disk.exists(path):
                self._disk.remove(path)
                self._disk.sync_dir(self._directory)
            raise
        self._disk.sync_dir(self._directory)
        self._segments.append(_Segment(path, file, header, [], end=HEADER_BYTES, room=HEADER_BYTES))
        self._synced = self._marked = HEADER_BYTES


def _names(disk: Disk, directory: str) -> list[str]:
    return [name for name in disk.names(directory) if _first_index(name) is not None]


def _first_index(name: str) -> int | None:
    digits = name[len(_PREFIX) : -len(_SUFFIX)]
    if name != f"{_PREFIX}{digits}{_SUFFIX}" or len(digits) != 20 or not digits.isdecimal():
        return None
    return int(digits)


def journal_exists(disk: Disk, directory: str) -> bool:
    return bool(_names(disk, directory))
