"""Producers that send unique values until they are stopped, and remember what they were told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from quire import aio
from quire.errors import OutcomeUnknownError, QuireError
from quire.records import decode, iter_batches
from tests.integration.broker_cluster import BrokerCluster
from tests.integration.controller_cluster import eventually

TOPIC = "orders"


@dataclass
class Told:
    """What became of one value, as its producer was told."""

    value: bytes
    partition: int
    offset: int


@dataclass
class Load:
    """What was sent so far."""

    acked: list[Told] = field(default_factory=list)
    unknown: list[bytes] = field(default_factory=list)
    refused: list[QuireError] = field(default_factory=list)
    reads: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """(partition, offset) → what a consumer that ran all the time saw there."""
    order: dict[int, list[int]] = field(default_factory=dict)
    """The offsets that it saw, by partition, in the order in which it saw them."""

    @property
    def count(self) -> int:
        return len(self.acked)

    async def more(self, count: int = 50) -> None:
        """Until so many more were acknowledged."""
        wanted = self.count + count

        async def is_there() -> bool:
            return self.count >= wanted

        await eventually(
            is_there, lambda: f"{self.count} are acknowledged, not {wanted}; refused: {self.refused[-3:]}"
        )


@asynccontextmanager
async def load(addresses: Sequence[str], *, partitions: int, producers: int = 2) -> AsyncIterator[Load]:
    """Send with acks=all to all partitions, and read along, until the block is left; then everything is flushed."""
    found = Load()
    stop = asyncio.Event()
    async with (
        aio.Consumer(addresses, TOPIC, start="earliest", client_id="reader") as consumer,
        asyncio.TaskGroup() as group,
    ):
        reading = group.create_task(_read(consumer, found), name="reader")
        sending = [
            group.create_task(_send(addresses, found, stop, number, partitions), name=f"producer-{number}")
            for number in range(producers)
        ]
        yield found
        stop.set()
        await asyncio.wait(sending)
        reading.cancel()


async def _send(addresses: Sequence[str], found: Load, stop: asyncio.Event, number: int, partitions: int) -> None:
    async with aio.Producer(
        addresses, acks="all", delivery_ms_max=60_000, client_id=f"producer-{number}"
    ) as producer:
        count = 0
        async with asyncio.TaskGroup() as group:
            while not stop.is_set():
                value = b"%d-%d" % (number, count)
                delivery = await producer.send(TOPIC, value, partition=count % partitions)
                group.create_task(_note(delivery, value, found))
                count += 1
                await asyncio.sleep(0.002)


async def _note(delivery: aio.Delivery, value: bytes, found: Load) -> None:
    try:
        stored = await delivery
    except OutcomeUnknownError:
        found.unknown.append(value)
    except QuireError as error:
        found.refused.append(error)
    else:
        found.acked.append(Told(value, stored.partition, stored.offset))


async def _read(consumer: aio.Consumer, found: Load) -> None:
    async for message in consumer:
        found.reads[message.partition, message.offset] = message.value or b""
        found.order.setdefault(message.partition, []).append(message.offset)


# --- checks --------------------------------------------------------------------------------------------------------


async def check(cluster: BrokerCluster, found: Load, *, partitions: int, replicas: int = 3) -> None:
    """Once all replicas are equal: nothing acknowledged is lost, doubled or elsewhere, nothing was skipped."""
    logs = await equal_replicas(cluster, partitions=partitions, replicas=replicas)
    places: dict[bytes, tuple[int, int]] = {}
    for partition, data in enumerate(logs):
        for position, _ in iter_batches(data):
            for record in decode(data, position):
                value = record.value or b""
                assert value not in places, f"{value!r} is at {places[value]} and at {(partition, record.offset)}"
                places[value] = (partition, record.offset)
    assert found.acked, "nothing was acknowledged"
    for told in found.acked:
        here = places.get(told.value)
        assert here == (told.partition, told.offset), f"{told} is at {here}"
    by_producer: dict[tuple[bytes, int], list[tuple[int, int]]] = {}
    for value, (partition, offset) in places.items():
        producer, _, number = value.partition(b"-")
        by_producer.setdefault((producer, partition), []).append((int(number), offset))
    for key, sent in by_producer.items():
        offsets = [offset for _, offset in sorted(sent)]
        assert offsets == sorted(offsets), f"what {key} sent is not in its order"
    for (partition, offset), value in found.reads.items():
        assert places.get(value) == (partition, offset), f"a consumer saw {value!r} at {(partition, offset)}"
    for partition, seen in found.order.items():
        assert seen == list(range(seen[0], seen[0] + len(seen))), f"a consumer of {partition} skipped or went back"
    assert not found.refused, found.refused[:3]


async def equal_replicas(cluster: BrokerCluster, *, partitions: int, replicas: int = 3) -> list[bytes]:
    """The bytes of each partition, once all replicas are in sync and have the same."""
    found: list[bytes] = []
    why = "nothing was looked at"

    async def is_equal() -> bool:
        nonlocal why
        found.clear()
        for partition in range(partitions):
            isr = await cluster.isr(TOPIC, partition)
            if len(isr) != replicas:
                why = f"partition {partition} has in sync {isr}"
                return False
            contents = {broker.stored(TOPIC, partition) for broker in cluster.brokers if broker.id in isr}
            if len(contents) != 1:
                why = f"replicas of partition {partition} have {sorted(map(len, contents))} bytes"
                return False
            found.append(contents.pop())
        return True

    await eventually(is_equal, lambda: why)
    return found
