"""Calls of a real broker that make no sense: on each method of each service, typed answers and nothing else.

The methods and the fields of their requests are taken from the contract, so that what is added to it is tried, too.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

import grpc.aio
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message

from quire.errors import (
    BatchTooLargeError,
    ChecksumMismatchError,
    InvalidArgumentError,
    MalformedBatchError,
    OffsetOutOfRangeError,
    OutcomeUnknownError,
    QuireError,
    UnknownPartitionError,
    UnknownTopicError,
    UnsupportedBatchError,
)
from quire.refusals import from_refusal
from quire.rpc_errors import from_rpc_error
from quire.v1 import broker_pb2, commands_pb2, controller_pb2, durability_pb2, metadata_pb2, records_pb2
from quire.v1.errors_pb2 import Refusal
from tests.integration.broker_cluster import BrokerCluster, BrokerProcess
from tests.integration.broker_probe import CALL_S, batch, entry, ref
from tests.integration.controller_cluster import LOOPBACK, refusal, told
from tests.integration.hostile_caller import (
    MIB,
    REQUEST_BYTES_MAX,
    SERVICE,
    UNEXPECTED,
    expected_to_be_well,
    hostile_cluster,
    stream_refusal,
    unary,
    under_attack,
)
from tests.unit.records_crafting import batch as crafted
from tests.unit.records_crafting import record

ADMIN: Final = "/quire.v1.ControllerAdminService/"
METHODS: Final[dict[str, MethodDescriptor]] = {
    f"/{service.full_name}/{method.name}": method
    for service in (
        broker_pb2.DESCRIPTOR.services_by_name["BrokerService"],
        controller_pb2.DESCRIPTOR.services_by_name["ControllerAdminService"],
    )
    for method in service.methods
}
VICTIM: Final = "victim"
"""Is there to have its replicas moved and its settings mistaken."""


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    yield from hostile_cluster(tmp_path_factory, VICTIM)


@pytest.fixture
async def broker(processes: BrokerCluster) -> AsyncIterator[BrokerProcess]:
    async for each in expected_to_be_well(processes):
        yield each


# --- messages that are none, or too large ---------------------------------------------------------------------------


async def refused(broker: BrokerProcess, name: str, body: bytes) -> QuireError:
    """The error with which the method answers these bytes."""
    method = METHODS[name]
    if method.client_streaming or method.server_streaming:
        return await stream_refusal(broker.channel, name, body)
    return await refusal(unary(broker.channel, name, body))


@pytest.mark.parametrize("name", METHODS)
async def test_bytes_that_are_no_request(broker: BrokerProcess, name: str) -> None:
    for body in (b"\xff" * 100, b"\x0b", b"\x0a\xff\xff\xff\xff\x0f"):
        assert isinstance(await refused(broker, name, body), InvalidArgumentError)


@pytest.mark.parametrize("name", METHODS)
async def test_requests_that_are_too_large(broker: BrokerProcess, name: str) -> None:
    """Beyond the listener's limit gRPC itself ends the call; beyond a method's own we do, and say what it is."""
    async with under_attack(broker):
        method, too_long = METHODS[name], bytes(REQUEST_BYTES_MAX + 1)
        if method.client_streaming or method.server_streaming:
            error = await stream_refusal(broker.channel, name, too_long)
            assert error.details["grpc_status"] == "RESOURCE_EXHAUSTED"
        else:
            with pytest.raises(grpc.aio.AioRpcError) as found:
                await unary(broker.channel, name, too_long)
            assert found.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        if method.name not in ("Produce", "ProduceStream"):  # which may bring as much as a listener takes
            error = await refused(broker, name, b"\x0a" + b"\x80\x80\xc0\x02" + bytes(5 * MIB))
            assert isinstance(error, InvalidArgumentError)
            assert "over the limit of" in error.message


async def test_what_is_no_call(broker: BrokerProcess) -> None:
    for name in (
        f"{SERVICE}Nothing",
        "/x",
        "/",
        "/quire.v1.Command/CreateTopic",
        "/quire.v1.ControllerService/Heartbeat",
    ):
        with pytest.raises(grpc.aio.AioRpcError) as missing:
            await unary(broker.channel, name, b"")
        assert missing.value.code() == grpc.StatusCode.UNIMPLEMENTED
    metadata = tuple(("quire-noise", "x" * 4_000) for _ in range(8))
    with pytest.raises(grpc.aio.AioRpcError) as found:
        await broker.stub.Fetch(broker_pb2.FetchRequest(), metadata=metadata, timeout=CALL_S)
    assert found.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    for noise in (
        random.randbytes(100_000),
        b"GET / HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 999,
    ):
        reader, writer = await asyncio.open_connection(LOOPBACK, broker.client_port)
        with suppress(ConnectionError):
            writer.write(noise)
            await writer.drain()
            await reader.read(100)
        writer.close()


# --- one field that lies, in a request that is well otherwise -------------------------------------------------------


def _partition(number: int) -> controller_pb2.PartitionRef:
    return controller_pb2.PartitionRef(topic=ref(VICTIM), partition=0, partition_epoch=number)


def _requests(number: int) -> dict[str, Sequence[Message]]:
    """A request of each method there is, or several of a stream. Other ones for each number, where that matters."""
    change = controller_pb2.ChangeId(client_id="liar", client_incarnation=random.randbytes(16), sequence=1)
    made = f"made-{number}"
    config = metadata_pb2.TopicConfig(
        partitioner=metadata_pb2.PARTITIONER_MURMUR3,
        flush=durability_pb2.FlushPolicy(mode=durability_pb2.FLUSH_MODE_INTERVAL, interval_ms=100),
        cleanup=metadata_pb2.CLEANUP_POLICY_DELETE,
    )
    assignment = [commands_pb2.ReplicaAssignment(replicas=[1])]
    messages = records_pb2.RecordList(
        records=[records_pb2.Record(value=b"v", headers=[records_pb2.Header(key="n", value=b"v")])]
    )
    message = broker_pb2.PartitionRecords(topic=ref("orders"), records=records_pb2.RecordSet(decoded=messages))
    entries = [entry("orders", batch(b"v")), message]
    return {
        "Produce": [broker_pb2.ProduceRequest(acks=durability_pb2.ACKS_ALL, wait_ms_max=5_000, partitions=entries)],
        "ProduceStream": [
            broker_pb2.ProduceStreamRequest(
                correlation_id=1, acks=durability_pb2.ACKS_ALL, wait_ms_max=5_000, partitions=entries
            )
        ],
        "Fetch": [
            broker_pb2.FetchRequest(
                bytes_max=1_000, partitions=[broker_pb2.FetchFrom(topic=ref("orders"), bytes_max=1_000)]
            )
        ],
        "Subscribe": [
            broker_pb2.SubscribeRequest(start=broker_pb2.SubscribeStart(credit_bytes=1_000, bytes_max=1_000)),
            broker_pb2.SubscribeRequest(
                add=broker_pb2.SubscribeAdd(
                    partitions=[broker_pb2.SubscribeFrom(correlation_id=1, topic=ref("orders"))]
                )
            ),
            broker_pb2.SubscribeRequest(credit_bytes=100),
            broker_pb2.SubscribeRequest(remove=broker_pb2.SubscribeRemove(correlation_ids=[1])),
        ],
        "ListOffsets": [
            broker_pb2.ListOffsetsRequest(
                queries=[
                    broker_pb2.OffsetQuery(
                        topic=ref("orders"), place=broker_pb2.OFFSET_PLACE_TIMESTAMP, timestamp_ms=1
                    )
                ]
            )
        ],
        "DescribeFollowers": [
            broker_pb2.DescribeFollowersRequest(partitions=[broker_pb2.FollowersOf(topic=ref("orders"))])
        ],
        "InitProducer": [broker_pb2.InitProducerRequest()],
        "FollowTopics": [broker_pb2.FollowTopicsRequest(topics=[ref("orders")])],
        "DescribeQuorum": [controller_pb2.DescribeQuorumRequest()],
        "DescribeCluster": [controller_pb2.DescribeClusterRequest()],
        "ListTopics": [controller_pb2.ListTopicsRequest(page_size=10)],
        "DescribeTopic": [controller_pb2.DescribeTopicRequest(topic=ref(VICTIM))],
        "CreateTopic": [
            controller_pb2.CreateTopicRequest(change_id=change, name=made, partition_count=1, config=config),
            controller_pb2.CreateTopicRequest(name=f"{made}-there", partition_count=1, assignments=assignment),
        ],
        "DeleteTopic": [controller_pb2.DeleteTopicRequest(change_id=change, topic=ref("nothing"))],
        "ConfigureTopic": [
            controller_pb2.ConfigureTopicRequest(change_id=change, topic=ref(VICTIM), set=config),
            controller_pb2.ConfigureTopicRequest(topic=ref(VICTIM), unset=["min_isr"]),
        ],
        "AddPartitions": [
            controller_pb2.AddPartitionsRequest(
                change_id=change, topic=ref(VICTIM), partition_count=1, assignments=assignment
            )
        ],
        "DrainBroker": [controller_pb2.DrainBrokerRequest(change_id=change, broker_id=77)],
        "UnregisterBroker": [controller_pb2.UnregisterBrokerRequest(change_id=change, broker_id=77, broker_epoch=1)],
        "ReassignPartition": [
            controller_pb2.ReassignPartitionRequest(change_id=change, partition=_partition(0), target=[1, 77])
        ],
        "CancelReassignment": [controller_pb2.CancelReassignmentRequest(change_id=change, partition=_partition(0))],
        "MoveLeaders": [
            controller_pb2.MoveLeadersRequest(
                change_id=change, moves=[controller_pb2.LeaderChoice(partition=_partition(0), to_broker=77)]
            )
        ],
        "ElectPreferredLeaders": [
            controller_pb2.ElectPreferredLeadersRequest(change_id=change, partitions=[_partition(0)])
        ],
        "ElectUncleanLeaders": [
            controller_pb2.ElectUncleanLeadersRequest(change_id=change, partitions=[_partition(0)])
        ],
        "RaiseFeatureLevel": [controller_pb2.RaiseFeatureLevelRequest(change_id=change, level=1)],
    }


NUMBERS: Final = (-(2**63), -(2**31), -1, 0, 1_001, 2**31 - 1, 2**63 - 1, 2**64 - 1)
TEXTS: Final = ("", "../../x", "..", "\0", "x" * 10_000, "оrders")
BYTES: Final = (b"", b"\xff" * 16, b"\xff" * 17, b"\0" * 300)
ANSWER_ALL: Final = ("DescribeQuorum", "DescribeCluster")
"""Nothing that stands in these can be wrong."""
AT_ONCE: Final = 20
Change = Callable[[Message], None]


def _lies(kind: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Change]]:
    """Each change of one field, at any depth, with what to call it."""
    for field in kind.fields:
        name = ".".join((*path, field.name))
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            yield from _lies(field.message_type, (*path, field.name))
            if field.is_repeated:
                yield f"{name} x 1,001", _at(path, partial(_repeat, field, 1_001))
            continue
        if field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
            values: Sequence[object] = TEXTS if field.type == FieldDescriptor.TYPE_STRING else BYTES
        elif field.type == FieldDescriptor.TYPE_BOOL:
            continue
        else:
            values = NUMBERS
        for value in values:
            yield f"{name} = {value!r}"[:60], _at(path, partial(_put, field, value))


def _at(path: tuple[str, ...], change: Change) -> Change:
    """The change, of what is there at the end of the path: in the first entry of what is repeated."""

    def changed(message: Message) -> None:
        for name in path:
            inner = getattr(message, name)
            if not isinstance(inner, Message):
                if not inner:
                    raise LookupError
                inner = inner[0]
            elif not message.HasField(name):
                raise LookupError
            message = inner
        change(message)

    return changed


def _put(field: Any, value: Any, message: Message) -> None:
    if field.is_repeated:
        repeated = getattr(message, field.name)
        if not repeated:
            raise LookupError
        repeated[0] = value
        return
    if field.containing_oneof is not None and message.WhichOneof(field.containing_oneof.name) is None:
        raise LookupError
    setattr(message, field.name, value)


def _repeat(field: Any, count: int, message: Message) -> None:
    repeated = getattr(message, field.name)
    if not repeated:
        raise LookupError
    repeated.extend([repeated[0]] * (count - len(repeated)))


class Lie(NamedTuple):
    what: str
    requests: Sequence[Message]


def lies_to(name: str) -> list[Lie]:
    method = METHODS[name]
    told: list[Lie] = []
    numbers = itertools.count()
    for which in range(len(_requests(0)[method.name])):
        for what, change in _lies(method.input_type):
            requests = _requests(next(numbers))[method.name]
            try:
                change(requests[which])
            except (LookupError, ValueError):  # there is no such field here, or it cannot hold that
                continue
            # None behind it: a client that writes to a stream that was ended is not told how it was.
            told.append(Lie(what, requests[: which + 1] if method.client_streaming else [requests[which]]))
    return told


async def answers_to(broker: BrokerProcess, name: str, requests: Sequence[Message]) -> list[Message]:
    """What the method answers until it ends, or has said all that it has to say at once."""
    method = METHODS[name]
    kind = message_factory.GetMessageClass(method.output_type)
    bodies = [each.SerializeToString() for each in requests]
    if method.client_streaming:
        streams: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = broker.channel.stream_stream(name)
        call = streams(timeout=CALL_S)
        with suppress(asyncio.InvalidStateError):  # it was ended before it had heard everything
            for body in bodies:
                await call.write(body)
            await call.done_writing()
        return [kind.FromString(answer) async for answer in call]
    if method.server_streaming:
        stream: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = broker.channel.unary_stream(name)
        following = stream(bodies[0], timeout=CALL_S)
        first = await following.read()
        following.cancel()
        assert isinstance(first, bytes)
        return [kind.FromString(first)]
    return [kind.FromString(await unary(broker.channel, name, bodies[0]))]


def refusals_in(message: Message) -> Iterator[Refusal]:
    if isinstance(message, Refusal):
        yield message
        return
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for each in value if field.is_repeated else [value]:
                yield from refusals_in(each)


@pytest.mark.parametrize("name", METHODS)
async def test_any_field_may_lie(broker: BrokerProcess, processes: BrokerCluster, name: str) -> None:
    """Whatever stands there is taken or refused by an error with a reason; nothing ends unknown, nothing hangs."""
    lies = lies_to(name)
    assert lies or METHODS[name].name in ANSWER_ALL
    errors: list[tuple[str, QuireError]] = []

    async def tell(lie: Lie) -> None:
        try:
            for answer in await answers_to(broker, name, lie.requests):
                errors.extend((lie.what, from_refusal(each)) for each in refusals_in(answer))
        except grpc.aio.AioRpcError as error:
            errors.append((lie.what, from_rpc_error(error)))

    async with under_attack(broker):
        for first in range(0, len(lies), AT_ONCE):
            await asyncio.gather(*map(tell, lies[first : first + AT_ONCE]))
    vague = [
        (what, error) for what, error in errors if isinstance(error, OutcomeUnknownError) or error.reason == "UNKNOWN"
    ]
    assert vague == []
    assert errors or METHODS[name].name in ANSWER_ALL, "nothing was refused"
    for member in processes.controllers:  # which are asked by the broker
        assert [
            line for line in member.log.read_text().splitlines() if any(each in line for each in UNEXPECTED)
        ] == []


# --- what lies in more than one way ---------------------------------------------------------------------------------

GOOD: Final = batch(b"value")
BATCHES: Final[Sequence[tuple[str, bytes, type[QuireError]]]] = (
    ("nothing", b"", MalformedBatchError),
    ("noise", b"\xff" * 300, MalformedBatchError),
    ("a header that ends early", GOOD[:30], MalformedBatchError),
    ("records that end early", GOOD[:-1], MalformedBatchError),
    ("a length that is negative", GOOD[:8] + b"\xff\xff\xff\xff" + GOOD[12:], MalformedBatchError),
    ("a length beyond all limits", GOOD[:8] + b"\x7f\xff\xff\xff" + GOOD[12:], BatchTooLargeError),
    ("a flipped bit", GOOD[:-1] + bytes([GOOD[-1] ^ 1]), ChecksumMismatchError),
    ("a batch over the topic's limit", batch(bytes(2 * MIB)), BatchTooLargeError),
    (
        "a count that is not that of the offsets",
        crafted(record(), record_count=2, last_offset_delta=0),
        MalformedBatchError,
    ),
    ("a count beyond all limits", crafted(record(), record_count=2**31 - 1), QuireError),
    ("a negative count", crafted(record(), record_count=-1), MalformedBatchError),
    ("a control batch", crafted(record(), attributes=0x20), UnsupportedBatchError),
    ("a reserved bit", crafted(record(), attributes=-0x8000), UnsupportedBatchError),
    ("a feature that is not there yet", crafted(record(), attributes=0x0400), UnsupportedBatchError),
)


@pytest.mark.parametrize(("what", "data", "kind"), BATCHES, ids=[what for what, _, _ in BATCHES])
async def test_batches_that_lie(broker: BrokerProcess, what: str, data: bytes, kind: type[QuireError]) -> None:
    """By both ways to store; and what is good beside them is stored."""
    partitions = [entry("orders", data), entry("orders", GOOD, partition=1)]
    asked = broker_pb2.ProduceStreamRequest(correlation_id=7, partitions=partitions)
    stream = broker.stub.ProduceStream(timeout=CALL_S)
    await stream.write(asked)
    await stream.done_writing()
    [streamed] = [answer async for answer in stream]
    assert streamed.correlation_id == 7
    called = await told(broker.stub.Produce(broker_pb2.ProduceRequest(partitions=partitions), timeout=CALL_S))
    for answer in (streamed, called):
        wrong, right = answer.partitions
        error = from_refusal(wrong.refusal)
        assert isinstance(error, kind), error
        assert not isinstance(error, OutcomeUnknownError)
        assert wrong.base_offset == -1
        assert right.base_offset >= 0


PLACES: Final[Sequence[tuple[str, int, int | None, type[QuireError]]]] = (
    ("nothing", 0, None, UnknownTopicError),
    ("../../x", 0, None, UnknownTopicError),
    ("..", 0, None, UnknownTopicError),
    ("orders/0", 0, None, UnknownTopicError),
    ("\0", 0, None, UnknownTopicError),
    ("x" * 10_000, 0, None, UnknownTopicError),
    ("оrders", 0, None, UnknownTopicError),
    ("orders", -1, None, UnknownPartitionError),
    ("orders", 2, None, UnknownPartitionError),
    ("orders", 2**31 - 1, None, UnknownPartitionError),
    ("orders", 0, -1, QuireError),
    ("orders", 0, 2**31 - 1, QuireError),
)


@pytest.mark.parametrize(("topic", "partition", "epoch", "kind"), PLACES)
async def test_places_that_are_none(
    broker: BrokerProcess, topic: str, partition: int, epoch: int | None, kind: type[QuireError]
) -> None:
    """Asked by all methods of brokers that name a place, and nothing is made of it on the disk."""
    before = folders(broker)
    place: dict[str, Any] = {"topic": ref(topic), "partition": partition, "leader_epoch": epoch}
    records = entry("", GOOD).records
    requests: dict[str, Sequence[Message]] = {
        "Produce": [broker_pb2.ProduceRequest(partitions=[broker_pb2.PartitionRecords(records=records, **place)])],
        "ProduceStream": [
            broker_pb2.ProduceStreamRequest(partitions=[broker_pb2.PartitionRecords(records=records, **place)])
        ],
        "Fetch": [broker_pb2.FetchRequest(partitions=[broker_pb2.FetchFrom(**place)])],
        "Subscribe": [
            broker_pb2.SubscribeRequest(start=broker_pb2.SubscribeStart()),
            broker_pb2.SubscribeRequest(add=broker_pb2.SubscribeAdd(partitions=[broker_pb2.SubscribeFrom(**place)])),
        ],
        "ListOffsets": [
            broker_pb2.ListOffsetsRequest(
                queries=[broker_pb2.OffsetQuery(place=broker_pb2.OFFSET_PLACE_LATEST, **place)]
            )
        ],
    }
    requests["DescribeFollowers"] = [
        broker_pb2.DescribeFollowersRequest(partitions=[broker_pb2.FollowersOf(**place)])
    ]
    for method, asked in requests.items():
        name = SERVICE + method
        answers = await (first_answer(broker, asked) if method == "Subscribe" else answers_to(broker, name, asked))
        [refused] = [each for answer in answers for each in refusals_in(answer)]
        error = from_refusal(refused)
        assert isinstance(error, kind), (method, error)
        assert error.stale_metadata, (method, error)
    assert folders(broker) == before


def folders(broker: BrokerProcess) -> set[str]:
    """Of topics, and beside them."""
    return {path.name for place in (".", "broker", "broker/topics") for path in (broker.data_dir / place).iterdir()}


async def first_answer(broker: BrokerProcess, requests: Sequence[Any]) -> list[Message]:
    """Of a subscription that stays open."""
    stream = broker.stub.Subscribe(timeout=CALL_S)
    for each in requests:
        await stream.write(each)
    answer = await stream.read()
    stream.cancel()
    assert isinstance(answer, broker_pb2.SubscribeResponse)
    return [answer]


@pytest.mark.parametrize("offset", [-1, -(2**63), 2**63 - 1])
async def test_offsets_that_are_none(broker: BrokerProcess, offset: int) -> None:
    asked = broker_pb2.FetchFrom(topic=ref("orders"), offset=offset)
    subscribed = broker_pb2.SubscribeFrom(topic=ref("orders"), offset=offset)
    fetched = await told(broker.stub.Fetch(broker_pb2.FetchRequest(partitions=[asked]), timeout=CALL_S))
    start = broker_pb2.SubscribeRequest(start=broker_pb2.SubscribeStart())
    add = broker_pb2.SubscribeRequest(add=broker_pb2.SubscribeAdd(partitions=[subscribed]))
    for answer in (fetched, *await first_answer(broker, [start, add])):
        [refused] = refusals_in(answer)
        assert isinstance(from_refusal(refused), OffsetOutOfRangeError)
