"""The codes with which a server process ends, for its supervisor. None says anything about data: that is safe."""

from __future__ import annotations

import enum


class Exit(enum.IntEnum):
    OK = 0
    """It was asked to stop and did, or had nothing more to do."""
    FAILED = 1
    """Something outside of it failed. Starting again may help."""
    MISCONFIGURED = 2
    """Starting again without changing the configuration is of no use."""
    DIRECTORY_IN_USE = 3
    """Another process has the data directory. Starting again helps once that one has ended."""
    STOP_DEADLINE = 4
    """It was asked to stop, took too long and was ended by its own deadline."""
    BUG = 70
    """Quire is wrong somewhere. Starting again is right; so is a report."""


INTERRUPTED = 130
"""SIGINT before it could be handled: 128 and the number of the signal, as shells have it."""
