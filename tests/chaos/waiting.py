"""Waiting for conditions that a healthy cluster comes to by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

WAIT_S_MAX: Final = 120.0
"""For what takes some seconds on an idle machine."""
POLL_S: Final = 0.1


async def until(condition: Callable[[], Awaitable[bool]], what: Callable[[], str]) -> None:
    """AssertionError, which says `what`, if that does not come."""
    deadline = time.monotonic() + WAIT_S_MAX
    while not await condition():
        assert time.monotonic() < deadline, what()
        await asyncio.sleep(POLL_S)
