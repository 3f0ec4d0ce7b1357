"""The Disk port in memory, with the faults that a real disk shows at the worst moment.

What a power cut may do is decided by what was synced. Of the changes to a file since its last sync a prefix reaches
the disk, and of the writes in that prefix each 512-byte sector on its own may be missing (it then holds what
was there before, or zeros). Of the changes to a directory since its last sync a prefix survives.

Faults are planted, never rolled behind the back of a test: `crash_after`, `capacity_bytes`, `failing_syncs`,
`failing_writes`, `failing_reads`, `flip`. All chance comes from the `random.Random` handed to `power_cut`.
"""

from __future__ import annotations

import posixpath
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from quire.errors import DiskFullError, DiskIoError, SyncFailedError
from quire.types import Buffer

SECTOR_BYTES = 512


class SimulatedCrash(BaseException):
    """The process died in this call. Not an `Exception`: no handler of expected errors may outlive it."""


@dataclass(slots=True)
class _Write:
    position: int
    data: bytes


@dataclass(slots=True)
class _Truncate:
    size: int


@dataclass(slots=True)
class _Node:
    """A file's content as the process sees it, as the disk has it, and the changes between the two."""

    seen: bytearray = field(default_factory=bytearray)
    kept: bytearray = field(default_factory=bytearray)
    pending: list[_Write | _Truncate] = field(default_factory=list)


class SimFile:
    def __init__(self, disk: SimDisk, path: str, node: _Node) -> None:
        self._disk = disk
        self._path = path
        self._node = node
        self._generation = disk.generation
        self._open = True

    def size(self) -> int:
        self._check()
        return len(self._node.seen)

    def read(self, position: int, size: int) -> bytes:
        self._check()
        if any(position < bad + SECTOR_BYTES and bad < position + size for bad in self._disk.bad_sectors(self._path)):
            raise DiskIoError(f"cannot read {self._path}: simulated", path=self._path)
        return bytes(self._node.seen[position : position + size])

    def write(self, position: int, buffers: Sequence[Buffer]) -> int:
        self._check()
        data = b"".join(buffers)
        seen = self._node.seen
        room = self._disk.room()
        grows = max(0, position + len(data) - len(seen))
        dying = self._disk.step()
        failing = self._path in self._disk.failing_writes
        # Like a real file system: what fits is written before the error is told.
        fits = 0 if failing else len(data) - max(0, grows - room)
        if fits > 0:
            self._apply(_Write(position, data[:fits]))
        if dying:
            raise SimulatedCrash(f"write {self._path}")
        if failing:
            raise DiskIoError(f"cannot write {self._path}: simulated", path=self._path)
        if fits < len(data):
            raise DiskFullError(f"no room to write {self._path}", path=self._path, retry_after_ms=1000)
        return len(data)

    def truncate(self, size: int) -> None:
        self._check()
        dying = self._disk.step()
        self._apply(_Truncate(size))
        if dying:
            raise SimulatedCrash(f"truncate {self._path}")

    def sync(self) -> None:
        self._check()
        if self._disk.step():
            raise SimulatedCrash(f"sync {self._path}")
        self._disk.syncs += 1
        if self._path in self._disk.failing_syncs:
            # As Linux does: the error is told once, the pages are marked clean and may never be written.
            self._disk.failing_syncs.discard(self._path)
            self._node.pending.clear()
            raise SyncFailedError(f"cannot sync {self._path}: simulated", path=self._path)
        for change in self._node.pending:
            _apply(self._node.kept, change)
        self._node.pending.clear()

    @property
    def descriptor(self) -> int | None:
        return None

    def close(self) -> None:
        self._open = False

    def _apply(self, change: _Write | _Truncate) -> None:
        _apply(self._node.seen, change)
        self._node.pending.append(change)

    def _check(self) -> None:
        if self._generation != self._disk.generation or self._disk.dead:
            raise SimulatedCrash(f"use of {self._path} after the crash")
        if not self._open:
            raise DiskIoError(f"{self._path} is closed", path=self._path)


class SimDisk:
    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.failing_syncs: set[str] = set()
        """Paths whose next sync fails."""
        self.failing_writes: set[str] = set()
        """Paths whose writes fail until taken out again."""
        self.failing_reads: set[tuple[str, int]] = set()
        """(path, position) of sectors that cannot be read any more."""
        self.syncs = 0
        self.generation = 0
        self.dead = False
        self._steps_left: int | None = None
        self._directories = {"/"}
        self._seen: dict[str, _Node] = {}
        self._kept: dict[str, _Node] = {}
        self._pending: list[tuple[str, str | None, _Node | None]] = []
        """Changes of names since they were last synced: (path, path renamed from or None, None if removed)."""

    # -- the port --------------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> SimFile:
        self._check()
        node = self._seen.get(path)
        if node is None:
            if not create:
                raise DiskIoError(f"cannot open {path}: no such file", path=path)
            self._check_free(path)
            dying = self.step()
            node = _Node()
            self._rename(path, None, node)
            if dying:
                raise SimulatedCrash(f"create {path}")
        return SimFile(self, path, node)

    def exists(self, path: str) -> bool:
        self._check()
        return path in self._seen or path in self._directories

    def names(self, directory: str) -> list[str]:
        self._check()
        if directory in self._seen:
            raise DiskIoError(f"cannot list {directory}: not a directory", path=directory)
        inside, begin = directory.rstrip("/") + "/", len(directory.rstrip("/")) + 1
        paths = [*self._seen, *(self._directories - {"/"})]
        return sorted(path[begin:] for path in paths if path.startswith(inside) and path.find("/", begin) < 0)

    def make_dirs(self, directory: str) -> None:
        self._check()
        while directory not in self._directories:
            if directory in self._seen:
                raise DiskIoError(f"cannot make directory {directory}: a file is there", path=directory)
            self._directories.add(directory)
            directory = posixpath.dirname(directory)

    def rename(self, old: str, new: str) -> None:
        self._check()
        node = self._seen.get(old)
        if node is None:
            raise DiskIoError(f"cannot rename {old}: no such file", path=old)
        self._check_free(new)
        dying = self.step()
        self._rename(new, old, node)
        if dying:
            raise SimulatedCrash(f"rename {old}")

    def remove(self, path: str) -> None:
        self._check()
        if path not in self._seen:
            raise DiskIoError(f"cannot remove {path}: no such file", path=path)
        dying = self.step()
        self._rename(path, None, None)
        if dying:
            raise SimulatedCrash(f"remove {path}")

    def remove_dir(self, directory: str) -> None:
        self._check()
        if directory not in self._directories or self.names(directory):
            raise DiskIoError(f"cannot remove {directory}: not an empty directory", path=directory)
        self._directories.discard(directory)

    def free_bytes(self, directory: str) -> int:
        self._check()
        return self.room()

    def sync_dir(self, directory: str) -> None:
        self._check()
        if directory not in self._directories:
            raise DiskIoError(f"cannot open {directory}: no such directory", path=directory)
        if self.step():
            raise SimulatedCrash(f"sync {directory}")
        if directory in self.failing_syncs:
            self.failing_syncs.discard(directory)
            raise SyncFailedError(f"cannot sync {directory}: simulated", path=directory)
        left = []
        for change in self._pending:
            if posixpath.dirname(change[0]) == directory:
                _apply_name(self._kept, change)
            else:
                left.append(change)
        self._pending = left

    # -- faults ----------------------------------------------------------------------------------------------------

    def crash_after(self, steps: int) -> None:
        """Die in the call that makes the `steps`-th change from now on (0: the next one)."""
        self._steps_left = steps

    def power_cut(self, chance: random.Random) -> None:
        """Lose what was not synced, as far as chance wants it, and start again."""
        for rename in self._pending[: chance.randint(0, len(self._pending))]:
            _apply_name(self._kept, rename)
        for node in self._kept.values():
            cached = bytearray(node.kept)
            for change in node.pending[: chance.randint(0, len(node.pending))]:
                _apply(cached, change)
                if isinstance(change, _Write):
                    _write_back(node.kept, cached, change, chance)
                else:
                    _apply(node.kept, change)
        self._restart({path: _Node(bytearray(node.kept), node.kept) for path, node in self._kept.items()})

    def kill(self) -> None:
        """End the process but not the machine: all that was written is still there, synced or not."""
        self._restart(self._seen)

    def flip(self, path: str, position: int, bit: int) -> None:
        """Change one bit, on the disk and in the cache alike."""
        node = self._seen[path]
        node.seen[position] ^= 1 << bit
        if position < len(node.kept):
            node.kept[position] ^= 1 << bit
        for change in node.pending:
            if isinstance(change, _Write) and change.position <= position < change.position + len(change.data):
                data = bytearray(change.data)
                data[position - change.position] ^= 1 << bit
                change.data = bytes(data)

    # -- inside ----------------------------------------------------------------------------------------------------

    def bad_sectors(self, path: str) -> list[int]:
        return [position for bad, position in self.failing_reads if bad == path]

    def step(self) -> bool:
        """Count a change; true if the process is to die in it."""
        if self._steps_left is None:
            return False
        self._steps_left -= 1
        if self._steps_left >= 0:
            return False
        self.dead = True
        return True

    def room(self) -> int:
        if self.capacity_bytes is None:
            return 1 << 62
        return max(0, self.capacity_bytes - self.used_bytes())

    def used_bytes(self) -> int:
        return sum(len(node.seen) for node in self._seen.values())

    def _rename(self, path: str, old: str | None, node: _Node | None) -> None:
        change = (path, old, node)
        _apply_name(self._seen, change)
        self._pending.append(change)

    def _restart(self, nodes: dict[str, _Node]) -> None:
        self.generation += 1
        self.dead = False
        self._steps_left = None
        self.failing_syncs.clear()
        self.failing_writes.clear()
        if nodes is not self._seen:
            self._seen = nodes
            self._kept = dict(nodes)
            self._pending = []
        for path in self._seen:
            self.make_dirs(posixpath.dirname(path))  # removed, and back with the files that are back

    def _check(self) -> None:
        if self.dead:
            raise SimulatedCrash("use of the disk after the crash")

    def _check_free(self, path: str) -> None:
        """Whether a file may have this name."""
        if path in self._directories:
            raise DiskIoError(f"{path} is a directory", path=path)
        if posixpath.dirname(path) not in self._directories:
            raise DiskIoError(f"cannot make {path}: no such directory", path=path)


def _apply(content: bytearray, change: _Write | _Truncate) -> None:
    if isinstance(change, _Truncate):
        del content[change.size :]
        content.extend(bytes(change.size - len(content)))
        return
    end = change.position + len(change.data)
    if len(content) < change.position:
        content.extend(bytes(change.position - len(content)))
    content[change.position : end] = change.data


def _write_back(content: bytearray, cached: bytearray, change: _Write, chance: random.Random) -> None:
    """Bring a write to the disk, or only some of its sectors; those left out keep what they held, or read as zeros.

    A sector goes as it is in the cache, with what earlier writes put into it: no disk writes less.
    """
    whole = chance.random() < 0.5
    end = change.position + len(change.data)
    for position in range(change.position - change.position % SECTOR_BYTES, end, SECTOR_BYTES):
        if whole or chance.random() < 0.5:
            _apply(content, _Write(position, bytes(cached[position : position + SECTOR_BYTES])))


def _apply_name(names: dict[str, _Node], change: tuple[str, str | None, _Node | None]) -> None:
    path, old, node = change
    if old is not None:
        names.pop(old, None)
    if node is None:
        names.pop(path, None)
    else:
        names[path] = node
