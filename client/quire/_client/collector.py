"""Python's search for cycles, paused while a batch is decoded.

Thousands of objects are made then, none of which is part of a cycle, and Python looks through all of them again and
again as it counts them: that took three times as long as to make them. What is due is looked for right afterwards.

The switch is the process's: whoever turns the search off or on in the middle of it, in another thread, may find it on
as it was before.
"""

from __future__ import annotations

import gc
import threading


class Paused:
    """A context that any number of threads may be in at once. Where the search is off already it stays off."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._within = 0
        self._was_on = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._within:
                self._was_on = gc.isenabled()
                gc.disable()
            self._within += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._within -= 1
            if not self._within and self._was_on:
                gc.enable()


PAUSED = Paused()
"""The one there is: two would take each other's pause for the user's wish."""
