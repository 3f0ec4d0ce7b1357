"""What may be in memory at once: requests and answers of all connections together, and both of each connection.

    requests   being received as a whole, carried out, waiting for a sync    too much: refused, to be sent again
    answers    read, decoded, not taken by their caller yet                  too much: whoever reads waits

Requests and answers of the process have a half each, so that readers who take nothing keep no producer out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from weakref import WeakValueDictionary

from quire.errors import LogBusyError, invariant

RETRY_AFTER_MS: Final = 50


class Budget:
    def __init__(self, *, what: str, bytes_max: int) -> None:
        """`what` stands in the text of a refusal: `this broker`."""
        self.what = what
        self.bytes_max = bytes_max
        self.used_bytes = 0

    @property
    def has_room(self) -> bool:
        return self.used_bytes < self.bytes_max

    def check(self, size_bytes: int) -> None:
        """Raises LogBusyError where that is too much. Whoever has nothing may take anything: it fits never else."""
        if self.used_bytes and self.used_bytes + size_bytes > self.bytes_max:
            raise LogBusyError(
                f"{self.used_bytes} bytes wait on {self.what}; send {size_bytes} more when some are answered",
                retry_after_ms=RETRY_AFTER_MS,
                waiting_bytes=self.used_bytes,
                limit_bytes=self.bytes_max,
            )


class Charge:
    """Bytes taken of several budgets at once. They are given back when everyone who holds the charge has let go."""

    __slots__ = ("__weakref__", "_budgets", "_holders", "_on_released", "size_bytes")

    def __init__(self, *budgets: Budget, on_released: Callable[[Charge], None] | None = None) -> None:
        self._budgets = budgets
        self._holders = 1
        self._on_released = on_released
        self.size_bytes = 0

    def take(self, size_bytes: int) -> None:
        """So many more, of all budgets or of none. Raises LogBusyError."""
        for budget in self._budgets:
            budget.check(size_bytes)
        self.add(size_bytes)

    def add(self, size_bytes: int) -> None:
        """So many more, which are in memory already: whoever comes next finds less room."""
        for budget in self._budgets:
            budget.used_bytes += size_bytes
        self.size_bytes += size_bytes

    def hold(self) -> None:
        invariant(self._holders > 0, "a charge that was given back is held again")
        self._holders += 1

    def let_go(self) -> None:
        invariant(self._holders > 0, "a charge is let go of more often than it was held")
        self._holders -= 1
        if self._holders:
            return
        for budget in self._budgets:
            budget.used_bytes -= self.size_bytes
        self.size_bytes = 0
        if self._on_released is not None:
            self._on_released(self)


class Memory:
    """All budgets of a broker."""

    def __init__(self, *, process_bytes_max: int, connection_bytes_max: int) -> None:
        self.requests = Budget(what="this broker", bytes_max=process_bytes_max - process_bytes_max // 2)
        self.answers = Budget(what="this broker to be read", bytes_max=process_bytes_max // 2)
        self._connection_bytes_max = connection_bytes_max
        self._connections: WeakValueDictionary[str, Budget] = WeakValueDictionary()

    @property
    def used_bytes(self) -> int:
        return self.requests.used_bytes + self.answers.used_bytes

    def connection(self, peer: str) -> Budget:
        """The budget of a connection, by the address at its other end. It is there as long as somebody has it."""
        budget = self._connections.get(peer)
        if budget is None:
            budget = self._connections[peer] = Budget(what="this connection", bytes_max=self._connection_bytes_max)
        return budget
