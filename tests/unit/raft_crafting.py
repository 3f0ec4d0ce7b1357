"""Members' directories on a simulated disk, and ways to look at what is in one."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from quire.disk.sim_disk import SimDisk
from quire.errors import DamagedFileError
from quire_controller.raft.entry import REGULAR, Entry
from quire_controller.raft.journal import SEGMENT_BYTES, Journal
from quire_controller.raft.snapshot import SnapshotId, SnapshotReceiver, SnapshotWriter
from quire_controller.raft.storage import Storage

DIRECTORY: Final = "/raft"
CLUSTER: Final = "cluster-1"
MEMBER: Final = "n1"
MOVE_AWAY: Final = r"move (its|the) directory away"
"""What whoever reads an error about a damaged directory is told to do."""


class Lines:
    """A state machine that keeps its commands, each a piece of its snapshot."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def apply(self, index: int, command: bytes) -> bytes:
        self.lines.append(command)
        return b"%d" % index

    def freeze(self) -> Iterator[bytes]:
        return iter(tuple(self.lines))

    def restore(self, pieces: Iterable[bytes]) -> None:
        self.lines = list(pieces)


def command(index: int, *, size: int = 0) -> bytes:
    """The command of an entry, which can be told from every other one's."""
    return b"command-%d" % index + b"." * size


def entry(index: int, term: int = 1, *, size: int = 0) -> Entry:
    return REGULAR + command(index, size=size), index, term


def entries(first: int, end: int, term: int = 1, *, size: int = 0) -> list[Entry]:
    return [entry(index, term, size=size) for index in range(first, end)]


def add(journal: Journal, *new: Entry) -> None:
    for one in new:
        journal.add(*one)


def kept(journal: Journal) -> list[Entry]:
    """The entries that are in a journal, without the one before the first."""
    return list(journal[1:])


def new_disk() -> SimDisk:
    disk = SimDisk()
    disk.make_dirs(DIRECTORY)
    return disk


def new_journal(disk: SimDisk, *, segment_bytes: int = SEGMENT_BYTES, seed: int = 1) -> Journal:
    return Journal.create(disk, DIRECTORY, random.Random(seed), segment_bytes=segment_bytes)


def open_journal(disk: SimDisk, *, segment_bytes: int = SEGMENT_BYTES, seed: int = 2) -> Journal:
    return Journal.open(disk, DIRECTORY, random.Random(seed), segment_bytes=segment_bytes)


def open_storage(
    disk: SimDisk,
    machine: Lines | None = None,
    *,
    segment_bytes: int = SEGMENT_BYTES,
    ahead_bytes: int = 0,
    cluster_id: str = CLUSTER,
    member_id: str = MEMBER,
    seed: int = 1,
) -> Storage:
    return Storage.open(
        disk,
        DIRECTORY,
        machine or Lines(),
        random.Random(seed),
        cluster_id=cluster_id,
        member_id=member_id,
        segment_bytes=segment_bytes,
        ahead_bytes=ahead_bytes,
    )


def take_snapshot(storage: Storage, index: int, term: int, pieces: Iterable[bytes]) -> SnapshotWriter:
    """Write a snapshot of what is applied up to `index`, to be published."""
    writer = storage.begin_snapshot(SnapshotId(index, term))
    for piece in pieces:
        writer.write(piece)
    writer.finish()
    writer.sync()
    return writer


def snapshot_file(index: int, term: int, pieces: Iterable[bytes], *, cluster_id: str = CLUSTER) -> bytes:
    """A snapshot as a leader would send it."""
    disk = new_disk()
    writer = SnapshotWriter(disk, DIRECTORY, cluster_id, SnapshotId(index, term))
    for piece in pieces:
        writer.write(piece)
    writer.finish()
    writer.publish()
    [data] = files(disk).values()
    return data


def receive_snapshot(
    storage: Storage, index: int, term: int, data: bytes, *, chunk_bytes: int = 16
) -> SnapshotReceiver:
    """Take a snapshot from a leader, to be installed."""
    receiver = storage.begin_install(SnapshotId(index, term), size=len(data))
    for position in range(0, len(data), chunk_bytes):
        receiver.write(data[position : position + chunk_bytes])
    return receiver


def files(disk: SimDisk) -> dict[str, bytes]:
    found = {}
    for name in disk.names(DIRECTORY):
        file = disk.open(f"{DIRECTORY}/{name}")
        found[name] = file.read(0, file.size())
        file.close()
    return found


def disk_with(content: Mapping[str, bytes]) -> SimDisk:
    """A disk on which these files are, as after a restart of the machine."""
    disk = new_disk()
    for name, data in content.items():
        file = disk.open(f"{DIRECTORY}/{name}", create=True)
        file.write(0, [data])
        file.sync()
    disk.sync_dir(DIRECTORY)
    return disk


def path(name: str) -> str:
    return f"{DIRECTORY}/{name}"


def path_in(error: DamagedFileError) -> str:
    """Which file an error blames."""
    return error.details["path"]
