"""How quick the partition log is, on real files: against bare system calls, and many writers against one.

Files are made in a temporary directory below --dir and removed at the end. Appends go to files that grow, as a log's
do, on both sides.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import uvloop
from crc32c import crc32c

from quire.disk.os_disk import OsDisk
from quire.records import encode_columns
from quire_broker.log.checkpoint import Checkpoint
from quire_broker.log.config import FlushPolicy, LogConfig
from quire_broker.log.log import Log
from quire_broker.runtime.kernel_syncs import KernelSyncs
from quire_broker.runtime.log_writer import LogWriter
from scripts.benches.contest import Contest, arguments_for, run

NOW_MS = 1_700_000_000_000
EPOCH = 1
GROUP = 16
"""Batches that are queued together and go out in one write."""
FILE_BYTES_MAX = 256 << 20
"""After this much both sides begin a new file."""
READ_BYTES = 1 << 20
LOG_BYTES = 128 << 20


def make_batch(size_bytes: int) -> bytes:
    """A batch of 100-byte records that takes about this much."""
    return encode_columns([random.Random(1).randbytes(100)] * max(1, size_bytes // 107), timestamp_ms=NOW_MS)


class GrowingLog:
    def __init__(self, directory: Path, batch: bytes) -> None:
        self._directory = directory
        self._batches = [batch] * GROUP
        self._count = 0
        self._log = self._begin()

    def append(self) -> None:
        if self._log.size_bytes > FILE_BYTES_MAX:
            self._log.reset(0)
            self._log.begin_epoch(EPOCH)
        self._log.append(self._batches, epoch=EPOCH, now_ms=NOW_MS)

    def _begin(self) -> Log:
        log = Log.open(OsDisk(), str(self._directory), LogConfig(segment_bytes=FILE_BYTES_MAX * 2), now_ms=NOW_MS)
        log.begin_epoch(EPOCH)
        return log


class GrowingFile:
    def __init__(self, path: Path, batch: bytes) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT)
        self._batches = [batch] * GROUP
        self._size = 0

    def append(self) -> None:
        if self._size > FILE_BYTES_MAX:
            os.ftruncate(self._fd, 0)
            os.lseek(self._fd, 0, os.SEEK_SET)
            self._size = 0
        self._size += os.writev(self._fd, self._batches)


def appends(directory: Path, batch_bytes: int, ratio_min: float | None) -> Contest:
    batch = make_batch(batch_bytes)
    return Contest(
        f"append, {len(batch)} B batches, {GROUP} a write, no fsync",
        "MB/s",
        len(batch) * GROUP / 1e6,
        GrowingLog(directory / f"log-{batch_bytes}", batch).append,
        "os.writev",
        GrowingFile(directory / f"raw-{batch_bytes}", batch).append,
        ratio_min,
    )


def filled_log(directory: Path, batch_bytes: int) -> Log:
    log = Log.open(OsDisk(), str(directory), LogConfig(segment_bytes=LOG_BYTES * 2), now_ms=NOW_MS)
    log.begin_epoch(EPOCH)
    batch = make_batch(batch_bytes)
    while log.size_bytes < LOG_BYTES:
        log.append([batch] * GROUP, epoch=EPOCH, now_ms=NOW_MS)
    log.close()
    return Log.open(OsDisk(), str(directory), LogConfig(segment_bytes=LOG_BYTES * 2), now_ms=NOW_MS)


def reads(directory: Path, batch_bytes: int, ratio_min: float | None) -> Contest:
    log = filled_log(directory / f"read-{batch_bytes}", batch_bytes)
    path = next((directory / f"read-{batch_bytes}").glob("*.log"))
    fd = os.open(path, os.O_RDONLY)

    def read_log() -> None:
        offset = 0
        while offset < log.end_offset:
            offset = log.read(offset, bytes_max=READ_BYTES).end_offset

    def read_file() -> None:
        position = 0
        while data := os.pread(fd, READ_BYTES, position):
            crc32c(data)
            position += len(data)

    return Contest(
        f"read in turn, {batch_bytes // 1024} KiB batches, 1 MiB a read, CRC checked",
        "MB/s",
        log.size_bytes / 1e6,
        read_log,
        "os.pread + crc32c",
        read_file,
        ratio_min,
    )


def recovery(directory: Path, batch_bytes: int) -> Contest:
    """Opening after a crash that left everything to be scanned, rewritten and synced."""
    folder = directory / f"recover-{batch_bytes}"
    log = filled_log(folder, batch_bytes)
    size = log.size_bytes
    log.close()
    path = next(folder.glob("*.log"))
    at_first = Checkpoint(epochs=((EPOCH, 0),)).to_bytes()

    def scan() -> None:
        for file in folder.iterdir():
            if file != path:
                file.unlink()
        (folder / "checkpoint").write_bytes(at_first)
        recovered = Log.open(OsDisk(), str(folder), LogConfig(segment_bytes=LOG_BYTES * 2), now_ms=NOW_MS)
        assert recovered.recovery.scanned_bytes == size

    def read_file() -> None:
        fd = os.open(path, os.O_RDWR)
        position = 0
        while data := os.pread(fd, READ_BYTES, position):
            crc32c(data)
            os.pwrite(fd, data, position)
            position += len(data)
        os.fdatasync(fd)
        os.close(fd)

    return Contest(
        f"recover from the first batch on, {batch_bytes // 1024} KiB batches",
        "MB/s",
        size / 1e6,
        scan,
        "pread + crc32c + pwrite, fdatasync",
        read_file,
    )


def lookups(directory: Path) -> list[Contest]:
    log = filled_log(directory / "lookup", 1024)
    offsets = random.Random(2)

    def by_offset() -> None:
        log.read(offsets.randrange(log.end_offset), bytes_max=1)

    def by_time() -> None:
        log.find_time(NOW_MS)

    return [
        Contest("look up an offset, 1 KiB batches", "k/s", 1e-3, by_offset),
        Contest("look up a timestamp, 1 KiB batches", "k/s", 1e-3, by_time),
    ]


class Writers:
    """So many tasks that append a batch each and wait for its sync, over and over."""

    def __init__(self, loop: asyncio.AbstractEventLoop, directory: Path, batch: bytes, count: int) -> None:
        self._loop = loop
        self._batch = batch
        self._count = count
        config = LogConfig(flush=FlushPolicy.parse("fsync"), segment_bytes=FILE_BYTES_MAX)
        self._log = Log.open(OsDisk(), str(directory), config, now_ms=NOW_MS)
        self._log.begin_epoch(EPOCH)
        self._pool = ThreadPoolExecutor(1)
        self._writer = loop.run_until_complete(self._make_writer())

    async def _make_writer(self) -> LogWriter:
        return LogWriter(self._log, pool=self._pool, kernel=KernelSyncs(), now_ms=lambda: NOW_MS)

    def append(self, appends_each: int) -> None:
        self._loop.run_until_complete(self._run(appends_each))

    async def _run(self, appends_each: int) -> None:
        await asyncio.gather(*(self._write(appends_each) for _ in range(self._count)))

    async def _write(self, appends_each: int) -> None:
        for _ in range(appends_each):
            await self._writer.append([self._batch], epoch=EPOCH)


def group_commit(
    loop: asyncio.AbstractEventLoop, directory: Path, batch_bytes: int, ratio_min: float | None
) -> Contest:
    batch = make_batch(batch_bytes)
    many = Writers(loop, directory / f"many-{batch_bytes}", batch, GROUP)
    one = Writers(loop, directory / f"one-{batch_bytes}", batch, 1)
    appends_each = 20
    return Contest(
        f"append and fsync, {len(batch)} B, {GROUP} writers",
        "k/s",
        appends_each * GROUP / 1e3,
        partial(many.append, appends_each),
        "one writer",
        # As many appends as the others together, or the two could not share a row.
        partial(one.append, appends_each * GROUP),
        ratio_min,
    )


def main(argv: Sequence[str]) -> int:
    parser = arguments_for("log", __doc__)
    parser.add_argument("--dir", type=Path, default=Path(), help="where to make the files (the project's folder)")
    arguments = parser.parse_args(argv)
    loop = uvloop.new_event_loop()
    with tempfile.TemporaryDirectory(prefix="quire-bench-", dir=arguments.dir) as temporary:
        folder = Path(temporary)
        rows: list[Callable[[], list[Contest]]] = [
            lambda: [appends(folder, 64 << 10, 0.5)],
            lambda: [appends(folder, 11 << 10, None)],
            lambda: [reads(folder, 64 << 10, 0.5)],
            lambda: [reads(folder, 11 << 10, None)],
            lambda: [group_commit(loop, folder, 1 << 10, 8.0)],
            lambda: [group_commit(loop, folder, 11 << 10, None)],
            lambda: [recovery(folder, 64 << 10)],
            lambda: [recovery(folder, 1 << 10)],
            lambda: lookups(folder),
        ]
        # One after the other: each makes its files when its turn comes.
        return run("quire_broker.log: medians", (contest for row in rows for contest in row()), arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
