"""A follower with nothing in it, for `scripts/bench cluster`: it takes frames of the peer link, and says so.

    python -m scripts.benches.cluster_follower [FILE]

prints its port. With a FILE it appends what it takes and syncs before it says so.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys

import uvloop

from quire.errors import QuireError
from quire.link.config import LinkConfig
from quire.link.frames import FIRST_USER_KIND, Frame
from quire.link.handshake import NodeIdentity
from quire.link.listener import Listener
from quire.link.network import Address
from quire.link.session import Session
from quire.link.tcp import TcpNetwork


class Follower:
    def __init__(self, path: str | None) -> None:
        self._fd = None if path is None else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def on_up(self, session: Session) -> None:
        """There is nothing to say yet."""

    def on_frame(self, session: Session, frame: Frame) -> None:
        if self._fd is not None:
            os.write(self._fd, frame.body)
            os.fdatasync(self._fd)  # not aside: it has nothing else to do
        session.send(FIRST_USER_KIND, b"x" * 32)

    def on_down(self, session: Session, error: QuireError) -> None:
        """Another one will come."""


async def main() -> None:
    config = LinkConfig()
    listener = Listener(
        network=TcpNetwork(contexts=None, handshake_ms_max=config.handshake_ms_max),
        local=NodeIdentity("bench", "follower"),
        handler=Follower(sys.argv[1] if len(sys.argv) > 1 else None),
        config=config,
        knows=lambda peer: True,
        new_session_id=lambda: secrets.token_bytes(16),
    )
    print(listener.start(Address("127.0.0.1", 0)).port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))
