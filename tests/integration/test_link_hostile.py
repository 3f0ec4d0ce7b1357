"""Strangers and liars on the peer port: nothing of theirs runs, memory stays bounded, nodes are served meanwhile."""

from __future__ import annotations

import asyncio
import datetime
import pickle
import random
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire.errors import InvalidArgumentError, PeerRefusedError, UnavailableError
from quire.link import certs, tls
from quire.link.frames import CLAIM_BYTES_MAX, LARGE_BODY_BYTES, MAGIC, PREFIX
from quire.link.handshake import GREETING_LIMITS, Kind, NodeIdentity
from quire.link.network import Address
from quire.v1 import peer_pb2
from tests.contract.link_harness import CLUSTER, CONFIG, Recorder, TcpHarness, make_certificates

HALF_OPEN_MAX = 8
GREETING_ROOM_BYTES = PREFIX.size + GREETING_LIMITS.header_bytes_max
SESSION_ROOM_BYTES = PREFIX.size + 64 * 1024 + LARGE_BODY_BYTES
NOW = datetime.datetime.now(datetime.UTC)

HELLO = peer_pb2.PeerHello(
    cluster_id=CLUSTER, node_id="c", wanted_node_id="a", version_min=1, version_max=1, body_bytes_max=1
).SerializeToString()


def frame(kind: int, header: bytes = b"", body: bytes = b"", *, magic: int = MAGIC) -> bytes:
    return PREFIX.pack(magic, kind, len(header), len(body)) + header + body


def claim(kind: int, header_bytes: int, body_bytes: int) -> bytes:
    return PREFIX.pack(MAGIC, kind, header_bytes, body_bytes)


class Served:
    """Node a with a listener, and node b with a session that has to work all the time."""

    def __init__(self, harness: TcpHarness) -> None:
        self.harness = harness
        self.a, self.b = Recorder(), Recorder()
        config = replace(CONFIG, half_open_max=HALF_OPEN_MAX, sessions_max=3)
        self.listener = harness.listener("a", self.a, config=config)
        self.address = self.listener.start(Address("127.0.0.1", 0))

    async def start(self) -> None:
        self.harness.dialer("b", "a", self.address, self.b).start()
        await self.harness.until(lambda: bool(self.b.ups))
        self.a.then = lambda session, frame: session.send(frame.kind, frame.header, [frame.body])

    async def check(self) -> None:
        """b is answered, on the session that it had from the beginning, and nobody else ever got one."""
        count = len(self.b.frames) + 1
        self.b.session.send(20, b"are you there", [bytes(100_000)])
        await self.harness.until(lambda: len(self.b.frames) == count)
        assert len(self.b.ups) == 1
        assert {session.peer_id for session in self.a.ups} == {"b"}

    async def all_strangers_gone(self) -> None:
        await self.harness.until(lambda: self.listener.half_open_count == 0)
        assert self.listener.incoming_bytes == SESSION_ROOM_BYTES, "that of b's session"


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certificates") / "made")


@pytest.fixture
async def plain() -> AsyncIterator[Served]:
    harness = TcpHarness(None)
    served = Served(harness)
    await served.start()
    yield served
    await harness.close()


@pytest.fixture
async def secure(certificates: Path) -> AsyncIterator[Served]:
    harness = TcpHarness(certificates)
    served = Served(harness)
    await served.start()
    yield served
    await harness.close()


@asynccontextmanager
async def connected(
    address: Address, context: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def until_hung_up(reader: asyncio.StreamReader) -> bytes:
    """What is answered before the listener hangs up."""
    async with asyncio.timeout(60):
        try:
            return await reader.read()
        except (ConnectionError, ssl.SSLError):
            return b""


@contextmanager
def silent_sockets(address: Address, count: int) -> Iterator[list[socket.socket]]:
    sockets = [socket.create_connection(address) for _ in range(count)]
    try:
        yield sockets
    finally:
        for each in sockets:
            each.close()


def is_open(connection: socket.socket) -> bool:
    """Whether the other side, which says nothing, has not hung up."""
    try:
        return connection.recv(1, socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def unhandled() -> list[dict[str, Any]]:
    """What the loop has to report from now on: errors that nobody expected."""
    contexts: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: contexts.append(context))
    return contexts


class Bomb:
    """Unpickled, makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.path,)


# --- bytes ---------------------------------------------------------------------------------------------------------

BYTES = {
    "http": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "zeros": bytes(100_000),
    "another magic": frame(Kind.HELLO, HELLO, magic=0xF17F),
    "header over 4 GB": claim(Kind.HELLO, 0xFFFFFFFF, 0),
    "header a byte over": claim(Kind.HELLO, GREETING_LIMITS.header_bytes_max + 1, 0),
    "body before the greeting": claim(Kind.HELLO, 0, 0xFFFFFFFF),
    "smallest body before the greeting": frame(Kind.HELLO, HELLO, b"x"),
    "user's frame before the greeting": frame(20, b"header"),
    "ping before the greeting": frame(Kind.PING),
    "welcome to an acceptor": frame(Kind.WELCOME, HELLO),
    "kind zero": frame(0),
    "hello that does not parse": frame(Kind.HELLO, b"\xff\xff\xff\xff"),
    "empty hello": frame(Kind.HELLO),
    "name with a path": frame(
        Kind.HELLO, peer_pb2.PeerHello(cluster_id=CLUSTER, node_id="../b", body_bytes_max=1).SerializeToString()
    ),
    "hello twice": frame(Kind.HELLO, HELLO) * 2,
    "giant frame after the greeting": frame(Kind.HELLO, HELLO) + claim(20, 0, 0xFFFFFFFF),
    "giant header after the greeting": frame(Kind.HELLO, HELLO) + claim(20, 64 * 1024 + 1, 0),
    "garbage after the greeting": frame(Kind.HELLO, HELLO) + b"garbage garbage",
    "refusal of our welcome": frame(Kind.HELLO, HELLO) + frame(Kind.REFUSAL),
    "refusal that does not parse": frame(Kind.HELLO, HELLO) + frame(Kind.REFUSAL, b"\xff\xff\xff\xff"),
}


@pytest.mark.parametrize("data", BYTES.values(), ids=BYTES.keys())
async def test_malformed_bytes_end_the_connection(plain: Served, data: bytes) -> None:
    bugs = unhandled()
    # c is a node, so that a greeting of its can succeed; what matters is that its session ends.
    async with connected(plain.address) as (reader, writer):
        writer.write(data)
        await until_hung_up(reader)
    await plain.harness.until(lambda: len(plain.a.downs) == len(plain.a.ups) - 1)
    await plain.all_strangers_gone()
    plain.a.ups[:] = [session for session in plain.a.ups if session.is_up]
    await plain.check()
    assert bugs == []


async def test_refused_hello_is_answered_with_the_reason(plain: Served) -> None:
    async with connected(plain.address) as (reader, writer):
        writer.write(frame(Kind.HELLO, HELLO.replace(CLUSTER.encode(), b"cluster-2")))
        answer = await until_hung_up(reader)
    assert PREFIX.unpack_from(answer)[1] == Kind.REFUSAL
    refusal = peer_pb2.PeerRefusal.FromString(answer[PREFIX.size :])
    assert refusal.reason == peer_pb2.PEER_REFUSAL_REASON_WRONG_CLUSTER
    await plain.check()


async def test_random_bytes(plain: Served) -> None:
    randomness = random.Random(11)
    for _ in range(100):
        begin = randomness.choice([b"", struct.pack(">H", MAGIC), struct.pack(">HHI", MAGIC, Kind.HELLO, 100)])
        async with connected(plain.address) as (reader, writer):
            writer.write(begin + randomness.randbytes(randomness.randint(1, 5_000)))
            writer.write_eof()
            await until_hung_up(reader)
    await plain.all_strangers_gone()
    await plain.check()


async def test_pickles_are_not_unpickled(plain: Served, tmp_path: Path) -> None:
    bomb = tmp_path / "exploded"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        payload = pickle.dumps(Bomb(bomb), protocol)
        lengthy = struct.pack(">I", len(payload)) + payload  # as PySyncObj frames them
        for data in (
            payload,
            lengthy,
            frame(Kind.HELLO, payload),
            frame(Kind.HELLO, HELLO) + frame(20, payload, payload) + b"the end of it",
        ):
            async with connected(plain.address) as (reader, writer):
                writer.write(data)
                writer.write_eof()
                await until_hung_up(reader)
    await plain.harness.until(lambda: len(plain.a.downs) == len(plain.a.ups) - 1)
    await plain.all_strangers_gone()
    assert not bomb.exists()
    pickle.loads(pickle.dumps(Bomb(bomb)))
    assert bomb.exists(), "the bombs were duds"


async def test_claims_alone_cost_little_memory(plain: Served) -> None:
    """A node that has greeted claims the largest frame that is allowed, and sends next to nothing of it."""
    async with connected(plain.address) as (_, writer):
        writer.write(frame(Kind.HELLO, HELLO) + claim(20, 0, CONFIG.body_bytes_max) + b"x")
        await plain.harness.until(lambda: len(plain.a.ups) == 2)
        await plain.harness.until(lambda: plain.listener.incoming_bytes > 2 * SESSION_ROOM_BYTES)
        assert plain.listener.incoming_bytes == 2 * SESSION_ROOM_BYTES + CLAIM_BYTES_MAX
    await plain.harness.until(lambda: len(plain.a.downs) == 1)
    await plain.all_strangers_gone()


# --- connections ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "secure"])
async def test_flood_of_half_open_connections(kind: str, certificates: Path) -> None:
    harness = TcpHarness(certificates if kind == "secure" else None)
    served = Served(harness)
    await served.start()
    c = Recorder()
    with silent_sockets(served.address, 100) as strangers:
        for number, stranger in enumerate(strangers):
            if number % 2 and kind == "plain":
                stranger.sendall(frame(Kind.HELLO, HELLO)[: number % 30])
        # It is the oldest that make room, so that whoever greets at once comes through.
        kept = [number >= 100 - HALF_OPEN_MAX for number in range(100)]
        await harness.until(lambda: list(map(is_open, strangers)) == kept)
        assert served.listener.half_open_count == HALF_OPEN_MAX
        assert served.listener.incoming_bytes <= SESSION_ROOM_BYTES + HALF_OPEN_MAX * GREETING_ROOM_BYTES
        await served.check()
        dialer = harness.dialer("c", "a", served.address, c)
        dialer.start()  # a node that was not there before still comes in
        await harness.until(lambda: bool(c.ups))
        dialer.close()
        await harness.until(lambda: bool(served.a.downs))
    await served.all_strangers_gone()
    await harness.close()


async def test_slow_greeting_runs_out_of_time(plain: Served) -> None:
    config = replace(CONFIG, handshake_ms_max=50)
    address = plain.harness.listener("d", Recorder(), config=config).start(Address("127.0.0.1", 0))
    async with connected(address) as (reader, writer):
        hung_up = asyncio.ensure_future(until_hung_up(reader))
        greeting = iter(frame(Kind.HELLO, HELLO + bytes(4_000)))
        while not hung_up.done():
            writer.write(bytes([next(greeting)]))
            await asyncio.wait([hung_up], timeout=0.01)
        assert hung_up.result() == b""
    await plain.check()


async def test_connections_reset_at_once(plain: Served) -> None:
    for _ in range(100):
        with socket.create_connection(plain.address) as stranger:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await plain.check()
    await plain.all_strangers_gone()


# --- certificates --------------------------------------------------------------------------------------------------


def client_context(ca: Path, certificate: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(ca)
    if certificate is not None:
        context.load_cert_chain(certificate)
    return context


def certificate_for(certificates: Path, tmp_path: Path, uri: str | None) -> Path:
    """A certificate of the right CA, for something else than a node."""
    key, certificate = certs.issue(certs.load_authority(certificates), uri=uri, hosts=["localhost"], days=1, now=NOW)
    path = tmp_path / "made.pem"
    path.write_bytes(certs.private_pem(key) + certs.public_pem(certificate))
    return path


async def greet(served: Served, context: ssl.SSLContext) -> bytes:
    """Claim to be c, over TLS: what is answered."""
    async with connected(served.address, context) as (reader, writer):
        writer.write(frame(Kind.HELLO, HELLO))
        return await until_hung_up(reader)


async def test_certificate_of_another_ca(secure: Served, certificates: Path, tmp_path: Path) -> None:
    other = make_certificates(tmp_path / "other")
    assert await greet(secure, client_context(certificates / "ca.pem", other / "c.pem")) == b""
    await secure.all_strangers_gone()
    await secure.check()


async def test_no_certificate(secure: Served, certificates: Path) -> None:
    assert await greet(secure, client_context(certificates / "ca.pem", None)) == b""
    await secure.all_strangers_gone()
    await secure.check()


@pytest.mark.parametrize(
    "uri",
    [
        None,
        f"quire://{CLUSTER}/client/c",
        f"quire://{CLUSTER}/node/c/more",
        f"quire://{CLUSTER}/node/",
        f"http://{CLUSTER}/node/c",
        "quire://cluster-2/node/c",
        f"quire://{CLUSTER}/node/d",
    ],
)
async def test_certificate_of_no_node_or_another_one(
    secure: Served, certificates: Path, tmp_path: Path, uri: str | None
) -> None:
    made = certificate_for(certificates, tmp_path, uri)
    answer = await greet(secure, client_context(certificates / "ca.pem", made))
    refusal = peer_pb2.PeerRefusal.FromString(answer[PREFIX.size :])
    assert refusal.reason == peer_pb2.PEER_REFUSAL_REASON_CERTIFICATE
    await secure.all_strangers_gone()
    await secure.check()


@pytest.mark.parametrize("more", [frame(20, b"x"), b"garbage"])
async def test_what_follows_a_refused_greeting_is_dropped(secure: Served, certificates: Path, more: bytes) -> None:
    bugs = unhandled()
    context = client_context(certificates / "ca.pem", certificates / "c.pem")
    async with connected(secure.address, context) as (reader, writer):
        writer.write(frame(Kind.HELLO, HELLO.replace(CLUSTER.encode(), b"cluster-2")) + more * 2_000)
        answer = await until_hung_up(reader)
    assert PREFIX.unpack_from(answer)[1] == Kind.REFUSAL
    await secure.all_strangers_gone()
    await secure.check()
    assert bugs == []


async def test_old_tls(secure: Served, certificates: Path) -> None:
    context = client_context(certificates / "ca.pem", certificates / "c.pem")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await greet(secure, context)
    await secure.all_strangers_gone()
    await secure.check()


async def test_plain_text_to_a_tls_port(secure: Served) -> None:
    async with connected(secure.address) as (reader, writer):
        writer.write(frame(Kind.HELLO, HELLO))
        assert Kind.WELCOME not in await until_hung_up(reader)
    await secure.all_strangers_gone()
    await secure.check()


async def test_tls_to_a_plain_port(plain: Served, certificates: Path) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await greet(plain, client_context(certificates / "ca.pem", certificates / "c.pem"))
    await plain.all_strangers_gone()
    await plain.check()


async def test_dialer_does_not_greet_an_acceptor_that_is_another_node(secure: Served, certificates: Path) -> None:
    """Somebody with a node's certificate has taken over another node's address."""
    heard = bytearray()

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.extend(await reader.read())
        writer.close()

    contexts = tls.load(tls.TlsFiles(certificates / "ca.pem", certificates / "d.pem"))
    server = await asyncio.start_server(on_connection, "127.0.0.1", 0, ssl=contexts.accepting)
    async with server:
        address = Address(*server.sockets[0].getsockname())
        dialer = secure.harness.dialer("b", "c", address, Recorder(), config=replace(CONFIG, backoff_ms_max=2_000))
        dialer.start()
        await secure.harness.until(lambda: dialer.last_error is not None)
        error = dialer.last_error
        dialer.close()
        await secure.harness.until(lambda: bool(heard))
    assert isinstance(error, PeerRefusedError)
    assert error.details["refusal"] == "certificate"
    assert PREFIX.unpack_from(heard)[1] == Kind.REFUSAL
    await secure.check()


async def test_dialer_does_not_trust_another_ca(secure: Served, tmp_path: Path) -> None:
    other = make_certificates(tmp_path / "other")
    stranger = TcpHarness(other)
    dialer = stranger.dialer("c", "a", secure.address, Recorder())
    dialer.start()
    await stranger.until(lambda: dialer.last_error is not None)
    assert isinstance(dialer.last_error, UnavailableError)
    assert "CERTIFICATE_VERIFY_FAILED" in dialer.last_error.message
    await secure.check()
    dialer.close()
    await dialer.wait_closed()
    await secure.all_strangers_gone()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "quire.example", ""])
async def test_plain_text_is_for_loopback_only(host: str) -> None:
    harness = TcpHarness(None)
    with pytest.raises(InvalidArgumentError, match="needs TLS"):
        harness.listener("a", Recorder()).start(Address(host, 0))
    with pytest.raises(InvalidArgumentError, match="needs TLS"):
        harness.dialer("b", "a", Address(host, 7410), Recorder()).start()


@pytest.mark.parametrize("damage", ["missing", "empty", "of another node"])
def test_unusable_files_are_named(certificates: Path, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "b.pem"
    if damage != "missing":
        path.write_bytes(b"")
    if damage == "of another node":
        keys = [(certificates / f"{node}.pem").read_text(encoding="utf-8") for node in ("a", "b")]
        path.write_text(keys[0].partition("-----BEGIN CERT")[0] + keys[1][keys[1].index("-----BEGIN CERT") :])
    with pytest.raises(InvalidArgumentError, match=r"b\.pem cannot be used"):
        tls.load(tls.TlsFiles(certificates / "ca.pem", path))


def test_uri_names_the_node() -> None:
    identity = NodeIdentity(CLUSTER, "a")
    assert tls.identify({"subjectAltName": (("DNS", "a"), ("URI", tls.node_uri(identity)))}) == identity
    two = (("URI", tls.node_uri(identity)), ("URI", tls.node_uri(NodeIdentity(CLUSTER, "b"))))
    with pytest.raises(PeerRefusedError, match="names 2 nodes"):
        tls.identify({"subjectAltName": two})
