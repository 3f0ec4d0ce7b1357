"""What a leader knows of one follower."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from quire_broker.replica.config import ReplicaConfig
from quire_broker.replica.messages import Ack, Join, Session

Ends = Mapping[int, int]
"""Offsets by stream; a stream that is absent is at 0."""


class _Mark(NamedTuple):
    """Where the leader's logs ended at a moment when the follower did not have all of it."""

    at_ms: int
    ends: Ends


class _Stand(NamedTuple):
    """How much a follower counts, in all streams together, and since when it was not more."""

    since_ms: int
    offsets: int


@dataclass(slots=True)
class Progress:
    caught_up_ms: int | None
    """The follower has counted everything that the leader had at this moment; None if it never did."""
    session: Session | None = None
    broker_epoch: int = 0
    is_settled: bool = False
    """The logs agree. Before that nothing that the follower has counts."""
    is_damaged: bool = False
    counted: dict[int, int] = field(default_factory=dict)
    sent: dict[int, int] = field(default_factory=dict)
    told: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By stream, the log start and the high watermark that the follower was told."""
    is_penalized: bool = False
    """It left the ISR because its acknowledgements were slow."""
    slow_ms: int | None = None
    """Since when all acknowledgements took too long."""
    _fast_ms: int | None = None
    _idle_ms: int | None = None
    """Since when there was nothing to acknowledge."""
    _mark: _Mark | None = None
    _stand: _Stand | None = None
    """While it has not counted all that it was sent."""

    def begin(self, session: Session, join: Join) -> None:
        """A new session: the follower may have restarted and have less than it had, so nothing that was counts."""
        self.end()
        self.session, self.broker_epoch, self.is_damaged = session, join.broker_epoch, join.is_damaged

    def settle(self, ends: Ends) -> None:
        """The follower's logs are the beginning of the leader's, up to here."""
        self.is_settled = True
        self.sent = dict(ends)

    def end(self) -> None:
        """The session is over."""
        self.session, self.is_settled = None, False
        self.counted, self.sent, self.told = {}, {}, {}
        self.slow_ms = self._fast_ms = self._idle_ms = self._mark = self._stand = None

    def count(self, ack: Ack) -> bool:
        """Take in what the follower counts. False if it cannot be: it was never sent."""
        for stream, offset in ack.streams:
            if offset > self.sent.get(stream, 0):
                return False
            self.counted[stream] = max(offset, self.counted.get(stream, 0))
        self.is_damaged = ack.is_damaged
        return True

    def has(self, ends: Ends) -> bool:
        return all(self.counted.get(stream, 0) >= end for stream, end in ends.items())

    def observe(self, ends: Ends, config: ReplicaConfig, now_ms: int) -> None:
        """Judge how far behind the follower is, and how slow. `ends` is where the leader's logs end."""
        if not self.is_settled:
            return
        if self._mark is not None and self.has(self._mark.ends):
            self._note_ack(now_ms - self._mark.at_ms, config, now_ms)
            self._note_caught_up(self._mark.at_ms)
            self._mark = None
        if self.has(ends):
            self._note_caught_up(now_ms)
            self._mark = None
            self._note_idle(config, now_ms)
            return
        self._idle_ms = None
        if self._mark is None:
            self._mark = _Mark(now_ms, dict(ends))
        elif now_ms - self._mark.at_ms > config.ack_ms_max:
            self._note_slow(self._mark.at_ms)

    def _note_caught_up(self, at_ms: int) -> None:
        self.caught_up_ms = at_ms if self.caught_up_ms is None else max(self.caught_up_ms, at_ms)

    def _note_ack(self, took_ms: int, config: ReplicaConfig, now_ms: int) -> None:
        if took_ms > config.ack_ms_max:
            self._note_slow(now_ms - took_ms)
            return
        self.slow_ms = None
        if 2 * took_ms > config.ack_ms_max:
            self._fast_ms = None
        elif self._fast_ms is None:
            self._fast_ms = now_ms

    def _note_idle(self, config: ReplicaConfig, now_ms: int) -> None:
        """Whoever has nothing to do is not slow any more; the pause between two requests is not enough to say so."""
        if self._idle_ms is None:
            self._idle_ms = now_ms
        elif now_ms - self._idle_ms >= config.slow_ms_min:
            self.slow_ms = None
            if self._fast_ms is None:
                self._fast_ms = now_ms

    def _note_slow(self, since_ms: int) -> None:
        self._fast_ms = None
        if self.slow_ms is None:
            self.slow_ms = since_ms

    def is_caught_up(self, config: ReplicaConfig, now_ms: int) -> bool:
        return self.caught_up_ms is not None and now_ms - self.caught_up_ms <= config.lag_ms_max

    def is_stuck(self, config: ReplicaConfig, now_ms: int) -> bool:
        """Whether it has counted nothing of what it was sent for half of the time that makes it lag. To be asked
        several times in that time."""
        if not self.is_settled or self.has(self.sent):
            self._stand = None
            return False
        offsets = sum(self.counted.values())
        if self._stand is None or self._stand.offsets != offsets:
            self._stand = _Stand(now_ms, offsets)
        return 2 * (now_ms - self._stand.since_ms) > config.lag_ms_max

    def is_slow(self, config: ReplicaConfig, now_ms: int) -> bool:
        return self.slow_ms is not None and now_ms - self.slow_ms >= config.slow_ms_min

    def has_recovered(self, config: ReplicaConfig, now_ms: int) -> bool:
        """Whether it was quick, or had nothing to do, for long enough. Less than that and it would come and go."""
        if not self.is_penalized:
            return True
        return self._fast_ms is not None and now_ms - self._fast_ms >= config.recovery_ms
