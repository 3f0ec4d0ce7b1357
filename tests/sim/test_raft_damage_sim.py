"""A member whose disk has lost something does not start; wiped, it comes back without a vote until that is safe."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from quire.errors import DamagedFileError
from quire.v1 import raft_pb2
from quire_controller.ports import Applied
from quire_controller.raft.messages import decode
from quire_controller.raft.segment import HEADER_BYTES
from tests.raftkill.toy_machine import ToyMachine
from tests.sim.raft_steps import WITHIN_S, Writer, all_have, leader_of, start, status_of, values_of
from tests.sim.raft_world import DIRECTORY, World
from tests.unit.raft_crafting import MOVE_AWAY

LONG_S = 20.0
"""Of virtual time: some thirty elections long. What has not happened by then does not happen."""


@dataclass
class Overheard(World):
    """Notes what members say that only those with a vote may."""

    said: list[tuple[str, str]] = field(default_factory=list)
    """Who gave a vote, promised one or asked for one while it had none."""
    loses_admissions: bool = False

    def travel(self, source: str, target: str, frame: tuple[bytes, bytes]) -> None:
        node = self.members[source].node
        message = decode(frame[0])
        if node is not None and not node.status().votes and _takes_a_vote(message):
            self.said.append((source, message.WhichOneof("message") or ""))
        if not (self.loses_admissions and message.HasField("admit")):
            super().travel(source, target, frame)


def _takes_a_vote(message: raft_pb2.RaftMessage) -> bool:
    match message.WhichOneof("message"):
        case "vote" | "pre_vote" | "append" | "install" | "admit" | "take_over":
            return True
        case "vote_answer":
            return message.vote_answer.granted
        case "pre_vote_answer":
            return message.pre_vote_answer.granted
    return False


def new_world(seed: int, size: int = 3) -> Overheard:
    return Overheard(seed=seed, size=size, make_machine=ToyMachine)


def admitted(world: World, name: str) -> None:
    world.run_until(lambda: status_of(world, name).votes, within=WITHIN_S, what=f"the admission of {name}")


def nobody_leads(world: World, *, learners: list[str]) -> None:
    """For long, and those without a vote do not get one."""
    terms = set(world.leaders)
    end = world.now + LONG_S
    while world.now < end:
        world.run_for(0.05)
        assert world.leader() is None
        assert not any(status_of(world, name).votes for name in learners)
    assert set(world.leaders) == terms


def all_have_what_was_acknowledged(world: World, writer: Writer) -> None:
    """And perhaps more, but all the same."""

    def have() -> bool:
        values = {values_of(world, member.name) for member in world.running()}
        return len(values) == 1 and set(writer.acked) <= set(*values)

    world.run_until(have, within=WITHIN_S, what="all members having what was acknowledged")


def damage(world: World, name: str, kind: str) -> str:
    """Flip a bit of a member that is down, in a place that was written long ago."""
    disk = world.members[name].disk
    paths = [f"{DIRECTORY}/{one}" for one in disk.names(DIRECTORY)]
    if kind == "journal":
        path = next(one for one in paths if one.endswith(".log"))
        position = HEADER_BYTES + 10
        assert disk.open(path).size() > 4 * HEADER_BYTES, "entries are to follow"
    else:
        path = next(one for one in paths if one.endswith(kind))
        position = disk.open(path).size() // 2
    disk.flip(path, position, 3)
    return path


# --- damage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["journal", "member", ".snap"])
@pytest.mark.parametrize("role", ["leader", "follower"])
def test_damaged_member_refuses_and_comes_back_wiped(kind: str, role: str) -> None:
    world = new_world(seed=11)
    leader = start(world)
    writer = Writer(world)
    writer.write(60)
    broken = next(name for name in world.names if (name == leader.name) == (role == "leader"))
    world.run_until(
        lambda: status_of(world, broken).snapshot_index > 0 and status_of(world, broken).last_index > 55,
        within=WITHIN_S,
        what="a snapshot",
    )
    world.crash(broken, lose_unsynced=False)
    path = damage(world, broken, kind)
    leader_of(world)
    writer.write(5)

    world.start(broken)
    refused = world.members[broken].refused
    assert isinstance(refused, DamagedFileError)
    assert refused.details["path"] == path
    assert path in refused.message
    with pytest.raises(DamagedFileError, match=MOVE_AWAY):
        raise refused
    writer.write(5)
    world.start(broken)
    assert world.members[broken].node is None, "it does not start the second time either"

    world.wipe(broken)
    world.start(broken)
    assert not status_of(world, broken).votes
    assert status_of(world, broken).role == "learner"
    writer.write(5)
    admitted(world, broken)
    all_have(world, writer.acked)
    assert world.said == []

    # From here on it counts like the others: with one of them gone, nothing works without it.
    other = next(name for name in world.names if name != broken)
    world.crash(other, lose_unsynced=True)
    leader_of(world)
    writer.write(5)
    start(world, other)
    all_have(world, writer.acked)
    world.check_logs()


def test_torn_tail_is_no_damage() -> None:
    """What a power cut tears is cut, told, and fetched again; the vote stays."""
    for seed in range(8):
        world = new_world(seed=seed)
        leader = start(world)
        writer = Writer(world)
        writer.write(10)
        torn = next(name for name in world.names if name != leader.name)
        world.members[torn].disk.crash_after(seed)
        for _ in range(20):
            if world.members[torn].node is not None:
                writer.write(1)
        assert world.members[torn].node is None, "it was to die in a write"
        world.start(torn)
        assert world.members[torn].refused is None
        assert status_of(world, torn).votes
        writer.write(1)
        all_have(world, writer.acked)


# --- without a vote ------------------------------------------------------------------------------------------------


def entry_on_two(seed: int) -> tuple[Overheard, Writer, str, str, str]:
    """Three members; the last value is acknowledged, and on the leader and one other member only."""
    world = new_world(seed=seed)
    leader = start(world).name
    writer = Writer(world)
    writer.write(5)
    all_have(world, writer.acked)
    has, lacks = (name for name in world.names if name != leader)
    world.network.partition([leader, has], [lacks])
    writer.write(1)
    world.run_until(
        lambda: values_of(world, has) == tuple(writer.acked), within=WITHIN_S, what="the other member having it"
    )
    assert writer.acked[-1] not in values_of(world, lacks)
    return world, writer, leader, has, lacks


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_wiped_member_elects_nobody(seed: int) -> None:
    """It acknowledged an entry that the only other member at hand lacks: with its vote that entry would be lost."""
    world, writer, leader, wiped, lacks = entry_on_two(seed)
    world.wipe(wiped)
    world.crash(leader, lose_unsynced=True)
    world.network.heal()
    world.start(wiped)
    nobody_leads(world, learners=[wiped])
    assert writer.acked[-1] not in values_of(world, lacks)

    start(world, leader)
    assert world.said == []
    writer.write(3)
    all_have(world, writer.acked)
    admitted(world, wiped)
    world.check_logs()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_member_that_was_caught_up_by_a_leader_without_a_majority(seed: int) -> None:
    """It does not count, so that leader commits nothing more; and when it is gone, nobody is elected."""
    world, writer, leader, wiped, _lacks = entry_on_two(seed)
    world.wipe(wiped)
    world.start(wiped)
    world.run_until(
        lambda: values_of(world, wiped) == tuple(writer.acked), within=WITHIN_S, what="the wiped member catching up"
    )
    outcome = writer.send(through=leader, within=LONG_S)
    world.run_until(lambda: world.leader() is None, within=WITHIN_S, what="the end of a leadership of one")
    assert not any(isinstance(one, Applied) for one in outcome)
    assert not status_of(world, wiped).votes, "a majority of the others is not there to be asked"

    world.crash(leader, lose_unsynced=True)
    world.network.heal()
    nobody_leads(world, learners=[wiped])

    start(world, leader)
    assert world.said == []
    admitted(world, wiped)
    writer.write(1)
    all_have_what_was_acknowledged(world, writer)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_member_that_has_everything_but_was_not_told_of_its_admission(seed: int) -> None:
    """It has caught up and so has the third member; without the word of a leader it elects nobody all the same."""
    world = new_world(seed=seed)
    world.loses_admissions = True
    leader = start(world).name
    writer = Writer(world)
    writer.write(5)
    wiped = next(name for name in world.names if name != leader)
    world.wipe(wiped)
    world.start(wiped)
    writer.write(5)
    all_have(world, writer.acked)
    world.run_for(LONG_S / 4)
    world.crash(leader, lose_unsynced=True)
    nobody_leads(world, learners=[wiped])

    start(world, leader)
    writer.write(5)
    assert not status_of(world, wiped).votes
    world.loses_admissions = False
    admitted(world, wiped)
    all_have(world, writer.acked)
    assert world.said == []


def test_wiped_again_and_again_before_it_was_admitted() -> None:
    world = new_world(seed=4)
    world.loses_admissions = True
    leader = start(world).name
    writer = Writer(world)
    writer.write(5)
    wiped = next(name for name in world.names if name != leader)
    incarnations = set()
    for _ in range(3):
        world.wipe(wiped)
        world.start(wiped)
        writer.write(2)
        all_have(world, writer.acked)
        assert not status_of(world, wiped).votes
        incarnations.add(status_of(world, wiped).incarnation)
    assert len(incarnations) == 3
    world.loses_admissions = False
    admitted(world, wiped)
    assert leader_of(world).name == leader
    assert world.said == []


def test_of_five_the_others_elect_without_it() -> None:
    """While it has no vote, leaders come and go; it is asked for its vote each time, and gives none."""
    for seed in range(3):
        world = new_world(seed=seed, size=5)
        start(world)
        writer = Writer(world)
        writer.write(5)
        wiped, before = "n3", max(world.leaders)
        world.wipe(wiped)
        # It hears the others, and nobody hears it: so it is never admitted, and votes would be all that it could do.
        world.start(wiped)
        for other in world.names:
            if other != wiped:
                world.network.cut(wiped, other)
        for _ in range(3):
            leader = leader_of(world)
            assert leader.name != wiped
            world.crash(leader.name, lose_unsynced=True)
            leader_of(world)
            writer.write(2)
            world.start(leader.name)
            world.run_for(1.0)
            assert not status_of(world, wiped).votes
        world.network.heal()
        admitted(world, wiped)
        all_have(world, writer.acked)
        assert world.said == []
        assert wiped not in [leader for term, leader in world.leaders.items() if term > before]


def test_admission_is_not_lost_by_a_crash() -> None:
    world = new_world(seed=6)
    start(world)
    writer = Writer(world)
    writer.write(5)
    world.wipe("n2")
    start(world, "n2")
    admitted(world, "n2")
    world.crash("n2", lose_unsynced=True)
    world.start("n2")
    assert status_of(world, "n2").votes


# --- the beginning -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "up"), [(2, 1), (3, 1), (3, 2), (5, 3), (5, 4)])
def test_quorum_begins_when_all_members_are_there(size: int, up: int) -> None:
    """A majority of new directories may be those of members that were wiped."""
    world = new_world(seed=7, size=size)
    early = world.names[-up:]
    for name in early:
        world.start(name)
    nobody_leads(world, learners=early)
    for name in world.names[:-up]:
        world.start(name)
    leader_of(world)
    writer = Writer(world)
    writer.write(3)
    world.run_until(
        lambda: all(status_of(world, name).votes for name in world.names), within=WITHIN_S, what="votes for all"
    )
    all_have(world, writer.acked)
    assert world.said == []


def test_quorum_begins_although_members_restart_meanwhile() -> None:
    world = new_world(seed=8)
    world.start("n1")
    world.start("n2")
    world.run_for(3.0)
    for name in ("n1", "n2"):
        world.crash(name, lose_unsynced=True)
        world.start(name)
        world.run_for(1.0)
        assert not status_of(world, name).votes
    start(world, "n3")
    Writer(world).write(1)


def test_one_that_remembers_is_enough_to_know_that_there_was_a_quorum() -> None:
    """Two of three are wiped: what they had acknowledged may be gone. A new quorum would hide that."""
    world = new_world(seed=9)
    start(world)
    writer = Writer(world)
    writer.write(5)
    all_have(world, writer.acked)
    last = status_of(world, "n2").last_index
    for name in world.names:
        world.crash(name, lose_unsynced=False)
    for name in ("n1", "n3"):
        world.wipe(name)
        world.start(name)
    nobody_leads(world, learners=["n1", "n3"])
    world.start("n2")
    nobody_leads(world, learners=["n1", "n3"])
    assert status_of(world, "n2").last_index == last
    assert world.said == []


# --- what a leader sends -------------------------------------------------------------------------------------------


def test_rotten_snapshot_of_the_leader_does_not_end_the_others() -> None:
    """It is not their fault, nor their disk's: they wait for a better one."""
    world = new_world(seed=10)
    leader = start(world).name
    writer = Writer(world)
    writer.write(60)
    disk = world.members[leader].disk
    path = next(f"{DIRECTORY}/{name}" for name in disk.names(DIRECTORY) if name.endswith(".snap"))
    disk.flip(path, disk.open(path).size() // 2, 0)
    wiped = next(name for name in world.names if name != leader)
    world.wipe(wiped)
    world.start(wiped)
    outcome = writer.send(through=leader)
    world.run_for(2.0)
    assert isinstance(outcome[0], Applied)
    assert world.members[wiped].node is not None
    writer.write(60)  # the leader's next snapshot is good
    all_have(world, writer.acked)
    admitted(world, wiped)
