"""Whether a process that has ended is started again, and when. Pure."""

from __future__ import annotations

import signal
from typing import Final

from quire.link.backoff import Backoff
from quire.process.exits import Exit

STEADY_MS: Final = 10_000
"""What ran for so long was well: its end is the first of its kind."""


class Restarts:
    """The history of one role's processes, as far as it matters for the next one."""

    def __init__(self, *, backoff: Backoff, attempts_max: int | None) -> None:
        """`attempts_max`: how often a role that was never ready is tried. None: until it works."""
        self._backoff = backoff
        self._attempts_max = attempts_max
        self._attempts = 0
        self._was_ready = False

    def on_ready(self) -> None:
        self._was_ready = True

    def after_end(self, code: int, *, ran_ms: float) -> float | None:
        """Milliseconds until it is to be started again. None: that would be of no use."""
        self._attempts += 1
        if code == Exit.MISCONFIGURED:
            return None
        if not self._was_ready and self._attempts_max is not None and self._attempts >= self._attempts_max:
            return None
        if ran_ms >= STEADY_MS:
            self._backoff.reset()
        return self._backoff.next_ms()


def describe(code: int) -> str:
    """How a process ended, for people: `was killed by SIGKILL`."""
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    match code:
        case Exit.OK:
            return "stopped"
        case Exit.STOP_DEADLINE:
            return "did not stop in time"
        case Exit.BUG:
            return "ended because of a bug in Quire"
        case _:
            return f"ended with code {code}"
