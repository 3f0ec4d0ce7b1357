"""Strangers and liars on the ports of a real quorum: nothing of theirs runs, memory stays bounded, commits go on.

Three members in one process, on real sockets and real files. A client commits one value after the other all the time.
Plain text on loopback is the weakest form there is: whoever is on the machine can claim to be any member. Lies that
are well formed, told by a member, are beyond what a quorum can stand; what no member would say is not.
"""

from __future__ import annotations

import asyncio
import datetime
import functools
import itertools
import os
import pickle
import random
import socket
import ssl
import struct
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from quire.disk.os_disk import OsDisk
from quire.errors import OutcomeUnknownError, QuireError, UnavailableError
from quire.link import certs, tls
from quire.link.config import LinkConfig
from quire.link.frames import CLAIM_BYTES_MAX, LARGE_BODY_BYTES, MAGIC, PREFIX
from quire.link.handshake import GREETING_LIMITS, Kind, NodeIdentity
from quire.link.network import Address
from quire.link.tcp import TcpNetwork
from quire.v1 import peer_pb2, raft_pb2
from quire_controller.ports import Applied
from quire_controller.raft.config import RaftConfig
from quire_controller.raft.entry import REGULAR
from quire_controller.raft.messages import FRAME_KIND, INDEX_MAX
from quire_controller.raft.node import RaftNode
from quire_controller.raft.peers import LinkPeers
from tests.unit.raft_crafting import Lines

CLUSTER: Final = "hostile"
MEMBERS: Final = ("n1", "n2", "n3")
PAIRS: Final = [("n1", "n2"), ("n1", "n3"), ("n2", "n3")]
"""Who dials whom, so whom somebody else can pretend to be, and to whom."""
WAIT_S: Final = 60
"""When a condition that must become true counts as one that does not."""
NOW: Final = datetime.datetime.now(datetime.UTC)
RAFT: Final = RaftConfig(election_ms_min=200, election_ms_max=400, heartbeat_ms=50, snapshot_entries=200)
LINK: Final = LinkConfig(backoff_ms_min=5, backoff_ms_max=50, half_open_max=16)
ROOM_BYTES: Final = 3 * (PREFIX.size + 64 * 1024 + LARGE_BODY_BYTES + CLAIM_BYTES_MAX) + LINK.half_open_max * (
    PREFIX.size + GREETING_LIMITS.header_bytes_max
)
"""What a member may hold for all that others send: two sessions, one that replaces one of them, and strangers."""
RSS_GROWTH_BYTES_MAX: Final = 96 * 1024 * 1024

Message = raft_pb2.RaftMessage


# --- the quorum ----------------------------------------------------------------------------------------------------


class Quorum:
    """Three members, and a client of each that never stops."""

    def __init__(self, directory: Path, certificates: Path | None = None) -> None:
        self._directory = directory
        self._certificates = certificates
        self._networks: dict[str, TcpNetwork] = {}
        self.nodes: dict[str, RaftNode] = {}
        self.peers: dict[str, LinkPeers] = {}
        self.machines: dict[str, Lines] = {}
        self.addresses: dict[str, Address] = {}
        self.fatal: list[tuple[str, BaseException]] = []
        self.acked: list[bytes] = []
        self.bugs: list[dict[str, Any]] = []
        self.incoming_bytes_max = 0
        self.room_bytes = ROOM_BYTES
        self._clients: list[asyncio.Task[None]] = []
        self._is_over = False
        self._numbers = itertools.count()

    async def start(self) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.bugs.append(context))
        for name in reversed(MEMBERS):  # those who are dialed first, so that the others know where
            self._start(name)
        self._start_clients()
        await self.until(lambda: len(self.acked) >= 3)

    def _start_clients(self) -> None:
        self._is_over = False
        loop = asyncio.get_running_loop()
        self._clients = [loop.create_task(self._commit_on_and_on(name), name=f"client-{name}") for name in MEMBERS]

    async def _stop_clients(self) -> None:
        self._is_over = True
        await asyncio.gather(*self._clients)

    def _start(self, name: str) -> None:
        contexts = None
        if self._certificates is not None:
            contexts = tls.load(tls.TlsFiles(self._certificates / "ca.pem", self._certificates / f"{name}.pem"))
        network = self._networks[name] = TcpNetwork(contexts=contexts, handshake_ms_max=LINK.handshake_ms_max)
        nobody = Address("127.0.0.1", 9)
        others = [other for other in MEMBERS if other != name]
        peers = self.peers[name] = LinkPeers(
            network=network,
            local=NodeIdentity(CLUSTER, name),
            listen=Address("127.0.0.1", 0),
            members={other: self.addresses.get(other, nobody) for other in others},
            randomness=random.Random(name),
            config=LINK,
        )
        machine = self.machines[name] = Lines()
        node = self.nodes[name] = RaftNode(
            cluster_id=CLUSTER,
            member_id=name,
            others=others,
            disk=OsDisk(),
            directory=str(self._directory / name),
            state_machine=machine,
            peers=peers,
            scheduler=network.scheduler,
            background=_in_background,
            randomness=random.Random(name),
            on_fatal=lambda error: self.fatal.append((name, error)),
            config=RAFT,
            ahead_bytes=64 * 1024,
        )
        node.observe(self._look_at_memory)
        node.start()
        assert peers.address is not None
        self.addresses[name] = peers.address

    async def close(self) -> None:
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        for node in self.nodes.values():
            node.stop()
        for peers in self.peers.values():
            await peers.wait_closed()
        for network in self._networks.values():
            await network.close()
        await self.until(lambda: asyncio.all_tasks() == {asyncio.current_task()}, check=False)

    @property
    def leader(self) -> str | None:
        leaders = [name for name, node in self.nodes.items() if node.is_leader]
        return max(leaders, key=lambda name: self.nodes[name].term, default=None)

    async def until(self, condition: Callable[[], bool], *, within_s: float = WAIT_S, check: bool = True) -> None:
        async with asyncio.timeout(within_s):
            while not condition():
                if check:
                    assert self.fatal == []
                    assert self._is_over or not any(client.done() for client in self._clients), "a client failed"
                await asyncio.sleep(0.001)

    async def commits(self, count: int = 5, *, within_s: float = WAIT_S) -> None:
        """So many more values are committed from now on."""
        end = len(self.acked) + count
        await self.until(lambda: len(self.acked) >= end, within_s=within_s)

    async def check(self) -> None:
        """Everyone is well, commits go on, and all members have the same, with everything that was acknowledged."""
        await self.commits()
        await self._stop_clients()
        acked = set(self.acked)
        await self.until(lambda: all(acked <= set(machine.lines) for machine in self.machines.values()))
        await self.until(lambda: len({node.applied_index for node in self.nodes.values()}) == 1)
        assert len({tuple(machine.lines) for machine in self.machines.values()}) == 1
        assert self.fatal == []
        assert self.bugs == []
        assert self.incoming_bytes_max <= self.room_bytes
        self._start_clients()

    def _look_at_memory(self) -> None:
        for peers in self.peers.values():
            self.incoming_bytes_max = max(self.incoming_bytes_max, peers._listener.incoming_bytes)

    async def _commit_on_and_on(self, name: str) -> None:
        while not self._is_over and not self.fatal:
            value = b"value-%d" % next(self._numbers)
            told: asyncio.Future[Applied | QuireError] = asyncio.get_running_loop().create_future()
            self.nodes[name].propose(value, functools.partial(_tell, told))
            outcome = await told
            if isinstance(outcome, Applied):
                self.acked.append(value)
            else:
                assert isinstance(outcome, (UnavailableError, OutcomeUnknownError)), outcome
                await asyncio.sleep(0.01)  # as a client would before it tries again


def _tell(told: asyncio.Future[Applied | QuireError], outcome: Applied | QuireError) -> None:
    if not told.cancelled():
        told.set_result(outcome)  # raises when called twice


def _in_background(work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
    running = asyncio.get_running_loop().run_in_executor(None, work)
    running.add_done_callback(lambda ended: done(ended.exception()))


@pytest.fixture
async def quorum(tmp_path: Path) -> AsyncIterator[Quorum]:
    made = Quorum(tmp_path / "data")
    await made.start()
    yield made
    await made.close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certificates") / "made")


def make_certificates(directory: Path) -> Path:
    nodes = [certs.NodeSpec(node) for node in (*MEMBERS, "broker-1")]
    certs.init(directory, cluster_id=CLUSTER, nodes=nodes, days=1, now=NOW)
    return directory


@pytest.fixture
async def secure(tmp_path: Path, certificates: Path) -> AsyncIterator[Quorum]:
    made = Quorum(tmp_path / "data", certificates)
    await made.start()
    yield made
    await made.close()


# --- those who attack ----------------------------------------------------------------------------------------------


def frame(kind: int, header: bytes = b"", body: bytes = b"") -> bytes:
    return PREFIX.pack(MAGIC, kind, len(header), len(body)) + header + body


def hello(node: str, wanted: str, *, cluster: str = CLUSTER, body_bytes_max: int = 32 * 1024 * 1024) -> bytes:
    message = peer_pb2.PeerHello(
        cluster_id=cluster,
        node_id=node,
        wanted_node_id=wanted,
        version_min=1,
        version_max=1,
        body_bytes_max=body_bytes_max,
    )
    return frame(Kind.HELLO, message.SerializeToString())


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
    """What is answered before the member hangs up."""
    async with asyncio.timeout(WAIT_S):
        try:
            return await reader.read()
        except (ConnectionError, ssl.SSLError):
            return b""


async def throw(address: Address, data: bytes, context: ssl.SSLContext | None = None) -> bytes:
    """Send some bytes and nothing more; what is answered."""
    async with connected(address, context) as (reader, writer):
        writer.write(data)
        with suppress(ConnectionError):
            await writer.drain()
        if context is None:
            with suppress(OSError):  # the member may have hung up already
                writer.write_eof()
        return await until_hung_up(reader)


async def impersonate(quorum: Quorum, pair: tuple[str, str], frames: Iterable[bytes]) -> None:
    """Greet as a member and send what it would not; the session is taken from whom it belongs to meanwhile."""
    source, target = pair
    # With the greeting, in one go: the member itself dials again at once and takes its session back.
    answer = await throw(quorum.addresses[target], hello(source, target) + b"".join(frames))
    assert not answer or PREFIX.unpack_from(answer)[1] == Kind.WELCOME


def say(message: Message, body: bytes = b"") -> bytes:
    return frame(FRAME_KIND, message.SerializeToString(), body)


class Bomb:
    """Unpickled, runs a command that makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.path}",)


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGESIZE")


# --- strangers -----------------------------------------------------------------------------------------------------


async def test_pickles_are_not_unpickled(quorum: Quorum, tmp_path: Path) -> None:
    bomb = tmp_path / "exploded"
    for protocol in (0, 2, pickle.HIGHEST_PROTOCOL):
        payload = pickle.dumps(Bomb(bomb), protocol)
        stock = zlib.compress(payload)
        for target in MEMBERS:
            for data in (
                payload,
                struct.pack("i", len(stock)) + stock,  # as PySyncObj frames them
                frame(Kind.HELLO, payload),
                hello("n1", target) + frame(FRAME_KIND, payload, payload),
            ):
                await throw(quorum.addresses[target], data)
        # The library has kinds of entries that it would unpickle, and unpickles commands.
        for pair in PAIRS:
            for kind in (b"\x02", b"\x03", b"\x04"):
                append = raft_pb2.RaftAppend(term=1 << 40, previous_index=1, terms=[1], sizes=[len(payload) + 1])
                await impersonate(quorum, pair, [say(Message(append=append), kind + payload)])
            forward = say(Message(forward=raft_pb2.RaftForward(request_id=1)), payload)
            await impersonate(quorum, pair, [forward, frame(FRAME_KIND + 1, payload, payload)])
    await quorum.check()
    assert not bomb.exists()
    pickle.loads(pickle.dumps(Bomb(bomb)))
    assert bomb.exists(), "the bombs were duds"


async def test_random_bytes(quorum: Quorum) -> None:
    randomness = random.Random(11)
    for number in range(60):
        target = MEMBERS[number % 3]
        begin = randomness.choice(
            [b"", struct.pack(">H", MAGIC), PREFIX.pack(MAGIC, Kind.HELLO, 100, 0), hello("n1", target)]
        )
        await throw(quorum.addresses[target], begin + randomness.randbytes(randomness.randint(1, 5_000)))
    for pair in PAIRS:
        for _ in range(10):
            garbage = randomness.randbytes(randomness.randint(0, 300))
            await impersonate(quorum, pair, [frame(FRAME_KIND, garbage, randomness.randbytes(100))])
    await quorum.check()


async def test_giant_frames(quorum: Quorum) -> None:
    """Claims that cost nothing to make: of headers and bodies of gigabytes, and of the largest that are allowed."""
    before, largest = rss_bytes(), LINK.body_bytes_max
    quorum.room_bytes += largest // 8
    for source, target in PAIRS:
        greeting = hello(source, target)
        for header_bytes, body_bytes in (
            (0xFFFFFFFF, 0),
            (0, 0xFFFFFFFF),
            (64 * 1024 + 1, 0),
            (0, largest),
        ):
            prefix = PREFIX.pack(MAGIC, FRAME_KIND, header_bytes, body_bytes)
            await throw(quorum.addresses[target], prefix)
            await throw(quorum.addresses[target], greeting + prefix + b"x")
        # Whole ones, that say nothing.
        await impersonate(quorum, (source, target), [frame(FRAME_KIND, b"", bytes(largest // 8))])
    await quorum.check()
    assert rss_bytes() - before < RSS_GROWTH_BYTES_MAX


@pytest.mark.parametrize("kind", ["plain", "secure"])
async def test_flood_of_half_open_connections(kind: str, tmp_path: Path, certificates: Path) -> None:
    quorum = Quorum(tmp_path / "data", certificates if kind == "secure" else None)
    await quorum.start()
    before = rss_bytes()
    strangers: list[socket.socket] = []
    try:
        for number in range(300):
            stranger = socket.create_connection(quorum.addresses[MEMBERS[number % 3]])
            strangers.append(stranger)
            if number % 2:
                stranger.sendall(hello("n1", "n3")[: number % 30])
            if number % 20 == 0:
                await quorum.commits(1)
        for peers in quorum.peers.values():
            await quorum.until(lambda peers=peers: peers._listener.half_open_count <= LINK.half_open_max)  # type: ignore[misc]  # mypy cannot infer it
        await quorum.check()
        # A member that was away comes in all the same.
        for name in MEMBERS[1:]:
            for session in quorum.peers[name]._listener.sessions:
                session.abort(UnavailableError("cut by the test"))
        await quorum.check()
        assert rss_bytes() - before < RSS_GROWTH_BYTES_MAX
    finally:
        for stranger in strangers:
            stranger.close()
        await quorum.close()


# --- certificates --------------------------------------------------------------------------------------------------


def client_context(ca: Path, certificate: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(ca)
    if certificate is not None:
        context.load_cert_chain(certificate)
    return context


def certificate_for(certificates: Path, path: Path, uri: str | None) -> Path:
    """A certificate of the right CA, for something else than a node."""
    key, certificate = certs.issue(certs.load_authority(certificates), uri=uri, hosts=["localhost"], days=1, now=NOW)
    path.write_bytes(certs.private_pem(key) + certs.public_pem(certificate))
    return path


async def test_certificates_of_no_member(secure: Quorum, certificates: Path, tmp_path: Path) -> None:
    other = make_certificates(tmp_path / "other")
    ca = certificates / "ca.pem"
    client = certificate_for(certificates, tmp_path / "client.pem", f"quire://{CLUSTER}/client/n1")
    nobody = certificate_for(certificates, tmp_path / "nobody.pem", None)
    reasons = {
        other / "n1.pem": None,
        None: None,
        client: peer_pb2.PEER_REFUSAL_REASON_CERTIFICATE,
        nobody: peer_pb2.PEER_REFUSAL_REASON_CERTIFICATE,
        certificates / "broker-1.pem": peer_pb2.PEER_REFUSAL_REASON_CERTIFICATE,
    }
    takeover = say(Message(append=raft_pb2.RaftAppend(term=1 << 40)))
    for source, target in PAIRS:
        for certificate, reason in reasons.items():
            context = client_context(ca, certificate)
            answer = await throw(secure.addresses[target], hello(source, target) + takeover, context)
            if reason is None:
                assert answer == b""
            else:
                assert peer_pb2.PeerRefusal.FromString(answer[PREFIX.size :]).reason == reason
        # One of the cluster's nodes, but no member of the quorum.
        context = client_context(ca, certificates / "broker-1.pem")
        answer = await throw(secure.addresses[target], hello("broker-1", target) + takeover, context)
        refusal = peer_pb2.PeerRefusal.FromString(answer[PREFIX.size :])
        assert refusal.reason == peer_pb2.PEER_REFUSAL_REASON_UNEXPECTED_NODE
        assert max(node.term for node in secure.nodes.values()) < 1_000, "nobody heard it"
    await throw(secure.addresses["n3"], hello("n1", "n3") + takeover)  # without TLS
    await secure.check()


async def test_members_that_may_not_dial_are_refused(quorum: Quorum) -> None:
    """Of two members the lesser dials; the greater one cannot be it who comes."""
    for source, target in PAIRS:
        answer = await throw(quorum.addresses[source], hello(target, source))
        assert PREFIX.unpack_from(answer)[1] == Kind.REFUSAL
    for name in ("n4", "n0"):
        answer = await throw(quorum.addresses["n3"], hello(name, "n3"))
        assert PREFIX.unpack_from(answer)[1] == Kind.REFUSAL
    await quorum.check()


# --- liars ---------------------------------------------------------------------------------------------------------


def malformed(term: int) -> Iterator[bytes]:
    """What no member says, in any state: it ends the session."""
    for kind in Message.DESCRIPTOR.fields:
        assert kind.message_type is not None
        for field in kind.message_type.fields:
            if field.name in ("term", "round", "index", "previous_index", "last_index", "commit_index", "position"):
                for number in (INDEX_MAX + 1, (1 << 64) - 1):
                    message = Message()
                    setattr(getattr(message, kind.name), field.name, number)
                    yield say(message)
    yield say(Message())
    yield frame(FRAME_KIND, b"\xff\xff\xff\xff")
    yield frame(FRAME_KIND, b"\x9a\x06\x02\x08\x01")

    def append(terms: list[int], sizes: list[int], body: bytes, previous_term: int = 0) -> bytes:
        message = raft_pb2.RaftAppend(
            term=term, previous_index=1, previous_term=previous_term, terms=terms, sizes=sizes, commit_index=INDEX_MAX
        )
        return say(Message(append=message), body)

    yield append([1], [2], REGULAR)
    yield append([1, 1], [1], REGULAR)
    yield append([1] * 1_000, [0xFFFFFFFF] * 1_000, REGULAR)
    yield append([2, 1], [1, 1], 2 * REGULAR)
    yield append([term + 1], [1], REGULAR)
    yield append([1], [1], REGULAR, previous_term=(1 << 64) - 1)
    yield append([1], [0], b"")
    yield append([], [], b"more than nothing")
    for position, size in ((0, 10), (100, 50), (INDEX_MAX, INDEX_MAX), (0, 0)):
        install = raft_pb2.RaftInstall(term=term, last_index=1 << 40, last_term=1, position=position, size=size)
        yield say(Message(install=install), b"a part that reaches beyond")


async def test_malformed_messages_of_a_member(quorum: Quorum) -> None:
    for pair in PAIRS:
        for each in malformed(quorum.nodes[pair[1]].term):
            await impersonate(quorum, pair, [each])
        await quorum.commits()
    assert max(node.term for node in quorum.nodes.values()) < 1_000, "elections aside, nobody took a term from it"
    await quorum.check()


async def test_messages_of_a_term_that_is_over(quorum: Quorum) -> None:
    """Late or made up, they change nothing."""
    last = raft_pb2.RaftVote(term=0, last_index=INDEX_MAX, last_term=INDEX_MAX, take_over=True)
    for pair in PAIRS:
        await impersonate(
            quorum,
            pair,
            [
                say(Message(append=raft_pb2.RaftAppend(previous_index=INDEX_MAX, commit_index=INDEX_MAX))),
                say(Message(append=raft_pb2.RaftAppend(previous_index=1, terms=[0] * 3, sizes=[1] * 3)), 3 * REGULAR),
                say(Message(install=raft_pb2.RaftInstall(last_index=INDEX_MAX, size=INDEX_MAX)), b"part"),
                say(Message(vote=last)),
                say(Message(vote_answer=raft_pb2.RaftVoteAnswer(granted=True))),
                say(Message(pre_vote_answer=raft_pb2.RaftPreVoteAnswer(granted=True))),
                say(Message(append_answer=raft_pb2.RaftAppendAnswer(success=True, index=INDEX_MAX))),
                say(Message(install_answer=raft_pb2.RaftInstallAnswer(position=INDEX_MAX, last_index=INDEX_MAX))),
                say(Message(admit=raft_pb2.RaftAdmit(index=1))),
                say(Message(take_over=raft_pb2.RaftTakeOver())),
                say(Message(forward_answer=raft_pb2.RaftForwardAnswer(request_id=1, index=INDEX_MAX)), b"result"),
                say(Message(forward_answer=raft_pb2.RaftForwardAnswer(request_id=2, error_reason="NO SUCH REASON"))),
            ],
        )
        await quorum.commits()
    await quorum.check()


async def let_another_lead(quorum: Quorum, leader: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while quorum.leader == leader:
            # Nobody may have everything just now, or what was asked may be lost.
            if quorum.nodes[leader].hand_over() is not None:
                with suppress(TimeoutError):
                    await quorum.until(lambda: quorum.leader not in (None, leader), within_s=1)
            await asyncio.sleep(0.001)


async def test_forged_acknowledgements(quorum: Quorum) -> None:
    """Of entries that there are not; each ends the session in which it came, and none is counted."""
    for attempt in range(20):
        await quorum.until(lambda: quorum.leader is not None)
        leader = quorum.leader
        assert leader is not None
        source = next((one for one, target in PAIRS if target == leader), None)
        if source is None:
            await let_another_lead(quorum, leader)  # nobody dials the first member
            continue
        node = quorum.nodes[leader]
        last = node.status().last_index
        beyond = (last + 1_000 + attempt, INDEX_MAX)[attempt % 2]
        answer = raft_pb2.RaftAppendAnswer(
            term=node.term,
            success=True,
            index=beyond,
            round=INDEX_MAX,
            incarnation=quorum.nodes[source].status().incarnation,
        )
        await impersonate(quorum, (source, leader), [say(Message(append_answer=answer))])
        assert node.status().commit_index <= last + 1_000
        await quorum.commits(1)
    await quorum.check()


async def test_flood_of_requests(quorum: Quorum) -> None:
    """Commands too large, and far more requests than may wait: refused or carried out, never piled up."""
    before = rss_bytes()
    for pair in PAIRS:
        large = [
            say(Message(forward=raft_pb2.RaftForward(request_id=number)), bytes(RAFT.command_bytes_max + 1))
            for number in range(20)
        ]
        await impersonate(quorum, pair, large)
        await impersonate(
            quorum,
            pair,
            [say(Message(confirm=raft_pb2.RaftConfirm(request_id=number))) for number in range(5_000)],
        )
        await impersonate(
            quorum,
            pair,
            [say(Message(forward=raft_pb2.RaftForward(request_id=number)), b"made up") for number in range(1_000)],
        )
        await quorum.commits()
    await quorum.check()
    assert rss_bytes() - before < RSS_GROWTH_BYTES_MAX


async def test_snapshot_that_is_garbage(quorum: Quorum) -> None:
    """Whole and of the size that was said, and no snapshot: it is thrown away."""
    for pair in PAIRS:
        for body in (b"", b"garbage", b"QRSN\x00\x00\x00\x01" + bytes(8)):
            term = max(node.term for node in quorum.nodes.values()) + 1
            install = raft_pb2.RaftInstall(term=term, last_index=1 << 40, last_term=1, size=len(body))
            await impersonate(quorum, pair, [say(Message(install=install), body)])
            await quorum.commits(1)
    await quorum.check()
    for directory in (quorum._directory / name for name in MEMBERS):
        assert not list(directory.glob("*received*")), "nothing of it stays"


async def test_member_that_accepts_no_frame(quorum: Quorum) -> None:
    """It greets, and says that it takes no body of more than a byte: then it gets nothing, and nobody fails."""
    for source, target in PAIRS * 10:  # the member itself dials again at once: often there is nothing to be sent
        async with connected(quorum.addresses[target]) as (reader, writer):
            writer.write(hello(source, target, body_bytes_max=1))
            await until_hung_up(reader)
        await quorum.commits(1)
    await quorum.check()


async def test_term_beyond_which_nobody_can_count(quorum: Quorum) -> None:
    """After the largest there would be no election any more. Nobody who votes takes one from so far ahead."""
    for pair in PAIRS:
        await impersonate(
            quorum,
            pair,
            [
                say(Message(pre_vote_answer=raft_pb2.RaftPreVoteAnswer(term=INDEX_MAX))),
                say(Message(append_answer=raft_pb2.RaftAppendAnswer(term=INDEX_MAX))),
                say(Message(append=raft_pb2.RaftAppend(term=INDEX_MAX))),
            ],
        )
    await quorum.commits()
    assert max(node.term for node in quorum.nodes.values()) < 1_000, "nobody took it"
    await quorum.check()
