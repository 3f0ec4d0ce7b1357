"""One registration of this broker, from its broker epoch to its end.

    registered ──► applied and ready ──► unfenced ──► a heartbeat answered: holds a lease ──► … ──► over

Whether it is over is told by the metadata, by a controller's refusal, or by this process, whichever comes first. A
session that is over leads nothing, whatever answers to its heartbeats still arrive.
"""

from __future__ import annotations

import asyncio
import enum

from quire.lease import BrokerLease
from quire.v1 import metadata_pb2


class Ending(enum.Enum):
    FENCED = enum.auto()
    """The controllers shut this broker out: its lease had ended, or somebody saw it die."""
    SUPERSEDED = enum.auto()
    """The broker has registered anew: this process by a call that it took for lost, or another one."""
    UNREGISTERED = enum.auto()
    """Somebody told the controllers to forget this broker."""
    OUTDATED = enum.auto()
    """This process has more to say of its logs than it had when it registered."""
    LEFT = enum.auto()
    """This process is stopping."""


class Session:
    """To be made on the running loop."""

    def __init__(self, *, broker_epoch: int, version: int, applied_version: int) -> None:
        """`version` is the metadata version that shows the registration."""
        self.broker_epoch = broker_epoch
        self.version = version
        self.over: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self.lease = BrokerLease(broker_epoch=broker_epoch)
        self.lease.on_applied(applied_version)
        self._was_active = False
        self._unfenced_version: int | None = None

    @property
    def is_over(self) -> bool:
        return self.over.done()

    def may_lead(self, now_ms: int) -> bool:
        return not self.over.done() and self.lease.is_held(now_ms)

    def end(self, ending: Ending) -> None:
        if not self.over.done():
            self.lease.on_fenced()
            self.over.set_result(ending)

    def on_unfenced(self, version: int) -> None:
        """A controller says that since this metadata version the broker takes part."""
        self._unfenced_version = version

    def look(self, broker: metadata_pb2.Broker | None, version: int) -> None:
        """What the metadata of this version says of the broker; None: nothing."""
        if version < self.version:
            return  # it is of before this registration
        if broker is None:
            self.end(Ending.UNREGISTERED)
        elif broker.broker_epoch > self.broker_epoch:
            self.end(Ending.SUPERSEDED)
        elif not broker.fenced:
            self._was_active = True
        elif self._was_active or (self._unfenced_version is not None and version >= self._unfenced_version):
            # Each registration begins fenced: it is over only if it had been let in.
            self.end(Ending.FENCED)
