"""Syncs by the kernel, on real files, alone and below a log."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from quire.disk.os_disk import OsDisk
from quire.errors import LogOfflineError, SyncFailedError
from quire.records import encode_columns
from quire_broker.log.config import LogConfig
from quire_broker.log.log import Log
from quire_broker.runtime.kernel_syncs import AT_ONCE_MAX, KernelSyncs
from quire_broker.runtime.log_writer import LogWriter, Stored

EPOCH = 3

LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop, uvloop.new_event_loop]


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner


@contextmanager
def opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def synced(syncs: KernelSyncs, descriptor: int) -> asyncio.Future[str | None]:
    answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
    assert syncs.sync(descriptor, answer.set_result)
    return answer


def test_is_told_of_each_in_a_later_turn(runner: asyncio.Runner, tmp_path: Path) -> None:
    async def main() -> None:
        with closing(KernelSyncs()) as syncs, opened(tmp_path / "a") as a, opened(tmp_path / "b") as b:
            for _ in range(200):
                for descriptor in (a, b):
                    os.write(descriptor, b"x")
                answers = [synced(syncs, descriptor) for descriptor in (a, b)]
                assert not any(answer.done() for answer in answers)
                assert await asyncio.gather(*answers) == [None, None]

    runner.run(main())


class Interrupted:
    """The kernel's context, of which each second look at what is done is ended by a signal."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self.interrupts = 0
        self._is_next = False

    def process_events(self) -> int:
        self._is_next = not self._is_next
        if self._is_next:
            self.interrupts += 1
            raise SystemError(errno.EINTR, os.strerror(errno.EINTR))
        processed: int = self._context.process_events()
        return processed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def test_a_signal_keeps_nobody_waiting(
    runner: asyncio.Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        with closing(KernelSyncs()) as syncs, opened(tmp_path / "a") as a, opened(tmp_path / "b") as b:
            context = Interrupted(syncs._context)
            monkeypatch.setattr(syncs, "_context", context)
            for _ in range(20):
                async with asyncio.timeout(30):
                    assert [*await asyncio.gather(synced(syncs, a), synced(syncs, b))] == [None, None]
            assert context.interrupts >= 20

    runner.run(main())


def test_refuses_more_than_it_may_have_under_way(runner: asyncio.Runner, tmp_path: Path) -> None:
    async def main() -> None:
        with closing(KernelSyncs()) as syncs, opened(tmp_path / "a") as a:
            answers = [synced(syncs, a) for _ in range(AT_ONCE_MAX)]
            assert not syncs.sync(a, lambda why: pytest.fail("it was refused"))
            await asyncio.gather(*answers)
            await synced(syncs, a)

    runner.run(main())


def test_refuses_what_cannot_be_synced(runner: asyncio.Runner, tmp_path: Path) -> None:
    async def main() -> None:
        reading, writing = os.pipe()
        with closing(KernelSyncs()) as syncs, opened(tmp_path / "a") as a:
            for _ in range(2 * AT_ONCE_MAX):
                for descriptor in (writing, 1 << 20):
                    assert not syncs.sync(descriptor, lambda why: pytest.fail("it was refused"))
            await synced(syncs, a)  # none of those takes up room
        os.close(reading)
        os.close(writing)

    runner.run(main())


def test_one_that_fails_to_listen_does_not_keep_the_others_waiting(runner: asyncio.Runner, tmp_path: Path) -> None:
    async def main() -> None:
        failures: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))

        def fail(why: str | None) -> None:
            raise RuntimeError

        with closing(KernelSyncs()) as syncs, opened(tmp_path / "a") as a:
            for _ in range(20):
                assert syncs.sync(a, fail)
                await asyncio.gather(*(synced(syncs, a) for _ in range(AT_ONCE_MAX - 1)))
                while syncs._running:  # noqa: ASYNC110  # which has no event
                    await asyncio.sleep(0)
        assert len(failures) == 20

    runner.run(main())


def batch(value: bytes) -> bytes:
    return encode_columns([value], timestamp_ms=1)


def test_a_log_is_written_synced_read_and_found_again(runner: asyncio.Runner, tmp_path: Path) -> None:
    """Over many segments, so that there are syncs of several files and of names between them, and books."""
    directory = str(tmp_path / "log")
    config = LogConfig(segment_bytes=4096, checkpoint_bytes=8192)
    threads: list[int] = []

    class Threads(ThreadPoolExecutor):
        def submit(self, *args, **kwargs):  # type: ignore[no-untyped-def]  # as it is declared, whatever that is
            threads.append(1)
            return super().submit(*args, **kwargs)

    async def main() -> None:
        log = Log.open(OsDisk(), directory, config, now_ms=1)
        with Threads(2) as pool, closing(KernelSyncs()) as syncs:
            writer = LogWriter(log, pool=pool, kernel=syncs, now_ms=lambda: 1)
            await writer.exclusively(lambda log: log.begin_epoch(EPOCH))
            for number in range(500):
                [outcome] = await writer.append([batch(b"%d" % number)], epoch=EPOCH)
                assert outcome == Stored(number, number + 1, duplicate=False, fsynced=True)
                assert log.synced_offset == number + 1
                kept, read = writer.read(number, bytes_max=1 << 20), log.read(number, bytes_max=1 << 20)
                assert (bytes(kept.data), *kept[1:]) == (bytes(read.data), *read[1:])
            await writer.close()

    runner.run(main())
    assert 0 < len(threads) < 250  # the kernel has done the rest
    again = Log.open(OsDisk(), directory, config, now_ms=1)
    assert again.end_offset == 500
    again.close()


def test_readers_do_not_find_what_was_cut_or_replaced(runner: asyncio.Runner, tmp_path: Path) -> None:
    async def main() -> None:
        log = Log.open(OsDisk(), str(tmp_path / "log"), LogConfig(), now_ms=1)
        with ThreadPoolExecutor(1) as pool, closing(KernelSyncs()) as syncs:
            writer = LogWriter(log, pool=pool, kernel=syncs, now_ms=lambda: 1)
            await writer.exclusively(lambda log: log.begin_epoch(EPOCH))
            for value in (b"a", b"b", b"c"):
                await writer.append([batch(value)], epoch=EPOCH)
            await writer.exclusively(lambda log: log.truncate(1))
            assert len(writer.read(1, bytes_max=1000).data) == 0
            await writer.append([batch(b"instead")], epoch=EPOCH)
            assert b"instead" in bytes(writer.read(1, bytes_max=1000).data)
            await writer.close()

    runner.run(main())


def test_a_sync_that_fails_takes_the_log_offline(runner: asyncio.Runner, tmp_path: Path) -> None:
    async def main() -> None:
        log = Log.open(OsDisk(), str(tmp_path / "log"), LogConfig(), now_ms=1)
        with ThreadPoolExecutor(1) as pool, closing(KernelSyncs()) as syncs:
            writer = LogWriter(log, pool=pool, kernel=syncs, now_ms=lambda: 1)
            await writer.exclusively(lambda log: log.begin_epoch(EPOCH))
            await writer.append([batch(b"good")], epoch=EPOCH)
            # No disk at hand fails when asked to: the kernel's word is changed on its way.
            note = syncs._note
            syncs._note = lambda number, result: note(number, (1 << 64) - 5)  # type: ignore[method-assign]
            with pytest.raises(SyncFailedError, match="Input/output error"):
                await writer.append([batch(b"lost")], epoch=EPOCH)
            with pytest.raises(LogOfflineError):
                writer.read(0, bytes_max=1000)
            with pytest.raises(LogOfflineError):
                await writer.append([batch(b"more")], epoch=EPOCH)
            await writer.close()

    runner.run(main())
