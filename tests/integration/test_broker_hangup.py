"""Hanging up frees a call whose caller takes nothing, at once and without a search for cycles; gRPC alone would not.

If a test fails after an update of gRPC, its server has come to run handlers in another way: see `service.hangup`.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc.aio
import pytest
import uvloop

from quire_broker.service import hangup

MESSAGE: Final = bytes(4 * 1024 * 1024)
KEPT: Final = 2
"""Calls that are over and stay in variables of gRPC's own loop until others take their place. It may be none."""
LOOPS: Final = [asyncio.new_event_loop, uvloop.new_event_loop]


def calls() -> int:
    """How many there are in gRPC's server."""
    return sum(type(each).__name__ == "RPCState" for each in gc.get_objects())


def run(main: Callable[[], Awaitable[None]], loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def guarded() -> None:
        async with asyncio.timeout(60):
            await main()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(guarded())


@pytest.fixture(autouse=True)
def no_search_for_cycles() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Handlers:
    def __init__(self) -> None:
        self.handling: list[asyncio.Task[Any]] = []
        self.returned = asyncio.Event()
        self.written = 0

    async def stream(self, request: object, context: Any) -> None:
        """As streams of a broker are served: by a task group, and until nobody takes any more."""
        task = asyncio.current_task()
        assert task is not None
        self.handling.append(task)
        await hangup.untraced(self._write(context))

    async def _write(self, context: Any) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.Event().wait())
            while True:
                await context.write(MESSAGE)
                self.written += 1

    async def call(self, request: object, context: object) -> bytes:
        task = asyncio.current_task()
        assert task is not None
        self.handling.append(task)
        self.returned.set()
        return MESSAGE


@asynccontextmanager
async def serving(handlers: Handlers) -> AsyncIterator[grpc.aio.Channel]:
    before = calls()
    server = grpc.aio.server()
    methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Stream": grpc.unary_stream_rpc_method_handler(handlers.stream),
        "Call": grpc.unary_unary_rpc_method_handler(handlers.call),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await until(lambda: calls() > before)  # it makes room for the first call in a turn of its own
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            yield channel
    finally:
        await server.stop(None)


async def stands_still(handlers: Handlers) -> None:
    """Wait until nothing is taken any more."""
    before = -1
    while before != handlers.written or not handlers.handling:
        before = handlers.written
        await asyncio.sleep(0.3)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # what gRPC lets go of tells nobody
        await asyncio.sleep(0.01)


async def read_to_end(call: grpc.aio.UnaryStreamCall[bytes, bytes]) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


@pytest.mark.parametrize("loop", LOOPS)
def test_streams_are_gone_when_they_are_hung_up_on(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def main() -> None:
        hangup.install(asyncio.get_running_loop())
        handlers = Handlers()
        async with serving(handlers) as channel:
            before = calls()
            opened: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream("/t/Stream")
            unread = [opened(b"") for _ in range(5)]
            await until(lambda: len(handlers.handling) == 5)
            await stands_still(handlers)
            assert calls() == before + 5
            for task in handlers.handling:
                hangup.hang_up(task)
            await until(lambda: calls() <= before + KEPT)
            with pytest.raises(grpc.aio.AioRpcError) as found:
                await read_to_end(unread[0])
            assert found.value.code() == grpc.StatusCode.CANCELLED

    run(main, loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_answers_of_calls_too(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def main() -> None:
        hangup.install(asyncio.get_running_loop())
        handlers = Handlers()
        async with serving(handlers) as channel:
            before = calls()
            # Nobody reads what a stream brings before it is asked for: a call's answer would be taken at once.
            opened: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream("/t/Call")
            unread = [opened(b"") for _ in range(40)]
            await until(lambda: len(handlers.handling) == 40)
            stuck = [task for task in handlers.handling if not task.done()]
            for task in stuck:
                hangup.hang_up(task)
            await until(lambda: calls() <= before + KEPT)
            assert len(unread) == 40

    run(main, loop)


def test_to_end_the_handler_alone_frees_nothing() -> None:
    """What this is for. Should it fail one day, gRPC does by itself what is done here."""

    async def main() -> None:
        handlers = Handlers()
        async with serving(handlers) as channel:
            before = calls()
            opened: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream("/t/Stream")
            unread = [opened(b"") for _ in range(3)]
            await until(lambda: len(handlers.handling) == 3)
            await stands_still(handlers)
            for task in handlers.handling:
                task.cancel()
            await until(lambda: all(task.done() for task in handlers.handling))
            gc.collect()
            assert calls() == before + 3
            for call in unread:
                call.cancel()

    run(main, asyncio.new_event_loop)
