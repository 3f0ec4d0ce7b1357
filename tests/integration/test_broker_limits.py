"""One more than docs/PROTOCOL.md allows, of all that a request can have too much of: it ends as is said there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Final

import grpc.aio
import pytest

from quire.errors import QuireError
from quire.records import Codec
from quire.refusals import from_refusal
from quire.rpc_errors import from_rpc_error
from quire.v1 import broker_pb2, records_pb2
from tests.integration.broker_cluster import BrokerCluster, BrokerProcess
from tests.integration.broker_probe import CALL_S, batch, entry, fetch, produce, ref
from tests.integration.controller_cluster import refusal, told
from tests.integration.hostile_caller import (
    MIB,
    REQUEST_BYTES_MAX,
    SERVICE,
    expected_to_be_well,
    hostile_cluster,
    unary,
)
from tests.unit import test_limits_docs as document

HEADING: Final = "Limits of a broker"


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    yield from hostile_cluster(tmp_path_factory)


@pytest.fixture
async def broker(processes: BrokerCluster) -> AsyncIterator[BrokerProcess]:
    async for each in expected_to_be_well(processes):
        yield each


async def stored(broker: BrokerProcess, *entries: broker_pb2.PartitionRecords, **fields: Any) -> QuireError:
    """What becomes of the last entry, or of the request."""
    try:
        answer = await told(
            broker.stub.Produce(broker_pb2.ProduceRequest(partitions=entries, **fields), timeout=CALL_S)
        )
    except QuireError as error:
        return error
    return from_refusal(answer.partitions[-1].refusal)


async def subscribed(broker: BrokerProcess, *requests: broker_pb2.SubscribeRequest) -> QuireError:
    """With which error the subscription ends."""
    stream = broker.stub.Subscribe(timeout=2 * CALL_S)
    try:
        for each in requests:
            await stream.write(each)
        while await stream.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)
    raise AssertionError("it ended well")


def messages(count: int) -> broker_pb2.PartitionRecords:
    records = [records_pb2.Record(value=b"v")] * count
    return broker_pb2.PartitionRecords(
        topic=ref("orders"), records=records_pb2.RecordSet(decoded=records_pb2.RecordList(records=records))
    )


async def decoded(broker: BrokerProcess) -> QuireError:
    """Of a batch of a few KiB that is 17 MiB when it is decoded."""
    request = broker_pb2.ProduceRequest(partitions=[entry("large", batch(bytes(17 * MIB), codec=Codec.ZSTD))])
    [placed] = (await told(broker.stub.Produce(request, timeout=CALL_S))).partitions
    reading = fetch(broker.stub, "large", placed.base_offset, form=broker_pb2.RECORD_FORM_DECODED, wait_ms_max=0)
    return await refusal(reading)


async def topic_limit(broker: BrokerProcess) -> QuireError:
    return await stored(broker, entry("orders", batch(bytes(MIB + 4096))))


def fetched(broker: BrokerProcess, count: int = 1, **fields: Any) -> Awaitable[QuireError]:
    asked = [broker_pb2.FetchFrom(topic=ref("orders"), partition=number) for number in range(count)]
    return refusal(broker.stub.Fetch(broker_pb2.FetchRequest(partitions=asked, **fields), timeout=CALL_S))


def listed(broker: BrokerProcess) -> Awaitable[QuireError]:
    queries = [broker_pb2.OffsetQuery(topic=ref("orders"), place=broker_pb2.OFFSET_PLACE_LATEST)] * 1_001
    return refusal(broker.stub.ListOffsets(broker_pb2.ListOffsetsRequest(queries=queries), timeout=CALL_S))


def described(broker: BrokerProcess) -> Awaitable[QuireError]:
    asked = broker_pb2.DescribeFollowersRequest(partitions=[broker_pb2.FollowersOf(topic=ref("orders"))] * 1_001)
    return refusal(broker.stub.DescribeFollowers(asked, timeout=CALL_S))


def followed(broker: BrokerProcess) -> Awaitable[Any]:
    asked = broker_pb2.FollowTopicsRequest(topics=[ref("orders")] * 1_001)
    return refusal(broker.stub.FollowTopics(asked, timeout=CALL_S).read())


def with_metadata(broker: BrokerProcess) -> Awaitable[Any]:
    metadata = tuple(("quire-noise", "x" * 4_096) for _ in range(5))
    return refusal(broker.stub.Fetch(broker_pb2.FetchRequest(), metadata=metadata, timeout=CALL_S))


def start(**fields: Any) -> broker_pb2.SubscribeRequest:
    return broker_pb2.SubscribeRequest(start=broker_pb2.SubscribeStart(**fields))


REQUESTS: Final[dict[str, Callable[[BrokerProcess], Awaitable[QuireError]]]] = {
    "a request": lambda broker: refusal(unary(broker.channel, f"{SERVICE}Produce", bytes(REQUEST_BYTES_MAX + 1))),
    "a request without records": lambda broker: refusal(
        unary(broker.channel, f"{SERVICE}Fetch", bytes(512 * 1024 + 1))
    ),
    "a request to `ControllerAdminService`": lambda broker: refusal(
        unary(broker.channel, "/quire.v1.ControllerAdminService/ListTopics", bytes(2 * MIB + 1))
    ),
    "metadata of a call": with_metadata,
    "messages within a request of more than 64 KiB: entries, records, headers": lambda broker: stored(
        broker, messages(50_000)
    ),
    "entries of `Produce`": lambda broker: stored(broker, *[entry("orders", batch(b"v"))] * 1_001),
    "raw batches of a request": lambda broker: stored(broker, entry("orders", batch(b"v") * 4_001)),
    "records of a request that are messages": lambda broker: stored(broker, messages(5_000), messages(5_001)),
    "a batch, and so a record": topic_limit,
    "`wait_ms_max` of `Produce`": lambda broker: stored(broker, entry("orders", batch(b"v")), wait_ms_max=300_001),
    "partitions of `Fetch`": lambda broker: fetched(broker, 1_001),
    "`bytes_max` of `Fetch`": lambda broker: fetched(broker, bytes_max=32 * MIB + 1),
    "`wait_ms_max` of `Fetch`": lambda broker: fetched(broker, wait_ms_max=30_001),
    "a batch that is decoded for `Fetch` or `Subscribe`": decoded,
    "queries of `ListOffsets`": listed,
    "partitions of `DescribeFollowers`": described,
    "topics of `FollowTopics`": followed,
    "credit of a subscription": lambda broker: subscribed(broker, start(credit_bytes=64 * MIB + 1)),
    "`bytes_max` of `Subscribe`": lambda broker: subscribed(broker, start(bytes_max=16 * MIB + 1)),
}


@pytest.mark.parametrize("what", REQUESTS)
async def test_one_more_is_refused_as_documented(broker: BrokerProcess, what: str) -> None:
    _, beyond = document.rows(HEADING)[what]
    error = await REQUESTS[what](broker)
    if beyond.startswith("status"):
        assert error.details["grpc_status"] in beyond
    else:
        assert beyond.startswith(f"`{error.reason}`"), (beyond, error)
    await produce(broker.stub, "orders", b"and others are served")
