"""ProduceStream: order, pipelining, and clients that end, hang up or take no answers."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest

from quire.errors import (
    DiskFullError,
    InvalidArgumentError,
    LogBusyError,
    OutcomeUnknownError,
    UnavailableError,
    UnknownTopicError,
)
from quire.refusals import from_refusal
from quire.v1 import broker_pb2, durability_pb2, records_pb2
from quire_broker.service import answers, produce_stream
from tests.unit.broker_services_harness import (
    Call,
    World,
    at,
    batches,
    decoded,
    entry,
    numbered,
    raw,
    refusal_in,
    settle,
    values_of,
    virtual,
)


def request(number: int, *entries: broker_pb2.PartitionRecords, **fields: Any) -> broker_pb2.ProduceStreamRequest:
    return broker_pb2.ProduceStreamRequest(correlation_id=number, partitions=entries, **fields)


@virtual
async def test_requests_are_carried_out_in_their_order() -> None:
    """Also where one takes longer to translate, and where a producer numbers its batches."""
    async with World() as world:
        await world.create("orders")
        stream = world.produce_stream()
        many = decoded(*[records_pb2.Record(value=b"m")] * 5_000)
        stream.send(request(1, *[entry("orders", many)]), request(2, entry("orders", raw(b"a"))))
        stream.send(*[request(3 + n, entry("orders", batches(numbered(n, b"%d" % n)))) for n in range(50)])
        answers = [await stream.next() for _ in range(52)]
        offsets = {each.correlation_id: each.partitions[0].base_offset for each in answers}
        assert offsets == {1: 0, 2: 5_000, **{3 + n: 5_001 + n for n in range(50)}}
        stream.end()
        assert await stream.closed() is None


@virtual
async def test_answers_come_as_soon_as_they_hold() -> None:
    async with World() as world:
        await world.create("slow", isr=(1, 2), min_isr=1)
        await world.create("quick")
        stream = world.produce_stream()
        stream.send(request(1, entry("slow", raw(b"a"))), request(2, entry("quick", raw(b"b"))))
        assert (await stream.next()).correlation_id == 2
        await world.change_isr("slow", 1)
        assert (await stream.next()).correlation_id == 1


@virtual
async def test_the_end_of_requests_comes_before_the_end_of_answers() -> None:
    async with World() as world:
        await world.create("orders", isr=(1, 2), min_isr=1)
        stream = world.produce_stream()
        stream.send(request(1, entry("orders", raw(b"a"))))
        stream.end()
        await settle()
        assert not stream.task.done()
        await world.change_isr("orders", 1)
        assert (await stream.next()).correlation_id == 1
        assert await stream.closed() is None


@virtual
async def test_a_request_that_is_refused_leaves_the_stream_as_it_was() -> None:
    async with World() as world:
        await world.create("orders")
        stream = world.produce_stream()
        stream.send(request(1), request(2, entry("orders", raw(b"a")), acks=99))
        for number in (1, 2):
            answer = await stream.next()
            assert answer.correlation_id == number
            assert isinstance(from_refusal(answer.refusal), InvalidArgumentError)
        world.has_room = False
        stream.send(request(3, entry("orders", raw(b"a"))))
        assert isinstance(refusal_in(await stream.next()), DiskFullError)
        world.has_room = True
        stream.send(request(4, entry("nothing", raw(b"a")), entry("orders", raw(b"b"))))
        nothing, orders = (await stream.next()).partitions
        assert isinstance(refusal_in(nothing), UnknownTopicError)
        assert orders.base_offset == 0


@virtual
async def test_a_message_that_is_none_ends_the_stream_when_all_is_answered() -> None:
    async with World() as world:
        await world.create("orders", isr=(1, 2), min_isr=1)
        stream = world.produce_stream()
        stream.send(request(1, entry("orders", raw(b"a"))), InvalidArgumentError("it does not parse"))
        await settle()
        assert not stream.task.done()
        await world.change_isr("orders", 1)
        assert (await stream.next()).correlation_id == 1
        assert isinstance(await stream.closed(), InvalidArgumentError)


@virtual
async def test_what_is_over_a_limit_is_refused_and_the_rest_goes_on() -> None:
    async with World(connection_bytes_max=50_000) as world:
        await world.create("orders")
        world.aside.hold()
        stream = world.produce_stream()
        stream.send(*[request(number, entry("orders", raw(bytes(30_000)))) for number in (1, 2)])
        busy = await stream.next()
        assert busy.correlation_id == 2
        error = refusal_in(busy)
        assert isinstance(error, LogBusyError)
        assert error.retry_after_ms is not None
        world.aside.let_go()
        assert (await stream.next()).correlation_id == 1
        stream.send(request(3, entry("orders", raw(bytes(30_000)))))
        assert (await stream.next()).partitions[0].base_offset == 1


@virtual
async def test_time_runs_out_for_each_request_on_its_own() -> None:
    async with World() as world:
        await world.create("slow", isr=(1, 2), min_isr=1)
        stream = world.produce_stream()
        began = asyncio.get_running_loop().time()
        stream.send(request(1, entry("slow", raw(b"a")), wait_ms_max=9_000))
        stream.send(request(2, entry("slow", raw(b"b")), wait_ms_max=3_000))
        for number, after_s in ((2, 3), (1, 9)):
            answer = await stream.next()
            assert answer.correlation_id == number
            assert isinstance(refusal_in(answer.partitions[0]), OutcomeUnknownError)
            assert asyncio.get_running_loop().time() - began == pytest.approx(after_s, abs=0.2)


@virtual
async def test_no_more_is_read_than_may_be_unanswered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce_stream, "UNANSWERED_MAX", 10)
    async with World() as world:
        await world.create("orders", isr=(1, 2), min_isr=1)
        stream = world.produce_stream()
        stream.send(*[request(number, entry("orders", raw(b"a"))) for number in range(30)])
        await settle()
        assert world.partition().writer.log.end_offset == 10
        await world.change_isr("orders", 1)
        assert [(await stream.next()).partitions[0].base_offset for _ in range(30)] == list(range(30))


@virtual
async def test_a_client_that_takes_no_answers_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce_stream, "UNANSWERED_MAX", 10)
    async with World() as world:
        await world.create("orders")
        call = Call()
        call.takes.clear()
        stream = world.produce_stream(call)
        stream.send(*[request(number, *[entry("nothing", raw(b"a"))] * 100) for number in range(30)])
        await settle()
        assert world.producing is not None
        assert 0 < world.memory.used_bytes < 11 * 500_000
        await asyncio.sleep(answers.STALL_S_MAX + 1)
        assert stream.task.cancelled()
        assert world.memory.used_bytes == 0
        assert (await world.store(b"a")).base_offset == 0


@virtual
async def test_clients_that_vanish_at_any_moment_leave_nothing_behind() -> None:
    async with World() as world:
        await world.create("orders", isr=(1, 2), min_isr=1)
        for turns in range(40):
            stream = world.produce_stream(Call(peer=f"ipv4:10.0.0.1:{turns}"))
            stream.send(*[request(number, entry("orders", raw(bytes(1_000)))) for number in range(3)])
            for _ in range(turns):
                await asyncio.sleep(0)
            await stream.hang_up()
        await settle()
        assert world.memory.used_bytes == 0
        assert [task.get_name() for task in asyncio.all_tasks() if "produce" in task.get_name()] == []


@virtual
async def test_a_stream_that_breaks_while_it_is_answered_ends() -> None:
    async with World() as world:
        await world.create("orders")
        call = Call()
        call.is_gone = True
        stream = world.produce_stream(call)
        stream.send(request(1, entry("orders", raw(b"a"))))
        await asyncio.wait([stream.task])
        assert stream.task.cancelled()


@virtual
async def test_stopping_answers_what_was_taken_and_takes_no_more() -> None:
    async with World() as world:
        await world.create("orders", isr=(1, 2), min_isr=1)
        stream = world.produce_stream()
        idle = world.produce_stream()
        stream.send(request(1, entry("orders", raw(b"a"))))
        await settle()
        world.streams.stop()
        stream.send(request(2, entry("orders", raw(b"b"))))
        assert isinstance(await idle.closed(), UnavailableError)
        assert not stream.task.done()
        await world.change_isr("orders", 1)
        assert (await stream.next()).correlation_id == 1
        assert isinstance(await stream.closed(), UnavailableError)
        assert isinstance(await world.produce_stream().closed(), UnavailableError)
        [fetched] = await world.fetch(at())
        assert values_of(fetched) == [b"a"]


@virtual
async def test_acks_none_is_answered_at_once() -> None:
    async with World() as world:
        await world.create("orders")
        world.aside.hold()
        stream = world.produce_stream()
        stream.send(request(1, entry("orders", raw(b"a")), acks=durability_pb2.ACKS_NONE))
        assert (await stream.next()).partitions[0].base_offset == -1


@virtual
async def test_reading_from_a_call_that_is_over_is_its_end() -> None:
    async with World() as world:
        stream = world.produce_stream()
        stream.send(grpc.aio.UsageError("RPC already finished."))
        assert await stream.closed() is None
