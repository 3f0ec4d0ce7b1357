"""What replicas say to each other, as frames of the peer link: `ReplicationFrame` and its body."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, cast

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtobufMessage

from quire.errors import MalformedFrameError
from quire.types import Buffer
from quire.v1 import replication_pb2
from quire_broker.log.place import PartitionKey
from quire_broker.replica.messages import (
    Ack,
    Join,
    JoinAnswer,
    Message,
    Push,
    Rejoin,
    StreamComparison,
    StreamCount,
    StreamPosition,
    Want,
)
from quire_broker.replica.streams import STREAMS_MAX

FRAME_KIND: Final = 17
HEADER_BYTES: Final = 48 * 1024
"""A header of so much is full. The link takes 64 KiB, and no message needs more than what is left."""
BODY_BYTES: Final = 4 * 1024 * 1024
"""A body of so much is full. The link takes 32 MiB, and no batch needs more than what is left."""


_FIELD_BYTES: Final = 4
"""Of a message in a frame: which field it is, and how long."""


class Piece(NamedTuple):
    """The answer to a `Want`: batches, laid end to end; none if there are none to give."""

    request_id: int


class Received(NamedTuple):
    key: PartitionKey
    message: Message | Piece
    data: memoryview
    """The batches of a push or a piece."""


class FrameBuilder:
    """A frame that is still open."""

    def __init__(self) -> None:
        self._frame = replication_pb2.ReplicationFrame()
        self._pushed: list[Buffer] = []
        self._pieces: list[Buffer] = []
        self.header_bytes = self.body_bytes = 0

    @property
    def is_empty(self) -> bool:
        return not self.header_bytes

    @property
    def is_full(self) -> bool:
        """Whatever else there is to say is for another frame."""
        return self.header_bytes >= HEADER_BYTES or self.body_bytes >= BODY_BYTES

    def add(self, key: PartitionKey, message: Message | Piece, data: Buffer = b"") -> None:
        frame, topic_id, partition = self._frame, key.topic_id, key.partition
        added: ProtobufMessage
        match message:
            case Push():
                added = frame.pushes.add(
                    topic_id=topic_id,
                    partition=partition,
                    leader_epoch=message.leader_epoch,
                    attempt=message.attempt,
                    stream=_stream(message.stream),
                    base_offset=message.base_offset,
                    end_offset=message.end_offset,
                    log_start_offset=message.log_start_offset,
                    high_watermark=message.high_watermark,
                    size_bytes=len(data),
                )
                self._pushed.append(data)
            case Ack():
                added = frame.acks.add(
                    topic_id=topic_id,
                    partition=partition,
                    leader_epoch=message.leader_epoch,
                    attempt=message.attempt,
                    is_damaged=message.is_damaged,
                    streams=[
                        replication_pb2.StreamCount(stream=_stream(s), counted_offset=o) for s, o in message.streams
                    ],
                )
            case Join():
                added = frame.joins.add(
                    topic_id=topic_id,
                    partition=partition,
                    leader_epoch=message.leader_epoch,
                    broker_epoch=message.broker_epoch,
                    attempt=message.attempt,
                    is_damaged=message.is_damaged,
                    streams=[
                        replication_pb2.StreamPosition(
                            stream=_stream(at.stream),
                            log_start_offset=at.start_offset,
                            log_end_offset=at.end_offset,
                            last_epoch=at.last_epoch,
                        )
                        for at in message.streams
                    ],
                )
            case JoinAnswer():
                added = frame.join_answers.add(
                    topic_id=topic_id,
                    partition=partition,
                    leader_epoch=message.leader_epoch,
                    attempt=message.attempt,
                    is_settled=message.is_settled,
                    streams=[
                        replication_pb2.StreamComparison(
                            stream=_stream(each.stream),
                            log_start_offset=each.start_offset,
                            log_end_offset=each.end_offset,
                            epoch=each.epoch,
                            epoch_end_offset=each.epoch_end_offset,
                        )
                        for each in message.streams
                    ],
                )
            case Rejoin():
                added = frame.rejoins.add(
                    topic_id=topic_id, partition=partition, leader_epoch=message.leader_epoch, attempt=message.attempt
                )
            case Want():
                added = frame.wants.add(
                    topic_id=topic_id,
                    partition=partition,
                    request_id=message.request_id,
                    stream=_stream(message.stream),
                    base_offset=message.base_offset,
                    end_offset=message.end_offset,
                )
            case Piece():
                added = frame.pieces.add(
                    topic_id=topic_id, partition=partition, request_id=message.request_id, size_bytes=len(data)
                )
                self._pieces.append(data)
        self.header_bytes += _FIELD_BYTES + added.ByteSize()
        self.body_bytes += len(data)

    def build(self) -> tuple[bytes, Sequence[Buffer]]:
        """(header, body)."""
        return self._frame.SerializeToString(), [*self._pushed, *self._pieces]


def _stream(number: int) -> replication_pb2.Stream.ValueType:
    """Streams are an open enum: those of a newer broker have numbers, too."""
    return cast("replication_pb2.Stream.ValueType", number)


def received(header: Buffer, body: Buffer) -> Iterator[Received]:
    """What a frame says, in the order in which it is to be looked at. Raises MalformedFrameError before the first."""
    try:
        frame = replication_pb2.ReplicationFrame.FromString(bytes(header))
    except DecodeError as error:
        raise MalformedFrameError("the header of a replication frame does not parse") from error
    told = sum(each.size_bytes for each in frame.pushes) + sum(each.size_bytes for each in frame.pieces)
    if told != len(body):
        raise MalformedFrameError(f"a replication frame tells of {told} bytes of batches and has {len(body)}")
    for streams in (
        *(len(each.streams) for each in frame.joins),
        *(len(each.streams) for each in frame.join_answers),
        *(len(each.streams) for each in frame.acks),
    ):
        if streams > STREAMS_MAX:
            raise MalformedFrameError(f"a partition has at most {STREAMS_MAX} streams, not {streams}")
    return _messages(frame, memoryview(body))


def _messages(frame: replication_pb2.ReplicationFrame, body: memoryview) -> Iterator[Received]:
    nothing = body[:0]
    for join in frame.joins:
        positions = tuple(
            StreamPosition(at.stream, at.log_start_offset, at.log_end_offset, at.last_epoch) for at in join.streams
        )
        message: Message = Join(join.leader_epoch, join.broker_epoch, join.attempt, join.is_damaged, positions)
        yield Received(PartitionKey(join.topic_id, join.partition), message, nothing)
    for answer in frame.join_answers:
        comparisons = tuple(
            StreamComparison(at.stream, at.log_start_offset, at.log_end_offset, at.epoch, at.epoch_end_offset)
            for at in answer.streams
        )
        message = JoinAnswer(answer.leader_epoch, answer.attempt, answer.is_settled, comparisons)
        yield Received(PartitionKey(answer.topic_id, answer.partition), message, nothing)
    for rejoin in frame.rejoins:
        message = Rejoin(rejoin.leader_epoch, rejoin.attempt)
        yield Received(PartitionKey(rejoin.topic_id, rejoin.partition), message, nothing)
    at = 0
    for push in frame.pushes:
        message = Push(
            push.leader_epoch,
            push.attempt,
            push.stream,
            push.base_offset,
            push.end_offset,
            push.log_start_offset,
            push.high_watermark,
        )
        yield Received(PartitionKey(push.topic_id, push.partition), message, body[at : at + push.size_bytes])
        at += push.size_bytes
    for ack in frame.acks:
        counts = tuple(StreamCount(each.stream, each.counted_offset) for each in ack.streams)
        message = Ack(ack.leader_epoch, ack.attempt, ack.is_damaged, counts)
        yield Received(PartitionKey(ack.topic_id, ack.partition), message, nothing)
    for want in frame.wants:
        message = Want(want.request_id, want.stream, want.base_offset, want.end_offset)
        yield Received(PartitionKey(want.topic_id, want.partition), message, nothing)
    for piece in frame.pieces:
        key = PartitionKey(piece.topic_id, piece.partition)
        yield Received(key, Piece(piece.request_id), body[at : at + piece.size_bytes])
        at += piece.size_bytes
