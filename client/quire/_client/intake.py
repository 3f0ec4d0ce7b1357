"""What a consumer has been sent and has not handed out, and what it is to be sent next. Pure; the lock is given.

    assigned ──position known──► wanted ──added to a stream──► subscribed ──records──► chunks ──taken──► messages
                                   ▲                               │
                                   └── refused, stream ended, leader moved, sought, paused and resumed ◄┘

Each time a partition is added to a stream it gets a new number, and whatever comes under another one is of the past:
what was on its way when somebody sought elsewhere is never handed out.

A stream may send so many bytes before it is told that some were taken. They count as taken when they were handed out
or thrown away, so memory is bounded by what streams may send.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final, NamedTuple

from quire._client.message import Message, messages_of
from quire._client.reading import Chunk, Reading, Stream, advised, release
from quire._client.starts import NAMED, Place, Start
from quire._client.stored import TopicPartition
from quire.errors import (
    ChecksumMismatchError,
    MalformedBatchError,
    OffsetOutOfRangeError,
    QuireError,
)
from quire.records import decode, parse_header
from quire.records.header import BatchHeader
from quire.refusals import from_refusal
from quire.v1 import broker_pb2

BAD_BYTES_MAX: Final = 3
"""How often in a row a batch with a wrong checksum is read again before the user is told."""
HAND_MAX: Final = 4_096
"""How many messages are taken at once for whoever iterates."""
RETRY_MS: Final = 1_000.0
"""How long a partition that cannot be read is left alone after the user was told."""


class SubscribeOrders(NamedTuple):
    """What a stream is to be told."""

    added: list[broker_pb2.SubscribeFrom]
    removed: list[int]
    credit_bytes: int

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.credit_bytes)


class Intake:
    def __init__(
        self,
        *,
        lock: AbstractContextManager[object],
        on_out_of_range: str,
        wake: Callable[[], object],
        arrived: Callable[[], object],
        now_ms: Callable[[], float],
        decoding: AbstractContextManager[object] | None = None,
    ) -> None:
        """`wake` is called, by any thread, when a broker is to be told something; `arrived` when there may be
        something to take. A batch is decoded within `decoding`."""
        self._lock = lock
        self._decoding: AbstractContextManager[object] = decoding or nullcontext()
        self._reset = NAMED.get(on_out_of_range)
        self._wake = wake
        self._arrived = arrived
        self._now_ms = now_ms
        self._readings: dict[TopicPartition, Reading] = {}
        self._turns: deque[Reading] = deque()
        """Whose turn it is to be taken from."""
        self._by_number: dict[int, Reading] = {}
        self._next_number = 1
        self._removed: dict[Stream, list[int]] = {}
        self._hand: list[Message] = []
        self._hand_at = 0
        """Messages that were taken for whoever iterates, and the first that was not handed out."""

    # -- assignment ------------------------------------------------------------------------------------------------

    @property
    def partitions(self) -> list[TopicPartition]:
        return list(self._readings)

    def reading(self, partition: TopicPartition) -> Reading | None:
        return self._readings.get(partition)

    def assign(self, reading: Reading) -> None:
        with self._lock:
            self._readings[reading.partition] = reading
            self._turns.append(reading)
        self._wake()

    def unassign(self, partition: TopicPartition) -> None:
        with self._lock:
            reading = self._readings.pop(partition, None)
            if reading is not None:
                self._turns.remove(reading)
                self._empty_hand_of(reading)
                self._drop(reading)
        self._wake()

    # -- positions -------------------------------------------------------------------------------------------------

    def position(self, reading: Reading) -> int:
        """Where reading goes on for the user, whatever was taken ahead."""
        for message in self._hand[self._hand_at :]:
            if message.partition == reading.partition.partition and message.topic == reading.partition.topic:
                return message.offset
        return reading.decoded[reading.decoded_at].offset if reading.decoded else reading.position

    def seek(self, reading: Reading, start: Start) -> None:
        with self._lock:
            self._empty_hand_of(reading)
            self._drop(reading)
            reading.error = None
            reading.resume_ms = 0.0
            reading.bad_bytes = 0
            reading.go_to(start)
        self._wake()

    def found(self, reading: Reading, place: Place, offset: int) -> None:
        """The answer to what had to be looked up, unless something else was asked since."""
        with self._lock:
            if reading.start is place:
                reading.go_to(offset)
        self._wake()

    def not_found(self, readings: Iterable[Reading], error: QuireError) -> None:
        """It could not be looked up. It is tried again; the user is told where only he can help."""
        told = False
        with self._lock:
            for reading in readings:
                if reading.start is None:
                    continue
                if not (error.retriable or error.stale_metadata):
                    told |= self._fail(reading, error)
                reading.resume_ms = max(reading.resume_ms, self._now_ms() + RETRY_MS)
        if told:
            self._arrived()

    def pause(self, reading: Reading) -> None:
        """Keep nothing of it: what it holds would be credit that the other partitions of its broker lack."""
        with self._lock:
            reading.paused = True
            if reading.start is None:
                position = self.position(reading)
                self._empty_hand_of(reading)
                self._drop(reading)
                reading.go_to(position)
        self._wake()

    def resume(self, reading: Reading) -> None:
        with self._lock:
            reading.paused = False
        self._wake()

    def unresolved(self, now_ms: float) -> dict[Reading, Place]:
        """What is to be looked up now."""
        return {
            reading: reading.start
            for reading in self._readings.values()
            if reading.start is not None and reading.error is None and reading.resume_ms <= now_ms
        }

    # -- what streams are to do ------------------------------------------------------------------------------------

    def plan(
        self, leader_of: Callable[[Reading], int | QuireError], streams: Mapping[int, Stream], now_ms: float
    ) -> tuple[dict[int, SubscribeOrders], list[int], float]:
        """What each stream is to be told now; which brokers lack a stream; when to look again.

        `leader_of` gives a broker, 0 where nobody leads, or an error that waiting does not mend.
        """
        added: dict[int, list[broker_pb2.SubscribeFrom]] = {}
        lacking: dict[int, None] = {}
        again_ms = float("inf")
        told = False
        with self._lock:
            for reading in self._readings.values():
                leader = leader_of(reading)
                if isinstance(leader, QuireError):
                    told |= self._fail(reading, leader)
                    again_ms = min(again_ms, max(reading.resume_ms, now_ms))
                    continue
                if reading.stream is not None and leader and reading.stream.broker_id != leader:
                    self._unsubscribe(reading)
                if reading.start is not None and reading.resume_ms > now_ms:
                    again_ms = min(again_ms, reading.resume_ms)
                if not reading.is_wanted or not leader:
                    continue
                if reading.resume_ms > now_ms:
                    again_ms = min(again_ms, reading.resume_ms)
                elif leader in streams:
                    added.setdefault(leader, []).append(self._subscribe(reading, streams[leader]))
                else:
                    lacking[leader] = None
            orders = {
                broker: SubscribeOrders(added.get(broker, []), self._removed.pop(stream, []), self._credit(stream))
                for broker, stream in streams.items()
            }
        if told:
            self._arrived()
        return {broker: order for broker, order in orders.items() if order}, list(lacking), again_ms

    def _subscribe(self, reading: Reading, stream: Stream) -> broker_pb2.SubscribeFrom:
        reading.number = self._next_number
        reading.stream = stream
        self._next_number += 1
        self._by_number[reading.number] = reading
        asked = broker_pb2.SubscribeFrom(
            correlation_id=reading.number, partition=reading.partition.partition, offset=reading.fetch_offset
        )
        asked.topic.topic_id = reading.topic_id
        return asked

    def _credit(self, stream: Stream) -> int:
        if not stream.is_due:
            return 0
        owed, stream.owed_bytes = stream.owed_bytes, 0
        return owed

    def _unsubscribe(self, reading: Reading) -> None:
        """It is not to be sent any more; what it holds stays."""
        if reading.number:
            del self._by_number[reading.number]
            if reading.stream is not None and not reading.stream.ended:
                self._removed.setdefault(reading.stream, []).append(reading.number)
        reading.number = 0
        reading.stream = None

    def _drop(self, reading: Reading) -> None:
        """Neither is anything to be sent, nor is what was sent of use."""
        self._unsubscribe(reading)
        for chunk in reading.chunks:
            release(chunk)
        reading.chunks.clear()
        reading.decoded = []
        reading.fetch_offset = reading.position

    def _empty_hand_of(self, reading: Reading) -> None:
        topic, partition = reading.partition
        left = self._hand[self._hand_at :]
        kept = [message for message in left if (message.topic, message.partition) != (topic, partition)]
        self._hand, self._hand_at = kept, 0

    # -- what streams bring ----------------------------------------------------------------------------------------

    def received(self, stream: Stream, message: broker_pb2.SubscribeResponse) -> None:
        if not message.partitions:
            return
        changed = refused = False
        with self._lock:
            for entry in message.partitions:
                reading = self._by_number.get(entry.correlation_id)
                if entry.HasField("refusal"):
                    if reading is not None:
                        refused = True
                        changed |= self._refused(reading, from_refusal(entry.refusal))
                    continue
                data = entry.records.raw_batches
                credit = entry.credit_bytes or len(data)
                if reading is None or not data:
                    stream.owed_bytes += credit
                    continue
                reading.backoff.reset()
                reading.fetch_offset = max(reading.fetch_offset, entry.next_offset)
                reading.chunks.append(Chunk(data, next_offset=entry.next_offset, credit_bytes=credit, stream=stream))
                stream.held_bytes += credit
                changed = True
            due = stream.is_due
        if changed:
            self._arrived()
        if due or refused:
            self._wake()

    def _refused(self, reading: Reading, error: QuireError) -> bool:
        """The last word under its number. Whether the user is to be told."""
        del self._by_number[reading.number]
        reading.number = 0
        reading.stream = None
        if isinstance(error, OffsetOutOfRangeError) and self._reset is not None:
            if not (reading.chunks or reading.decoded):
                reading.start = self._reset
                return False
            # What was read before is handed out first.
        elif not (error.retriable or error.stale_metadata):
            return self._fail(reading, error)
        reading.resume_ms = self._now_ms() + max(reading.backoff.next_ms(), error.retry_after_ms or 0)
        return False

    def _fail(self, reading: Reading, error: QuireError) -> bool:
        """Whether the user is to be told, and is not yet."""
        if reading.error is not None or reading.paused or reading.resume_ms > self._now_ms():
            return False
        reading.error = error
        return True

    def stream_ended(self, stream: Stream, *, pause_ms: float) -> None:
        """Its partitions are to be read elsewhere, or there again after a pause."""
        with self._lock:
            stream.ended = True
            self._removed.pop(stream, None)
            for reading in self._readings.values():
                if reading.stream is stream:
                    self._unsubscribe(reading)
                    reading.resume_ms = self._now_ms() + pause_ms
        self._wake()

    # -- what users take -------------------------------------------------------------------------------------------

    def next(self) -> Message | None:
        """One message, if there is one. Raises what the user is to be told."""
        hand, at = self._hand, self._hand_at
        if at >= len(hand):
            hand = self._hand = self._take(HAND_MAX)
            at = 0
            if not hand:
                return None
        self._hand_at = at + 1
        return hand[at]

    def take(self, records_max: int) -> list[Message]:
        """As many messages as there are, at most so many. Raises what the user is to be told once nothing is left."""
        if self._hand_at < len(self._hand):
            end = self._hand_at + records_max
            taken, self._hand_at = self._hand[self._hand_at : end], end
            return taken
        return self._take(records_max)

    def _take(self, records_max: int) -> list[Message]:
        taken: list[Message] = []
        due = False
        with self._lock:
            for _ in range(len(self._turns)):
                reading = self._turns[0]
                self._turns.rotate(-1)
                while len(taken) < records_max and (reading.decoded or reading.chunks):
                    try:
                        self._take_from(reading, taken, records_max)
                    except QuireError as error:
                        # Read it again: now, if the bytes may have been damaged on their way; else after the user was
                        # told.
                        self._drop(reading)
                        reading.bad_bytes += isinstance(error, ChecksumMismatchError)
                        if not isinstance(error, ChecksumMismatchError) or reading.bad_bytes > BAD_BYTES_MAX:
                            reading.error = error
                        due = True
                        break
                if reading.error is not None and not taken:
                    raise self._tell(reading)
                if len(taken) >= records_max:
                    break
            due |= any(reading.stream is not None and reading.stream.is_due for reading in self._readings.values())
        if due:
            self._wake()
        return taken

    def _tell(self, reading: Reading) -> QuireError:
        """The error of a partition, which is left alone for a while and then tried again."""
        error, reading.error = reading.error, None
        reading.resume_ms = self._now_ms() + RETRY_MS
        if error is None:
            raise RuntimeError("nothing to tell")
        self._wake()
        return advised(error, reading.partition, reading.position).with_traceback(None)

    def _take_from(self, reading: Reading, taken: list[Message], records_max: int) -> None:
        """Messages of one batch at most."""
        if not reading.decoded:
            self._decode(reading)
        end = reading.decoded_at + records_max - len(taken)
        taken += reading.decoded[reading.decoded_at : end]
        if end >= len(reading.decoded):
            reading.decoded, end = [], 0
        reading.decoded_at = end

    def _decode(self, reading: Reading) -> None:
        """The next batch. The position is behind it from then on: `decoded` says what is not taken of it."""
        chunk = reading.chunks[0]
        header: BatchHeader = parse_header(chunk.data, chunk.at)
        if header.end_offset > reading.position and not header.is_control:
            with self._decoding:
                self._decode_records(reading, header, chunk)
        reading.position = max(reading.position, header.end_offset)
        chunk.at += header.size_bytes
        if chunk.at >= len(chunk.data):
            reading.position = max(reading.position, chunk.next_offset)
            reading.chunks.popleft()
            release(chunk)

    def _decode_records(self, reading: Reading, header: BatchHeader, chunk: Chunk) -> None:
        try:
            records = decode(chunk.data, chunk.at)
        except MalformedBatchError as error:
            error.details["end_offset"] = str(header.end_offset)
            raise
        reading.bad_bytes = 0
        if header.base_offset < reading.position:
            records = [record for record in records if record.offset >= reading.position]
        reading.decoded_at = 0
        reading.decoded = messages_of(
            records,
            topic=reading.partition.topic,
            partition=reading.partition.partition,
            leader_epoch=header.leader_epoch,
        )
