"""Controllers for tests of brokers: the real services on a quorum without disk or network, called without gRPC."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, Final

from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from quire.errors import InvalidArgumentError, OutcomeUnknownError, QuireError, UnavailableError
from quire.v1 import controller_pb2
from quire_broker.ports import CallMetadata
from tests.unit.controller_service_harness import Services, called_by

_METHODS: Final = {
    f"/{service.full_name}/{method.name}": method
    for service in controller_pb2.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


class LocalMember:
    """Implements `quire_broker.ports.ControllerMember`, and fails as it is told."""

    def __init__(self, address: str, services: Services, *, node_id: str | None = None) -> None:
        self.address = address
        self.services = services
        self.refusal: QuireError | None = None
        """What every call is answered with, nothing being done."""
        self.loses_answers = False
        """Everything is carried out, and nobody is told."""
        self.is_frozen = False
        """Nothing is carried out and nothing answered; streams say nothing more."""
        self.streams_frozen = False
        """Only the last."""
        self.answer_delay_s = 0.0
        self.calls: list[tuple[str, bytes]] = []
        self.metadata: list[CallMetadata] = []
        self._node_id = node_id
        self._closed = asyncio.Event()
        self._streams: dict[asyncio.Task[None], asyncio.Queue[bytes | QuireError]] = {}

    def fail(
        self,
        *,
        refusal: QuireError | None = None,
        loses_answers: bool = False,
        is_frozen: bool = False,
        streams_frozen: bool = False,
        answer_delay_s: float = 0,
    ) -> None:
        """From now on, also for streams that are open: they end, or say nothing more."""
        self.refusal, self.loses_answers, self.is_frozen = refusal, loses_answers, is_frozen
        self.streams_frozen, self.answer_delay_s = streams_frozen or is_frozen, answer_delay_s
        for pump, answers in self._streams.items():
            if refusal is not None or self.streams_frozen:
                pump.cancel()
            if refusal is not None:
                while not answers.empty():
                    answers.get_nowait()
                answers.put_nowait(refusal)

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    def named(self, name: str) -> list[bytes]:
        """The requests of a method that came."""
        return [request for path, request in self.calls if path.endswith(f"/{name}")]

    async def call(self, method: str, request: bytes, *, timeout_s: float, metadata: CallMetadata = ()) -> bytes:
        if self._closed.is_set():
            raise UnavailableError("closed")
        self.calls.append((method, request))
        self.metadata.append(metadata)
        if self.refusal is not None:
            raise self.refusal
        context = contextvars.copy_context()
        context.run(called_by, self._node_id, within_s=timeout_s)
        serving = asyncio.create_task(self._serve(method, request), context=context)
        closing = asyncio.create_task(self._closed.wait())
        try:
            await asyncio.wait([serving, closing], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if not serving.done() or self.loses_answers:
                raise OutcomeUnknownError("no answer")
            return serving.result().SerializeToString()
        finally:
            closing.cancel()
            if self.loses_answers:
                await asyncio.wait([serving])
            serving.cancel()

    async def _serve(self, method: str, request: bytes) -> Message:
        if self.is_frozen:
            await asyncio.get_running_loop().create_future()
        answer: Message = await self._handler(method)(_parsed(method, request), None)
        await asyncio.sleep(self.answer_delay_s)
        return answer

    def _handler(self, method: str) -> Any:
        service = self.services.admin if "Admin" in method else self.services.brokers
        return getattr(service, method.rpartition("/")[2])

    async def stream(self, method: str, request: bytes) -> AsyncGenerator[bytes, None]:
        if self.refusal is not None or self._closed.is_set():
            raise self.refusal or UnavailableError("closed")
        self.calls.append((method, request))
        answers: asyncio.Queue[bytes | QuireError] = asyncio.Queue(maxsize=1)
        pump = asyncio.create_task(self._pump(method, request, answers))
        self._streams[pump] = answers
        try:
            while True:
                answer = await answers.get()
                if isinstance(answer, QuireError):
                    raise answer
                yield answer
        finally:
            del self._streams[pump]
            pump.cancel()

    async def _pump(self, method: str, request: bytes, answers: asyncio.Queue[bytes | QuireError]) -> None:
        if self.streams_frozen:
            return
        try:
            async with aclosing(self._handler(method)(_parsed(method, request), None)) as served:
                async for answer in served:
                    await answers.put(answer.SerializeToString())
        except QuireError as error:
            await answers.put(error)

    async def close(self) -> None:
        self._closed.set()
        self.fail(refusal=UnavailableError("closed"))


def local_members(services: Services, *addresses: str) -> list[LocalMember]:
    """Members of one quorum."""
    return [LocalMember(address, services) for address in addresses]


async def until(condition: Callable[[], bool], *, within_s: float = 20) -> None:
    """Wait for it, looking at every turn of the loop for a while and then less often."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not condition():
        assert loop.time() - began < within_s, "it did not come about"
        await asyncio.sleep(0 if loop.time() - began < 0.1 else 0.005)


def sent(members: Sequence[LocalMember], name: str) -> list[bytes]:
    """The requests of a method that came to any of them."""
    return [request for member in members for request in member.named(name)]


def _parsed(method: str, request: bytes) -> Message:
    try:
        return GetMessageClass(_METHODS[method].input_type).FromString(request)
    except DecodeError as error:
        raise InvalidArgumentError("the request does not parse") from error
