"""Ids for producers, taken from the controllers a block at a time. What is left of one is lost with the process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from quire.errors import QuireError
from quire.types import ProducerId

BLOCK: Final = 1_000


class ProducerIds:
    def __init__(self, allocate: Callable[[int], Awaitable[range]]) -> None:
        """`allocate` gives so many ids that nobody else gets, or raises QuireError."""
        self._allocate = allocate
        self._left: list[int] = []
        """In descending order."""
        self._filling: asyncio.Future[QuireError | None] | None = None

    async def next(self) -> ProducerId:
        """One that nobody else has. Raises what `allocate` does, to all who wait for the same block."""
        while not self._left:
            if self._filling is None:
                await self._fill()
            elif (error := await asyncio.shield(self._filling)) is not None:
                raise error
        return ProducerId(self._left.pop())

    async def _fill(self) -> None:
        filling = self._filling = asyncio.get_running_loop().create_future()
        failed: QuireError | None = None
        try:
            self._left = list(reversed(await self._allocate(BLOCK)))
        except QuireError as error:
            failed = error
            raise
        finally:
            # If this caller was cancelled, one of those who wait asks in its place.
            self._filling = None
            filling.set_result(failed)
