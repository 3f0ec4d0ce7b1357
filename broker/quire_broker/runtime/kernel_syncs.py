"""Has the kernel sync files while the loop goes on, without a thread of ours.

    sync(descriptor) ──► io_submit ··· eventfd ──► the loop reads what is done ──► then(why it failed)

To hand a sync to a thread and to hear from it costs two switches of threads that want the interpreter, which is much
beside the sync itself where the disk is quick. See docs/adr/0008-kernel-syncs.md.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from caio import linux_aio

from quire.errors import UnavailableError

AT_ONCE_MAX: Final = 4
"""Syncs under way. A disk gains nothing by more, and who asks for one more has threads to fall back on."""
_NUMBERS: Final = 1 << 64
"""What is done is told of as an unsigned number, an error as what would be a negative one."""

Then = Callable[[str | None], None]
"""Is told why it failed, if it did."""


class KernelSyncs:
    """To be made on the running loop, which it uses until it is closed."""

    def __init__(self) -> None:
        """Raises UnavailableError where the kernel does not offer this, or has no room for it."""
        self._loop = asyncio.get_running_loop()
        self._running: dict[int, tuple[object, Then]] = {}
        """With the kernel's requests, which must not go before they are done."""
        self._done: list[tuple[int, str | None]] = []
        self._number = 0
        try:
            self._context = linux_aio.Context(AT_ONCE_MAX)
        except (OSError, SystemError, OverflowError, ValueError) as error:
            raise UnavailableError(f"the kernel takes no asynchronous requests: {error}") from error
        self._loop.add_reader(self._context.fileno, self._look)

    def sync(self, descriptor: int, then: Then) -> bool:
        """Sync the data of a file, and call `then` in a later turn of the loop; or return False, and do nothing."""
        if len(self._running) >= AT_ONCE_MAX:
            return False
        number = self._number = self._number + 1
        request = linux_aio.Operation.fdsync(descriptor)
        # Not `then` itself: what is raised in there is swallowed.
        request.set_callback(partial(self._note, number))
        try:
            self._context.submit(request)
        except (OSError, SystemError, OverflowError, ValueError):
            return False  # no room in the kernel, or no such thing on this file system
        self._running[number] = (request, then)
        return True

    def close(self) -> None:
        """Call when everything that was asked for is done."""
        self._loop.remove_reader(self._context.fileno)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _note(self, number: int, result: int) -> None:
        self._done.append((number, os.strerror(_NUMBERS - result) if result >= _NUMBERS // 2 else None))

    def _look(self) -> None:
        with suppress(BlockingIOError, InterruptedError):  # what it tells of was told with the one before
            self._context.poll()
        try:
            while self._process_events():
                pass
        finally:
            self._tell()

    def _process_events(self) -> int:
        """How many were done. A signal, or a stop by a debugger, ends the call without a word about them."""
        while True:
            try:
                processed: int = self._context.process_events()
            except (OSError, SystemError) as error:
                if error.args[:1] != (errno.EINTR,):
                    raise
            else:
                return processed

    def _tell(self) -> None:
        try:
            while self._done:
                number, why = self._done.pop(0)
                _, then = self._running.pop(number)
                then(why)
        finally:
            if self._done:  # one of them has failed; the others must not wait for ever
                self._loop.call_soon(self._tell)
