"""What the chaos suite needs of a cluster. `processes.py` and `containers.py` have one each.

A node is a broker and a controller, and has the name that the cluster gave it: "n1" is broker 1. Methods return when
the harm is done, not when the cluster has recovered; `ready` waits for that. What the network does to nodes is done
between nodes alone: clients go on reaching all of them, except one that is disconnected. Faults of the network add up
until `heal`.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol


class Ability(enum.Enum):
    """What can be done to some kinds of cluster, and not to all."""

    NETWORK = "network"
    """isolate, cut, bridge"""
    DISCONNECT = "disconnect"
    """disconnect, connect"""
    SLOW_SYNCS = "slow syncs"
    """slow_syncs"""
    CLOCK = "clock"
    """set_clock"""


class Cluster(Protocol):
    @property
    def kind(self) -> str:
        """ "processes" or "containers"."""
        ...

    @property
    def nodes(self) -> Sequence[str]: ...

    @property
    def bootstrap(self) -> Sequence[str]:
        """Addresses for clients of this machine, one a node, in the order of the nodes."""
        ...

    @property
    def able(self) -> frozenset[Ability]: ...

    @property
    def lease_ms(self) -> int: ...

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """All nodes, until they are ready. Only once."""
        ...

    async def end(self) -> None:
        """Nothing is left of it, whatever was done to it and however far `start` came."""
        ...

    async def ready(self, *nodes: str) -> None:
        """Until these nodes, or all, say that they are well. AssertionError, with the end of their logs, if they
        do not in time."""
        ...

    # -- processes ---------------------------------------------------------------------------------------------------

    async def kill(self, *nodes: str) -> None:
        """SIGKILL all of a node's processes, of all these nodes at once. They stay dead until `restart`."""
        ...

    async def terminate(self, *nodes: str) -> None:
        """Ask them to stop, and wait until they have. Raises AssertionError if one had to be killed."""
        ...

    async def restart(self, *nodes: str) -> None:
        """Start what has ended; on the data that it has left."""
        ...

    async def wipe(self, node: str) -> None:
        """Delete all data of a node that has ended."""
        ...

    async def pause(self, *nodes: str) -> None:
        """Stop all processes of a node where they stand."""
        ...

    async def resume(self, *nodes: str) -> None: ...

    async def pause_controllers(self, *nodes: str) -> None:
        """The controllers of these nodes and not their brokers: with two of three the quorum is lost."""
        ...

    async def resume_controllers(self, *nodes: str) -> None: ...

    # -- network -----------------------------------------------------------------------------------------------------

    async def isolate(self, node: str) -> None:
        """Nothing passes between it and any other node, in either direction."""
        ...

    async def cut(self, source: str, target: str) -> None:
        """Nothing passes from source to target; what goes the other way does."""
        ...

    async def bridge(self, middle: str) -> None:
        """The nodes other than this one are cut off from each other, and reach this one."""
        ...

    async def disconnect(self, node: str) -> None:
        """It has no network at all: not for clients either."""
        ...

    async def connect(self, node: str) -> None: ...

    async def heal(self) -> None:
        """End all that was done to the network, `disconnect` included. Does nothing where nothing was done."""
        ...

    # -- injected ----------------------------------------------------------------------------------------------------

    async def slow_syncs(self, node: str, delay_ms: int) -> None:
        """Each fdatasync of the node's broker takes so much longer; 0 ends it."""
        ...

    async def set_clock(self, node: str, offset_ms: int) -> None:
        """The wall clock of the node's broker and controller jumps to so far from the true one; 0 ends it."""
        ...

    # -- looking in --------------------------------------------------------------------------------------------------

    async def digest(self, node: str, topic: str, partition: int) -> str:
        """Of the bytes of all `.log` files of its copy of the partition's records, one after another, sorted by name:
        their count and their SHA-256, as in "1234:9f86…". "0:" where it has none."""
        ...

    def logs_of(self, node: str) -> str:
        """The last lines (some 100) that its processes have logged."""
        ...


class Unable:
    """Base of clusters that cannot do everything: what they leave out says so."""

    async def isolate(self, node: str) -> None:
        raise NotImplementedError("this kind of cluster has no network of its own")

    async def cut(self, source: str, target: str) -> None:
        raise NotImplementedError("this kind of cluster has no network of its own")

    async def bridge(self, middle: str) -> None:
        raise NotImplementedError("this kind of cluster has no network of its own")

    async def disconnect(self, node: str) -> None:
        raise NotImplementedError("this kind of cluster has no network of its own")

    async def connect(self, node: str) -> None:
        raise NotImplementedError("this kind of cluster has no network of its own")

    async def heal(self) -> None:
        pass

    async def slow_syncs(self, node: str, delay_ms: int) -> None:
        raise NotImplementedError("nothing is injected into this kind of cluster")

    async def set_clock(self, node: str, offset_ms: int) -> None:
        raise NotImplementedError("nothing is injected into this kind of cluster")
