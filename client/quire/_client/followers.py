"""How far followers are: each partition's leader is asked, a few times at most, and who does not say is left out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

import grpc.aio

from quire._client.cluster import Cluster
from quire._client.descriptions import FollowerLag
from quire.errors import QuireError
from quire.v1 import broker_pb2, broker_pb2_grpc, topics_pb2

PARTITIONS_A_REQUEST: Final = 1_000
ROUNDS_MAX: Final = 3
"""A leader that was elected a moment ago may not know it yet; one that is gone is not to be waited for."""
PAUSE_S: Final = 0.1


async def lags(
    cluster: Cluster, name: str, leaders: Mapping[int, int], *, timeout_s: float
) -> dict[int, tuple[FollowerLag, ...]]:
    """By partition of a topic; `leaders` are those that are known. To look again later is for the caller."""
    found: dict[int, tuple[FollowerLag, ...]] = {}
    for number in range(ROUNDS_MAX):
        left = {partition: leader for partition, leader in sorted(leaders.items()) if partition not in found}
        if not left:
            break
        if number:
            await asyncio.sleep(PAUSE_S)
        await _round(cluster, name, left, found, timeout_s)
    return dict(sorted(found.items()))


async def _round(
    cluster: Cluster,
    name: str,
    leaders: Mapping[int, int],
    found: dict[int, tuple[FollowerLag, ...]],
    timeout_s: float,
) -> None:
    by_leader: dict[int, list[int]] = {}
    for partition, leader in leaders.items():
        by_leader.setdefault(leader, []).append(partition)
    async with asyncio.TaskGroup() as group:
        for leader, partitions in by_leader.items():
            for first in range(0, len(partitions), PARTITIONS_A_REQUEST):
                some = partitions[first : first + PARTITIONS_A_REQUEST]
                group.create_task(_ask(cluster, name, leader, some, found, timeout_s))


async def _ask(
    cluster: Cluster,
    name: str,
    leader: int,
    partitions: list[int],
    found: dict[int, tuple[FollowerLag, ...]],
    timeout_s: float,
) -> None:
    broker = cluster.place(leader)
    if isinstance(broker, QuireError):
        return
    request = broker_pb2.DescribeFollowersRequest()
    for partition in partitions:
        request.partitions.add(topic=topics_pb2.TopicRef(name=name), partition=partition)
    stub = broker_pb2_grpc.BrokerServiceStub(cluster.channel(broker))
    try:
        answer = await stub.DescribeFollowers(request, timeout=timeout_s, metadata=cluster.metadata)
    except grpc.aio.AioRpcError:
        return
    for partition, each in zip(partitions, answer.partitions, strict=False):
        if not each.HasField("refusal"):
            found[partition] = tuple(_lags(each.followers))


def _lags(followers: Iterable[broker_pb2.Follower]) -> Iterable[FollowerLag]:
    for each in followers:
        yield FollowerLag(
            broker_id=each.broker_id,
            records=each.lag if each.following else None,
            size_bytes=each.lag_bytes if each.following and each.HasField("lag_bytes") else None,
        )
