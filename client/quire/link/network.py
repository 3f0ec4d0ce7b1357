"""What sessions stand on, as a port: a clock, and byte streams between addresses. `tcp` is real, `sim` its twin."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol

from quire.link.handshake import NodeIdentity


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Timer(Protocol):
    def cancel(self) -> None: ...


class Scheduler(Protocol):
    """The part of an asyncio event loop that the link needs of it. Time is monotonic, in seconds."""

    def time(self) -> float: ...

    def call_soon(self, callback: Callable[[], object], /) -> Timer: ...

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Timer: ...


class Abortable(Protocol):
    """A connection, perhaps one that is still being made."""

    def abort(self) -> None: ...


class Door(Protocol):
    """An address that is listened on."""

    @property
    def address(self) -> Address: ...

    def close(self) -> None:
        """Accept nothing more. Connections that were accepted stay."""


Accept = Callable[[Abortable], asyncio.BufferedProtocol]
"""Called for each connection at its first packet; what it gives is told of the rest.

A protocol that was given to a network has `connection_made` called at most once, when TLS is over where there is any,
and `connection_lost` at least once, also if the connection never came about or was aborted before.
"""


class Network(Protocol):
    """A node's access to the others."""

    @property
    def scheduler(self) -> Scheduler: ...

    def connect(self, address: Address, protocol: asyncio.BufferedProtocol) -> Abortable:
        """Connect in the background. See `Accept` for what is promised to the protocol."""

    def listen(self, address: Address, accept: Accept) -> Door:
        """Listen from now on. Raises UnavailableError when the address cannot be had."""

    def identify(self, transport: asyncio.BaseTransport) -> NodeIdentity | None:
        """The node whose certificate the peer has proved to hold; None where connections are plain text.

        Raises PeerRefusedError for a certificate that is no node's.
        """
