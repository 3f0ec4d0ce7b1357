"""The life of a server process: its event loop, how it is asked to stop, and what a bug does to it.

SIGTERM or SIGINT     asks to stop; the server has `stop_ms_max` for it
the same once more    the kernel ends the process at once, whatever it is doing
the deadline          a thread ends it, so a loop that hangs does not live on
a bug                 ends it at once: what runs on after a broken invariant may write what is wrong
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, NoReturn

import uvloop

from quire.errors import InvalidArgumentError, InvariantViolation, QuireError
from quire.process import logs
from quire.process.exits import INTERRUPTED, Exit
from quire.process.lock import DirectoryInUseError

GC_YOUNG_MAX: Final = 20_000
"""How many objects more are made than freed before the collector looks at the young ones."""
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

_log = logs.get("process")
_unhandled = logs.Throttled(_log)


class Stop:
    """Whether this process was asked to stop. For the loop's thread."""

    def __init__(self, *, stop_ms_max: int) -> None:
        self._stop_ms_max = stop_ms_max
        self._asked = asyncio.Event()
        self.why = ""

    @property
    def requested(self) -> bool:
        return self._asked.is_set()

    async def wait(self) -> None:
        await self._asked.wait()

    def request(self, why: str) -> None:
        """Ask it to stop, once. From now on it has until the deadline."""
        if self.requested:
            return
        self.why = why
        self._asked.set()
        # Never cancelled: it also covers threads that keep the interpreter from ending after the loop has.
        deadline = threading.Timer(self._stop_ms_max / 1000, _give_up, (self._stop_ms_max,))
        deadline.daemon = True
        deadline.start()


def run(main: Callable[[Stop], Coroutine[Any, Any, None]], *, stop_ms_max: int) -> NoReturn:
    """Run `main` on uvloop, from the main thread, and end the process when it is done.

    `main` returns when it has stopped, some time after `stop.wait()` does. It raises QuireError for what it cannot go
    on without; anything else that it raises is a bug.
    """
    threading.excepthook = _on_thread_failed
    # What was imported stays: to look at it again and again would hold up the loop. Hardly anything here is a cycle.
    gc.freeze()
    gc.set_threshold(GC_YOUNG_MAX, *gc.get_threshold()[1:])
    stop = Stop(stop_ms_max=stop_ms_max)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_main(main, stop))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BaseException as error:
        sys.exit(_judge(error))
    _log.info("stopped", why=stop.why)
    sys.exit(Exit.OK)


def fail_fast(error: BaseException) -> NoReturn:
    """End the process at once because of a bug."""
    logs.last_words("a bug in Quire ends this process", error=error)
    os._exit(Exit.BUG)


async def _main(main: Callable[[Stop], Coroutine[Any, Any, None]], stop: Stop) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_on_unhandled)
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # a shell that runs us in the background ignores SIGINT
            loop.add_signal_handler(number, _on_signal, loop, number, stop)
    try:
        await main(stop)
    finally:
        stop.request("it had nothing more to do")


def _on_signal(loop: asyncio.AbstractEventLoop, number: signal.Signals, stop: Stop) -> None:
    if stop.requested:
        # It came while the first one was being handled, or after `main` had ended.
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
        return
    stop.request(number.name)
    for each in SIGNALS:
        if loop.remove_signal_handler(each):
            signal.signal(each, signal.SIG_DFL)
    _log.info("asked to stop", signal=number.name)


def _on_unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What nobody awaited or caught. Where callbacks raise, this is the only place that hears of it."""
    error = context.get("exception")
    if isinstance(error, BaseException) and any(isinstance(leaf, InvariantViolation) for leaf in _leaves(error)):
        fail_fast(error)
    _unhandled.warning("unhandled in the event loop", key=_kind(context), what=context.get("message"), exc_info=error)


def _kind(context: dict[str, Any]) -> tuple[str, str]:
    return str(context.get("message"))[:200], type(context.get("exception")).__name__


def _on_thread_failed(arguments: threading.ExceptHookArgs) -> None:
    if arguments.exc_value is not None and not isinstance(arguments.exc_value, SystemExit):
        fail_fast(arguments.exc_value)


def _judge(error: BaseException) -> Exit | int | str | None:
    if isinstance(error, SystemExit):
        return error.code
    expected = []
    for leaf in _leaves(error):
        if not isinstance(leaf, QuireError):
            fail_fast(error)
        expected.append(leaf)
    first = expected[0]
    _log.error("cannot go on", reason=first.reason, message=first.message, **first.details)
    if isinstance(first, DirectoryInUseError):
        return Exit.DIRECTORY_IN_USE
    return Exit.MISCONFIGURED if isinstance(first, InvalidArgumentError) else Exit.FAILED


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


def _give_up(stop_ms_max: int) -> None:
    logs.last_words("not stopped in time, so it ends here", stop_ms_max=stop_ms_max)
    os._exit(Exit.STOP_DEADLINE)
