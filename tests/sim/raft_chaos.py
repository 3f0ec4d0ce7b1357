"""One run: a quorum, clients that retry, and a nemesis, all from one seed; then heal, and compare what is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from quire.errors import DiskFullError, OutcomeUnknownError, QuireError
from quire_controller.ports import Applied
from tests.raftkill.checker import Replica, check
from tests.raftkill.history import Event, History, Kind
from tests.raftkill.toy_machine import ToyMachine, encode_command
from tests.sim.raft_world import Member, Violation, Weather, World, ask

CLIENTS: Final = 3
FAULTS_S: Final = 8.0
HEAL_S: Final = 30.0


class Client:
    """Sends numbered values one after the other, each again and again until it is acknowledged."""

    def __init__(self, chaos: Chaos, name: str) -> None:
        self._chaos = chaos
        self._name = name
        self.seq = 0
        self._next()

    def _next(self) -> None:
        self.seq += 1
        self._try()

    def _try(self) -> None:
        chaos, world = self._chaos, self._chaos.world
        if chaos.is_over:
            return
        target = world.random.choice(world.names)
        value = f"{self._name}-{self.seq}"
        seq = self.seq
        self._record(Kind.INVOKE, value, target)

        def answered(outcome: Applied | QuireError) -> None:
            if isinstance(outcome, Applied):
                chaos.acked_index = max(chaos.acked_index, outcome.index)
                self._record(Kind.OK, value, target, index=int(outcome.result) or None)
                world.scheduler.call_later(world.random.uniform(0, 0.02), self._next)
                return
            kind = Kind.INFO if isinstance(outcome, OutcomeUnknownError) else Kind.FAIL
            self._record(kind, value, target, error=outcome.message)
            world.scheduler.call_later(world.random.uniform(0.02, 0.1), self._try)

        ask(world, target, encode_command(self._name, seq, value), answered, within=world.random.uniform(0.2, 1.5))

    def _record(
        self, kind: Kind, value: str, member: str, *, index: int | None = None, error: str | None = None
    ) -> None:
        time_ms = round(self._chaos.world.now * 1000)
        if kind is Kind.OK:
            self._chaos.world.note(f"{value} acknowledged by {member} at {index}")
        self._chaos.history.add(Event(kind, self._name, self.seq, value, member, time_ms, index=index, error=error))


class Reader:
    """Asks how far a read must wait, now here, now there: for all that was acknowledged before it asked."""

    def __init__(self, chaos: Chaos) -> None:
        self._chaos = chaos
        self._ask()

    def _ask(self) -> None:
        chaos, world = self._chaos, self._chaos.world
        if chaos.is_over:
            return
        world.scheduler.call_later(world.random.uniform(0.01, 0.1), self._ask)
        name = world.random.choice(world.names)
        world.network.host(name).run(lambda: self._confirm(name))

    def _confirm(self, name: str) -> None:
        chaos, node = self._chaos, self._chaos.world.members[name].node
        acked = chaos.acked_index

        def confirmed(outcome: int | QuireError) -> None:
            if isinstance(outcome, int):
                chaos.reads += 1
                if outcome < acked:
                    # Not raised: the member would take it for an error of its own.
                    chaos.stale_reads.append(f"{name} may read at {outcome}, and {acked} was acknowledged before")

        if node is not None:
            node.confirm(confirmed)


class Chaos:
    def __init__(self, seed: int, size: int, *, over_link: bool = False, wipes: bool = True) -> None:
        self.world = World(seed=seed, size=size, make_machine=ToyMachine, over_link=over_link)
        self.world.on_died = self._restart_later
        self.history = History()
        self.is_over = False
        self._wipes = wipes
        self._wiped: str | None = None
        self.faults: list[str] = []
        self.acked_index = 0
        """The last entry of which a client was told."""
        self.reads = 0
        self.stale_reads: list[str] = []

    def run(self) -> None:
        world = self.world
        for name in world.names:
            world.start(name)
        clients = [Client(self, f"c{number}") for number in range(CLIENTS)]
        Reader(self)
        world.run_until(lambda: self.history.acks > 0, within=HEAL_S, what="the first acknowledgement")
        end = world.now + FAULTS_S
        while world.now < end:
            self._fault()
            world.run_for(world.random.uniform(0.05, 0.8))
            world.check_logs()
        self._heal()
        acked = [client.seq for client in clients]
        world.run_until(
            lambda: all(client.seq > before + 1 for client, before in zip(clients, acked, strict=True)),
            within=HEAL_S,
            what="progress after the network was healed",
        )
        self.is_over = True
        world.run_for(2.0)
        world.run_until(self._are_equal, within=HEAL_S, what="agreement of all members")
        world.check_logs()
        replicas = {
            member.name: Replica(member.node.applied_index, self._machine(member).values)
            for member in world.running()
            if member.node is not None
        }
        anomalies = check(self.history, replicas)
        if anomalies or self.stale_reads:
            raise Violation(f"seed {world.seed}: " + "; ".join([*map(str, anomalies), *self.stale_reads]))

    # -- faults ----------------------------------------------------------------------------------------------------

    def _fault(self) -> None:
        faults: list[Callable[[], None]] = [
            self._partition,
            self._one_way,
            self._bridge,
            self._storm,
            self._pause,
            self._kill_some,
            self._die_in_a_write,
            self._kill_all,
            self._fill_a_disk,
            self._heal,
            self._heal,
        ]
        if self._wipes:
            faults.append(self._wipe)
        fault = self.world.random.choice(faults)
        self.faults.append(fault.__name__)
        fault()

    def _partition(self) -> None:
        names = self.world.random.sample(self.world.names, self.world.size)
        cut = self.world.random.randint(1, self.world.size - 1)
        self.world.note(f"partition {names[:cut]} from {names[cut:]}")
        self.world.network.partition(names[:cut], names[cut:])

    def _one_way(self) -> None:
        leader = self.world.leader()
        source = self.world.random.choice(self.world.names) if leader is None else leader.name
        others = [name for name in self.world.names if name != source]
        for other in others if self.world.random.random() < 0.5 else others[:1]:
            pair = (source, other) if self.world.random.random() < 0.5 else (other, source)
            self.world.note(f"cut {pair[0]} to {pair[1]}")
            self.world.network.cut(*pair)

    def _bridge(self) -> None:
        names = self.world.random.sample(self.world.names, self.world.size)
        middle = len(names) // 2
        self.world.note(f"bridge {names[:middle]} - {names[middle]} - {names[middle + 1 :]}")
        self.world.network.partition(names[:middle], names[middle + 1 :])

    def _storm(self) -> None:
        chance = self.world.random
        self.world.weather = Weather(
            loss=chance.uniform(0, 0.4),
            doubling=chance.uniform(0, 0.4),
            delay_ms_max=chance.choice([5, 50, 300]),
            stray=chance.uniform(0, 0.1),
        )
        self.world.note(f"storm {self.world.weather}")

    def _pause(self) -> None:
        name = self.world.random.choice(self.world.names)
        self.world.pause(name)
        self.world.scheduler.call_later(self.world.random.uniform(0.1, 2.5), lambda: self.world.resume(name))

    def _kill_some(self) -> None:
        for name in self.world.random.sample(self.world.names, self.world.random.randint(1, self.world.size)):
            self._crash(name)

    def _kill_all(self) -> None:
        lose = self.world.random.random() < 0.7
        for name in self.world.names:
            self._crash(name, lose=lose)

    def _die_in_a_write(self) -> None:
        name = self.world.random.choice(self.world.names)
        self.world.note(f"{name} is to die in a write")
        self.world.members[name].disk.crash_after(self.world.random.randint(0, 12))

    def _crash(self, name: str, *, lose: bool | None = None) -> None:
        chance = self.world.random
        self.world.crash(name, lose_unsynced=chance.random() < 0.5 if lose is None else lose)
        self._restart_later(name)

    def _restart_later(self, name: str) -> None:
        self.world.scheduler.call_later(self.world.random.uniform(0.01, 1.5), lambda: self._restart(name))

    def _restart(self, name: str) -> None:
        member = self.world.members[name]
        if member.node is None:
            self.world.start(name)
            if isinstance(member.refused, DiskFullError):
                self._restart_later(name)  # as whoever supervises it would
            elif member.refused is not None:
                raise Violation(f"seed {self.world.seed}: {name} does not start: {member.refused.message}")

    def _fill_a_disk(self) -> None:
        member = self.world.members[self.world.random.choice(self.world.names)]
        self.world.note(f"the disk of {member.name} is full")
        member.disk.capacity_bytes = member.disk.used_bytes() + self.world.random.randint(0, 300)

        def make_room() -> None:
            member.disk.capacity_bytes = None

        self.world.scheduler.call_later(self.world.random.uniform(0.2, 2.0), make_room)

    def _wipe(self) -> None:
        """One directory at a time, and the next only when this one's member votes again: else a majority is lost."""
        if self._wiped is not None:
            node = self.world.members[self._wiped].node
            if node is None or not node.status().votes:
                return
        votes = [member.node.status().votes for member in self.world.running() if member.node is not None]
        if len(votes) == self.world.size and all(votes):
            self._wiped = self.world.random.choice(self.world.names)
            self.world.wipe(self._wiped)
            name = self._wiped
            self.world.scheduler.call_later(self.world.random.uniform(0.01, 1.0), lambda: self._restart(name))

    def _heal(self) -> None:
        self.world.note("heal")
        self.world.network.heal()
        self.world.weather = Weather()
        for name in self.world.names:
            self.world.resume(name)
            self.world.members[name].disk.capacity_bytes = None
            self._restart(name)

    # -- the end ---------------------------------------------------------------------------------------------------

    def _are_equal(self) -> bool:
        indexes = {member.node.applied_index for member in self.world.running() if member.node is not None}
        return len(self.world.running()) == self.world.size and len(indexes) == 1

    @staticmethod
    def _machine(member: Member) -> ToyMachine:
        assert member.machine is not None
        assert isinstance(member.machine.inner, ToyMachine)
        return member.machine.inner
