"""Every single bit of a member's directory flipped, and every byte made another: nothing wrong is ever opened.

A member either refuses, names the file and says what to do, or opens with all that it had. Only the last write, as
long as nothing in the file says that it was completed, cannot be told from a torn one: it is cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import pytest

from quire.disk.sim_disk import SimDisk
from quire.errors import DamagedFileError
from quire_controller.raft.entry import Entry
from quire_controller.raft.hard_state import HardState
from quire_controller.raft.segment import RECORD_BYTES, scan
from quire_controller.raft.snapshot import SnapshotId
from quire_controller.raft.storage import Storage
from tests.unit.raft_crafting import (
    MOVE_AWAY,
    Lines,
    add,
    disk_with,
    entries,
    files,
    kept,
    new_disk,
    open_storage,
    path,
    path_in,
    take_snapshot,
)

SEGMENT_BYTES: Final = 230
PIECES: Final = [b"a", b"state"]


@dataclass(frozen=True)
class Contents:
    """All that a member believes when it has opened its directory."""

    hard: HardState
    snapshot: SnapshotId | None
    state: tuple[bytes, ...]
    before: tuple[int, int]
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Directory:
    files: dict[str, bytes]
    contents: Contents
    uncovered: int
    """Where in the last file the last write begins, of which nothing says that it was completed."""
    uncovered_entries: int
    """How many entries that write had."""

    @property
    def last(self) -> str:
        return max(name for name in self.files if name.endswith(".log"))


def contents_of(storage: Storage, machine: Lines) -> Contents:
    journal = storage.journal
    before = (journal[0][1], journal[0][2])
    return Contents(storage.hard, storage.snapshot, tuple(machine.lines), before, tuple(kept(journal)))


def opened(content: dict[str, bytes]) -> Contents:
    machine = Lines()
    return contents_of(open_storage(disk_with(content), machine, segment_bytes=SEGMENT_BYTES, seed=9), machine)


def made(*, marked: bool = False, rolled: bool = False, ahead_bytes: int = 0) -> Directory:
    """A snapshot, a vote, and three journal files of which the last ends with a write of three entries.

    It may be followed by a mark, or by a file without entries; zeros may be written ahead.
    """
    disk = new_disk()
    storage = open_storage(disk, segment_bytes=SEGMENT_BYTES, ahead_bytes=ahead_bytes)
    storage.admit(0, "")
    storage.set_vote(1, "n2")
    journal = storage.journal
    for first in range(2, 18, 2):
        add(journal, *entries(first, first + 2, term=1))
        journal.flush()
        if first % 4:
            journal.mark()
        if first == 6:
            storage.publish_snapshot(take_snapshot(storage, 7, 1, PIECES))
    storage.set_vote(3, "n3")
    uncovered, count = _end(disk), 3
    add(journal, *entries(18, 21, term=3))
    journal.flush()
    if marked:
        uncovered, count = _end(disk), 0
        journal.mark()
    if rolled:
        uncovered, count = 0, 0
        journal.roll()
    content = files(disk)
    assert sum(name.endswith(".log") for name in content) == (4 if rolled else 3)
    directory = Directory(content, opened(content), uncovered, count)
    assert directory.contents.entries == (*entries(8, 18, term=1), *entries(18, 21, term=3))
    assert (directory.contents.hard.term, directory.contents.hard.voted_for) == (3, "n3")
    assert (directory.contents.snapshot, directory.contents.state) == (SnapshotId(7, 1), tuple(PIECES))
    return directory


def _end(disk: SimDisk) -> int:
    """Where the last file's records end."""
    last = path(max(name for name in files(disk) if name.endswith(".log")))
    scanned = scan(disk.open(last), last, is_last=True)
    assert scanned is not None
    return scanned.end


DIRECTORIES: Final = {
    "unmarked": made(),
    "marked": made(marked=True),
    "rolled": made(rolled=True),
    "ahead": made(ahead_bytes=100),
    "marked, ahead": made(marked=True, ahead_bytes=100),
}


def changed(content: dict[str, bytes], name: str, position: int, value: int) -> dict[str, bytes]:
    data = content[name]
    return content | {name: data[:position] + bytes([value]) + data[position + 1 :]}


def other_values(value: int) -> Iterator[int]:
    yield from (value ^ (1 << bit) for bit in range(8))
    yield from {0x00, 0xFF, value ^ 0xFF} - {value}


def refusal(content: dict[str, bytes]) -> DamagedFileError | Contents:
    """Why a member does not start with this, or what it starts with."""
    try:
        return opened(content)
    except DamagedFileError as error:
        return error


# --- one byte ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", DIRECTORIES)
def test_every_byte_of_every_file(kind: str) -> None:
    directory = DIRECTORIES[kind]
    whole = directory.contents
    shorter = replace(whole, entries=whole.entries[: len(whole.entries) - directory.uncovered_entries])
    refused = cut = 0
    for name, data in directory.files.items():
        for position, value in enumerate(data):
            for other in other_values(value):
                where = f"{name} byte {position}: {value} -> {other}"
                found = refusal(changed(directory.files, name, position, other))
                if name == directory.last and position >= directory.uncovered:
                    assert not isinstance(found, DamagedFileError), f"a torn write is no damage, {where}: {found}"
                    # A beginning of the last write: whatever stands before the bad record is good.
                    assert replace(found, entries=()) == replace(whole, entries=()), where
                    assert found.entries == whole.entries[: len(found.entries)], where
                    assert len(found.entries) >= len(shorter.entries), where
                    cut += 1
                else:
                    assert isinstance(found, DamagedFileError), f"opened with {where}"
                    assert path_in(found) == path(name), where
                    refused += 1
    assert refused > 5_000
    assert cut > 200


@pytest.mark.parametrize("kind", DIRECTORIES)
def test_refusals_say_what_to_do(kind: str) -> None:
    directory = DIRECTORIES[kind]
    for name, data in directory.files.items():
        end = directory.uncovered if name == directory.last else len(data)
        for position in range(0, end, 3):
            with pytest.raises(DamagedFileError, match=MOVE_AWAY) as caught:
                opened(changed(directory.files, name, position, data[position] ^ 0x10))
            assert path(name) in caught.value.message


@pytest.mark.parametrize(("without", "with_one"), [("unmarked", "marked"), ("ahead", "marked, ahead")])
def test_last_entries_are_covered_once_they_are_marked(without: str, with_one: str) -> None:
    """The same bytes that are cut without a mark are damage with one."""
    unmarked, marked = DIRECTORIES[without], DIRECTORIES[with_one]
    data = unmarked.files[unmarked.last].rstrip(b"\0")
    assert marked.files[marked.last].startswith(data)
    for position in range(unmarked.uncovered, len(data)):
        value = data[position] ^ 1
        assert isinstance(refusal(changed(unmarked.files, unmarked.last, position, value)), Contents)
        assert isinstance(refusal(changed(marked.files, marked.last, position, value)), DamagedFileError)


# --- more than a byte ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(DIRECTORIES.keys() - {"rolled"}))
@pytest.mark.parametrize("tail", ["cut", "zeros", "garbage"])
def test_last_write_torn_at_every_length(kind: str, tail: str) -> None:
    directory = DIRECTORIES[kind]
    whole, data = directory.contents, directory.files[directory.last]
    counts = set()
    for length in range(directory.uncovered, len(data.rstrip(b"\0"))):
        rest = len(data) - length
        torn = data[:length] + {"cut": b"", "zeros": bytes(rest), "garbage": b"\xa5" * rest}[tail]
        found = opened(directory.files | {directory.last: torn})
        assert replace(found, entries=()) == replace(whole, entries=())
        assert found.entries == whole.entries[: len(found.entries)]
        counts.add(len(whole.entries) - len(found.entries))
    assert counts == ({1, 2, 3} if directory.uncovered_entries else {0})


@pytest.mark.parametrize("kind", DIRECTORIES)
def test_every_other_file_cut_at_every_length(kind: str) -> None:
    directory = DIRECTORIES[kind]
    for name, data in directory.files.items():
        if name == directory.last:
            continue
        for length in range(len(data)):
            found = refusal(directory.files | {name: data[:length]})
            if isinstance(found, Contents):
                # Records are missing at its end: then the file behind it does not follow on any more, unless it
                # was but a mark that is missing.
                assert found == directory.contents, f"{name} cut at {length}"
                assert len(data) - length == RECORD_BYTES
                assert name.endswith(".log")


@pytest.mark.parametrize("kind", DIRECTORIES)
def test_sectors_lost(kind: str) -> None:
    """Runs of zeros, of any place and several lengths, as a disk has them that lost a sector."""
    directory = DIRECTORIES[kind]
    for name, data in directory.files.items():
        for length in (2, 8, 40, 100):
            for start in range(0, len(data), 5):
                zeroed = data[:start] + bytes(len(data[start : start + length])) + data[start + length :]
                if zeroed == data:
                    continue
                found = refusal(directory.files | {name: zeroed})
                is_tail = name == directory.last and start >= directory.uncovered
                if is_tail:
                    assert isinstance(found, Contents)
                    assert found.entries == directory.contents.entries[: len(found.entries)]
                    assert len(directory.contents.entries) - len(found.entries) <= directory.uncovered_entries
                elif name == directory.last and start + length > directory.uncovered:
                    # Gone with it may be all that could tell that it had been written: it looks torn.
                    if isinstance(found, Contents):
                        assert found.entries == directory.contents.entries[: len(found.entries)]
                        assert replace(found, entries=()) == replace(directory.contents, entries=())
                else:
                    assert isinstance(found, DamagedFileError), f"opened with {name} zero at {start} + {length}"


# --- whole files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", DIRECTORIES)
def test_missing_files(kind: str) -> None:
    directory = DIRECTORIES[kind]
    for name in directory.files:
        if name == directory.last:
            continue  # nothing points to it: a member that lost its last file looks like one that never had it
        found = refusal({other: data for other, data in directory.files.items() if other != name})
        assert isinstance(found, DamagedFileError), name


def test_files_exchanged() -> None:
    directory = DIRECTORIES["marked"]
    names = list(directory.files)
    for name in names:
        for other in names:
            if name != other:
                mixed = directory.files | {name: directory.files[other]}
                assert isinstance(refusal(mixed), DamagedFileError), f"{other} under the name of {name}"


def test_files_of_another_time() -> None:
    """A directory of which one file comes from an older copy: whatever does not fit is refused."""
    older, newer = DIRECTORIES["unmarked"], DIRECTORIES["rolled"]
    for name in newer.files.keys() & older.files.keys():
        mixed = newer.files | {name: older.files[name]}
        if mixed != newer.files:
            assert isinstance(refusal(mixed), DamagedFileError), name
