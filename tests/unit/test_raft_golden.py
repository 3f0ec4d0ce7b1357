"""A member's directory frozen in tests/golden/raft: what is on people's disks must stay readable and the same.

Written once, in a Python prompt at the root of the repository, after `from tests.unit.test_raft_golden import *`:

    for name, data in written().items(): (GOLDEN / name).write_bytes(data)

A file that is there already is never written anew: if it no longer matches, what changed is the format.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from quire.disk.sim_disk import SimDisk
from quire_controller.raft.entry import NO_OP, REGULAR, Entry
from quire_controller.raft.hard_state import HardState
from quire_controller.raft.snapshot import SnapshotId
from tests.unit.raft_crafting import (
    CLUSTER,
    DIRECTORY,
    MEMBER,
    Lines,
    disk_with,
    files,
    kept,
    new_disk,
    open_storage,
    take_snapshot,
)

GOLDEN: Final = Path(__file__).resolve().parents[1] / "golden" / "raft"
SEGMENT_BYTES: Final = 250
ENTRIES: Final[list[Entry]] = [
    (NO_OP, 2, 1),
    (REGULAR + b"one", 3, 1),
    (REGULAR + bytes(range(256)), 4, 1),
    (NO_OP, 5, 3),
    (REGULAR, 6, 3),
    (REGULAR + "sechs – ünf".encode(), 7, 3),
    (NO_OP, 8, 1 << 40),
    (REGULAR + b"the end", 9, 1 << 40),
]
INCARNATION: Final = 13333304741109170280
PIECES: Final = [b"one", bytes(range(256)), b"x"]


def written() -> dict[str, bytes]:
    """What today's code writes: three terms, files that were rolled and trimmed, marks, a snapshot, a vote."""
    disk = new_disk()
    storage = open_storage(disk, segment_bytes=SEGMENT_BYTES, seed=20)
    storage.admit(0, "")
    for entry in ENTRIES:
        if entry[2] > storage.hard.term:
            storage.set_vote(entry[2], f"n{entry[2] % 7}")
        storage.journal.add(*entry)
        if entry[1] % 3:
            storage.journal.flush()
            storage.journal.mark()
        if entry[1] == 4:
            storage.publish_snapshot(take_snapshot(storage, 4, 1, PIECES))
    storage.journal.flush()
    storage.journal.mark()
    storage.close()
    return files(disk)


def frozen() -> SimDisk:
    return disk_with({path.name: path.read_bytes() for path in sorted(GOLDEN.iterdir())})


def test_frozen_files_are_still_what_we_write() -> None:
    assert written() == {path.name: path.read_bytes() for path in GOLDEN.iterdir()}


def test_every_sort_of_file_is_frozen() -> None:
    assert sorted(path.suffix or path.name for path in GOLDEN.iterdir()) == [".log", ".log", ".snap", "member"]


def test_the_frozen_directory_opens() -> None:
    disk, machine = frozen(), Lines()
    storage = open_storage(disk, machine)
    assert storage.hard == HardState(
        cluster_id=CLUSTER,
        member_id=MEMBER,
        incarnation=INCARNATION,
        votes=True,
        term=1 << 40,
        voted_for="n2",
    )
    assert (storage.snapshot, machine.lines) == (SnapshotId(4, 1), PIECES)
    assert storage.journal[0][1:] == (4, 1)
    assert kept(storage.journal) == ENTRIES[3:]
    assert storage.journal.torn == []
    assert disk.names(DIRECTORY) == sorted(path.name for path in GOLDEN.iterdir())
