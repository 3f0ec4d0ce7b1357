"""What `scripts/soak many` runs: one of three brokers with thousands of partitions is killed and comes back.

Half of what it led falls to each of the others at once. Shown is how long that takes, and how long a call to them
waits meanwhile: whoever stalls for a part of the lease is about to lose it.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import grpc.aio

from quire.v1 import broker_pb2, controller_pb2, topics_pb2
from tests.integration.broker_cluster import BrokerCluster, BrokerProcess, broker_cluster

LEASE_MS: Final = 3_000
PARTITIONS_A_TOPIC: Final = 1_000
PING_S: Final = 0.01
LOOK_S: Final = 0.5


class Ping(NamedTuple):
    """A call to a broker that costs it nothing."""

    took_s: float
    at_s: float


async def main(partitions: int) -> int:
    topics = {
        f"many-{first // PARTITIONS_A_TOPIC}": min(PARTITIONS_A_TOPIC, partitions - first)
        for first in range(0, partitions, PARTITIONS_A_TOPIC)
    }
    with tempfile.TemporaryDirectory(prefix="quire-many-") as folder:
        async with broker_cluster(Path(folder), brokers=3, controllers=1, lease_ms=LEASE_MS) as cluster:
            return await _run(cluster, topics)


async def _run(cluster: BrokerCluster, topics: dict[str, int]) -> int:
    count, began = sum(topics.values()), time.monotonic()
    for name, partitions in topics.items():
        request = controller_pb2.CreateTopicRequest(name=name, partition_count=partitions, replication_factor=3)
        await cluster.brokers[0].admin.CreateTopic(request, timeout=60)
    while True:
        if await _served(cluster.running, topics) == count and not (await _described(cluster)).under_replicated:
            break
        await asyncio.sleep(LOOK_S)
    print(f"{count} partitions on 3 brokers: made after {time.monotonic() - began:.1f} s", flush=True)

    victim, *others = cluster.brokers
    pings: list[Ping] = []
    pinging = [asyncio.create_task(_ping(broker, pings)) for broker in others]
    await asyncio.sleep(5)
    print(f"before: {_words(pings)}", flush=True)

    began = time.monotonic()
    victim.die()
    pings.clear()
    fenced: set[int] = set()
    while await _served(others, topics) < count:
        fenced |= _fenced(await _described(cluster))
    print(f"killed: all are served after {time.monotonic() - began:.1f} s; {_words(pings)}", flush=True)

    began = time.monotonic()
    pings.clear()
    await cluster.restart(victim)
    while True:
        described = await _described(cluster)
        fenced |= _fenced(described)
        if not described.under_replicated:
            break
        await asyncio.sleep(LOOK_S)
    print(f"back: all are in sync after {time.monotonic() - began:.1f} s; {_words(pings)}", flush=True)
    for task in pinging:
        task.cancel()
    await asyncio.gather(*pinging, return_exceptions=True)
    lost = sorted(fenced - {victim.id})
    print(f"lost their leases: {lost or 'none of the others'}, of {LEASE_MS} ms")
    return int(bool(lost))


async def _ping(broker: BrokerProcess, pings: list[Ping]) -> None:
    query = broker_pb2.OffsetQuery(topic=topics_pb2.TopicRef(name="many-0"), place=broker_pb2.OFFSET_PLACE_EARLIEST)
    request = broker_pb2.ListOffsetsRequest(queries=[query])
    while True:
        began = time.monotonic()
        await broker.stub.ListOffsets(request, timeout=60)
        pings.append(Ping(time.monotonic() - began, began))
        await asyncio.sleep(PING_S)


async def _served(brokers: Sequence[BrokerProcess], topics: dict[str, int]) -> int:
    """How many partitions somebody leads who says so."""
    found = 0
    for name, partitions in topics.items():
        request = broker_pb2.ListOffsetsRequest(
            queries=[
                broker_pb2.OffsetQuery(
                    topic=topics_pb2.TopicRef(name=name), partition=index, place=broker_pb2.OFFSET_PLACE_LATEST
                )
                for index in range(partitions)
            ]
        )
        for broker in brokers:
            answer = await broker.stub.ListOffsets(request, timeout=60)
            found += sum(not each.HasField("refusal") for each in answer.offsets)
    return found


async def _described(cluster: BrokerCluster) -> controller_pb2.DescribeClusterResponse:
    while True:
        for broker in cluster.running:
            try:
                return await broker.admin.DescribeCluster(controller_pb2.DescribeClusterRequest(), timeout=10)
            except grpc.aio.AioRpcError:
                continue  # it has just been started


def _fenced(described: controller_pb2.DescribeClusterResponse) -> set[int]:
    return {each.broker.broker_id for each in described.brokers if each.broker.fenced}


def _words(pings: list[Ping]) -> str:
    taken = sorted(each.took_s for each in pings)
    return f"calls waited {1000 * taken[len(taken) // 2]:.0f} ms in the middle, {1000 * taken[-1]:.0f} ms at worst"


if __name__ == "__main__":
    sys.exit(asyncio.run(main(int(sys.argv[1]))))
