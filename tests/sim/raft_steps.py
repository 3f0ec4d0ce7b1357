"""Steps that scripts of a simulated quorum are made of."""

from __future__ import annotations

from quire.errors import QuireError
from quire_controller.ports import Applied
from quire_controller.raft.member import Status
from quire_controller.raft.node import RaftNode
from tests.raftkill.toy_machine import ToyMachine, encode_command
from tests.sim.raft_world import Member, World, ask

WITHIN_S = 30.0
"""Of virtual time: when what must happen counts as what does not."""


def node_of(world: World, name: str) -> RaftNode:
    node = world.members[name].node
    assert node is not None, f"{name} is not running"
    return node


def status_of(world: World, name: str) -> Status:
    return node_of(world, name).status()


def values_of(world: World, name: str) -> tuple[str, ...]:
    machine = world.members[name].machine
    assert machine is not None
    assert isinstance(machine.inner, ToyMachine)
    return machine.inner.values


def leader_of(world: World) -> Member:
    """The leader that all who run agree on, waited for."""

    def agreed() -> bool:
        leader = world.leader()
        return leader is not None and all(
            member.node is not None and member.node.leader_id == leader.name for member in world.running()
        )

    world.run_until(agreed, within=WITHIN_S, what="agreement on a leader")
    leader = world.leader()
    assert leader is not None
    return leader


def start(world: World, *names: str) -> Member:
    """Start members, all unless some are named, and wait for a leader."""
    for name in names or world.names:
        world.start(name)
    return leader_of(world)


class Writer:
    """Appends numbered values to the toy, one after the other."""

    def __init__(self, world: World, name: str = "w") -> None:
        self._world = world
        self._name = name
        self._seq = 0
        self.acked: list[str] = []

    def send(self, *, through: str | None = None, within: float = WITHIN_S) -> list[Applied | QuireError]:
        """Propose the next value; the outcome is in the list once it is known."""
        leader = self._world.leader()
        through = through or (leader.name if leader is not None else self._world.names[0])
        self._seq += 1
        value = f"{self._name}-{self._seq}"
        outcome: list[Applied | QuireError] = []

        def answered(told: Applied | QuireError) -> None:
            outcome.append(told)
            if isinstance(told, Applied):
                self.acked.append(value)

        ask(self._world, through, encode_command(self._name, self._seq, value), answered, within=within)
        return outcome

    def write(self, count: int = 1) -> None:
        """Commit so many values."""
        for _ in range(count):
            outcome = self.send()
            self._world.run_until(lambda outcome=outcome: bool(outcome), within=WITHIN_S, what="an answer")  # type: ignore[misc]  # mypy cannot infer it
            assert isinstance(outcome[0], Applied), outcome


def all_have(world: World, values: list[str]) -> None:
    """Wait until all who run have these values and nothing else."""
    world.run_until(
        lambda: all(values_of(world, member.name) == tuple(values) for member in world.running()),
        within=WITHIN_S,
        what=f"all members having {len(values)} values",
    )
