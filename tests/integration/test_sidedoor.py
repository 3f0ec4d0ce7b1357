"""The side door on real sockets: its answers, and what strangers cannot do to it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families

from quire.errors import InvariantViolation, UnavailableError
from quire.link.network import Address
from quire.process.sidedoor import Health, Limits, SideDoor

LIMITS = Limits(connections_max=8, request_bytes_max=1024, connection_ms_max=60_000, metrics_age_ms_max=0)
HASTY = Limits(connections_max=8, request_bytes_max=1024, connection_ms_max=100, metrics_age_ms_max=0)
"""For peers that are slow: the time is over soon, and nothing else in such a test has to be quick."""


class Served:
    def __init__(self, limits: Limits = LIMITS) -> None:
        self.registry = CollectorRegistry()
        self.counter = Counter("quire_things", "Things that were counted.", ["kind"], registry=self.registry)
        self.health = Health(ok=True)
        self.health_error: BaseException | None = None
        self.unhandled: list[dict[str, Any]] = []
        self.door = SideDoor(self.registry, self._health, limits=limits)
        self.address = Address("", 0)

    def _health(self) -> Health:
        if self.health_error is not None:
            raise self.health_error
        return self.health

    async def get(self, path: str) -> tuple[int, dict[str, str], bytes]:
        return await self.ask(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())

    async def ask(self, request: bytes) -> tuple[int, dict[str, str], bytes]:
        return parsed(await self.raw(request))

    async def raw(self, request: bytes, *, finish: bool = False) -> bytes:
        """All that is answered until the door closes the connection."""
        async with asyncio.timeout(60):
            reader, writer = await asyncio.open_connection(*self.address)
            try:
                writer.write(request)
                if finish:
                    writer.write_eof()
                return await reader.read()
            finally:
                writer.transport.abort()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 -- what is waited for is a fact of the door, not an event of ours
                await asyncio.sleep(0)

    async def check(self) -> None:
        """An ordinary request is answered, and nobody holds a connection longer than its answer takes."""
        assert (await self.get("/healthz"))[0] == 200
        assert self.unhandled == []


def parsed(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode("ascii").split("\r\n")
    assert status.startswith("HTTP/1.1 ")
    return int(status.split()[1]), dict(line.split(": ", 1) for line in lines), body


@asynccontextmanager
async def serving(limits: Limits = LIMITS) -> AsyncIterator[Served]:
    served = Served(limits)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: served.unhandled.append(context))
    served.address = await served.door.start(Address("127.0.0.1", 0))
    try:
        yield served
    finally:
        await served.door.close()
        assert served.door.connection_count == 0


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving() as served:
        yield served


@contextmanager
def sockets(address: Address, count: int) -> Iterator[list[socket.socket]]:
    made: list[socket.socket] = []
    try:
        for _ in range(count):
            made.append(socket.socket())
            made[-1].setblocking(False)
        yield made
    finally:
        for each in made:
            each.close()


# --- answers -------------------------------------------------------------------------------------------------------


async def test_metrics_are_those_of_the_registry(served: Served) -> None:
    served.counter.labels(kind='a "quoted" one').inc(3)
    status, headers, body = await served.get("/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=")
    assert int(headers["Content-Length"]) == len(body)
    assert headers["Connection"] == "close"
    families = text_string_to_metric_families(body.decode())
    samples = {each.name: (each.labels, each.value) for family in families for each in family.samples}
    assert samples["quire_things_total"] == ({"kind": 'a "quoted" one'}, 3.0)
    served.counter.labels(kind='a "quoted" one').inc()
    assert b"4.0" in (await served.get("/metrics?ignored=1"))[2]


async def test_metrics_are_not_collected_for_each_request() -> None:
    async with serving(Limits(metrics_age_ms_max=3_600_000)) as served:
        first = await served.get("/metrics")
        served.counter.labels(kind="a").inc()
        assert (await served.get("/metrics")) == first


@pytest.mark.parametrize(("ok", "status", "word"), [(True, 200, "ok"), (False, 503, "unavailable")])
async def test_health(served: Served, ok: bool, status: int, word: str) -> None:
    served.health = Health(ok, {"leader": "c2", "term": 7})
    answer = await served.get("/healthz")
    assert (answer[0], answer[1]["Content-Type"]) == (status, "application/json")
    assert json.loads(answer[2]) == {"status": word, "leader": "c2", "term": 7}


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/no"])
async def test_head_is_get_without_the_body(served: Served, path: str) -> None:
    status, headers, body = await served.get(path)
    head = await served.ask(f"HEAD {path} HTTP/1.0\r\n\r\n".encode())
    assert head == (status, headers, b"")
    assert int(headers["Content-Length"]) == len(body) > 0


async def test_request_in_pieces_and_half_closed_peer(served: Served) -> None:
    reader, writer = await asyncio.open_connection(*served.address)
    for byte in b"GET /healthz HTTP/1.1\r\n\r\n":
        writer.write(bytes([byte]))
        await asyncio.sleep(0)
    assert parsed(await reader.read())[0] == 200
    writer.close()
    assert parsed(await served.raw(b"GET /metrics HTTP/1.1\r\n\r\n", finish=True))[0] == 200


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", 404),
        (b"GET /metrics/../etc HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 405),
        (b"get /metrics HTTP/1.1\r\n\r\n", 405),
        (b"GET /metrics\r\n\r\n", 400),
        (b"GET /metrics HTTP/2.0\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
        (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000, 431),
        (b"\x00" * 5_000, 431),
    ],
)
async def test_what_is_refused(served: Served, request_bytes: bytes, status: int) -> None:
    answered = await served.ask(request_bytes)
    assert answered[0] == status
    assert (answered[1].get("Allow") == "GET, HEAD") == (status == 405)
    await served.check()


@pytest.mark.parametrize("beginning", [b"", b"GET /metrics HTTP/1.1\r\n"])
async def test_half_a_request_is_not_answered(served: Served, beginning: bytes) -> None:
    assert await served.raw(beginning, finish=True) == b""
    await served.check()


async def test_failure_of_the_callback_is_reported_and_others_are_served(served: Served) -> None:
    for error in (ValueError("a bug"), InvariantViolation("a worse one")):
        served.health_error = error
        assert (await served.raw(b"GET /healthz HTTP/1.1\r\n\r\n")) == b""
        await served.until(lambda: bool(served.unhandled))
        assert served.unhandled.pop()["exception"] is error
    assert (await served.get("/metrics"))[0] == 200


async def test_address_that_is_taken(served: Served) -> None:
    other = SideDoor(CollectorRegistry(), lambda: Health(ok=True))
    with pytest.raises(UnavailableError, match=f"cannot listen on 127.0.0.1:{served.address.port}"):
        await other.start(served.address)
    await other.close()


# --- strangers -----------------------------------------------------------------------------------------------------


async def hung_up(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(60):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


async def silent(served: Served) -> None:
    reader, writer = await asyncio.open_connection(*served.address)
    assert await hung_up(reader) == b""
    writer.transport.abort()


async def slow(served: Served) -> None:
    """A byte now and then, for ever."""
    reader, writer = await asyncio.open_connection(*served.address)
    writer.write(b"GET /metrics HTTP/1.1\r\n")
    ended = asyncio.ensure_future(hung_up(reader))
    while not ended.done():
        writer.write(b"X")
        await asyncio.wait([ended], timeout=0.01)
    assert ended.result() == b""
    writer.transport.abort()


async def never_closing(served: Served) -> None:
    """Is answered, and then neither closes nor says anything."""
    reader, writer = await asyncio.open_connection(*served.address)
    writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
    assert parsed(await hung_up(reader))[0] == 200
    await served.until(lambda: served.door.connection_count == 0)
    writer.transport.abort()


@pytest.mark.parametrize("stranger", [silent, slow, never_closing])
async def test_time_of_a_connection_is_bounded(stranger: Callable[[Served], Awaitable[None]]) -> None:
    async with serving(HASTY) as served:
        await stranger(served)
        await served.until(lambda: served.door.connection_count == 0)
        assert served.unhandled == []


async def test_peer_that_never_reads_is_given_up() -> None:
    async with serving(HASTY) as served:
        for number in range(20_000):  # more than all the buffers in between hold
            served.counter.labels(kind=f"{number:0500}").inc()
        with sockets(served.address, 1) as (peer,):
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(peer, tuple(served.address))
            await loop.sock_sendall(peer, b"GET /metrics HTTP/1.1\r\n\r\n")
            await served.until(lambda: served.door.connection_count == 1)
            await served.until(lambda: served.door.connection_count == 0)
        assert served.unhandled == []


async def test_peer_that_never_stops_sending_is_given_up(served: Served) -> None:
    _, writer = await asyncio.open_connection(*served.address)
    writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(60):
        with suppress(ConnectionError):
            while True:
                writer.write(bytes(1024))
                await writer.drain()
                await asyncio.sleep(0)
    writer.transport.abort()
    await served.until(lambda: served.door.connection_count == 0)
    await served.check()


async def test_thousand_connections_cost_eight_and_the_next_is_served(served: Served) -> None:
    loop = asyncio.get_running_loop()
    most = 0
    with sockets(served.address, 1000) as strangers:
        for stranger in strangers:
            await loop.sock_connect(stranger, tuple(served.address))
            await loop.sock_sendall(stranger, b"GET /metrics HTTP/1.1\r\nX: ")
            most = max(most, served.door.connection_count)
        await served.until(lambda: served.door.connection_count == LIMITS.connections_max)
        await served.check()
        assert most <= LIMITS.connections_max
        # The oldest were hung up on; their end of it is there to be read.
        assert await hung_up_socket(strangers[0])
    await served.until(lambda: served.door.connection_count == 0)


async def hung_up_socket(peer: socket.socket) -> bool:
    async with asyncio.timeout(60):
        try:
            return await asyncio.get_running_loop().sock_recv(peer, 1) == b""
        except ConnectionError:
            return True


@pytest.mark.parametrize("accepted", [0, 3], ids=["before it met them", "after"])
async def test_close_does_not_wait_for_strangers(accepted: int) -> None:
    async with serving() as served:
        with sockets(served.address, 3) as strangers:
            for stranger in strangers:
                await asyncio.get_running_loop().sock_connect(stranger, tuple(served.address))
            await served.until(lambda: served.door.connection_count >= accepted)
            await served.door.close()
            assert served.door.connection_count == 0
            for stranger in strangers:
                assert await hung_up_socket(stranger)
            with pytest.raises(ConnectionRefusedError):
                await served.raw(b"")
