"""The way to the other members, as a port; and the peer link behind it.

Of two members the one with the lesser id dials, so there is one session between them, used both ways.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from quire.errors import InvalidArgumentError, LinkBusyError, MalformedFrameError, QuireError, UnavailableError
from quire.link.config import LinkConfig
from quire.link.dialer import Dialer
from quire.link.frames import Frame
from quire.link.handshake import NodeIdentity
from quire.link.listener import Listener
from quire.link.network import Address, Network
from quire.link.session import Session
from quire.types import Buffer
from quire.v1 import raft_pb2
from quire_controller.raft.messages import FRAME_KIND, decode


class PeersHandler(Protocol):
    def on_connected(self, peer: str) -> None: ...

    def on_disconnected(self, peer: str) -> None: ...

    def on_message(self, peer: str, message: raft_pb2.RaftMessage, body: Buffer) -> None:
        """May raise MalformedFrameError: the peer is then cut off."""


class Peers(Protocol):
    """Messages may be lost, doubled, delayed and reordered: the core stands all of it."""

    def start(self, handler: PeersHandler) -> None: ...

    def send(self, peer: str, header: raft_pb2.RaftMessage, body: Sequence[Buffer]) -> None:
        """Send, or drop: whatever matters is sent again. It may wait until `flush`, or the end of the loop's turn."""

    def flush(self) -> None:
        """What was sent is on its way when this returns, as far as the peers take it."""

    def close(self) -> None: ...


class LinkPeers:
    def __init__(
        self,
        *,
        network: Network,
        local: NodeIdentity,
        listen: Address,
        members: Mapping[str, Address],
        randomness: random.Random,
        config: LinkConfig | None = None,
        new_session_id: Callable[[], bytes] = lambda: secrets.token_bytes(16),
    ) -> None:
        """`members` are the others, by id."""
        config = config or LinkConfig()
        self._listen = listen
        self._sessions: dict[str, Session] = {}
        self._unflushed: dict[Session, None] = {}
        self._handler: PeersHandler | None = None
        self.address: Address | None = None
        """Where this member listens, once it does."""
        self._listener = Listener(
            network=network,
            local=local,
            handler=self,
            config=config,
            knows=lambda peer: peer in members and peer < local.node_id,
            new_session_id=new_session_id,
        )
        self._dialers = {
            peer: Dialer(
                network=network,
                local=local,
                peer_id=peer,
                address=address,
                handler=self,
                config=config,
                randomness=randomness,
            )
            for peer, address in sorted(members.items())
            if local.node_id < peer
        }

    def start(self, handler: PeersHandler) -> None:
        self._handler = handler
        self.address = self._listener.start(self._listen)
        for dialer in self._dialers.values():
            dialer.start()

    def send(self, peer: str, header: raft_pb2.RaftMessage, body: Sequence[Buffer]) -> None:
        session = self._sessions.get(peer)
        if session is not None:
            try:
                session.send(FRAME_KIND, header.SerializeToString(), body)
                self._unflushed[session] = None
            except (LinkBusyError, UnavailableError):
                pass  # lost, as it might have been on the way
            except InvalidArgumentError as error:
                # Larger than it said that it takes, as no member says. Nothing goes on with such a one.
                session.abort(error)

    def flush(self) -> None:
        unflushed, self._unflushed = self._unflushed, {}
        for session in unflushed:
            session.flush()

    def close(self) -> None:
        self._listener.close()
        for dialer in self._dialers.values():
            dialer.close()

    async def wait_closed(self) -> None:
        await self._listener.wait_closed()
        for dialer in self._dialers.values():
            await dialer.wait_closed()

    def problems(self) -> dict[str, str]:
        """Why there is no session with a member that this one dials."""
        return {
            peer: dialer.last_error.message
            for peer, dialer in self._dialers.items()
            if dialer.session is None and dialer.last_error is not None
        }

    # -- what the link calls ---------------------------------------------------------------------------------------

    def on_up(self, session: Session) -> None:
        self._sessions[session.peer_id] = session
        if self._handler is not None:
            self._handler.on_connected(session.peer_id)

    def on_frame(self, session: Session, frame: Frame) -> None:
        if frame.kind != FRAME_KIND or self._handler is None:
            return  # of a newer version, perhaps
        try:
            self._handler.on_message(session.peer_id, decode(frame.header), frame.body)
        except MalformedFrameError as error:
            session.abort(error)

    def on_down(self, session: Session, error: QuireError) -> None:
        if self._sessions.get(session.peer_id) is session:
            del self._sessions[session.peer_id]
            if self._handler is not None:
                self._handler.on_disconnected(session.peer_id)
