"""The last few batches of a log, kept as they were written: most readers want just these, at once, and several do.

From the file each would have to look for the place, read it and check it. What is kept was checked when it came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from quire.types import Buffer
from quire_broker.log.reader import Batches

TAIL_BYTES_MAX: Final = 32 * 1024
"""Of one log. Larger batches are read from the file: what that costs is then mostly their bytes."""
TAILS_BYTES_MAX: Final = 8 * 1024 * 1024


class TailRoom:
    """How much all tails of a process may take together. The one written longest ago makes room."""

    def __init__(self, bytes_max: int = TAILS_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._tails: dict[Tail, None] = {}
        self.used_bytes = 0

    def took(self, tail: Tail, size_bytes: int) -> None:
        self.used_bytes += size_bytes
        self._tails.pop(tail, None)
        self._tails[tail] = None
        while self.used_bytes > self._bytes_max:
            next(iter(self._tails)).forget()

    def gave_back(self, tail: Tail, size_bytes: int) -> None:
        self.used_bytes -= size_bytes
        if not tail.size_bytes:
            self._tails.pop(tail, None)


class _Batch(NamedTuple):
    base_offset: int
    end_offset: int
    data: bytes


class Tail:
    def __init__(self, room: TailRoom) -> None:
        self._room = room
        self._batches: deque[_Batch] = deque()
        self.size_bytes = 0

    def add(self, base_offset: int, end_offset: int, buffers: Sequence[Buffer]) -> None:
        """A batch was written behind what is kept, in these pieces. They are copied."""
        size_bytes = sum(map(len, buffers))
        if size_bytes > TAIL_BYTES_MAX or (self._batches and self._batches[-1].end_offset != base_offset):
            self.forget()
        if size_bytes > TAIL_BYTES_MAX:
            return
        while self.size_bytes + size_bytes > TAIL_BYTES_MAX:
            self._drop(self._batches.popleft())
        self._batches.append(_Batch(base_offset, end_offset, b"".join(buffers)))
        self.size_bytes += size_bytes
        self._room.took(self, size_bytes)

    def read(self, offset: int, *, bytes_max: int, end_offset: int) -> Batches | None:
        """What the log would answer; None where it has to be asked."""
        if not self._batches or offset < self._batches[0].base_offset or offset >= self._batches[-1].end_offset:
            return None
        found: list[_Batch] = []
        size_bytes = 0
        for batch in self._batches:
            if batch.end_offset <= offset:
                continue
            if batch.end_offset > end_offset or (found and size_bytes + len(batch.data) > bytes_max):
                break
            found.append(batch)
            size_bytes += len(batch.data)
        if not found:
            return Batches(memoryview(b""), offset, offset)
        data = found[0].data if len(found) == 1 else b"".join(batch.data for batch in found)
        return Batches(memoryview(data), found[0].base_offset, found[-1].end_offset)

    def forget(self) -> None:
        while self._batches:
            self._drop(self._batches.popleft())

    def _drop(self, batch: _Batch) -> None:
        self.size_bytes -= len(batch.data)
        self._room.gave_back(self, len(batch.data))
