"""The interceptor before every method: who gets through, under which context, and how errors leave."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from quire.errors import (
    InvalidArgumentError,
    InvariantViolation,
    LogBusyError,
    OutcomeUnknownError,
    QuireError,
    Status,
    UnavailableError,
    UnknownTopicError,
)
from quire.process.rpc import gate as gate_module
from quire.process.rpc.context import RequestContext, current
from quire.process.rpc.gate import Gate, Limits
from quire.rpc_errors import from_rpc_error
from quire.v1 import options_pb2, topics_pb2

Message = topics_pb2.TopicPartition
CALL, STREAM, NOBODY_DECIDED = (
    "/planted.v1.Service/Call",
    "/planted.v1.Service/Stream",
    "/planted.v1.Service/Undecided",
)
PERMISSIONS = {CALL: options_pb2.PERMISSION_NONE, STREAM: options_pb2.PERMISSION_TOPIC_READ}


class Planted:
    """A service of two methods, and one whose permission nobody has decided."""

    def __init__(self, gate: Gate, channel: grpc.aio.Channel, ended: list[tuple[str, str]]) -> None:
        self.gate = gate
        self.channel = channel
        self.ended = ended

    def call(self, body: bytes = b"", *, method: str = CALL, **options: Any) -> Any:
        multi: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self.channel.unary_unary(method)
        return multi(body, **options)

    def stream(self, **options: Any) -> Any:
        multi: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = self.channel.unary_stream(STREAM)
        return multi(b"", **options)


@asynccontextmanager
async def planted(
    folder: Path, behaviour: Callable[[Message, Any], Any], *, limits: Limits | None = None
) -> AsyncIterator[Planted]:
    ended: list[tuple[str, str]] = []
    gate = Gate(
        PERMISSIONS,
        cluster_id="c",
        listener="inside",
        limits=limits,
        observer=lambda method, status, seconds: ended.append((method, status)),
    )
    server = grpc.aio.server(interceptors=[gate])
    kinds: dict[str, Any] = {
        "request_deserializer": Message.FromString,
        "response_serializer": Message.SerializeToString,
    }
    handlers: dict[str, Any] = {
        "Call": grpc.unary_unary_rpc_method_handler(behaviour, **kinds),
        "Undecided": grpc.unary_unary_rpc_method_handler(behaviour, **kinds),
        "Stream": grpc.unary_stream_rpc_method_handler(behaviour, **kinds),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("planted.v1.Service", handlers),))
    address = f"unix:{folder}/socket"
    server.add_insecure_port(address)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            yield Planted(gate, channel, ended)
    finally:
        await server.stop(None)


async def answer(request: Message, context: object) -> Message:
    return Message(partition=request.partition + 1)


async def refused(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def becomes_zero(count: Callable[[], int]) -> None:
    for _ in range(10_000):
        if not count():
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"still {count()}")


async def test_declared_method_is_called(tmp_path: Path) -> None:
    async with planted(tmp_path, answer) as service:
        response = await service.call(Message(partition=4).SerializeToString())
        assert Message.FromString(response).partition == 5
        await becomes_zero(lambda: len(service.ended) - 1)  # it is counted after the answer has left
        assert service.ended == [(CALL, "OK")]


async def test_method_without_a_permission_is_refused(tmp_path: Path) -> None:
    async with planted(tmp_path, answer) as service:
        error = await refused(service.call(method=NOBODY_DECIDED))
        assert error.code() == grpc.StatusCode.PERMISSION_DENIED
        assert NOBODY_DECIDED in (error.details() or "")
        await becomes_zero(lambda: len(service.ended) - 1)  # it is counted after the answer has left
        assert service.ended == [(NOBODY_DECIDED, "PERMISSION_DENIED")]
        assert from_rpc_error(error).status is Status.PERMISSION_DENIED
        error = await refused(service.call(method="/planted.v1.Service/Nothing"))
        assert error.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_handler_knows_who_asks_and_by_when(tmp_path: Path) -> None:
    seen: list[tuple[RequestContext, float]] = []

    async def look(request: Message, context: object) -> Message:
        seen.append((current(), current().deadline - asyncio.get_running_loop().time()))
        return Message()

    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with planted(tmp_path, look, limits=Limits(call_ms_max=5_000)) as service:
        await service.call(metadata=(("quire-client-id", "cli"), ("traceparent", trace)), timeout=60)
        await service.call(metadata=(("quire-client-id", "c" * 500), ("traceparent", "nonsense")))
    (asked, within_s), (unasked, default_s) = seen
    assert (asked.principal, asked.node_id, asked.tenant) == ("default", None, "default")
    assert (asked.client_id, asked.listener, asked.trace) == ("cli", "inside", trace)
    assert 50 < within_s < 60
    assert (len(unasked.client_id), unasked.trace) == (128, None)
    assert 4 < default_s <= 5


async def test_our_errors_leave_with_their_details(tmp_path: Path) -> None:
    async def refuse(request: Message, context: object) -> Message:
        raise UnknownTopicError("there is none", topic="t", retry_after_ms=70)

    async with planted(tmp_path, refuse) as service:
        error = from_rpc_error(await refused(service.call()))
        assert type(error) is UnknownTopicError
        assert (error.message, error.details, error.retry_after_ms) == ("there is none", {"topic": "t"}, 70)
        await becomes_zero(lambda: len(service.ended) - 1)  # it is counted after the answer has left
        assert service.ended == [(CALL, "NOT_FOUND")]


async def test_other_errors_are_an_unknown_outcome(tmp_path: Path) -> None:
    async def fail(request: Message, context: object) -> Message:
        raise ValueError("secret")

    async with planted(tmp_path, fail) as service:
        error = await refused(service.call())
        assert error.code() == grpc.StatusCode.INTERNAL
        assert "secret" not in (error.details() or "")
        assert isinstance(from_rpc_error(error), OutcomeUnknownError)
        await becomes_zero(lambda: len(service.ended) - 1)  # it is counted after the answer has left
        assert service.ended == [(CALL, "INTERNAL")]


async def test_broken_invariant_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fatal: list[BaseException] = []

    def fail_fast(error: BaseException) -> None:
        fatal.append(error)
        raise UnavailableError("the process has ended")

    async def violate(request: Message, context: object) -> Message:
        raise InvariantViolation("broken")

    monkeypatch.setattr(gate_module, "fail_fast", fail_fast)
    async with planted(tmp_path, violate) as service:
        await refused(service.call())
    assert [str(error) for error in fatal] == ["broken"]


async def test_bytes_that_do_not_parse(tmp_path: Path) -> None:
    async with planted(tmp_path, answer) as service:
        assert isinstance(from_rpc_error(await refused(service.call(b"\xff"))), InvalidArgumentError)


async def test_one_call_too_many_is_told_to_come_back(tmp_path: Path) -> None:
    inside, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def wait(request: Message, context: object) -> Message:
        inside.release()
        await go_on.wait()
        return Message()

    async with planted(tmp_path, wait, limits=Limits(calls_max=2)) as service:
        first = [asyncio.ensure_future(service.call()) for _ in range(2)]
        for _ in first:
            await inside.acquire()
        error = from_rpc_error(await refused(service.call()))
        assert isinstance(error, LogBusyError)
        assert error.retry_after_ms == 200
        go_on.set()
        await asyncio.gather(*first)
        await service.call()
        assert service.gate.call_count == 0


async def test_caller_who_hangs_up_frees_his_place(tmp_path: Path) -> None:
    inside, cancelled = asyncio.Event(), asyncio.Event()

    async def wait(request: Message, context: object) -> Message:
        inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return Message()

    async with planted(tmp_path, wait) as service:
        call = service.call()
        asking = asyncio.ensure_future(call)
        await inside.wait()
        call.cancel()
        await cancelled.wait()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await becomes_zero(lambda: service.gate.call_count)


async def test_streams_have_a_limit_of_their_own(tmp_path: Path) -> None:
    async def count(request: Message, context: object) -> AsyncIterator[Message]:
        for number in range(3):
            yield Message(partition=number)
        await asyncio.Event().wait()

    async with planted(tmp_path, count, limits=Limits(streams_max=1)) as service:
        first = service.stream()
        assert [Message.FromString(await first.read()).partition for _ in range(3)] == [0, 1, 2]
        error = from_rpc_error(await refused(service.stream().read()))
        assert isinstance(error, LogBusyError)
        first.cancel()
        await becomes_zero(lambda: service.gate.stream_count)


async def test_stream_that_fails_says_why(tmp_path: Path) -> None:
    async def fail(request: Message, context: object) -> AsyncIterator[Message]:
        yield Message(partition=1)
        raise UnavailableError("no more", leader="c2")

    async with planted(tmp_path, fail) as service:
        stream = service.stream()
        await stream.read()
        error = from_rpc_error(await refused(stream.read()))
        assert isinstance(error, UnavailableError)
        assert error.details == {"leader": "c2"}


async def test_reader_who_takes_nothing_is_given_up(tmp_path: Path) -> None:
    closed = asyncio.Event()
    made = 0

    async def flood(request: Message, context: object) -> AsyncIterator[Message]:
        nonlocal made
        try:
            while True:
                made += 1
                yield Message(topic_id=bytes(1 << 20))
        finally:
            closed.set()

    async with planted(tmp_path, flood, limits=Limits(stall_ms_max=200)) as service:
        stream = service.stream()
        began = time.monotonic()
        await asyncio.wait_for(closed.wait(), timeout=30)
        assert time.monotonic() - began >= 0.2
        assert made < 50, "it was made although nobody took it"
        await becomes_zero(lambda: service.gate.stream_count)
        error: QuireError | None = None
        try:
            while await stream.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as ended:
            error = from_rpc_error(ended)
        assert error is not None
