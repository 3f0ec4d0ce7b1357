"""The times of replication."""

from __future__ import annotations

from dataclasses import dataclass, fields

from quire.errors import InvalidArgumentError


@dataclass(frozen=True, kw_only=True)
class ReplicaConfig:
    lag_ms_max: int = 10_000
    """A replica that was not caught up for so long leaves the ISR."""
    ack_ms_max: int = 500
    """So does one whose acknowledgements take so long, while enough others remain."""
    slow_ms_min: int = 1_000
    """For how long they must have taken so long: one slow sync is no reason."""
    recovery_ms: int = 5_000
    """Who left for that comes back when acknowledgements took at most half of `ack_ms_max` for so long."""
    proposal_ms_min: int = 500
    """The pause after a proposal was refused."""
    hand_over_ms_min: int = 2_000
    """The pause between two attempts to hand over a leadership."""
    join_ms_min: int = 50
    """How long a follower waits for an answer the first time; doubles with each attempt that got none."""
    join_ms_max: int = 2_000
    """The longest such wait."""
    want_ms_max: int = 2_000
    """How long one replica is waited for that was asked for a damaged range."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise InvalidArgumentError(f"{field.name} is to be positive, not {getattr(self, field.name)}")
        for low, high in (("join_ms_min", "join_ms_max"), ("ack_ms_max", "lag_ms_max")):
            if getattr(self, low) > getattr(self, high):
                raise InvalidArgumentError(
                    f"{low} ({getattr(self, low)}) is to be at most {high} ({getattr(self, high)})"
                )
