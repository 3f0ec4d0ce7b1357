"""What `scripts/soak failover` runs: kill leaders, and measure for how long nobody takes records, in leases."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import grpc.aio

from quire.v1 import broker_pb2, durability_pb2, topics_pb2
from tests.integration.broker_cluster import BrokerCluster, BrokerProcess, broker_cluster
from tests.integration.controller_cluster import eventually
from tests.integration.test_broker_process import raw

TOPIC: Final = "orders"
LEASE_MS: Final = 3_000
WORST_MAX: Final = 3.0
POLL_S: Final = 0.01
BAR_LEASES: Final = 0.1


async def main(kills: int) -> int:
    taken: list[float] = []
    with tempfile.TemporaryDirectory(prefix="quire-failover-") as folder:
        async with broker_cluster(Path(folder), brokers=3, controllers=3, lease_ms=LEASE_MS) as cluster:
            await cluster.create_topic(TOPIC, replication_factor=3, min_isr=2)
            while len(taken) < kills:
                await _all_in_sync(cluster)
                leader = await cluster.leader_of(TOPIC)
                began = time.monotonic()
                leader.die()
                await _until_stored([each for each in cluster.brokers if each is not leader])
                taken.append((time.monotonic() - began) / (LEASE_MS / 1000))
                print(f"kill {len(taken)}: broker {leader.id}, {taken[-1]:.2f} leases", flush=True)
                await cluster.restart(leader)
    _show(taken)
    return int(max(taken) > WORST_MAX)


async def _all_in_sync(cluster: BrokerCluster) -> None:
    async def is_so() -> bool:
        return len(await cluster.isr(TOPIC)) == 3

    await eventually(is_so, lambda: "not everybody is in sync")


async def _until_stored(brokers: list[BrokerProcess]) -> None:
    """Until somebody acknowledges a record with acks=all."""
    request = broker_pb2.ProduceRequest(acks=durability_pb2.ACKS_ALL, wait_ms_max=1_000)
    request.partitions.add(topic=topics_pb2.TopicRef(name=TOPIC), records=raw(b"probe"))
    while True:
        for broker in brokers:
            try:
                answer = await broker.stub.Produce(request, timeout=2)
            except grpc.aio.AioRpcError:
                continue
            if not answer.partitions[0].HasField("refusal"):
                return
        await asyncio.sleep(POLL_S)


def _show(taken: list[float]) -> None:
    print(f"\ntime from SIGKILL of the leader to the next record acknowledged by all in sync, lease {LEASE_MS} ms")
    bars: dict[int, int] = {}
    for each in taken:
        bars[int(each / BAR_LEASES)] = bars.get(int(each / BAR_LEASES), 0) + 1
    for bar in range(min(bars), max(bars) + 1):
        low = bar * BAR_LEASES
        print(f"  {low:.1f} to {low + BAR_LEASES:.1f} leases  {'#' * bars.get(bar, 0)}")
    ordered = sorted(taken)
    verdict = "worse than" if ordered[-1] > WORST_MAX else "within"
    print(
        f"{len(taken)} kills: median {ordered[len(ordered) // 2]:.2f}, worst {ordered[-1]:.2f} leases, "
        f"{verdict} the bound of {WORST_MAX:g}"
    )


if __name__ == "__main__":
    sys.exit(asyncio.run(main(int(sys.argv[1]))))
