"""Nodes with peer links on any of the networks, and handlers that write down what happens to them."""

from __future__ import annotations

import asyncio
import datetime
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quire.errors import QuireError
from quire.link import certs, tls
from quire.link.config import LinkConfig
from quire.link.dialer import Dialer
from quire.link.frames import Frame
from quire.link.handshake import NodeIdentity
from quire.link.listener import Listener
from quire.link.network import Address, Network
from quire.link.session import Session
from quire.link.sim import SimNetwork, SimScheduler
from quire.link.tcp import TcpNetwork

CLUSTER = "cluster-1"
NODES = ("a", "b", "c", "d")
WAIT_S = 60
"""When a condition that must become true counts as one that does not."""
NEVER_MS = 3_600_000

CONFIG = LinkConfig(backoff_ms_min=1, backoff_ms_max=20, silence_ms_max=NEVER_MS, stall_ms_max=NEVER_MS)
"""For tests that are not about time: they are not to fail on a machine that stands still for a while."""


@dataclass
class Recorder:
    """A handler that remembers everything."""

    ups: list[Session] = field(default_factory=list)
    downs: list[tuple[Session, QuireError]] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    """up and down, in order, with the session's id."""
    then: Callable[[Session, Frame], None] = lambda session, frame: None

    @property
    def session(self) -> Session:
        return self.ups[-1]

    def on_up(self, session: Session) -> None:
        self.ups.append(session)
        self.events.append(f"up {session.session_id.hex()}")

    def on_frame(self, session: Session, frame: Frame) -> None:
        assert session.is_up
        self.frames.append(frame)
        self.then(session, frame)

    def on_down(self, session: Session, error: QuireError) -> None:
        assert not session.is_up
        self.downs.append((session, error))
        self.events.append(f"down {session.session_id.hex()}")


class Harness(ABC):
    """A cluster's nodes on one kind of network."""

    secure = False

    def __init__(self) -> None:
        self.randomness = random.Random(7)
        self._listeners: list[Listener] = []
        self._dialers: list[Dialer] = []

    @abstractmethod
    def network(self, node: str) -> Network: ...

    @abstractmethod
    def address(self, node: str) -> Address: ...

    @abstractmethod
    async def until(self, condition: Callable[[], bool]) -> None: ...

    @abstractmethod
    async def settle(self) -> None:
        """Let whatever can happen now happen, timers aside."""

    def listener(
        self,
        node: str,
        handler: Recorder,
        *,
        config: LinkConfig = CONFIG,
        cluster: str = CLUSTER,
        knows: Callable[[str], bool] = lambda node: node in NODES,
    ) -> Listener:
        listener = Listener(
            network=self.network(node),
            local=NodeIdentity(cluster, node),
            knows=knows,
            new_session_id=lambda: self.randomness.randbytes(16),
            handler=handler,
            config=config,
        )
        self._listeners.append(listener)
        return listener

    def dialer(
        self,
        node: str,
        peer: str,
        address: Address,
        handler: Recorder,
        *,
        config: LinkConfig = CONFIG,
        cluster: str = CLUSTER,
    ) -> Dialer:
        dialer = Dialer(
            network=self.network(node),
            local=NodeIdentity(cluster, node),
            peer_id=peer,
            address=address,
            handler=handler,
            config=config,
            randomness=self.randomness,
        )
        self._dialers.append(dialer)
        return dialer

    async def pair(
        self, *, accepting: LinkConfig = CONFIG, dialing: LinkConfig = CONFIG
    ) -> tuple[Recorder, Recorder]:
        """A session between a, which accepted, and b, which dialed."""
        a, b = Recorder(), Recorder()
        address = self.listener("a", a, config=accepting).start(self.address("a"))
        self.dialer("b", "a", address, b, config=dialing).start()
        await self.until(lambda: bool(a.ups and b.ups))
        return a, b

    async def done(self, waiting: Coroutine[Any, Any, None]) -> None:
        """Await something that needs the network to go on meanwhile."""
        task = asyncio.ensure_future(waiting)
        await self.until(task.done)
        await task

    async def close(self) -> None:
        """End everything. Each session that was up must have been reported down, and no connection must be left."""
        for dialer in self._dialers:
            dialer.close()
        for listener in self._listeners:
            listener.close()
        for dialer in self._dialers:
            await self.done(dialer.wait_closed())
        for listener in self._listeners:
            await self.done(listener.wait_closed())


class SimHarness(Harness):
    def __init__(self, seed: int = 1) -> None:
        super().__init__()
        self.scheduler = SimScheduler()
        self.sim = SimNetwork(self.scheduler, random.Random(seed))

    def network(self, node: str) -> Network:
        return self.sim.host(node)

    def address(self, node: str) -> Address:
        return Address(node, 0)

    async def until(self, condition: Callable[[], bool]) -> None:
        deadline = self.scheduler.time() + 2 * NEVER_MS / 1000
        while not condition():
            await asyncio.sleep(0)  # tasks of the real loop have their turn before virtual time goes on
            if condition():
                return
            assert self.scheduler.step(), "nothing more will happen"
            assert self.scheduler.time() < deadline, "it does not happen"

    async def settle(self) -> None:
        await asyncio.sleep(0)
        self.scheduler.run_for(0.1)
        await asyncio.sleep(0)


class TcpHarness(Harness):
    def __init__(self, certificates: Path | None) -> None:
        super().__init__()
        self.secure = certificates is not None
        self._certificates = certificates
        self._networks: dict[str, TcpNetwork] = {}

    def network(self, node: str) -> Network:
        if node not in self._networks:
            contexts = None
            if self._certificates is not None:
                contexts = tls.load(tls.TlsFiles(self._certificates / "ca.pem", self._certificates / f"{node}.pem"))
            self._networks[node] = TcpNetwork(contexts=contexts, handshake_ms_max=NEVER_MS)
        return self._networks[node]

    def address(self, node: str) -> Address:
        return Address("127.0.0.1", 0)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():  # noqa: ASYNC110  # conditions are of many kinds; this is how often to look
                await asyncio.sleep(0.001)

    async def settle(self) -> None:
        for _ in range(100):
            await asyncio.sleep(0)

    async def close(self) -> None:
        await super().close()
        for network in self._networks.values():
            await network.close()
        await self.until(lambda: asyncio.all_tasks() == {asyncio.current_task()})


def make_certificates(directory: Path, *, cluster: str = CLUSTER) -> Path:
    """A node CA and a certificate for each of NODES."""
    now = datetime.datetime.now(datetime.UTC)
    certs.init(directory, cluster_id=cluster, nodes=[certs.NodeSpec(node) for node in NODES], days=1, now=now)
    return directory
