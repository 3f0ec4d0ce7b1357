"""What may be in memory: budgets, the shapes of requests, calls that are passed on."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import InvalidArgumentError, InvariantViolation, LogBusyError, UnsupportedFeatureError
from quire.v1 import broker_pb2, records_pb2
from quire_broker.ports import CallMetadata
from quire_broker.runtime.budget import Budget, Charge, Memory
from quire_broker.service.answers import Answers
from quire_broker.service.broker import SERVICE, BrokerService
from quire_broker.service.forward import CALLS_MAX, REQUEST_BYTES_MAX, Forwarding
from quire_broker.service.wire import PARTS_MAX, SMALL_BYTES, counted, small
from tests.unit.broker_services_harness import Call, World, decoded, enter, entry, raw, served, settle, virtual

# --- budgets --------------------------------------------------------------------------------------------------------


def test_a_charge_is_taken_of_all_budgets_or_of_none() -> None:
    wide, narrow = Budget(what="w", bytes_max=100), Budget(what="n", bytes_max=10)
    first = Charge(wide, narrow)
    first.take(8)
    second = Charge(wide, narrow)
    with pytest.raises(LogBusyError) as found:
        second.take(3)
    assert (found.value.details["waiting_bytes"], found.value.details["limit_bytes"]) == ("8", "10")
    assert found.value.retry_after_ms is not None
    assert (wide.used_bytes, narrow.used_bytes) == (8, 8)
    second.take(2)
    first.let_go()
    assert (wide.used_bytes, narrow.used_bytes) == (2, 2)


def test_whoever_has_nothing_may_take_anything() -> None:
    budget = Budget(what="b", bytes_max=10)
    charge = Charge(budget)
    charge.take(1_000)
    assert not budget.has_room
    charge.let_go()
    assert budget.used_bytes == 0


def test_a_charge_is_given_back_when_all_have_let_go() -> None:
    budget = Budget(what="b", bytes_max=10)
    charge = Charge(budget)
    charge.take(5)
    charge.hold()
    charge.let_go()
    assert budget.used_bytes == 5
    charge.let_go()
    assert budget.used_bytes == 0
    for misuse in (charge.let_go, charge.hold):
        with pytest.raises(InvariantViolation):
            misuse()


def test_connections_have_a_budget_while_somebody_has_it() -> None:
    memory = Memory(process_bytes_max=100, connection_bytes_max=10)
    one = memory.connection("a")
    assert memory.connection("a") is one
    assert memory.connection("b") is not one
    Charge(one).take(9)
    del one
    assert memory.connection("a").used_bytes == 0
    assert memory.requests.bytes_max + memory.answers.bytes_max == 100


# --- shapes ---------------------------------------------------------------------------------------------------------


def field(number: int, content: bytes) -> bytes:
    """A field with content of any length."""
    size, length = len(content), bytearray()
    while size >= 0x80:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number << 3 | 2]) + bytes(length) + bytes([size]) + content


EMPTY = b"\x0a\x00"
BOMBS: dict[str, bytes] = {
    "records": field(3, field(4, field(2, EMPTY * 1_000_000))),
    "entries": b"\x1a\x00" * 1_000_000,
    "headers": field(3, field(4, field(2, field(1, b"\x1a\x00" * 1_000_000)))),
    "records before an end that is none": field(3, field(4, field(2, EMPTY * 1_000_000))) + b"\xff",
    "an entry that reaches beyond the end": b"\x1a\xff\xff\xff\x7f" + EMPTY * 1_000_000,
    "groups": b"\x1b" * 1_000_000,
    "an endless number": b"\xff" * 1_000_000,
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_request_of_many_parts_is_refused_before_it_is_parsed(name: str) -> None:
    class Never:
        """A kind of message that cannot be parsed."""

        DESCRIPTOR = broker_pb2.ProduceRequest.DESCRIPTOR

        @staticmethod
        def FromString(data: bytes) -> None:
            raise AssertionError(f"{len(data)} bytes were parsed")

    with pytest.raises(InvalidArgumentError):
        counted(cast(Any, Never))(BOMBS[name])


def test_requests_that_make_sense_are_parsed() -> None:
    parse = counted(broker_pb2.ProduceStreamRequest)
    record = records_pb2.Record(
        key=b"k", value=b"v" * 50, timestamp_ms=1, headers=[records_pb2.Header(key="h", value=b"x")] * 2
    )
    large = broker_pb2.ProduceStreamRequest(
        correlation_id=2**64 - 1,
        wait_ms_max=-5,
        partitions=[
            entry("orders", decoded(*[record] * 10_000), partition=-1),
            *[entry("orders", raw(bytes(100)), leader_epoch=3)] * 999,
        ],
    )
    data = large.SerializeToString() + b"\xfa\x7f\x03new" + b"\xfd\x7f1234" + b"\xf9\x7f12345678"
    assert parse(data).partitions == large.partitions
    assert parse(b"").partitions == []


@given(st.binary(max_size=200))
def test_what_the_parser_takes_the_count_takes(data: bytes) -> None:
    padded = (
        data + broker_pb2.ProduceRequest(partitions=[entry("orders", raw(bytes(SMALL_BYTES)))]).SerializeToString()
    )
    try:
        expected = broker_pb2.ProduceRequest.FromString(padded)
    except Exception:
        with pytest.raises(InvalidArgumentError):
            counted(broker_pb2.ProduceRequest)(padded)
        return
    try:
        assert counted(broker_pb2.ProduceRequest)(padded) == expected
    except InvalidArgumentError:
        assert any(byte & 7 in (3, 4) for byte in data), "only groups are refused beyond that"


def test_small_requests_are_not_counted() -> None:
    parse = counted(broker_pb2.ProduceRequest)
    assert len(parse(b"\x1a\x00" * (SMALL_BYTES // 2)).partitions) < PARTS_MAX


def test_requests_without_records_are_small() -> None:
    parse = small(broker_pb2.FetchRequest, bytes_max=1_000)
    assert parse(broker_pb2.FetchRequest(wait_ms_max=5).SerializeToString()).wait_ms_max == 5
    with pytest.raises(InvalidArgumentError) as found:
        parse(bytes(1_001))
    assert found.value.details["limit_bytes"] == "1000"
    with pytest.raises(InvalidArgumentError):
        parse(b"\xff")


# --- the service, put together --------------------------------------------------------------------------------------


def service_of(world: World) -> BrokerService:
    async def next_producer_id() -> int:
        return 1_000

    return BrokerService(
        producing=world.producing,
        streams=world.streams,
        fetching=world.fetching,
        offsets=world.offsets,
        subscriptions=world.subscriptions,
        following=world.following,
        followers=world.followers,
        next_producer_id=next_producer_id,
    )


@virtual
async def test_every_method_of_the_contract_is_served_as_it_says() -> None:
    class Details:
        invocation_metadata = ()

        def __init__(self, method: str) -> None:
            self.method = method

    async with World() as world:
        handlers = service_of(world).handlers()
        for method in SERVICE.methods:
            handler: Any = handlers.service(Details(f"/{SERVICE.full_name}/{method.name}"))  # type: ignore[arg-type]
            assert handler.request_streaming == method.client_streaming
            assert handler.response_streaming == method.server_streaming
            with pytest.raises(InvalidArgumentError):
                handler.request_deserializer(b"\xff")
        assert handlers.service(Details(f"/{SERVICE.full_name}/Nothing")) is None  # type: ignore[arg-type]


@virtual
async def test_producers_get_ids_and_no_transactions() -> None:
    async with World() as world:
        service = service_of(world)
        made = await service.init_producer(broker_pb2.InitProducerRequest(), Call())
        assert (made.producer_id, made.producer_epoch) == (1_000, 0)
        with pytest.raises(UnsupportedFeatureError):
            await service.init_producer(broker_pb2.InitProducerRequest(transactional_id="x"), Call())


@virtual
async def test_stopping_ends_all_streams() -> None:
    async with World() as world:
        streams = [world.produce_stream(), world.subscribe(), world.follow()]
        await settle()
        service_of(world).stop()
        for stream in streams:
            assert (await stream.closed()) is not None


# --- calls that are passed on ---------------------------------------------------------------------------------------


class Controllers:
    """Answers when it is let."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, bytes, float, CallMetadata]] = []
        self.answers = asyncio.Event()

    async def forward(self, method: str, request: bytes, *, timeout_s: float, metadata: CallMetadata = ()) -> bytes:
        self.asked.append((method, request, timeout_s, metadata))
        await self.answers.wait()
        return b"answer"


@virtual
async def test_calls_are_passed_on_as_they_are() -> None:
    enter(deadline=20)
    controllers, memory = Controllers(), Memory(process_bytes_max=10**6, connection_bytes_max=10**6)
    controllers.answers.set()
    forwarding = Forwarding(controllers, Answers(memory))  # type: ignore[arg-type]  # one of its methods is enough
    assert await served(forwarding.forward("ListTopics", b"\xfa\x7f\x03new", Call())) == b"answer"
    assert controllers.asked == [("ListTopics", b"\xfa\x7f\x03new", 20.0, [])]
    await settle()
    assert memory.used_bytes == 0


@virtual
async def test_no_more_is_passed_on_than_controllers_take() -> None:
    enter()
    controllers, memory = Controllers(), Memory(process_bytes_max=10**6, connection_bytes_max=10**6)
    forwarding = Forwarding(controllers, Answers(memory))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError):
        await forwarding.forward("CreateTopic", bytes(REQUEST_BYTES_MAX + 1), Call())
    waiting = [asyncio.create_task(forwarding.forward("ListTopics", b"", Call())) for _ in range(CALLS_MAX)]
    await settle()
    with pytest.raises(LogBusyError) as found:
        await forwarding.forward("ListTopics", b"", Call())
    assert found.value.retry_after_ms is not None
    waiting[0].cancel()
    await settle()
    waiting.append(asyncio.create_task(forwarding.forward("ListTopics", b"", Call())))
    await settle()
    assert len(controllers.asked) == CALLS_MAX + 1
    controllers.answers.set()
    await asyncio.wait(waiting)
    assert memory.used_bytes == 0
