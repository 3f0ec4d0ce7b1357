"""A follower with nothing in it, for `scripts/bench cluster`: it takes frames of the peer link, and says so."""

from __future__ import annotations

import asyncio
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
    def on_up(self, session: Session) -> None:
        """There is nothing to say yet."""

    def on_frame(self, session: Session, frame: Frame) -> None:
        session.send(FIRST_USER_KIND, b"x" * 32)

    def on_down(self, session: Session, error: QuireError) -> None:
        """Another one will come."""


async def main() -> None:
    config = LinkConfig()
    listener = Listener(
        network=TcpNetwork(contexts=None, handshake_ms_max=config.handshake_ms_max),
        local=NodeIdentity("bench", "follower"),
        handler=Follower(),
        config=config,
        knows=lambda peer: True,
        new_session_id=lambda: secrets.token_bytes(16),
    )
    print(listener.start(Address("127.0.0.1", 0)).port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))
