"""Mending damaged ranges: what a good copy is written over is as it was, and everything else stays."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import pytest

from quire.disk.sim_disk import SECTOR_BYTES, SimDisk, SimFile, SimulatedCrash
from quire.errors import (
    ChecksumMismatchError,
    DamagedRangeError,
    DiskFullError,
    DiskIoError,
    InvalidArgumentError,
    LogOfflineError,
    MalformedBatchError,
    QuireError,
    StaleEpochError,
    SyncFailedError,
)
from quire.records import pack_batch, parse_header
from quire.types import Buffer
from quire_broker.cli.log_verify import verify_steadily
from quire_broker.log.appender import Appended
from quire_broker.log.log import Log
from quire_broker.log.ranges import OffsetRange
from tests.unit.log_crafting import NOW_MS, append, append_one, batch, fill, numbered, producer, stored, values
from tests.unit.test_log_recovery import (
    BATCH_BYTES,
    CONFIG,
    DIRECTORY,
    closed_log,
    crash_everywhere,
    flip_batch,
    open_log,
    segment_path,
)

WHOLE: Final = numbered(0, 35)


ORIGINAL: Final = stored(open_log(closed_log(35)))


def good_copy(first: int, end: int) -> bytes:
    """The batches of some offsets, as any other replica has them."""
    return ORIGINAL[first * BATCH_BYTES : end * BATCH_BYTES]


def mend(log: Log, first: int, end: int) -> None:
    assert log.mend(good_copy(first, end), now_ms=NOW_MS) == end


def segment_files(disk: SimDisk) -> dict[str, bytes]:
    """Without the empty one that is begun behind a lost end."""
    files = {name: disk.open(f"{DIRECTORY}/{name}") for name in disk.names(DIRECTORY) if name.endswith(".log")}
    return {name: file.read(0, file.size()) for name, file in files.items() if file.size()}


def wipe(disk: SimDisk, first: int, end: int) -> None:
    """Let nothing be left of one-record batches of one segment that could tell where the next one begins."""
    position = first % 10 * BATCH_BYTES
    file = disk.open(segment_path(first // 10 * 10))
    file.write(position, [b"\xff" * ((end - first) * BATCH_BYTES)])
    file.sync()


def find_damage(log: Log) -> None:
    values(log)


def expect_mended(disk: SimDisk, log: Log) -> None:
    """Nothing is lost any more: not in memory, not on the disk, not after opening anew, however it went down."""
    for opened in however_opened(disk, log):
        assert opened.quarantined == []
        assert values(opened) == WHOLE
        for offset in WHOLE:
            assert opened.find_time(NOW_MS + offset) == (NOW_MS + offset, offset)
        found = (opened.recovery.damaged, opened.recovery.missing, opened.recovery.torn)
        assert opened is log or found == ([], [], None)
        verdict = verify_steadily(disk, DIRECTORY, lambda done, total: None)
        assert verdict.sound, verdict
    assert segment_files(disk) == segment_files(closed_log(35))


def however_opened(disk: SimDisk, log: Log) -> Iterator[Log]:
    """The log as it is, and as it opens after whatever ends a process. To be looked at in turn."""
    yield log
    disk.power_cut(random.Random(1))
    yield open_log(disk)
    disk.kill()
    log = open_log(disk)
    yield log
    log.close()
    yield open_log(disk)


# --- in place -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("byte", [3, 10, 13, 16, 18, 30, 60, 80, BATCH_BYTES - 1])
@pytest.mark.parametrize("offset", [0, 4, 9, 10, 25, 30, 34])
def test_a_flipped_bit_is_mended(offset: int, byte: int) -> None:
    disk = closed_log(35)
    flip_batch(disk, offset, byte=byte)
    log = open_log(disk)
    find_damage(log)
    assert log.quarantined == [OffsetRange(offset, offset + 1)]
    mend(log, offset, offset + 1)
    expect_mended(disk, log)


@pytest.mark.parametrize(
    ("first", "end"), [(0, 10), (0, 3), (13, 17), (16, 20), (10, 20), (30, 35), (31, 33), (33, 35)]
)
def test_a_stretch_of_which_nothing_is_left_is_mended(first: int, end: int) -> None:
    disk = closed_log(35)
    wipe(disk, first, end)
    log = open_log(disk)
    find_damage(log)
    [lost] = log.quarantined
    assert lost.first_offset <= first
    assert end <= lost.end_offset
    mend(log, *lost)
    expect_mended(disk, log)


def test_a_stretch_is_mended_bit_by_bit() -> None:
    disk = closed_log(35)
    wipe(disk, 12, 18)
    log = open_log(disk)
    find_damage(log)
    [(first, end)] = log.quarantined
    for offset in range(first, end):
        assert log.quarantined == [OffsetRange(offset, end)]
        mend(log, offset, offset + 1)
        assert {**values(log), **numbered(offset + 1, end)} == WHOLE
        if offset % 2:
            disk.kill()
            log = open_log(disk)
    expect_mended(disk, log)


def test_other_damage_stays_as_it_is() -> None:
    disk = closed_log(35)
    for offset in (3, 11, 15, 18, 34):
        flip_batch(disk, offset)
    log = open_log(disk)
    find_damage(log)
    mend(log, 15, 16)
    for opened in however_opened(disk, log):
        assert opened.quarantined == [OffsetRange(n, n + 1) for n in (3, 11, 18, 34)]
        assert values(opened) == {n: value for n, value in WHOLE.items() if n not in (3, 11, 18, 34)}


def test_damage_that_comes_to_light_while_mending_is_quarantined() -> None:
    disk = closed_log(35)
    flip_batch(disk, 13)
    log = open_log(disk)
    find_damage(log)
    flip_batch(disk, 17)
    mend(log, 13, 14)
    assert log.quarantined == [OffsetRange(17, 18)]


def test_damage_that_has_grown_upwards_is_mended_in_part() -> None:
    disk = closed_log(35)
    flip_batch(disk, 13)
    log = open_log(disk)
    find_damage(log)
    wipe(disk, 14, 16)
    mend(log, 13, 14)
    [lost] = log.quarantined
    assert lost.first_offset == 14
    mend(log, *lost)
    expect_mended(disk, log)


def test_damage_that_has_grown_downwards_must_be_fetched_anew() -> None:
    disk = closed_log(35)
    flip_batch(disk, 13)
    log = open_log(disk)
    find_damage(log)
    wipe(disk, 11, 13)
    with pytest.raises(InvalidArgumentError):
        mend(log, 13, 14)
    [lost] = log.quarantined
    assert lost.first_offset <= 11
    mend(log, *lost)
    expect_mended(disk, log)


def test_what_turned_good_by_itself_is_mended_all_the_same() -> None:
    disk = closed_log(35)
    flip_batch(disk, 13)
    log = open_log(disk)
    find_damage(log)
    log.sync()
    flip_batch(disk, 13)
    for opened in (log, open_log(disk)):
        assert opened.quarantined == [OffsetRange(13, 14)]
        assert opened.truncate(35) == 35
        assert opened.find_time(NOW_MS + 13) == (NOW_MS + 14, 14)
    log = open_log(disk)
    mend(log, 13, 14)
    expect_mended(disk, log)


def test_a_truncation_finds_its_edge_behind_what_turned_good_by_itself() -> None:
    disk = closed_log(35)
    flip_batch(disk, 13)
    log = open_log(disk)
    find_damage(log)
    log.sync()
    flip_batch(disk, 13)
    flip_batch(disk, 12)
    log = open_log(disk)
    find_damage(log)
    assert log.quarantined == [OffsetRange(12, 13), OffsetRange(13, 14)]
    assert log.truncate(14) == 14
    assert log.quarantined == [OffsetRange(12, 13), OffsetRange(13, 14)]
    assert values(log) == numbered(0, 12)


def test_appending_goes_on_behind_a_mended_end() -> None:
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 25)
    log.sync()
    flip_batch(disk, 24)
    disk.kill()
    log = open_log(disk)
    assert log.quarantined == [OffsetRange(24, 25)]
    fill(log, 3)
    mend(log, 24, 25)
    fill(log, 3)
    for opened in (log, open_log(disk)):
        assert opened.quarantined == []
        assert values(opened) == numbered(0, 31)


def test_what_is_not_synced_yet_is_synced_by_mending() -> None:
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 15)
    flip_batch(disk, 12)
    find_damage(log)
    mend(log, 12, 13)
    assert (log.synced_offset, log.recovery_point) == (15, 15)
    disk.power_cut(random.Random(2))
    assert values(open_log(disk)) == numbered(0, 15)


# --- where nothing is left ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("portion", [10, 4, 1])
@pytest.mark.parametrize("missing", [[0], [10], [30], [10, 20], [0, 10], [20, 30], [0, 10, 20, 30]])
def test_segments_that_are_gone_are_made_anew(missing: list[int], portion: int) -> None:
    disk = closed_log(35)
    for base in missing:
        disk.remove(segment_path(base))
    log = open_log(disk)
    assert log.quarantined == [OffsetRange(missing[0], min(35, missing[-1] + 10))]
    while log.quarantined:
        first, end = log.quarantined[0]
        mend(log, first, min(end, first + portion))
        if first % 3 == 0:
            disk.kill()
            log = open_log(disk)
    for opened in however_opened(disk, log):
        assert opened.quarantined == []
        assert values(opened) == WHOLE
    assert verify_steadily(disk, DIRECTORY, lambda done, total: None).sound
    files = segment_files(disk)
    assert b"".join(files[name] for name in sorted(files)) == good_copy(0, 35)
    assert files == segment_files(closed_log(35))


def test_many_segments_are_mended_at_once() -> None:
    disk = closed_log(35)
    for base in (10, 20):
        disk.remove(segment_path(base))
    log = open_log(disk)
    mend(log, 10, 30)
    expect_mended(disk, log)


@pytest.mark.parametrize("size", [0, 1, 4 * BATCH_BYTES, 4 * BATCH_BYTES + 30, 10 * BATCH_BYTES - 1])
@pytest.mark.parametrize("base", [0, 10])
def test_a_segment_that_lost_its_end_gets_it_back(base: int, size: int) -> None:
    disk = closed_log(35)
    disk.open(segment_path(base)).truncate(size)
    log = open_log(disk)
    [(first, end)] = log.quarantined
    mend(log, first, first + 1)
    if first + 1 < end:
        mend(log, first + 1, end)
    expect_mended(disk, log)


@pytest.mark.parametrize("base", [0, 10, 30])
def test_a_segment_that_is_shortened_under_a_running_broker_gets_its_end_back(base: int) -> None:
    disk = closed_log(35)
    log = open_log(disk)
    disk.open(segment_path(base)).truncate(3 * BATCH_BYTES + 50)
    find_damage(log)
    [(first, end)] = log.quarantined
    mend(log, first, first + 1)
    mend(log, first + 1, end)
    expect_mended(disk, log)


def test_the_end_of_one_segment_and_all_of_the_next_are_mended_in_portions() -> None:
    disk = closed_log(35)
    wipe(disk, 16, 20)
    disk.remove(segment_path(20))
    disk.remove(f"{DIRECTORY}/{10:020d}.index")
    log = open_log(disk)
    [(first, end)] = log.quarantined
    assert (first, end) == (16, 30)
    while first < end:
        mend(log, first, min(end, first + 3))
        first += 3
    expect_mended(disk, log)


# --- the start ----------------------------------------------------------------------------------------------------


def test_a_range_that_reaches_across_the_start_is_mended_from_there() -> None:
    disk = closed_log(35)
    wipe(disk, 13, 17)
    log = open_log(disk)
    find_damage(log)
    [(first, end)] = log.quarantined
    log.advance_start(first + 2)
    mend(log, first + 2, end)
    for opened in however_opened(disk, log):
        assert opened.quarantined == []
        assert values(opened) == numbered(first + 2, 35)


@pytest.mark.parametrize("portion", [20, 3])
def test_lost_segments_below_the_start_are_not_needed(portion: int) -> None:
    disk = closed_log(35)
    disk.remove(segment_path(10))
    disk.remove(segment_path(20))
    log = open_log(disk)
    log.advance_start(17)
    first = 17
    while log.quarantined:
        end = min(30, first + portion)
        mend(log, first, end)
        first = end
    for opened in however_opened(disk, log):
        assert opened.quarantined == []
        assert values(opened) == numbered(17, 35)


def test_a_batch_that_reaches_across_the_start_is_taken() -> None:
    original = SimDisk()
    log = open_log(original)
    append(log, batch(*[b"%d" % n for n in range(6)]), batch(b"6"), batch(b"7"))
    log.advance_start(2)
    log.close()
    copy = stored(open_log(original), first=2)
    disk = original
    disk.remove(segment_path(0))
    log = open_log(disk)
    assert log.quarantined == [OffsetRange(2, 8)]
    assert log.mend(copy, now_ms=NOW_MS) == 8
    for opened in however_opened(disk, log):
        assert opened.quarantined == []
        assert values(opened) == {n: b"%d" % n for n in range(2, 8)}


def test_a_batch_that_reaches_across_the_start_is_not_written_over_a_good_one() -> None:
    disk = closed_log(35)
    disk.remove(segment_path(10))
    log = open_log(disk)
    log.advance_start(10)
    across = restored(9, last_offset_delta=1, record_count=2)
    before = segment_files(disk)
    with pytest.raises(InvalidArgumentError):
        log.mend(across, now_ms=NOW_MS)
    assert segment_files(disk) == before
    mend(log, 10, 20)
    assert values(log) == numbered(10, 35)


def test_damage_below_the_start_is_nobodys_concern() -> None:
    disk = closed_log(35)
    log = open_log(disk)
    log.advance_start(15)
    flip_batch(disk, 12)
    flip_batch(disk, 18)
    find_damage(log)
    assert log.quarantined == [OffsetRange(18, 19)]
    mend(log, 18, 19)
    assert log.quarantined == []


# --- what is refused ----------------------------------------------------------------------------------------------


def restored(offset: int, **changes: Any) -> bytes:
    """The batch of an offset with another header, and a CRC that holds."""
    data = good_copy(offset, offset + 1)
    return pack_batch(parse_header(data)._replace(**changes), data[61:])


REFUSED: Final[dict[str, tuple[Callable[[], Buffer], type[QuireError]]]] = {
    "nothing": (lambda: b"", InvalidArgumentError),
    "wrong CRC": (lambda: good_copy(13, 15)[:-1] + b"\x01", ChecksumMismatchError),
    "cut off": (lambda: good_copy(13, 15)[:-1], MalformedBatchError),
    "trailing bytes": (lambda: good_copy(13, 15) + b"\x00", MalformedBatchError),
    "a gap": (lambda: good_copy(13, 14) + good_copy(15, 16), MalformedBatchError),
    "twice the same": (lambda: good_copy(13, 14) * 2, MalformedBatchError),
    "another leader epoch": (lambda: restored(13, leader_epoch=1), StaleEpochError),
    "a lying count": (lambda: restored(13, record_count=2), MalformedBatchError),
    "an offset that is good": (lambda: good_copy(12, 14), InvalidArgumentError),
    "the middle": (lambda: good_copy(14, 16), InvalidArgumentError),
    "more than is lost": (lambda: good_copy(13, 17), InvalidArgumentError),
    "offsets past the end": (lambda: restored(13, base_offset=40), InvalidArgumentError),
    "offsets elsewhere": (lambda: good_copy(22, 23), InvalidArgumentError),
    "too large a batch": (lambda: restored(13) and enlarged(13), InvalidArgumentError),
    "too small a batch": (lambda: good_copy(13, 15) + enlarged(15, size=10), InvalidArgumentError),
}


def enlarged(offset: int, *, size: int = 3 * BATCH_BYTES) -> bytes:
    """Another batch for an offset."""
    data = batch(bytes(size))
    return pack_batch(parse_header(data)._replace(base_offset=offset, leader_epoch=0), data[61:])


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_copy_of_what_was_lost_is_refused_and_changes_nothing(what: str) -> None:
    make, error = REFUSED[what]
    disk = closed_log(35)
    wipe(disk, 13, 16)
    log = open_log(disk)
    find_damage(log)
    assert log.quarantined == [OffsetRange(13, 16)]
    log.sync()
    before = segment_files(disk)
    with pytest.raises(error):
        log.mend(make(), now_ms=NOW_MS)
    assert segment_files(disk) == before
    assert log.quarantined == [OffsetRange(13, 16)]
    mend(log, 13, 16)
    expect_mended(disk, log)


def test_a_batch_across_the_beginning_of_the_next_segment_is_refused() -> None:
    disk = closed_log(35)
    disk.remove(segment_path(10))
    log = open_log(disk)
    with pytest.raises(InvalidArgumentError):
        log.mend(good_copy(10, 19) + restored(19, last_offset_delta=1, record_count=2), now_ms=NOW_MS)
    mend(log, 10, 20)
    expect_mended(disk, log)


def test_a_batch_across_the_beginning_of_the_next_epoch_is_refused() -> None:
    disk = SimDisk()
    log = open_log(disk)
    append(log, batch(b"a"))
    log.begin_epoch(1)
    append(log, batch(b"b"))
    log.close()
    file = disk.open(segment_path(0))
    file.write(0, [b"\xff" * file.size()])
    log = open_log(disk)
    assert log.quarantined == [] or log.quarantined == [OffsetRange(0, 2)]
    find_damage(log)
    assert log.quarantined == [OffsetRange(0, 2)]
    data = batch(b"a", b"b")
    with pytest.raises(StaleEpochError):
        log.mend(pack_batch(parse_header(data)._replace(leader_epoch=0), data[61:]), now_ms=NOW_MS)


def test_a_good_log_has_nothing_to_mend() -> None:
    log = open_log(closed_log(35))
    with pytest.raises(InvalidArgumentError, match="damaged are none"):
        mend(log, 13, 14)


# --- what a log knows of its batches ------------------------------------------------------------------------------


def damaged_producers(*, lost: int, more: int) -> tuple[SimDisk, bytes]:
    """A killed log of a producer's batches, one of which was damaged before anybody could learn of it."""
    disk = SimDisk()
    log = open_log(disk)
    for sequence in range(lost + 1 + more):
        append(log, batch(b"x", **producer(sequence)))
    log.sync()
    copy = stored(log, first=lost, end=lost + 1)
    disk.kill()
    disk.flip(segment_path(0), len(copy) * lost + 80 if len(copy) > 80 else len(copy) * lost + 65, 0)
    return disk, copy


@pytest.mark.parametrize("more", [0, 1, 4])
def test_producers_learn_what_was_mended(more: int) -> None:
    disk, copy = damaged_producers(lost=3, more=more)
    log = open_log(disk)
    assert log.quarantined == [OffsetRange(3, 4)]
    log.mend(copy, now_ms=NOW_MS)
    for opened in (log, open_log(disk)):
        for sequence in range(max(0, more - 1), 4 + more):
            again = append_one(opened, batch(b"x", **producer(sequence)))
            assert again == Appended(sequence, sequence + 1, duplicate=True)
    assert append_one(log, batch(b"x", **producer(4 + more))) == Appended(4 + more, 5 + more, duplicate=False)


def test_a_truncation_does_not_forget_what_was_mended() -> None:
    disk, copy = damaged_producers(lost=3, more=0)
    log = open_log(disk)  # writes a snapshot that lacks sequence 3
    fill(log, 2)
    log.sync(checkpoint=True)
    fill(log, 2)
    log.sync(checkpoint=True)
    log.mend(copy, now_ms=NOW_MS)
    log.truncate(7)
    log.begin_epoch(1)
    assert append_one(log, batch(b"x", **producer(3))) == Appended(3, 4, duplicate=True)


def test_an_older_producer_epoch_is_not_learned_late() -> None:
    disk = SimDisk()
    log = open_log(disk)
    append(log, batch(b"x", **producer(0)), batch(b"x", **producer(0, epoch=1)))
    log.sync()
    copy = stored(log, first=0, end=1)
    disk.kill()
    disk.flip(segment_path(0), 30, 0)
    log = open_log(disk)
    log.mend(copy, now_ms=NOW_MS)
    assert append_one(log, batch(b"x", **producer(0, epoch=1))) == Appended(1, 2, duplicate=True)


# --- a crash at any step ------------------------------------------------------------------------------------------


Damage = Callable[[SimDisk], None]


def two_wiped_stretches(disk: SimDisk) -> None:
    """Only an index can tell where it goes on behind the first."""
    wipe(disk, 12, 14)
    wipe(disk, 16, 18)


def an_end_and_a_segment(disk: SimDisk) -> None:
    disk.open(segment_path(10)).truncate(5 * BATCH_BYTES + 7)
    disk.remove(segment_path(20))


def one_flipped_bit(disk: SimDisk) -> None:
    flip_batch(disk, 14)


def a_wiped_end(disk: SimDisk) -> None:
    wipe(disk, 33, 35)


def two_segments(disk: SimDisk) -> None:
    disk.remove(segment_path(10))
    disk.remove(segment_path(20))


@pytest.mark.parametrize(
    "harm", [one_flipped_bit, two_wiped_stretches, an_end_and_a_segment, a_wiped_end, two_segments]
)
@pytest.mark.parametrize("how", ["whole", "in part"])
def test_a_crash_in_mending_leaves_what_is_good_and_the_range_damaged_or_mended(harm: Damage, how: str) -> None:
    lost: list[OffsetRange] = []
    copy = b""

    def prepare(disk: SimDisk) -> Log:
        nonlocal copy
        log = open_log(disk)
        fill(log, 35)
        log.close()
        harm(disk)
        disk.sync_dir(DIRECTORY)
        log = open_log(disk)
        find_damage(log)
        log.sync()
        lost[:] = log.quarantined
        first, end = lost[0]
        copy = good_copy(first, end if how == "whole" else first + 1)
        return log

    outcomes = set()
    for done, log in crash_everywhere(prepare, lambda log: log.mend(copy, now_ms=NOW_MS)):
        first, end = lost[0]
        mended_end = end if how == "whole" else first + 1
        rest = [*([OffsetRange(mended_end, end)] if mended_end < end else []), *lost[1:]]
        assert log.quarantined in (lost, rest)
        assert log.quarantined == rest or not done
        outcomes.add(log.quarantined == rest)
        good = dict(WHOLE)
        for damaged in log.quarantined:
            for offset in range(*damaged):
                del good[offset]
        assert values(log) == good
        for offset in good:
            assert log.find_time(NOW_MS + offset) == (NOW_MS + offset, offset)
        # It goes on from wherever it is.
        while log.quarantined:
            mend(log, *log.quarantined[0])
        assert values(log) == WHOLE
        fill(log, 3)
        assert values(log) == numbered(0, 38)
        log.close()
    assert outcomes == {True, False}


def test_mending_can_be_cut_short_again_and_again() -> None:
    for seed in range(60):
        chance = random.Random(seed)
        disk = closed_log(35)
        two_segments(disk) if seed % 2 else an_end_and_a_segment(disk)
        disk.sync_dir(DIRECTORY)
        log = open_log(disk)
        while log.quarantined:
            first, end = log.quarantined[0]
            disk.crash_after(chance.randint(0, 120))
            try:
                mend(log, first, min(end, first + chance.randint(1, 12)))
                disk.crash_after(1 << 30)
            except SimulatedCrash:
                if chance.random() < 0.5:
                    disk.power_cut(chance)
                else:
                    disk.kill()
                log = open_log(disk)
        for opened in however_opened(disk, log):
            assert values(opened) == WHOLE
        assert segment_files(disk) == segment_files(closed_log(35))


# --- disks that refuse --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", [one_flipped_bit, two_wiped_stretches, an_end_and_a_segment, two_segments])
def test_a_full_disk_leaves_the_range_as_it_is_and_loses_nothing(harm: Damage) -> None:
    refused = 0
    for room in (*range(0, 900, 29), *range(900, 9_000, 450)):
        disk = closed_log(35)
        harm(disk)
        log = open_log(disk)
        find_damage(log)
        log.sync()
        first, end = log.quarantined[0]
        good = values(log)
        disk.capacity_bytes = disk.used_bytes() + room
        try:
            mend(log, first, end)
        except DiskFullError:
            refused += 1
            assert log.offline is None
            assert values(log) == good
            assert first in {lost.first_offset for lost in log.quarantined}
            if room % 2:
                disk.kill()
                log = open_log(disk)
                assert values(log) == good
        disk.capacity_bytes = None
        while log.quarantined:
            mend(log, *log.quarantined[0])
        expect_mended(disk, log)
    assert refused > 3


def test_a_full_disk_keeps_nothing_of_what_found_no_room() -> None:
    refused = 0
    for room in range(0, 9_000, 153):
        disk = closed_log(35)
        disk.open(segment_path(10)).truncate(5 * BATCH_BYTES)
        log = open_log(disk)
        disk.capacity_bytes = disk.used_bytes() + room
        try:
            mend(log, 15, 20)
        except DiskFullError:
            refused += 1
        assert sum(map(len, segment_files(disk).values())) == log.size_bytes
    assert refused > 3


def test_what_a_full_disk_left_of_mending_does_not_outlive_a_truncation() -> None:
    for room in (*range(0, 900, 29), *range(900, 9_000, 450)):
        disk = closed_log(35)
        two_segments(disk)
        log = open_log(disk)
        disk.capacity_bytes = disk.used_bytes() + room
        try:
            mend(log, 10, 30)
        except DiskFullError:
            disk.capacity_bytes = None
            log.truncate(10)
            log.begin_epoch(1)
            fill(log, 22)
            log.sync()
            for opened in however_opened(disk, log):
                assert values(opened) == numbered(0, 32)
                assert opened.quarantined == []


@pytest.mark.parametrize("path", [segment_path(10), f"{DIRECTORY}/checkpoint.tmp", DIRECTORY])
def test_a_failed_sync_takes_the_log_offline_and_leaves_the_range_damaged(path: str) -> None:
    disk = closed_log(35)
    flip_batch(disk, 14)
    log = open_log(disk)
    find_damage(log)
    disk.failing_syncs.add(path)
    with pytest.raises((SyncFailedError, LogOfflineError)):
        mend(log, 14, 15)
    assert log.offline is not None
    with pytest.raises(LogOfflineError):
        mend(log, 14, 15)
    disk.power_cut(random.Random(3))
    log = open_log(disk)
    find_damage(log)
    assert log.quarantined == [OffsetRange(14, 15)]
    mend(log, 14, 15)
    expect_mended(disk, log)


def test_a_failed_write_takes_the_log_offline() -> None:
    disk = closed_log(35)
    flip_batch(disk, 14)
    log = open_log(disk)
    find_damage(log)
    disk.failing_writes.add(segment_path(10))
    with pytest.raises(DiskIoError):
        mend(log, 14, 15)
    assert log.offline is not None


class HealingDisk(SimDisk):
    """A sector that cannot be read can be again once it was written, as on a disk that has sectors to spare."""

    healing = True

    def open(self, path: str, *, create: bool = False) -> SimFile:
        file = super().open(path, create=create)
        write = file.write

        def heal(position: int, buffers: Sequence[Buffer]) -> int:
            written = write(position, buffers)
            if self.healing:
                self.failing_reads -= {
                    (bad_path, bad)
                    for bad_path, bad in self.failing_reads
                    if bad_path == path and position <= bad and bad + SECTOR_BYTES <= position + written
                }
            return written

        file.write = heal  # type: ignore[method-assign]  # to see what is written
        return file


@pytest.mark.parametrize("healing", [True, False])
def test_a_sector_that_cannot_be_read_is_written_over(healing: bool) -> None:
    disk = HealingDisk()
    log = Log.open(disk, DIRECTORY, replace(CONFIG, segment_bytes=1 << 20), now_ms=NOW_MS)
    disk.healing = healing
    fill(log, 35)
    log.sync()
    good = stored(log)
    disk.failing_reads.add((segment_path(0), 1024))
    find_damage(log)
    [(first, end)] = log.quarantined
    copy = good[first * BATCH_BYTES : end * BATCH_BYTES]
    if healing:
        log.mend(copy, now_ms=NOW_MS)
        assert values(log) == WHOLE
    else:
        with pytest.raises(DiskIoError):
            log.mend(copy, now_ms=NOW_MS)
        assert log.offline is None
        assert log.quarantined == [OffsetRange(first, end)]
        with pytest.raises(DamagedRangeError):
            log.read(first, bytes_max=1)
