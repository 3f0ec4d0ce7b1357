"""Raw batches that are put into messages, or taken out of them, past protobuf: it must come to the same."""

from __future__ import annotations

import random

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.v1 import broker_pb2, records_pb2, topics_pb2
from quire_broker.service.splice import ENTRIES_MAX, Fetched, Spliced, divide

RAW = st.binary(max_size=300)
KINDS = [broker_pb2.ProduceRequest, broker_pb2.ProduceStreamRequest]

records = st.one_of(
    st.builds(records_pb2.RecordSet),
    st.builds(records_pb2.RecordSet, raw_batches=RAW),
    st.builds(
        records_pb2.RecordSet,
        decoded=st.builds(
            records_pb2.RecordList, records=st.lists(st.builds(records_pb2.Record, value=RAW), max_size=3)
        ),
    ),
)
entries = st.lists(
    st.builds(
        broker_pb2.PartitionRecords,
        topic=st.builds(topics_pb2.TopicRef, name=st.text(max_size=10)),
        partition=st.integers(0, 1000),
        leader_epoch=st.none() | st.integers(0, 1 << 30),
        records=st.none() | records,
    ),
    max_size=4,
)


def parsed(kind: type[Message], data: bytes, *, large_bytes: int = 0) -> Message | None:
    """What protobuf makes of the parts, put together again; None if it does not parse."""
    head, raw = divide(data, kind, large_bytes=large_bytes)
    try:
        message = kind.FromString(head)
    except DecodeError:
        return None
    for entry, taken in zip(message.partitions, raw, strict=bool(raw)):  # type: ignore[attr-defined]  # both have them
        if taken is not None:
            assert entry.records.WhichOneof("form") == "raw_batches"
            assert not entry.records.raw_batches
            entry.records.raw_batches = bytes(taken)
    return message


def whole(kind: type[Message], data: bytes) -> Message | None:
    try:
        return kind.FromString(data)
    except DecodeError:
        return None


@pytest.mark.parametrize("kind", KINDS)
@given(
    partitions=entries, acks=st.integers(0, 3), wait_ms_max=st.integers(-1, 1 << 40), large_bytes=st.integers(0, 300)
)
def test_what_is_divided_is_the_same_request(
    kind: type[broker_pb2.ProduceRequest],
    partitions: list[broker_pb2.PartitionRecords],
    acks: int,
    wait_ms_max: int,
    large_bytes: int,
) -> None:
    request = kind(partitions=partitions, wait_ms_max=wait_ms_max)
    request.acks = acks  # type: ignore[assignment]  # any number that the wire has
    assert parsed(kind, request.SerializeToString(), large_bytes=large_bytes) == request


@settings(max_examples=300)
@given(partitions=entries, seed=st.integers(0, 1 << 32))
def test_damaged_requests_come_to_the_same_too(partitions: list[broker_pb2.PartitionRecords], seed: int) -> None:
    randomness = random.Random(seed)
    data = bytearray(broker_pb2.ProduceStreamRequest(correlation_id=7, partitions=partitions).SerializeToString())
    for _ in range(randomness.randrange(4)):
        match randomness.randrange(3):
            case 0 if data:
                data[randomness.randrange(len(data))] = randomness.randrange(256)
            case 1:
                at = randomness.randrange(len(data) + 1)
                data[at:at] = randomness.randbytes(randomness.randrange(5))
            case _:
                del data[randomness.randrange(len(data) + 1) :]
    kind = broker_pb2.ProduceStreamRequest
    assert parsed(kind, bytes(data)) == whole(kind, bytes(data))


def test_raw_batches_of_large_entries_are_not_copied() -> None:
    raw = random.Random(1).randbytes(100_000)
    request = broker_pb2.ProduceStreamRequest(
        correlation_id=1,
        partitions=[
            broker_pb2.PartitionRecords(partition=0, records=records_pb2.RecordSet(raw_batches=b"small")),
            broker_pb2.PartitionRecords(partition=1, records=records_pb2.RecordSet(raw_batches=raw)),
        ],
    )
    data = request.SerializeToString()
    head, taken = divide(data, broker_pb2.ProduceStreamRequest)
    assert len(head) < 100
    assert taken[0] is None
    assert taken[1] is not None
    assert taken[1].obj is data
    assert taken[1] == raw


def test_requests_of_many_entries_are_left_alone() -> None:
    entry = broker_pb2.PartitionRecords(records=records_pb2.RecordSet(raw_batches=bytes(20_000)))
    data = broker_pb2.ProduceRequest(partitions=[entry] * (ENTRIES_MAX + 1)).SerializeToString()
    assert divide(data, broker_pb2.ProduceRequest) == (data, ())


@given(
    answers=st.lists(
        st.tuples(
            st.builds(
                broker_pb2.PartitionFetched,
                topic_id=st.binary(max_size=16),
                partition=st.integers(0, 1000),
                next_offset=st.integers(0, 1 << 62),
                correlation_id=st.integers(0, 1 << 63),
            ),
            st.none() | st.binary(max_size=70_000),
        ),
        max_size=4,
    )
)
def test_what_is_joined_is_the_same_answer(answers: list[tuple[broker_pb2.PartitionFetched, bytes | None]]) -> None:
    spliced = Spliced(Fetched(answer, raw) for answer, raw in answers)
    data = spliced.SerializeToString()
    assert spliced.ByteSize() == len(data)
    for answer, raw in answers:
        if raw is not None:
            answer.records.raw_batches = raw
    for kind in (broker_pb2.FetchResponse, broker_pb2.SubscribeResponse):
        assert kind.FromString(data) == kind(partitions=[answer for answer, _ in answers])
