"""A membership on the real controller's services, in virtual time, and a record of what it calls back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from quire.errors import QuireError
from quire.v1 import commands_pb2, controller_pb2, metadata_pb2
from quire_broker.runtime.controllers import QuorumClient
from quire_broker.runtime.membership import Membership, MembershipConfig, Registration
from quire_broker.state.image import Changes, MetadataImage
from tests.unit.broker_quorum import LocalMember, local_members
from tests.unit.controller_service_harness import FEATURES, Services, called_by

LISTENERS = (
    metadata_pb2.Listener(name="client", protocol=metadata_pb2.LISTENER_PROTOCOL_GRPC, host="b1.example", port=7400),
    metadata_pb2.Listener(name="peer", protocol=metadata_pb2.LISTENER_PROTOCOL_PEER, host="b1.example", port=7410),
)
INCARNATION = b"i" * 16
LEASE_S = 3.0


class World:
    """Three controllers of one quorum and broker 1. To be made on the running loop."""

    def __init__(self, *, seed: int = 1, config: MembershipConfig | None = None, broker_id: int = 1) -> None:
        self.services = Services()
        called_by(within_s=1e6)
        self.members: list[LocalMember] = local_members(self.services, "c1:1", "c2:1", "c3:1")
        self.image = MetadataImage()
        self.events: list[tuple[float, str, Any]] = []
        self.is_ready = asyncio.Event()
        self.is_ready.set()
        self.applies = True
        """Whether what the metadata says is done at once."""
        self.log_ends: Iterable[commands_pb2.LogEnd] = ()
        self._loop = asyncio.get_running_loop()
        randomness = random.Random(seed)
        self.controllers = QuorumClient(self.members, client_id=f"broker-{broker_id}", randomness=randomness)
        self.membership = Membership(
            self.controllers,
            self.image,
            registration=Registration(
                cluster_id="c",
                broker_id=broker_id,
                node_id=f"node-{broker_id}",
                incarnation_id=INCARNATION,
                listeners=LISTENERS,
                features=FEATURES,
                rack="r1",
            ),
            heartbeat_ms=500,
            randomness=randomness,
            log_ends=lambda: self.log_ends,
            on_changes=self._on_changes,
            ready=self._ready,
            on_registered=lambda epoch: self._note("registered", epoch),
            on_lease_gained=lambda: self._note("lease gained"),
            on_lease_lost=lambda: self._note("lease lost"),
            config=config,
        )

    def _note(self, what: str, detail: Any = None) -> None:
        self.events.append((self._loop.time(), what, detail))

    def _on_changes(self, changes: Changes) -> None:
        self._note("changes", changes.version)
        if self.applies:
            self.membership.on_applied(changes.version)

    async def _ready(self) -> None:
        self._note("asked whether ready")
        await self.is_ready.wait()

    @property
    def now(self) -> float:
        return self._loop.time()

    @property
    def me(self) -> Any:
        """This broker in the controllers' state; None if it is not there."""
        return self.services.state.brokers.get(1)

    def seen(self, *what: str) -> list[str]:
        """Which of these were called back, in order."""
        return [event for _, event, _ in self.events if event in what]

    def last(self, what: str) -> float:
        """When it was called back the last time."""
        return max(at for at, event, _ in self.events if event == what)

    def fail_all(self, **fate: Any) -> None:
        for member in self.members:
            member.fail(**fate)

    async def until(self, condition: Callable[[], bool], *, within_s: float = 60) -> float:
        """The moment at which it holds, to the millisecond."""
        end = self.now + within_s
        while not condition():
            assert self.now < end, f"it did not come about: {self.events[-20:]}"
            await asyncio.sleep(0.001)
        return self.now

    async def taking_part(self) -> None:
        await self.until(self.membership.may_lead)

    async def fence(self, cause: commands_pb2.FenceCause.ValueType = commands_pb2.FENCE_CAUSE_CRASHED) -> None:
        """As a supervisor that saw it die."""
        request = controller_pb2.FenceBrokerRequest(broker_id=1, broker_epoch=self.me.broker_epoch, cause=cause)
        await self.services.brokers.FenceBroker(request, None)

    def requests(self, name: str) -> list[bytes]:
        """Those that came to any controller."""
        return [data for member in self.members for data in member.named(name)]

    def knows(self, topic_id: bytes) -> bool:
        return self.image.topic(topic_id) is not None

    def heartbeats(self) -> int:
        return len(self.requests("Heartbeat"))


@asynccontextmanager
async def world(**settings: Any) -> AsyncIterator[World]:
    """With a membership that runs."""
    made = World(**settings)
    running = asyncio.create_task(made.membership.run())
    try:
        yield made
        assert not running.done(), f"it ended by itself: {running}"
    finally:
        running.cancel()
        await asyncio.wait([running])
        await made.controllers.close()
        made.services.runtime.stop()
    if not running.cancelled() and (error := running.exception()) is not None:
        raise error


async def ending(made: World) -> QuireError:
    """The error with which a membership ends."""
    try:
        async with asyncio.timeout(60):
            await made.membership.run()
    except* QuireError as errors:
        found = errors
    first: BaseException = found
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    assert isinstance(first, QuireError)
    return first
