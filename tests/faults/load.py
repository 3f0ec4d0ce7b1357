"""Traffic on a cluster of broker processes, and a check of what it was told against the bytes that brokers have."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from quire import verify
from quire.records import decode, iter_batches
from quire.verify import HistoryWriter, Type
from tests.chaos.traffic import TOPIC, Traffic, traffic, value_of
from tests.integration.broker_cluster import BrokerCluster
from tests.integration.controller_cluster import eventually

DELIVERY_MS_MAX: Final = 60_000
PAUSE_S: Final = 0.002


@dataclass
class Load:
    """What goes on, and its history so far."""

    traffic: Traffic
    history: HistoryWriter
    file: io.BytesIO

    @property
    def count(self) -> int:
        return self.traffic.acked

    async def more(self, count: int = 50) -> None:
        """Until so many more were acknowledged."""
        await self.traffic.more(count)


@asynccontextmanager
async def load(addresses: Sequence[str], *, partitions: int) -> AsyncIterator[Load]:
    """Send with acks=all to all partitions, and read along, until the block is left; then all has its outcome."""
    file = io.BytesIO()
    history = HistoryWriter(file)
    async with traffic(
        addresses, history, partitions=partitions, delivery_ms_max=DELIVERY_MS_MAX, pause_s=PAUSE_S
    ) as found:
        yield Load(found, history, file)


# --- checks --------------------------------------------------------------------------------------------------------


async def check(cluster: BrokerCluster, found: Load, *, partitions: int, replicas: int = 3) -> None:
    """Once all replicas are equal: nothing acknowledged is lost, doubled or elsewhere, nothing was skipped."""
    for partition, data in enumerate(await equal_replicas(cluster, partitions=partitions, replicas=replicas)):
        note_stored(found.history, partition, data)
    report = await asyncio.to_thread(judged, found)
    assert report.anomalies == 0, report.as_json()
    assert report.acknowledged > 0, "nothing was acknowledged"
    assert (report.not_judged, report.failed) == (0, 0), found.traffic.last_errors
    assert not found.traffic.poll_errors, found.traffic.poll_errors


def note_stored(history: HistoryWriter, partition: int, data: bytes) -> None:
    """The full reader is who looks at the bytes themselves."""
    history.add("stored", Type.OK, "read", values=[], offsets=[], topic=TOPIC, partition=partition)
    for position, _ in iter_batches(data):
        records = list(decode(data, position))
        values, offsets = [value_of(each) for each in records], [each.offset for each in records]
        history.add("stored", Type.OK, "read", values=values, offsets=offsets, topic=TOPIC, partition=partition)


def judged(found: Load) -> verify.Report:
    found.history.flush()
    found.file.seek(0)
    return verify.check(found.file)


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


__all__ = ["TOPIC", "Load", "check", "equal_replicas", "load"]
