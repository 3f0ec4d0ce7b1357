"""What must not grow, nor be left behind, nor be waited for, when something goes wrong for long."""

from __future__ import annotations

from itertools import pairwise

import pytest

from quire.errors import MalformedFrameError, QuireError, UnavailableError
from quire.v1 import raft_pb2
from quire_controller.ports import Applied
from tests.raftkill.toy_machine import ToyMachine, encode_command
from tests.sim.raft_steps import WITHIN_S, Writer, all_have, node_of, start, status_of
from tests.sim.raft_world import World, ask


def new_world(seed: int, *, over_link: bool = False) -> tuple[World, Writer, str, str]:
    """A quorum at work, its leader and one of its followers."""
    world = World(seed=seed, size=3, make_machine=ToyMachine, over_link=over_link)
    leader = start(world).name
    writer = Writer(world)
    writer.write(5)
    all_have(world, writer.acked)
    return world, writer, leader, next(name for name in world.names if name != leader)


def test_answers_do_not_pile_up_while_a_disk_is_full() -> None:
    world, writer, _leader, full = new_world(1)
    disk = world.members[full].disk
    disk.capacity_bytes = disk.used_bytes()
    writer.write(30)
    world.run_until(lambda: status_of(world, full).is_blocked, within=WITHIN_S, what="a full disk")
    world.run_for(60)
    assert status_of(world, full).is_blocked
    assert len(node_of(world, full)._core._answers) < 100
    disk.capacity_bytes = None
    all_have(world, writer.acked)


@pytest.mark.parametrize(
    "lie",
    [
        raft_pb2.RaftMessage(append_answer=raft_pb2.RaftAppendAnswer(success=True, index=1 << 60)),
        raft_pb2.RaftMessage(append_answer=raft_pb2.RaftAppendAnswer(success=True, index=1, round=1 << 60)),
        raft_pb2.RaftMessage(append_answer=raft_pb2.RaftAppendAnswer(index=1, round=1 << 60)),
        raft_pb2.RaftMessage(install_answer=raft_pb2.RaftInstallAnswer(last_index=1, round=1 << 60)),
    ],
    ids=["entry", "round", "round of a refusal", "round of a snapshot"],
)
def test_malformed_acknowledgement_leaves_no_trace(lie: raft_pb2.RaftMessage) -> None:
    """The session ends, and the member that it came from, or seemed to, goes on as before."""
    world, writer, leader, follower = new_world(2)
    progress = node_of(world, leader)._core._progress[follower]
    before = (progress.match_index, progress.round, progress.incarnation, progress.votes)
    name = lie.WhichOneof("message")
    assert name is not None
    getattr(lie, name).term = node_of(world, leader).term
    getattr(lie, name).incarnation = 7
    with pytest.raises(MalformedFrameError):
        node_of(world, leader).on_message(follower, lie, b"")
    assert (progress.match_index, progress.round, progress.incarnation, progress.votes) == before
    writer.write(1)
    world.run_until(
        lambda: status_of(world, leader).match_indexes[follower] == status_of(world, leader).last_index,
        within=WITHIN_S,
        what="the follower being counted",
    )


def test_command_for_a_leader_that_cannot_be_reached_fails_at_once() -> None:
    """Nothing was sent, so nothing was done: whoever asked may ask again, and need not wonder."""
    world, _writer, leader, follower = new_world(3, over_link=True)
    world.network.break_connections(leader, follower)
    end = world.now + 1.0
    while leader in status_of(world, follower).connected:
        world.run_for(0.001)
        assert world.now < end, "the session was to end"
    # It still knows who leads, and has not dialed again.
    world.network.cut(leader, follower)
    world.network.cut(follower, leader)
    assert node_of(world, follower).leader_id == leader
    outcome: list[Applied | QuireError] = []
    ask(world, follower, encode_command("x", 1, "x-1"), outcome.append, within=WITHIN_S)
    world.run_for(0.1)
    assert len(outcome) == 1
    assert isinstance(outcome[0], UnavailableError)


@pytest.mark.parametrize(("position", "size"), [(0, 3), (1, 4), (1 << 62, 1 << 62), (5, 0)])
def test_part_beyond_its_snapshot_is_refused_before_anything_is_believed(position: int, size: int) -> None:
    world, writer, leader, follower = new_world(5)
    before = node_of(world, follower).term
    install = raft_pb2.RaftInstall(term=before + 9, last_index=1 << 40, last_term=1, position=position, size=size)
    with pytest.raises(MalformedFrameError, match="beyond"):
        node_of(world, follower).on_message(leader, raft_pb2.RaftMessage(install=install), b"part")
    assert node_of(world, follower).term == before
    writer.write(1)
    all_have(world, writer.acked)


def test_leaders_knowledge_of_a_member_that_is_wiped_again_and_again() -> None:
    """It is caught up each time; nothing is remembered of its old directories."""
    world, writer, leader, wiped = new_world(4)
    for _ in range(5):
        world.wipe(wiped)
        world.start(wiped)
        writer.write(1)
        world.run_until(lambda: status_of(world, wiped).votes, within=WITHIN_S, what="the admission")
        progress = node_of(world, leader)._core._progress[wiped]
        assert progress.incarnation == status_of(world, wiped).incarnation
    all_have(world, writer.acked)


def test_members_take_snapshots_in_turn() -> None:
    """One after the other, so that there is a majority for what comes meanwhile; and each often enough."""
    world, writer, _leader, _follower = new_world(6)
    every = world.config.snapshot_entries
    taken: dict[str, list[int]] = {name: [0] for name in world.names}
    for _ in range(4 * every):
        writer.write(1)
        for name in world.names:
            index = status_of(world, name).snapshot_index
            if index != taken[name][-1]:
                taken[name].append(index)
    for indexes in taken.values():
        assert len(indexes) >= 4
        assert all(after - before <= every + 2 for before, after in pairwise(indexes))
    begun = sorted(index for indexes in taken.values() for index in indexes[1:])
    assert all(after - before > every // 6 for before, after in pairwise(begun)), begun
