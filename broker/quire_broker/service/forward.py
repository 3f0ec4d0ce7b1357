"""ControllerAdminService at a broker: each call is passed on to the controllers, so that people need one address."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import grpc

from quire.errors import InvalidArgumentError, LogBusyError
from quire.process.rpc.context import CLIENT_ID_KEY, TRACE_KEY, current
from quire.v1 import controller_pb2
from quire_broker.ports import Controllers
from quire_broker.service.answers import COPIES, Answers, CallContext

SERVICE: Final = controller_pb2.DESCRIPTOR.services_by_name["ControllerAdminService"]
REQUEST_BYTES_MAX: Final = 2 * 1024 * 1024
"""No quorum can be set to take a larger command. One that refuses without a word would be asked again and again."""
CALLS_MAX: Final = 100
"""Calls that are passed on at once: when no controller answers, each takes as long as it may."""
RETRY_AFTER_MS: Final = 200


class Forwarding:
    def __init__(self, controllers: Controllers, answers: Answers) -> None:
        self._controllers = controllers
        self._answers = answers
        self._count = 0

    def handlers(self) -> grpc.GenericRpcHandler:
        """Serves all methods as bytes: a broker need not know what a newer controller is asked."""
        return grpc.method_handlers_generic_handler(
            SERVICE.full_name,
            {
                method.name: grpc.unary_unary_rpc_method_handler(self._pass_on(method.name))
                for method in SERVICE.methods
            },
        )

    def _pass_on(self, method: str) -> Callable[[bytes, CallContext], Awaitable[bytes]]:
        async def behaviour(request: bytes, context: CallContext) -> bytes:
            return await self.forward(method, request, context)

        return behaviour

    async def forward(self, method: str, request: bytes, context: CallContext) -> bytes:
        if len(request) > REQUEST_BYTES_MAX:
            raise InvalidArgumentError(f"a request of {len(request)} bytes is over the limit of {REQUEST_BYTES_MAX}")
        if self._count >= CALLS_MAX:
            raise LogBusyError(
                f"{self._count} calls wait for the controllers; try again later", retry_after_ms=RETRY_AFTER_MS
            )
        mine, caller = current(), self._answers.caller(context)
        metadata = [(CLIENT_ID_KEY, mine.client_id)] if mine.client_id else []
        if mine.trace is not None:
            metadata.append((TRACE_KEY, mine.trace))
        self._count += 1
        try:
            await self._answers.room(caller, deadline=mine.deadline)
            timeout_s = max(0.0, mine.deadline - asyncio.get_running_loop().time())
            answer = await self._controllers.forward(method, request, timeout_s=timeout_s, metadata=metadata)
        finally:
            self._count -= 1
        self._answers.keep(caller, self._answers.lend(caller, COPIES * len(answer)))
        return answer
