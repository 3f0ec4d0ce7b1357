"""A command on a terminal of its own, typed at and read."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.integration.controller_cluster import WAIT_S_MAX


class Terminal:
    def __init__(self, command: Sequence[str | Path], environ: Mapping[str, str]) -> None:
        self._fd, child = pty.openpty()
        self.output = ""
        before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # it would stay ignored if the tests ignore it
        try:
            self.process = subprocess.Popen(
                # A session of its own with this as its terminal, so that Ctrl-C is a signal to it.
                ["setsid", "--ctty", "--wait", *command],
                env={**environ, "TERM": "xterm"},
                stdin=child,
                stdout=child,
                stderr=child,
            )
        finally:
            signal.signal(signal.SIGINT, before)
            os.close(child)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._fd)

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def until(self, pattern: str) -> None:
        """Read until this is found in all of the output."""
        while not re.search(pattern, self.output, re.DOTALL):
            if not self._read():
                raise AssertionError(f"{pattern!r} is not in {self.output!r}")

    def ended(self) -> int:
        """Read to the end; the exit code."""
        while self._read():
            pass
        return self.process.wait(timeout=WAIT_S_MAX)

    def _read(self) -> bool:
        deadline = time.monotonic() + WAIT_S_MAX
        if not select.select([self._fd], [], [], deadline - time.monotonic())[0]:
            raise AssertionError(f"nothing came any more after {self.output!r}")
        try:
            data = os.read(self._fd, 65_536)
        except OSError:  # the other end is closed
            return False
        self.output += data.decode("utf-8", "replace")
        return bool(data)
