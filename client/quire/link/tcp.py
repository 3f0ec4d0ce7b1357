"""The real network: TCP on an asyncio event loop, with mTLS where contexts are given and on loopback else."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Final

from quire.errors import UnavailableError
from quire.link import tls
from quire.link.handshake import NodeIdentity, Refusal, refused
from quire.link.network import Abortable, Accept, Address

BACKLOG: Final = 128
ACCEPTS_A_TURN: Final = 16
"""How many connections are accepted before the rest of the loop has its turn."""
ACCEPT_WAIT_MS: Final = 500
TLS_SHUTDOWN_MS_MAX: Final = 2_000

_log: Final = logging.getLogger(__name__)


class TcpNetwork:
    """Owns the tasks in which connections are made; `close` ends those that still run.

    `handshake_ms_max` bounds the TLS handshake; a session bounds it and its greeting together.
    """

    def __init__(self, *, contexts: tls.TlsContexts | None, handshake_ms_max: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._contexts = contexts
        self._handshake_s = handshake_ms_max / 1000 if contexts is not None else None
        self._shutdown_s = TLS_SHUTDOWN_MS_MAX / 1000 if contexts is not None else None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def scheduler(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def identify(self, transport: asyncio.BaseTransport) -> NodeIdentity | None:
        if self._contexts is not None:
            return tls.identify(transport.get_extra_info("peercert"))
        peer = transport.get_extra_info("peername")
        if not peer or not tls.is_loopback(peer[0]):  # 'localhost' may be resolved to anything
            raise refused(Refusal.CERTIFICATE, "a peer link without TLS is for loopback only")
        return None

    def connect(self, address: Address, protocol: asyncio.BufferedProtocol) -> Abortable:
        if self._contexts is None:
            tls.check_plain_text_is_local(address.host)
        return self._own(self._connect(address, protocol), protocol, f"link-connect-{address}")

    def listen(self, address: Address, accept: Accept) -> _TcpDoor:
        if self._contexts is None:
            tls.check_plain_text_is_local(address.host)
        try:
            family, kind, proto, _, bound = socket.getaddrinfo(
                address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listening = socket.socket(family, kind, proto)
            try:
                listening.setblocking(False)
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listening.bind(bound)
                listening.listen(BACKLOG)
            except BaseException:
                listening.close()
                raise
        except OSError as error:
            raise UnavailableError(
                f"cannot listen on {address}: {error.strerror or error}", address=address
            ) from error
        return _TcpDoor(self._loop, listening, lambda accepted: self._adopt(accepted, accept))

    async def close(self) -> None:
        """End all attempts to make a connection. Connections that were made are their sessions'."""
        for task in self._tasks:
            task.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _adopt(self, accepted: socket.socket, accept: Accept) -> None:
        adoption = _Adoption()
        protocol = accept(adoption)
        adoption.begin(self._own(self._secure(accepted, protocol), protocol, "link-accept", accepted))

    async def _connect(self, address: Address, protocol: asyncio.BufferedProtocol) -> None:
        await self._loop.create_connection(
            lambda: protocol,
            address.host,
            address.port,
            ssl=None if self._contexts is None else self._contexts.dialing,
            ssl_handshake_timeout=self._handshake_s,
            ssl_shutdown_timeout=self._shutdown_s,
        )

    async def _secure(self, accepted: socket.socket, protocol: asyncio.BufferedProtocol) -> None:
        await self._loop.connect_accepted_socket(
            lambda: protocol,
            accepted,
            ssl=None if self._contexts is None else self._contexts.accepting,
            ssl_handshake_timeout=self._handshake_s,
            ssl_shutdown_timeout=self._shutdown_s,
        )

    def _own(
        self,
        making: Coroutine[Any, Any, None],
        protocol: asyncio.BufferedProtocol,
        name: str,
        accepted: socket.socket | None = None,
    ) -> Abortable:
        """Run what makes a connection, and tell the protocol if none came of it."""
        task = self._loop.create_task(making, name=name)
        self._tasks.add(task)

        def finish(done: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            error = asyncio.CancelledError() if done.cancelled() else done.exception()
            if error is None:
                return  # the transport has the socket, and tells the protocol of its end
            if accepted is not None:
                accepted.close()
            protocol.connection_lost(error if isinstance(error, Exception) else None)
            if not isinstance(error, (OSError, asyncio.CancelledError)):
                raise error

        task.add_done_callback(finish)
        return _Attempt(task)


class _Attempt:
    """A connection that is being made."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def abort(self) -> None:
        self._task.cancel()


class _Adoption:
    """The same, for one that was accepted: there is no task yet when its protocol is made."""

    def __init__(self) -> None:
        self._attempt: Abortable | None = None
        self._aborted = False

    def begin(self, attempt: Abortable) -> None:
        self._attempt = attempt
        if self._aborted:
            attempt.abort()

    def abort(self) -> None:
        self._aborted = True
        if self._attempt is not None:
            self._attempt.abort()


class _TcpDoor:
    """A listening socket. Accepts in the loop's own callbacks, so there is no task to end."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, listening: socket.socket, adopt: Callable[[socket.socket], None]
    ) -> None:
        self._loop = loop
        self._listening = listening
        self._adopt = adopt
        self._retry: asyncio.TimerHandle | None = None
        self._closed = False
        self.address = Address(*listening.getsockname()[:2])
        loop.add_reader(listening.fileno(), self._accept)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if self._retry is not None:
                self._retry.cancel()
            self._loop.remove_reader(self._listening.fileno())
            self._listening.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTS_A_TURN):
            if self._closed:
                return
            try:
                accepted, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # No descriptors, a firewall's word, a network that is down: all pass. The socket stays readable:
                # without a pause this would be a loop that does nothing else.
                _log.warning("cannot accept on %s: %s; trying again in %s ms", self.address, error, ACCEPT_WAIT_MS)
                self._loop.remove_reader(self._listening.fileno())
                self._retry = self._loop.call_later(ACCEPT_WAIT_MS / 1000, self._go_on)
                return
            accepted.setblocking(False)
            self._adopt(accepted)

    def _go_on(self) -> None:
        self._loop.add_reader(self._listening.fileno(), self._accept)
