"""A quorum on virtual time: the real Raft package, simulated disks, a network at its worst. Same seed, same trace."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from quire.disk.sim_disk import SimDisk, SimulatedCrash
from quire.errors import OutcomeUnknownError, QuireError
from quire.link.config import LinkConfig
from quire.link.handshake import NodeIdentity
from quire.link.network import Address, Timer
from quire.link.sim import SimConfig, SimHost, SimNetwork, SimScheduler
from quire.types import Buffer
from quire.v1 import raft_pb2
from quire_controller.ports import Applied, StateMachine
from quire_controller.raft.config import RaftConfig
from quire_controller.raft.messages import decode
from quire_controller.raft.node import RaftNode
from quire_controller.raft.peers import LinkPeers, Peers, PeersHandler

CLUSTER = "sim"
DIRECTORY = "/raft"
SOON_S_MAX = 0.004
CONFIG = RaftConfig(tick_ms=20, snapshot_entries=40, chunk_bytes=512, append_entries_max=16, window_entries_max=64)


class Violation(AssertionError):
    """The quorum broke a promise."""


@dataclass
class Weather:
    """What the network does to messages."""

    loss: float = 0.0
    doubling: float = 0.0
    delay_ms_max: float = 5.0
    stray: float = 0.0
    """How many messages take up to a second."""


class MessagePeers:
    """`Peers` without sessions: any message may be lost, doubled, delayed and overtaken."""

    def __init__(self, world: World, me: str) -> None:
        self._world = world
        self._me = me
        self._handler: PeersHandler | None = None

    def start(self, handler: PeersHandler) -> None:
        self._handler = handler
        for other in self._world.names:
            if other != self._me:
                handler.on_connected(other)

    def send(self, peer: str, header: raft_pb2.RaftMessage, body: Sequence[Buffer]) -> None:
        frame = (header.SerializeToString(), b"".join(body))
        self._world.travel(self._me, peer, frame)

    def flush(self) -> None:
        """It is on its way already."""

    def deliver(self, source: str, header: bytes, body: bytes) -> None:
        if self._handler is not None:
            self._handler.on_message(source, decode(header), body)

    def close(self) -> None:
        self._handler = None


class BusyScheduler:
    """A loop that has other things to do: what is to happen soon happens a little later, after a crash perhaps."""

    def __init__(self, host: SimHost, randomness: random.Random) -> None:
        self._host = host
        self._randomness = randomness

    def time(self) -> float:
        return self._host.time()

    def call_soon(self, callback: Callable[[], object], /) -> Timer:
        return self._host.call_later(self._randomness.uniform(0, SOON_S_MAX), callback)

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Timer:
        return self._host.call_later(delay, callback)


class Watched:
    """A state machine that tells the world what is applied to it."""

    def __init__(self, world: World, name: str, inner: StateMachine) -> None:
        self._world = world
        self._name = name
        self.inner = inner

    def apply(self, index: int, command: bytes) -> bytes:
        self._world.on_applied(self._name, index, command)
        return self.inner.apply(index, command)

    def freeze(self) -> Any:
        return self.inner.freeze()

    def restore(self, pieces: Any) -> None:
        self.inner.restore(pieces)


@dataclass
class Member:
    name: str
    disk: SimDisk
    node: RaftNode | None = None
    machine: Watched | None = None
    peers: Peers | None = None
    is_paused: bool = False
    refused: QuireError | None = None
    """Why it did not start."""
    extra: Any = None
    """Whatever a test runs on top of the node; gone with the process."""


@dataclass
class World:
    seed: int
    size: int
    make_machine: Callable[[], StateMachine]
    config: RaftConfig = CONFIG
    over_link: bool = False
    """Whether messages go over the peer link on the simulated network, or bare."""
    on_start: Callable[[World, Member], None] | None = None
    on_died: Callable[[str], None] | None = None
    """Told when a member's simulated disk ended it."""
    on_command: Callable[[int, bytes], None] | None = None
    """Told of each command when it is about to be applied for the first time anywhere."""
    names: list[str] = field(init=False)
    trace: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.names = [f"n{number}" for number in range(1, self.size + 1)]
        self.random = random.Random(self.seed)
        self.scheduler = SimScheduler()
        self.network = SimNetwork(self.scheduler, random.Random(self.random.getrandbits(64)), SimConfig())
        self.weather = Weather()
        self.members = {name: Member(name, SimDisk()) for name in self.names}
        self.leaders: dict[int, str] = {}
        self.committed: dict[int, bytes] = {}
        """What was applied anywhere, by index."""
        self._noted_terms: set[int] = set()

    # -- time ------------------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self.scheduler.time()

    def note(self, what: str) -> None:
        self.trace.append(f"{self.now:10.4f} {what}")

    def run_for(self, seconds: float) -> None:
        self.scheduler.run_for(seconds)

    def run_until(self, condition: Callable[[], bool], *, within: float, what: str) -> None:
        end = self.now + within
        while not condition():
            if self.now > end:
                raise Violation(f"seed {self.seed}: {what} did not happen within {within} s")
            self.scheduler.run_for(0.05)

    # -- members ---------------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        member = self.members[name]
        host = self.network.host(name)
        machine = Watched(self, name, self.make_machine())
        randomness = random.Random(self.random.getrandbits(64))
        member.is_paused = False
        member.refused = None
        others = [other for other in self.names if other != name]
        peers: Peers = MessagePeers(self, name)
        if self.over_link:
            session_ids = random.Random(self.random.getrandbits(64))
            peers = LinkPeers(
                network=host,
                local=NodeIdentity(CLUSTER, name),
                listen=Address(name, 7411),
                members={other: Address(other, 7411) for other in others},
                randomness=randomness,
                config=LinkConfig(ping_ms=100, silence_ms_max=500, backoff_ms_max=200, backoff_ms_min=20),
                new_session_id=lambda: session_ids.randbytes(16),
            )

        def background(work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
            def run() -> None:
                try:
                    work()
                except BaseException as error:
                    done(error)
                else:
                    done(None)

            host.call_later(self.random.uniform(0, 0.05), run)

        try:
            node = RaftNode(
                cluster_id=CLUSTER,
                member_id=name,
                others=others,
                disk=member.disk,
                directory=DIRECTORY,
                state_machine=machine,
                peers=peers,
                scheduler=BusyScheduler(host, randomness),
                background=background,
                randomness=randomness,
                on_fatal=lambda error: self._on_fatal(name, error),
                config=self.config,
                segment_bytes=2048,
                ahead_bytes=512,
            )
        except SimulatedCrash as crash:
            self.note(f"{name} died while it started: {crash}")
            member.disk.power_cut(self.random)
            if self.on_died is not None:
                self.on_died(name)
            return
        except QuireError as error:
            member.refused = error
            self.note(f"{name} refuses to start: {error.message}")
            return
        member.node, member.machine, member.peers = node, machine, peers
        node.observe(lambda: self._on_turn(name, node))
        if self.on_start is not None:
            self.on_start(self, member)
        node.start()
        self.note(f"{name} started, votes={node.status().votes} last={node.status().last_index}")

    def crash(self, name: str, *, lose_unsynced: bool) -> None:
        """End a member; with `lose_unsynced` as by a power cut, else as by SIGKILL."""
        member = self.members[name]
        if member.node is None:
            return
        self.note(f"{name} {'loses power' if lose_unsynced else 'is killed'}")
        self.network.crash(name)
        member.node = member.machine = member.peers = member.extra = None
        if lose_unsynced:
            member.disk.power_cut(self.random)
        else:
            member.disk.kill()

    def wipe(self, name: str) -> None:
        self.crash(name, lose_unsynced=False)
        self.note(f"{name} is wiped")
        self.members[name].disk = SimDisk()

    def pause(self, name: str) -> None:
        if self.members[name].node is not None:
            self.note(f"{name} is stopped")
            self.members[name].is_paused = True
            self.network.pause(name)

    def resume(self, name: str) -> None:
        if self.members[name].is_paused:
            self.note(f"{name} goes on")
            self.members[name].is_paused = False
            self.network.resume(name)

    def running(self) -> list[Member]:
        return [member for member in self.members.values() if member.node is not None]

    def leader(self) -> Member | None:
        """The leader of the latest term that anyone believes in."""
        leaders = [member for member in self.running() if member.node is not None and member.node.is_leader]
        return max(leaders, key=lambda member: member.node.term if member.node else 0, default=None)

    def _on_fatal(self, name: str, error: BaseException) -> None:
        if isinstance(error, SimulatedCrash):
            self.note(f"{name} died in the middle: {error}")
            self.scheduler.call_soon(lambda: self.crash(name, lose_unsynced=True))
            if self.on_died is not None:
                self.on_died(name)
            return
        raise Violation(f"seed {self.seed}: {name} cannot go on: {error!r}") from error

    # -- the network -----------------------------------------------------------------------------------------------

    def travel(self, source: str, target: str, frame: tuple[bytes, bytes]) -> None:
        weather, chance = self.weather, self.random
        if self.network.is_cut(source, target) or chance.random() < weather.loss:
            return
        for _ in range(2 if chance.random() < weather.doubling else 1):
            slow = chance.random() < weather.stray
            delay = chance.uniform(0, 1.0 if slow else weather.delay_ms_max / 1000)
            self.scheduler.call_later(delay, lambda: self._arrive(source, target, frame))

    def _arrive(self, source: str, target: str, frame: tuple[bytes, bytes]) -> None:
        if not self.network.is_cut(source, target):
            self.network.host(target).run(lambda: self._deliver(source, target, frame))

    def _deliver(self, source: str, target: str, frame: tuple[bytes, bytes]) -> None:
        peers = self.members[target].peers
        if isinstance(peers, MessagePeers):
            peers.deliver(source, *frame)

    # -- checks ----------------------------------------------------------------------------------------------------

    def _on_turn(self, name: str, node: RaftNode) -> None:
        if node.is_leader:
            before = self.leaders.setdefault(node.term, name)
            if before != name:
                raise Violation(f"seed {self.seed}: '{before}' and '{name}' both lead term {node.term}")
            if node.term not in self._noted_terms:
                self._noted_terms.add(node.term)
                self.note(f"{name} leads term {node.term}")

    def on_applied(self, name: str, index: int, command: bytes) -> None:
        if index not in self.committed and self.on_command is not None:
            self.on_command(index, command)
        before = self.committed.setdefault(index, command)
        if before != command:
            raise Violation(f"seed {self.seed}: entry {index} at {name} is {command!r}, elsewhere it was {before!r}")

    def check_logs(self) -> None:
        """Log matching: entries of the same index and term are the same, and so is all before them."""
        logs = {}
        for member in self.running():
            if member.node is not None:
                journal = member.node._storage.journal
                logs[member.name] = {index: (term, data) for data, index, term in journal[1:]}
        names = sorted(logs)
        for number, one in enumerate(names):
            for other in names[number + 1 :]:
                common = sorted(set(logs[one]) & set(logs[other]), reverse=True)
                agree = False
                for index in common:
                    same_term = logs[one][index][0] == logs[other][index][0]
                    if same_term and logs[one][index] != logs[other][index]:
                        raise Violation(f"seed {self.seed}: {one} and {other} differ at {index} in one term")
                    if agree and not same_term:
                        raise Violation(f"seed {self.seed}: {one} and {other} agree after {index} but not there")
                    agree = agree or same_term


def ask(
    world: World, name: str, command: bytes, callback: Callable[[Applied | QuireError], None], *, within: float
) -> None:
    """Propose a command at a member, from outside of it; the answer may be lost with the member."""
    answered = False

    def once(outcome: Applied | QuireError) -> None:
        nonlocal answered
        if not answered:
            answered = True
            callback(outcome)

    def begin() -> None:
        node = world.members[name].node
        if node is not None:
            # The answer leaves the member only while it runs, and takes its time.
            life = world.network.host(name).life

            def left(outcome: Applied | QuireError) -> None:
                world.scheduler.call_later(0.001, lambda: leave(life, outcome))

            node.propose(command, left)

    def leave(life: int, outcome: Applied | QuireError) -> None:
        if world.network.host(name).life == life or isinstance(outcome, Applied):
            once(outcome)

    world.scheduler.call_later(0.001, lambda: world.network.host(name).run(begin))
    world.scheduler.call_later(within, lambda: once(OutcomeUnknownError("no answer")))
