"""Floods, bombs and sleepers at a real broker: typed answers, bounded memory, and others are served meanwhile.

Calls that make no sense are in `test_broker_hostile_calls.py`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from quire.errors import (
    BatchTooLargeError,
    InvalidArgumentError,
    LogBusyError,
)
from quire.records import Codec
from quire.refusals import from_refusal
from quire.v1 import broker_pb2, controller_pb2
from tests.integration.broker_cluster import BrokerCluster, BrokerProcess, tail
from tests.integration.broker_probe import (
    CALL_S,
    RAW,
    answered,
    batch,
    entry,
    fetch,
    gauge,
    produce,
    ref,
    stub_of,
)
from tests.integration.controller_cluster import eventually, refusal, told
from tests.integration.hostile_caller import (
    MIB,
    PROCESS_BYTES_MAX,
    SERVICE,
    UNEXPECTED,
    connections,
    expected_to_be_well,
    hostile_cluster,
    stream_refusal,
    unary,
    under_attack,
)

FLOOD: Final = int(os.environ.get("QUIRE_FLOOD_REQUESTS", "20000"))
"""Tiny requests: `scripts/soak flood` sends a million of them."""
UNARY: Final = [
    f"/{service.full_name}/{method.name}"
    for service in (
        broker_pb2.DESCRIPTOR.services_by_name["BrokerService"],
        controller_pb2.DESCRIPTOR.services_by_name["ControllerAdminService"],
    )
    for method in service.methods
    if not method.client_streaming and not method.server_streaming
]


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    yield from hostile_cluster(tmp_path_factory)


@pytest.fixture
async def broker(processes: BrokerCluster) -> AsyncIterator[BrokerProcess]:
    async for each in expected_to_be_well(processes):
        yield each


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
    """Each is answered, in its order or not, with what it did or that there is too much. By every method there is."""
    streams = 4
    count = FLOOD * 3 // 4 // streams
    tiny = entry("orders", batch(b"x"))

    async def flood(channel: grpc.aio.Channel) -> tuple[int, int]:
        call = stub_of(channel).ProduceStream()
        stored = busy = 0

        async def send() -> None:
            for number in range(count):
                await call.write(broker_pb2.ProduceStreamRequest(correlation_id=number, partitions=[tiny]))
            await call.done_writing()

        sending = asyncio.create_task(send())
        answered = bytearray(count)
        async for answer in call:
            answered[answer.correlation_id] += 1
            if answer.HasField("refusal"):
                assert isinstance(from_refusal(answer.refusal), LogBusyError)
                busy += 1
            else:
                stored += answer.partitions[0].base_offset >= 0
        await sending
        assert answered.count(1) == count
        return stored, busy

    async def call_all(channel: grpc.aio.Channel, counts: Counter[grpc.StatusCode]) -> None:
        """A hundred at a time, of all methods by turns, with nothing in them."""
        names = itertools.islice(itertools.cycle([*UNARY, f"{SERVICE}Nothing"]), FLOOD // 4)
        while few := list(itertools.islice(names, 100)):
            calls = [unary(channel, name, b"") for name in few]
            for outcome in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(outcome, bytes | grpc.aio.AioRpcError)
                counts[grpc.StatusCode.OK if isinstance(outcome, bytes) else outcome.code()] += 1

    async with under_attack(broker), connections(broker, streams + 1) as channels:
        *flooding, other = channels
        counts: Counter[grpc.StatusCode] = Counter()
        async with asyncio.TaskGroup() as group:
            group.create_task(call_all(other, counts))
            floods = [group.create_task(flood(channel)) for channel in flooding]
        done = [each.result() for each in floods]
        assert all(stored + busy == count for stored, busy in done)
        assert sum(stored for stored, _ in done) > 0
        assert counts.total() == FLOOD // 4
        assert set(counts) <= {
            grpc.StatusCode.OK,
            grpc.StatusCode.INVALID_ARGUMENT,
            grpc.StatusCode.NOT_FOUND,
            grpc.StatusCode.FAILED_PRECONDITION,
            grpc.StatusCode.UNIMPLEMENTED,
            grpc.StatusCode.RESOURCE_EXHAUSTED,
        }


def is_ended_already(error: grpc.aio.AioRpcError) -> bool:
    """Whether there were too many streams, or what a client makes of it who was just about to write to one."""
    written_too_late = error.code() == grpc.StatusCode.INTERNAL and "from Core" in (error.details() or "")
    return written_too_late or error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


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
                if isinstance(outcome, grpc.aio.AioRpcError):
                    assert is_ended_already(outcome), outcome
                else:
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
    """They get what fits, then nothing; when others need the room they are hung up on. Also answers of calls.

    All that is lent to them together is ten times as much as may be in memory: who is hung up on must leave nothing.
    """
    for _ in range(8):
        await produce_raw(broker, batch(random.randbytes(MIB)))
    await processes.create_topic("wide", partitions=100)
    fetches = 6 * 20
    before = await answered(broker, "Fetch")
    async with under_attack(broker), connections(broker, 20) as channels:
        unread: list[Any] = []
        start = broker_pb2.SubscribeStart(form=RAW, credit_bytes=64 * MIB)
        whole = broker_pb2.SubscribeAdd(
            partitions=[broker_pb2.SubscribeFrom(correlation_id=1, topic=ref("large"), offset=0)]
        )
        refused = [broker_pb2.PartitionRecords(topic=ref("nothing"))] * 1_000
        asked = broker_pb2.FetchRequest(
            partitions=[broker_pb2.FetchFrom(topic=ref("large"), bytes_max=8 * MIB)],
            form=RAW,
            bytes_max=8 * MIB,
            wait_ms_max=30_000,
        ).SerializeToString()
        for channel in channels:
            stub = stub_of(channel)
            for _ in range(fetches // len(channels)):
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

        read = 0
        async with connections(broker, 1) as [reader]:
            while read < 5 or await answered(broker, "Fetch") - before - read < fetches * 3 // 4:
                got = await fetch(stub_of(reader), "large", wait_ms_max=20_000)  # whoever reads finds room
                assert got.next_offset > 0
                read += 1
        assert await gauge(broker, "quire_broker_waiting_bytes") < PROCESS_BYTES_MAX + 32 * MIB
        for call in unread:
            call.cancel()


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
