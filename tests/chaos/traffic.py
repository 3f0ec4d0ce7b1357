"""Producers that send unique values, readers that read along, a full reader in the end; all goes into the history.

async with traffic(bootstrap, history, partitions=3) as load:
    await load.more(100)
    async with load.quiet():
        …  # nothing is on its way
await read_all(bootstrap, history)
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from quire import aio
from quire.aio import Message
from quire.errors import OutcomeUnknownError, QuireError
from quire.records import Record
from quire.verify import HistoryWriter, Type
from tests.chaos.waiting import WAIT_S_MAX, until

TOPIC: Final = "orders"
PADDING: Final = b" " + b"." * 60
DELIVERY_MS_MAX: Final = 20_000
IN_FLIGHT_MAX: Final = 2_000
"""Of one producer: so much of what was sent has no outcome yet."""
PAUSE_S: Final = 0.01
"""Between two records of one producer."""
RETRY_S: Final = 0.2


class Traffic:
    def __init__(
        self,
        bootstrap: Sequence[str],
        history: HistoryWriter,
        *,
        partitions: int,
        delivery_ms_max: int = DELIVERY_MS_MAX,
        pause_s: float = PAUSE_S,
    ) -> None:
        self._bootstrap = bootstrap
        self._history = history
        self._partitions = partitions
        self._delivery_ms_max = delivery_ms_max
        self._pause_s = pause_s
        self._stopped = False
        self._may_send = asyncio.Event()
        self._may_send.set()
        self._in_flight = 0
        self.sent = 0
        self.acked = 0
        self.unknown = 0
        self.failed = 0
        self.last_errors: list[str] = []
        """Of sends."""
        self.poll_errors: list[str] = []

    async def more(self, count: int = 50) -> None:
        """Until so many more were acknowledged."""
        wanted = self.acked + count

        async def is_there() -> bool:
            return self.acked >= wanted

        await until(is_there, lambda: f"{self.acked} acknowledged, not {wanted}; last errors {self.last_errors}")

    @asynccontextmanager
    async def quiet(self) -> AsyncIterator[None]:
        """Meanwhile nobody sends, and what was sent has its outcome."""
        self._may_send.clear()
        try:
            await self.settled()
            yield
        finally:
            self._may_send.set()

    async def settled(self) -> None:
        async def is_settled() -> bool:
            return not self._in_flight

        await until(is_settled, lambda: f"{self._in_flight} have no outcome; last errors {self.last_errors}")

    def stop(self) -> None:
        self._stopped = True
        self._may_send.set()

    async def send(self, name: str) -> None:
        """One producer, until it is stopped."""
        count = 0
        async with (
            aio.Producer(
                self._bootstrap, acks="all", delivery_ms_max=self._delivery_ms_max, client_id=name
            ) as producer,
            asyncio.TaskGroup() as group,
        ):
            room = asyncio.Semaphore(IN_FLIGHT_MAX)
            while not self._stopped:
                await room.acquire()
                await self._may_send.wait()
                value, partition = f"{name}-{count}", count % self._partitions
                self._in_flight += 1
                self.sent += 1
                began = time.monotonic()
                self._history.add(name, Type.INVOKE, "send", topic=TOPIC, partition=partition, values=[value])
                try:
                    delivery = await producer.send(TOPIC, value.encode() + PADDING, partition=partition)
                except QuireError as error:  # the record was not taken
                    self._note(name, value, partition, Type.FAIL, error=error)
                    room.release()
                else:
                    group.create_task(self._wait(name, value, partition, delivery, began, room))
                count += 1
                await asyncio.sleep(self._pause_s)

    async def _wait(
        self,
        name: str,
        value: str,
        partition: int,
        delivery: aio.Delivery,
        began: float,
        room: asyncio.Semaphore,
    ) -> None:
        try:
            stored = await delivery
        except OutcomeUnknownError as error:
            self._note(name, value, partition, Type.INFO, error=error)
        except QuireError as error:
            self._note(name, value, partition, Type.FAIL, error=error)
        else:
            offset = stored.offset if stored.offset >= 0 else None
            took_ms = round((time.monotonic() - began) * 1000, 3)
            self._note(name, value, stored.partition, Type.OK, offsets=[offset], took_ms=took_ms)
        room.release()

    def _note(
        self,
        name: str,
        value: str,
        partition: int,
        type: Type,
        *,
        offsets: list[int | None] | None = None,
        error: QuireError | None = None,
        took_ms: float | None = None,
    ) -> None:
        self._history.add(
            name,
            type,
            "send",
            topic=TOPIC,
            partition=partition,
            values=[value],
            offsets=offsets,
            took_ms=took_ms,
            error=None if error is None else f"{error.reason}: {error.message}",
        )
        if error is not None:
            self.last_errors = [*self.last_errors[-2:], str(error)]
        self.acked += type is Type.OK
        self.unknown += type is Type.INFO
        self.failed += type is Type.FAIL
        self._in_flight -= 1

    async def poll(self, name: str) -> None:
        """One reader, until it is cancelled."""
        async with aio.Consumer(self._bootstrap, TOPIC, start="earliest", client_id=name) as consumer:
            while True:
                try:
                    messages = await consumer.poll()
                except QuireError as error:
                    text = f"{error.reason}: {error.message}"
                    self._history.add(name, Type.FAIL, "poll", topic=TOPIC, error=text)
                    self.poll_errors = [*self.poll_errors[-2:], text]
                    await asyncio.sleep(RETRY_S)
                else:
                    note_read(self._history, name, "poll", messages)


def note_read(history: HistoryWriter, name: str, op: str, messages: Iterable[Message]) -> None:
    by_partition: dict[int, list[Message]] = {}
    for message in messages:
        by_partition.setdefault(message.partition, []).append(message)
    for partition, found in by_partition.items():
        history.add(
            name,
            Type.OK,
            op,
            topic=TOPIC,
            partition=partition,
            values=[value_of(message) for message in found],
            offsets=[message.offset for message in found],
        )


def value_of(message: Message | Record) -> str:
    """As it was sent. What was damaged is something that nobody sent."""
    value = message.value or b""
    return value.removesuffix(PADDING).decode("utf-8", "backslashreplace")


@asynccontextmanager
async def traffic(
    bootstrap: Sequence[str],
    history: HistoryWriter,
    *,
    partitions: int,
    producers: int = 2,
    readers: int = 1,
    delivery_ms_max: int = DELIVERY_MS_MAX,
    pause_s: float = PAUSE_S,
) -> AsyncIterator[Traffic]:
    """Until the block is left; then what was sent has its outcome. `pause_s` lies between two sends of a producer."""
    load = Traffic(bootstrap, history, partitions=partitions, delivery_ms_max=delivery_ms_max, pause_s=pause_s)
    async with asyncio.TaskGroup() as group:
        reading = [group.create_task(load.poll(f"r{n}"), name=f"r{n}") for n in range(1, readers + 1)]
        sending = [group.create_task(load.send(f"p{n}"), name=f"p{n}") for n in range(1, producers + 1)]
        try:
            yield load
            load.stop()
            await asyncio.wait(sending)
        finally:
            for task in (*reading, *sending):
                task.cancel()


async def read_all(bootstrap: Sequence[str], history: HistoryWriter, *, name: str = "full") -> int:
    """Read all that can be read, from the first offset on. How many records that was."""
    count = 0
    async with aio.Consumer(bootstrap, TOPIC, start="earliest", client_id=name) as consumer:
        starts, ends = await consumer.beginning_offsets(), await consumer.end_offsets()
        for where, start in sorted(starts.items()):
            history.add(
                name,
                Type.OK,
                "read",
                topic=TOPIC,
                partition=where.partition,
                values=[],
                offsets=[],
                **{"from": start},
            )
        last_at = time.monotonic()
        while any(consumer.position(where) < end for where, end in ends.items()):
            messages = await consumer.poll(timeout_s=1.0)
            now = time.monotonic()
            last_at = now if messages else last_at
            left = {where.partition: (consumer.position(where), end) for where, end in ends.items()}
            assert now - last_at < WAIT_S_MAX, f"no reading on; positions and ends: {left}"
            note_read(history, name, "read", messages)
            count += len(messages)
    return count
