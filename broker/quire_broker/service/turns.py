"""Long work in small pieces, of which one is done in a turn of the loop, whoever's it is.

To give way after each piece is not enough: of a hundred who do so, a hundred pieces are done before anybody else's
turn, and a heartbeat takes several turns.
"""

from __future__ import annotations

import asyncio
from typing import Final

QUICK_S: Final = 0.001
"""What is done within that is a small piece. A message costs gRPC about as much."""


class Turns:
    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def next(self) -> None:
        """Wait for a turn to do another piece."""
        async with self._lock:
            await asyncio.sleep(0)

    async def next_after(self, began: float) -> None:
        """The same, if what has been done since that moment was no small piece."""
        if asyncio.get_running_loop().time() - began > QUICK_S:
            await self.next()
