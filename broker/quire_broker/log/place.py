"""Where the logs of partitions are, below a broker's folder, and whose they are.

    topics/<topic>-<first 12 digits of its id>/<partition>/partition.meta          topic id, partition
                                                          /records/…              the log
                                                          /partition.gone          instead of the first: to be removed

A folder is a partition's because `partition.meta` says so. Its name is for people.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from quire.disk import framed
from quire.disk.port import Disk
from quire.errors import DamagedFileError

TOPICS: Final = "topics"
META: Final = "partition.meta"
GONE: Final = "partition.gone"
RECORDS: Final = "records"
ID_DIGITS: Final = 12

_KIND: Final = "partition"
_VERSION: Final = 1
_META = struct.Struct(">16si")
_META_BYTES_MAX: Final = 256


class PartitionKey(NamedTuple):
    """Which partition of which topic."""

    topic_id: bytes
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id.hex()[:ID_DIGITS]}/{self.partition}"


class Place(NamedTuple):
    """A partition's folder."""

    key: PartitionKey
    directory: str

    @property
    def records(self) -> str:
        return f"{self.directory}/{RECORDS}"


def make(disk: Disk, root: str, key: PartitionKey, *, topic: str) -> Place:
    """Make the folder of a partition, durably. One that is there is taken as it is."""
    directory = f"{root}/{TOPICS}/{topic}-{key.topic_id.hex()[:ID_DIGITS]}/{key.partition}"
    disk.make_dirs(directory)
    path = f"{directory}/{META}"
    if disk.exists(path):
        found = _read(disk, path)
        if found != key:
            raise DamagedFileError(f"{path} is of partition {found}, not {key}; move it away", path=path)
    else:
        framed.stage(disk, path, framed.frame(_KIND, _VERSION, _META.pack(*key)))
        disk.sync_dir(directory)
    return Place(key, directory)


def find(disk: Disk, root: str) -> Iterator[Place]:
    """All partitions that are there, in order of their folders' names.

    Raises DamagedFileError for one that cannot say whose it is: to pass it over would be to forget what it holds.
    """
    for directory in _folders(disk, root):
        path = f"{directory}/{META}"
        if disk.exists(path):
            yield Place(_read(disk, path), directory)


def condemn(disk: Disk, place: Place) -> None:
    """From now on, also after a crash, the folder is no partition's and waits to be removed."""
    disk.rename(f"{place.directory}/{META}", f"{place.directory}/{GONE}")
    disk.sync_dir(place.directory)


def condemned(disk: Disk, root: str) -> Iterator[str]:
    """The folders that wait to be removed; empty ones are what a crash has left of such."""
    for directory in _folders(disk, root):
        if _is_condemned(disk, directory):
            yield directory


def _is_condemned(disk: Disk, directory: str) -> bool:
    names = disk.names(directory)
    return META not in names and (GONE in names or not names)


def remove(disk: Disk, directory: str) -> None:
    """Remove a folder if it is condemned. Its mark goes last, so that a crash in between leaves nothing unmarked."""
    if not _is_condemned(disk, directory):
        return  # it was made again meanwhile
    for name in disk.names(directory):
        inner = f"{directory}/{name}"
        if name == GONE:
            continue
        if name == RECORDS:
            for file in disk.names(inner):
                disk.remove(f"{inner}/{file}")
            disk.remove_dir(inner)
        else:
            disk.remove(inner)
    if disk.exists(f"{directory}/{GONE}"):
        disk.remove(f"{directory}/{GONE}")
    disk.remove_dir(directory)
    topic = directory.rpartition("/")[0]
    if not disk.names(topic):
        disk.remove_dir(topic)


def _folders(disk: Disk, root: str) -> Iterator[str]:
    for topic in disk.names(f"{root}/{TOPICS}"):
        for partition in disk.names(f"{root}/{TOPICS}/{topic}"):
            yield f"{root}/{TOPICS}/{topic}/{partition}"


def _read(disk: Disk, path: str) -> PartitionKey:
    payload = framed.unframe(
        framed.read_whole(disk, path, bytes_max=_META_BYTES_MAX), kind=_KIND, version_max=_VERSION, path=path
    )
    if len(payload) != _META.size:
        raise DamagedFileError(f"{path} has {len(payload)} bytes of content, not {_META.size}", path=path)
    topic_id, partition = _META.unpack(payload)
    return PartitionKey(topic_id, partition)
