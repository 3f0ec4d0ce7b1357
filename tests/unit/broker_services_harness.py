"""A broker's services on a simulated disk and virtual time: no process, no socket, no thread.

@virtual
async def test_x() -> None:
    async with World() as world:
        await world.create("orders")
        stored = await world.produce(entry("orders", raw(b"a")))
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, ParamSpec, Self, TypeVar

import grpc.aio
from google.protobuf.message import Message

from quire.disk.sim_disk import SimDisk
from quire.errors import QuireError
from quire.process.rpc import context as request_context
from quire.records import BatchOptions, decode, encode_columns, iter_batches
from quire.records.header import HEADER_BYTES, pack_batch, parse_header
from quire.refusals import from_refusal
from quire.v1 import broker_pb2, controller_pb2, errors_pb2, metadata_pb2, records_pb2, topics_pb2
from quire_broker.replica.config import ReplicaConfig
from quire_broker.runtime.budget import Memory
from quire_broker.runtime.partition import Partition
from quire_broker.runtime.partitions import ATTRIBUTES_TAKEN, Partitions
from quire_broker.service.answers import Answers
from quire_broker.service.fetch import Fetching
from quire_broker.service.follow import Following
from quire_broker.service.followers import Followers
from quire_broker.service.offsets import Offsets
from quire_broker.service.produce import Producing
from quire_broker.service.produce_stream import ProduceStreams
from quire_broker.service.reading import Reading
from quire_broker.service.splice import Spliced
from quire_broker.service.subscribe import Subscriptions
from quire_broker.service.wire import Received, with_raw
from quire_broker.state.image import MetadataImage
from tests.unit.virtual_time import in_virtual_time

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", bound=Message)

ME: Final = 1
EPOCH: Final = 5
"""This broker's, as the metadata has it."""
ROOT: Final = "/broker"
NOW_MS: Final = 1_700_000_000_000
MIB: Final = 1024 * 1024
TEST_S_MAX: Final = 1_000
"""By the virtual clock: a test that waits for ever fails at once."""
TURNS: Final = 200
"""More than anything takes that needs no time."""


def virtual(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test on a loop whose time passes as soon as nothing else is to do."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        in_virtual_time(lambda: asyncio.wait_for(test(*args, **kwargs), TEST_S_MAX))

    return run


async def settle() -> None:
    """Let everything happen that takes no time."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def served(handling: Coroutine[Any, Any, T]) -> T:
    """What a handler answers, in a task of its own, as gRPC has it. The answer is taken at once."""
    return await asyncio.create_task(handling)


async def unread(handling: Coroutine[Any, Any, object]) -> None:
    """As gRPC does with an answer that is not taken."""
    await handling
    await asyncio.Event().wait()


class Aside(ThreadPoolExecutor):
    """Does what is to be done aside at once; or, while it is held, when it is let go."""

    def __init__(self) -> None:
        super().__init__(1)
        self.is_held = False
        self._held: list[Callable[[], None]] = []

    def submit(self, work: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = work(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        if self.is_held:
            self._held.append(run)
        else:
            run()
        return future

    def hold(self) -> None:
        self.is_held = True

    def let_go(self) -> None:
        self.is_held = False
        held, self._held = self._held, []
        for run in held:
            run()


class Alone:
    """Ways to other brokers that lead nowhere."""

    def send(self, *_: object, **__: object) -> None: ...

    def link_to(self, _: int) -> bytes | None:
        return None

    def push_ready(self, *_: object) -> None: ...

    def counted(self, *_: object) -> None: ...

    def not_following(self, *_: object) -> None: ...

    def forget(self, _: object) -> None: ...

    def propose(self, *_: object) -> None: ...

    def hand_over(self, *_: object) -> None: ...


def received(request: R) -> Received[R]:
    """A request as its handler gets it."""
    return with_raw(type(request))(request.SerializeToString())


class Call:
    """What a handler uses of gRPC's context."""

    def __init__(self, *, peer: str = "ipv4:10.0.0.1:1", remaining_s: float | None = None) -> None:
        self._peer = peer
        self._remaining_s = remaining_s
        self._requests: asyncio.Queue[Any] = asyncio.Queue()
        self.answers: asyncio.Queue[Any] = asyncio.Queue()
        self.takes = asyncio.Event()
        """Whether the client takes what it is sent."""
        self.takes.set()
        self.is_gone = False

    def peer(self) -> str:
        return self._peer

    def time_remaining(self) -> float | None:
        return self._remaining_s

    async def read(self) -> object:
        message = await self._requests.get()
        if isinstance(message, Exception):
            raise message
        return message

    async def write(self, message: Any, /) -> None:
        await self.takes.wait()
        if self.is_gone:
            raise grpc.aio.UsageError("the call is over")
        if isinstance(message, Spliced):
            message = broker_pb2.SubscribeResponse.FromString(message.SerializeToString())
        self.answers.put_nowait(message)

    # -- the client's side -----------------------------------------------------------------------------------------

    def send(self, *messages: object) -> None:
        for message in messages:
            parsed = received(message) if isinstance(message, broker_pb2.ProduceStreamRequest) else message
            self._requests.put_nowait(parsed)


class Stream:
    """A stream that is being served."""

    def __init__(self, serve: Callable[[Call], Awaitable[None]], call: Call) -> None:
        self.call = call
        self.task: asyncio.Task[None] = asyncio.ensure_future(serve(call))

    def send(self, *messages: object) -> None:
        self.call.send(*messages)

    def end(self) -> None:
        """The client has nothing more to say."""
        self.call.send(grpc.aio.EOF)

    async def next(self) -> Any:
        """The next message that says anything."""
        while True:
            message = await self.call.answers.get()
            if not isinstance(message, broker_pb2.SubscribeResponse) or message.partitions:
                return message

    async def closed(self) -> QuireError | None:
        """Wait for the end: the error with which it ended."""
        try:
            await self.task
        except QuireError as error:
            return error
        return None

    async def hang_up(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


class Counts:
    """What services tell of themselves."""

    def __init__(self) -> None:
        self.fetched_bytes = self.produced_batches = 0

    def fetched(self, size_bytes: int, /) -> None:
        self.fetched_bytes += size_bytes

    def produced(self, *, batches: int, size_bytes: int) -> None:
        self.produced_batches += batches


class World:
    def __init__(
        self,
        *,
        disk: SimDisk | None = None,
        process_bytes_max: int = 256 * MIB,
        connection_bytes_max: int = 64 * MIB,
        partition_bytes_max: int = 32 * MIB,
        removal_ms: int = 60_000,
    ) -> None:
        self.disk = disk or SimDisk()
        self.image = MetadataImage()
        self.aside = Aside()
        self.counts = Counts()
        self.may_lead = True
        self.has_room = True
        self.now_ms = NOW_MS
        self.applied: list[int] = []
        self.gone: list[bytes] = []
        self.ids: dict[str, bytes] = {}
        self._partitions_of: dict[str, dict[int, metadata_pb2.Partition]] = {}
        self._topics: dict[str, metadata_pb2.Topic] = {}
        self._version = 0
        self._next_id = 0
        self.memory = Memory(process_bytes_max=process_bytes_max, connection_bytes_max=connection_bytes_max)
        self.answers = Answers(self.memory)
        self.partitions = Partitions(
            self.image,
            broker_id=ME,
            disk=self.disk,
            root=ROOT,
            pool=self.aside,
            now_ms=lambda: self.now_ms,
            may_lead=lambda: self.may_lead,
            broker_epoch=lambda: EPOCH,
            exchange=Alone(),
            replica_config=ReplicaConfig(),
            on_applied=self.applied.append,
            on_gone=self.gone.append,
            register_anew=lambda why: None,
            waiting_bytes_max=partition_bytes_max,
            removal_ms=removal_ms,
        )
        self.producing = Producing(
            self.partitions,
            self.answers,
            has_room=lambda: self.has_room,
            now_ms=lambda: self.now_ms,
            observer=self.counts,
        )
        self.reading = Reading(self.partitions, self.answers.turns, observer=self.counts, pool=Aside())
        self.fetching = Fetching(self.reading, self.answers)
        self.offsets = Offsets(self.partitions, self.answers)
        self.followers = Followers(self.partitions, self.answers)
        self.streams = ProduceStreams(self.producing, self.answers)
        self.subscriptions = Subscriptions(self.reading, self.answers)
        self.following = Following(
            self.image,
            self.partitions,
            self.answers,
            limits=broker_pb2.BrokerLimits(request_bytes_max=32 * MIB, attributes_allowed=ATTRIBUTES_TAKEN),
            has_lease=lambda: self.may_lead,
        )
        self._running: asyncio.Task[None] | None = None
        self._open: list[Stream] = []

    async def __aenter__(self) -> Self:
        self.disk.make_dirs(f"{ROOT}/topics")
        enter()
        await self.partitions.load()
        self._running = asyncio.create_task(self.partitions.run())
        self.apply(
            metadata_pb2.MetadataRecord(cluster=metadata_pb2.Cluster(cluster_id="c", feature_level=1)),
            broker_record(ME, epoch=EPOCH),
        )
        await settle()
        return self

    async def __aexit__(self, *_: object) -> None:
        for stream in self._open:
            await stream.hang_up()
        self.aside.let_go()
        await settle()
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        await self.partitions.close()
        assert self.memory.used_bytes == 0, "something was taken and not given back"
        self.reading.close()

    # -- metadata --------------------------------------------------------------------------------------------------

    def apply(self, *records: metadata_pb2.MetadataRecord) -> int:
        """Make this known to the broker; the version."""
        before, self._version = self._version, self._version + 1
        delta = metadata_pb2.MetadataDelta(version=self._version, previous_version=before, records=records)
        changes = self.image.apply(
            controller_pb2.WatchMetadataResponse(deltas=controller_pb2.MetadataDeltas(deltas=[delta]))
        )
        assert changes is not None
        self.partitions.on_changes(changes)
        return self._version

    async def create(
        self,
        name: str = "orders",
        *,
        partitions: int = 1,
        isr: Sequence[int] = (ME,),
        replicas: Sequence[int] | None = None,
        leader: int = ME,
        tenant: str = "default",
        internal: bool = False,
        **config: Any,
    ) -> bytes:
        self._next_id += 1
        topic_id = bytes([self._next_id]) * 16
        replicas = tuple(replicas or isr)
        topic = metadata_pb2.Topic(
            topic_id=topic_id,
            tenant=tenant,
            name=name,
            internal=internal,
            partition_count=partitions,
            replication_factor=len(replicas),
            config=metadata_pb2.TopicConfig(**config),
        )
        self.ids[name], self._topics[name] = topic_id, topic
        of_topic = self._partitions_of[name] = {
            index: metadata_pb2.Partition(
                topic_id=topic_id,
                partition=index,
                replicas=replicas,
                isr=sorted(isr),
                leader=leader,
                leader_epoch=1,
                partition_epoch=1,
            )
            for index in range(partitions)
        }
        self.apply(topic_record(topic), *(partition_record(each) for each in of_topic.values()))
        await settle()
        return topic_id

    async def configure(self, name: str, **config: Any) -> None:
        topic = metadata_pb2.Topic()
        topic.CopyFrom(self._topics[name])
        topic.config.CopyFrom(metadata_pb2.TopicConfig(**config))
        self._topics[name] = topic
        self.apply(topic_record(topic))
        await settle()

    async def elect(self, name: str, index: int = 0, *, leader: int = ME, isr: Sequence[int] | None = None) -> int:
        """Another leadership; its epoch."""
        self.elect_now(name, index, leader=leader, isr=isr)
        await settle()
        return self._partitions_of[name][index].leader_epoch

    def elect_now(self, name: str, index: int = 0, *, leader: int = ME, isr: Sequence[int] | None = None) -> None:
        changed = metadata_pb2.Partition()
        changed.CopyFrom(self._partitions_of[name][index])
        changed.leader = leader
        changed.leader_epoch += 1
        self._change(name, changed, isr)

    async def change_isr(self, name: str, *isr: int) -> None:
        changed = metadata_pb2.Partition()
        changed.CopyFrom(self._partitions_of[name][0])
        self._change(name, changed, isr)
        await settle()

    def _change(self, name: str, changed: metadata_pb2.Partition, isr: Sequence[int] | None) -> None:
        changed.partition_epoch += 1
        if isr is not None:
            changed.ClearField("isr")
            changed.isr.extend(isr)
        self._partitions_of[name][changed.partition] = changed
        self.apply(partition_record(changed))

    async def delete(self, name: str) -> None:
        topic = self._topics.pop(name)
        deleted = metadata_pb2.DeletedTopic(
            topic_id=topic.topic_id, tenant=topic.tenant, name=name, version=self._version + 1, brokers=[ME]
        )
        self.apply(metadata_pb2.MetadataRecord(topic_deleted=deleted))
        await settle()

    def partition(self, name: str = "orders", index: int = 0) -> Partition:
        return next(each for each in self.partitions if each.key == (self.ids[name], index))

    # -- calls -----------------------------------------------------------------------------------------------------

    async def produce(
        self, *entries: broker_pb2.PartitionRecords, call: Call | None = None, **fields: Any
    ) -> list[broker_pb2.PartitionStored]:
        request = broker_pb2.ProduceRequest(partitions=entries, **fields)
        return list((await served(self.producing.produce(received(request), call or Call()))).partitions)

    async def store(self, *values: bytes, topic: str = "orders", partition: int = 0) -> broker_pb2.PartitionStored:
        """Store one batch, and expect no refusal."""
        [stored] = await self.produce(entry(topic, raw(*values), partition=partition))
        assert not stored.HasField("refusal"), stored
        return stored

    async def fetch(
        self, *partitions: broker_pb2.FetchFrom, call: Call | None = None, **fields: Any
    ) -> list[broker_pb2.PartitionFetched]:
        fields.setdefault("form", broker_pb2.RECORD_FORM_RAW)
        request = broker_pb2.FetchRequest(partitions=partitions, **fields)
        answer = await served(self.fetching.fetch(request, call or Call()))
        return list(broker_pb2.FetchResponse.FromString(answer.SerializeToString()).partitions)

    async def list_offsets(self, *queries: broker_pb2.OffsetQuery) -> list[broker_pb2.OffsetFound]:
        request = broker_pb2.ListOffsetsRequest(queries=queries)
        return list((await served(self.offsets.list_offsets(request, Call()))).offsets)

    async def describe_followers(self, *asked: broker_pb2.FollowersOf) -> list[broker_pb2.FollowersFound]:
        request = broker_pb2.DescribeFollowersRequest(partitions=asked)
        return list((await served(self.followers.describe(request, Call()))).partitions)

    def produce_stream(self, call: Call | None = None) -> Stream:
        return self._stream(self.streams.serve, call)

    def subscribe(self, call: Call | None = None, **start: Any) -> Stream:
        start.setdefault("form", broker_pb2.RECORD_FORM_RAW)
        stream = self._stream(self.subscriptions.serve, call)
        stream.send(broker_pb2.SubscribeRequest(start=broker_pb2.SubscribeStart(**start)))
        return stream

    def follow(self, *refs: topics_pb2.TopicRef, call: Call | None = None, **fields: Any) -> Stream:
        request = broker_pb2.FollowTopicsRequest(topics=refs, **fields)
        return self._stream(lambda call: self.following.serve(request, call), call)

    def _stream(self, serve: Callable[[Call], Awaitable[None]], call: Call | None) -> Stream:
        stream = Stream(serve, call or Call())
        self._open.append(stream)
        return stream


def enter(*, listener: str = "client", deadline: float = 1e9) -> None:
    """From now on this test is a call by that listener."""
    request_context.enter(
        request_context.RequestContext(
            principal=request_context.DEFAULT_PRINCIPAL,
            node_id=None,
            tenant=request_context.DEFAULT_TENANT,
            client_id="",
            listener=listener,
            deadline=deadline,
            trace=None,
        )
    )


# --- making and reading messages ------------------------------------------------------------------------------------


def broker_record(
    broker_id: int, *, epoch: int = 1, fenced: bool = False, **listeners: int
) -> metadata_pb2.MetadataRecord:
    """A broker with gRPC listeners at these ports."""
    return metadata_pb2.MetadataRecord(
        broker=metadata_pb2.Broker(
            broker_id=broker_id,
            broker_epoch=epoch,
            fenced=fenced,
            listeners=[
                metadata_pb2.Listener(name=name, host=f"b{broker_id}", port=port) for name, port in listeners.items()
            ],
        )
    )


def topic_record(topic: metadata_pb2.Topic) -> metadata_pb2.MetadataRecord:
    return metadata_pb2.MetadataRecord(topic=topic)


def partition_record(partition: metadata_pb2.Partition) -> metadata_pb2.MetadataRecord:
    return metadata_pb2.MetadataRecord(partition=partition)


def ref(topic: str | bytes) -> topics_pb2.TopicRef:
    return topics_pb2.TopicRef(name=topic) if isinstance(topic, str) else topics_pb2.TopicRef(topic_id=topic)


def batch(*values: bytes, timestamp_ms: int = NOW_MS, **options: Any) -> bytes:
    made: BatchOptions = options  # type: ignore[assignment]  # as the caller says
    return encode_columns(list(values) or [b"value"], timestamp_ms=timestamp_ms, **made)


def numbered(sequence: int, *values: bytes, producer_id: int = 7, epoch: int = 0) -> bytes:
    """A batch of an idempotent producer."""
    return batch(*values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def altered(made: bytes, **fields: int) -> bytes:
    """The batch with other words in its header, and a CRC that holds."""
    return pack_batch(parse_header(made)._replace(**fields), made[HEADER_BYTES:])


def raw(*values: bytes, **options: Any) -> records_pb2.RecordSet:
    return records_pb2.RecordSet(raw_batches=batch(*values, **options))


def batches(*made: bytes) -> records_pb2.RecordSet:
    return records_pb2.RecordSet(raw_batches=b"".join(made))


def decoded(*records: records_pb2.Record) -> records_pb2.RecordSet:
    return records_pb2.RecordSet(decoded=records_pb2.RecordList(records=records))


def entry(
    topic: str | bytes, records: records_pb2.RecordSet | None, *, partition: int = 0, **fields: Any
) -> broker_pb2.PartitionRecords:
    return broker_pb2.PartitionRecords(topic=ref(topic), partition=partition, records=records, **fields)


def at(topic: str | bytes = "orders", offset: int = 0, *, partition: int = 0, **fields: Any) -> broker_pb2.FetchFrom:
    return broker_pb2.FetchFrom(topic=ref(topic), partition=partition, offset=offset, **fields)


def feed(
    number: int, topic: str | bytes = "orders", offset: int = 0, *, partition: int = 0, **fields: Any
) -> broker_pb2.SubscribeFrom:
    return broker_pb2.SubscribeFrom(
        correlation_id=number, topic=ref(topic), partition=partition, offset=offset, **fields
    )


def add(*feeds: broker_pb2.SubscribeFrom) -> broker_pb2.SubscribeRequest:
    return broker_pb2.SubscribeRequest(add=broker_pb2.SubscribeAdd(partitions=feeds))


def credit(size_bytes: int) -> broker_pb2.SubscribeRequest:
    return broker_pb2.SubscribeRequest(credit_bytes=size_bytes)


def values_of(fetched: broker_pb2.PartitionFetched, *, offset: int = 0) -> list[bytes]:
    """The values of records from an offset on, in either form."""
    if fetched.records.WhichOneof("form") == "decoded":
        return [record.value for record in fetched.records.decoded.records]
    data = fetched.records.raw_batches
    return [
        record.value or b""
        for position, _ in iter_batches(data)
        for record in decode(data, position)
        if record.offset >= offset
    ]


def refusal_in(answer: Any) -> QuireError:
    """The error that an answer carries."""
    refusal = answer.refusal
    assert isinstance(refusal, errors_pb2.Refusal)
    assert answer.HasField("refusal"), answer
    return from_refusal(refusal)
