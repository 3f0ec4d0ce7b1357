"""A broker's leave to lead, as the broker sees it. Pure: its own monotonic clock is an argument.

    heartbeat sent at t ──► answered with a lease and a metadata version ──► version applied ──► held until t + lease

It counts from when the heartbeat was *sent*: the controller counts from when it was received, which is later, so the
controller never takes a leadership for free while this side believes to have it. And it counts only once the
metadata that the answer names is applied here: a broker that was deposed meanwhile learns of it first.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

HEARTBEATS_MAX: Final = 32
"""Heartbeats whose answers are waited for, and answers whose metadata is; of more, the oldest are forgotten."""


class BrokerLease:
    """Of one registration: a new broker epoch needs a new one."""

    def __init__(self, *, broker_epoch: int) -> None:
        self.broker_epoch = broker_epoch
        self._expires_ms: int | None = None
        self._applied_version = 0
        self._sent_ms: OrderedDict[int, int] = OrderedDict()
        self._granted: OrderedDict[int, tuple[int, int]] = OrderedDict()
        """By heartbeat: (the version that must be applied first, when the lease will end)."""

    @property
    def expires_ms(self) -> int | None:
        """When the lease ends or has ended; None before the first, and after its end was said."""
        return self._expires_ms

    @property
    def applied_version(self) -> int:
        """The metadata version to report with the next heartbeat."""
        return self._applied_version

    def is_held(self, now_ms: int) -> bool:
        """Whether this broker may act as the leader of what the metadata says that it leads."""
        return self._expires_ms is not None and now_ms < self._expires_ms

    def on_heartbeat_sent(self, seq: int, now_ms: int) -> None:
        """Call before the heartbeat leaves: a moment that lies too early is safe, one that lies too late is not."""
        self._sent_ms[seq] = now_ms
        while len(self._sent_ms) > HEARTBEATS_MAX:
            self._sent_ms.popitem(last=False)

    def on_heartbeat_answered(self, seq: int, broker_epoch: int, lease_ms: int, metadata_version: int) -> None:
        """The controller granted a lease for this heartbeat; with 0 ms it did not: the one that is held runs out."""
        sent_ms = self._sent_ms.pop(seq, None)
        if sent_ms is None or broker_epoch != self.broker_epoch or lease_ms <= 0:
            return
        self._granted[seq] = (metadata_version, sent_ms + lease_ms)
        while len(self._granted) > HEARTBEATS_MAX:
            self._granted.popitem(last=False)
        self._extend()

    def on_applied(self, metadata_version: int) -> None:
        """Everything up to this version is applied: leaderships that ended by then are not served any more."""
        self._applied_version = max(self._applied_version, metadata_version)
        self._extend()

    def on_fenced(self) -> None:
        """The metadata says that this registration is fenced. What was granted before that is void."""
        self._expires_ms = None
        self._sent_ms.clear()
        self._granted.clear()

    def _extend(self) -> None:
        for seq, (version, expires_ms) in list(self._granted.items()):
            if version <= self._applied_version:
                del self._granted[seq]
                # Answers may overtake each other, and an older one says nothing against a newer.
                self._expires_ms = expires_ms if self._expires_ms is None else max(self._expires_ms, expires_ms)
