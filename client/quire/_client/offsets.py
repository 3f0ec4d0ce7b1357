"""Finding offsets: each partition's leader is asked, and asked again while leaders change."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple

import grpc.aio

from quire._client.cluster import Cluster, new_backoff, unknown_topic
from quire._client.starts import LATEST, Place
from quire._client.stored import TopicPartition
from quire.errors import OutcomeUnknownError, QuireError, UnavailableError, UnknownPartitionError
from quire.refusals import from_refusal
from quire.rpc_errors import from_rpc_error
from quire.v1 import broker_pb2, broker_pb2_grpc, metadata_pb2, topics_pb2

QUERIES_MAX: Final = 1_000
CALL_S_MAX: Final = 10.0


class Found(NamedTuple):
    offset: int
    """-1 where no record is so late."""
    timestamp_ms: int
    """Of its record, where a moment was asked for; -1 otherwise."""


async def find(
    cluster: Cluster,
    places: Mapping[TopicPartition, Place],
    *,
    isolation: broker_pb2.Isolation.ValueType,
    timeout_s: float,
) -> dict[TopicPartition, Found]:
    """The offsets that are asked for, all of them. Raises what kept the last one from being found."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    backoff = new_backoff()
    left = dict(places)
    found: dict[TopicPartition, Found] = {}
    for name in {partition.topic: None for partition in places}:
        await cluster.topic(name, timeout_s=timeout_s)
    while True:
        error = await _round(cluster, left, found, isolation, deadline - loop.time())
        left = {partition: place for partition, place in left.items() if partition not in found}
        if not left:
            return found
        wait_s = backoff.next_ms() / 1000
        if loop.time() + wait_s >= deadline:
            raise error or UnavailableError("no leader answered")
        await cluster.changed.wait(wait_s)


async def find_starts(
    cluster: Cluster,
    places: Mapping[TopicPartition, Place],
    *,
    isolation: broker_pb2.Isolation.ValueType,
    timeout_s: float,
) -> dict[TopicPartition, int]:
    """Where to begin to read. A moment that no record has reached yet is the end."""
    found = await find(cluster, places, isolation=isolation, timeout_s=timeout_s)
    late = {partition: LATEST for partition, each in found.items() if each.offset < 0}
    if late:
        found |= await find(cluster, late, isolation=isolation, timeout_s=timeout_s)
    return {partition: each.offset for partition, each in found.items()}


async def _round(
    cluster: Cluster,
    places: Mapping[TopicPartition, Place],
    found: dict[TopicPartition, Found],
    isolation: broker_pb2.Isolation.ValueType,
    timeout_s: float,
) -> QuireError | None:
    """Ask every leader once; the last error of those that may be asked again."""
    by_leader: dict[int, list[TopicPartition]] = {}
    error: QuireError | None = None
    for partition in places:
        topic = cluster.picture.topic(partition.topic)
        if topic is None:
            if cluster.picture.is_missing(partition.topic):
                raise unknown_topic(partition.topic)
            error = cluster.problem
            continue
        check_partition(topic, partition)
        leader = cluster.leader(topic.topic_id, partition.partition).leader
        if leader:
            by_leader.setdefault(leader, []).append(partition)
        else:
            error = UnavailableError(
                f"nobody leads {partition} at the moment; 'quire topic describe {topic.name}' shows its brokers"
            )
    for leader, partitions in by_leader.items():
        for first in range(0, len(partitions), QUERIES_MAX):
            some = partitions[first : first + QUERIES_MAX]
            failed = await _ask(cluster, leader, some, places, found, isolation, min(timeout_s, CALL_S_MAX))
            error = failed or error
    return error


async def _ask(
    cluster: Cluster,
    leader: int,
    partitions: list[TopicPartition],
    places: Mapping[TopicPartition, Place],
    found: dict[TopicPartition, Found],
    isolation: broker_pb2.Isolation.ValueType,
    timeout_s: float,
) -> QuireError | None:
    broker = cluster.place(leader)
    if isinstance(broker, QuireError):
        return broker
    request = broker_pb2.ListOffsetsRequest(isolation=isolation)
    for partition in partitions:
        place = places[partition]
        request.queries.add(
            topic=topics_pb2.TopicRef(name=partition.topic),
            partition=partition.partition,
            place=place.place,
            timestamp_ms=place.timestamp_ms,
        )
    stub = broker_pb2_grpc.BrokerServiceStub(cluster.channel(broker))
    try:
        answer = await stub.ListOffsets(request, timeout=max(timeout_s, 0.001), metadata=cluster.metadata)
    except grpc.aio.AioRpcError as ended:
        return _again(from_rpc_error(ended))
    error: QuireError | None = None
    for partition, each in zip(partitions, answer.offsets, strict=False):
        if each.HasField("refusal"):
            error = _again(from_refusal(each.refusal))
        else:
            found[partition] = Found(each.offset, each.timestamp_ms)
    return error


def check_partition(topic: metadata_pb2.Topic, partition: TopicPartition) -> None:
    if not 0 <= partition.partition < topic.partition_count:
        raise UnknownPartitionError(
            f"topic '{topic.name}' has no partition {partition.partition}; it has {topic.partition_count}, from 0 on",
            topic=topic.name,
            partition=partition.partition,
        )


def _again(error: QuireError) -> QuireError:
    """The error, if asking again may help; raises it otherwise. To look is always safe to repeat."""
    if error.retriable or error.stale_metadata or isinstance(error, OutcomeUnknownError):
        return error
    raise error
