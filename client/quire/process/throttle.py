"""How often the same may be said, so that nobody who can make us say it fills the disk. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(slots=True)
class _Said:
    at_ms: int
    withheld: int = 0


class Throttle:
    """Each key once an interval, and all keys together at most `lines_max` times an interval.

    The second limit is the one that holds against somebody who invents keys, such as addresses to connect from.
    """

    def __init__(self, *, interval_ms: int = 10_000, lines_max: int = 50, keys_max: int = 256) -> None:
        self._interval_ms = interval_ms
        self._lines_max = lines_max
        self._keys_max = keys_max
        self._said: OrderedDict[Hashable, _Said] = OrderedDict()
        self._interval_began_ms: int | None = None
        self._lines = 0
        self._withheld = 0
        """What was withheld because of the second limit, or is of a key that was forgotten."""

    @property
    def key_count(self) -> int:
        return len(self._said)

    def admit(self, key: Hashable, *, now_ms: int) -> int | None:
        """None if this is not to be said; else how often it, or another, was withheld before."""
        said = self._said.get(key)
        if said is not None and now_ms - said.at_ms < self._interval_ms:
            said.withheld += 1
            return None
        if self._interval_began_ms is None or now_ms - self._interval_began_ms >= self._interval_ms:
            self._interval_began_ms, self._lines = now_ms, 0
        if self._lines >= self._lines_max:
            self._withheld += 1
            return None
        self._lines += 1
        withheld = self._withheld + (0 if said is None else said.withheld)
        self._withheld = 0
        self._said[key] = _Said(now_ms)
        self._said.move_to_end(key)
        if len(self._said) > self._keys_max:
            self._withheld += self._said.popitem(last=False)[1].withheld
        return withheld
