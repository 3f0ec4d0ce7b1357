"""How long to wait before dialing again. Pure: randomness is given."""

from __future__ import annotations

from collections.abc import Callable


class Backoff:
    """Doubles from `ms_min` to `ms_max`; each wait is drawn from the upper half, lest nodes dial in step."""

    def __init__(self, *, ms_min: int, ms_max: int, uniform: Callable[[float, float], float]) -> None:
        self._ms_min = ms_min
        self._ms_max = ms_max
        self._next_ms = ms_min
        self._uniform = uniform

    def next_ms(self) -> float:
        wait_ms = self._next_ms
        self._next_ms = min(2 * wait_ms, self._ms_max)
        return self._uniform(wait_ms / 2, wait_ms)

    def reset(self) -> None:
        self._next_ms = self._ms_min
