"""The one interceptor. Nothing reaches a handler but through it, and no error leaves but in the contract's form.

    call ──► permission declared? ──► certificate of this cluster? ──► room? ──► parse ──► handler
                  └─ PERMISSION_DENIED     └─ UNAUTHENTICATED              └─ RESOURCE_EXHAUSTED, try again later

| a handler raises | the caller gets |
|---|---|
| QuireError | its status, with ErrorInfo and RetryInfo |
| InvariantViolation | nothing: the process ends at once |
| anything else | INTERNAL without details, so an unknown outcome; the log has the rest |
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from quire.errors import (
    InvalidArgumentError,
    InvariantViolation,
    LogBusyError,
    OutcomeUnknownError,
    PeerRefusedError,
    QuireError,
)
from quire.process import logs
from quire.process.rpc import context as request_context
from quire.process.rpc.permissions import UNDECLARED, Permission
from quire.process.run import fail_fast
from quire.rpc_errors import abort

OK: Final = "OK"

_log = logs.get("rpc")
_failures = logs.Throttled(_log)

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Behaviour = Callable[[Any, Any], Any]
ServicerContext: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Observer = Callable[[str, str, float], None]
"""Told of each call that ended: method, status, seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    calls_max: int = 1_000
    """Calls that are answered once and are served at the same time."""
    streams_max: int = 1_024
    """The same, for calls that are answered again and again, perhaps for ever."""
    call_ms_max: int = 30_000
    """How long a call without a deadline may take."""
    stall_ms_max: int = 15_000
    """A caller that does not take the next message of a stream for so long has gone, or does not read."""


class Gate(grpc.aio.ServerInterceptor):
    def __init__(
        self,
        permissions: Mapping[str, Permission],
        *,
        cluster_id: str,
        listener: str,
        limits: Limits | None = None,
        observer: Observer = lambda method, status, seconds: None,
    ) -> None:
        """`permissions` are those of all methods that may be called; `listener` is where the calls come from."""
        self._permissions = permissions
        self._cluster_id = cluster_id
        self._listener = listener
        self._limits = limits or Limits()
        self._observer = observer
        self._handlers: dict[str, Handler] = {}
        self.call_count = 0
        self.stream_count = 0

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        method = handler_call_details.method
        guarded = self._handlers.get(method)
        if guarded is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None  # there is no such method; what callers invent is not remembered
            guarded = self._handlers[method] = self._guarded(method, handler)
        return guarded

    def _guarded(self, method: str, handler: Handler) -> Handler:
        parse: Callable[[bytes], object] | None = handler.request_deserializer
        # Only what is sent as one message is parsed here: a stream's messages reach the handler parsed.
        raw = None if handler.request_streaming else parse
        behaviour: Behaviour | None = (
            handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        )
        if behaviour is None:
            raise InvariantViolation(f"{method} has no handler")
        serve = self._serve_stream if handler.response_streaming else self._serve_call

        async def run(request: Any, context: ServicerContext) -> Any:
            return await self._run(method, context, lambda: serve(behaviour, _parsed(raw, request), context))

        make = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }[handler.request_streaming, handler.response_streaming]
        made: Handler = make(
            run,
            request_deserializer=parse if handler.request_streaming else None,
            response_serializer=handler.response_serializer,
        )
        return made

    # -- one call --------------------------------------------------------------------------------------------------

    async def _run(self, method: str, context: ServicerContext, serve: Callable[[], Awaitable[Any]]) -> Any:
        clock = asyncio.get_running_loop().time
        began = clock()
        status = OK
        try:
            await self._admit(method, context, now=began)
            return await serve()
        except QuireError as error:
            status = error.status.name
            await abort(context, error)
        except InvariantViolation as error:
            fail_fast(error)
        except grpc.aio.AbortError:
            status = context.code().name if context.code() else "UNKNOWN"
            raise
        except asyncio.CancelledError:
            status = "CANCELLED"
            raise
        except Exception as error:
            status = "INTERNAL"
            _failures.warning("a call failed unexpectedly", key=(method, type(error)), method=method, exc_info=error)
            # Without details: nobody knows how far it came, and that is what a client makes of it.
            await context.abort(grpc.StatusCode.INTERNAL, "an unexpected error, which the server's log describes")
        finally:
            self._observer(method, status, clock() - began)

    async def _admit(self, method: str, context: ServicerContext, *, now: float) -> None:
        """Let the call in, under a context of its own, or end it."""
        if self._permissions.get(method, UNDECLARED) == UNDECLARED:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{method} declares no permission")
        try:
            node = request_context.caller(context)
        except PeerRefusedError as error:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, error.message)
        if node is not None and node.cluster_id != self._cluster_id:
            text = f"the certificate is of cluster '{node.cluster_id}', and this is '{self._cluster_id}'"
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, text)
        client_id, trace = request_context.metadata_of(context)
        request_context.enter(
            request_context.RequestContext(
                principal=request_context.DEFAULT_PRINCIPAL if node is None else f"node:{node.node_id}",
                node_id=None if node is None else node.node_id,
                tenant=request_context.DEFAULT_TENANT,
                client_id=client_id,
                listener=self._listener,
                deadline=self._deadline(context, now),
                trace=trace,
            )
        )

    def _deadline(self, context: ServicerContext, now: float) -> float:
        remaining: float | None = context.time_remaining()
        if remaining is None:
            return now + self._limits.call_ms_max / 1000
        # A little early, so that what we have to say about it arrives before the caller has hung up.
        return now + max(0.0, remaining - min(0.1, remaining / 10))

    async def _serve_call(self, behaviour: Behaviour, request: Any, context: ServicerContext) -> Any:
        if self.call_count >= self._limits.calls_max:
            raise _busy("calls", self.call_count)
        self.call_count += 1
        try:
            return await behaviour(request, context)
        finally:
            self.call_count -= 1

    async def _serve_stream(self, behaviour: Behaviour, request: Any, context: ServicerContext) -> None:
        if self.stream_count >= self._limits.streams_max:
            raise _busy("streams", self.stream_count)
        self.stream_count += 1
        try:
            answers = behaviour(request, context)
            if inspect.isasyncgen(answers):
                await self._send_all(answers, context)
            else:
                await answers  # it writes by itself
        finally:
            self.stream_count -= 1

    async def _send_all(self, answers: AsyncIterator[Any], context: ServicerContext) -> None:
        async with aclosing(answers):  # type: ignore[type-var]  # whoever calls has seen that it is a generator
            async for answer in answers:
                try:
                    async with asyncio.timeout(self._limits.stall_ms_max / 1000):
                        await context.write(answer)
                except TimeoutError as error:
                    raise OutcomeUnknownError(
                        f"nobody took a message of this stream for {self._limits.stall_ms_max} ms"
                    ) from error


def _parsed(parse: Callable[[bytes], object] | None, request: Any) -> Any:
    if parse is None:
        return request
    try:
        return parse(request)
    except DecodeError as error:
        raise InvalidArgumentError("the request does not parse as the method's message") from error


def _busy(what: str, count: int) -> LogBusyError:
    return LogBusyError(f"{count} {what} are being served, as many as may; try again later", retry_after_ms=200)
