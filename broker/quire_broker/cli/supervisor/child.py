"""One process that a supervisor has started."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from quire.errors import UnavailableError

LEASH: Final = "quire_broker.cli.supervisor.leash"


class Child:
    """To be made on the running loop, in the main thread: the kernel ends the process when that thread ends."""

    def __init__(
        self, module: str, arguments: Sequence[str], *, environ: Mapping[str, str], output: int | None
    ) -> None:
        """Start `python -m <module>`. `output` is a file descriptor for what it says; None: where we say it.

        Raises UnavailableError if the system has no room for another process.
        """
        command = [
            sys.executable,
            "-P",  # else a file `json.py` in the directory where somebody types `quire up` would be imported
            *("-m", LEASH, str(os.getpid()), module, *arguments),
        ]
        try:
            self._process = subprocess.Popen(
                command,
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Ctrl-C is for the supervisor, which stops its children in order.
                start_new_session=True,
            )
            self._watched_fd = os.pidfd_open(self._process.pid)
        except OSError as error:
            raise UnavailableError(f"python -m {module} cannot be started: {error.strerror}") from error
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = loop.create_future()
        loop.add_reader(self._watched_fd, self._on_end, loop)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ended(self) -> int:
        """Wait for its end: its exit code, or minus the number of the signal that ended it."""
        return await asyncio.shield(self._ended)

    def terminate(self) -> None:
        """Ask it to stop. One that somebody has paused is let go on, so that it hears of it."""
        self._process.send_signal(signal.SIGTERM)
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()

    def _on_end(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(self._watched_fd)
        os.close(self._watched_fd)
        self._ended.set_result(self._process.wait())
