"""Snapshot files: written piece by piece, sent in parts, believed only whole."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from quire.disk.sim_disk import SimDisk
from quire.errors import DamagedFileError, DiskFullError, DiskIoError
from quire.v1 import raft_pb2
from quire_controller.raft import snapshot
from quire_controller.raft.snapshot import BLOCK_BYTES_MAX, SnapshotId, SnapshotReceiver, SnapshotWriter
from tests.unit.raft_crafting import CLUSTER, DIRECTORY, MOVE_AWAY, disk_with, files, new_disk, path_in, snapshot_file

ID = SnapshotId(1_234, 5)
NAME = "snapshot-00000000000000001234.snap"
PIECES = [b"first", b"x" * 700, b"last"]


def block(data: bytes) -> bytes:
    return struct.pack(">II", len(data), crc32c(data)) + data


def header(index: int = ID.last_index, term: int = ID.last_term, cluster_id: str = CLUSTER) -> bytes:
    return raft_pb2.RaftSnapshotHeader(cluster_id=cluster_id, last_index=index, last_term=term).SerializeToString()


def by_hand(*blocks: bytes) -> bytes:
    """A snapshot file put together from its description."""
    written = [block(data) for data in blocks]
    checks = crc32c(b"".join(one[:8] for one in written))
    return struct.pack(">4sI", b"QRSN", 1) + b"".join(written) + struct.pack(">II", 0, checks)


def read(data: bytes, *, cluster_id: str = CLUSTER) -> tuple[SnapshotId, list[bytes]]:
    disk = disk_with({NAME: data})
    path = snapshot.path_of(DIRECTORY, ID.last_index)
    found, pieces = snapshot.read(disk.open(path), path, cluster_id=cluster_id)
    return found, list(pieces)


def writer(disk: SimDisk, *pieces: bytes) -> SnapshotWriter:
    made = SnapshotWriter(disk, DIRECTORY, CLUSTER, ID)
    for piece in pieces:
        made.write(piece)
    return made


# --- the file ------------------------------------------------------------------------------------------------------


def test_file_is_what_its_description_says() -> None:
    assert snapshot_file(ID.last_index, ID.last_term, PIECES) == by_hand(header(), *PIECES)


def test_pieces_come_back() -> None:
    assert read(by_hand(header(), *PIECES)) == (ID, PIECES)
    assert read(by_hand(header())) == (ID, [])


def test_empty_pieces_are_left_out() -> None:
    """An empty block is the end."""
    assert read(snapshot_file(ID.last_index, ID.last_term, [b"", b"a", b"", b"b", b""])) == (ID, [b"a", b"b"])


def test_name_comes_last() -> None:
    disk = new_disk()
    made = writer(disk, *PIECES)
    assert snapshot.indexes(disk, DIRECTORY) == []
    made.finish()
    made.sync()
    assert snapshot.indexes(disk, DIRECTORY) == []
    made.publish()
    assert snapshot.indexes(disk, DIRECTORY) == [ID.last_index]
    assert list(files(disk)) == [NAME]


def test_abandoned_file_is_gone() -> None:
    disk = new_disk()
    made = writer(disk, *PIECES)
    made.abandon()
    assert files(disk) == {}


def test_file_that_a_dead_process_left_is_written_over() -> None:
    disk = new_disk()
    writer(disk, b"y" * 5_000)
    made = writer(disk, *PIECES)
    made.finish()
    made.publish()
    assert files(disk) == {NAME: by_hand(header(), *PIECES)}


def test_only_names_of_snapshots_count() -> None:
    names = ["snapshot-1.snap", "snapshot-000000000000000000x1.snap", f"{NAME}.tmp", "snapshot-.snap", "member"]
    disk = disk_with(dict.fromkeys([*names, NAME, snapshot.path_of("", 7)[1:]], b""))
    assert snapshot.indexes(disk, DIRECTORY) == [7, ID.last_index]


def test_full_disk_is_told() -> None:
    disk = new_disk()
    made = writer(disk)
    disk.capacity_bytes = disk.used_bytes() + 100
    with pytest.raises(DiskFullError):
        made.write(b"x" * 200)
    made.abandon()
    assert files(disk) == {}


# --- damage --------------------------------------------------------------------------------------------------------

WHOLE = by_hand(header(), *PIECES)
DAMAGED = {
    "empty": b"",
    "no header": by_hand(),
    "another magic": b"QRSM" + WHOLE[4:],
    "a newer version": struct.pack(">4sI", b"QRSN", 2) + WHOLE[8:],
    "header that does not parse": by_hand(b"\xff\xff\xff"),
    "last block missing": WHOLE[:-8],
    "last block cut": WHOLE[:-1],
    "more after the last block": WHOLE + b"x",
    "two of it": WHOLE + WHOLE,
    "piece cut out": WHOLE.replace(block(b"first"), b""),
    "piece doubled": WHOLE.replace(block(b"first"), 2 * block(b"first")),
    "pieces swapped": by_hand(header(), *PIECES)[:-8] + by_hand(header(), *PIECES[::-1])[-8:],
    "block of a giant size": WHOLE[:8] + struct.pack(">II", BLOCK_BYTES_MAX + 1, 0) + WHOLE[16:],
    "end in the middle": WHOLE[:8] + struct.pack(">II", 0, 0) + WHOLE[16:],
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED.keys())
def test_damage_is_told_with_what_to_do(data: bytes) -> None:
    with pytest.raises(DamagedFileError, match=MOVE_AWAY) as caught:
        read(data)
    assert path_in(caught.value) == f"{DIRECTORY}/{NAME}"
    assert caught.value.message.startswith(f"{DIRECTORY}/{NAME} is damaged")


def test_every_shorter_file_is_damaged() -> None:
    for length in range(len(WHOLE)):
        with pytest.raises(DamagedFileError):
            read(WHOLE[:length])


def test_snapshot_of_another_cluster() -> None:
    with pytest.raises(DamagedFileError, match="belongs to cluster 'other', this is 'cluster-1'"):
        read(by_hand(header(cluster_id="other"), *PIECES))


# --- from the leader -----------------------------------------------------------------------------------------------


def receiver(disk: SimDisk, data: bytes, *, said: SnapshotId = ID, chunk_bytes: int = 100) -> SnapshotReceiver:
    made = SnapshotReceiver(disk, DIRECTORY, said, size=len(data))
    for position in range(0, len(data), chunk_bytes):
        assert not made.is_complete
        assert made.position == position
        made.write(data[position : position + chunk_bytes])
    assert made.is_complete
    return made


def test_parts_become_the_file() -> None:
    disk = new_disk()
    made = receiver(disk, WHOLE)
    assert snapshot.indexes(disk, DIRECTORY) == []
    made.check(CLUSTER)
    made.publish()
    assert files(disk) == {NAME: WHOLE}


def test_received_file_is_synced_before_it_has_its_name() -> None:
    disk = new_disk()
    made = receiver(disk, WHOLE)
    syncs = disk.syncs
    made.check(CLUSTER)
    assert disk.syncs == syncs + 1


@pytest.mark.parametrize("damage", sorted(DAMAGED.keys() - {"empty"}))
def test_damaged_parts_are_noticed(damage: str) -> None:
    data = DAMAGED[damage]
    disk = new_disk()
    made = receiver(disk, data)
    with pytest.raises(DamagedFileError):
        made.check(CLUSTER)
    made.abandon()
    assert files(disk) == {}


@pytest.mark.parametrize("said", [SnapshotId(1_234, 6), SnapshotId(1_235, 5)])
def test_other_snapshot_than_the_leader_said(said: SnapshotId) -> None:
    made = receiver(new_disk(), WHOLE, said=said)
    with pytest.raises(DamagedFileError, match="another snapshot than the leader said"):
        made.check(CLUSTER)


def test_received_file_does_not_stand_in_the_way_of_an_own_one() -> None:
    disk = new_disk()
    received = receiver(disk, WHOLE)
    own = writer(disk, *PIECES)
    own.finish()
    own.publish()
    received.check(CLUSTER)
    received.publish()
    assert files(disk) == {NAME: WHOLE}


def test_abandoned_parts_are_gone() -> None:
    disk = new_disk()
    made = receiver(disk, WHOLE)
    made.abandon()
    assert files(disk) == {}
    with pytest.raises(DiskIoError):
        made.write(b"more")
