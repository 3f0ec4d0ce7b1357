"""Room for so many bytes, and a line of those who wait for some: first come, first served. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

_NOTHING_FITS: Final = -1


@dataclass(slots=True)
class Waiter:
    """Somebody in the line."""

    size_bytes: int
    granted: Callable[[], object]
    is_granted: bool = False


class Room:
    """What is taken and given back here takes the lock; whoever holds it may also look at `used` and `limit`."""

    __slots__ = ("_capacity", "_lock", "_waiters", "limit", "used")

    def __init__(self, capacity_bytes: int, *, lock: AbstractContextManager[object]) -> None:
        self._capacity = capacity_bytes
        self._lock = lock
        self._waiters: deque[Waiter] = deque()
        self.used = 0
        self.limit = capacity_bytes
        """Up to where room may be taken without standing in line. While there is a line: not at all."""

    def wait(self, size_bytes: int, granted: Callable[[], object]) -> Waiter:
        """Stand in line. `granted` is called, by any thread, once there is room: it is the caller's from then on."""
        waiter = Waiter(size_bytes, granted)
        with self._lock:
            self._waiters.append(waiter)
            self.limit = _NOTHING_FITS
            called = self._grant()
        _call(called)
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """Stop waiting; room that was granted is given back."""
        with self._lock:
            if waiter.is_granted:
                self.used -= waiter.size_bytes
            else:
                self._waiters.remove(waiter)
            called = self._grant()
        _call(called)

    def give_back(self, size_bytes: int) -> None:
        """Room that was taken is not needed any more."""
        with self._lock:
            self.used -= size_bytes
            called = self._grant()
        _call(called)

    def _grant(self) -> list[Waiter]:
        """Under the lock. Gives those that are to be called, outside of it."""
        called: list[Waiter] = []
        # What is larger than all the room goes alone, or it would wait for ever.
        while self._waiters and (not self.used or self.used + self._waiters[0].size_bytes <= self._capacity):
            waiter = self._waiters.popleft()
            waiter.is_granted = True
            self.used += waiter.size_bytes
            called.append(waiter)
        if not self._waiters:
            self.limit = self._capacity
        return called


def _call(waiters: Sequence[Waiter]) -> None:
    for waiter in waiters:
        waiter.granted()
