"""One event loop on one thread, for all synchronous clients of the process.

One for each client would cost more than it brings: gRPC wakes all loops of a process for whatever happens to any.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, TypeVar

from quire._client.deliveries import LOOP_THREAD
from quire.errors import InvalidArgumentError, UnavailableError

T = TypeVar("T")


class LoopThread:
    """Runs while somebody uses it. `acquire` and `release` may be called by any thread."""

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _shared: ClassVar[LoopThread | None] = None

    def __init__(self) -> None:
        self._users = 0
        self.loop = asyncio.new_event_loop()
        # A daemon: a program that forgets to close a client still ends.
        self._thread = threading.Thread(target=self._run, name=LOOP_THREAD, daemon=True)
        self._thread.start()

    @classmethod
    def acquire(cls) -> LoopThread:
        with cls._lock:
            if cls._shared is None:
                cls._shared = cls()
            cls._shared._users += 1
            return cls._shared

    def release(self) -> None:
        """The last one to do so ends the thread."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            if LoopThread._shared is self:
                LoopThread._shared = None
        self.loop.call_soon_threadsafe(self.loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    @property
    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def refuse_own_thread(self) -> None:
        """Raise where waiting would be for ever."""
        if self.is_current:
            raise InvalidArgumentError(
                "this was called by a callback on the client's own thread, and would wait for itself; use quire.aio, "
                "or another thread"
            )

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it on the loop, and wait for what it gives."""
        if self.is_current:
            coroutine.close()
            self.refuse_own_thread()
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except RuntimeError:
            coroutine.close()
            raise UnavailableError("this client is closed; make another one") from None
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise UnavailableError("this client was closed meanwhile") from None
        except BaseException:
            future.cancel()  # Ctrl-C, say: nobody waits for it any more
            raise

    def abandon(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run it on the loop, and release the loop afterwards; nobody waits for either."""
        if sys.is_finalizing() or self.loop.is_closed():
            coroutine.close()
            return
        asyncio.run_coroutine_threadsafe(coroutine, self.loop).add_done_callback(lambda _: self.release())

    def call(self, function: Callable[[], object]) -> None:
        """Have it called on the loop soon. After the end nothing is."""
        try:
            self.loop.call_soon_threadsafe(function)
        except RuntimeError:
            if not self.loop.is_closed():
                raise

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()
