"""Runs what blocks on a thread of its own, one thing after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


class BackgroundThread:
    """The port `Background` of the snapshot job."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    def __call__(self, work: Callable[[], None], done: Callable[[BaseException | None], None], /) -> None:
        running = self._loop.run_in_executor(self._executor, work)
        running.add_done_callback(lambda ended: None if ended.cancelled() else done(ended.exception()))

    def close(self) -> None:
        """Wait for what is running: a sync that was begun is not given up."""
        self._executor.shutdown(wait=True, cancel_futures=True)
