"""`quire.Producer`: for programs without an event loop."""

from __future__ import annotations

import atexit
import logging
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

from quire._client.accumulator import Span, TopicOutboxes
from quire._client.addresses import Addresses
from quire._client.arguments import HeadersArgument
from quire._client.deliveries import Deliveries, Delivery
from quire._client.loop_thread import LoopThread
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
from quire._client.producing import Producing, closed
from quire.errors import QuireError

FLUSH_AT_EXIT_S_MAX: Final = 5.0
"""How long a program that ends without closing its producers waits for what they have taken."""

_log = logging.getLogger("quire")


class Producer:
    """Sends records, in batches, and retries what may be sent again. Any number of threads may share one.

    with Producer("localhost:7400") as producer:
        producer.send("orders", b"...", key=b"customer-7")
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
        self._loop: LoopThread | None = None
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
        loop = self._loop = LoopThread.acquire()
        self._closing = threading.Lock()
        self._wait_s_max = buffer_wait_ms_max / 1000
        self._producing: Producing[Delivery] = Producing(
            connected, options, lock=threading.Lock(), delivery=Delivery, schedule=loop.call
        )
        self._accumulator = self._producing.accumulator
        self._append = self._accumulator.append
        _open.add(self)

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: HeadersArgument = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Hand over a record; it is sent soon, with others. The delivery tells where it is stored.

        Waits where the buffer is full, or nothing is known of the topic yet. Raises LogBusyError if that takes longer
        than `buffer_wait_ms_max`, UnknownTopicError, UnavailableError; the record was not taken then.
        """
        delivery = self._append(topic, value, key, headers, partition, timestamp_ms)
        if delivery is not None:
            return delivery
        return self._send_slowly(topic, value, key, headers, partition, timestamp_ms)

    def send_many(
        self,
        topic: str,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Deliveries:
        """Hand over many records at once, for far less a record: all of them, or none if it raises.

        `keys` has one for each value. Headers go with `send`.
        """
        column, key_column, sizes = self._accumulator.many(values, keys, timestamp_ms)
        size_bytes = sum(sizes)
        spans: list[Span] | None = None
        while spans is None:  # else the topic went away while these records waited; look again
            outboxes = self._known(topic)
            self._accumulator.check_fits(outboxes, sizes)
            self._wait_for_room(size_bytes)
            try:
                spans = self._accumulator.append_many(outboxes, column, key_column, partition, timestamp_ms, sizes)
            finally:
                if spans is None:
                    self._accumulator.room.give_back(size_bytes)
        return Deliveries(spans)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all that was handed over is stored, without waiting for company.

        Raises the first failure at whose delivery nobody has looked. After `timeout_s` it is
        OutcomeUnknownError: the rest is still on its way.
        """
        self._running().run(self._producing.flush(timeout_s))

    def close(self, timeout_s: float | None = None) -> None:
        """Flush, and end. After `timeout_s` what has no outcome is given up, and is unknown if it was sent.

        Raises as `flush` does. To close again does nothing.
        """
        with self._closing:
            loop = self._loop
            if loop is None:
                return
            loop.refuse_own_thread()
            self._loop = None
            try:
                loop.run(self._producing.close(timeout_s))
            finally:
                loop.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except QuireError:
            if error is None:
                raise  # else what happened first is what is told

    def __del__(self, warn: Callable[..., object] = warnings.warn) -> None:
        loop = getattr(self, "_loop", None)
        if loop is not None:
            loop.abandon(self._producing.close(0))
            warn(f"unclosed {self!r}: records may be lost; use 'with' or close()", ResourceWarning, source=self)

    def __repr__(self) -> str:
        state = "closed" if self._loop is None else "open"
        return f"<quire.Producer, {state}>"

    # -- what is rare ------------------------------------------------------------------------------------------------

    def _running(self) -> LoopThread:
        loop = self._loop
        if loop is None:
            raise closed()
        return loop

    def _send_slowly(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: HeadersArgument,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> Delivery:
        if headers and not isinstance(headers, dict | list | tuple):
            headers = list(headers)  # type: ignore[arg-type]  # it is read more than once
        size_bytes = self._accumulator.size_of(value, key, headers)
        while True:
            self._known(topic)
            self._wait_for_room(size_bytes)
            delivery = None
            try:
                delivery = self._append(topic, value, key, headers, partition, timestamp_ms, size_bytes)
            finally:
                if delivery is None:
                    self._accumulator.room.give_back(size_bytes)
            if delivery is not None:
                return delivery
            # The topic went away while this record waited; look again.

    def _known(self, topic: str) -> TopicOutboxes:
        loop = self._running()
        self._producing.check_usable()
        return self._accumulator.topic(topic) or loop.run(self._producing.learn(topic))

    def _wait_for_room(self, size_bytes: int) -> None:
        granted = threading.Event()
        waiter = self._accumulator.room.wait(size_bytes, granted.set)
        if waiter.is_granted:
            return
        try:
            loop = self._running()
            if not loop.is_current and granted.wait(self._wait_s_max):
                return
        except BaseException:
            self._accumulator.room.leave(waiter)
            raise
        self._accumulator.room.leave(waiter)
        raise self._producing.no_room(size_bytes)


_open: weakref.WeakSet[Producer] = weakref.WeakSet()


@atexit.register
def _close_at_exit() -> None:
    for producer in list(_open):
        try:
            producer.close(FLUSH_AT_EXIT_S_MAX)
        except QuireError as error:
            _log.error("a producer that nobody closed has lost records: %s", error)
