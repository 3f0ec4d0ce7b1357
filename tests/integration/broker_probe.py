"""Calls to a broker as any client makes them, and a client that never stops: is the broker still there?"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc.aio

from quire.errors import LogBusyError, QuireError
from quire.records import decode, encode_columns, iter_batches
from quire.refusals import from_refusal
from quire.v1 import broker_pb2, broker_pb2_grpc, records_pb2, topics_pb2
from tests.integration.broker_cluster import MESSAGE_BYTES_MAX, BrokerProcess
from tests.integration.controller_cluster import eventually, told

NOW_MS: Final = 4_000_000_000_000
"""Not so old that retention would take it, in whichever year this runs."""
CALL_S: Final = 20
RAW: Final = broker_pb2.RECORD_FORM_RAW
_connections = itertools.count(1)


def ref(topic: str) -> topics_pb2.TopicRef:
    return topics_pb2.TopicRef(name=topic)


def batch(*values: bytes, **options: Any) -> bytes:
    return encode_columns(list(values), timestamp_ms=NOW_MS, **options)


def entry(topic: str, raw_batches: bytes, *, partition: int = 0) -> broker_pb2.PartitionRecords:
    return broker_pb2.PartitionRecords(
        topic=ref(topic), partition=partition, records=records_pb2.RecordSet(raw_batches=raw_batches)
    )


def connection(broker: BrokerProcess) -> grpc.aio.Channel:
    """One of its own, whatever other channels there are."""
    options: list[tuple[str, int]] = [
        ("quire.test", next(_connections)),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ]
    return grpc.aio.insecure_channel(broker.address, options=options)


def stub_of(channel: grpc.aio.Channel) -> broker_pb2_grpc.BrokerServiceAsyncStub:
    return broker_pb2_grpc.BrokerServiceStub(channel)


async def produce(
    stub: broker_pb2_grpc.BrokerServiceAsyncStub, topic: str, *values: bytes, partition: int = 0, **fields: Any
) -> broker_pb2.PartitionStored:
    """Store a batch. Raises the QuireError with which it was refused."""
    request = broker_pb2.ProduceRequest(partitions=[entry(topic, batch(*values), partition=partition)], **fields)
    [stored] = (await told(stub.Produce(request, timeout=CALL_S))).partitions
    if stored.HasField("refusal"):
        raise from_refusal(stored.refusal)
    return stored


async def fetch(
    stub: broker_pb2_grpc.BrokerServiceAsyncStub, topic: str, offset: int = 0, *, partition: int = 0, **fields: Any
) -> broker_pb2.PartitionFetched:
    """Read from an offset on. Raises the QuireError with which it was refused."""
    asked = broker_pb2.FetchFrom(topic=ref(topic), partition=partition, offset=offset)
    fields.setdefault("form", RAW)
    request = broker_pb2.FetchRequest(partitions=[asked], **fields)
    [fetched] = (await told(stub.Fetch(request, timeout=CALL_S))).partitions
    if fetched.HasField("refusal"):
        raise from_refusal(fetched.refusal)
    return fetched


def values_in(data: bytes, *, offset: int = 0) -> list[bytes]:
    return [
        record.value or b""
        for position, _ in iter_batches(data)
        for record in decode(data, position)
        if record.offset >= offset
    ]


async def all_values(stub: broker_pb2_grpc.BrokerServiceAsyncStub, topic: str, *, partition: int = 0) -> list[bytes]:
    found: list[bytes] = []
    offset = 0
    while True:
        fetched = await fetch(stub, topic, offset, partition=partition)
        found += values_in(fetched.records.raw_batches, offset=offset)
        if fetched.next_offset == offset:
            return found
        offset = fetched.next_offset


class Probe:
    """A client that stores one record after the other and reads each, by a connection of its own."""

    def __init__(self, broker: BrokerProcess, topic: str) -> None:
        self._broker = broker
        self._topic = topic
        self.count = 0
        self.slowest_s = 0.0
        self.refused: list[QuireError] = []

    async def run(self) -> None:
        async with connection(self._broker) as channel:
            stub = stub_of(channel)
            while True:
                began = time.monotonic()
                value = b"probe %d" % self.count
                try:
                    stored = await produce(stub, self._topic, value)
                    fetched = await fetch(stub, self._topic, stored.base_offset, wait_ms_max=5_000)
                except LogBusyError as error:
                    self.refused.append(error)
                    await asyncio.sleep((error.retry_after_ms or 0) / 1000)
                    continue
                assert values_in(fetched.records.raw_batches, offset=stored.base_offset)[0] == value
                self.count += 1
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    async def more(self, count: int) -> None:
        """Wait until it has been served so many times more."""
        before = self.count

        async def is_served() -> bool:
            return self.count >= before + count

        await eventually(is_served, lambda: f"served {self.count - before} times; refused {self.refused[-3:]}")


@asynccontextmanager
async def probing(broker: BrokerProcess, topic: str) -> AsyncIterator[Probe]:
    probe = Probe(broker, topic)
    running = asyncio.create_task(probe.run())
    try:
        await probe.more(2)
        yield probe
        await probe.more(2)
        assert not running.done(), "it is still being served"
    finally:
        running.cancel()
        await asyncio.wait([running])
        if not running.cancelled() and (error := running.exception()) is not None:
            raise error


async def gauge(broker: BrokerProcess, name: str) -> float:
    """A metric without labels."""
    _, text = await asyncio.to_thread(broker.http, "/metrics")
    [found] = [line for line in text.splitlines() if line.startswith(f"{name} ")]
    return float(found.split()[1])


async def answered(broker: BrokerProcess, method: str) -> float:
    """How many calls of a method of BrokerService ended well."""
    _, text = await asyncio.to_thread(broker.http, "/metrics")
    name = f'quire_rpc_calls_total{{method="/quire.v1.BrokerService/{method}",status="OK"}} '
    return sum(float(line.removeprefix(name)) for line in text.splitlines() if line.startswith(name))
