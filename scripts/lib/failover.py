"""What `scripts/soak failover` runs: kill leaders, and measure for how long nobody takes records, in leases.

Twice: with nobody who tells the controllers that a broker has died, so that its lease has to end; and under
`quire up`, whose supervisor tells them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Protocol

import grpc.aio

from quire import aio
from quire.errors import QuireError
from quire.v1 import broker_pb2, broker_pb2_grpc, durability_pb2, topics_pb2
from tests.integration.broker_cluster import BrokerCluster, broker_cluster
from tests.integration.controller_cluster import eventually
from tests.integration.test_broker_process import raw
from tests.integration.up_processes import Up, running_up

TOPIC: Final = "orders"
LEASE_MS: Final = 3_000
WORST_MAX: Final = 3.0
POLL_S: Final = 0.01
BAR_LEASES: Final = 0.1
NODES: Final = 3


class Victims(Protocol):
    """A cluster whose brokers can be killed."""

    addresses: list[str]

    def kill(self, broker_id: int) -> None: ...

    async def bring_back(self, broker_id: int) -> None: ...


class Silent:
    """Nobody tells of a death."""

    def __init__(self, cluster: BrokerCluster) -> None:
        self._cluster = cluster
        self.addresses = cluster.addresses

    def kill(self, broker_id: int) -> None:
        self._cluster.brokers[broker_id - 1].die()

    async def bring_back(self, broker_id: int) -> None:
        await self._cluster.restart(self._cluster.brokers[broker_id - 1])


class Supervised:
    """The supervisor tells of a death, and starts the broker again by itself."""

    def __init__(self, up: Up) -> None:
        self._up = up
        self.addresses = up.bootstrap.split(",")

    def kill(self, broker_id: int) -> None:
        os.kill(self._up.pid("broker", f"n{broker_id}"), signal.SIGKILL)

    async def bring_back(self, broker_id: int) -> None: ...


@asynccontextmanager
async def silent(folder: Path) -> AsyncIterator[Victims]:
    async with broker_cluster(folder, brokers=NODES, controllers=NODES, lease_ms=LEASE_MS) as cluster:
        yield Silent(cluster)


@asynccontextmanager
async def supervised(folder: Path) -> AsyncIterator[Victims]:
    with running_up(folder / "data", f"--controller-lease-ms={LEASE_MS}", nodes=NODES) as up:
        yield Supervised(up)


async def main(kills: int) -> int:
    worst = 0.0
    for what, variant in (("lease has to end", silent), ("supervisor tells", supervised)):
        with tempfile.TemporaryDirectory(prefix="quire-failover-") as folder:
            async with variant(Path(folder)) as victims, aio.Admin(victims.addresses) as admin:
                taken = await _kill_many(victims, admin, kills, what)
        _show(what, taken)
        worst = max(worst, *taken)
    return int(worst > WORST_MAX)


async def _kill_many(victims: Victims, admin: aio.Admin, kills: int, what: str) -> list[float]:
    await admin.create_topic(TOPIC, replication_factor=NODES, config={"min_isr": 2})
    channels = [grpc.aio.insecure_channel(address) for address in victims.addresses]
    taken: list[float] = []
    while len(taken) < kills:
        leader = await _leader_of_all_in_sync(admin)
        others = [channel for broker_id, channel in enumerate(channels, 1) if broker_id != leader]
        await _until_stored(channels)
        began = time.monotonic()
        victims.kill(leader)
        await _until_stored(others)
        taken.append((time.monotonic() - began) / (LEASE_MS / 1000))
        print(f"{what}: kill {len(taken)}, of broker {leader}: {taken[-1]:.2f} leases", flush=True)
        await victims.bring_back(leader)
    for channel in channels:
        await channel.close()
    return taken


async def _leader_of_all_in_sync(admin: aio.Admin) -> int:
    found = 0

    async def is_so() -> bool:
        nonlocal found
        try:
            [partition] = (await admin.describe_topic(TOPIC)).partitions
            brokers = (await admin.describe_cluster()).brokers
        except QuireError:
            return False  # whoever was asked has just been killed
        found = partition.leader or 0
        return bool(found) and len(partition.isr) == NODES and not any(each.fenced for each in brokers)

    await eventually(is_so, lambda: "not everybody is in sync")
    return found


async def _until_stored(channels: list[grpc.aio.Channel]) -> None:
    """Until somebody acknowledges a record with acks=all."""
    request = broker_pb2.ProduceRequest(acks=durability_pb2.ACKS_ALL, wait_ms_max=1_000)
    request.partitions.add(topic=topics_pb2.TopicRef(name=TOPIC), records=raw(b"probe"))
    while True:
        for channel in channels:
            try:
                answer = await broker_pb2_grpc.BrokerServiceStub(channel).Produce(request, timeout=2)
            except grpc.aio.AioRpcError:
                continue
            if not answer.partitions[0].HasField("refusal"):
                return
        await asyncio.sleep(POLL_S)


def _show(what: str, taken: list[float]) -> None:
    print(f"\n{what}: from SIGKILL of the leader to the next record acknowledged by all in sync, lease {LEASE_MS} ms")
    bars: dict[int, int] = {}
    for each in taken:
        bars[int(each / BAR_LEASES)] = bars.get(int(each / BAR_LEASES), 0) + 1
    for bar in range(min(bars), max(bars) + 1):
        low = bar * BAR_LEASES
        print(f"  {low:.1f} to {low + BAR_LEASES:.1f} leases  {'#' * bars.get(bar, 0)}".rstrip())
    ordered = sorted(taken)
    verdict = "worse than" if ordered[-1] > WORST_MAX else "within"
    print(
        f"{len(taken)} kills: median {ordered[len(ordered) // 2]:.2f}, worst {ordered[-1]:.2f} leases, "
        f"{verdict} the bound of {WORST_MAX:g}\n",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(asyncio.run(main(int(sys.argv[1]))))
