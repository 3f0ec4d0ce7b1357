"""The section of a broker: where it listens, what it bears, and how it stays a member of the cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from quire.config.keys import Contradiction, key
from quire.config.kinds import ADDRESS, HOST, PORT, Maybe, Several, Spelled, Whole, check_host, quoted
from quire.errors import InvalidArgumentError
from quire.link.handshake import check_name
from quire.link.network import Address
from quire.link.tls import is_loopback

BROKER_ID_MAX: Final = 2**31 - 1
BROKER_GRPC_PORT: Final = 7400
BROKER_PEER_PORT: Final = 7410
PEER_LISTENER: Final = "peer"
"""What a broker calls its peer link in its registration; so no other listener has this name."""
ANY_HOST: Final = ("0.0.0.0", "::")
"""Hosts to listen on that nobody can connect to."""
PLAIN: Final = "+plain"

_KIB: Final = 1024
_MIB: Final = 1024 * 1024
_HOST_PORT: Final = r"(?:\[(?P<{0}6>[^]]+)\]|(?P<{0}>[^][:/]+)):(?P<{0}_port>[0-9]+)"
_LISTENER: Final = re.compile(
    rf"(?P<name>[^=+]+)(?P<plain>\{PLAIN})?={_HOST_PORT.format('host')}(?:/{_HOST_PORT.format('told')})?"
)
_NUMBER_AT_THE_END: Final = re.compile(r"(?<![0-9])0*([0-9]{1,10})\Z", re.ASCII)


class BrokerListener(NamedTuple):
    """An address that clients call, and the one that they are told to call."""

    name: str
    address: Address
    told: Address | None = None
    """Under which others reach it, where that is not the address itself: behind a proxy, in a container."""
    plain: bool = False
    """Plain text is meant, also where the node has certificates and on other interfaces than loopback."""

    @classmethod
    def parse(cls, text: str) -> BrokerListener:
        """`client=127.0.0.1:7400`, `out=0.0.0.0:7400/b1.example:7400`, `inside+plain=[fd00::1]:7400`."""
        match = _LISTENER.fullmatch(text)
        if match is None:
            raise InvalidArgumentError(f"{quoted(text)} is not NAME=HOST:PORT or NAME=HOST:PORT/TOLD_HOST:PORT")
        name = check_name("listener name", match["name"])
        if name == PEER_LISTENER:
            raise InvalidArgumentError(f"'{name}' is the name of the link between brokers; choose another one")
        address = Address(check_host(match["host6"] or match["host"]), PORT.parse(match["host_port"]))
        told_host = match["told6"] or match["told"]
        told = Address(check_host(told_host), PORT.parse(match["told_port"])) if told_host else None
        return cls(name, address, told, match["plain"] is not None)

    @property
    def advertised(self) -> Address:
        """What clients are told."""
        return self.told or self.address

    def __str__(self) -> str:
        told = "" if self.told is None else f"/{self.told}"
        return f"{self.name}{PLAIN if self.plain else ''}={self.address}{told}"


LISTENER: Final = Spelled("NAME=HOST:PORT (with /HOST:PORT if clients reach it at another one)", BrokerListener.parse)


def broker_id(node_id: str) -> int:
    """The number at the end of a node's id: a broker's id, unless it is configured. Raises InvalidArgumentError."""
    match = _NUMBER_AT_THE_END.search(node_id)
    number = 0 if match is None else int(match[1])
    if not 1 <= number <= BROKER_ID_MAX:
        raise InvalidArgumentError(
            f"node '{node_id}' does not say which broker it is: let its id end in a number from 1 to "
            f"{BROKER_ID_MAX}, as in 'node-1', or set broker.id; no two brokers of a cluster may have the same",
            node_id=node_id,
        )
    return number


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerSection:
    """What a broker stores and serves: its listeners, its limits, and how it stays a member of the cluster."""

    id: int = key(
        0, Whole(0, BROKER_ID_MAX), "Its number, which no other broker has. 0: the number at the end of `node.id`."
    )
    listeners: tuple[BrokerListener, ...] = key(
        (BrokerListener("client", Address("127.0.0.1", BROKER_GRPC_PORT)),),
        Several(LISTENER),
        "Where clients call: with TLS if the node has certificates. `NAME+plain=` is plain text on any interface.",
    )
    peer_host: str = key("127.0.0.1", HOST, "The interface on which other brokers connect.")
    peer_port: int = key(BROKER_PEER_PORT, PORT, "The port on which other brokers connect.")
    peer_advertised_host: str | None = key(
        None, Maybe(HOST), "Under which host other brokers reach it, if that is another one than `peer_host`."
    )
    controllers: tuple[Address, ...] = key(
        (), Several(ADDRESS), "Where controllers are called. Empty: at the addresses that [controller] says."
    )
    heartbeat_ms: int = key(
        500, Whole(10, 20_000), "How often it asks the leading controller to go on leading its partitions."
    )
    replica_lag_ms_max: int = key(
        10_000, Whole(100, 600_000), "A replica that is not caught up for so long is not in sync any more."
    )
    replica_ack_ms_max: int = key(
        500,
        Whole(10, 600_000),
        "The same for one whose acknowledgements take so long, while enough other replicas are in sync.",
    )
    request_bytes_max: int = key(32 * _MIB, Whole(64 * _KIB, 256 * _MIB), "The largest request that is accepted.")
    connection_bytes_max: int = key(
        64 * _MIB, Whole(64 * _KIB, 2**40), "What one connection may have in memory: requests, and answers not read."
    )
    partition_bytes_max: int = key(
        32 * _MIB, Whole(64 * _KIB, 2**40), "What may wait in memory to be written to one partition."
    )
    process_bytes_max: int = key(
        256 * _MIB, Whole(_MIB, 2**40), "What all connections together may have in memory. More is refused for now."
    )
    rpcs_max: int = key(1_000, Whole(1, 100_000), "Calls that are served at once. One more is refused.")
    streams_max: int = key(1_000, Whole(1, 100_000), "Streams that are open at once. One more is refused.")
    disk_free_bytes_min: int = key(
        256 * _MIB, Whole(0, 2**50), "With less room on the disk nothing is taken from producers."
    )


def broker_contradictions(broker: BrokerSection, *, lease_ms: int, has_tls: bool) -> Iterator[Contradiction]:
    """What is wrong with a broker's section of which each value is allowed."""
    if 3 * broker.heartbeat_ms >= lease_ms:
        yield Contradiction(
            ("broker.heartbeat_ms", "controller.lease_ms"),
            "the first is to be less than a third of the second: a lost heartbeat is no reason to lose leaderships",
        )
    if broker.replica_ack_ms_max > broker.replica_lag_ms_max:
        yield Contradiction(
            ("broker.replica_ack_ms_max", "broker.replica_lag_ms_max"),
            "the first is to be at most the second: it is the stricter of the two",
        )
    yield from _room(broker)
    yield from _addresses(broker)
    if not has_tls:
        yield from _plain_text(broker)


def _room(broker: BrokerSection) -> Iterator[Contradiction]:
    """A request that is allowed has to fit in everywhere, or it would be refused for ever."""
    for name in ("connection_bytes_max", "partition_bytes_max", "process_bytes_max"):
        if broker.request_bytes_max > getattr(broker, name):
            yield Contradiction(
                ("broker.request_bytes_max", f"broker.{name}"),
                "the first is to be at most the second: a request that is allowed would never find room",
            )
    if broker.connection_bytes_max > broker.process_bytes_max:
        yield Contradiction(
            ("broker.connection_bytes_max", "broker.process_bytes_max"), "the first is to be at most the second"
        )


def _addresses(broker: BrokerSection) -> Iterator[Contradiction]:
    if not broker.listeners:
        yield Contradiction(("broker.listeners",), "without a listener nobody can call; name at least one")
    names = [listener.name for listener in broker.listeners]
    for twice in sorted({name for name in names if names.count(name) > 1}):
        yield Contradiction(("broker.listeners",), f"the name '{twice}' is there more than once")
    addresses = [listener.address for listener in broker.listeners]
    for address in sorted({address for address in addresses if addresses.count(address) > 1}):
        yield Contradiction(("broker.listeners",), f"the address '{address}' is there more than once")
    if Address(broker.peer_host, broker.peer_port) in addresses:
        yield Contradiction(("broker.listeners", "broker.peer_port"), "clients and brokers need ports of their own")
    for listener in broker.listeners:
        if listener.advertised.host in ANY_HOST:
            yield Contradiction(
                ("broker.listeners",),
                f"clients cannot connect to {listener.advertised}: say behind a '/' which address to tell them, "
                f"as in {listener.name}={listener.address}/b1.example:{listener.address.port}",
            )
    if (broker.peer_advertised_host or broker.peer_host) in ANY_HOST:
        yield Contradiction(
            ("broker.peer_host", "broker.peer_advertised_host"),
            "brokers cannot connect to this address: say in the second under which host they reach this one",
        )


def _plain_text(broker: BrokerSection) -> Iterator[Contradiction]:
    for listener in broker.listeners:
        if not listener.plain and not _is_local(listener.address.host):
            yield Contradiction(
                ("broker.listeners", "tls.ca_file", "tls.node_file"),
                f"'{listener.address.host}' needs TLS: make certificates with 'quire certs init', or, if everybody "
                f"on that network may read and write everything, say so with {listener.name}{PLAIN}=",
            )
    hosts = {
        "broker.peer_host": [broker.peer_host],
        "broker.controllers": [address.host for address in broker.controllers],
    }
    for path, named in hosts.items():
        far = [host for host in named if not _is_local(host)]
        if far:
            yield Contradiction(
                (path, "tls.ca_file", "tls.node_file"),
                f"'{far[0]}' needs TLS, since nodes speak plain text on loopback only; make certificates with "
                "'quire certs init'",
            )


def _is_local(host: str) -> bool:
    return host == "localhost" or is_loopback(host)
