"""Accepts the sessions of peers, and keeps the number of everything bounded."""

from __future__ import annotations

from collections.abc import Callable

from quire.errors import QuireError, UnavailableError
from quire.link.config import LinkConfig
from quire.link.handshake import Handshake, NodeIdentity, Refusal, refused
from quire.link.network import Abortable, Address, Door, Network
from quire.link.session import Handler, Session


class Listener:
    """One address on which a node's peers reach it. Of two sessions with the same peer the newer one stays.

    `knows` says whether a node id is one of the cluster's. `new_session_id` gives 16 random bytes.
    """

    def __init__(
        self,
        *,
        network: Network,
        local: NodeIdentity,
        knows: Callable[[str], bool],
        new_session_id: Callable[[], bytes],
        handler: Handler,
        config: LinkConfig,
    ) -> None:
        self._network = network
        self._local = local
        self._knows = knows
        self._new_session_id = new_session_id
        self._handler = handler
        self._config = config
        self._door: Door | None = None
        self._half_open: dict[Session, None] = {}
        """Connections that have not greeted, oldest first."""
        self._sessions: dict[str, Session] = {}
        """By peer."""
        self._open: dict[Session, None] = {}
        """All whose connections are not gone, those that have ended too."""

    @property
    def half_open_count(self) -> int:
        return len(self._half_open)

    @property
    def sessions(self) -> list[Session]:
        return [self._sessions[peer] for peer in sorted(self._sessions)]

    @property
    def incoming_bytes(self) -> int:
        """The memory that is held for what all connections send."""
        return sum(session.incoming_bytes for session in (*self._half_open, *self._sessions.values()))

    def start(self, address: Address) -> Address:
        """Listen. Gives the address with the port that was chosen where 0 was asked for."""
        self._door = self._network.listen(address, self._accept)
        return self._door.address

    def close(self) -> None:
        """Accept nothing more and close all sessions; each sends what it has queued."""
        if self._door is not None:
            self._door.close()
            self._door = None
        for session in list(self._half_open):
            session.abort(UnavailableError("the listener was closed"))
        for session in self.sessions:
            session.close(self._why_closed())

    async def wait_closed(self) -> None:
        """Return once no connection is left. Call `close` first."""
        for session in list(self._open):
            await session.wait_closed()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _accept(self, line: Abortable) -> Session:
        if len(self._half_open) >= self._config.half_open_max:
            # The oldest and not the newest: a node greets within milliseconds, so in a flood of connections that
            # say nothing it is they who make room, and nodes still come through.
            oldest = next(iter(self._half_open))
            oldest.abort(UnavailableError("too many connections have not greeted; this one was the oldest"))
        handshake = Handshake.accepting(
            self._local,
            session_id=self._new_session_id(),
            admit=self._admit,
            body_bytes_max=self._config.body_bytes_max,
        )
        session = Session(
            handshake=handshake, network=self._network, config=self._config, owner=self, handler=self._handler
        )
        self._half_open[session] = self._open[session] = None
        session.begin(line)
        return session

    def _why_closed(self) -> str:
        return f"node '{self._local.node_id}' closed its listener"

    def _admit(self, peer_id: str) -> None:
        if not self._knows(peer_id):
            raise refused(
                Refusal.UNEXPECTED_NODE,
                f"node '{self._local.node_id}' knows no node '{peer_id}'; is it part of the cluster's configuration?",
            )
        if peer_id not in self._sessions and len(self._sessions) >= self._config.sessions_max:
            raise refused(
                Refusal.TOO_MANY_SESSIONS,
                f"node '{self._local.node_id}' has {len(self._sessions)} sessions, as many as it may have",
            )

    def on_established(self, session: Session) -> None:
        del self._half_open[session]
        older = self._sessions.get(session.peer_id)
        if older is not None:
            # First, so that the handler never sees two sessions of one peer, and what the old one may still have in
            # its buffers comes to nobody.
            older.abort(UnavailableError(f"node '{session.peer_id}' opened a newer session"))
        self._sessions[session.peer_id] = session
        self._handler.on_up(session)
        if self._door is None:
            # The handler closed this listener when it was told of the older session's end, or of this one.
            session.close(self._why_closed())

    def on_ended(self, session: Session, error: QuireError, *, was_up: bool) -> None:
        self._half_open.pop(session, None)
        if was_up:
            if self._sessions.get(session.peer_id) is session:
                del self._sessions[session.peer_id]
            self._handler.on_down(session, error)

    def on_gone(self, session: Session) -> None:
        self._open.pop(session, None)
