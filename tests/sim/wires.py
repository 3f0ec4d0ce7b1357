"""Calls between simulated hosts, in place of gRPC: in order between two hosts, held up by cuts, lost with a host."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

from quire.errors import OutcomeUnknownError, QuireError, UnavailableError
from quire.link.sim import SimNetwork
from quire.process.rpc import context as request_context
from quire_broker.ports import CallMetadata

Unary = Callable[[str, bytes], Awaitable[bytes]]
Streaming = Callable[[str, bytes], AsyncIterator[bytes]]
BROKEN_S = 0.01


class Service:
    """What a running process answers, on its loop."""

    def __init__(self, loop: Any, unary: Unary, streaming: Streaming) -> None:
        self.loop = loop
        self.unary = unary
        self.streaming = streaming


class _Wire:
    """One direction between two hosts."""

    def __init__(self, network: SimNetwork, source: str, target: str) -> None:
        self._network = network
        self._source, self._target = source, target
        self._items: deque[tuple[float, Callable[[], object]]] = deque()
        self._last = 0.0

    def put(self, arrive: Callable[[], object]) -> None:
        now = self._network.scheduler.time()
        self._last = max(self._last, now + self._network.delay_s())
        self._items.append((self._last, arrive))
        self._network.scheduler.call_later(self._last - now, self.pump)

    def pump(self) -> None:
        now = self._network.scheduler.time()
        while self._items and self._items[0][0] <= now and not self._network.is_cut(self._source, self._target):
            _, arrive = self._items.popleft()
            self._network.host(self._target).run(arrive)


class Wires:
    def __init__(self, network: SimNetwork, is_answer_lost: Callable[[str], bool] = lambda _: False) -> None:
        """`is_answer_lost` is asked, by the method, whether a call that was served ends without its answer."""
        self._network = network
        self._is_answer_lost = is_answer_lost
        self._wires: dict[tuple[str, str], _Wire] = {}
        self._services: dict[str, Service] = {}
        self._waiting: dict[str, dict[int, Callable[[QuireError], None]]] = {}
        """By host that was asked: whom to tell if it dies."""
        self._numbers = itertools.count()

    def serve(self, host: str, service: Service) -> None:
        self._services[host] = service

    def on_crash(self, host: str) -> None:
        self._services.pop(host, None)
        for fail in list(self._waiting.pop(host, {}).values()):
            fail(OutcomeUnknownError(f"the connection to {host} broke"))

    def on_heal(self) -> None:
        for wire in list(self._wires.values()):
            wire.pump()

    def _send(self, source: str, target: str, arrive: Callable[[], object]) -> None:
        if (source, target) not in self._wires:
            self._wires[source, target] = _Wire(self._network, source, target)
        self._wires[source, target].put(arrive)

    async def call(self, source: str, target: str, method: str, request: bytes, *, timeout_s: float) -> bytes:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()
        number = next(self._numbers)
        life = self._network.host(source).life

        def reply(outcome: bytes | QuireError) -> None:
            if self._network.host(source).life != life or answer.done():
                return
            if isinstance(outcome, QuireError):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)

        def send_back(outcome: bytes | QuireError) -> None:
            self._waiting.get(target, {}).pop(number, None)
            self._send(target, source, lambda: reply(outcome))

        def arrive() -> None:
            service = self._services.get(target)
            if service is None:
                send_back(UnavailableError(f"no connection to {target}"))
                return
            self._waiting.setdefault(target, {})[number] = send_back
            there = service.loop

            async def handle() -> None:
                request_context.enter(_context(there.time() + timeout_s))
                try:
                    outcome: bytes | QuireError = await service.unary(method, request)
                except QuireError as error:
                    outcome = error
                if self._is_answer_lost(method):
                    outcome = OutcomeUnknownError(f"the connection to {target} broke before it answered")
                send_back(outcome)

            there.enter(lambda: there.create_task(handle(), name=method))

        self._send(source, target, arrive)
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError as error:
            raise OutcomeUnknownError(f"{target} did not answer {method} in time") from error

    async def stream(self, source: str, target: str, method: str, request: bytes) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[bytes | QuireError] = asyncio.Queue()
        number = next(self._numbers)
        life = self._network.host(source).life
        over = False

        def got(item: bytes | QuireError) -> None:
            if self._network.host(source).life == life and not over:
                loop.enter(lambda: queue.put_nowait(item))  # type: ignore[attr-defined]

        def send_back(item: bytes | QuireError) -> None:
            self._send(target, source, lambda: got(item))

        def arrive() -> None:
            service = self._services.get(target)
            if service is None:
                send_back(UnavailableError(f"no connection to {target}"))
                return
            self._waiting.setdefault(target, {})[number] = send_back
            there = service.loop

            async def handle() -> None:
                request_context.enter(_context(there.time() + 30))
                try:
                    async for item in service.streaming(method, request):
                        if over:
                            return
                        send_back(item)
                except QuireError as error:
                    send_back(error)
                finally:
                    self._waiting.get(target, {}).pop(number, None)

            there.enter(lambda: there.create_task(handle(), name=method))

        self._send(source, target, arrive)
        try:
            while True:
                item = await queue.get()
                if isinstance(item, QuireError):
                    raise item
                yield item
        finally:
            over = True


def _context(deadline: float) -> request_context.RequestContext:
    return request_context.RequestContext(
        principal=request_context.DEFAULT_PRINCIPAL,
        node_id=None,
        tenant=request_context.DEFAULT_TENANT,
        client_id="",
        listener="client",
        deadline=deadline,
        trace=None,
    )


class WireMember:
    """Implements `quire_broker.ports.ControllerMember`."""

    def __init__(self, wires: Wires, source: str, target: str) -> None:
        self._wires, self._source, self._target = wires, source, target
        self.address = f"{target}:7401"

    async def call(self, method: str, request: bytes, *, timeout_s: float, metadata: CallMetadata = ()) -> bytes:
        return await self._wires.call(self._source, self._target, method, request, timeout_s=timeout_s)

    def stream(self, method: str, request: bytes) -> AsyncGenerator[bytes, None]:
        return self._wires.stream(self._source, self._target, method, request)

    async def close(self) -> None:
        """Nothing is kept open."""
