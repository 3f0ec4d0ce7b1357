"""What `quire up` runs: nodes, their ports and command lines. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from quire.errors import InvalidArgumentError
from quire.link.network import Address

LOOPBACK: Final = "127.0.0.1"
NODES_ALLOWED: Final = (1, 3, 5)
"""Each node is a controller too, and a quorum has one of these sizes."""
PORT_BASE: Final = 7400
_OFFSETS: Final = {
    # From the base to a port of the first node. A further node's are two higher than those of the one before.
    "broker_port": 0,
    "controller_port": 1,
    "broker_peer_port": 10,
    "controller_peer_port": 11,
    "broker_metrics_port": 80,
    "controller_metrics_port": 81,
}
PORT_BASE_MAX: Final = 65_535 - max(_OFFSETS.values()) - 2 * (max(NODES_ALLOWED) - 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """What a data directory is of. The number of nodes cannot change, since the controllers' quorum cannot."""

    cluster_id: str
    nodes: int
    port_base: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    number: int
    data_dir: Path
    broker_port: int
    controller_port: int
    broker_peer_port: int
    controller_peer_port: int
    broker_metrics_port: int
    controller_metrics_port: int

    @property
    def id(self) -> str:
        return f"n{self.number}"

    @property
    def ports(self) -> dict[int, str]:
        """What each is for."""
        return {
            self.broker_port: "for clients of its broker",
            self.controller_port: "for callers of its controller",
            self.broker_peer_port: "between brokers",
            self.controller_peer_port: "between controllers",
            self.broker_metrics_port: "for metrics of its broker",
            self.controller_metrics_port: "for metrics of its controller",
        }

    @property
    def member(self) -> str:
        return f"{self.id}={LOOPBACK}:{self.controller_peer_port}/{self.controller_port}"


def nodes_of(cluster: Cluster, data_dir: Path) -> list[Node]:
    return [
        Node(
            number=number,
            data_dir=data_dir / f"n{number}",
            **{name: cluster.port_base + offset + 2 * (number - 1) for name, offset in _OFFSETS.items()},
        )
        for number in range(1, cluster.nodes + 1)
    ]


def bootstrap_of(nodes: Sequence[Node]) -> str:
    """What clients connect to."""
    return ",".join(f"localhost:{node.broker_port}" for node in nodes)


def settings_of(node: Node, nodes: Sequence[Node], cluster: Cluster) -> dict[str, str]:
    """What `quire up` decides, by flag. Both processes of a node get the same."""
    return {
        "--node-id": node.id,
        "--node-cluster-id": cluster.cluster_id,
        "--node-data-dir": str(node.data_dir),
        "--node-rack": node.id,
        "--controller-listen-host": LOOPBACK,
        "--controller-grpc-port": str(node.controller_port),
        "--controller-peer-port": str(node.controller_peer_port),
        "--controller-members": ",".join(each.member for each in nodes),
        "--broker-id": str(node.number),
        "--broker-listeners": f"client={LOOPBACK}:{node.broker_port}",
        "--broker-peer-host": LOOPBACK,
        "--broker-peer-port": str(node.broker_peer_port),
        "--broker-peer-advertised-host": "",
        "--broker-controllers": ",".join(str(Address(LOOPBACK, each.controller_port)) for each in nodes),
        "--metrics-host": LOOPBACK,
        "--metrics-broker-port": str(node.broker_metrics_port),
        "--metrics-controller-port": str(node.controller_metrics_port),
        # Everything is on loopback, and each node would need a certificate of its own.
        "--tls-ca-file": "",
        "--tls-node-file": "",
    }


def arguments_of(settings: Mapping[str, str], given: Sequence[str]) -> list[str]:
    """A command line: what `quire up` decides and what somebody gave. Raises InvalidArgumentError if both say one."""
    for argument in given:
        flag = argument.partition("=")[0]
        if flag in settings:
            raise InvalidArgumentError(f"{flag} is for 'quire up' itself to decide; 'quire node' leaves it to you")
    return [*(f"{flag}={value}" for flag, value in settings.items()), *given]
