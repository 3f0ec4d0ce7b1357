"""Asks a side door whether a process does its work."""

from __future__ import annotations

import asyncio
from typing import Final

from quire.link.network import Address

ANSWER_MS_MAX: Final = 2_000
HEAD_BYTES_MAX: Final = 1_024


async def is_healthy(address: Address) -> bool:
    """Whether `/healthz` says 200. Nobody there, or not yet, is no."""
    try:
        async with asyncio.timeout(ANSWER_MS_MAX / 1000):
            reader, writer = await asyncio.open_connection(*address, limit=HEAD_BYTES_MAX)
            try:
                writer.write(f"GET /healthz HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
                status = await reader.readline()
            finally:
                writer.transport.abort()
    except (TimeoutError, OSError, ValueError):
        return False
    return status.split(maxsplit=2)[1:2] == [b"200"]
