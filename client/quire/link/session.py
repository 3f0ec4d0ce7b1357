"""One connection between two nodes: the greeting, then frames both ways until either side ends it.

    send ──► queue ──(one turn of the loop)──► transport ··· transport ──► parser ──► on_frame

Everything is callbacks on the loop's thread; a session starts no task, so there is none to leak. Within a session
frames are neither lost nor repeated nor reordered. When it breaks, what the peer has not read yet is lost: a suffix.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol, cast

from quire.errors import (
    InvalidArgumentError,
    LinkBusyError,
    MalformedFrameError,
    PeerRefusedError,
    QuireError,
    UnavailableError,
)
from quire.link.config import LinkConfig
from quire.link.frames import FIRST_USER_KIND, Frame, FrameParser, Limits, encode, join_small
from quire.link.handshake import GREETING_LIMITS, Greeted, Handshake, Kind, refusal_frame
from quire.link.liveness import Liveness, Verdict
from quire.link.network import Abortable, Network, Timer
from quire.types import Buffer

TRANSPORT_BYTES_MAX: Final = 1024 * 1024
"""How much a transport holds before it asks us to wait; and in what portions it is given more, so that encrypting a
large body does not hold up the loop."""


class Handler(Protocol):
    """Who uses a link. Called on the loop's thread; is not to block, and may call any method of the session."""

    def on_up(self, session: Session) -> None:
        """The greeting is over: frames may be sent, and will come."""

    def on_frame(self, session: Session, frame: Frame) -> None:
        """A frame came. Its body is the handler's to keep."""

    def on_down(self, session: Session, error: QuireError) -> None:
        """The session is over, and why. Called once for each `on_up`; what was sent may have arrived or not."""


class Owner(Protocol):
    """Who made a session, a listener or a dialer."""

    def on_established(self, session: Session) -> None: ...

    def on_ended(self, session: Session, error: QuireError, *, was_up: bool) -> None: ...

    def on_gone(self, session: Session) -> None:
        """After `on_ended`: the connection is gone too."""


class State(enum.Enum):
    CONNECTING = enum.auto()
    GREETING = enum.auto()
    UP = enum.auto()
    CLOSING = enum.auto()
    """Nothing more is delivered or taken to be sent; what is queued still is."""
    ENDED = enum.auto()


class Session(asyncio.BufferedProtocol):
    """Made and ended by a `Listener` or a `Dialer`."""

    def __init__(
        self, *, handshake: Handshake, network: Network, config: LinkConfig, owner: Owner, handler: Handler
    ) -> None:
        self._handshake = handshake
        self._network = network
        self._scheduler = network.scheduler
        self._config = config
        self._owner = owner
        self._handler = handler

        self._state = State.CONNECTING
        self._line: Abortable | None = None
        self._transport: asyncio.Transport | None = None
        self._greeted: Greeted | None = None
        self._error: QuireError | None = None
        """Why the session is closing or ended."""
        self._lost = False
        self._waiters: set[asyncio.Future[None]] = set()
        """Of `ready` and `wait_closed`: woken when something changes, to look again."""

        self._parser = FrameParser(GREETING_LIMITS)
        self._receiving = True
        """What the user wants. Differs from `_reading`, what the transport does, while frames wait in the parser."""
        self._reading = True
        self._heard = False
        self._refused = False
        """By us: whatever else the peer sends while it is told so is dropped."""

        self._queue: deque[Buffer] = deque()
        self._queued_bytes = 0
        self._ready_bytes_max = config.outgoing_bytes_max // 2
        self._flush_timer: Timer | None = None
        self._blocked = False
        self._sent = False

        self._liveness = Liveness(
            tick_ms=config.ping_ms, silence_ms_max=config.silence_ms_max, stall_ms_max=config.stall_ms_max
        )
        self._timer: Timer | None = None

    # -- what users see --------------------------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        return self._state is State.UP

    @property
    def peer_id(self) -> str:
        """The node at the other end, proved by its certificate where there is TLS."""
        return self._outcome().peer_id

    @property
    def session_id(self) -> bytes:
        """16 random bytes that no other session has."""
        return self._outcome().session_id

    @property
    def version(self) -> int:
        """The version of the link that both sides speak."""
        return self._outcome().version

    @property
    def outgoing_bytes(self) -> int:
        """What was sent and has not been taken by the operating system yet."""
        return self._queued_bytes + (0 if self._transport is None else self._transport.get_write_buffer_size())

    @property
    def incoming_bytes(self) -> int:
        """The memory that is held for what the peer sends."""
        return self._parser.room_bytes

    def send(self, kind: int, header: Buffer = b"", body: Sequence[Buffer] = ()) -> None:
        """Queue a frame. Never waits; the buffers are not to change from here on.

        Raises LinkBusyError when too much waits already (see `ready`), UnavailableError when the session is not up,
        and InvalidArgumentError for a frame that this peer would not take.
        """
        if self._state is not State.UP:
            raise self._not_up()
        if kind < FIRST_USER_KIND:
            raise InvalidArgumentError(f"kinds below {FIRST_USER_KIND} belong to the link; {kind} was given")
        buffers = encode(kind, header, body, body_bytes_max=self._outcome().body_bytes_max)
        waiting = self.outgoing_bytes
        # What `ready` waits for must be enough for any frame: else, for a large one, `ready` returns at once and this
        # refuses again, and whoever tries until it succeeds never lets the loop send anything.
        is_ready = waiting <= self._ready_bytes_max
        if not is_ready and waiting + sum(map(len, buffers)) > self._config.outgoing_bytes_max:
            raise LinkBusyError(
                f"{waiting} bytes wait to be sent to node '{self.peer_id}'; wait until the session is ready",
                waiting_bytes=waiting,
                limit_bytes=self._config.outgoing_bytes_max,
            )
        self._enqueue(buffers)

    def flush(self) -> None:
        """Send now what is queued, not at the end of this turn of the loop: for one who is about to hold that up."""
        if self._queue and not self._blocked:
            if self._flush_timer is not None:
                self._flush_timer.cancel()
            self._flush()

    async def ready(self) -> None:
        """Return once at most half of what may wait does, so that any frame is taken.

        Raises UnavailableError when the session is not up.
        """
        while self._state is State.UP and self.outgoing_bytes > self._ready_bytes_max:
            await self._change()
        if self._state is not State.UP:
            raise self._not_up()

    def pause_receiving(self) -> None:
        """Deliver no more frames, from now on. The peer is slowed down once the buffers between us are full."""
        # Not while closing: nothing is delivered any more, but the peer's hanging up must be heard.
        if self._receiving and self._state is State.UP:
            self._receiving = False
            self._read(False)

    def resume_receiving(self) -> None:
        """Deliver frames again, those that had already come first."""
        if not self._receiving and self._state is not State.ENDED:
            self._receiving = True
            # Not at once: the caller, perhaps a handler in the middle of a frame, is to be done first.
            self._scheduler.call_soon(self._go_on_receiving)

    def close(self, why: str = "this side closed the session") -> None:
        """Send what is queued, then end. Nothing is received any more. `on_down` follows when the peer has it all."""
        if self._state in (State.CONNECTING, State.GREETING):
            self.abort(UnavailableError(why))
        elif self._state is State.UP:
            # The peer hangs up when it has read this. We do not, or what it sends meanwhile would make the operating
            # system reset the connection, and with it what the peer has not read yet.
            self._enqueue(encode(Kind.GOODBYE, body_bytes_max=0))
            self._begin_closing(UnavailableError(why))

    def abort(self, error: QuireError) -> None:
        """End at once; what was not sent is lost. `on_down` is called before this returns."""
        if self._state is State.ENDED:
            return
        was_up = self._greeted is not None
        self._state = State.ENDED
        self._error = error
        for timer in (self._timer, self._flush_timer):
            if timer is not None:
                timer.cancel()
        self._queue.clear()
        self._queued_bytes = 0
        self._parser = FrameParser(GREETING_LIMITS)  # lets go of what the old one held
        if self._line is not None:
            self._line.abort()
        self._wake()
        self._owner.on_ended(self, error, was_up=was_up)

    async def wait_closed(self) -> None:
        """Return once the connection is gone and nothing of the session is left to be done."""
        while not self._lost:
            await self._change()

    # -- what the network calls ------------------------------------------------------------------------------------

    def begin(self, line: Abortable) -> None:
        """The network has taken charge of the connection; `line` ends it as long as there is no transport."""
        self._line = line
        self._timer = self._scheduler.call_later(self._config.handshake_ms_max / 1000, self._greeting_is_late)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not to be checked: uvloop's transports are no subclasses.
        self._line = self._transport = cast(asyncio.Transport, transport)
        if self._state is State.ENDED:
            self._line.abort()
            return
        self._state = State.GREETING
        # Well below the limit: `ready` is woken by the transport only when it was blocked before.
        high = min(TRANSPORT_BYTES_MAX, self._config.outgoing_bytes_max // 4)
        self._transport.set_write_buffer_limits(high=high, low=high // 4)
        try:
            self._enqueue(self._handshake.begin(self._network.identify(transport)))
        except PeerRefusedError as error:
            self._refuse(error)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._parser.free()

    def buffer_updated(self, nbytes: int) -> None:
        if self._state is State.ENDED or self._refused:
            return
        self._heard = True
        self._parser.filled(nbytes)
        self._deliver()

    def eof_received(self) -> None:
        """Nothing to do: the transport closes itself, and `connection_lost` follows."""

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        self._blocked = False
        self._sent = True
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._lost:
            return
        self._lost = True
        if self._state is not State.ENDED:
            self.abort(self._error or self._why_lost(exc))
        self._line = self._transport = None
        self._owner.on_gone(self)
        self._wake()

    # -- receiving -------------------------------------------------------------------------------------------------

    def _deliver(self) -> None:
        try:
            while self._receiving and self._state is not State.ENDED:
                frame = self._parser.next_frame()
                if frame is None:
                    break
                if self._state is State.UP:
                    self._on_frame(frame)
                elif self._state is State.GREETING:
                    self._on_greeting(frame)
                elif frame.kind == Kind.GOODBYE:
                    # Both sides are closing, and neither is interested any more in what the other sends.
                    self.abort(self._error or UnavailableError("both sides closed the session"))
        except PeerRefusedError as error:
            self._refuse(error)
        except MalformedFrameError as error:
            self.abort(error)
        except BaseException as error:
            # A bug in a handler. Frames after this one must not be delivered as if this one had been.
            self.abort(UnavailableError(f"a frame could not be handled: {error!r}"))
            raise

    def _on_frame(self, frame: Frame) -> None:
        if frame.kind >= FIRST_USER_KIND:
            self._handler.on_frame(self, frame)
        elif frame.kind == Kind.REFUSAL:
            raise self._handshake.peer_refusal(frame.header)
        elif frame.kind == Kind.GOODBYE:
            self.abort(UnavailableError(f"node '{self.peer_id}' closed the session"))
        elif frame.kind in (Kind.HELLO, Kind.WELCOME):
            raise MalformedFrameError(f"node '{self.peer_id}' began to greet again", kind=frame.kind)

    def _on_greeting(self, frame: Frame) -> None:
        answer = self._handshake.on_frame(frame)
        self._enqueue(answer.frame)
        if answer.greeted is None:
            return
        self._greeted = answer.greeted
        self._state = State.UP
        self._parser.use_limits(Limits(body_bytes_max=self._config.body_bytes_max))
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._scheduler.call_later(self._config.ping_ms / 1000, self._tick)
        self._owner.on_established(self)

    def _go_on_receiving(self) -> None:
        if self._receiving:
            self._deliver()
        if self._receiving:
            self._read(True)

    def _read(self, wanted: bool) -> None:
        """Have the transport read, or not."""
        if self._transport is None or self._state is State.ENDED or self._reading == wanted:
            return
        self._reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # -- sending ---------------------------------------------------------------------------------------------------

    def _enqueue(self, buffers: Sequence[Buffer]) -> None:
        self._queue.extend(buffers)
        self._queued_bytes += sum(map(len, buffers))
        if self._queue and self._flush_timer is None and not self._blocked:
            # Not at once: whatever else is sent in this turn of the loop goes with it.
            self._flush_timer = self._scheduler.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_timer = None
        transport = self._transport
        while self._queue and not self._blocked and transport is not None:
            portion: list[Buffer] = []
            size = 0
            while self._queue and size < TRANSPORT_BYTES_MAX:
                buffer = self._queue.popleft()
                fits = TRANSPORT_BYTES_MAX - size
                if len(buffer) > fits:
                    view = memoryview(buffer)
                    self._queue.appendleft(view[fits:])
                    buffer = view[:fits]
                portion.append(buffer)
                size += len(buffer)
            self._queued_bytes -= size
            self._sent = True
            transport.writelines(join_small(portion))
        self._wake()

    # -- ending ----------------------------------------------------------------------------------------------------

    def _begin_closing(self, error: QuireError) -> None:
        self._state = State.CLOSING
        self._error = error
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._scheduler.call_later(self._config.close_ms_max / 1000, lambda: self.abort(error))
        self._wake()
        self.resume_receiving()

    def _refuse(self, error: PeerRefusedError) -> None:
        """Say why, and hang up. To answer a refusal with another one would be of no use to anybody."""
        if self._handshake.refused_by_peer or self._transport is None:
            self.abort(error)
            return
        self._refused = True
        # In the old one frames may wait, and TLS goes on reading until it is closed.
        self._parser = FrameParser(GREETING_LIMITS)
        self._enqueue(refusal_frame(error))
        self._begin_closing(error)
        self._flush()
        self._transport.close()

    def _greeting_is_late(self) -> None:
        late = UnavailableError(
            f"no greeting came within {self._config.handshake_ms_max} ms; the peer does not answer"
        )
        self.abort(late)

    def _why_lost(self, error: Exception | None) -> QuireError:
        whom = "the peer" if self._greeted is None else f"node '{self._greeted.peer_id}'"
        if error is not None:
            why = (error.strerror if isinstance(error, OSError) else None) or repr(error)
            return UnavailableError(f"the connection to {whom} broke: {why}")
        if self._greeted is None:
            return UnavailableError(
                "the peer hung up before it had greeted; with TLS, it may not like our certificate"
            )
        inside = " in the middle of a frame" if self._parser.inside_frame else ""
        return UnavailableError(f"the connection to {whom} ended{inside} without a goodbye")

    # -- the rest --------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        verdict = self._liveness.on_tick(
            heard=self._heard, listening=self._receiving, sent=self._sent, blocked=self._blocked and not self._sent
        )
        self._heard = self._sent = False
        if verdict is Verdict.SILENT:
            self.abort(UnavailableError(f"nothing came from '{self.peer_id}' for {self._config.silence_ms_max} ms"))
        elif verdict is Verdict.STALLED:
            self.abort(UnavailableError(f"node '{self.peer_id}' took nothing for {self._config.stall_ms_max} ms"))
        else:
            if verdict is Verdict.PING:
                self._enqueue(encode(Kind.PING, body_bytes_max=0))
            self._timer = self._scheduler.call_later(self._config.ping_ms / 1000, self._tick)

    def _outcome(self) -> Greeted:
        if self._greeted is None:
            raise self._not_up()
        return self._greeted

    def _not_up(self) -> QuireError:
        return UnavailableError("the session is not up" if self._error is None else self._error.message)

    async def _change(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
