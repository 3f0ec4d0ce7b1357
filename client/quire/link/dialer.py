"""Keeps one session with one peer alive, dialing again and again."""

from __future__ import annotations

import enum
import random

from quire.errors import QuireError
from quire.link.backoff import Backoff
from quire.link.config import LinkConfig
from quire.link.handshake import Handshake, NodeIdentity
from quire.link.network import Address, Network, Timer
from quire.link.session import Handler, Session


class State(enum.Enum):
    """start ──► DIALING ──► UP ──► WAITING ──► DIALING …, and from each of them to CLOSED."""

    NEW = enum.auto()
    DIALING = enum.auto()
    UP = enum.auto()
    WAITING = enum.auto()
    CLOSED = enum.auto()


class Dialer:
    """From `start` to `close` there is a session with `peer_id`, or an attempt to make one, or a wait before it.

    The handler is told of each session by `on_up` and `on_down`; each has a session id of its own. A refusal does not
    end the attempts, since what is wrong may be mended at the other end; `last_error` says what it was.
    """

    def __init__(
        self,
        *,
        network: Network,
        local: NodeIdentity,
        peer_id: str,
        address: Address,
        handler: Handler,
        config: LinkConfig,
        randomness: random.Random,
    ) -> None:
        self._network = network
        self._local = local
        self._peer_id = peer_id
        self._address = address
        self._handler = handler
        self._config = config
        self._backoff = Backoff(
            ms_min=config.backoff_ms_min, ms_max=config.backoff_ms_max, uniform=randomness.uniform
        )
        self._state = State.NEW
        self._session: Session | None = None
        """The session, or what is to become one, or the last one."""
        self._open: dict[Session, None] = {}
        """All whose connections are not gone."""
        self._up_at = 0.0
        self._timer: Timer | None = None
        self.last_error: QuireError | None = None
        """Why there is no session, or why the last one ended."""

    @property
    def session(self) -> Session | None:
        """The session, while there is one that is up."""
        return self._session if self._session is not None and self._session.is_up else None

    def start(self) -> None:
        if self._state is State.NEW:
            self._dial()

    def close(self) -> None:
        """Close the session, after sending what it has queued, and dial no more."""
        self._state = State.CLOSED
        if self._timer is not None:
            self._timer.cancel()
        if self._session is not None:
            self._session.close(f"node '{self._local.node_id}' stopped its link to '{self._peer_id}'")

    async def wait_closed(self) -> None:
        """Return once the connection is gone. Call `close` first."""
        for session in list(self._open):
            await session.wait_closed()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _dial(self) -> None:
        self._state = State.DIALING
        handshake = Handshake.dialing(self._local, wanted=self._peer_id, body_bytes_max=self._config.body_bytes_max)
        session = Session(
            handshake=handshake, network=self._network, config=self._config, owner=self, handler=self._handler
        )
        session.begin(self._network.connect(self._address, session))
        self._open[session] = None
        self._session = session

    def on_established(self, session: Session) -> None:
        self._state = State.UP
        self._up_at = self._network.scheduler.time()
        self._handler.on_up(session)

    def on_ended(self, session: Session, error: QuireError, *, was_up: bool) -> None:
        self.last_error = error
        if self._state is not State.CLOSED:
            if was_up and (self._network.scheduler.time() - self._up_at) * 1000 >= self._config.backoff_ms_max:
                # Not as soon as it is up: two processes with the same node id would take the peer's session from
                # each other as fast as they can dial.
                self._backoff.reset()
            self._state = State.WAITING
            self._timer = self._network.scheduler.call_later(self._backoff.next_ms() / 1000, self._dial)
        if was_up:
            self._handler.on_down(session, error)

    def on_gone(self, session: Session) -> None:
        self._open.pop(session, None)
