"""Many writers of one log, on real files: shared writes and syncs, flush policies, limits, failures."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from quire.disk.os_disk import OsDisk, OsFile
from quire.errors import (
    ChecksumMismatchError,
    DiskIoError,
    LogBusyError,
    LogOfflineError,
    OutcomeUnknownError,
    StaleEpochError,
    SyncFailedError,
)
from quire.records import encode_columns
from quire.types import Buffer
from quire_broker.log.config import FlushPolicy, LogConfig
from quire_broker.log.log import Log
from quire_broker.runtime.log_writer import LogWriter, Stored

EPOCH = 1


class WatchedFile:
    """Counts writes and syncs, holds syncs back, or lets them fail."""

    def __init__(self, disk: WatchedDisk, file: OsFile, path: str) -> None:
        self._disk = disk
        self._is_data = path.endswith(".log")
        self._file = file
        self.size = file.size
        self.read = file.read
        self.truncate = file.truncate
        self.close = file.close

    def write(self, position: int, buffers: Sequence[Buffer]) -> int:
        self._disk.writes += 1
        return self._file.write(position, buffers)

    def sync(self) -> None:
        self._disk.syncs += 1
        if not (self._disk.holds_books_only and self._is_data):
            self._disk.gate.wait()
        if self._disk.failing:
            raise SyncFailedError("the disk is gone", path="x")
        self._file.sync()

    @property
    def descriptor(self) -> int | None:
        return None  # or it would be synced behind our back


class WatchedDisk(OsDisk):
    def __init__(self) -> None:
        self.writes = self.syncs = 0
        self.failing = False
        self.holds_books_only = False
        """Only what is not a segment is held back."""
        self.gate = threading.Event()
        self.gate.set()

    def open(self, path: str, *, create: bool = False) -> WatchedFile:  # type: ignore[override]  # as good as an OsFile
        return WatchedFile(self, super().open(path, create=create), path)


@pytest.fixture
def disk() -> Iterator[WatchedDisk]:
    disk = WatchedDisk()
    yield disk
    disk.gate.set()  # whatever a failed test left waiting


@asynccontextmanager
async def writer_on(
    disk: WatchedDisk, directory: Path, *, flush: str = "fsync", waiting_bytes_max: int = 1 << 20, **config: int
) -> AsyncIterator[LogWriter]:
    log = Log.open(disk, str(directory), LogConfig(flush=FlushPolicy.parse(flush), **config), now_ms=1)
    with ThreadPoolExecutor(2) as pool:
        writer = LogWriter(log, pool=pool, now_ms=lambda: 1_000, waiting_bytes_max=waiting_bytes_max)
        await writer.exclusively(lambda log: log.begin_epoch(EPOCH))
        try:
            yield writer
        finally:
            disk.gate.set()
            await writer.close()


async def until(condition: Callable[[], bool]) -> None:
    """Let others run until something is the case."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  # the log under test has no event to wait for
            await asyncio.sleep(0)


def batch(value: bytes = b"x", count: int = 1) -> bytes:
    return encode_columns([value] * count, timestamp_ms=1_000)


async def test_sixteen_writers_share_their_syncs(disk: WatchedDisk, tmp_path: Path) -> None:
    async with writer_on(disk, tmp_path) as writer:
        syncs_before = disk.syncs

        async def write(count: int) -> list[int]:
            offsets = []
            for _ in range(count):
                (stored,) = await writer.append([batch()], epoch=EPOCH)
                assert isinstance(stored, Stored)
                assert stored.fsynced
                assert writer.log.synced_offset >= stored.end_offset
                offsets.append(stored.base_offset)
            return offsets

        offsets = await asyncio.gather(*(write(50) for _ in range(16)))
        assert sorted(offset for own in offsets for offset in own) == list(range(16 * 50))
        assert all(own == sorted(own) for own in offsets)
        assert disk.syncs - syncs_before <= 16 * 50 / 4


async def test_what_is_queued_goes_out_in_one_write(disk: WatchedDisk, tmp_path: Path) -> None:
    async with writer_on(disk, tmp_path, flush="os") as writer:
        writes_before = disk.writes
        await asyncio.gather(*(writer.append([batch()] * 3, epoch=EPOCH) for _ in range(20)))
        assert disk.writes - writes_before == 1
        assert writer.log.end_offset == 60


async def test_fsync_answers_only_what_is_synced(disk: WatchedDisk, tmp_path: Path) -> None:
    async with writer_on(disk, tmp_path) as writer:
        disk.gate.clear()
        first = asyncio.ensure_future(writer.append([batch()], epoch=EPOCH))
        await until(lambda: writer.log.syncing)
        second = asyncio.ensure_future(writer.append([batch()], epoch=EPOCH))
        await until(lambda: writer.log.end_offset == 2)
        assert not first.done()
        assert not second.done()
        disk.gate.set()
        assert await first == [Stored(0, 1, duplicate=False, fsynced=True)]
        assert await second == [Stored(1, 2, duplicate=False, fsynced=True)]


async def test_a_retry_waits_for_the_sync_of_its_original(disk: WatchedDisk, tmp_path: Path) -> None:
    async with writer_on(disk, tmp_path) as writer:
        sent = encode_columns([b"x"], timestamp_ms=1, producer_id=5, producer_epoch=0, base_sequence=0)
        disk.gate.clear()
        original = asyncio.ensure_future(writer.append([sent], epoch=EPOCH))
        await until(lambda: writer.log.syncing)
        retry = asyncio.ensure_future(writer.append([sent], epoch=EPOCH))
        await until(lambda: writer.waiting_bytes == 2 * len(sent))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not retry.done()
        disk.gate.set()
        assert await original == [Stored(0, 1, duplicate=False, fsynced=True)]
        assert await retry == [Stored(0, 1, duplicate=True, fsynced=True)]


async def test_os_answers_at_once_and_syncs_when_a_segment_is_full(disk: WatchedDisk, tmp_path: Path) -> None:
    async with writer_on(disk, tmp_path, flush="os", segment_bytes=1_000) as writer:
        assert await writer.append([batch()], epoch=EPOCH) == [Stored(0, 1, duplicate=False, fsynced=False)]
        assert not writer.log.syncing
        assert writer.log.synced_offset == 0
        while writer.log.segment_count == 1:
            await writer.append([batch(b"x" * 200)], epoch=EPOCH)
        await until(lambda: writer.log.synced_offset > 0)


async def test_interval_answers_at_once_and_syncs_soon(disk: WatchedDisk, tmp_path: Path) -> None:
    async with writer_on(disk, tmp_path, flush="interval(5)") as writer:
        assert await writer.append([batch()], epoch=EPOCH) == [Stored(0, 1, duplicate=False, fsynced=False)]
        await until(lambda: writer.log.synced_offset == 1)


async def test_a_bad_batch_does_not_keep_others_out(disk: WatchedDisk, tmp_path: Path) -> None:
    async with writer_on(disk, tmp_path) as writer:
        damaged = bytearray(batch())
        damaged[-1] ^= 1
        answers = await asyncio.gather(
            writer.append([batch(), damaged], epoch=EPOCH), writer.append([batch()], epoch=EPOCH)
        )
        assert answers[0][0] == Stored(0, 1, duplicate=False, fsynced=True)
        assert isinstance(answers[0][1], ChecksumMismatchError)
        assert answers[1] == [Stored(1, 2, duplicate=False, fsynced=True)]


async def test_a_deposed_leader_is_told_so_and_the_new_one_is_not_held_up(disk: WatchedDisk, tmp_path: Path) -> None:
    async with writer_on(disk, tmp_path) as writer:
        old, new = await asyncio.gather(
            writer.append([batch()], epoch=EPOCH - 1),
            writer.append([batch()], epoch=EPOCH),
            return_exceptions=True,
        )
        assert isinstance(old, StaleEpochError)
        assert new == [Stored(0, 1, duplicate=False, fsynced=True)]


async def test_more_than_may_wait_is_refused_and_later_taken(disk: WatchedDisk, tmp_path: Path) -> None:
    large = batch(b"x" * 600)
    async with writer_on(disk, tmp_path, waiting_bytes_max=1_000) as writer:
        disk.gate.clear()
        waiting = asyncio.ensure_future(writer.append([large], epoch=EPOCH))
        await until(lambda: writer.log.syncing)
        with pytest.raises(LogBusyError) as refused:
            await writer.append([large], epoch=EPOCH)
        assert refused.value.retry_after_ms
        disk.gate.set()
        await waiting
        assert writer.waiting_bytes == 0
        assert len(await writer.append([large], epoch=EPOCH)) == 1


async def test_a_failed_sync_answers_everyone_and_takes_the_log_offline(disk: WatchedDisk, tmp_path: Path) -> None:
    async with writer_on(disk, tmp_path) as writer:
        assert await writer.append([batch()], epoch=EPOCH)
        disk.failing = True
        answers = await asyncio.gather(
            *(writer.append([batch()], epoch=EPOCH) for _ in range(4)), return_exceptions=True
        )
        assert all(isinstance(answer, SyncFailedError) for answer in answers)
        syncs = disk.syncs
        with pytest.raises(LogOfflineError):
            await writer.append([batch()], epoch=EPOCH)
        with pytest.raises(LogOfflineError):
            await writer.sync()
        with pytest.raises(LogOfflineError):
            writer.log.read(0, bytes_max=1)
        assert disk.syncs == syncs, "a failed sync is never tried again"
        assert writer.waiting_bytes == 0
    disk.failing = False
    reopened = Log.open(disk, str(tmp_path), LogConfig(), now_ms=1)
    assert reopened.end_offset >= 1
    reopened.close()


async def test_whoever_is_cancelled_leaves_no_trace_but_the_record(disk: WatchedDisk, tmp_path: Path) -> None:
    async with writer_on(disk, tmp_path) as writer:
        disk.gate.clear()
        cancelled = asyncio.ensure_future(writer.append([batch()], epoch=EPOCH))
        await until(lambda: writer.log.syncing)
        cancelled.cancel()
        other = asyncio.ensure_future(writer.append([batch()], epoch=EPOCH))
        disk.gate.set()
        assert await other == [Stored(1, 2, duplicate=False, fsynced=True)]
        assert cancelled.cancelled()
        assert writer.waiting_bytes == 0


async def test_an_exclusive_operation_runs_between_syncs_and_after_what_came_before(
    disk: WatchedDisk, tmp_path: Path
) -> None:
    def begin_epoch(log: Log) -> bool:
        was_syncing = log.syncing
        log.begin_epoch(2)
        return was_syncing

    async with writer_on(disk, tmp_path) as writer:
        disk.gate.clear()
        before = asyncio.ensure_future(writer.append([batch()], epoch=EPOCH))
        await until(lambda: writer.log.syncing)
        operation = asyncio.ensure_future(writer.exclusively(begin_epoch))
        await asyncio.sleep(0)
        assert not operation.done()
        disk.gate.set()
        assert await operation is False
        assert (await before)[0] == Stored(0, 1, duplicate=False, fsynced=True)
        assert await writer.append([batch()], epoch=2) == [Stored(1, 2, duplicate=False, fsynced=True)]
        with pytest.raises(StaleEpochError):
            await writer.exclusively(lambda log: log.begin_epoch(1))


async def test_closing_writes_and_syncs_what_is_queued(disk: WatchedDisk, tmp_path: Path) -> None:
    async with writer_on(disk, tmp_path, flush="os") as writer:
        queued = asyncio.ensure_future(writer.append([batch()], epoch=EPOCH))
        await asyncio.sleep(0)
        await writer.close()
        assert (await queued)[0] == Stored(0, 1, duplicate=False, fsynced=False)
        with pytest.raises(LogOfflineError):
            await writer.append([batch()], epoch=EPOCH)
    reopened = Log.open(disk, str(tmp_path), LogConfig(), now_ms=1)
    assert reopened.end_offset == 1
    assert reopened.recovery.scanned_bytes < 200
    reopened.close()


async def test_sync_waits_for_all_that_was_written(disk: WatchedDisk, tmp_path: Path) -> None:
    async with writer_on(disk, tmp_path, flush="os") as writer:
        await asyncio.gather(*(writer.append([batch()], epoch=EPOCH) for _ in range(5)))
        assert writer.log.synced_offset == 0
        await writer.sync()
        assert writer.log.synced_offset == 5


async def test_what_a_truncation_removes_is_not_answered_by_a_later_sync(disk: WatchedDisk, tmp_path: Path) -> None:
    async with writer_on(disk, tmp_path) as writer:
        disk.gate.clear()
        first = asyncio.ensure_future(writer.append([batch(b"a")], epoch=EPOCH))
        await until(lambda: writer.log.syncing)
        second = asyncio.ensure_future(writer.append([batch(b"b")], epoch=EPOCH))
        await until(lambda: writer.log.end_offset == 2)
        cut = asyncio.ensure_future(writer.exclusively(lambda log: log.truncate(1)))
        await asyncio.sleep(0)
        disk.gate.set()
        assert await cut == 1
        assert (await first)[0] == Stored(0, 1, duplicate=False, fsynced=True)
        # Not "failed": of two that wait the truncation may have spared one.
        with pytest.raises(OutcomeUnknownError):
            await second
        await writer.exclusively(lambda log: log.begin_epoch(2))
        assert await writer.append([batch(b"c")], epoch=2) == [Stored(1, 2, duplicate=False, fsynced=True)]


async def test_sync_ends_though_the_log_was_truncated_meanwhile(disk: WatchedDisk, tmp_path: Path) -> None:
    async with writer_on(disk, tmp_path, flush="os") as writer:
        await writer.append([batch(), batch()], epoch=EPOCH)
        disk.gate.clear()
        syncing = asyncio.ensure_future(writer.sync())
        await until(lambda: writer.log.syncing)
        await writer.append([batch(), batch()], epoch=EPOCH)
        waiting = asyncio.ensure_future(writer.sync())
        cut = asyncio.ensure_future(writer.exclusively(lambda log: log.truncate(1)))
        await asyncio.sleep(0)
        disk.gate.set()
        assert await cut == 1
        await asyncio.gather(syncing, waiting)


async def test_closing_while_someone_syncs(disk: WatchedDisk, tmp_path: Path) -> None:
    async with writer_on(disk, tmp_path, flush="os") as writer:
        await writer.append([batch()], epoch=EPOCH)
        disk.gate.clear()
        syncing = asyncio.ensure_future(writer.sync())
        await until(lambda: writer.log.syncing)
        await writer.append([batch()], epoch=EPOCH)
        closing = asyncio.ensure_future(writer.close())
        again = asyncio.ensure_future(writer.sync())
        await asyncio.sleep(0)
        disk.gate.set()
        await asyncio.gather(syncing, closing)
        await asyncio.gather(again, return_exceptions=True)
        assert writer.log.offline is None
        assert writer.log.synced_offset == 2


async def test_to_be_cancelled_while_closing_leaves_nothing_open(disk: WatchedDisk, tmp_path: Path) -> None:
    async with writer_on(disk, tmp_path) as writer:
        disk.gate.clear()
        waiting = asyncio.ensure_future(writer.append([batch()], epoch=EPOCH))
        await until(lambda: writer.log.syncing)
        closing = asyncio.ensure_future(writer.close())
        await asyncio.sleep(0)
        closing.cancel()
        disk.gate.set()
        assert (await waiting)[0] == Stored(0, 1, duplicate=False, fsynced=True)
        await writer.close()
        with pytest.raises(LogOfflineError):
            await writer.exclusively(lambda log: None)


async def test_going_offline_between_syncs_answers_those_who_wait(disk: WatchedDisk, tmp_path: Path) -> None:
    def break_down(log: Log) -> None:
        disk.failing = True
        log.begin_epoch(2)

    async with writer_on(disk, tmp_path) as writer:
        disk.gate.clear()
        first = asyncio.ensure_future(writer.append([batch()], epoch=EPOCH))
        await until(lambda: writer.log.syncing)
        second = asyncio.ensure_future(writer.append([batch()], epoch=EPOCH))
        broken = asyncio.ensure_future(writer.exclusively(break_down))
        await asyncio.sleep(0)
        disk.gate.set()
        answers = await asyncio.gather(first, second, broken, return_exceptions=True)
        assert answers[0] == [Stored(0, 1, duplicate=False, fsynced=True)]
        assert isinstance(answers[1], OutcomeUnknownError)
        assert isinstance(answers[2], SyncFailedError)
        assert writer.waiting_bytes == 0


async def test_an_answer_does_not_wait_for_the_books(disk: WatchedDisk, tmp_path: Path) -> None:
    large = batch(b"x" * 5_000)
    async with writer_on(disk, tmp_path, checkpoint_bytes=1) as writer:
        disk.holds_books_only = True
        disk.gate.clear()
        assert await writer.append([large], epoch=EPOCH) == [Stored(0, 1, duplicate=False, fsynced=True)]
        assert writer.log.busy
        assert await writer.append([large], epoch=EPOCH) == [Stored(1, 2, duplicate=False, fsynced=True)]
        assert writer.log.recovery_point == 0
        disk.gate.set()
        await until(lambda: writer.log.recovery_point > 0)


async def test_a_sync_that_cannot_begin_answers_those_who_wait(
    disk: WatchedDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise DiskIoError("too many open files", path="x")

    async with writer_on(disk, tmp_path) as writer:
        with monkeypatch.context() as broken:
            broken.setattr(writer.log, "begin_sync", refuse)
            with pytest.raises(DiskIoError):
                await writer.append([batch()], epoch=EPOCH)
        assert writer.waiting_bytes == 0
        assert await writer.append([batch()], epoch=EPOCH) == [Stored(1, 2, duplicate=False, fsynced=True)]
