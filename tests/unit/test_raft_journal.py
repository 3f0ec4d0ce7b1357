"""The journal: what is in memory, what is on the disk, and when the one is the other."""

from __future__ import annotations

import random
import struct

import pytest
from crc32c import crc32c

from quire.disk.sim_disk import SimDisk, SimulatedCrash
from quire.errors import DamagedFileError, DiskFullError, DiskIoError, InvariantViolation, SyncFailedError
from quire_controller.raft import segment
from quire_controller.raft.entry import FIRST, NO_OP, REGULAR, Entry
from quire_controller.raft.journal import Journal, journal_exists
from quire_controller.raft.segment import HEADER_BYTES, RECORD_BYTES, Header
from tests.unit.raft_crafting import (
    DIRECTORY,
    MOVE_AWAY,
    add,
    disk_with,
    entries,
    entry,
    files,
    kept,
    new_disk,
    new_journal,
    open_journal,
    path,
    path_in,
)

FIRST_FILE = "journal-00000000000000000002.log"
SMALL = 300
"""A segment of this size has two or three of the entries below."""


def name(first_index: int) -> str:
    return f"journal-{first_index:020}.log"


def filled(disk: SimDisk, *, end: int = 12) -> Journal:
    """Entries 2 to `end`, each flushed on its own, in several files."""
    journal = new_journal(disk, segment_bytes=SMALL)
    for one in entries(2, end, size=60):
        journal.add(*one)
        journal.flush()
    return journal


def flips_to(disk: SimDisk, file: str, position: int) -> None:
    disk.flip(path(file), position, 0)


# --- bytes ---------------------------------------------------------------------------------------------------------


def test_file_is_what_its_description_says() -> None:
    disk = new_disk()
    journal = Journal.create(disk, DIRECTORY, random.Random(4))
    mark = random.Random(4).randbytes(4)
    journal.add(REGULAR + b"a command", 2, 7)
    journal.add(NO_OP, 3, 9)
    journal.flush()
    journal.mark()

    def record(kind: int, index: int, term: int, synced: int, data: bytes) -> bytes:
        fields = struct.pack(">IIQQQ", len(data), kind, index, term, synced) + data
        return mark + struct.pack(">I", crc32c(fields)) + fields

    start = struct.pack(">4sHHQQ4s", b"QRJ1", 1, 0, 2, 0, mark)
    start += struct.pack(">I", crc32c(start))
    group = record(0, 2, 7, 32, b"\x00a command") + record(0, 3, 9, 32, b"\x01")
    assert files(disk) == {FIRST_FILE: start + group + record(1, 0, 0, 32 + len(group), b"")}


def test_header_of_a_later_file_names_the_entry_before() -> None:
    disk = new_disk()
    journal = new_journal(disk)
    add(journal, *entries(2, 5, term=3))
    journal.flush()
    journal.roll()
    scanned = segment.scan(disk.open(path(name(5))), path(name(5)), is_last=True)
    assert scanned is not None
    assert (scanned.header.first_index, scanned.header.previous_term, scanned.entries) == (5, 3, [])
    assert len(files(disk)[name(5)]) == HEADER_BYTES


def test_every_file_has_a_mark_of_its_own() -> None:
    disk = new_disk()
    filled(disk)
    marks = {data[24:28] for data in files(disk).values()}
    assert len(marks) == len(files(disk)) > 3


# --- the list ------------------------------------------------------------------------------------------------------


def test_new_journal_has_the_librarys_first_entry() -> None:
    disk = new_disk()
    assert not journal_exists(disk, DIRECTORY)
    journal = new_journal(disk)
    assert journal_exists(disk, DIRECTORY)
    assert (len(journal), journal[0][1:], journal[-1][1:]) == (1, FIRST[1:], FIRST[1:])
    assert (journal.first_index, journal.last_index, journal.is_dirty) == (2, 1, False)


def test_it_is_the_list_that_the_library_works_on() -> None:
    journal = new_journal(new_disk())
    add(journal, *entries(2, 8))
    assert len(journal) == 7
    assert journal[-1] == entry(7)
    assert journal[2:4] == entries(3, 5)
    journal.deleteEntriesFrom(4)
    assert kept(journal) == entries(2, 5)
    journal.deleteEntriesFrom(4)
    journal.deleteEntriesFrom(99)
    assert kept(journal) == entries(2, 5)
    add(journal, *entries(5, 7, term=2))
    assert kept(journal) == [*entries(2, 5), *entries(5, 7, term=2)]


@pytest.mark.parametrize("index", [1, 2, 4, 99])
def test_hole_cannot_be_made(index: int) -> None:
    journal = new_journal(new_disk())
    add(journal, entry(2))
    with pytest.raises(InvariantViolation, match="contiguous"):
        journal.add(REGULAR, index, 1)


def test_entry_before_the_journal_cannot_be_deleted() -> None:
    journal = new_journal(new_disk())
    add(journal, entry(2))
    with pytest.raises(InvariantViolation, match="cannot be deleted"):
        journal.deleteEntriesFrom(0)


# --- flushing ------------------------------------------------------------------------------------------------------


def test_entries_are_dirty_until_they_are_flushed() -> None:
    disk = new_disk()
    journal = new_journal(disk)
    add(journal, *entries(2, 5))
    assert journal.is_dirty
    before = files(disk)
    assert before == {FIRST_FILE: before[FIRST_FILE][:HEADER_BYTES]}
    journal.flush()
    assert not journal.is_dirty
    disk.power_cut(random.Random(1))
    assert kept(open_journal(disk)) == entries(2, 5)


def test_flush_of_nothing_touches_nothing() -> None:
    disk = new_disk()
    journal = filled(disk)
    syncs, before = disk.syncs, files(disk)
    journal.flush()
    assert (disk.syncs, files(disk)) == (syncs, before)


def test_one_flush_is_one_sync() -> None:
    disk = new_disk()
    journal = new_journal(disk)
    add(journal, *entries(2, 500))
    syncs = disk.syncs
    journal.flush()
    assert disk.syncs == syncs + 1


def test_deletion_is_dirty_until_it_is_flushed() -> None:
    disk = new_disk()
    journal = filled(disk)
    journal.deleteEntriesFrom(5)
    assert journal.is_dirty
    disk.kill()
    assert kept(open_journal(disk)) == entries(2, 12, size=60)
    journal = open_journal(disk, segment_bytes=SMALL)
    journal.deleteEntriesFrom(5)
    journal.flush()
    assert not journal.is_dirty
    disk.power_cut(random.Random(1))
    assert kept(open_journal(disk)) == entries(2, 6, size=60)


@pytest.mark.parametrize("position", range(1, 11))
def test_what_replaces_deleted_entries(position: int) -> None:
    disk = new_disk()
    journal = filled(disk)
    journal.deleteEntriesFrom(position)
    add(journal, *entries(position + 1, 15, term=2, size=20))
    journal.flush()
    expected = [*entries(2, position + 1, size=60), *entries(position + 1, 15, term=2, size=20)]
    assert kept(journal) == expected
    disk.power_cut(random.Random(position))
    assert kept(open_journal(disk)) == expected


def test_entries_deleted_before_they_were_flushed_never_reach_the_disk() -> None:
    disk = new_disk()
    journal = new_journal(disk)
    add(journal, *entries(2, 6))
    journal.deleteEntriesFrom(2)
    add(journal, *entries(3, 5, term=2))
    journal.flush()
    assert b"command-5" not in files(disk)[FIRST_FILE]
    assert kept(open_journal(disk)) == [entry(2), *entries(3, 5, term=2)]


def test_files_are_rolled_when_they_are_full() -> None:
    disk = new_disk()
    journal = filled(disk)
    assert list(files(disk)) == [name(index) for index in (2, 5, 8, 11)]
    assert journal.size_bytes == disk.used_bytes()
    assert kept(open_journal(disk)) == entries(2, 12, size=60)


def test_one_flush_stays_in_one_file() -> None:
    disk = new_disk()
    journal = new_journal(disk, segment_bytes=SMALL)
    add(journal, *entries(2, 40, size=60))
    journal.flush()
    assert list(files(disk)) == [name(2)]
    add(journal, entry(40))
    journal.flush()
    assert list(files(disk)) == [name(2), name(40)]


def test_roll_of_an_empty_file_is_none() -> None:
    disk = new_disk()
    journal = new_journal(disk)
    journal.roll()
    add(journal, entry(2))
    journal.flush()
    journal.roll()
    journal.roll()
    assert list(files(disk)) == [name(2), name(3)]


def test_roll_leaves_what_is_not_flushed_for_the_new_file() -> None:
    disk = new_disk()
    journal = new_journal(disk)
    add(journal, *entries(2, 5))
    journal.flush()
    add(journal, *entries(5, 7))
    journal.roll()
    assert journal.is_dirty
    journal.flush()
    assert list(files(disk)) == [name(2), name(5)]
    assert kept(open_journal(disk)) == entries(2, 7)


# --- trimming ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("index", "first"), [(0, 2), (1, 2), (3, 2), (4, 5), (6, 5), (7, 8), (9, 8), (10, 11), (11, 11), (99, 11)]
)
def test_trim_removes_files_that_hold_nothing_after_an_index(index: int, first: int) -> None:
    disk = new_disk()
    journal = filled(disk)
    journal.trim(index)
    assert journal.first_index == first
    assert kept(journal) == entries(first, 12, size=60)
    assert next(iter(files(disk))) == name(first)
    disk.power_cut(random.Random(1))
    opened = open_journal(disk)
    assert kept(opened) == entries(first, 12, size=60)
    assert opened[0][1:] == journal[0][1:]


def test_entry_before_the_first_keeps_its_term() -> None:
    disk = new_disk()
    journal = new_journal(disk, segment_bytes=SMALL)
    for term in range(1, 8):
        add(journal, *entries(2 * term, 2 * term + 2, term=term, size=60))
        journal.flush()
    journal.trim(8)
    assert journal[0][1:] == (journal.first_index - 1, (journal.first_index - 1) // 2)
    assert open_journal(disk)[0][1:] == journal[0][1:]


def test_trimmed_journal_goes_on() -> None:
    disk = new_disk()
    journal = filled(disk)
    journal.trim(7)
    journal.deleteEntriesFrom(2)
    add(journal, *entries(9, 14, term=3))
    journal.flush()
    expected = [entry(8, size=60), *entries(9, 14, term=3)]
    assert kept(journal) == expected
    assert kept(open_journal(disk)) == expected


def test_journal_that_follows_a_snapshot() -> None:
    disk = new_disk()
    filled(disk)
    journal = Journal.create(disk, DIRECTORY, random.Random(3), previous=(REGULAR, 500, 9))
    assert list(files(disk)) == [name(501)]
    assert (journal.first_index, journal.last_index, journal[0][1:]) == (501, 500, (500, 9))
    add(journal, entry(501, 9))
    journal.flush()
    opened = open_journal(disk)
    assert (kept(opened), opened[0][1:]) == ([entry(501, 9)], (500, 9))


# --- crashes -------------------------------------------------------------------------------------------------------


def test_torn_write_is_cut_and_told() -> None:
    disk = new_disk()
    filled(disk, end=4)
    whole = files(disk)[FIRST_FILE]
    last = whole.rindex(whole[24:28])
    for length in range(last + 1, len(whole)):
        torn = disk_with({FIRST_FILE: whole[:length]})
        journal = open_journal(torn)
        assert kept(journal) == [entry(2, size=60)]
        assert journal.torn == [f"{path(FIRST_FILE)}: cut at byte {last}, {length - last} bytes of a torn write"]
        assert files(torn)[FIRST_FILE] == whole[:last]
        assert open_journal(torn).torn == []


def test_file_that_was_being_made_is_removed() -> None:
    for length in range(HEADER_BYTES):
        disk = new_disk()
        filled(disk, end=4)
        made = segment.encode_header(Header(4, 1, b"mark"))[:length]
        torn = disk_with(files(disk) | {name(4): made})
        journal = open_journal(torn)
        assert kept(journal) == entries(2, 4, size=60)
        assert journal.torn == [f"{path(name(4))}: removed, it was being made"]
        assert list(files(torn)) == [FIRST_FILE]


@pytest.mark.parametrize("seed", [None, *range(8)])
@pytest.mark.parametrize("steps", range(4))
def test_crash_in_a_trim_leaves_no_hole(steps: int, seed: int | None) -> None:
    disk = new_disk()
    journal = filled(disk)
    disk.crash_after(steps)
    with pytest.raises(SimulatedCrash):
        journal.trim(10)
    if seed is None:
        disk.kill()
    else:
        disk.power_cut(random.Random(seed))
    opened = open_journal(disk)
    assert opened.first_index in (2, 5, 8, 11)
    assert kept(opened) == entries(opened.first_index, 12, size=60)


def test_opening_syncs_what_only_the_cache_had() -> None:
    """A killed process had written, not synced; what is seen now is answered for from now on."""
    disk = new_disk()
    journal = new_journal(disk)
    add(journal, *entries(2, 5))
    disk.crash_after(1)  # in the sync
    with pytest.raises(SimulatedCrash):
        journal.flush()
    disk.kill()
    assert kept(open_journal(disk)) == entries(2, 5)
    disk.power_cut(random.Random(1))
    assert kept(open_journal(disk)) == entries(2, 5)


# --- marks ---------------------------------------------------------------------------------------------------------


def test_damage_to_the_last_entry_is_noticed_once_there_is_a_mark() -> None:
    disk = new_disk()
    journal = new_journal(disk)
    add(journal, entry(2), entry(3))
    journal.flush()
    unmarked = disk_with(files(disk))
    journal.mark()
    last = files(disk)[FIRST_FILE].index(b"command-3")
    flips_to(unmarked, FIRST_FILE, last)
    assert kept(open_journal(unmarked)) == [entry(2)]
    flips_to(disk, FIRST_FILE, last)
    disk.kill()
    with pytest.raises(DamagedFileError, match="had been written to the disk completely"):
        open_journal(disk)


@pytest.mark.parametrize("more", [[], [entry(4, 2)]])
def test_what_is_left_after_a_deletion_is_marked_again(more: list[Entry]) -> None:
    """The mark that covered it went with what was deleted."""
    disk = new_disk()
    journal = new_journal(disk)
    add(journal, *entries(2, 7))
    journal.flush()
    journal.mark()
    journal.deleteEntriesFrom(3)
    add(journal, *more)
    journal.flush()
    journal.mark()
    flips_to(disk, FIRST_FILE, files(disk)[FIRST_FILE].rindex(b"command-"))
    disk.kill()
    with pytest.raises(DamagedFileError, match="had been written to the disk completely"):
        open_journal(disk)


def test_mark_is_left_once() -> None:
    disk = new_disk()
    journal = new_journal(disk)
    journal.mark()
    assert disk.used_bytes() == HEADER_BYTES
    add(journal, entry(2))
    journal.mark()
    assert disk.used_bytes() == HEADER_BYTES, "of what is not on the disk nothing can be said"
    journal.flush()
    size = disk.used_bytes()
    for _ in range(3):
        journal.mark()
        assert disk.used_bytes() == journal.size_bytes == size + RECORD_BYTES


def test_mark_is_not_synced_and_may_be_lost() -> None:
    disk = new_disk()
    journal = new_journal(disk)
    add(journal, entry(2))
    journal.flush()
    syncs = disk.syncs
    journal.mark()
    assert disk.syncs == syncs
    add(journal, entry(3))
    journal.flush()
    assert kept(open_journal(disk)) == entries(2, 4)
    journal = open_journal(disk)
    journal.mark()
    for seed in range(20):
        copy = disk_with(files(disk))
        copy.power_cut(random.Random(seed))
        assert kept(open_journal(copy)) == entries(2, 4)


def test_mark_is_on_the_disk_before_another_file_follows() -> None:
    """It stands across two sectors: half of it, in a file that is not the last, would be damage."""
    for size in range(400, 480, 8):
        for seed in range(10):
            disk = new_disk()
            journal = new_journal(disk)
            add(journal, entry(2, size=size))
            journal.flush()
            journal.mark()
            journal.roll()
            disk.power_cut(random.Random(seed))
            assert kept(open_journal(disk)) == [entry(2, size=size)]


def test_marks_are_no_entries() -> None:
    disk = new_disk()
    journal = new_journal(disk, segment_bytes=SMALL)
    for one in entries(2, 12, size=60):
        journal.add(*one)
        journal.flush()
        journal.mark()
    journal.deleteEntriesFrom(7)
    journal.flush()
    journal.mark()
    assert kept(journal) == entries(2, 8, size=60)
    assert kept(open_journal(disk)) == entries(2, 8, size=60)


def test_opened_journal_is_marked_again() -> None:
    """Whatever says that its last entries were synced may have been cut."""
    disk = new_disk()
    journal = filled(disk, end=4)
    journal = open_journal(disk)
    size = disk.used_bytes()
    journal.mark()
    assert disk.used_bytes() == size + RECORD_BYTES


# --- disks that fail -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("room", [0, 1, 40, 100, 150, 190])
def test_full_disk_can_be_tried_again(room: int) -> None:
    disk = new_disk()
    journal = filled(disk, end=4)
    disk.capacity_bytes = disk.used_bytes() + room
    add(journal, *entries(4, 8, size=60))
    for _ in range(3):
        with pytest.raises(DiskFullError):
            journal.flush()
        assert journal.is_dirty
        assert kept(journal) == entries(2, 8, size=60)
    disk.capacity_bytes = None
    journal.flush()
    assert not journal.is_dirty
    disk.power_cut(random.Random(room))
    assert kept(open_journal(disk)) == entries(2, 8, size=60)


@pytest.mark.parametrize("room", [0, 40, 100, 150, 190])
def test_entries_deleted_while_the_disk_was_full_do_not_come_back(room: int) -> None:
    disk = new_disk()
    journal = filled(disk, end=4)
    disk.capacity_bytes = disk.used_bytes() + room
    add(journal, *entries(4, 8, size=60))
    with pytest.raises(DiskFullError):
        journal.flush()
    journal.deleteEntriesFrom(3)
    add(journal, entry(4, 2))
    disk.capacity_bytes = None
    journal.flush()
    expected = [*entries(2, 4, size=60), entry(4, 2)]
    assert kept(open_journal(disk)) == expected
    disk.power_cut(random.Random(room))
    assert kept(open_journal(disk)) == expected


@pytest.mark.parametrize("room", [0, 10, 31])
def test_full_disk_when_a_file_is_rolled(room: int) -> None:
    disk = new_disk()
    journal = filled(disk, end=5)
    disk.capacity_bytes = disk.used_bytes() + room
    add(journal, entry(5))
    with pytest.raises(DiskFullError):
        journal.flush()
    disk.capacity_bytes = None
    journal.flush()
    disk.power_cut(random.Random(room))
    assert kept(open_journal(disk)) == [*entries(2, 5, size=60), entry(5)]


@pytest.mark.parametrize("room", [0, 10, 31])
def test_file_for_which_there_was_no_room_does_not_stay(room: int) -> None:
    """A snapshot is to begin, the disk is full; later there is room, and entries go on where they were."""
    disk = new_disk()
    journal = filled(disk, end=4)
    disk.capacity_bytes = disk.used_bytes() + room
    with pytest.raises(DiskFullError):
        journal.roll()
    disk.capacity_bytes = None
    for one in entries(4, 9, size=60):
        journal.add(*one)
        journal.flush()
    assert len(files(disk)) > 1
    disk.kill()
    assert kept(open_journal(disk)) == entries(2, 9, size=60)


@pytest.mark.parametrize("seed", range(20))
def test_torn_write_after_there_was_no_room_for_a_file(seed: int) -> None:
    disk = new_disk()
    journal = filled(disk, end=4)
    disk.capacity_bytes = disk.used_bytes()
    with pytest.raises(DiskFullError):
        journal.roll()
    disk.capacity_bytes = None
    add(journal, *entries(4, 30, size=60))
    disk.crash_after(1)  # in the sync
    with pytest.raises(SimulatedCrash):
        journal.flush()
    disk.power_cut(random.Random(seed))
    found = kept(open_journal(disk))
    assert found == entries(2, 30, size=60)[: len(found)]
    assert len(found) >= 2


def test_no_room_for_a_mark() -> None:
    disk = new_disk()
    journal = filled(disk, end=4)
    disk.capacity_bytes = disk.used_bytes() + 10
    with pytest.raises(DiskFullError):
        journal.mark()
    journal.mark()  # not again until the tail is clean
    disk.capacity_bytes = None
    add(journal, entry(4))
    journal.flush()
    assert kept(open_journal(disk)) == [*entries(2, 4, size=60), entry(4)]


def test_what_a_failed_sync_left_in_the_cache_is_written_again() -> None:
    """Linux tells of the failure once, and then has the pages for clean: a later sync does not write them."""
    disk = new_disk()
    journal = new_journal(disk)
    add(journal, *entries(2, 5))
    disk.failing_syncs.add(path(FIRST_FILE))
    with pytest.raises(SyncFailedError):
        journal.flush()
    disk.kill()  # the process ends, the machine does not
    journal = open_journal(disk)
    found = kept(journal)
    assert not journal.is_dirty  # from here on it says that it has them
    disk.power_cut(random.Random(1))
    assert kept(open_journal(disk)) == found


@pytest.mark.parametrize("more", [[], [entry(4, 3, size=60)]])
def test_what_a_failed_sync_did_not_cut_stays_away(more: list[Entry]) -> None:
    """The cut is in the cache alone: opening makes it anew, or old records stand behind new ones after a crash."""
    disk = new_disk()
    journal = new_journal(disk)
    add(journal, *entries(2, 7, size=60))
    journal.flush()
    journal.deleteEntriesFrom(3)
    disk.failing_syncs.add(path(FIRST_FILE))
    with pytest.raises(SyncFailedError):
        journal.flush()
    disk.kill()
    journal = open_journal(disk)
    assert kept(journal) == entries(2, 4, size=60)
    add(journal, *more)
    journal.flush()
    disk.power_cut(random.Random(1))
    assert kept(open_journal(disk)) == [*entries(2, 4, size=60), *more]


def test_failed_sync_is_told() -> None:
    disk = new_disk()
    journal = new_journal(disk)
    add(journal, entry(2))
    disk.failing_syncs.add(path(FIRST_FILE))
    with pytest.raises(SyncFailedError):
        journal.flush()
    assert journal.is_dirty


def test_closed_journal_writes_nothing() -> None:
    journal = new_journal(new_disk())
    journal.close()
    add(journal, entry(2))
    with pytest.raises(DiskIoError):
        journal.flush()


# --- damage --------------------------------------------------------------------------------------------------------


def refused(disk: SimDisk, file: str, match: str) -> None:
    with pytest.raises(DamagedFileError, match=match) as caught:
        open_journal(disk)
    assert path_in(caught.value) == path(file)
    assert caught.value.message.startswith(path(file))
    with pytest.raises(DamagedFileError, match=MOVE_AWAY):
        open_journal(disk)


def test_no_journal() -> None:
    with pytest.raises(DamagedFileError, match="has no journal although its member had begun.*" + MOVE_AWAY):
        open_journal(new_disk())


def test_only_file_without_a_header() -> None:
    refused(disk_with({FIRST_FILE: b""}), FIRST_FILE, "its header does not check, and there is no other file")


def test_first_file_is_missing() -> None:
    """Then the journal begins later; whether a snapshot contains what is missing, the storage checks."""
    disk = new_disk()
    filled(disk)
    disk.remove(path(name(2)))
    assert open_journal(disk).first_index == 5


def test_file_in_the_middle_is_missing() -> None:
    disk = new_disk()
    filled(disk)
    disk.remove(path(name(5)))
    refused(disk, name(8), "the journal before it ends with entry 4 of term 1")


def test_file_under_another_name() -> None:
    disk = new_disk()
    filled(disk)
    disk.rename(path(name(5)), path(name(6)))
    refused(disk, name(6), "its header says that it begins with entry 5")


def test_file_of_another_term_than_the_one_before() -> None:
    disk = new_disk()
    filled(disk, end=5)
    other = segment.encode_header(Header(5, 7, b"mark"))
    refused(disk_with(files(disk) | {name(5): other}), name(5), "ends with entry 4 of term 1")


def test_records_of_another_file_are_none() -> None:
    disk = new_disk()
    filled(disk)
    content = files(disk)
    content[name(8)] = content[name(8)][:HEADER_BYTES] + content[name(5)][HEADER_BYTES:]
    refused(disk_with(content), name(8), "a record does not check, and another file follows")


def test_records_out_of_order() -> None:
    disk = new_disk()
    journal = new_journal(disk)
    add(journal, entry(2), entry(3))
    journal.flush()
    data = files(disk)[FIRST_FILE]
    second = data.rindex(data[24:28])
    swapped = data[:HEADER_BYTES] + data[second:] + data[HEADER_BYTES:second]
    refused(disk_with({FIRST_FILE: swapped}), FIRST_FILE, "entry 3 stands where 2 should")


def test_record_twice() -> None:
    disk = new_disk()
    journal = new_journal(disk)
    add(journal, entry(2))
    journal.flush()
    data = files(disk)[FIRST_FILE]
    refused(disk_with({FIRST_FILE: data + data[HEADER_BYTES:]}), FIRST_FILE, "entry 2 stands where 3 should")


def test_newer_version_is_not_guessed_at() -> None:
    disk = new_disk()
    filled(disk, end=4)
    data = files(disk)[FIRST_FILE]
    newer = struct.pack(">4sHHQQ4s", b"QRJ1", 2, 0, 2, 0, data[24:28])
    newer += struct.pack(">I", crc32c(newer)) + data[HEADER_BYTES:]
    refused(disk_with({FIRST_FILE: newer}), FIRST_FILE, "its header does not check")


def test_files_of_others_are_left_alone() -> None:
    disk = new_disk()
    filled(disk, end=4)
    strangers = {"journal-2.log": b"x", "journal-0000000000000000000x.log": b"x", f"{name(9)}.bak": b"x"}
    crowded = disk_with(files(disk) | strangers)
    assert kept(open_journal(crowded)) == entries(2, 4, size=60)
    new_journal(crowded)
    assert set(files(crowded)) == {FIRST_FILE, *strangers}
