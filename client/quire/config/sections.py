# ruff: noqa: RUF009 -- `key` and `required` give dataclass fields, which ruff cannot know
"""The sections of a configuration, and what must hold between their keys.

A section that two roles of one node read says the same to both, so that one file does for all processes of a node.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, NamedTuple

from quire.config.broker import ANY_HOST, BrokerSection, broker_contradictions, broker_id
from quire.config.keys import Contradiction, Key, key, keys_of, required
from quire.config.kinds import HOST, PATH, PORT, Maybe, Several, Spelled, Whole, check_host, choice, quoted
from quire.errors import InvalidArgumentError
from quire.link.handshake import NodeIdentity, check_name
from quire.link.network import Address
from quire.link.tls import TlsFiles, is_loopback

GRPC_PORT: Final = 7401
PEER_PORT: Final = 7411
QUORUM_SIZES: Final = (1, 3, 5)

_MEMBER: Final = re.compile(
    r"(?P<id>[^=]+)=(?:\[(?P<address>[^]]+)\]|(?P<host>[^][:/]+))(?::(?P<peer>[0-9]+))?(?:/(?P<grpc>[0-9]+))?"
)


class Member(NamedTuple):
    """One controller of the quorum, and where the others and the brokers reach it."""

    id: str
    host: str
    peer_port: int = PEER_PORT
    grpc_port: int = GRPC_PORT

    @classmethod
    def parse(cls, text: str) -> Member:
        """`c1=10.0.0.1`, with ports `c1=10.0.0.1:7411/7401`, with an IPv6 address `c1=[::1]:7411/7401`."""
        match = _MEMBER.fullmatch(text)
        if match is None:
            raise InvalidArgumentError(f"{quoted(text)} is not ID=HOST:PEER_PORT/GRPC_PORT")
        return cls(
            check_name("node id", match["id"]),
            check_host(match["address"] or match["host"]),
            PORT.parse(match["peer"] or str(PEER_PORT)),
            PORT.parse(match["grpc"] or str(GRPC_PORT)),
        )

    @property
    def peer_address(self) -> Address:
        return Address(self.host, self.peer_port)

    @property
    def grpc_address(self) -> Address:
        return Address(self.host, self.grpc_port)

    def __str__(self) -> str:
        return f"{self.id}={self.peer_address}/{self.grpc_port}"


class LogLevel(enum.StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(enum.StrEnum):
    JSON = "json"
    TEXT = "text"


ID: Final = Spelled("1 to 63 letters, digits, '.', '_' and '-'", lambda text: check_name("id", text))
MEMBER: Final = Spelled("ID=HOST:PEER_PORT/GRPC_PORT (the ports may be left out)", Member.parse)


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSection:
    """Which node of which cluster this is. All roles of a node share it."""

    id: str = required(ID, "The node's name, which no other node of the cluster has. It stands in its certificate.")
    cluster_id: str = required(ID, "The cluster's name. Nodes of another cluster are refused.")
    data_dir: Path = key(
        Path("quire-data"), PATH, "Where the node keeps its data; each role has a folder of its own."
    )
    rack: str | None = key(
        None, Maybe(ID), "What fails together with this node. Replicas of a partition are spread over racks."
    )
    stop_ms_max: int = key(
        10_000, Whole(0, 600_000), "How long a process may take to stop after it was asked to; then it stops at once."
    )

    @property
    def identity(self) -> NodeIdentity:
        return NodeIdentity(self.cluster_id, self.id)


@dataclass(frozen=True, kw_only=True, slots=True)
class ControllerSection:
    """The quorum of controllers, and how it keeps time."""

    listen_host: str = key("127.0.0.1", HOST, "The interface on which a controller listens for calls and for peers.")
    grpc_port: int = key(GRPC_PORT, PORT, "Where brokers and tools call.")
    peer_port: int = key(PEER_PORT, PORT, "Where the other controllers of the quorum connect.")
    members: tuple[Member, ...] = key(
        (),
        Several(MEMBER),
        "All controllers, this one included: 1, 3 or 5, each with the address under which others reach it. "
        "Empty: this node alone.",
    )
    election_ms_min: int = key(
        300, Whole(50, 60_000), "A controller that hears no leader for so long stands for election, at the earliest."
    )
    election_ms_max: int = key(600, Whole(50, 60_000), "The same, at the latest; the moment in between is random.")
    heartbeat_ms: int = key(60, Whole(5, 30_000), "How often the leading controller tells the others that it leads.")
    tick_ms: int = key(10, Whole(1, 1_000), "How often a controller looks at its clock.")
    snapshot_entries: int = key(
        10_000, Whole(100, 10_000_000), "A snapshot is taken, and the journal cut, after so many commands."
    )
    command_bytes_max: int = key(
        2_000_000, Whole(64 * 1024, 2 * 1024 * 1024), "The largest command that the quorum takes."
    )
    lease_ms: int = key(
        3_000, Whole(500, 60_000), "How long a broker leads its partitions after its last heartbeat was answered."
    )
    election_wait_ms: int = key(
        3_000,
        Whole(0, 600_000),
        "With no replica in sync alive, how long its last members are awaited before the one with most is elected.",
    )
    rebalance_ms: int = key(
        300_000, Whole(0, 86_400_000), "How often leaderships go back to the preferred replicas. 0: never by itself."
    )
    rpcs_max: int = key(1_000, Whole(1, 100_000), "Calls that are served at once. One more is refused.")
    request_bytes_max: int = key(
        4 * 1024 * 1024, Whole(64 * 1024, 64 * 1024 * 1024), "The largest request that is accepted."
    )

    def quorum(self, node_id: str) -> tuple[Member, ...]:
        """All members, sorted by id. Raises InvalidArgumentError unless `node_id` is one of them."""
        if not self.members:
            return (Member(node_id, self.listen_host, self.peer_port, self.grpc_port),)
        if node_id not in (member.id for member in self.members):
            raise InvalidArgumentError(
                f"node '{node_id}' is to be a controller, and controller.members does not name it but "
                f"{', '.join(sorted(member.id for member in self.members))}"
            )
        return tuple(sorted(self.members))


@dataclass(frozen=True, kw_only=True, slots=True)
class TlsSection:
    """Who this node is to others: the files that `quire certs` makes. Without them nodes talk on loopback only."""

    ca_file: Path | None = key(None, Maybe(PATH), "The certificate of the cluster's node CA, `ca.pem`.")
    node_file: Path | None = key(None, Maybe(PATH), "This node's private key and certificate, `<node id>.pem`.")

    @property
    def files(self) -> TlsFiles | None:
        return TlsFiles(self.ca_file, self.node_file) if self.ca_file and self.node_file else None


@dataclass(frozen=True, kw_only=True, slots=True)
class LogSection:
    """What a process tells about itself, on standard error."""

    level: LogLevel = key(LogLevel.INFO, choice(LogLevel), "The least that is told.")
    format: LogFormat = key(
        LogFormat.JSON, choice(LogFormat), "JSON, a line an event, for machines; or text for eyes."
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricsSection:
    """The side door: `/metrics` for Prometheus and `/healthz`, over plain HTTP."""

    host: str = key(
        "127.0.0.1", HOST, "The interface on which it listens. Anybody who reaches it may read; it tells no secrets."
    )
    controller_port: int = key(7481, Whole(0, 65535), "Where a controller has it. 0: nowhere.")
    broker_port: int = key(7480, Whole(0, 65535), "Where a broker has it. 0: nowhere.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """All of it."""

    node: NodeSection
    controller: ControllerSection = field(default_factory=ControllerSection)
    broker: BrokerSection = field(default_factory=BrokerSection)
    tls: TlsSection = field(default_factory=TlsSection)
    log: LogSection = field(default_factory=LogSection)
    metrics: MetricsSection = field(default_factory=MetricsSection)

    @property
    def broker_id(self) -> int:
        """Which broker this node is. Raises InvalidArgumentError if nothing says so."""
        return self.broker.id or broker_id(self.node.id)

    @property
    def controllers(self) -> tuple[Address, ...]:
        """Where brokers call controllers."""
        if self.broker.controllers:
            return self.broker.controllers
        members = [member.grpc_address for member in sorted(self.controller.members)]
        return tuple(members) or (Address(self.controller.listen_host, self.controller.grpc_port),)


SECTIONS: Final[dict[str, type[Any]]] = {
    "node": NodeSection,
    "controller": ControllerSection,
    "broker": BrokerSection,
    "tls": TlsSection,
    "log": LogSection,
    "metrics": MetricsSection,
}
KEYS: Final[dict[str, Key]] = {
    each.path: each for name, section in SECTIONS.items() for each in keys_of(name, section)
}
if tuple(SECTIONS) != tuple(each.name for each in fields(Config)):
    raise TypeError("SECTIONS and Config have different sections")


def contradictions(config: Config) -> Iterator[Contradiction]:
    """What is wrong with a configuration of which each value is allowed."""
    yield from _timing(config.controller)
    yield from _quorum(config.controller)
    has_tls = config.tls.files is not None
    yield from broker_contradictions(config.broker, lease_ms=config.controller.lease_ms, has_tls=has_tls)
    tls = config.tls
    if (tls.ca_file is None) != (tls.node_file is None):
        yield Contradiction(("tls.ca_file", "tls.node_file"), "TLS needs both files; 'quire certs init' makes them")
    elif tls.files is None:
        yield from _plain_text(config.controller)


def _timing(controller: ControllerSection) -> Iterator[Contradiction]:
    if controller.election_ms_min >= controller.election_ms_max:
        yield Contradiction(
            ("controller.election_ms_min", "controller.election_ms_max"),
            "the first is to be less than the second: controllers that stand at the same moment split the vote",
        )
    if 3 * controller.heartbeat_ms >= controller.election_ms_min:
        yield Contradiction(
            ("controller.heartbeat_ms", "controller.election_ms_min"),
            "the first is to be less than a third of the second: a lost heartbeat is no reason for an election",
        )
    if controller.tick_ms > controller.heartbeat_ms:
        yield Contradiction(
            ("controller.tick_ms", "controller.heartbeat_ms"), "the first is to be at most the second"
        )
    if controller.lease_ms <= controller.election_ms_max:
        yield Contradiction(
            ("controller.lease_ms", "controller.election_ms_max"),
            "the first is to be more than the second: leases are to outlast an election of controllers",
        )


def _quorum(controller: ControllerSection) -> Iterator[Contradiction]:
    members = controller.members
    if not members:
        if controller.listen_host in ANY_HOST:
            yield Contradiction(
                ("controller.listen_host", "controller.members"),
                "nobody can connect to this address: name this node in members, with one that others reach",
            )
        return
    if len(members) not in QUORUM_SIZES:
        yield Contradiction(
            ("controller.members",),
            f"{len(members)} are no quorum: 1, 3 or 5 are (an even number survives no more failures than one less)",
        )
    addresses = [str(address) for member in members for address in (member.peer_address, member.grpc_address)]
    for what, names in (("id", [member.id for member in members]), ("address", addresses)):
        for twice in sorted({name for name in names if names.count(name) > 1}):
            yield Contradiction(("controller.members",), f"the {what} '{twice}' is there more than once")


def _plain_text(controller: ControllerSection) -> Iterator[Contradiction]:
    hosts = {
        "controller.listen_host": [controller.listen_host],
        "controller.members": [m.host for m in controller.members],
    }
    for path, named in hosts.items():
        far = [host for host in named if host != "localhost" and not is_loopback(host)]
        if far:
            yield Contradiction(
                (path, "tls.ca_file", "tls.node_file"),
                f"'{far[0]}' needs TLS, since only loopback addresses may do without; make certificates with "
                "'quire certs init'",
            )
