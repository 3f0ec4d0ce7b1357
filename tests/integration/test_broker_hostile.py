"""Strangers, liars and sleepers at a real broker: typed answers, bounded memory, and others are served meanwhile.

Limits are lower than by default, so that what is beyond them is small enough to be sent.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from quire.errors import (
    BatchTooLargeError,
    ChecksumMismatchError,
    InvalidArgumentError,
    InvalidTopicNameError,
    LogBusyError,
    MalformedBatchError,
    OffsetOutOfRangeError,
    QuireError,
    UnknownPartitionError,
    UnknownTopicError,
    UnsupportedFeatureError,
)
from quire.records import Codec
from quire.refusals import from_refusal
from quire.rpc_errors import from_rpc_error
from quire.v1 import broker_pb2, controller_pb2
from tests.integration.broker_cluster import LEASE_MS, BrokerCluster, BrokerProcess, tail
from tests.integration.broker_probe import (
    CALL_S,
    RAW,
    batch,
    connection,
    entry,
    fetch,
    gauge,
    probing,
    produce,
    ref,
    stub_of,
)
from tests.integration.controller_cluster import LOOPBACK, eventually, refusal, told

MIB: Final = 1024 * 1024
REQUEST_BYTES_MAX: Final = 8 * MIB
CONNECTION_BYTES_MAX: Final = 32 * MIB
PROCESS_BYTES_MAX: Final = 64 * MIB
RSS_GROWTH_BYTES_MAX: Final = 256 * MIB
"""The budgets; free memory that malloc keeps, 64 MiB and what it cannot put together again; copies that gRPC has."""
SERVICE: Final = "/quire.v1.BrokerService/"
PROBE: Final = "probe"
UNEXPECTED: Final = ("a call failed unexpectedly", "unhandled in the event loop")


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
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
        await cluster.create_topic("orders", partitions=2)
        await cluster.create_topic("large", message_bytes_max=8 * MIB)
        await cluster.hang_up()

    try:
        asyncio.run(start())
        yield cluster
    finally:
        cluster.end()


@pytest.fixture
async def broker(processes: BrokerCluster) -> AsyncIterator[BrokerProcess]:
    """One that is expected to be well afterwards, too, and to have nothing left of what was done to it."""
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


# --- messages that are none, or too large ---------------------------------------------------------------------------

UNARY: Final = ("Produce", "Fetch", "ListOffsets", "InitProducer")
STREAMS: Final = ("ProduceStream", "Subscribe")


async def test_bytes_that_are_no_request(broker: BrokerProcess) -> None:
    for method in UNARY:
        for body in (b"\xff" * 100, b"\x0b", b"\x1a\xff\xff\xff\xff\x0f"):
            assert isinstance(await refusal(unary(broker.channel, SERVICE + method, body)), InvalidArgumentError)
    for method in (*STREAMS, "FollowTopics"):
        assert isinstance(await stream_refusal(broker.channel, SERVICE + method, b"\xff" * 100), InvalidArgumentError)
    for name in (f"{SERVICE}Nothing", "/x", "/", "/quire.v1.Command/CreateTopic"):
        with pytest.raises(grpc.aio.AioRpcError) as missing:
            await unary(broker.channel, name, b"")
        assert missing.value.code() == grpc.StatusCode.UNIMPLEMENTED
    admin = "/quire.v1.ControllerAdminService/CreateTopic"
    assert isinstance(await refusal(unary(broker.channel, admin, b"\xff" * 100)), InvalidArgumentError)
    for noise in (
        random.randbytes(100_000),
        b"GET / HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 999,
    ):
        reader, writer = await asyncio.open_connection(LOOPBACK, broker.client_port)
        with suppress(ConnectionError):
            writer.write(noise)
            await writer.drain()
            await reader.read(100)
        writer.close()


async def test_requests_that_are_too_large(broker: BrokerProcess) -> None:
    too_long = bytes(REQUEST_BYTES_MAX + 1)
    for method in UNARY:
        with pytest.raises(grpc.aio.AioRpcError) as found:
            await unary(broker.channel, SERVICE + method, too_long)
        assert found.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    for method in ("Fetch", "ListOffsets", "InitProducer"):
        error = await refusal(unary(broker.channel, SERVICE + method, b"\x0a" + b"\x80\x80\x40" + bytes(MIB)))
        assert isinstance(error, InvalidArgumentError)
        assert error.details["limit_bytes"]
    start = broker_pb2.SubscribeRequest(start=broker_pb2.SubscribeStart()).SerializeToString()
    error = await stream_refusal(broker.channel, f"{SERVICE}Subscribe", start, bytes(5 * MIB))
    assert isinstance(error, InvalidArgumentError)
    admin = "/quire.v1.ControllerAdminService/CreateTopic"
    assert isinstance(await refusal(unary(broker.channel, admin, bytes(3 * MIB))), InvalidArgumentError)
    metadata = tuple(("quire-noise", "x" * 4_000) for _ in range(8))
    with pytest.raises(grpc.aio.AioRpcError) as found:
        await broker.stub.Fetch(broker_pb2.FetchRequest(), metadata=metadata, timeout=CALL_S)
    assert found.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def field(number: int, content: bytes) -> bytes:
    size, length = len(content), bytearray()
    while size >= 0x80:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number << 3 | 2]) + bytes(length) + bytes([size]) + content


async def test_requests_of_a_million_parts(broker: BrokerProcess) -> None:
    """They would take a hundred times their size, and seconds, to parse."""
    count = 3 * MIB
    records = field(3, field(4, field(2, b"\x0a\x00" * count)))
    entries = b"\x1a\x00" * count
    async with under_attack(broker), connections(broker, 2) as channels:
        for channel in channels:
            for body in (records, entries):
                error = await refusal(unary(channel, f"{SERVICE}Produce", body))
                assert isinstance(error, InvalidArgumentError)
            error = await stream_refusal(channel, f"{SERVICE}ProduceStream", b"\x22\x00" * count)
            assert isinstance(error, InvalidArgumentError)


# --- requests that lie ----------------------------------------------------------------------------------------------


async def test_each_lie_has_an_answer_of_its_own(broker: BrokerProcess) -> None:
    good = batch(b"value")
    lies: list[tuple[bytes, type[QuireError]]] = [
        (b"", MalformedBatchError),
        (b"\xff" * 300, MalformedBatchError),
        (good[:-1], MalformedBatchError),
        (good[:-1] + bytes([good[-1] ^ 1]), ChecksumMismatchError),
        (good[:8] + b"\xff\xff\xff\xff" + good[12:], MalformedBatchError),
        (good[:8] + b"\x7f\xff\xff\xff" + good[12:], BatchTooLargeError),
        (batch(bytes(2 * MIB)), BatchTooLargeError),
    ]
    request = broker_pb2.ProduceRequest(partitions=[entry("orders", data) for data, _ in lies])
    stored = (await told(broker.stub.Produce(request, timeout=CALL_S))).partitions
    for each, (_, kind) in zip(stored, lies, strict=True):
        assert type(from_refusal(each.refusal)) is kind
    for topic, partition, kind in (
        ("nothing", 0, UnknownTopicError),
        ("../../x", 0, UnknownTopicError),
        ("\0", 0, UnknownTopicError),
        ("x" * 10_000, 0, UnknownTopicError),
        ("orders", -1, UnknownPartitionError),
        ("orders", 2**31 - 1, UnknownPartitionError),
    ):
        assert type(await refusal(produce(broker.stub, topic, b"a", partition=partition))) is kind
        assert type(await refusal(fetch(broker.stub, topic, partition=partition))) is kind
    for offset in (-1, -(2**63), 2**63 - 1):
        assert isinstance(await refusal(fetch(broker.stub, "orders", offset)), OffsetOutOfRangeError)
    init = broker_pb2.InitProducerRequest(transactional_id="x")
    assert isinstance(await refusal(broker.stub.InitProducer(init, timeout=CALL_S)), UnsupportedFeatureError)
    for name in ("../../x", "..", "\0", "x" * 10_000, "оrders", "__mine"):
        create = controller_pb2.CreateTopicRequest(name=name, partition_count=1)
        assert isinstance(await refusal(broker.admin.CreateTopic(create, timeout=CALL_S)), InvalidTopicNameError)
    assert isinstance(
        await refusal(broker.stub.FollowTopics(broker_pb2.FollowTopicsRequest(topics=[ref("x" * 300)])).read()),
        InvalidTopicNameError,
    )


async def test_bombs_for_those_who_decode(broker: BrokerProcess) -> None:
    """A batch of 5 KB holds 60 MiB. Only whoever asks for messages makes the broker look inside, up to a limit."""
    bomb = batch(bytes(60 * MIB), codec=Codec.ZSTD)
    swollen = batch(bytes(10 * MIB), codec=Codec.ZSTD)
    many = batch(*[b"x"] * 200_000, codec=Codec.ZSTD)
    stored = [(await produce_raw(broker, data)).base_offset for data in (bomb, *[swollen] * 10, many, batch(b"end"))]
    async with under_attack(broker), connections(broker, 3) as channels:
        error = await refusal(fetch(broker.stub, "large", stored[0], form=broker_pb2.RECORD_FORM_DECODED))
        assert isinstance(error, BatchTooLargeError)
        assert int(error.details["end_offset"]) == stored[1]

        async def read_all(channel: grpc.aio.Channel) -> int:
            offset = stored[1]
            while offset <= stored[-1]:
                try:
                    fetched = await fetch(
                        stub_of(channel), "large", offset, form=broker_pb2.RECORD_FORM_DECODED, wait_ms_max=10_000
                    )
                except LogBusyError:
                    continue
                assert fetched.next_offset > offset
                offset = fetched.next_offset
            return offset

        assert await asyncio.gather(*map(read_all, channels)) == [stored[-1] + 1] * len(channels)


async def produce_raw(broker: BrokerProcess, data: bytes) -> broker_pb2.PartitionStored:
    request = broker_pb2.ProduceRequest(partitions=[entry("large", data)])
    [stored] = (await told(broker.stub.Produce(request, timeout=CALL_S))).partitions
    assert not stored.HasField("refusal"), stored
    return stored


# --- many -----------------------------------------------------------------------------------------------------------


async def test_a_flood_of_tiny_requests(broker: BrokerProcess) -> None:
    """Each is answered, in its order or not, with what it did or that there is too much."""
    streams, count = 4, 1_500
    tiny = entry("orders", batch(b"x"))

    async def flood(channel: grpc.aio.Channel) -> tuple[int, int]:
        call = stub_of(channel).ProduceStream(timeout=60)
        stored = busy = 0

        async def send() -> None:
            for number in range(count):
                await call.write(broker_pb2.ProduceStreamRequest(correlation_id=number, partitions=[tiny]))
            await call.done_writing()

        sending = asyncio.create_task(send())
        seen: set[int] = set()
        async for answer in call:
            seen.add(answer.correlation_id)
            if answer.HasField("refusal"):
                assert isinstance(from_refusal(answer.refusal), LogBusyError)
                busy += 1
            else:
                stored += answer.partitions[0].base_offset >= 0
        await sending
        assert len(seen) == count
        return stored, busy

    async with under_attack(broker), connections(broker, streams + 1) as channels:
        *flooding, other = channels
        stub = stub_of(other)
        small: list[Callable[[], Any]] = [
            lambda: stub.Fetch(broker_pb2.FetchRequest(), timeout=CALL_S),
            lambda: stub.ListOffsets(broker_pb2.ListOffsetsRequest(), timeout=CALL_S),
            lambda: stub.Produce(broker_pb2.ProduceRequest(), timeout=CALL_S),
            lambda: unary(other, f"{SERVICE}Nothing", b""),
        ]

        async def unary_flood() -> None:
            for _ in range(10):
                calls = [next_call() for next_call in itertools.islice(itertools.cycle(small), 100)]
                for error in await asyncio.gather(*calls, return_exceptions=True):
                    assert isinstance(error, grpc.aio.AioRpcError)
                    assert error.code() in (
                        grpc.StatusCode.INVALID_ARGUMENT,
                        grpc.StatusCode.UNIMPLEMENTED,
                        grpc.StatusCode.RESOURCE_EXHAUSTED,
                    )

        async with asyncio.TaskGroup() as group:
            group.create_task(unary_flood())
            floods = [group.create_task(flood(channel)) for channel in flooding]
        done = [each.result() for each in floods]
        assert all(stored + busy == count for stored, busy in done)
        assert sum(stored for stored, _ in done) > 0


async def test_streams_that_come_and_go(broker: BrokerProcess) -> None:
    """Reset as soon as they are opened, in the middle of a request, or while an answer is on its way."""
    before = await gauge(broker, "quire_rpc_streams_in_progress")
    start = broker_pb2.SubscribeRequest(start=broker_pb2.SubscribeStart(form=RAW))
    feeds = [broker_pb2.SubscribeFrom(correlation_id=index, topic=ref("orders"), partition=index) for index in (0, 1)]
    async with under_attack(broker), connections(broker, 4) as channels:

        async def open_and_reset(channel: grpc.aio.Channel, number: int) -> None:
            stub = stub_of(channel)
            call: Any
            match number % 5:
                case 0:
                    call = stub.ProduceStream()
                    await call.write(broker_pb2.ProduceStreamRequest(partitions=[entry("orders", batch(b"r"))]))
                case 1:
                    call = stub.Subscribe()
                    await call.write(start)
                    await call.write(broker_pb2.SubscribeRequest(add=broker_pb2.SubscribeAdd(partitions=feeds)))
                case 2:
                    call = stub.FollowTopics(broker_pb2.FollowTopicsRequest(topics=[ref("orders")]))
                case 3:
                    asked = broker_pb2.FetchFrom(topic=ref("nothing" if number % 2 else "orders"), offset=10**6)
                    call = stub.Fetch(broker_pb2.FetchRequest(partitions=[asked], wait_ms_max=30_000))
                case _:
                    call = stub.Produce(broker_pb2.ProduceRequest(partitions=[entry("orders", batch(b"r"))]))
            for _ in range(number % 3):
                await asyncio.sleep(0)
            call.cancel()

        for first in range(0, 1_500, 100):
            resets = [open_and_reset(channels[number % 4], number) for number in range(first, first + 100)]
            for outcome in await asyncio.gather(*resets, return_exceptions=True):
                assert outcome is None or isinstance(outcome, asyncio.CancelledError | asyncio.InvalidStateError)

    async def are_over() -> bool:
        return await gauge(broker, "quire_rpc_streams_in_progress") <= before

    await eventually(are_over, lambda: "streams are left over")


async def test_large_requests_at_once(broker: BrokerProcess) -> None:
    """More than may be in memory: some are refused, with the time to wait. Sent again, all are stored, each once."""
    async with under_attack(broker), connections(broker, 4) as channels:
        body = batch(bytes(4 * MIB))
        request = broker_pb2.ProduceRequest(partitions=[entry("large", body)])

        async def store(channel: grpc.aio.Channel) -> int:
            while True:
                try:
                    [stored] = (await told(stub_of(channel).Produce(request, timeout=60))).partitions
                    if not stored.HasField("refusal"):
                        return stored.base_offset
                    raise from_refusal(stored.refusal)
                except LogBusyError as error:
                    await asyncio.sleep((error.retry_after_ms or 10_000) / 1000)

        offsets = await asyncio.gather(*[store(channel) for channel in channels for _ in range(6)])
        assert len(set(offsets)) == 24


# --- those who never read -------------------------------------------------------------------------------------------


async def test_streams_that_never_read(broker: BrokerProcess, processes: BrokerCluster) -> None:
    """They get what fits, then nothing; when others need the room they are hung up on. Also answers of calls."""
    for _ in range(4):
        await produce_raw(broker, batch(bytes(MIB)))
    await processes.create_topic("wide", partitions=100)
    async with under_attack(broker), connections(broker, 8) as channels:
        unread: list[Any] = []
        start = broker_pb2.SubscribeStart(form=RAW, credit_bytes=64 * MIB)
        whole = broker_pb2.SubscribeAdd(
            partitions=[broker_pb2.SubscribeFrom(correlation_id=1, topic=ref("large"), offset=0)]
        )
        refused = [broker_pb2.PartitionRecords(topic=ref("nothing"))] * 1_000
        asked = broker_pb2.FetchRequest(
            partitions=[broker_pb2.FetchFrom(topic=ref("large"), bytes_max=8 * MIB)], form=RAW, bytes_max=8 * MIB
        ).SerializeToString()
        for channel in channels:
            stub = stub_of(channel)
            for _ in range(10):
                subscribed = stub.Subscribe()
                await subscribed.write(broker_pb2.SubscribeRequest(start=start))
                await subscribed.write(broker_pb2.SubscribeRequest(add=whole))
                unread.append(subscribed)
                produced = stub.ProduceStream()
                for number in range(5):
                    await produced.write(broker_pb2.ProduceStreamRequest(correlation_id=number, partitions=refused))
                unread.append(produced)
                unread.append(stub.FollowTopics(broker_pb2.FollowTopicsRequest(topics=[ref("wide")])))
                fetching: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(f"{SERVICE}Fetch")
                unread.append(fetching(asked))

        async with connections(broker, 1) as [reader]:
            for _ in range(10):  # whoever reads finds room
                got = await fetch(stub_of(reader), "large", wait_ms_max=20_000)
                assert got.next_offset > 0
        assert await gauge(broker, "quire_broker_waiting_bytes") < PROCESS_BYTES_MAX + 32 * MIB
        for call in unread:
            call.cancel()
    assert any(each["event"] == "hung up on a caller that took nothing" for each in broker.events())


async def test_readers_who_wait_keep_no_one_out(broker: BrokerProcess) -> None:
    async with under_attack(broker), connections(broker, 3) as channels:
        asked = broker_pb2.FetchRequest(
            partitions=[broker_pb2.FetchFrom(topic=ref("orders"), partition=1)],
            wait_ms_max=30_000,
            bytes_max=32 * MIB,
        )
        waiting = [stub_of(channel).Fetch(asked, timeout=60) for channel in channels for _ in range(100)]

        async def are_waiting() -> bool:
            return await gauge(broker, "quire_rpc_calls_in_progress") >= len(waiting)

        await eventually(are_waiting, lambda: "not all of them wait")
        assert await gauge(broker, "quire_broker_waiting_bytes") < MIB
        await produce(broker.stub, "orders", b"news", partition=1)
        for answer in await asyncio.gather(*waiting):
            assert answer.partitions[0].next_offset > 0


# --- what is beside -------------------------------------------------------------------------------------------------


async def test_health_and_reflection(broker: BrokerProcess) -> None:
    health = health_pb2_grpc.HealthStub(broker.channel)
    for service in ("", "quire.v1.BrokerService", "quire.v1.ControllerAdminService"):
        answer = await health.Check(health_pb2.HealthCheckRequest(service=service), timeout=CALL_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.aio.AioRpcError) as unknown:
        await health.Check(health_pb2.HealthCheckRequest(service="../x"), timeout=CALL_S)
    assert unknown.value.code() == grpc.StatusCode.NOT_FOUND
    reflection = reflection_pb2_grpc.ServerReflectionStub(broker.channel)
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="quire.v1.BrokerService"),
        reflection_pb2.ServerReflectionRequest(file_by_filename="../../etc/passwd"),
        reflection_pb2.ServerReflectionRequest(),
    ]
    answers = [answer async for answer in reflection.ServerReflectionInfo(iter(requests), timeout=CALL_S)]
    served = {each.name for each in answers[0].list_services_response.service}
    assert served >= {"quire.v1.BrokerService", "quire.v1.ControllerAdminService", "grpc.health.v1.Health"}
    assert answers[1].file_descriptor_response.file_descriptor_proto
    assert [each.WhichOneof("message_response") for each in answers[2:]] == ["error_response"] * 2


def test_nothing_unexpected_has_happened(processes: BrokerCluster) -> None:
    broker = processes.brokers[0]
    assert [each for each in broker.events() if each["event"] in UNEXPECTED] == [], tail(broker)
