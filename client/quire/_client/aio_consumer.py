"""`quire.aio.Consumer`: for programs that run an event loop."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from types import TracebackType
from typing import Literal, Self

from quire._client.addresses import Addresses
from quire._client.arguments import check_whole
from quire._client.consumer import RECORDS_MAX, RECORDS_MAX_MAX
from quire._client.consuming import (
    PARTITION_BYTES,
    PREFETCH_BYTES,
    Consuming,
    PartitionArgument,
    as_partition,
    consumer_options,
    nothing_assigned,
)
from quire._client.message import Message
from quire._client.options import CONNECT_MS_MAX, PathArgument, connection
from quire._client.signals import Signal
from quire._client.starts import EARLIEST, LATEST, NAMED, StartArgument, at_time, start_of
from quire._client.stored import TopicPartition


class Consumer:
    """Reads partitions from where it is told to, and goes on as records come. Belongs to one event loop.

    async with Consumer("localhost:7400", "orders", start="earliest") as consumer:
        async for message in consumer:
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
        """With topics, reads all their partitions, from `start` on. Without: see `assign`.

        What `start` means is looked up when the consumer is entered (`async with`), or first asked for messages.
        docs/SDK.md says what the arguments mean.
        """
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
        self._topics = topics
        self._beginning: asyncio.Lock | None = None
        self._arrival = Signal()
        self._consuming = Consuming(
            connected, options, lock=nullcontext(), schedule=_call_soon, arrived=self._arrival.notify
        )
        self._intake = self._consuming.intake
        self._next = self._intake.next

    # -- what is read ------------------------------------------------------------------------------------------------

    async def assign(self, partitions: Iterable[PartitionArgument], start: StartArgument | None = None) -> None:
        """Read these partitions and no others, from `start` on; as the consumer was told where it is left out."""
        self._topics = ()
        wanted = [as_partition(each) for each in partitions]
        await self._consuming.assign(wanted, None if start is None else start_of(start))

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

    async def poll(self, timeout_s: float | None = 1.0, records_max: int = RECORDS_MAX) -> list[Message]:
        """Messages, as soon as there are some; none if none came in time. Without a timeout waits for ever.

        Raises what only the user can decide: OffsetOutOfRangeError, DamagedRangeError and the like, which say which
        partition is meant and what to do. Others are handed out before, and it goes on with the next call.
        """
        check_whole("records_max", records_max, 1, RECORDS_MAX_MAX)
        await self._ready()
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        while True:
            self._consuming.check_open()
            taken = self._intake.take(records_max)
            if taken:
                # Else a program that only takes would keep the streams from being read.
                await asyncio.sleep(0)
                return taken
            left = None if deadline is None else deadline - loop.time()
            if left is not None and left <= 0:
                return []
            await self._arrival.wait(left)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        message = self._next()
        while message is None:
            if self._consuming.closed:
                raise StopAsyncIteration
            await self._ready()
            await asyncio.sleep(0)
            message = self._next()
            if message is None and not self._consuming.closed:
                await self._arrival.wait(None)
                message = self._next()
        return message

    # -- positions ---------------------------------------------------------------------------------------------------

    def position(self, partition: PartitionArgument) -> int:
        """The offset after the last message that was handed out."""
        return self._intake.position(self._consuming.reading(partition))

    async def seek(self, partition: PartitionArgument, offset: int | Literal["earliest", "latest"]) -> None:
        """Go on at this offset. Nothing is handed out that was read for another."""
        if isinstance(offset, str):
            start_of(offset)
            await self._consuming.seek(partition, NAMED[offset])
        else:
            self._consuming.seek_to_offset(partition, offset)

    async def seek_to_time(self, partition: PartitionArgument, timestamp_ms: int) -> None:
        """Go on at the first record of this moment or later; at the end if there is none."""
        await self._consuming.seek(partition, at_time(timestamp_ms))

    async def beginning_offsets(
        self, partitions: Iterable[PartitionArgument] | None = None
    ) -> dict[TopicPartition, int]:
        """The first offsets that can be read; of all that are assigned, unless some are named."""
        found = await self._consuming.find(partitions, EARLIEST)
        return {partition: each.offset for partition, each in found.items()}

    async def end_offsets(self, partitions: Iterable[PartitionArgument] | None = None) -> dict[TopicPartition, int]:
        """The offsets that the next committed records get; of all that are assigned, unless some are named."""
        found = await self._consuming.find(partitions, LATEST)
        return {partition: each.offset for partition, each in found.items()}

    async def offsets_at(
        self, timestamp_ms: int, partitions: Iterable[PartitionArgument] | None = None
    ) -> dict[TopicPartition, int | None]:
        """The first offsets whose records are of this moment or later; None where there are none."""
        found = await self._consuming.find(partitions, at_time(timestamp_ms))
        return {partition: each.offset if each.offset >= 0 else None for partition, each in found.items()}

    # -- life --------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End. Whoever iterates stops."""
        await self._consuming.close()

    async def __aenter__(self) -> Self:
        try:
            await self._begin()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self, warn: Callable[..., object] = warnings.warn) -> None:
        consuming = getattr(self, "_consuming", None)
        if consuming is not None and consuming.is_begun and not consuming.closed:
            warn(f"unclosed {self!r}; use 'async with' or close()", ResourceWarning, source=self)

    def __repr__(self) -> str:
        state = "closed" if self._consuming.closed else f"reads {len(self.assignment())} partitions"
        return f"<quire.aio.Consumer, {state}>"

    async def _begin(self) -> None:
        """Read the topics that the consumer was made for; once."""
        if self._beginning is None:
            self._beginning = asyncio.Lock()
        async with self._beginning:
            topics = self._topics
            if topics:
                await self._consuming.assign_topics(topics)
                self._topics = ()

    async def _ready(self) -> None:
        self._consuming.check_open()
        if self._topics:
            await self._begin()
        if not self._intake.partitions:
            raise nothing_assigned()


def _call_soon(function: Callable[[], object]) -> None:
    asyncio.get_running_loop().call_soon(function)
