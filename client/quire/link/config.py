"""The limits and times of a link. Every number has a default that suits a cluster in one data centre."""

from __future__ import annotations

from dataclasses import dataclass, fields

from quire.errors import InvalidArgumentError
from quire.link.frames import BODY_BYTES_MAX


@dataclass(frozen=True, kw_only=True)
class LinkConfig:
    body_bytes_max: int = BODY_BYTES_MAX
    """The largest body of a frame that is accepted. Told to the peer, which refuses to send more."""
    outgoing_bytes_max: int = 2 * BODY_BYTES_MAX
    """What may wait to be sent in one session. A single frame always fits when no more than half of it does."""
    ping_ms: int = 500
    """How often a session looks whether it, or its peer, has been silent."""
    silence_ms_max: int = 3_000
    """A peer of which nothing was heard for so long is gone."""
    stall_ms_max: int = 30_000
    """A peer that takes nothing of what waits for it for so long is given up."""
    handshake_ms_max: int = 5_000
    """From the first packet of a connection to the end of the greeting, TLS included."""
    close_ms_max: int = 2_000
    """How long a session that is being closed may take to send the rest."""
    half_open_max: int = 64
    """How many connections of a listener may be between first packet and greeting. One more ends the oldest."""
    sessions_max: int = 256
    """How many peers a listener serves. One more is refused."""
    backoff_ms_min: int = 50
    """The wait after the first failed attempt to reach a peer; doubles with each further one."""
    backoff_ms_max: int = 2_000
    """The longest wait between attempts. A session that lasted so long counts as success and resets the wait."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise InvalidArgumentError(f"{field.name} is to be positive, not {getattr(self, field.name)}")
        for low, high in (("ping_ms", "silence_ms_max"), ("backoff_ms_min", "backoff_ms_max")):
            if getattr(self, low) > getattr(self, high):
                raise InvalidArgumentError(
                    f"{low} ({getattr(self, low)}) is to be at most {high} ({getattr(self, high)})"
                )
