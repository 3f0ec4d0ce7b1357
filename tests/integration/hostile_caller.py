"""What hostile callers share: a real broker with low limits, checks that it stays well, calls of raw bytes.

Limits are lower than by default, so that what is beyond them is small enough to be sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import grpc.aio
import pytest

from quire.errors import QuireError
from quire.rpc_errors import from_rpc_error
from tests.integration.broker_cluster import LEASE_MS, BrokerCluster, BrokerProcess
from tests.integration.broker_probe import CALL_S, connection, gauge, probing
from tests.integration.controller_cluster import eventually

MIB: Final = 1024 * 1024
REQUEST_BYTES_MAX: Final = 8 * MIB
CONNECTION_BYTES_MAX: Final = 32 * MIB
PROCESS_BYTES_MAX: Final = 64 * MIB
RSS_GROWTH_BYTES_MAX: Final = 256 * MIB
"""The budgets; free memory that malloc keeps, 64 MiB and what it cannot put together again; copies that gRPC has."""
SERVICE: Final = "/quire.v1.BrokerService/"
PROBE: Final = "probe"
UNEXPECTED: Final = ("a call failed unexpectedly", "unhandled in the event loop")


def hostile_cluster(tmp_path_factory: pytest.TempPathFactory, *topics: str) -> Iterator[BrokerCluster]:
    """For a fixture of a module: one broker, with these topics, `orders` (2 partitions), `large` and the probe's."""
    cluster = BrokerCluster(
        tmp_path_factory.mktemp("hostile"),
        brokers=1,
        controllers=1,
        lease_ms=LEASE_MS,
        broker_request_bytes_max=REQUEST_BYTES_MAX,
        broker_connection_bytes_max=CONNECTION_BYTES_MAX,
        broker_partition_bytes_max=16 * MIB,
        broker_process_bytes_max=PROCESS_BYTES_MAX,
    )

    async def start() -> None:
        await cluster.start()
        await cluster.create_topic(PROBE)
        for topic in topics:
            await cluster.create_topic(topic)
        await cluster.create_topic("orders", partitions=2)
        await cluster.create_topic("large", message_bytes_max=8 * MIB)
        await cluster.hang_up()

    try:
        asyncio.run(start())
        yield cluster
    finally:
        cluster.end()


async def expected_to_be_well(processes: BrokerCluster) -> AsyncIterator[BrokerProcess]:
    """For a fixture of a test: the broker, which is to be well afterwards, with nothing left of it all."""
    broker = processes.brokers[0]
    await broker.ready()
    before = len(broker.events())
    try:
        yield broker

        async def is_clean() -> bool:
            return await gauge(broker, "quire_broker_waiting_bytes") == 0

        await eventually(is_clean, lambda: "something is still in memory")
        assert await broker.is_healthy()
        assert [each for each in broker.events()[before:] if each["event"] in UNEXPECTED] == []
    finally:
        await processes.hang_up()


@asynccontextmanager
async def under_attack(broker: BrokerProcess) -> AsyncIterator[None]:
    """Others are served meanwhile, and memory stays bounded, now and afterwards."""
    before = broker.rss_bytes()
    highest = 0

    async def watch() -> None:
        nonlocal highest
        while True:
            highest = max(highest, broker.rss_bytes())
            await asyncio.sleep(0.02)

    watching = asyncio.create_task(watch())
    try:
        async with probing(broker, PROBE) as probe:
            began = probe.count
            yield
            assert probe.count > began or not await _quiet(probe.more(1)), "nobody was served meanwhile"
    finally:
        watching.cancel()
    grown = highest - before
    assert grown < RSS_GROWTH_BYTES_MAX, f"{grown / MIB:.0f} MiB more than before"


async def _quiet(wait: Awaitable[None]) -> bool:
    await wait
    return False


@asynccontextmanager
async def connections(broker: BrokerProcess, count: int) -> AsyncIterator[list[grpc.aio.Channel]]:
    channels = [connection(broker) for _ in range(count)]
    try:
        yield channels
    finally:
        for channel in channels:
            await channel.close()


def unary(channel: grpc.aio.Channel, method: str, body: bytes) -> Any:
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
    return call(body, timeout=CALL_S)


async def stream_refusal(channel: grpc.aio.Channel, method: str, *bodies: bytes) -> QuireError:
    """The error with which a stream of these messages ends."""
    opened: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(method)
    call = opened(timeout=CALL_S)
    try:
        with suppress(asyncio.InvalidStateError):
            for body in bodies:
                await call.write(body)
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)
    raise AssertionError("it ended well")
