"""`quire.Consumer`: for programs without an event loop."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Literal, Self

from quire._client.addresses import Addresses
from quire._client.arguments import check_whole
from quire._client.consuming import (
    PARTITION_BYTES,
    PREFETCH_BYTES,
    Consuming,
    PartitionArgument,
    as_partition,
    consumer_options,
    nothing_assigned,
)
from quire._client.loop_thread import LoopThread
from quire._client.message import Message
from quire._client.options import CONNECT_MS_MAX, PathArgument, connection
from quire._client.starts import EARLIEST, LATEST, NAMED, StartArgument, at_time, start_of
from quire._client.stored import TopicPartition

RECORDS_MAX = 500
RECORDS_MAX_MAX = 1_000_000


class Consumer:
    """Reads partitions from where it is told to, and goes on as records come. To be used by one thread at a time.

    for message in Consumer("localhost:7400", "orders", start="earliest"):
        print(message.partition, message.offset, message.value)
    """

    def __init__(
        self,
        addresses: Addresses,
        *topics: str,
        start: StartArgument = "latest",
        isolation: Literal["committed", "uncommitted"] = "committed",
        prefetch_bytes: int = PREFETCH_BYTES,
        partition_bytes: int = PARTITION_BYTES,
        on_out_of_range: Literal["error", "earliest", "latest"] = "error",
        client_id: str = "",
        tls_ca: PathArgument | None = None,
        tls_cert: PathArgument | None = None,
        connect_ms_max: int = CONNECT_MS_MAX,
    ) -> None:
        """With topics, reads all their partitions, from `start` on as it is now. Without: see `assign`.

        docs/SDK.md says what the arguments mean. Raises UnknownTopicError, UnavailableError.
        """
        self._loop: LoopThread | None = None
        options = consumer_options(
            start=start,
            isolation=isolation,
            prefetch_bytes=prefetch_bytes,
            partition_bytes=partition_bytes,
            on_out_of_range=on_out_of_range,
        )
        connected = connection(
            addresses, client_id=client_id, tls_ca=tls_ca, tls_cert=tls_cert, connect_ms_max=connect_ms_max
        )
        loop = self._loop = LoopThread.acquire()
        self._closing = threading.Lock()
        self._arrival = threading.Event()
        self._consuming = Consuming(
            connected, options, lock=threading.Lock(), schedule=loop.call, arrived=self._arrival.set
        )
        self._intake = self._consuming.intake
        self._next = self._intake.next
        if topics:
            try:
                loop.run(self._consuming.assign_topics(topics))
            except BaseException:
                self.close()
                raise

    # -- what is read ------------------------------------------------------------------------------------------------

    def assign(self, partitions: Iterable[PartitionArgument], start: StartArgument | None = None) -> None:
        """Read these partitions and no others, from `start` on; as the consumer was told where it is left out."""
        wanted = [as_partition(each) for each in partitions]
        self._running().run(self._consuming.assign(wanted, None if start is None else start_of(start)))

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read."""
        return self._intake.partitions

    def pause(self, *partitions: PartitionArgument) -> None:
        """Hand out nothing of these until they are resumed; of all without arguments."""
        for each in partitions or self.assignment():
            self._intake.pause(self._consuming.reading(each))

    def resume(self, *partitions: PartitionArgument) -> None:
        """Go on where they were paused."""
        for each in partitions or self.assignment():
            self._intake.resume(self._consuming.reading(each))

    # -- messages ----------------------------------------------------------------------------------------------------

    def poll(self, timeout_s: float | None = 1.0, records_max: int = RECORDS_MAX) -> list[Message]:
        """Messages, as soon as there are some; none if none came in time. Without a timeout waits for ever.

        Raises what only the user can decide: OffsetOutOfRangeError, DamagedRangeError and the like, which say which
        partition is meant and what to do. Others are handed out before, and it goes on with the next call.
        """
        check_whole("records_max", records_max, 1, RECORDS_MAX_MAX)
        self._check_ready()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self._arrival.clear()  # before looking: what arrives from here on sets it again
            self._consuming.check_open()
            taken = self._intake.take(records_max)
            if taken:
                return taken
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return []
            self._arrival.wait(left)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        message = self._next()
        while message is None:
            self._arrival.clear()
            if self._consuming.closed:
                raise StopIteration
            self._check_ready()
            message = self._next()
            if message is None:
                self._arrival.wait()
        return message

    # -- positions ---------------------------------------------------------------------------------------------------

    def position(self, partition: PartitionArgument) -> int:
        """The offset after the last message that was handed out."""
        return self._intake.position(self._consuming.reading(partition))

    def seek(self, partition: PartitionArgument, offset: int | Literal["earliest", "latest"]) -> None:
        """Go on at this offset. Nothing is handed out that was read for another."""
        if isinstance(offset, str):
            self._running().run(self._consuming.seek(partition, NAMED[_place_name(offset)]))
        else:
            self._consuming.seek_to_offset(partition, offset)

    def seek_to_time(self, partition: PartitionArgument, timestamp_ms: int) -> None:
        """Go on at the first record of this moment or later; at the end if there is none."""
        self._running().run(self._consuming.seek(partition, at_time(timestamp_ms)))

    def beginning_offsets(self, partitions: Iterable[PartitionArgument] | None = None) -> dict[TopicPartition, int]:
        """The first offsets that can be read; of all that are assigned, unless some are named."""
        found = self._running().run(self._consuming.find(partitions, EARLIEST))
        return {partition: each.offset for partition, each in found.items()}

    def end_offsets(self, partitions: Iterable[PartitionArgument] | None = None) -> dict[TopicPartition, int]:
        """The offsets that the next committed records get; of all that are assigned, unless some are named."""
        found = self._running().run(self._consuming.find(partitions, LATEST))
        return {partition: each.offset for partition, each in found.items()}

    def offsets_at(
        self, timestamp_ms: int, partitions: Iterable[PartitionArgument] | None = None
    ) -> dict[TopicPartition, int | None]:
        """The first offsets whose records are of this moment or later; None where there are none."""
        found = self._running().run(self._consuming.find(partitions, at_time(timestamp_ms)))
        return {partition: each.offset if each.offset >= 0 else None for partition, each in found.items()}

    # -- life --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End. Whoever iterates stops; any thread may call this."""
        with self._closing:
            loop = self._loop
            if loop is None:
                return
            loop.refuse_own_thread()
            self._loop = None
            try:
                loop.run(self._consuming.close())
            finally:
                loop.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self, warn: Callable[..., object] = warnings.warn) -> None:
        loop = getattr(self, "_loop", None)
        if loop is not None:
            loop.abandon(self._consuming.close())
            warn(f"unclosed {self!r}; use 'with' or close()", ResourceWarning, source=self)

    def __repr__(self) -> str:
        state = "closed" if self._loop is None else f"reads {len(self.assignment())} partitions"
        return f"<quire.Consumer, {state}>"

    def _running(self) -> LoopThread:
        loop = self._loop
        if loop is None:
            self._consuming.closed = True
            self._consuming.check_open()
        return loop  # type: ignore[return-value]  # check_open has raised

    def _check_ready(self) -> None:
        self._consuming.check_open()
        if not self._intake.partitions:
            raise nothing_assigned()


def _place_name(offset: str) -> str:
    start_of(offset)
    return offset
