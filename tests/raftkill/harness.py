"""A cluster of member processes, clients that append to it, and a nemesis that kills members without warning."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from tests.raftkill.checker import Anomaly, Kind, Replica, check
from tests.raftkill.control import LOOPBACK, Acked, ControlClient, Refused, Status
from tests.raftkill.history import Event, History
from tests.raftkill.history import Kind as EventKind
from tests.raftkill.processes import MemberArguments, MemberProcess, free_ports

MEMBERS: Final = ("n1", "n2", "n3")
CLIENTS: Final = ("c1", "c2", "c3", "c4")
ATTEMPT_S_MAX: Final = 1.0
"""After this long a client calls the outcome unknown and tries again elsewhere."""
PAUSE_S: Final = 0.01
"""Between two attempts at one value."""
POLL_S: Final = 0.002
ASK_S_MAX: Final = 10.0
"""For a status or a dump."""
LOG_LINES_SHOWN: Final = 30


@dataclass(frozen=True, slots=True)
class MemberKind:
    module: str
    """Run as `python -m`; its command line is `MemberArguments`."""
    snapshot_under_way: str
    """Matches the file, in a member's directory, that is there while a snapshot is being written."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What is done to a cluster. The seed fixes every choice, not the moments at which processes get to run."""

    seed: int
    rounds: int
    victims: tuple[int, ...] = (1, 2, 3)
    """How many are killed at once: drawn from these."""
    acks: tuple[int, int] = (20, 150)
    """How many further values are to be acknowledged before each kill: drawn from between these."""
    again: float = 0.2
    """How often those who have just come back are killed as soon as they answer, instead."""
    at_snapshot: float = 0.5
    """How often the kill waits for the victims to be writing a snapshot."""
    acks_into_snapshot: int = 0
    """How many further values are to be acknowledged while they do."""
    snapshot_every: int = 200
    """Entries."""
    value_bytes: int = 64
    progress_s_max: float = 20.0
    """How long the cluster may take for the acknowledgements of one round before it counts as wedged."""
    settle_s_max: float = 20.0
    """How long members may take in the end to come to the same index before they count as wedged."""
    run_s_max: float = 120.0
    """How long all rounds together may take before the cluster counts as wedged."""


@dataclass
class Result:
    history: History
    replicas: dict[str, Replica]
    anomalies: list[Anomaly]
    statuses: dict[str, Status]
    logs: dict[str, str]
    """The last lines of each member's output."""
    kills: int
    kills_at_snapshot: int
    """How many processes were killed while they were writing a snapshot."""
    seconds: float

    def __str__(self) -> str:
        lines = [
            f"{self.history.acks} acknowledged, {self.kills} killed, {self.kills_at_snapshot} of them in a snapshot",
            f"{self.seconds:.1f} s",
            *map(str, self.anomalies),
            *(f"{member}: {status}" for member, status in self.statuses.items()),
        ]
        return "\n".join(lines)

    def report(self) -> str:
        """All of it, for a test that fails."""
        tails = [f"===== {member}\n{tail}" for member, tail in self.logs.items()]
        return "\n".join([str(self), *tails])


class _Wedged(Exception):
    """A condition that was to come did not."""


async def run(kind: MemberKind, workload: Workload, directory: Path) -> Result:
    """One run from an empty directory. Leaves logs, the members' files and `history.jsonl` in it; no process."""
    cluster = _Cluster(kind, workload, directory)
    try:
        return await cluster.run()
    finally:
        await cluster.end()
        with (directory / "history.jsonl").open("w") as file:
            file.writelines(f"{line}\n" for line in cluster.history.lines())


@dataclass
class _Cluster:
    kind: MemberKind
    workload: Workload
    directory: Path
    history: History = field(default_factory=History)
    _found: list[Anomaly] = field(default_factory=list)
    _kills: int = 0
    _kills_at_snapshot: int = 0
    _is_stopping: bool = False

    def __post_init__(self) -> None:
        self._started_s = time.monotonic()
        ports = free_ports(2 * len(MEMBERS))
        self._control_ports = dict(zip(MEMBERS, ports, strict=False))
        peers = {member: (LOOPBACK, port) for member, port in zip(MEMBERS, ports[len(MEMBERS) :], strict=True)}
        self._members = {
            member: MemberProcess(
                self.kind.module,
                MemberArguments(
                    member_id=member,
                    peers=peers,
                    control_port=self._control_ports[member],
                    directory=self.directory / member,
                    snapshot_every=self.workload.snapshot_every,
                ),
                log=self.directory / f"{member}.log",
            )
            for member in MEMBERS
        }
        self._asking = {
            member: ControlClient(port, timeout_s=ASK_S_MAX) for member, port in self._control_ports.items()
        }

    async def run(self) -> Result:
        for member in self._members.values():
            member.start()
        async with asyncio.TaskGroup() as clients:
            for number, client in enumerate(CLIENTS):
                chance = random.Random(self.workload.seed * len(CLIENTS) + number)
                clients.create_task(self._append_on_and_on(client, chance), name=client)
            try:
                await self._kill_on_and_on()
            except _Wedged as wedged:
                self._found.append(Anomaly(Kind.WEDGED, "all", (), str(wedged)))
            finally:
                self._is_stopping = True
        statuses, replicas = await self._settle()
        for member in self._members.values():
            self._note_crash(member, "in the end")
        return Result(
            history=self.history,
            replicas=replicas,
            anomalies=check(self.history, replicas) + self._found,
            statuses=statuses,
            logs={name: member.log_tail(LOG_LINES_SHOWN) for name, member in self._members.items()},
            kills=self._kills,
            kills_at_snapshot=self._kills_at_snapshot,
            seconds=time.monotonic() - self._started_s,
        )

    async def end(self) -> None:
        for member in self._members.values():
            member.end()
        for asking in self._asking.values():
            await asking.aclose()

    # Clients

    async def _append_on_and_on(self, client: str, chance: random.Random) -> None:
        connections = {
            member: ControlClient(port, timeout_s=ATTEMPT_S_MAX) for member, port in self._control_ports.items()
        }
        try:
            seq = 0
            while not self._is_stopping:
                seq += 1
                value = f"{client}-{seq}".ljust(self.workload.value_bytes, ".")
                while not self._is_stopping:
                    if await self._attempt(client, seq, value, connections, chance):
                        break
                    await asyncio.sleep(PAUSE_S)
        finally:
            for connection in connections.values():
                await connection.aclose()

    async def _attempt(
        self, client: str, seq: int, value: str, connections: dict[str, ControlClient], chance: random.Random
    ) -> bool:
        member = chance.choice(MEMBERS)

        def note(kind: EventKind, *, index: int | None = None, error: str | None = None) -> None:
            now_ms = time.monotonic_ns() // 1_000_000
            self.history.add(Event(kind, client, seq, value, member, now_ms, index, error))

        note(EventKind.INVOKE)
        answer = await connections[member].append(client, seq, value)
        if isinstance(answer, Acked):
            note(EventKind.OK, index=answer.index)
            return True
        note(EventKind.FAIL if isinstance(answer, Refused) else EventKind.INFO, error=answer.error)
        return False

    # Nemesis

    async def _kill_on_and_on(self) -> None:
        chance = random.Random(self.workload.seed)
        await self._acks(1, "at the start")
        restarted: list[MemberProcess] = []
        for number in range(1, self.workload.rounds + 1):
            where = f"in round {number} of {self.workload.rounds}"
            if restarted and chance.random() < self.workload.again:
                victims = restarted
                await self._until(partial(self._answer, victims), f"{victims} do not answer {where}")
            else:
                victims = chance.sample(list(self._members.values()), chance.choice(self.workload.victims))
                await self._acks(chance.randint(*self.workload.acks), where)
                if chance.random() < self.workload.at_snapshot:
                    await self._snapshot_under_way(victims)
            restarted = await self._kill_and_restart(victims, chance, where)
        await self._acks(self.workload.acks[1], "at the end")

    async def _kill_and_restart(
        self, victims: Sequence[MemberProcess], chance: random.Random, where: str
    ) -> list[MemberProcess]:
        for victim in victims:
            self._note_crash(victim, where)
            self._kills += 1
            self._kills_at_snapshot += self._is_snapshotting(victim)
            victim.kill()
        for victim in victims:
            victim.wait_dead()
        if 2 * len(victims) < len(MEMBERS) and chance.random() < 0.5:
            await self._acks(chance.randint(*self.workload.acks), f"with {victims[0].member_id} down {where}")
        restarted = chance.sample(victims, len(victims))
        for victim in restarted:
            victim.start()
        return restarted

    def _note_crash(self, member: MemberProcess, where: str) -> None:
        if member.has_ended_by_itself:
            self._found.append(Anomaly(Kind.CRASHED, member.member_id, (), where))

    def _is_snapshotting(self, member: MemberProcess) -> bool:
        return next(member.directory.glob(self.kind.snapshot_under_way), None) is not None

    async def _snapshot_under_way(self, victims: Sequence[MemberProcess]) -> None:
        """Until all victims are writing a snapshot and some values more have been acknowledged meanwhile.

        Or until each has had the time to write two: they need not ever do so at the same moment.
        """
        enough = self.history.acks + 2 * self.workload.snapshot_every
        began_at: int | None = None

        async def is_so() -> bool:
            nonlocal began_at
            if not all(map(self._is_snapshotting, victims)):
                began_at = None
            elif began_at is None:
                began_at = self.history.acks
            is_into_it = began_at is not None and self.history.acks >= began_at + self.workload.acks_into_snapshot
            return is_into_it or self.history.acks >= enough

        await self._until(is_so, "no progress while waiting for a snapshot")

    # Conditions

    async def _acks(self, count: int, where: str) -> None:
        goal = self.history.acks + count

        async def is_reached() -> bool:
            return self.history.acks >= goal

        await self._until(is_reached, f"{count} further acknowledgements did not come {where}")

    async def _answer(self, members: Sequence[MemberProcess]) -> bool:
        try:
            for member in members:
                await self._asking[member.member_id].status()
        except (OSError, EOFError, TimeoutError):
            return False
        return True

    async def _until(self, condition: Callable[[], Awaitable[bool]], complaint: str) -> None:
        deadline_s = min(time.monotonic() + self.workload.progress_s_max, self._started_s + self.workload.run_s_max)
        while not await condition():
            if time.monotonic() > deadline_s:
                raise _Wedged(complaint)
            if any(member.has_ended_by_itself for member in self._members.values()):
                raise _Wedged("given up: a member is gone that nobody killed")
            await asyncio.sleep(POLL_S)

    # The end

    async def _settle(self) -> tuple[dict[str, Status], dict[str, Replica]]:
        """What members hold once all have applied the same, and the last that was acknowledged.

        Looked at again when they went on meanwhile: attempts whose outcome is unknown may still be carried out.
        """
        last = self.history.last_ack
        index_min = last.index if last is not None and last.index is not None else 0
        deadline_s = time.monotonic() + self.workload.settle_s_max
        while True:
            statuses = await self._statuses()
            applied = {member: status.applied for member, status in statuses.items()}
            is_late = time.monotonic() > deadline_s
            if self._is_settled(applied, index_min) or is_late:
                replicas = await self._dumps()
                dumped = {member: replica.applied_index for member, replica in replicas.items()}
                if self._is_settled(dumped, index_min):
                    return statuses, replicas
                if is_late:
                    detail = f"the last acknowledged stands at {index_min}, applied is {dumped}"
                    self._found.append(Anomaly(Kind.WEDGED, "all", (), detail))
                    return statuses, replicas
            await asyncio.sleep(PAUSE_S)

    @staticmethod
    def _is_settled(applied: Mapping[str, int], index_min: int) -> bool:
        indexes = set(applied.values())
        return set(applied) == set(MEMBERS) and len(indexes) == 1 and min(indexes) >= index_min

    async def _statuses(self) -> dict[str, Status]:
        found = {}
        for member, asking in self._asking.items():
            try:
                found[member] = await asking.status()
            except (OSError, EOFError, TimeoutError):
                continue
        return found

    async def _dumps(self) -> dict[str, Replica]:
        found = {}
        for member, asking in self._asking.items():
            try:
                found[member] = await asking.dump()
            except (OSError, EOFError, TimeoutError):
                continue
        return found
