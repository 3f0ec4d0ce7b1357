"""Which stream of which partition may send to a follower next, and how much.

One window is for one link: what all partitions together have on their way to one broker is bounded, until that broker
counts it as written. Streams that the leader waits for and those that catch up have budgets of their own, so neither
keeps the other from getting on; they take turns, and what catches up sends in small pieces, so that a batch that
someone waits for has little in front of it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from quire.errors import InvalidArgumentError

Lane = TypeVar("Lane", bound=Hashable)

_MIB: Final = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class WindowConfig:
    hot_bytes_max: int = 16 * _MIB
    """What may be on its way of streams that the leader waits for."""
    catch_up_bytes_max: int = 2 * _MIB
    """The same of streams that catch up."""
    hot_turn_bytes: int = 4 * _MIB
    """How much a stream sends before it is another one's turn."""
    catch_up_turn_bytes: int = 256 * 1024
    """The same for one that catches up."""

    def __post_init__(self) -> None:
        if not 0 < self.hot_turn_bytes <= self.hot_bytes_max:
            raise InvalidArgumentError("hot_turn_bytes is to be positive, and at most hot_bytes_max")
        if not 0 < self.catch_up_turn_bytes <= self.catch_up_bytes_max:
            raise InvalidArgumentError("catch_up_turn_bytes is to be positive, and at most catch_up_bytes_max")


class Turn(NamedTuple, Generic[Lane]):
    lane: Lane
    bytes_max: int
    """A single larger batch may be sent all the same: else it never could be."""


class _Sent(NamedTuple):
    end_offset: int
    size_bytes: int
    is_catch_up: bool


class Window(Generic[Lane]):
    """A lane is a stream of a partition in one attempt of the follower."""

    def __init__(self, config: WindowConfig) -> None:
        self._bytes_max = {False: config.hot_bytes_max, True: config.catch_up_bytes_max}
        self._turn_bytes = {False: config.hot_turn_bytes, True: config.catch_up_turn_bytes}
        self._waiting: dict[bool, OrderedDict[Lane, None]] = {False: OrderedDict(), True: OrderedDict()}
        self._sent: dict[Lane, deque[_Sent]] = {}
        self._bytes = {False: 0, True: 0}
        self._catch_up_next = False

    def in_flight_bytes(self, *, is_catch_up: bool) -> int:
        return self._bytes[is_catch_up]

    def ready(self, lane: Lane, *, is_catch_up: bool) -> None:
        """There is something to send. May be said again."""
        self._waiting[not is_catch_up].pop(lane, None)
        self._waiting[is_catch_up].setdefault(lane)

    def idle(self, lane: Lane) -> None:
        """There is nothing to send any more."""
        for waiting in self._waiting.values():
            waiting.pop(lane, None)

    def next(self) -> Turn[Lane] | None:
        """Whose turn it is. To be followed by `sent`, `idle` or `drop` for that lane."""
        for is_catch_up in (self._catch_up_next, not self._catch_up_next):
            waiting, room = self._waiting[is_catch_up], self._bytes_max[is_catch_up] - self._bytes[is_catch_up]
            if waiting and room > 0:
                lane = next(iter(waiting))
                waiting.move_to_end(lane)
                self._catch_up_next = not is_catch_up
                return Turn(lane, min(room, self._turn_bytes[is_catch_up]))
        return None

    def sent(self, lane: Lane, *, end_offset: int, size_bytes: int) -> None:
        """Batches up to `end_offset` are on their way."""
        is_catch_up = lane in self._waiting[True]
        self._bytes[is_catch_up] += size_bytes
        self._sent.setdefault(lane, deque()).append(_Sent(end_offset, size_bytes, is_catch_up))

    def counted(self, lane: Lane, offset: int) -> None:
        """The follower counts everything below as written."""
        sent = self._sent.get(lane)
        while sent and sent[0].end_offset <= offset:
            done = sent.popleft()
            self._bytes[done.is_catch_up] -= done.size_bytes
        if sent is not None and not sent:
            del self._sent[lane]

    def drop(self, lane: Lane) -> None:
        """The attempt is over: nothing of it is waited for any more."""
        self.idle(lane)
        for lost in self._sent.pop(lane, ()):
            self._bytes[lost.is_catch_up] -= lost.size_bytes
