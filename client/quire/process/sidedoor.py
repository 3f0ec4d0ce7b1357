"""The side door: `/metrics` for Prometheus and `/healthz` for whoever supervises, over HTTP/1.1.

One request a connection, GET or HEAD, without a body. Everybody who can reach it may ask, so everything is bounded:
bytes of a request, time from connecting to the end of the answer, connections, and how often metrics are collected. A
connection too many ends the oldest: who means well has been answered by then.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Final, NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from quire.errors import UnavailableError
from quire.link.network import Address

JSON: Final = "application/json"
PLAIN: Final = "text/plain; charset=utf-8"
_LINGER_CHUNKS_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a process does its work, and what there is to know about it."""

    ok: bool
    details: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    connections_max: int = 32
    request_bytes_max: int = 8 * 1024
    connection_ms_max: int = 5_000
    """From the first packet to the end of the answer."""
    metrics_age_ms_max: int = 100
    """Metrics are collected on the event loop that serves: at most so often, whoever asks."""


class _Answer(NamedTuple):
    status: HTTPStatus
    kind: str
    body: bytes


class SideDoor:
    """Serves `registry` and what `health` says, from `start` to `close`."""

    def __init__(
        self, registry: CollectorRegistry, health: Callable[[], Health], *, limits: Limits | None = None
    ) -> None:
        self._registry = registry
        self._health = health
        self._limits = limits or Limits()
        self._server: asyncio.Server | None = None
        self._closed = False
        self._connections: dict[asyncio.Task[None], None] = {}
        """Those that are being served, the oldest first."""
        self._metrics = b""
        self._metrics_until = 0.0

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    async def start(self, address: Address) -> Address:
        """Listen; port 0 is any free one. Gives the address. Raises UnavailableError when it cannot be had."""
        limit = self._limits.request_bytes_max
        try:
            self._server = await asyncio.start_server(self._accept, *address, limit=limit, backlog=32)
        except OSError as error:
            raise UnavailableError(f"cannot listen on {address} for metrics: {error.strerror or error}") from error
        return Address(*self._server.sockets[0].getsockname()[:2])

    async def close(self) -> None:
        self._closed = True
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closed:  # it was accepted when the door was still open, and is told of only now
            writer.transport.abort()
            return
        if len(self._connections) >= self._limits.connections_max:
            oldest = next(iter(self._connections))
            self._connections.pop(oldest)
            oldest.cancel()
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer), name="side-door")
        self._connections[task] = None
        task.add_done_callback(partial(self._on_done, writer))

    def _on_done(self, writer: asyncio.StreamWriter, task: asyncio.Task[None]) -> None:
        self._connections.pop(task, None)
        # Here and not at the end of the task: one that is cancelled before its first step does not come to its end.
        writer.transport.abort()
        if not task.cancelled() and (error := task.exception()) is not None:
            context = {"message": "the side door failed", "exception": error}
            task.get_loop().call_exception_handler(context)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self._limits.connection_ms_max / 1000):
                writer.write(await self._respond(reader))
                writer.write_eof()
                # To close over bytes that nobody has read would reset the connection, and the answer with it.
                for _ in range(_LINGER_CHUNKS_MAX):
                    if not await reader.read(self._limits.request_bytes_max):
                        break
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass  # the peer is slow, gone, or said half a request

    async def _respond(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _encode(_refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE), with_body=True)
        method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
        target, _, protocol = rest.partition(b" ")
        if protocol not in (b"HTTP/1.1", b"HTTP/1.0"):
            return _encode(_refusal(HTTPStatus.BAD_REQUEST), with_body=True)
        if method not in (b"GET", b"HEAD"):
            return _encode(_refusal(HTTPStatus.METHOD_NOT_ALLOWED), with_body=True)
        return _encode(self._answer(target.partition(b"?")[0]), with_body=method == b"GET")

    def _answer(self, path: bytes) -> _Answer:
        if path == b"/metrics":
            now = time.monotonic()
            if now >= self._metrics_until:
                self._metrics = generate_latest(self._registry)
                self._metrics_until = now + self._limits.metrics_age_ms_max / 1000
            return _Answer(HTTPStatus.OK, CONTENT_TYPE_LATEST, self._metrics)
        if path == b"/healthz":
            health = self._health()
            status = HTTPStatus.OK if health.ok else HTTPStatus.SERVICE_UNAVAILABLE
            body = {"status": "ok" if health.ok else "unavailable", **health.details}
            return _Answer(status, JSON, json.dumps(body, default=str).encode() + b"\n")
        return _refusal(HTTPStatus.NOT_FOUND)


def _refusal(status: HTTPStatus) -> _Answer:
    return _Answer(status, PLAIN, f"{status.phrase}; there are GET /metrics and GET /healthz\n".encode())


def _encode(answer: _Answer, *, with_body: bool) -> bytes:
    head = f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\nContent-Type: {answer.kind}\r\n"
    head += f"Content-Length: {len(answer.body)}\r\nCache-Control: no-store\r\nConnection: close\r\n"
    if answer.status is HTTPStatus.METHOD_NOT_ALLOWED:
        head += "Allow: GET, HEAD\r\n"
    return head.encode("ascii") + b"\r\n" + (answer.body if with_body else b"")
