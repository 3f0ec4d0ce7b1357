"""An outcome that comes later, once, and whoever waits for it. From any thread, without a lock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Promise(Generic[T]):
    """Settled once, by one thread; callbacks may be added by any, and each is called once."""

    __slots__ = ("_callbacks", "outcome")

    def __init__(self) -> None:
        self.outcome: T | None = None
        self._callbacks: deque[Callable[[], object]] = deque()

    def settle(self, outcome: T) -> None:
        self.outcome = outcome
        self._call()

    def on_settled(self, callback: Callable[[], object]) -> None:
        """Call it once there is an outcome, by the thread that settles, or by this one if there is one already."""
        # Added first and looked at afterwards: the other order would miss an outcome that comes in between. Both
        # threads may empty the queue then, and taking from it is atomic.
        self._callbacks.append(callback)
        if self.outcome is not None:
            self._call()

    def _call(self) -> None:
        while True:
            try:
                callback = self._callbacks.popleft()
            except IndexError:
                return
            callback()
