"""Opening a log after everything that can happen to its files, a claim at a time, on the simulated disk."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Final

import pytest

from quire.disk.sim_disk import SimDisk, SimulatedCrash
from quire.errors import (
    DamagedRangeError,
    DiskFullError,
    DiskIoError,
    LogOfflineError,
    SyncFailedError,
)
from quire.records import BatchBuilder, make_prefix, parse_header
from quire_broker.log.appender import Appended
from quire_broker.log.config import LogConfig
from quire_broker.log.log import Log
from quire_broker.log.ranges import OffsetRange
from tests.unit.log_crafting import NOW_MS, append, append_one, batch, fill, numbered, producer, stored, values

DIRECTORY: Final = "/log"
BATCH_BYTES: Final = len(batch(bytes(100)))
CONFIG: Final = LogConfig(
    segment_bytes=10 * BATCH_BYTES, index_interval_bytes=256, checkpoint_bytes=1 << 20, retention_ms=None
)
SEEDS: Final = 4
STEPS_MAX: Final = 200


def open_log(disk: SimDisk) -> Log:
    return Log.open(disk, DIRECTORY, CONFIG, now_ms=NOW_MS)


def closed_log(count: int) -> SimDisk:
    """A disk with a cleanly closed log of `count` batches, ten a segment."""
    disk = SimDisk()
    log = open_log(disk)
    fill(log, count)
    log.close()
    return disk


def segment_path(base_offset: int) -> str:
    return f"{DIRECTORY}/{base_offset:020d}.log"


def flip_batch(disk: SimDisk, offset: int, *, byte: int = 80, bit: int = 0) -> None:
    """Change a bit of the one-record batch with an offset: by default one inside its value."""
    disk.flip(segment_path(offset // 10 * 10), offset % 10 * BATCH_BYTES + byte, bit)


def damaged_at(log: Log, offset: int) -> OffsetRange:
    with pytest.raises(DamagedRangeError) as caught:
        log.read(offset, bytes_max=1)
    assert caught.value.details == {
        "first_offset": str(caught.value.first_offset),
        "end_offset": str(caught.value.end_offset),
    }
    return OffsetRange(caught.value.first_offset, caught.value.end_offset)


# --- a crash at any step ------------------------------------------------------------------------------------------


def cut_power(seed: int, disk: SimDisk) -> None:
    disk.power_cut(random.Random(seed))


def restarts() -> Iterator[Callable[[SimDisk], None]]:
    yield SimDisk.kill
    for seed in range(SEEDS):
        yield partial(cut_power, seed)


def crash_everywhere(prepare: Callable[[SimDisk], Log], act: Callable[[Log], object]) -> Iterator[tuple[bool, Log]]:
    """Crash in each step of `act` in turn, in each way, and yield the log as it opens afterwards.

    The last ones have crashed just after it: the first of the pair tells which.
    """
    for restart in restarts():
        for steps in range(STEPS_MAX):
            disk = SimDisk()
            log = prepare(disk)
            disk.crash_after(steps)
            try:
                act(log)
                done = True
            except SimulatedCrash:
                done = False
            restart(disk)
            yield done, reopened_through_a_crash(disk, restart, steps)
            if done:
                assert steps > 0, "there was no step to crash in"
                break
        else:
            pytest.fail(f"more than {STEPS_MAX} steps")


def reopened_through_a_crash(disk: SimDisk, restart: Callable[[SimDisk], None], steps: int) -> Log:
    """Open, with a crash in the middle of that too."""
    disk.crash_after(steps % 7)
    try:
        log = open_log(disk)
        disk.crash_after(1 << 30)
    except SimulatedCrash:
        restart(disk)
        log = open_log(disk)
    return log


def synced_log(count: int) -> Callable[[SimDisk], Log]:
    def prepare(disk: SimDisk) -> Log:
        log = open_log(disk)
        fill(log, count)
        log.sync()
        return log

    return prepare


def expect_sound(log: Log) -> None:
    """Whatever is there is right, and reading, appending and opening once more work."""
    assert log.quarantined == []
    assert values(log) == numbered(log.start_offset, log.end_offset)
    fill(log, 3)
    assert values(log) == numbered(log.start_offset, log.end_offset)


def test_a_crash_in_a_truncation_leaves_the_old_end_or_the_new() -> None:
    for done, log in crash_everywhere(synced_log(35), lambda log: log.truncate(14)):
        assert log.end_offset == 14 if done else log.end_offset in (14, 35)
        assert log.start_offset == 0
        expect_sound(log)


def test_a_crash_in_a_reset_leaves_the_old_log_or_an_empty_one() -> None:
    for done, log in crash_everywhere(synced_log(25), lambda log: log.reset(1_000)):
        bounds = (log.start_offset, log.end_offset)
        assert bounds == (1_000, 1_000) if done else bounds in ((0, 25), (1_000, 1_000))
        expect_sound(log)


def test_a_crash_in_advancing_the_start_loses_nothing_above_it() -> None:
    for done, log in crash_everywhere(synced_log(35), lambda log: log.advance_start(23)):
        assert log.start_offset == 23 if done else log.start_offset in (0, 23)
        assert log.end_offset == 35
        expect_sound(log)


def test_a_start_above_what_was_synced_is_never_above_the_end() -> None:
    def prepare(disk: SimDisk) -> Log:
        log = synced_log(12)(disk)
        fill(log, 20)
        return log

    for done, log in crash_everywhere(prepare, lambda log: log.advance_start(27)):
        assert 12 <= log.end_offset <= 32
        assert log.start_offset in (0, 27)
        assert log.start_offset <= log.end_offset
        assert (log.start_offset, log.end_offset) == (27, 32) or not done
        expect_sound(log)


def test_a_crash_in_rolling_and_syncing_keeps_what_was_synced_before() -> None:
    def act(log: Log) -> None:
        fill(log, 15)
        log.sync()

    for done, log in crash_everywhere(synced_log(17), act):
        assert 17 <= log.end_offset <= 32
        assert log.end_offset == 32 or not done
        expect_sound(log)


def test_a_crash_in_closing_keeps_what_was_synced_before() -> None:
    def prepare(disk: SimDisk) -> Log:
        log = synced_log(17)(disk)
        fill(log, 5)
        return log

    for done, log in crash_everywhere(prepare, Log.close):
        assert 17 <= log.end_offset <= 22
        assert log.end_offset == 22 or not done
        expect_sound(log)


def test_a_crash_in_beginning_an_epoch_leaves_the_old_one_or_the_new() -> None:
    def act(log: Log) -> None:
        log.begin_epoch(5)
        fill(log, 2)
        log.sync()

    for done, log in crash_everywhere(synced_log(12), act):
        assert log.latest_epoch in (0, 5)
        assert (log.latest_epoch, log.end_offset) == (5, 14) or not done
        expect_sound(log)


def test_a_crash_in_the_first_opening_leaves_an_empty_log() -> None:
    for restart in restarts():
        for steps in range(12):
            disk = SimDisk()
            disk.crash_after(steps)
            with contextlib.suppress(SimulatedCrash):
                open_log(disk)
            restart(disk)
            log = open_log(disk)
            assert (log.start_offset, log.end_offset, log.recovery.missing) == (0, 0, [])
            expect_sound(log)


def test_what_was_cut_off_does_not_come_back_behind_later_appends() -> None:
    for seed in range(40):
        disk = SimDisk()
        log = synced_log(9)(disk)
        log.truncate(3)
        append(log, batch(b"other"))
        disk.power_cut(random.Random(seed))
        log = open_log(disk)
        assert log.end_offset in (3, 4)
        assert values(log) == {**numbered(0, 3), 3: b"other"} if log.end_offset == 4 else numbered(0, 3)


# --- the tail -----------------------------------------------------------------------------------------------------


def test_a_power_cut_cuts_the_torn_tail_at_a_batch_and_keeps_what_was_synced() -> None:
    torn = 0
    for seed in range(100):
        disk = SimDisk()
        log = synced_log(3)(disk)
        fill(log, 5)
        disk.power_cut(random.Random(seed))
        log = open_log(disk)
        assert 3 <= log.end_offset <= 8
        torn += log.recovery.torn is not None
        expect_sound(log)
    assert torn > 10, "the tail was hardly ever torn"


def test_junk_after_the_end_is_cut_off() -> None:
    disk = closed_log(5)
    file = disk.open(segment_path(0))
    file.write(file.size(), [b"junk" * 50])
    log = open_log(disk)
    assert log.recovery.torn is not None
    assert (log.recovery.torn.offset, log.recovery.torn.position) == (5, 5 * BATCH_BYTES)
    assert file.size() == 5 * BATCH_BYTES
    assert log.end_offset == 5
    expect_sound(log)


def test_junk_after_a_sealed_segment_is_not_looked_at() -> None:
    disk = closed_log(25)
    file = disk.open(segment_path(0))
    file.write(file.size(), [b"junk" * 50])
    log = open_log(disk)
    assert log.end_offset == 25
    expect_sound(log)


def test_damage_that_nobody_was_promised_is_a_torn_tail() -> None:
    disk = SimDisk()
    log = synced_log(3)(disk)
    fill(log, 2)
    flip_batch(disk, 4)
    disk.kill()
    log = open_log(disk)
    assert log.recovery.torn is not None
    assert log.end_offset == 4
    expect_sound(log)


def test_damage_past_the_recovery_point_that_was_acknowledged_is_no_torn_tail() -> None:
    disk = SimDisk()
    log = synced_log(5)(disk)
    assert log.recovery_point == 0
    flip_batch(disk, 4)
    disk.kill()
    log = open_log(disk)
    assert log.recovery.torn is None
    assert (log.end_offset, log.quarantined) == (5, [OffsetRange(4, 5)])
    assert damaged_at(log, 4) == (4, 5)
    fill(log, 1)
    assert values(log) == {**numbered(0, 4), **numbered(5, 6)}


# --- damage -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("byte", [3, 7, 10, 11, 13, 15, 16, 18, 22, 26, 30, 60, 61, 80, BATCH_BYTES - 1])
@pytest.mark.parametrize("offset", [0, 4, 9, 13, 21, 23])
def test_one_flipped_bit_costs_one_batch(offset: int, byte: int) -> None:
    disk = closed_log(25)
    flip_batch(disk, offset, byte=byte)
    log = open_log(disk)
    expected = numbered(0, 25)
    del expected[offset]
    assert values(log) == expected
    assert log.quarantined == [OffsetRange(offset, offset + 1)]
    assert damaged_at(log, offset) == (offset, offset + 1)


@pytest.mark.parametrize(
    ("base", "when"), [(0, "running"), (10, "running"), (20, "running"), (0, "opening"), (10, "opening")]
)
def test_no_flips_lead_past_the_end_of_a_segment_that_is_known(base: int, when: str) -> None:
    config = replace(CONFIG, index_interval_bytes=1 << 20)
    disk = SimDisk()
    log = Log.open(disk, DIRECTORY, config, now_ms=NOW_MS)
    fill(log, 30)
    log.close()
    log = Log.open(disk, DIRECTORY, config, now_ms=NOW_MS)
    for offset in range(base + 6, base + 10):  # the last ones, which all claim to be higher by as much
        flip_batch(disk, offset, byte=6)
    if when == "opening":
        disk.remove(segment_path(base).replace(".log", ".index"))
        log = Log.open(disk, DIRECTORY, config, now_ms=NOW_MS)
    assert values(log) == {n: value for n, value in numbered(0, 30).items() if not base + 6 <= n < base + 10}
    assert log.end_offset == 30
    assert log.quarantined == [OffsetRange(base + 6, base + 10)]


def test_quarantine_is_remembered() -> None:
    disk = closed_log(25)
    flip_batch(disk, 13)
    log = open_log(disk)
    damaged_at(log, 13)
    log.close()
    log = open_log(disk)
    assert log.quarantined == [OffsetRange(13, 14)]
    assert log.recovery.damaged == []
    assert damaged_at(log, 13) == (13, 14)


def test_time_lookups_pass_over_damage() -> None:
    disk = closed_log(25)
    flip_batch(disk, 13)
    found = open_log(disk).find_time(NOW_MS + 13)
    assert found == (NOW_MS + 14, 14)


def test_truncating_into_damage_removes_it_whole() -> None:
    disk = closed_log(25)
    flip_batch(disk, 13)
    flip_batch(disk, 14)
    log = open_log(disk)
    assert log.truncate(14) <= 14
    assert values(log) == numbered(0, 13)
    log.truncate(13)
    assert log.quarantined == []
    expect_sound(log)


def test_advancing_past_damage_forgets_it() -> None:
    disk = closed_log(25)
    flip_batch(disk, 13)
    log = open_log(disk)
    damaged_at(log, 13)
    log.advance_start(14)
    assert log.quarantined == []
    expect_sound(log)


def test_a_missing_segment_is_a_damaged_range() -> None:
    disk = closed_log(35)
    disk.remove(segment_path(10))
    log = open_log(disk)
    assert log.recovery.missing == [OffsetRange(10, 20)]
    assert log.quarantined == [OffsetRange(10, 20)]
    assert damaged_at(log, 15) == (10, 20)
    assert values(log) == {**numbered(0, 10), **numbered(20, 35)}
    fill(log, 3)
    log.close()
    assert values(open_log(disk)) == {**numbered(0, 10), **numbered(20, 38)}


def test_a_missing_last_segment_is_a_damaged_range_and_appending_goes_on_behind_it() -> None:
    disk = closed_log(35)
    disk.remove(segment_path(30))
    log = open_log(disk)
    assert log.quarantined == [OffsetRange(30, 35)]
    assert log.end_offset == 35
    fill(log, 3)
    assert values(log) == {**numbered(0, 30), **numbered(35, 38)}


def test_all_segments_missing_is_one_damaged_range() -> None:
    disk = closed_log(25)
    for base in (0, 10, 20):
        disk.remove(segment_path(base))
    log = open_log(disk)
    assert (log.end_offset, log.quarantined) == (25, [OffsetRange(0, 25)])
    fill(log, 3)
    assert values(log) == numbered(25, 28)


@pytest.mark.parametrize("size", [0, 1, 4 * BATCH_BYTES, 4 * BATCH_BYTES + 30, 10 * BATCH_BYTES - 1])
def test_a_sealed_segment_that_is_too_short_has_lost_its_end(size: int) -> None:
    disk = closed_log(35)
    disk.open(segment_path(10)).truncate(size)
    log = open_log(disk)
    whole = 10 + size // BATCH_BYTES
    assert log.quarantined == [OffsetRange(whole, 20)]
    assert values(log) == {**numbered(0, whole), **numbered(20, 35)}


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_that_is_gone_is_made_anew(suffix: str) -> None:
    disk = closed_log(35)
    disk.remove(segment_path(10).replace(".log", suffix))
    log = open_log(disk)
    assert log.recovery.rebuilt == [segment_path(10)]
    assert log.find_time(NOW_MS + 17) == (NOW_MS + 17, 17)
    expect_sound(log)
    log.close()
    assert open_log(disk).recovery.rebuilt == []


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_no_flip_in_an_index_misleads_anyone(suffix: str) -> None:
    path = segment_path(10).replace(".log", suffix)
    for position in range(closed_log(35).open(path).size()):
        disk = closed_log(35)
        disk.flip(path, position, position % 8)
        log = open_log(disk)
        for offset in range(10, 20):
            assert log.read(offset, bytes_max=1).base_offset == offset
            assert log.find_time(NOW_MS + offset) == (NOW_MS + offset, offset)
        expect_sound(log)


def test_a_damaged_snapshot_of_producers_is_replaced_by_a_longer_replay() -> None:
    disk = SimDisk()
    log = open_log(disk)
    for sequence in range(25):
        append(log, batch(b"x", **producer(sequence)))
        if sequence % 10 == 9:
            log.sync(checkpoint=True)
    log.close()
    newest = [name for name in disk.names(DIRECTORY) if name.endswith(".producers")][-1]
    disk.flip(f"{DIRECTORY}/{newest}", 70, 3)
    log = open_log(disk)
    log.begin_epoch(1)
    assert append_one(log, batch(b"x", **producer(24))) == Appended(24, 25, duplicate=True)
    assert append_one(log, batch(b"x", **producer(25))) == Appended(25, 26, duplicate=False)


# --- look-alikes --------------------------------------------------------------------------------------------------


def look_alike(base_offset: int) -> bytes:
    """A whole batch that checks, as it would be stored at an offset."""
    inner = batch(b"forged")
    return make_prefix(base_offset=base_offset, length=parse_header(inner).length, leader_epoch=0) + inner[16:]


def two_records(*, value: bytes = b"first", header: bytes = b"") -> bytes:
    builder = BatchBuilder()
    builder.append(None, value, [], NOW_MS)
    builder.append(None, b"second", [("h", header)], NOW_MS)
    return builder.build()


def ending_where_a_flipped_length_leads(bit: int) -> bytes:
    """A batch whose last 2**bit bytes begin with a look-alike of the batch behind it."""
    return two_records(header=b"a" * 700 + look_alike(4).ljust(1 << bit, b"b"))


CARRIERS: Final = {
    "in a value": two_records(value=b"a" * 300 + look_alike(3) + b"b" * 300),
    "in a value, and the next offset behind it": two_records(
        value=b"a" * 300 + look_alike(3) + (4).to_bytes(8, "big") + b"b" * 50
    ),
    "at the end of its carrier": two_records(header=b"a" * 300 + look_alike(3)),
    "at the end of its carrier, as the next one": two_records(header=b"a" * 300 + look_alike(4)),
    "far above": two_records(value=b"a" * 300 + look_alike(1 << 30) + ((1 << 30) + 1).to_bytes(8, "big")),
    "where bit 8 of the length leads": ending_where_a_flipped_length_leads(8),
    "where bit 9 of the length leads": ending_where_a_flipped_length_leads(9),
}
"""Batches of two records, for offset 2, with another batch inside."""


HEADER_BITS: Final = [(byte, bit) for byte in range(61) for bit in (range(8) if 8 <= byte < 12 else [byte % 8])]
"""Some of every byte of a header, and all of its length."""


@pytest.mark.parametrize("interval_bytes", [256, 1 << 20], ids=["indexed", "unindexed"])
@pytest.mark.parametrize("behind", [0, 1, 30], ids="{}-behind".format)
@pytest.mark.parametrize("where", CARRIERS)
def test_a_batch_inside_a_record_is_never_served_as_one(where: str, behind: int, interval_bytes: int) -> None:
    config = replace(CONFIG, index_interval_bytes=interval_bytes)
    closed = SimDisk()
    log = Log.open(closed, DIRECTORY, config, now_ms=NOW_MS)
    fill(log, 2)
    append(log, CARRIERS[where])
    fill(log, behind)
    log.close()
    for byte, bit in HEADER_BITS:
        disk = deepcopy(closed)
        disk.flip(segment_path(0), 2 * BATCH_BYTES + byte, bit)
        log = Log.open(disk, DIRECTORY, config, now_ms=NOW_MS)
        assert values(log) == {**numbered(0, 2), **numbered(4, 4 + behind)}, (byte, bit)
        assert log.quarantined == [OffsetRange(2, 4)]


def test_very_many_look_alikes_do_not_hide_the_next_batch() -> None:
    disk = SimDisk()
    log = Log.open(disk, DIRECTORY, LogConfig(retention_ms=None), now_ms=NOW_MS)
    append(log, batch((bytes(16) + b"\x02") * 60_000), batch(b"behind"))
    log.close()
    disk.flip(segment_path(0), 10, 0)
    log = Log.open(disk, DIRECTORY, LogConfig(retention_ms=None), now_ms=NOW_MS)
    assert values(log) == {1: b"behind"}


# --- the checkpoint -----------------------------------------------------------------------------------------------


def log_of_three_epochs() -> SimDisk:
    disk = SimDisk()
    log = open_log(disk)
    for epoch in (2, 3, 7):
        log.begin_epoch(epoch)
        fill(log, 12)
    log.close()
    return disk


EPOCHS: Final = [(2, 0), (3, 12), (7, 24)]


def test_without_its_checkpoint_a_log_keeps_everything() -> None:
    disk = log_of_three_epochs()
    disk.remove(f"{DIRECTORY}/checkpoint")
    log = open_log(disk)
    assert log.recovery.distrusted is not None
    assert list(log.epochs) == EPOCHS
    assert (log.start_offset, log.end_offset) == (0, 36)
    expect_sound(log)


def test_no_flip_in_the_checkpoint_costs_a_record() -> None:
    for position in range(log_of_three_epochs().open(f"{DIRECTORY}/checkpoint").size()):
        disk = log_of_three_epochs()
        disk.flip(f"{DIRECTORY}/checkpoint", position, position % 8)
        log = open_log(disk)
        assert log.recovery.distrusted is not None
        assert list(log.epochs) == EPOCHS
        assert log.end_offset == 36
        expect_sound(log)


def test_no_flip_in_the_synced_mark_costs_a_record() -> None:
    for position in range(12):
        disk = closed_log(25)
        disk.flip(f"{DIRECTORY}/synced", position, position % 8)
        log = open_log(disk)
        assert log.end_offset == 25
        expect_sound(log)


def test_without_a_checkpoint_a_lower_epoch_amid_a_higher_one_is_the_outlier() -> None:
    disk = log_of_three_epochs()
    flip_batch(disk, 15, byte=15)  # 3 becomes 2
    disk.remove(f"{DIRECTORY}/checkpoint")
    log = open_log(disk)
    assert list(log.epochs) == EPOCHS
    assert log.quarantined == [OffsetRange(15, 16)]


@pytest.mark.parametrize("offset", [0, 5, 11, 12, 15, 23, 24, 30])
def test_without_a_checkpoint_a_higher_epoch_amid_a_lower_one_is_the_outlier(offset: int) -> None:
    disk = log_of_three_epochs()
    flip_batch(disk, offset, byte=15, bit=4)
    disk.remove(f"{DIRECTORY}/checkpoint")
    log = open_log(disk)
    assert [epoch for epoch, _ in log.epochs] == [epoch for epoch, _ in EPOCHS]
    assert log.quarantined == [OffsetRange(offset, offset + 1)]


def test_a_distrusted_log_is_trusted_again_once_it_was_opened() -> None:
    disk = closed_log(25)
    disk.remove(f"{DIRECTORY}/checkpoint")
    open_log(disk)
    disk.power_cut(random.Random(0))
    log = open_log(disk)
    assert log.recovery.distrusted is None
    assert log.end_offset == 25
    expect_sound(log)


# --- syncs that fail ----------------------------------------------------------------------------------------------


def everything_refused(log: Log) -> None:
    for call in (
        lambda: log.read(0, bytes_max=1),
        lambda: log.find_time(NOW_MS),
        lambda: log.append([batch()], epoch=0, now_ms=NOW_MS),
        lambda: log.append_stored(b"", now_ms=NOW_MS),
        lambda: log.begin_epoch(9),
        log.begin_sync,
        log.sync,
        lambda: log.truncate(0),
        lambda: log.reset(0),
        lambda: log.advance_start(0),
        lambda: log.apply_retention(now_ms=NOW_MS),
    ):
        with pytest.raises(LogOfflineError):
            call()


def test_a_failed_sync_takes_the_log_offline_and_is_not_tried_again() -> None:
    disk = SimDisk()
    log = synced_log(3)(disk)
    fill(log, 2)
    disk.failing_syncs.add(segment_path(0))
    plan = log.begin_sync()
    assert plan is not None
    plan.run()
    assert isinstance(plan.error, SyncFailedError)
    log.finish_sync(plan)
    assert log.synced_offset == 3
    assert log.offline is not None
    assert log.offline.details == {"cause": "SYNC_FAILED"}
    syncs = disk.syncs
    everything_refused(log)
    log.close()
    assert disk.syncs == syncs

    log = open_log(disk)
    assert log.end_offset >= 3
    expect_sound(log)


def test_after_a_failed_sync_opening_makes_durable_what_it_serves() -> None:
    for seed in range(20):
        disk = SimDisk()
        log = synced_log(3)(disk)
        fill(log, 2)
        disk.failing_syncs.add(segment_path(0))
        with pytest.raises(LogOfflineError):
            log.sync()
        end = open_log(disk).end_offset
        disk.power_cut(random.Random(seed))
        assert open_log(disk).end_offset == end


@pytest.mark.parametrize("path", [DIRECTORY, f"{DIRECTORY}/checkpoint.tmp"])
def test_a_failed_sync_of_a_checkpoint_takes_the_log_offline(path: str) -> None:
    disk = SimDisk()
    log = synced_log(3)(disk)
    disk.failing_syncs.add(path)
    with pytest.raises(SyncFailedError):
        log.begin_epoch(1)
    everything_refused(log)
    expect_sound(open_log(disk))


def test_a_failed_write_takes_the_log_offline() -> None:
    disk = SimDisk()
    log = synced_log(3)(disk)
    disk.failing_writes.add(segment_path(0))
    outcomes = log.append([batch(), batch()], epoch=0, now_ms=NOW_MS)
    assert [type(outcome) for outcome in outcomes] == [DiskIoError, DiskIoError]
    everything_refused(log)
    disk.failing_writes.clear()
    expect_sound(open_log(disk))


# --- a full disk --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("room", range(0, 4 * BATCH_BYTES, 37))
def test_a_full_disk_leaves_nothing_torn(room: int) -> None:
    disk = SimDisk()
    log = synced_log(8)(disk)
    disk.capacity_bytes = disk.used_bytes() + room
    outcomes = log.append([batch(bytes(100)) for _ in range(4)], epoch=0, now_ms=NOW_MS)
    assert any(isinstance(outcome, DiskFullError) for outcome in outcomes)
    assert log.end_offset == 8 + sum(isinstance(outcome, Appended) for outcome in outcomes)
    sizes = [disk.open(f"{DIRECTORY}/{name}").size() for name in disk.names(DIRECTORY) if name.endswith(".log")]
    assert sum(sizes) == log.size_bytes == log.end_offset * BATCH_BYTES
    stored(log)

    disk.capacity_bytes = None
    log.truncate(8)
    log.begin_epoch(1)
    fill(log, 30)
    expect_sound(log)
    log.close()
    expect_sound(open_log(disk))


def test_a_retry_after_a_full_disk_is_no_duplicate() -> None:
    disk = SimDisk()
    log = synced_log(3)(disk)
    disk.capacity_bytes = disk.used_bytes()
    sent = batch(b"x", **producer(0))
    assert [type(o) for o in log.append([sent, sent], epoch=0, now_ms=NOW_MS)] == [DiskFullError] * 2
    disk.capacity_bytes = None
    assert append_one(log, sent) == Appended(3, 4, duplicate=False)


def test_without_room_for_a_checkpoint_data_is_synced_all_the_same() -> None:
    disk = SimDisk()
    log = synced_log(8)(disk)
    fill(log, 10)
    disk.capacity_bytes = disk.used_bytes() + 12
    log.sync(checkpoint=True)
    assert isinstance(log.books_error, DiskFullError)
    assert log.synced_offset == 18
    disk.capacity_bytes = None
    fill(log, 1)
    log.sync()
    assert log.books_error is None
    assert log.recovery_point == 19


def test_a_full_disk_can_be_emptied_from_the_front() -> None:
    disk = closed_log(35)
    log = open_log(disk)
    disk.capacity_bytes = disk.used_bytes()
    log.advance_start(23)
    assert (log.start_offset, log.segment_count) == (23, 2)
    expect_sound(log)


def test_a_log_opens_on_a_full_disk() -> None:
    disk = SimDisk()
    synced_log(35)(disk)
    disk.kill()
    disk.capacity_bytes = disk.used_bytes()
    log = open_log(disk)
    assert log.end_offset == 35
    assert values(log) == numbered(0, 35)
    disk.capacity_bytes = None
    log.close()
    assert open_log(disk).recovery.scanned_bytes <= BATCH_BYTES * 10
