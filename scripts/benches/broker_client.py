"""A client, told by lines of JSON on standard input what to do and what to measure. For `scripts/bench broker`.

It sends to Quire and to what Quire is compared with, in the same way wherever that is possible.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeAlias

from quire.process import malloc

malloc.tune(
    mmap_threshold_bytes=256 * 1024 * 1024,
    trim_threshold_bytes=64 * 1024 * 1024,
    top_pad_bytes=16 * 1024 * 1024,
    arenas_max=2,
)

import grpc  # noqa: E402  # after malloc: what it imports allocates
import grpc.aio  # noqa: E402
import nats  # noqa: E402
import uvloop  # noqa: E402
from nats.js.api import StorageType, StreamConfig  # noqa: E402

import quire  # noqa: E402
import quire.aio  # noqa: E402
from quire.errors import QuireError  # noqa: E402
from quire.records import decode, encode_columns  # noqa: E402
from quire.v1 import broker_pb2, durability_pb2, records_pb2, topics_pb2  # noqa: E402

NOW_MS: Final = 1_700_000_000_000
MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
PRODUCE_STREAM: Final = "/quire.v1.BrokerService/ProduceStream"
PRODUCE: Final = "/quire.v1.BrokerService/Produce"
SUBSCRIBE: Final = "/quire.v1.BrokerService/Subscribe"
VALUE_BYTES: Final = 100
CREDIT_BYTES: Final = 8 * 1024 * 1024
RECORD_BYTES: Final = 110
"""What a record with such a value takes in a batch, at most."""
PAUSE_S: Final = 0.002
"""Between two messages where latency is measured, and between two tries where a start is."""

_Unary: TypeAlias = "grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]"
_Stream: TypeAlias = "grpc.aio.StreamStreamCall[bytes, bytes]"


def values(count: int) -> list[bytes]:
    return [random.Random(1).randbytes(VALUE_BYTES)] * count


def batch(size_bytes: int) -> bytes:
    """Of records of 100 bytes; not larger than that."""
    return encode_columns(values(max(1, size_bytes // RECORD_BYTES - 1)), timestamp_ms=NOW_MS)


def records_for(topic: str, size_bytes: int) -> list[broker_pb2.PartitionRecords]:
    return [
        broker_pb2.PartitionRecords(
            topic=topics_pb2.TopicRef(name=topic), records=records_pb2.RecordSet(raw_batches=batch(size_bytes))
        )
    ]


class Load:
    def __init__(self) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._producers: dict[tuple[str, str], quire.Producer] = {}
        self._jetstream: dict[str, Any] = {}

    # -- Quire's topics --------------------------------------------------------------------------------------------

    async def create_topic(self, address: str, name: str, *, replication_factor: int = 0, **config: Any) -> None:
        async with quire.aio.Admin(address) as admin:
            await admin.create_topic(name, replication_factor=replication_factor, config=config)
        # Until it is led: whoever begins to measure is not to wait for that.
        async with quire.aio.Producer(address) as producer:
            await (await producer.send(name, b"first"))

    # -- streams of messages ---------------------------------------------------------------------------------------

    async def stream_quire(self, address: str, topic: str, *, size_bytes: int, count: int, window: int) -> float:
        """Batches/s by ProduceStream, acks=leader; all of them stored."""
        request = _stream_request(topic, size_bytes)
        taken_s, answers = await self._stream(address, PRODUCE_STREAM, request, count, window)
        ends: set[int] = set()
        for answer in map(broker_pb2.ProduceStreamResponse.FromString, answers):
            (stored,) = answer.partitions
            if answer.HasField("refusal") or stored.HasField("refusal"):
                raise SystemExit(f"bench broker: the broker refused a batch: {answer}")
            ends.add(stored.end_offset)
        if len(ends) != count:
            raise SystemExit(f"bench broker: of {count} batches {len(ends)} are stored")
        return count / taken_s

    async def stream_bare(self, address: str, method: str, *, size_bytes: int, count: int, window: int) -> float:
        request = _stream_request("bare", size_bytes)
        taken_s, _ = await self._stream(address, method, request, count, window)
        return count / taken_s

    def request_bytes(self, *, topic: str, size_bytes: int) -> int:
        return len(_stream_request(topic, size_bytes))

    async def _stream(
        self, address: str, method: str, request: bytes, count: int, window: int
    ) -> tuple[float, list[bytes]]:
        """Seconds and answers; `window` messages wait for theirs."""
        call: _Stream = self._channel(address).stream_stream(method)()
        free = asyncio.Semaphore(window)
        answers: list[bytes] = []

        async def read() -> None:
            while len(answers) < count:
                answer = await call.read()
                if not isinstance(answer, bytes):
                    raise SystemExit(f"bench broker: the stream ended after {len(answers)} answers: {call}")
                answers.append(answer[:256])
                free.release()

        began = time.perf_counter()
        reading = asyncio.create_task(read())
        for _ in range(count):
            await free.acquire()
            if reading.done():
                break
            await call.write(request)
        await reading
        taken_s = time.perf_counter() - began
        call.cancel()
        return taken_s, answers

    async def subscribe(self, address: str, topic: str, *, megabytes: int) -> float:
        """MB/s of raw batches by Subscribe, from the first offset on."""
        following = await self._follow(address, topic, offset=0)
        began = time.perf_counter()
        received = owed = 0
        while received < megabytes * 1e6:
            message = await following.read()
            if not isinstance(message, bytes):
                raise SystemExit(f"bench broker: the stream ended after {received} bytes: {following}")
            received += len(message)
            owed += sum(each.credit_bytes for each in broker_pb2.SubscribeResponse.FromString(message).partitions)
            if owed >= CREDIT_BYTES // 2:
                await following.write(broker_pb2.SubscribeRequest(credit_bytes=owed).SerializeToString())
                owed = 0
        taken_s = time.perf_counter() - began
        following.cancel()
        return received / taken_s / 1e6

    async def subscribe_bare(self, address: str, *, megabytes: int, size_bytes: int) -> float:
        call: _Stream = self._channel(address).stream_stream("/bare/Push")()
        await call.write(batch(size_bytes))
        began = time.perf_counter()
        received = 0
        while received < megabytes * 1e6:
            message = await call.read()
            received += len(message) if isinstance(message, bytes) else 0
        taken_s = time.perf_counter() - began
        call.cancel()
        return received / taken_s / 1e6

    # -- a record at a time ----------------------------------------------------------------------------------------

    def send(self, address: str, topic: str, *, count: int, acks: Any) -> float:
        """Thousand records/s by `Producer.send`, until all are acknowledged and looked at."""
        producer = self._producers.get((str(address), acks))
        if producer is None:
            producer = self._producers[str(address), acks] = quire.Producer(address, acks=acks)
        (value,) = values(1)
        began = time.perf_counter()
        deliveries = [producer.send(topic, value) for _ in range(count)]
        producer.flush()
        for delivery in deliveries:
            if (error := delivery.exception()) is not None:
                raise error
        return count / (time.perf_counter() - began) / 1e3

    async def send_aio(self, address: str, topic: str, *, count: int, acks: Any) -> float:
        (value,) = values(1)
        async with quire.aio.Producer(address, acks=acks) as producer:
            await (await producer.send(topic, value))
            began = time.perf_counter()
            deliveries = [await producer.send(topic, value) for _ in range(count)]
            await producer.flush()
            for delivery in deliveries:
                if (error := await delivery.exception()) is not None:
                    raise error
            return count / (time.perf_counter() - began) / 1e3

    def send_many(self, address: str, topic: str, *, count: int, at_once: int, acks: Any) -> float:
        column = values(at_once)
        with quire.Producer(address, acks=acks) as producer:
            producer.send(topic, column[0]).result()
            began = time.perf_counter()
            deliveries = [producer.send_many(topic, column) for _ in range(count // at_once)]
            producer.flush()
            for delivery in deliveries:
                delivery.result()
            return count // at_once * at_once / (time.perf_counter() - began) / 1e3

    async def send_nats(self, address: str, *, count: int, window: int, replicas: int = 1) -> float:
        """The same by nats-py's `publish_async`, with so many that wait for their acknowledgement."""
        name = f"S{window}"
        if name not in self._jetstream:
            connection = await nats.connect(address)
            jetstream = connection.jetstream(publish_async_max_pending=window)
            await jetstream.add_stream(
                StreamConfig(name=name, subjects=[name], storage=StorageType.FILE, num_replicas=replicas)
            )
            self._jetstream[name] = jetstream
        jetstream = self._jetstream[name]
        (value,) = values(1)
        began = time.perf_counter()
        futures = [await jetstream.publish_async(name, value) for _ in range(count)]
        await jetstream.publish_async_completed()
        for future in futures:
            if (error := future.exception()) is not None:
                raise error
        return count / (time.perf_counter() - began) / 1e3

    # -- consuming -------------------------------------------------------------------------------------------------

    def consume(self, address: str, topic: str, *, count: int) -> float:
        """Thousand records/s by `Consumer.poll`."""
        with quire.Consumer(address, topic, start="earliest") as consumer:
            began = time.perf_counter()
            left = count
            while left > 0:
                left -= len(consumer.poll(timeout_s=10, records_max=10_000))
            return (count - left) / (time.perf_counter() - began) / 1e3

    def decode(self, *, count: int, size_bytes: int) -> float:
        """Thousand records/s by the codec alone, from the same batches."""
        data = batch(size_bytes)
        began = time.perf_counter()
        done = 0
        while done < count:
            done += len(list(decode(data)))
        return done / (time.perf_counter() - began) / 1e3

    # -- latency ---------------------------------------------------------------------------------------------------

    async def latency_quire(self, address: str, topic: str, *, count: int) -> list[float]:
        """Seconds from Produce to its record in a subscription, one at a time; acks=all."""
        channel = self._channel(address)
        produce: _Unary = channel.unary_unary(PRODUCE)
        request = broker_pb2.ProduceRequest(partitions=records_for(topic, 0)).SerializeToString()
        following = await self._follow(address, topic, offset=await self._latest(address, topic))
        await following.read()  # a sign of life: it follows

        async def next_record() -> None:
            while not await following.read():
                pass  # a sign of life

        async def store() -> None:
            (stored,) = broker_pb2.ProduceResponse.FromString(await produce(request)).partitions
            if stored.HasField("refusal") or not stored.durability.fsynced:
                raise SystemExit(f"bench broker: not stored as asked: {stored}")

        taken = await _one_at_a_time(store, next_record, count)
        following.cancel()
        return taken

    async def latency_bare(self, address: str, *, count: int) -> list[float]:
        """The same with the bare server: unary, fdatasync, push."""
        channel = self._channel(address)
        unary: _Unary = channel.unary_unary("/bare/Store")
        request = broker_pb2.ProduceRequest(partitions=records_for("bare", 0)).SerializeToString()
        follow: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream("/bare/Follow")
        following = follow(b"")
        await following.read()  # it follows

        async def store() -> None:
            await unary(request)

        async def next_record() -> None:
            await following.read()

        taken = await _one_at_a_time(store, next_record, count)
        following.cancel()
        return taken

    async def latency_sdk(self, address: str, topic: str, *, count: int) -> list[float]:
        """The same by the SDK: `send`, and `poll` in the same process."""
        (value,) = values(1)
        async with quire.aio.Producer(address) as producer, quire.aio.Consumer(address, topic) as consumer:
            await (await producer.send(topic, value))
            while not await consumer.poll():
                pass

            async def store() -> None:
                await (await producer.send(topic, value))

            async def next_record() -> None:
                while not await consumer.poll():
                    pass

            return await _one_at_a_time(store, next_record, count)

    async def _follow(self, address: str, topic: str, *, offset: int) -> _Stream:
        following: _Stream = self._channel(address).stream_stream(SUBSCRIBE)()
        start = broker_pb2.SubscribeStart(form=broker_pb2.RECORD_FORM_RAW, credit_bytes=CREDIT_BYTES)
        add = broker_pb2.SubscribeFrom(topic=topics_pb2.TopicRef(name=topic), offset=offset)
        await following.write(broker_pb2.SubscribeRequest(start=start).SerializeToString())
        await following.write(
            broker_pb2.SubscribeRequest(add=broker_pb2.SubscribeAdd(partitions=[add])).SerializeToString()
        )
        return following

    async def _latest(self, address: str, topic: str) -> int:
        query = broker_pb2.OffsetQuery(topic=topics_pb2.TopicRef(name=topic), place=broker_pb2.OFFSET_PLACE_LATEST)
        ask: _Unary = self._channel(address).unary_unary("/quire.v1.BrokerService/ListOffsets")
        request = broker_pb2.ListOffsetsRequest(queries=[query]).SerializeToString()
        return broker_pb2.ListOffsetsResponse.FromString(await ask(request)).offsets[0].offset

    # -- how soon it is there --------------------------------------------------------------------------------------

    async def until_stored(self, address: str, method: str, topic: str, *, within_s: float) -> float:
        """The time, on the monotonic clock of the machine, at which a record was stored for the first time."""
        request = broker_pb2.ProduceRequest(partitions=records_for(topic, 0)).SerializeToString()
        backoff_ms = 10
        options = [(f"grpc.{which}_reconnect_backoff_ms", backoff_ms) for which in ("initial", "min", "max")]
        deadline = time.monotonic() + within_s
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            store: _Unary = channel.unary_unary(method)
            while time.monotonic() < deadline:
                try:
                    answer = await store(request, timeout=5)
                except grpc.aio.AioRpcError:
                    pass
                else:
                    if method != PRODUCE or _is_stored(answer):
                        return time.monotonic()
                await asyncio.sleep(PAUSE_S)
        raise SystemExit(f"bench broker: nothing is stored {within_s:g} s after the start")

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            options = [
                ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
                ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
            ]
            self._channels[address] = grpc.aio.insecure_channel(address, options=options)
        return self._channels[address]


def _is_stored(answer: bytes) -> bool:
    return not broker_pb2.ProduceResponse.FromString(answer).partitions[0].HasField("refusal")


def _stream_request(topic: str, size_bytes: int) -> bytes:
    return broker_pb2.ProduceStreamRequest(
        correlation_id=1, acks=durability_pb2.ACKS_LEADER, partitions=records_for(topic, size_bytes)
    ).SerializeToString()


async def _one_at_a_time(
    store: Callable[[], Coroutine[Any, Any, None]], next_record: Callable[[], Awaitable[None]], count: int
) -> list[float]:
    taken: list[float] = []

    async def read(began: float) -> None:
        await next_record()
        taken.append(time.perf_counter() - began)

    for _ in range(count):
        try:
            # Where one of the two fails, nobody waits for the other.
            async with asyncio.TaskGroup() as group:
                group.create_task(read(time.perf_counter()))
                group.create_task(store())
        except ExceptionGroup as errors:
            raise SystemExit(f"bench broker: a record was not stored and read: {errors.exceptions[0]}") from errors
        await asyncio.sleep(PAUSE_S)
    return taken


def main(make: Callable[[], Load] = Load) -> int:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.get_loop()
        load = make()
        for line in sys.stdin:
            arguments = json.loads(line)
            work = getattr(load, arguments.pop("ask"))
            gc.collect()
            try:
                result = work(**arguments)
                if inspect.iscoroutine(result):
                    result = runner.run(result)
            except QuireError as error:
                raise SystemExit(f"bench broker: {error.reason}: {error.message}") from error
            print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
