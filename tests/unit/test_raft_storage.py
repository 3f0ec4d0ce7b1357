"""A member's directory: whose it is, what it must not forget, and crashes between any two steps."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from quire.disk.framed import frame
from quire.disk.sim_disk import SimDisk, SimulatedCrash
from quire.errors import DamagedFileError, DiskFullError, InvalidArgumentError, QuireError
from quire.v1 import raft_pb2
from quire_controller.raft import hard_state
from quire_controller.raft.hard_state import HardState
from quire_controller.raft.snapshot import SnapshotId
from quire_controller.raft.storage import Storage
from tests.unit.raft_crafting import (
    CLUSTER,
    DIRECTORY,
    MEMBER,
    MOVE_AWAY,
    Lines,
    add,
    disk_with,
    entries,
    files,
    kept,
    new_disk,
    open_storage,
    path,
    path_in,
    receive_snapshot,
    snapshot_file,
    take_snapshot,
)

PIECES = [b"state of ", b"all that came ", b"before"]
FULL = HardState(
    cluster_id=CLUSTER,
    member_id=MEMBER,
    incarnation=(1 << 64) - 1,
    votes=True,
    term=1 << 62,
    voted_for="n3",
    resetting_to=77,
)


def used(disk: SimDisk) -> Storage:
    """The directory of a member that has voted, has entries 2 to 9 of terms 1 and 2, and no snapshot."""
    storage = open_storage(disk)
    storage.admit(0, "")
    storage.set_vote(1, "n2")
    add(storage.journal, *entries(2, 6, term=1))
    storage.journal.flush()
    storage.set_vote(2, "n3")
    add(storage.journal, *entries(6, 10, term=2))
    storage.journal.flush()
    return storage


def with_snapshot(disk: SimDisk) -> Storage:
    """The same with a snapshot up to entry 7 of term 2."""
    storage = used(disk)
    storage.publish_snapshot(take_snapshot(storage, 7, 2, PIECES))
    return storage


def refused(disk: SimDisk, blamed: str, match: str = MOVE_AWAY) -> None:
    with pytest.raises(DamagedFileError, match=match) as caught:
        open_storage(disk)
    assert path_in(caught.value) == blamed
    assert blamed in caught.value.message


# --- hard state ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "state", [HardState(cluster_id="c", member_id="n1", incarnation=0), FULL, replace(FULL, resetting_to=None)]
)
def test_hard_state_comes_back(state: HardState) -> None:
    disk = new_disk()
    hard_state.write(disk, DIRECTORY, state)
    assert hard_state.read(disk, DIRECTORY) == state
    disk.power_cut(random.Random(1))
    assert hard_state.read(disk, DIRECTORY) == state


def test_no_hard_state() -> None:
    assert hard_state.read(new_disk(), DIRECTORY) is None


def test_hard_state_is_the_old_one_or_the_new_one() -> None:
    """Whatever step of the write a crash hits, and whatever the disk then has."""
    new = replace(FULL, term=3, voted_for="n1")
    seen = set()
    for steps in range(5):
        for seed in range(20):
            disk = new_disk()
            hard_state.write(disk, DIRECTORY, FULL)
            disk.crash_after(steps)
            with pytest.raises(SimulatedCrash):
                hard_state.write(disk, DIRECTORY, new)
            disk.power_cut(random.Random(seed))
            found = hard_state.read(disk, DIRECTORY)
            assert found in (FULL, new)
            seen.add(found)
    assert seen == {FULL, new}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        frame("raft-member", 1, b"\xff\xff\xff\xff"),
        frame("raft-member", 2, raft_pb2.RaftHardState().SerializeToString()),
        frame("raft-leader", 1, raft_pb2.RaftHardState().SerializeToString()),
        frame("raft-member", 1, bytes(5_000)),
        frame("raft-member", 1, raft_pb2.RaftHardState(term=5).SerializeToString())[:-1],
    ],
)
def test_damaged_hard_state(data: bytes) -> None:
    disk = disk_with(files(_disk_of(used)) | {"member": data})
    refused(disk, path("member"), "does not know its term and vote any more and could vote twice.*" + MOVE_AWAY)


def test_missing_hard_state_is_not_that_of_a_new_member() -> None:
    for build in (used, with_snapshot):
        disk = _disk_of(build)
        disk.remove(path("member"))
        refused(disk, path("member"), "is missing although the directory is in use.*" + MOVE_AWAY)


def test_vote_that_is_there_already_is_not_written_again() -> None:
    disk = new_disk()
    storage = used(disk)
    syncs = disk.syncs
    storage.set_vote(2, "n3")
    assert disk.syncs == syncs
    storage.set_vote(2, "n2")
    assert disk.syncs == syncs + 1


def test_vote_for_which_there_is_no_room_was_not_given() -> None:
    disk = new_disk()
    storage = used(disk)
    before, content = storage.hard, files(disk)
    disk.capacity_bytes = disk.used_bytes() + 5
    with pytest.raises(DiskFullError):
        storage.set_vote(3, "n2")
    assert storage.hard == before
    assert files(disk) == content
    disk.capacity_bytes = None
    storage.set_vote(3, "n2")
    assert open_storage(disk).hard == replace(before, term=3, voted_for="n2")


# --- opening -------------------------------------------------------------------------------------------------------


def test_new_directory_has_a_name_and_no_vote() -> None:
    disk = SimDisk()
    storage = open_storage(disk)
    assert (storage.hard.votes, storage.hard.term, storage.hard.voted_for) == (False, 0, "")
    assert (storage.hard.cluster_id, storage.hard.member_id) == (CLUSTER, MEMBER)
    assert (storage.snapshot, kept(storage.journal), storage.journal.first_index) == (None, [], 2)
    assert open_storage(disk).hard == storage.hard, "the name is the directory's, not the process's"
    assert open_storage(SimDisk(), seed=2).hard.incarnation != storage.hard.incarnation


def test_everything_is_there_again() -> None:
    disk = _disk_of(with_snapshot)
    machine = Lines()
    storage = open_storage(disk, machine)
    assert storage.snapshot == SnapshotId(7, 2)
    assert machine.lines == PIECES
    assert kept(storage.journal)[-2:] == entries(8, 10, term=2)
    assert (storage.hard.votes, storage.hard.term, storage.hard.voted_for) == (True, 2, "n3")


@pytest.mark.parametrize(("cluster_id", "member_id"), [("cluster-2", MEMBER), (CLUSTER, "n2")])
def test_directory_of_another(cluster_id: str, member_id: str) -> None:
    disk = _disk_of(used)
    before = files(disk)
    with pytest.raises(InvalidArgumentError, match="belongs to member 'n1' of cluster 'cluster-1'"):
        open_storage(disk, cluster_id=cluster_id, member_id=member_id)
    assert files(disk) == before


def test_rubbish_of_a_dead_process_is_removed() -> None:
    disk = _disk_of(with_snapshot)
    content = files(disk)
    rubbish = {"member.tmp": b"x", "snapshot-00000000000000000009.snap.tmp": b"x", "what.received.tmp": b"x"}
    crowded = disk_with(content | rubbish)
    open_storage(crowded)
    assert files(crowded) == content


def test_missing_snapshot() -> None:
    disk = _disk_of(with_snapshot)
    storage = open_storage(disk)
    add(storage.journal, *entries(10, 12, term=2))
    storage.journal.flush()
    storage.publish_snapshot(take_snapshot(storage, 11, 2, PIECES))
    [name] = [name for name in files(disk) if name.endswith(".snap")]
    disk.remove(path(name))
    refused(disk, DIRECTORY, "begins after entry 11 and there is no snapshot.*" + MOVE_AWAY)


def test_snapshot_beyond_the_journal() -> None:
    content = files(_disk_of(used))
    name = "snapshot-00000000000000000010.snap"
    refused(disk_with(content | {name: snapshot_file(10, 2, PIECES)}), DIRECTORY, "ends with entry 10, the journal")


def test_snapshot_of_another_term() -> None:
    content = files(_disk_of(used))
    name = "snapshot-00000000000000000007.snap"
    disk = disk_with(content | {name: snapshot_file(7, 1, PIECES)})
    refused(disk, DIRECTORY, "entry 7 has term 2, in the snapshot term 1")


def test_snapshot_under_another_name() -> None:
    content = files(_disk_of(used))
    name = "snapshot-00000000000000000006.snap"
    disk = disk_with(content | {name: snapshot_file(7, 2, PIECES)})
    refused(disk, path(name), "contains entries up to 7, not what its name says")


def test_snapshot_of_another_cluster() -> None:
    content = files(_disk_of(used))
    name = "snapshot-00000000000000000007.snap"
    disk = disk_with(content | {name: snapshot_file(7, 2, PIECES, cluster_id="cluster-2")})
    refused(disk, path(name), "belongs to cluster 'cluster-2'")


def test_machine_that_does_not_read_to_the_end_is_not_restored_from_a_damaged_snapshot() -> None:
    class Lazy(Lines):
        def restore(self, pieces: object) -> None:
            pass

    disk = _disk_of(with_snapshot)
    [name] = [name for name in files(disk) if name.endswith(".snap")]
    disk.flip(path(name), len(files(disk)[name]) - 1, 0)
    with pytest.raises(DamagedFileError):
        open_storage(disk, Lazy())


# --- snapshots -----------------------------------------------------------------------------------------------------


def test_entries_stay_until_the_snapshot_has_its_name() -> None:
    disk = new_disk()
    storage = used(disk)
    writer = take_snapshot(storage, 9, 2, PIECES)
    assert kept(storage.journal) == [*entries(2, 6), *entries(6, 10, term=2)]
    assert storage.snapshot is None
    storage.publish_snapshot(writer)
    assert storage.snapshot == SnapshotId(9, 2)
    assert (kept(storage.journal), storage.journal[0][1:]) == ([], (9, 2))
    file = storage.open_snapshot()
    assert file.read(0, file.size()) == snapshot_file(9, 2, PIECES)


def test_newer_snapshot_takes_the_place_of_the_older() -> None:
    disk = new_disk()
    storage = with_snapshot(disk)
    sending = storage.open_snapshot()
    storage.publish_snapshot(take_snapshot(storage, 9, 2, [b"newer"]))
    assert [name for name in files(disk) if name.endswith(".snap")] == ["snapshot-00000000000000000009.snap"]
    assert sending.read(0, sending.size()) == snapshot_file(7, 2, PIECES), "a member may still be receiving it"


def test_snapshot_that_was_under_way_when_the_process_died() -> None:
    disk = new_disk()
    storage = used(disk)
    take_snapshot(storage, 9, 2, PIECES)
    disk.kill()
    storage = open_storage(disk)
    assert storage.snapshot is None
    assert kept(storage.journal) == [*entries(2, 6), *entries(6, 10, term=2)]


def test_leaders_snapshot_replaces_everything() -> None:
    disk = new_disk()
    storage = with_snapshot(disk)
    hard, machine = storage.hard, Lines()
    data = snapshot_file(50, 4, [b"the leader's"])
    storage.install(receive_snapshot(storage, 50, 4, data), machine)
    assert machine.lines == [b"the leader's"]
    assert (storage.snapshot, storage.hard) == (SnapshotId(50, 4), hard)
    assert (kept(storage.journal), storage.journal[0][1:]) == ([], (50, 4))
    add(storage.journal, *entries(51, 53, term=4))
    storage.journal.flush()
    assert set(files(disk)) == {
        "member",
        "journal-00000000000000000051.log",
        "snapshot-00000000000000000050.snap",
    }
    disk.power_cut(random.Random(1))
    machine = Lines()
    storage = open_storage(disk, machine)
    assert (machine.lines, kept(storage.journal)) == ([b"the leader's"], entries(51, 53, term=4))


@pytest.mark.parametrize("damage", ["flipped", "cut", "of another cluster", "of another term"])
def test_damaged_snapshot_from_the_leader_changes_nothing(damage: str) -> None:
    disk = new_disk()
    storage = with_snapshot(disk)
    machine = Lines()
    machine.lines = [b"as it was"]
    data = snapshot_file(50, 4, [b"the leader's"])
    if damage == "flipped":
        data = data[:-20] + bytes([data[-20] ^ 1]) + data[-19:]
    elif damage == "cut":
        data = data[:-8]
    elif damage == "of another cluster":
        data = snapshot_file(50, 4, [b"the leader's"], cluster_id="cluster-2")
    else:
        data = snapshot_file(50, 5, [b"the leader's"])
    before, hard = files(disk), storage.hard
    receiver = receive_snapshot(storage, 50, 4, data)
    with pytest.raises(DamagedFileError):
        storage.install(receiver, machine)
    receiver.abandon()
    assert (files(disk), storage.hard, machine.lines) == (before, hard, [b"as it was"])
    add(storage.journal, *entries(10, 12, term=2))
    storage.journal.flush()
    assert kept(open_storage(disk).journal)[-1] == entries(11, 12, term=2)[0]


# --- crashes between any two steps ---------------------------------------------------------------------------------

Step = Callable[[SimDisk], None]


def _disk_of(build: Callable[[SimDisk], Storage]) -> SimDisk:
    """A machine that has just been started, with this on its disk."""
    disk = new_disk()
    build(disk)
    return disk_with(files(disk))


def having(build: Callable[[SimDisk], Storage]) -> Step:
    def before(disk: SimDisk) -> None:
        build(disk)

    return before


def crash_everywhere(before: Step, step: Step, check: Callable[[Storage, Lines], str]) -> set[str]:
    """Do a step and die in each of its changes, by kill and by several power cuts; what was found afterwards."""
    found = set()
    for steps in range(1_000):
        for seed in (None, *range(12)):
            disk = new_disk()
            before(disk)
            disk.crash_after(steps)
            try:
                step(disk)
            except SimulatedCrash:
                is_over = False
            else:
                is_over = True
            if seed is None:
                disk.kill()
            else:
                disk.power_cut(random.Random(seed))
            # Opening may be cut short like anything else.
            disk.crash_after(seed or 0)
            try:
                open_storage(disk, Lines())
            except SimulatedCrash:
                disk.power_cut(random.Random(steps))
            else:
                disk.kill()
            machine = Lines()
            found.add(check(open_storage(disk, machine), machine))
            again = Lines()
            assert check(open_storage(disk, again), again) == check(open_storage(disk, machine), machine)
        if is_over:
            return found
    raise AssertionError("the step does not end")


def test_crash_while_a_directory_is_made() -> None:
    def check(storage: Storage, machine: Lines) -> str:
        assert (storage.hard.votes, storage.hard.term, kept(storage.journal)) == (False, 0, [])
        assert (storage.snapshot, storage.hard.resetting_to) == (None, None)
        return "new"

    def make(disk: SimDisk) -> None:
        open_storage(disk)

    assert crash_everywhere(lambda disk: None, make, check) == {"new"}


def test_crash_while_a_vote_is_written() -> None:
    def check(storage: Storage, machine: Lines) -> str:
        assert kept(storage.journal) == [*entries(2, 6), *entries(6, 10, term=2)]
        return f"{storage.hard.voted_for} in {storage.hard.term}"

    def vote(disk: SimDisk) -> None:
        open_storage(disk).set_vote(3, "n2")

    assert crash_everywhere(having(used), vote, check) == {"n3 in 2", "n2 in 3"}


def test_crash_while_a_snapshot_is_taken() -> None:
    def check(storage: Storage, machine: Lines) -> str:
        assert (storage.hard.term, storage.hard.voted_for) == (2, "n3")
        everything = [*entries(2, 6), *entries(6, 10, term=2)]
        assert kept(storage.journal) == everything[storage.journal.first_index - 2 :]
        if storage.snapshot is None:
            assert machine.lines == []
            assert storage.journal.first_index == 2
            return "no snapshot"
        assert (storage.snapshot, machine.lines) == (SnapshotId(9, 2), PIECES)
        return "snapshot"

    def take(disk: SimDisk) -> None:
        storage = open_storage(disk)
        storage.publish_snapshot(take_snapshot(storage, 9, 2, PIECES))

    found = crash_everywhere(having(used), take, check)
    assert found == {"no snapshot", "snapshot"}


def test_crash_while_the_leaders_snapshot_is_installed() -> None:
    """Either all is as it was or all is the leader's; and the vote is never lost."""
    data = snapshot_file(50, 4, [b"the leader's"])

    def check(storage: Storage, machine: Lines) -> str:
        assert (storage.hard.votes, storage.hard.term, storage.hard.voted_for) == (True, 2, "n3")
        assert storage.hard.resetting_to is None
        if storage.snapshot == SnapshotId(50, 4):
            assert (machine.lines, kept(storage.journal)) == ([b"the leader's"], [])
            assert storage.journal[0][1:] == (50, 4)
            return "the leader's"
        assert storage.snapshot == SnapshotId(7, 2)
        assert (machine.lines, kept(storage.journal)[-2:]) == (PIECES, entries(8, 10, term=2))
        return "as it was"

    def install(disk: SimDisk) -> None:
        storage = open_storage(disk)
        storage.install(receive_snapshot(storage, 50, 4, data, chunk_bytes=64), Lines())

    found = crash_everywhere(having(with_snapshot), install, check)
    assert found == {"as it was", "the leader's"}


# --- no room -------------------------------------------------------------------------------------------------------


def test_no_room_for_a_snapshot() -> None:
    """It is given up, wherever that happens, and everything goes on; later there is room."""
    for room in range(0, 400, 7):
        disk = new_disk()
        storage = used(disk)
        disk.capacity_bytes = disk.used_bytes() + room
        try:
            take_snapshot(storage, 9, 2, PIECES)
        except DiskFullError:
            disk.capacity_bytes = None
            add(storage.journal, *entries(10, 12, term=2))
            storage.journal.flush()
            storage.publish_snapshot(take_snapshot(storage, 11, 2, PIECES))
            disk.kill()
            assert open_storage(disk).snapshot == SnapshotId(11, 2)
        else:
            return
    raise AssertionError("there never was enough room")


def test_room_made_ahead_leaves_room_for_a_vote() -> None:
    """It is a matter of speed. Where there is not enough of it, none is taken from what a member needs to go on."""
    disk = new_disk()
    storage = open_storage(disk, ahead_bytes=64 * 1024)
    disk.capacity_bytes = disk.used_bytes() + 4_000
    add(storage.journal, *entries(2, 6))
    storage.journal.flush()
    storage.set_vote(3, "n2")
    assert disk.used_bytes() < disk.capacity_bytes - 1_000


class Shared(SimDisk):
    """A disk that somebody else fills: from some write on there is no room."""

    def __init__(self) -> None:
        super().__init__()
        self.writes_left = 1 << 30

    def room(self) -> int:
        self.writes_left -= 1
        return super().room() if self.writes_left >= 0 else 0


def test_no_room_for_the_leaders_snapshot() -> None:
    """Wherever it fails, the member goes on as what it was, or as what the leader sent, not as something else.

    It may also end, by any other error, and find the way out when it is started again.
    """
    data = snapshot_file(50, 4, [b"the leader's"])
    outcomes = set()
    for writes in range(1_000):
        disk = Shared()
        disk.make_dirs(DIRECTORY)
        storage = with_snapshot(disk)
        machine = Lines()
        machine.lines = [b"as it was"]
        disk.writes_left = writes
        try:
            storage.install(receive_snapshot(storage, 50, 4, data, chunk_bytes=64), machine)
        except DiskFullError:
            disk.writes_left = 1 << 30
            is_new = machine.lines == [b"the leader's"]
            outcomes.add("new" if is_new else "old")
            assert storage.snapshot == (SnapshotId(50, 4) if is_new else SnapshotId(7, 2))
            assert storage.journal[-1][1:] == ((50, 4) if is_new else (9, 2)), f"after {writes} writes"
            following = entries(51, 53, term=4) if is_new else entries(10, 12, term=2)
            add(storage.journal, *following)
            storage.journal.flush()
            disk.kill()
            assert kept(open_storage(disk).journal)[-2:] == following
        except QuireError:
            disk.writes_left = 1 << 30
            disk.kill()
            machine = Lines()
            storage = open_storage(disk, machine)
            is_new = machine.lines == [b"the leader's"]
            assert storage.journal[-1][1:] == ((50, 4) if is_new else (9, 2)), f"after {writes} writes"
        else:
            assert outcomes
            return
    raise AssertionError("it does not end")
