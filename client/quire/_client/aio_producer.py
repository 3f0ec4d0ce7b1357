"""`quire.aio.Producer`: for programs that run an event loop."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import TracebackType
from typing import Self

from quire._client.accumulator import Span, TopicOutboxes
from quire._client.addresses import Addresses
from quire._client.arguments import HeadersArgument
from quire._client.deliveries import AioDeliveries, AioDelivery
from quire._client.options import CONNECT_MS_MAX, PathArgument, connection
from quire._client.producer_options import (
    BATCH_BYTES,
    BUFFER_BYTES,
    BUFFER_WAIT_MS_MAX,
    DELIVERY_MS_MAX,
    LINGER_MS,
    AcksArgument,
    CompressionArgument,
    PartitionerArgument,
    producer_options,
)
from quire._client.producing import Producing
from quire.errors import QuireError


class Producer:
    """Sends records, in batches, and retries what may be sent again. Belongs to one event loop.

    async with Producer("localhost:7400") as producer:
        delivery = await producer.send("orders", b"...", key=b"customer-7")
        stored = await delivery
    """

    def __init__(
        self,
        addresses: Addresses,
        *,
        acks: AcksArgument = "all",
        compression: CompressionArgument = "none",
        linger_ms: float = LINGER_MS,
        batch_bytes: int = BATCH_BYTES,
        buffer_bytes: int = BUFFER_BYTES,
        buffer_wait_ms_max: int = BUFFER_WAIT_MS_MAX,
        delivery_ms_max: int = DELIVERY_MS_MAX,
        idempotent: bool = True,
        partitioner: PartitionerArgument | None = None,
        client_id: str = "",
        tls_ca: PathArgument | None = None,
        tls_cert: PathArgument | None = None,
        connect_ms_max: int = CONNECT_MS_MAX,
    ) -> None:
        """docs/SDK.md says what the arguments mean. Nothing is connected before the first record."""
        options = producer_options(
            acks=acks,
            compression=compression,
            linger_ms=linger_ms,
            batch_bytes=batch_bytes,
            buffer_bytes=buffer_bytes,
            buffer_wait_ms_max=buffer_wait_ms_max,
            delivery_ms_max=delivery_ms_max,
            idempotent=idempotent,
            partitioner=partitioner,
        )
        connected = connection(
            addresses, client_id=client_id, tls_ca=tls_ca, tls_cert=tls_cert, connect_ms_max=connect_ms_max
        )
        self._wait_s_max = buffer_wait_ms_max / 1000
        self._producing: Producing[AioDelivery] = Producing(
            connected, options, lock=nullcontext(), delivery=AioDelivery, schedule=_call_soon
        )
        self._accumulator = self._producing.accumulator
        self._append = self._accumulator.append

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: HeadersArgument = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> AioDelivery:
        """Hand over a record; it is sent soon, with others. The delivery, awaited, tells where it is stored.

        Waits where the buffer is full, or nothing is known of the topic yet. Raises LogBusyError if that takes longer
        than `buffer_wait_ms_max`, UnknownTopicError, UnavailableError; the record was not taken then.
        """
        delivery = self._append(topic, value, key, headers, partition, timestamp_ms)
        if delivery is None:
            delivery = await self._send_slowly(topic, value, key, headers, partition, timestamp_ms)
        if self._producing.is_woken:
            # Else a program that sends in a loop would fill the buffer before anything is sent.
            await asyncio.sleep(0)
        return delivery

    async def send_many(
        self,
        topic: str,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> AioDeliveries:
        """Hand over many records at once, for far less a record: all of them, or none if it raises.

        `keys` has one for each value. Headers go with `send`.
        """
        column, key_column, sizes = self._accumulator.many(values, keys, timestamp_ms)
        size_bytes = sum(sizes)
        spans: list[Span] | None = None
        while spans is None:  # else the topic went away while these records waited; look again
            outboxes = await self._known(topic)
            self._accumulator.check_fits(outboxes, sizes)
            await self._wait_for_room(size_bytes)
            try:
                spans = self._accumulator.append_many(outboxes, column, key_column, partition, timestamp_ms, sizes)
            finally:
                if spans is None:
                    self._accumulator.room.give_back(size_bytes)
        return AioDeliveries(spans)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all that was handed over is stored, without waiting for company.

        Raises the first failure at whose delivery nobody has looked. After `timeout_s` it is
        OutcomeUnknownError: the rest is still on its way.
        """
        self._producing.check_usable()
        await self._producing.flush(timeout_s)

    async def close(self, timeout_s: float | None = None) -> None:
        """Flush, and end. After `timeout_s` what has no outcome is given up, and is unknown if it was sent.

        Raises as `flush` does. To close again does nothing.
        """
        await self._producing.close(timeout_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except QuireError:
            if error is None:
                raise  # else what happened first is what is told

    def __del__(self, warn: Callable[..., object] = warnings.warn) -> None:
        producing = getattr(self, "_producing", None)
        if producing is not None and producing.is_begun and not producing.closed:
            warn(f"unclosed {self!r}: records may be lost; use 'async with' or close()", ResourceWarning, source=self)

    def __repr__(self) -> str:
        return f"<quire.aio.Producer, {'closed' if self._producing.closed else 'open'}>"

    # -- what is rare ------------------------------------------------------------------------------------------------

    async def _send_slowly(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: HeadersArgument,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> AioDelivery:
        if headers and not isinstance(headers, dict | list | tuple):
            headers = list(headers)  # type: ignore[arg-type]  # it is read more than once
        size_bytes = self._accumulator.size_of(value, key, headers)
        while True:
            await self._known(topic)
            await self._wait_for_room(size_bytes)
            delivery = None
            try:
                delivery = self._append(topic, value, key, headers, partition, timestamp_ms, size_bytes)
            finally:
                if delivery is None:
                    self._accumulator.room.give_back(size_bytes)
            if delivery is not None:
                return delivery
            # The topic went away while this record waited; look again.

    async def _known(self, topic: str) -> TopicOutboxes:
        self._producing.check_usable()
        return self._accumulator.topic(topic) or await self._producing.learn(topic)

    async def _wait_for_room(self, size_bytes: int) -> None:
        granted = asyncio.Event()
        waiter = self._accumulator.room.wait(size_bytes, granted.set)
        if waiter.is_granted:
            return
        try:
            async with asyncio.timeout(self._wait_s_max):
                await granted.wait()
        except TimeoutError:
            self._accumulator.room.leave(waiter)
            raise self._producing.no_room(size_bytes) from None
        except BaseException:
            self._accumulator.room.leave(waiter)
            raise


def _call_soon(function: Callable[[], object]) -> None:
    asyncio.get_running_loop().call_soon(function)
