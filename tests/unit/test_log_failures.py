"""What goes wrong in the middle of something: each case was once answered wrongly."""

from __future__ import annotations

import os
import random
import resource
from pathlib import Path
from typing import Final

import pytest

from quire.disk.os_disk import OsDisk
from quire.disk.port import DiskFile
from quire.disk.sim_disk import SimDisk
from quire.errors import DamagedRangeError, DiskFullError, DiskIoError, LogOfflineError, SyncFailedError
from quire.records import BatchBuilder
from quire_broker.log.config import LogConfig
from quire_broker.log.log import Log
from tests.unit.log_crafting import NOW_MS, append, append_one, batch, fill, numbered, producer, values

DIRECTORY: Final = "/log"
ACTIVE: Final = f"{DIRECTORY}/{0:020d}.log"


def open_log(disk: SimDisk, config: LogConfig | None = None) -> Log:
    return Log.open(disk, DIRECTORY, config or LogConfig(), now_ms=NOW_MS)


def test_a_sync_does_not_count_if_another_one_took_its_error() -> None:
    disk = SimDisk()
    log = open_log(disk)
    append(log, batch())
    plan = log.begin_sync()
    assert plan is not None
    # The disk is full, and taking back what was written is told of an error that belongs to the plan's data.
    disk.capacity_bytes = disk.used_bytes() + 10
    disk.failing_syncs.add(ACTIVE)
    assert isinstance(append_one(log, batch()), DiskFullError)
    plan.run()
    log.finish_sync(plan)
    assert log.offline is not None
    assert log.synced_offset == 0


class NoMoreFiles(SimDisk):
    """Runs out of file handles where a directory is to be synced."""

    failing = False

    def sync_dir(self, directory: str) -> None:
        if self.failing:
            raise DiskIoError("cannot open: too many open files", path=directory)
        super().sync_dir(directory)


@pytest.mark.parametrize("operation", ["truncate", "begin_epoch"])
def test_a_checkpoint_that_may_be_in_place_takes_the_log_offline(operation: str) -> None:
    disk = NoMoreFiles()
    log = open_log(disk)
    fill(log, 2)
    log.sync()
    disk.failing = True
    with pytest.raises(DiskIoError):
        log.truncate(0) if operation == "truncate" else log.begin_epoch(9)
    with pytest.raises(LogOfflineError):
        log.append([batch()], epoch=log.latest_epoch, now_ms=NOW_MS)


def test_what_followed_an_unwritten_batch_is_not_called_a_duplicate() -> None:
    disk = SimDisk()
    log = open_log(disk)
    log.begin_epoch(0)
    sent = [batch(**producer(sequence)) for sequence in range(7)]
    newer, older = batch(**producer(0, epoch=1)), batch(**producer(7))
    disk.capacity_bytes = disk.used_bytes()
    outcomes = log.append([*sent, sent[0], newer, older], epoch=0, now_ms=NOW_MS)
    assert all(isinstance(outcome, DiskFullError) for outcome in outcomes)
    assert len(outcomes) == 10
    disk.capacity_bytes = None
    assert [outcome.base_offset for outcome in append(log, *sent)] == list(range(7))


def test_a_limit_within_the_first_batch_gives_nothing_and_does_not_go_back() -> None:
    log = open_log(SimDisk())
    append(log, batch(*[b"x"] * 10))
    batches = log.read(5, bytes_max=1, end_offset=7)
    assert (len(batches.data), batches.base_offset, batches.end_offset) == (0, 5, 5)


def test_a_timestamp_below_the_start_is_not_taken_for_one_above() -> None:
    log = open_log(SimDisk())
    builder = BatchBuilder()
    for timestamp_ms in (NOW_MS + 100, NOW_MS):
        assert builder.append(None, b"x", [], timestamp_ms)
    append(log, builder.build(), batch(timestamp_ms=NOW_MS + 100))
    log.advance_start(1)
    found = log.find_time(NOW_MS + 50)
    assert found is not None
    assert (found.offset, found.timestamp_ms) == (2, NOW_MS + 100)


def test_producers_outlive_the_segments_that_knew_them() -> None:
    disk = SimDisk()
    log = open_log(disk, LogConfig(segment_bytes=400))
    append(log, batch(**producer(0)))
    log.sync()
    fill(log, 6)
    log.advance_start(5)
    disk.kill()
    log = open_log(disk, LogConfig(segment_bytes=400))
    assert append(log, batch(**producer(0)))[0].duplicate
    assert not append(log, batch(**producer(1)))[0].duplicate


def test_a_truncation_reads_little_of_a_long_log() -> None:
    disk = SimDisk()
    config = LogConfig(segment_bytes=2_000, checkpoint_bytes=200)
    log = open_log(disk, config)
    for _ in range(200):
        fill(log, 1)
        log.sync()
    kept = {name for name in disk.names(DIRECTORY) if name.endswith(".producers")}
    assert 3 < len(kept) <= 20
    append(log, batch(**producer(0)))
    log.truncate(150)
    assert log.producers.get(7) is None
    assert values(log) == numbered(0, 150)


def test_a_sector_that_cannot_be_read_is_damage_like_any_other() -> None:
    disk = SimDisk()
    log = open_log(disk, LogConfig(index_interval_bytes=512))
    fill(log, 100)
    log.sync()
    disk.failing_reads.add((ACTIVE, 8192))
    assert log.read(0, bytes_max=1 << 20).end_offset > 0
    found = values(log)
    assert 90 < len(found) < 100
    assert found == {offset: value for offset, value in numbered(0, 100).items() if offset in found}
    [lost] = log.quarantined
    with pytest.raises(DamagedRangeError):
        log.read(lost.first_offset, bytes_max=1)
    assert log.find_time(NOW_MS + 99) == (NOW_MS + 99, 99)
    disk.kill()
    log = open_log(disk, LogConfig(index_interval_bytes=512))
    assert log.end_offset == 100
    assert log.quarantined == [lost]
    assert values(log) == found


def test_retention_goes_on_though_there_is_no_room_for_a_new_segment() -> None:
    class NoNewFiles(SimDisk):
        full = False

        def open(self, path: str, *, create: bool = False) -> DiskFile:  # type: ignore[override]  # as good as a SimFile
            if self.full and path.endswith(".log") and not self.exists(path):
                raise DiskFullError("no room for another file", path=path)
            return super().open(path, create=create)

    disk = NoNewFiles()
    log = Log.open(disk, DIRECTORY, LogConfig(segment_bytes=400, retention_ms=1_000), now_ms=NOW_MS)
    fill(log, 10)
    log.sync()
    segments = log.segment_count
    disk.full = True
    assert log.apply_retention(now_ms=NOW_MS + 10**6) == segments - 1


def test_files_are_let_go_when_opening_fails() -> None:
    disk = SimDisk()
    log = open_log(disk, LogConfig(segment_bytes=400))
    fill(log, 20)
    disk.kill()
    disk.failing_syncs.add(ACTIVE)
    opened: list[DiskFile] = []
    real = disk.open

    def watch(path: str, *, create: bool = False) -> DiskFile:
        file = real(path, create=create)
        opened.append(file)
        return file

    disk.open = watch  # type: ignore[assignment,method-assign]  # to see what is opened
    with pytest.raises((SyncFailedError, LogOfflineError)):
        open_log(disk, LogConfig(segment_bytes=400))
    for file in opened:
        with pytest.raises(DiskIoError, match="closed"):
            file.size()


@pytest.mark.parametrize("lost", ["checkpoint", "producers"])
def test_many_segments_open_with_few_file_handles(tmp_path: Path, lost: str) -> None:
    config = LogConfig(segment_bytes=300)
    log = Log.open(OsDisk(), str(tmp_path), config, now_ms=NOW_MS)
    fill(log, 300)
    log.close()
    for path in tmp_path.iterdir():
        if path.name.endswith(lost):
            path.unlink()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, used + 30), hard))
    try:
        log = Log.open(OsDisk(), str(tmp_path), config, now_ms=NOW_MS)
        assert values(log) == numbered(0, 300)
        log.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_reader_at_the_tail_holds_few_files(tmp_path: Path) -> None:
    log = Log.open(OsDisk(), str(tmp_path), LogConfig(segment_bytes=300, open_files_max=2), now_ms=NOW_MS)
    before = len(os.listdir("/proc/self/fd"))
    offset = 0
    for _ in range(50):
        fill(log, 2)
        log.sync()
        while offset < log.end_offset:
            offset = log.read(offset, bytes_max=1).end_offset
    assert log.segment_count > 20
    assert len(os.listdir("/proc/self/fd")) <= before + 4
    log.close()


def test_not_to_see_a_file_is_no_proof_that_it_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log.open(OsDisk(), str(tmp_path), LogConfig(), now_ms=NOW_MS)
    fill(log, 3)
    log.close()
    real = os.stat

    def stat(path: str, *args: object, **kwargs: object) -> os.stat_result:
        if str(path).endswith("checkpoint"):
            raise OSError(5, "Input/output error")
        return real(path)

    monkeypatch.setattr(os, "stat", stat)
    with pytest.raises(DiskIoError):
        Log.open(OsDisk(), str(tmp_path), LogConfig(), now_ms=NOW_MS)


def test_what_was_taken_back_stays_away_after_a_power_cut() -> None:
    for seed in range(20):
        disk = SimDisk()
        log = open_log(disk)
        fill(log, 1)
        log.sync()
        disk.capacity_bytes = disk.used_bytes() + 300
        outcomes = log.append([batch(b"x" * 100)] * 3, epoch=0, now_ms=NOW_MS)
        assert all(isinstance(outcome, DiskFullError) for outcome in outcomes)
        disk.power_cut(random.Random(seed))
        disk.capacity_bytes = None
        assert open_log(disk).end_offset == 1


def test_damage_found_while_a_sync_is_in_flight_is_written_down_by_the_next() -> None:
    disk = SimDisk()
    log = open_log(disk, LogConfig(checkpoint_bytes=1))
    fill(log, 20)
    plan = log.begin_sync(checkpoint=True)
    assert plan is not None
    assert plan.books is not None
    disk.flip(ACTIVE, 100, 0)
    with pytest.raises(DamagedRangeError):
        log.read(0, bytes_max=1)
    plan.run()
    books = log.finish_sync(plan)
    assert books is not None
    books.run()
    log.finish_books(books)
    log.sync()
    assert b'"quarantined": [[0, 1]]' in disk.open(f"{DIRECTORY}/checkpoint").read(0, 1_000)
