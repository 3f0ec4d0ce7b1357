"""An asyncio event loop for one simulated host, on virtual time. Several of them run side by side in one thread.

What a real loop would do by itself happens when the host's clock says so: callbacks of a host that is paused wait,
those of one that crashed never happen. Work that goes to another thread in a real process happens here at some later
moment, at once: the disk decides when.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from quire.link.sim import SimHost

T = TypeVar("T")


class HostLoop(asyncio.AbstractEventLoop):
    def __init__(
        self,
        host: SimHost,
        *,
        rate: float,
        aside_s: Callable[[], float],
        on_ran: Callable[[], None],
        on_unhandled: Callable[[dict[str, Any]], None],
    ) -> None:
        """`rate` is how fast the host's clock runs; `aside_s` says how long the next piece of work aside takes."""
        self._host = host
        self._life = host.life
        self._rate = rate
        self._aside_s = aside_s
        self._on_ran = on_ran
        self._on_unhandled = on_unhandled
        self._closing: deque[asyncio.Handle] | None = None
        """What is left to do when the simulation is over."""
        self._ready: dict[int, asyncio.Handle] = {}
        """What was to be done at once and has not been yet, such as a task's next step."""
        self.tasks: list[asyncio.Task[Any]] = []
        """All of them: those of a crashed host must not be collected, since that would run their last lines."""

    @classmethod
    def make(
        cls,
        host: SimHost,
        *,
        rate: float,
        aside_s: Callable[[], float],
        on_ran: Callable[[], None],
        on_unhandled: Callable[[dict[str, Any]], None],
    ) -> HostLoop:
        # By `cls`, which mypy lets be abstract: what is missing is for sockets, pipes and processes.
        return cls(host, rate=rate, aside_s=aside_s, on_ran=on_ran, on_unhandled=on_unhandled)

    def enter(self, work: Callable[[], T]) -> T:
        """Do something as this loop's callbacks do."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            return work()
        finally:
            asyncio._set_running_loop(before)
            if self._closing is None:
                self._on_ran()

    def dispose(self) -> None:
        """The simulation is over: end all tasks, those of hosts that crashed long ago too, so that none complains."""
        # Tasks that were about to go on wait for nothing that could be cancelled: their steps have to be taken.
        self._closing = deque(self._ready.values())
        for task in self.tasks:
            task.cancel()
        for _ in range(100_000):
            if not self._closing:
                break
            handle = self._closing.popleft()
            if not handle.cancelled():
                self.enter(handle._run)
        for task in self.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # it waits for what never comes

    # -- what asyncio calls ----------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._host.time() * self._rate

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._schedule(0.0, handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._schedule((when - self.time()) / self._rate, handle)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self.tasks.append(task)
        if len(self.tasks) > 2_000:
            self.tasks = [each for each in self.tasks if not each.done()]
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        future: asyncio.Future[T] = self.create_future()

        def run() -> None:
            try:
                result = func(*args)
            except BaseException as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        self.call_later(self._aside_s(), run)
        return future

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._host.life == self._life and self._closing is None:
            self._on_unhandled(context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is passed over when its time comes."""

    # -- inside ----------------------------------------------------------------------------------------------------

    def _schedule(self, delay_s: float, handle: asyncio.Handle) -> None:
        if self._closing is not None:
            if delay_s <= 0:
                self._closing.append(handle)
            return
        if delay_s <= 0:
            self._ready[id(handle)] = handle
        if self._host.life == self._life:
            self._host.call_later(delay_s, lambda: self._run(handle))

    def _run(self, handle: asyncio.Handle) -> None:
        self._ready.pop(id(handle), None)
        if not handle.cancelled():
            self.enter(handle._run)
