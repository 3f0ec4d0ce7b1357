"""Snapshot files: the state machine's pieces with a checksum each, complete or not there at all.

    snapshot-<last index, 20 digits>.snap
    magic (4) · version (4) · block… · last block       block: size (4) · crc (4) · data      big-endian

The first block is a `RaftSnapshotHeader`, the last one is empty and its checksum is that of all checksums before it.
A file gets its name when it is synced; what has no such name is rubbish of a process that died.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c
from google.protobuf.message import DecodeError

from quire.disk.port import Disk, DiskFile
from quire.errors import DamagedFileError, DiskFullError, QuireError
from quire.v1 import raft_pb2

START: Final = struct.Struct(">4sI")
BLOCK: Final = struct.Struct(">II")
MAGIC: Final = b"QRSN"
VERSION: Final = 1
BLOCK_BYTES_MAX: Final = 16 * 1024 * 1024
READ_BYTES: Final = 1024 * 1024
TEMPORARY: Final = ".tmp"
_PREFIX: Final = "snapshot-"
_SUFFIX: Final = ".snap"


@dataclass(frozen=True, slots=True)
class SnapshotId:
    """What a snapshot contains: everything up to the entry of this index and term."""

    last_index: int
    last_term: int


def path_of(directory: str, last_index: int) -> str:
    return f"{directory}/{_PREFIX}{last_index:020}{_SUFFIX}"


def indexes(disk: Disk, directory: str) -> list[int]:
    """The snapshots that are there, oldest first."""
    found = []
    for name in disk.names(directory):
        digits = name[len(_PREFIX) : -len(_SUFFIX)]
        if name == f"{_PREFIX}{digits}{_SUFFIX}" and len(digits) == 20 and digits.isdecimal():
            found.append(int(digits))
    return found


class SnapshotWriter:
    """Writes a snapshot piece by piece. `sync` may run on another thread; `publish` gives the file its name."""

    def __init__(self, disk: Disk, directory: str, cluster_id: str, snapshot: SnapshotId) -> None:
        self._disk = disk
        self._directory = directory
        self.snapshot = snapshot
        self._path = path_of(directory, snapshot.last_index)
        self._file = disk.open(self._path + TEMPORARY, create=True)
        self._checks = 0
        header = raft_pb2.RaftSnapshotHeader(
            cluster_id=cluster_id, last_index=snapshot.last_index, last_term=snapshot.last_term
        )
        try:
            self._file.truncate(0)
            self._end = self._file.write(0, [START.pack(MAGIC, VERSION)])
            self.write(header.SerializeToString(deterministic=True))
        except DiskFullError:
            self.abandon()
            raise

    def write(self, piece: bytes) -> None:
        if piece:  # an empty block is the last one
            self._write_block(piece, crc32c(piece))

    def finish(self) -> None:
        self._write_block(b"", self._checks)

    def sync(self) -> None:
        self._file.sync()

    def publish(self) -> None:
        self._file.close()
        self._disk.rename(self._path + TEMPORARY, self._path)
        self._disk.sync_dir(self._directory)

    def abandon(self) -> None:
        self._file.close()
        with suppress(QuireError):  # what stays is removed at the next start
            self._disk.remove(self._path + TEMPORARY)

    def _write_block(self, data: bytes, check: int) -> None:
        header = BLOCK.pack(len(data), check)
        self._checks = crc32c(header, self._checks)
        self._end += self._file.write(self._end, [header, data])


class SnapshotReceiver:
    """A snapshot that comes from the leader as parts of its file, in order."""

    def __init__(self, disk: Disk, directory: str, snapshot: SnapshotId, *, size: int) -> None:
        self._disk = disk
        self._directory = directory
        self.snapshot = snapshot
        self._path = path_of(directory, snapshot.last_index)
        self._received = f"{self._path}.received{TEMPORARY}"
        self._file = disk.open(self._received, create=True)
        self._file.truncate(0)
        self.size = size
        self.position = 0

    @property
    def is_complete(self) -> bool:
        return self.position == self.size

    def write(self, data: bytes) -> None:
        self.position += self._file.write(self.position, [data])

    def check(self, cluster_id: str) -> None:
        """Read the whole file and sync it. Raises DamagedFileError for one that does not check."""
        found = check(self._file, self._received, cluster_id=cluster_id)
        if found != self.snapshot:
            raise DamagedFileError(
                f"{self._received} is another snapshot than the leader said: {found}", path=self._received
            )
        self._file.sync()

    def publish(self) -> None:
        self._file.close()
        self._disk.rename(self._received, self._path)
        self._disk.sync_dir(self._directory)

    def abandon(self) -> None:
        self._file.close()
        with suppress(QuireError):
            self._disk.remove(self._received)


def check(file: DiskFile, path: str, *, cluster_id: str) -> SnapshotId:
    """Read a snapshot whole, for its checksums alone."""
    snapshot, blocks = read(file, path, cluster_id=cluster_id)
    for _ in blocks:
        pass
    return snapshot


def read(file: DiskFile, path: str, *, cluster_id: str) -> tuple[SnapshotId, Iterator[bytes]]:
    """What a snapshot contains and its pieces; all of them must be read before any of it is believed."""
    blocks = _blocks(file, path)
    first = next(blocks, None)
    if first is None:
        raise _damaged(path, "it has no header")
    try:
        header = raft_pb2.RaftSnapshotHeader.FromString(first)
    except DecodeError as error:
        raise _damaged(path, "its header does not decode") from error
    if header.cluster_id != cluster_id:
        raise DamagedFileError(
            f"{path} belongs to cluster '{header.cluster_id}', this is '{cluster_id}': the files of two clusters are "
            "mixed in one directory",
            path=path,
        )
    return SnapshotId(header.last_index, header.last_term), blocks


def _blocks(file: DiskFile, path: str) -> Iterator[bytes]:
    size = file.size()
    if size < START.size or START.unpack(file.read(0, START.size)) != (MAGIC, VERSION):
        raise _damaged(path, "it does not begin as a snapshot of a version that this Quire reads")
    position = START.size
    checks = 0
    while True:
        header = file.read(position, BLOCK.size)
        if len(header) < BLOCK.size:
            raise _damaged(path, f"it ends at byte {size}, in the middle")
        length, expected = BLOCK.unpack(header)
        position += BLOCK.size
        if length == 0:
            if expected != checks or position != size:
                raise _damaged(path, "its blocks do not add up")
            return
        data = file.read(position, length) if length <= BLOCK_BYTES_MAX else b""
        if len(data) != length or crc32c(data) != expected:
            raise _damaged(path, f"the block at byte {position} does not check")
        checks = crc32c(header, checks)
        position += length
        yield data


def _damaged(path: str, what: str) -> DamagedFileError:
    return DamagedFileError(
        f"{path} is damaged: {what}. This member does not start without the state that it had. If a majority of the "
        "others is well, move its directory away and start it again: it comes back without a vote, catches up, and "
        "is admitted by the leader",
        path=path,
    )
