"""Is the peer still there? Pure: told of each tick and of what happened since the last one.

Each side sends a ping when it had nothing else to send for a tick, and nobody answers pings: whoever hears nothing
for long enough knows that the peer, or its way to us, is gone. If only the way to the peer is gone, it is the peer
that hears nothing, and it hangs up.

Silence is counted in ticks, not by a clock. A process that was stopped and goes on sees one late tick, not a long
silence of all its peers, and first reads what they sent meanwhile.
"""

from __future__ import annotations

import enum


class Verdict(enum.Enum):
    FINE = enum.auto()
    PING = enum.auto()
    """Say something, or the peer takes us for dead."""
    SILENT = enum.auto()
    """Nothing came for too long."""
    STALLED = enum.auto()
    """The peer has not taken what waits for it for too long."""


class Liveness:
    def __init__(self, *, tick_ms: int, silence_ms_max: int, stall_ms_max: int) -> None:
        self._silent_ticks_max = -(-silence_ms_max // tick_ms)
        self._stalled_ticks_max = -(-stall_ms_max // tick_ms)
        self._silent_ticks = 0
        self._stalled_ticks = 0

    def on_tick(self, *, heard: bool, listening: bool, sent: bool, blocked: bool) -> Verdict:
        """What to do, given what happened since the last tick.

        `listening` is whether we read at all: a receiver that is full hears nothing, whoever speaks. `blocked` is
        whether the connection took nothing although something waits.
        """
        self._silent_ticks = 0 if heard or not listening else self._silent_ticks + 1
        self._stalled_ticks = self._stalled_ticks + 1 if blocked else 0
        if self._silent_ticks >= self._silent_ticks_max:
            return Verdict.SILENT
        if self._stalled_ticks >= self._stalled_ticks_max:
            return Verdict.STALLED
        return Verdict.FINE if sent or blocked else Verdict.PING
