"""Cases that a reader found and no seed had: each was a bug once."""

from __future__ import annotations

import random

import pytest

from quire.disk.sim_disk import SimDisk
from quire.errors import QuireError
from quire.v1 import raft_pb2
from quire_controller.ports import Applied
from quire_controller.raft.config import RaftConfig
from quire_controller.raft.core import Core
from quire_controller.raft.progress import Progress
from quire_controller.raft.storage import Storage
from tests.raftkill.toy_machine import ToyMachine, encode_command
from tests.sim.raft_steps import WITHIN_S, Writer, node_of, start, status_of
from tests.sim.raft_world import World

Message = raft_pb2.RaftMessage


@pytest.mark.parametrize("over_link", [False, True])
def test_a_wiped_member_does_not_help_a_deposed_leader(over_link: bool) -> None:
    """The deposed one does not know yet; the wiped one has forgotten. Together they are no majority."""
    world = World(seed=3, size=3, make_machine=ToyMachine, over_link=over_link)
    old = start(world).name
    Writer(world).write(3)
    world.run_for(0.3)
    others = [name for name in world.names if name != old]
    world.network.partition([old], others)
    while not any(node_of(world, name).is_leader for name in others):
        world.run_for(0.005)
    new = next(name for name in others if node_of(world, name).is_leader)
    wiped = next(name for name in others if name != new)
    first = Writer(world, "x").send(through=new)
    while not first:
        world.run_for(0.005)
    assert isinstance(first[0], Applied)
    assert node_of(world, old).is_leader  # else there is nothing to see

    world.wipe(wiped)
    world.network.heal()
    world.network.partition([new], [old, wiped])
    world.start(wiped)
    second = Writer(world, "y").send(through=old)
    while not second:
        assert not status_of(world, wiped).votes
        world.run_for(0.005)
    assert isinstance(second[0], QuireError)


def test_a_vote_of_the_term_before_is_not_counted() -> None:
    """It comes when the next election is decided upon and not begun."""
    now = 0.0
    machine, chance = ToyMachine(), random.Random(1)
    storage = Storage.open(SimDisk(), "/raft", machine, chance, cluster_id="c", member_id="a")
    storage.admit(0, "")
    core = Core(
        member_id="a",
        others=list("bcde"),
        storage=storage,
        state_machine=machine,
        config=RaftConfig(),
        clock=lambda: now,
        randomness=chance,
    )
    for peer in "bcde":
        core.connected(peer)

    def would_vote(peers: str, term: int) -> None:
        for peer in peers:
            answer = raft_pb2.RaftPreVoteAnswer(granted=True, term=term)
            core.receive(peer, Message(pre_vote_answer=answer), b"")

    def votes(peer: str, term: int) -> None:
        core.receive(peer, Message(vote_answer=raft_pb2.RaftVoteAnswer(granted=True, term=term)), b"")

    now = 1.0
    core.turn(by_timer=True)
    would_vote("bc", 1)
    core.turn()
    assert core.current_term == 1
    now = 2.0
    core.turn(by_timer=True)
    would_vote("cd", 2)
    votes("b", 1)
    core.turn()
    assert core.current_term == 2
    votes("e", 2)
    assert not core.is_leader
    votes("d", 2)
    assert core.is_leader


@pytest.mark.parametrize("late", ["append", "install"])
def test_a_late_message_of_a_former_term_confirms_no_round_of_the_new_one(late: str) -> None:
    """Its sender may lead again, and count rounds from the beginning: 53 of them would be confirmed in advance."""
    world = World(seed=6, size=3, make_machine=ToyMachine)
    leader = start(world).name
    Writer(world).write(3)
    follower = next(name for name in world.names if name != leader)
    core = node_of(world, follower)._core
    message = Message()
    getattr(message, late).term = core.current_term - 1
    getattr(message, late).round = 53
    core._answers.clear()
    core.receive(leader, message, b"")
    assert len(core._answers) == 1
    header = core._answers[0].header
    answer = getattr(header, f"{late}_answer")
    assert (answer.term, answer.round) == (core.current_term, 0)


def test_the_last_word_of_a_lost_directory_does_not_keep_the_new_one_out() -> None:
    """A leader that has just begun hears first of the new one, then, late, of the lost one: which is there now?"""
    world = World(seed=8, size=3, make_machine=ToyMachine)
    leader = start(world).name
    Writer(world).write(3)
    wiped = next(name for name in world.names if name != leader)
    core = node_of(world, leader)._core
    last_word = raft_pb2.RaftAppendAnswer(
        term=core.current_term,
        incarnation=status_of(world, wiped).incarnation,
        success=True,
        index=core.status().last_index,
        round=core._round,
        votes=True,
    )
    world.wipe(wiped)
    core._progress[wiped] = Progress(core.status().last_index + 1)
    world.start(wiped)
    new = status_of(world, wiped).incarnation
    while core._progress[wiped].incarnation != new:
        world.run_for(0.0005)
    assert not status_of(world, wiped).votes
    core.receive(wiped, Message(append_answer=last_word), b"")
    world.run_until(lambda: status_of(world, wiped).votes, within=WITHIN_S, what="the admission")
    assert node_of(world, leader).is_leader, "no other leader had to be elected for that"


@pytest.mark.parametrize("seed", range(1, 8))
@pytest.mark.parametrize("over_link", [False, True])
def test_a_restarted_follower_does_not_take_its_predecessors_answer(over_link: bool, seed: int) -> None:
    world = World(seed=seed, size=3, make_machine=ToyMachine, over_link=over_link)
    leader = start(world).name
    Writer(world).write(3)
    world.run_for(0.3)
    follower, down = [name for name in world.names if name != leader]
    world.crash(follower, lose_unsynced=False)
    world.start(follower)
    world.run_until(lambda: node_of(world, follower).leader_id == leader, within=5, what="a leader")
    world.run_for(0.2)
    world.crash(down, lose_unsynced=False)
    node_of(world, follower).propose(encode_command("old", 1, "OLD"), lambda _: None)
    while b"OLD" not in node_of(world, leader)._storage.journal[-1][0]:
        world.run_for(0.0005)
    world.crash(follower, lose_unsynced=False)
    world.run_for(0.1)
    world.start(follower)
    world.run_until(lambda: node_of(world, follower).leader_id is not None, within=5, what="a leader")
    told: list[Applied | QuireError] = []
    node_of(world, follower).propose(encode_command("new", 1, "NEW"), told.append)
    world.run_until(lambda: bool(told), within=10, what="an answer")
    if isinstance(told[0], Applied):
        assert b"NEW" in world.committed[told[0].index]


def test_a_full_disk_answers_reads_and_does_not_spin() -> None:
    world = World(seed=5, size=3, make_machine=ToyMachine)
    leader = start(world).name
    writer = Writer(world)
    writer.write(3)
    world.run_for(0.5)
    full = next(name for name in world.names if name != leader)
    member = world.members[full]
    member.disk.capacity_bytes = member.disk.used_bytes()
    turns = 0

    def count() -> None:
        nonlocal turns
        turns += 1

    while not status_of(world, full).is_blocked:
        writer.write(5)
    node_of(world, full).observe(count)
    answers: list[QuireError | None] = []
    for _ in range(100):
        node_of(world, full).when_applied(node_of(world, full).applied_index, answers.append)
        node_of(world, full).when_applied(node_of(world, full).applied_index + 1_000, answers.append)
        world.run_for(0.02)
    assert answers.count(None) == 100
    assert sum(isinstance(answer, QuireError) for answer in answers) == 100
    # A tick each 20 ms for two seconds, and a turn for each of the questions and of what the leader says.
    assert turns < 1_000
    assert len(node_of(world, full)._core._answers) < 10
    member.disk.capacity_bytes = None
    world.run_until(lambda: not status_of(world, full).is_blocked, within=5, what="going on by itself")
