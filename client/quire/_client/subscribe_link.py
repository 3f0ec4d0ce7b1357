"""One broker's Subscribe stream: records come in, and what the broker is to send goes out."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

import grpc.aio

from quire._client import tasks
from quire._client.cluster import Cluster
from quire._client.intake import SubscribeOrders
from quire._client.reading import Stream
from quire.errors import OutcomeUnknownError, QuireError, UnavailableError
from quire.rpc_errors import from_rpc_error
from quire.v1 import broker_pb2, broker_pb2_grpc

SILENCE_S_MAX: Final = 5.0
"""A broker says something every second; one that does not has hung, or is cut off."""
ADDED_MAX: Final = 1_000
"""Partitions in one message."""

_Call: TypeAlias = "grpc.aio.StreamStreamCall[broker_pb2.SubscribeRequest, broker_pb2.SubscribeResponse]"


class SubscribeLink:
    """To be used on one event loop. A new one is made when this one has ended."""

    def __init__(
        self,
        cluster: Cluster,
        stream: Stream,
        start: broker_pb2.SubscribeStart,
        *,
        received: Callable[[Stream, broker_pb2.SubscribeResponse], object],
        ended: Callable[[SubscribeLink, QuireError], object],
    ) -> None:
        self.stream = stream
        self.heard = False
        """Whether the broker ever said anything."""
        self._cluster = cluster
        self._received = received
        self._ended = ended
        self._orders: deque[broker_pb2.SubscribeRequest] = deque([broker_pb2.SubscribeRequest(start=start)])
        self._something = asyncio.Event()
        self._running = tasks.start(self._run(), name=f"quire-subscribe-{stream.broker_id}")

    def tell(self, orders: SubscribeOrders) -> None:
        """In this order: what is read no more makes room for what is."""
        put = self._orders.append
        if orders.removed:
            put(broker_pb2.SubscribeRequest(remove=broker_pb2.SubscribeRemove(correlation_ids=orders.removed)))
        for first in range(0, len(orders.added), ADDED_MAX):
            some = orders.added[first : first + ADDED_MAX]
            put(broker_pb2.SubscribeRequest(add=broker_pb2.SubscribeAdd(partitions=some)))
        if orders.credit_bytes:
            put(broker_pb2.SubscribeRequest(credit_bytes=orders.credit_bytes))
        self._something.set()

    async def close(self) -> None:
        self._running.cancel()
        await asyncio.wait([self._running])

    async def _run(self) -> None:
        try:
            await self._talk()
            error: QuireError = UnavailableError(f"broker {self.stream.broker_id} ended the stream")
        except QuireError as failed:
            error = failed
        self._ended(self, error)

    async def _talk(self) -> None:
        place = self._cluster.place(self.stream.broker_id)
        if isinstance(place, QuireError):
            raise place
        stub = broker_pb2_grpc.BrokerServiceStub(self._cluster.channel(place))
        call = stub.Subscribe(metadata=self._cluster.metadata)
        writing = asyncio.create_task(self._write(call), name="quire-subscribe-orders")
        try:
            await self._read(call)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        finally:
            writing.cancel()
            call.cancel()
            await asyncio.wait([writing])

    async def _read(self, call: _Call) -> None:
        while True:
            try:
                # gRPC ends the call of whoever stops waiting for it, and that is what is meant here.
                async with asyncio.timeout(SILENCE_S_MAX):
                    message = await call.read()
            except TimeoutError:
                raise OutcomeUnknownError(
                    f"broker {self.stream.broker_id} said nothing for {SILENCE_S_MAX:g} s"
                ) from None
            if not isinstance(message, broker_pb2.SubscribeResponse):
                return
            self.heard = True
            self._received(self.stream, message)

    async def _write(self, call: _Call) -> None:
        while True:
            while self._orders:
                try:
                    await call.write(self._orders.popleft())
                except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
                    return  # the call is over; reading tells why
            self._something.clear()
            await self._something.wait()
