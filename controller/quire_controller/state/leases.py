"""How long brokers may lead, as the leading controller sees it. Its clock, in memory, for one term.

A broker counts its lease from when it *sent* a heartbeat, this side from when it was *received*, which is later. So a
lease that has ended here has ended there too, however long the heartbeat, its confirmation by the quorum or the
answer took. What is not measured is the speed of the clocks: RATE_PERCENT is how much they may differ.

    heartbeat received ──► quorum round ──► `on_heartbeat_confirmed` ──► answered with its lease, or with none
    every tick: `observe` the state, then `expired` ──► FenceBroker for each

A new leader does not know which heartbeats its predecessor answered. Whoever it finds active may have a lease from a
heartbeat sent just before, so each gets a whole lease and TAKEOVER_PERCENT more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from quire_controller.state.model import Broker

TAKEOVER_PERCENT: Final = 10
RATE_PERCENT: Final = 1
PAUSE_MS: Final = 1_000
"""If so much passed between two looks at the clock, it was this process that stood still."""


@dataclass(slots=True)
class _Lease:
    broker: Broker
    """As it was when it was looked at last."""
    broker_epoch: int
    lease_ms: int
    expires_ms: int
    applied_version: int = 0
    condemned: bool = False
    """Once it was said to have expired it is not extended any more: its end may be on the way to being committed."""


class LeaseKeeper:
    """Made when a controller has become leader and its `BeginTerm` is applied; dropped when it is leader no more."""

    def __init__(self, *, term: int, now_ms: int, brokers: Mapping[int, Broker]) -> None:
        self.term = term
        self._looked_ms = now_ms
        self._leases: dict[int, _Lease] = {}
        self.observe(brokers, now_ms)

    def observe(self, brokers: Mapping[int, Broker], now_ms: int) -> None:
        """Take note of who is active by now, and who no more."""
        for broker_id in [broker_id for broker_id in self._leases if broker_id not in brokers]:
            del self._leases[broker_id]
        for broker_id, broker in brokers.items():
            known = self._leases.get(broker_id)
            if broker.fenced:
                self._leases.pop(broker_id, None)
            elif known is None or _is_granted_anew(known.broker, broker):
                expires_ms = now_ms + _longer(broker.lease_ms, TAKEOVER_PERCENT)
                self._leases[broker_id] = _Lease(broker, broker.broker_epoch, broker.lease_ms, expires_ms)
            else:
                known.broker = broker

    def on_heartbeat_confirmed(
        self, *, broker_id: int, broker_epoch: int, received_ms: int, applied_version: int = 0
    ) -> int:
        """A quorum round that began after the receipt of a heartbeat is over. Gives the lease to answer with, in ms.

        0: none. The broker is not active under this epoch, or its end was proposed and cannot be taken back.
        """
        lease = self._leases.get(broker_id)
        if lease is None or lease.broker_epoch != broker_epoch:
            return 0
        # What it says about itself is true also if it gets no lease.
        lease.applied_version = max(lease.applied_version, applied_version)
        if lease.condemned:
            return 0
        lease.expires_ms = max(lease.expires_ms, received_ms + _longer(lease.lease_ms, RATE_PERCENT))
        return lease.lease_ms

    def expired(self, now_ms: int) -> list[tuple[int, int]]:
        """(broker id, broker epoch) of those to be fenced, again and again until they are. In ascending order."""
        if now_ms - self._looked_ms >= PAUSE_MS:
            # Heartbeats may lie unread while we stood still. To wait longer is always safe.
            for lease in self._leases.values():
                lease.expires_ms = max(lease.expires_ms, now_ms + lease.lease_ms)
        self._looked_ms = now_ms
        for lease in self._leases.values():
            lease.condemned = lease.condemned or lease.expires_ms <= now_ms
        return [
            (broker_id, self._leases[broker_id].broker_epoch)
            for broker_id in sorted(self._leases)
            if self._leases[broker_id].condemned
        ]

    def has_applied(self, *, broker_id: int, broker_epoch: int, version: int) -> bool:
        """Whether the broker said that it has applied the metadata of this version."""
        lease = self._leases.get(broker_id)
        return lease is not None and lease.broker_epoch == broker_epoch and lease.applied_version >= version


def _is_granted_anew(before: Broker, now: Broker) -> bool:
    """Whether an active broker is so by another grant: it may have been fenced and let in again between two looks.

    A value is replaced when it changes, and nothing else changes an active broker under its epoch but its draining.
    After that a lease that has ended stays so: its end may be on the way to being committed.
    """
    return before.broker_epoch != now.broker_epoch or (before is not now and before.drain is now.drain)


def _longer(lease_ms: int, percent: int) -> int:
    return lease_ms + -(-lease_ms * percent // 100)
