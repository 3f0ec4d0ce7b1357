"""Where records wait for company: one open batch a partition, and room for so many bytes altogether.

`append` is called for every record, by any thread of the user's, and is written for that: what is rare (the first
record of a batch, a full buffer, an unknown topic) is done elsewhere. Pure: clocks and the lock are given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Final, Generic, TypeVar

from quire._client.arguments import HeadersArgument, as_bytes, as_column, as_headers
from quire._client.batch import Batch
from quire._client.outbox import Outbox
from quire._client.partitioners import Chooser, KeyPartitioner
from quire._client.room import Room
from quire.errors import BatchTooLargeError, InvalidArgumentError, QuireError, UnknownPartitionError
from quire.link.backoff import Backoff
from quire.records import BATCH_BYTES_MAX, HEADER_BYTES, Codec, Header
from quire.records.assemble import check_timestamp

RECORD_OVERHEAD_BYTES: Final = 32
"""What a record counts beside key, value and headers: no less than lengths and deltas take encoded."""
STICKY_BYTES: Final = 32 * 1024
"""So many bytes of records without keys go to one partition before the next one gets some."""
FAILED_MAX: Final = 100
"""So many batches that failed are remembered for whoever flushes."""
SENT_MANY_MAX: Final = 1 << 20

D = TypeVar("D")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Of a producer, as far as batches are concerned."""

    batch_bytes: int
    buffer_bytes: int
    delivery_ms_max: int
    idempotent: bool
    codec: Codec


@dataclass(frozen=True, kw_only=True, slots=True)
class Clocks:
    """Milliseconds: on the monotonic clock, and since the epoch."""

    now_ms: Callable[[], float]
    wall_ms: Callable[[], int]


class TopicOutboxes:
    """A topic, as whoever appends needs to know it."""

    __slots__ = (
        "batch_bytes",
        "by_key",
        "choose",
        "count",
        "name",
        "outboxes",
        "record_bytes_max",
        "sticky",
        "sticky_left",
        "topic_id",
    )

    def __init__(
        self,
        name: str,
        topic_id: bytes,
        *,
        by_key: KeyPartitioner | None,
        choose: Chooser | None,
        batch_bytes: int,
        record_bytes_max: int,
        first_sticky: int,
    ) -> None:
        """`by_key` decides for records with keys, `choose` for all others; a record that neither decides for sticks
        to the partition that the one before went to. More than `record_bytes_max` fits into no batch."""
        self.name = name
        self.topic_id = topic_id
        self.by_key = by_key
        self.choose = choose
        self.batch_bytes = batch_bytes
        self.record_bytes_max = record_bytes_max
        self.outboxes: list[Outbox] = []
        self.count = 0
        self.sticky = first_sticky
        self.sticky_left = STICKY_BYTES

    def stick_elsewhere(self, sent_bytes: int) -> None:
        """A batch of the partition that records without keys stick to is on its way: is it another one's turn?"""
        self.sticky_left -= sent_bytes
        if self.sticky_left <= 0:
            self.sticky_left = STICKY_BYTES
            self.sticky = (self.sticky + 1) % self.count


@dataclass(frozen=True, slots=True)
class Span:
    """Records of one `send_many` that lie together in a batch."""

    batch: Batch
    first: int
    count: int


class Accumulator(Generic[D]):
    def __init__(
        self,
        settings: Settings,
        *,
        clocks: Clocks,
        lock: AbstractContextManager[object],
        backoff: Callable[[], Backoff],
        delivery: Callable[[Batch, int], D],
        wake: Callable[[], object],
    ) -> None:
        """`delivery` makes what `append` gives; `wake` is called, by any thread, when there is something to send."""
        self._settings = settings
        self._now_ms = clocks.now_ms
        self._wall_ms = clocks.wall_ms
        self.lock = lock
        self._backoff = backoff
        self._delivery = delivery
        self._wake = wake
        self._topics: dict[str, TopicOutboxes] = {}
        self.room = Room(settings.buffer_bytes, lock=lock)
        self.active: dict[Outbox, None] = {}
        """Those that are not idle, in a fixed order. Changed under the lock."""
        self.unsettled: dict[Batch, None] = {}
        """In the order in which they were begun."""
        self._failed: list[Batch] = []

    # -- topics ------------------------------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicOutboxes | None:
        return self._topics.get(name)

    @property
    def topics(self) -> list[TopicOutboxes]:
        return list(self._topics.values())

    def set_topic(self, topic: TopicOutboxes, count: int) -> None:
        """From now on records of this name go here. Partitions may be added, and none is ever taken away."""
        with self.lock:
            for partition in range(len(topic.outboxes), count):
                topic.outboxes.append(
                    Outbox(
                        topic,
                        partition,
                        idempotent=self._settings.idempotent,
                        codec=self._settings.codec,
                        backoff=self._backoff(),
                    )
                )
            if not topic.count:
                topic.sticky %= count
            topic.count = count
            self._topics[topic.name] = topic

    def drop_topic(self, name: str) -> None:
        with self.lock:
            self._topics.pop(name, None)

    # -- records -----------------------------------------------------------------------------------------------------

    def append(
        self,
        name: str,
        value: bytes | None,
        key: bytes | None,
        headers: HeadersArgument,
        partition: int | None,
        timestamp_ms: int | None,
        room_bytes: int = 0,
    ) -> D | None:
        """Take a record; None if there is no room, or if nothing is known of the topic.

        `room_bytes` is what was granted to this record when there was none. Raises InvalidArgumentError,
        BatchTooLargeError and UnknownPartitionError for what no waiting can help.
        """
        topic = self._topics.get(name)
        if topic is None:
            return None
        if value.__class__ is not bytes:
            value = as_bytes(value, "value")
        size = RECORD_OVERHEAD_BYTES if value is None else RECORD_OVERHEAD_BYTES + len(value)
        if key is not None:
            if key.__class__ is not bytes:
                key = as_bytes(key, "key")
            size += len(key)  # type: ignore[arg-type]  # it is not None
        special: Sequence[Header] = ()
        if headers:
            special, headers_bytes = as_headers(headers)
            size += headers_bytes
        if timestamp_ms is not None:
            check_timestamp(timestamp_ms)
        if size > topic.record_bytes_max:
            raise self._too_large(topic, size)
        # Before the lock is taken: what decides may be the user's own.
        if partition is not None:
            _check_partition(topic, partition)
        elif key is not None and topic.by_key is not None:
            partition = topic.by_key(key, topic.count)
        elif topic.choose is not None:
            partition = topic.choose(key, topic.count)
        room = self.room
        with self.lock:
            used = room.used + size - room_bytes
            # Looked up again: a record for a topic that was dropped meanwhile would never be sent.
            if (used > room.limit and not room_bytes) or self._topics.get(name) is not topic:
                return None
            outbox = topic.outboxes[topic.sticky if partition is None else partition]
            batch = outbox.open
            if batch is None or batch.size_bytes + size > topic.batch_bytes:
                batch = self._batch_for(outbox, size, sticks=partition is None)
            room.used = used
            batch.size_bytes += size
            values = batch.values
            index = len(values)
            values.append(value)
            if key is not None or batch.keys is not None:
                batch.add_key(key)
            if special or timestamp_ms is not None or batch.headers is not None:
                batch.add_special(special, timestamp_ms)
        return self._delivery(batch, index)

    def size_of(self, value: bytes | None, key: bytes | None, headers: HeadersArgument) -> int:
        """What a record counts."""
        size = RECORD_OVERHEAD_BYTES + len(as_bytes(value, "value") or b"") + len(as_bytes(key, "key") or b"")
        return size + as_headers(headers)[1] if headers else size

    def _batch_for(self, outbox: Outbox, size_bytes: int, *, sticks: bool) -> Batch:
        """An open batch with room for a record, of this partition or of that to which records stick now."""
        batch = outbox.open
        if batch is not None and batch.size_bytes + size_bytes > outbox.topic.batch_bytes:
            self._leave(outbox, batch)
            outbox.waiting.append(batch)
            batch = None
            if sticks and (other := outbox.topic.outboxes[outbox.topic.sticky]) is not outbox:
                return self._batch_for(other, size_bytes, sticks=False)
        return batch or self._begin(outbox)

    def _begin(self, outbox: Outbox) -> Batch:
        now_ms = self._now_ms()
        batch = outbox.open = Batch(
            outbox,
            timestamp_ms=self._wall_ms(),
            opened_ms=now_ms,
            deadline_ms=now_ms + self._settings.delivery_ms_max,
        )
        batch.on_settled(partial(self._settled, batch))
        self.unsettled[batch] = None
        self.active[outbox] = None
        self._wake()
        return batch

    def _leave(self, outbox: Outbox, batch: Batch) -> None:
        """The open batch gets no more records."""
        outbox.open = None
        if outbox.topic.sticky == outbox.partition:
            outbox.topic.stick_elsewhere(batch.size_bytes)

    # -- batches to send ---------------------------------------------------------------------------------------------

    def next_new(self, outbox: Outbox, *, opened_ms_max: float) -> Batch | None:
        """The next batch that has no sequence yet, if one is full, or open since that moment."""
        # Under the lock as a whole: else the open batch could become full, and its successor overtake it.
        with self.lock:
            if outbox.waiting:
                return outbox.waiting.popleft()
            batch = outbox.open
            if batch is None or batch.opened_ms > opened_ms_max:
                return None
            self._leave(outbox, batch)
            return batch

    def freeze(self, outbox: Outbox, *, opened_ms_max: float) -> None:
        """A batch that is open since that moment gets no more records: theirs would bear its timestamp."""
        with self.lock:
            batch = outbox.open
            if batch is not None and batch.opened_ms <= opened_ms_max:
                self._leave(outbox, batch)
                outbox.waiting.append(batch)

    def retire(self, outbox: Outbox) -> None:
        """Nothing is left to do for it, until something is appended again."""
        with self.lock:
            if outbox.is_idle:
                self.active.pop(outbox, None)

    # -- many records ------------------------------------------------------------------------------------------------

    def append_many(
        self,
        topic: TopicOutboxes,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        partition: int | None,
        timestamp_ms: int | None,
        sizes: Sequence[int],
    ) -> list[Span] | None:
        """Take records for which room was granted (see `many`), all of them; None if the topic is dropped by now."""
        spread: dict[int | None, list[int]] = {}
        if partition is not None:
            _check_partition(topic, partition)
        elif (keys is not None and topic.by_key is not None) or topic.choose is not None:
            spread = self._spread(topic, keys, len(values))
        spans: list[Span] = []
        with self.lock:
            if self._topics.get(topic.name) is not topic:
                return None
            if not spread:
                self._extend(spans, topic, partition, values, keys, timestamp_ms, sizes)
            for index, chosen in spread.items():
                self._extend(
                    spans,
                    topic,
                    index,
                    [values[each] for each in chosen],
                    None if keys is None else [keys[each] for each in chosen],
                    timestamp_ms,
                    [sizes[each] for each in chosen],
                )
        return spans

    def many(
        self, values: Sequence[object], keys: Sequence[object] | None, timestamp_ms: int | None
    ) -> tuple[list[bytes | None], list[bytes | None] | None, list[int]]:
        """The columns of a `send_many`, checked, and what each record counts."""
        column = as_column(values, "value")
        if not 0 < len(column) <= SENT_MANY_MAX:
            raise InvalidArgumentError(f"1 to {SENT_MANY_MAX} records can be sent at once, not {len(column)}")
        if timestamp_ms is not None:
            check_timestamp(timestamp_ms)
        overhead = RECORD_OVERHEAD_BYTES
        if keys is None:
            return column, None, [overhead + len(value or b"") for value in column]
        key_column = as_column(keys, "key")
        if len(key_column) != len(column):
            raise InvalidArgumentError(f"{len(key_column)} keys for {len(column)} values: give one for each, or none")
        sizes = [
            overhead + len(value or b"") + len(key or b"") for value, key in zip(column, key_column, strict=True)
        ]
        return column, key_column, sizes

    def check_fits(self, topic: TopicOutboxes, sizes: Sequence[int]) -> None:
        """Refuse many records of which one is too large for any batch, or all for the buffer."""
        largest = max(sizes)
        if largest > topic.record_bytes_max:
            raise self._too_large(topic, largest)
        if (total := sum(sizes)) > self._settings.buffer_bytes:
            raise InvalidArgumentError(
                f"{len(sizes)} records of {total} bytes do not fit into a buffer of {self._settings.buffer_bytes}; "
                "send fewer at once, or give the producer more buffer_bytes",
            )

    def _spread(
        self, topic: TopicOutboxes, keys: Sequence[bytes | None] | None, count: int
    ) -> dict[int | None, list[int]]:
        """Which records go to which partition; those under None stick."""
        spread: dict[int | None, list[int]] = {}
        by_key, choose, partitions = topic.by_key, topic.choose, topic.count
        for index in range(count):
            key = None if keys is None else keys[index]
            partition: int | None = None
            if key is not None and by_key is not None:
                partition = by_key(key, partitions)
            elif choose is not None:
                partition = choose(key, partitions)
            spread.setdefault(partition, []).append(index)
        return spread

    def _extend(
        self,
        spans: list[Span],
        topic: TopicOutboxes,
        partition: int | None,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        timestamp_ms: int | None,
        sizes: Sequence[int],
    ) -> None:
        """Lay columns into batches, as many as it takes. Without a partition: into where records stick now."""
        at, count = 0, len(values)
        totals = [0, *accumulate(sizes)]
        while at < count:
            outbox = topic.outboxes[topic.sticky if partition is None else partition]
            batch = self._batch_for(outbox, sizes[at], sticks=partition is None)
            end = _fitting(totals, at, topic.batch_bytes - batch.size_bytes)
            first = len(batch.values)
            batch.values.extend(values[at:end])
            if keys is not None or batch.keys is not None:
                if batch.keys is None:
                    batch.keys = [None] * first
                batch.keys.extend([None] * (end - at) if keys is None else keys[at:end])
            if timestamp_ms is not None or batch.headers is not None:
                if batch.headers is None or batch.timestamps is None:
                    batch.headers, batch.timestamps = [()] * first, [batch.timestamp_ms] * first
                batch.headers.extend([()] * (end - at))
                batch.timestamps.extend([batch.timestamp_ms if timestamp_ms is None else timestamp_ms] * (end - at))
            batch.size_bytes += totals[end] - totals[at]
            spans.append(Span(batch, first, end - at))
            at = end

    # -- outcomes ----------------------------------------------------------------------------------------------------

    def _settled(self, batch: Batch) -> None:
        with self.lock:
            self.unsettled.pop(batch, None)
            if isinstance(batch.outcome, QuireError):
                # Whether somebody looks may be seen later, so they are kept until they are asked for.
                self._failed = [each for each in self._failed[-FAILED_MAX:] if not each.observed] + [batch]
            batch.forget_records()
        self.room.give_back(batch.size_bytes)

    def take_unseen(self) -> list[QuireError]:
        """The failures of which nobody has asked, the newest ones if there are many; they are told once."""
        with self.lock:
            failed, self._failed = self._failed, []
        return [batch.outcome for batch in failed if not batch.observed and isinstance(batch.outcome, QuireError)]

    def batches(self) -> list[Batch]:
        """All that are not settled, the oldest first."""
        with self.lock:
            return list(self.unsettled)

    def _too_large(self, topic: TopicOutboxes, size: int) -> BatchTooLargeError:
        return BatchTooLargeError(
            f"a record of {size} bytes is over the limit of {topic.record_bytes_max} of topic '{topic.name}'; "
            f"send less, or raise the topic's message_bytes_max (16 MiB at most)",
            size_bytes=size,
            limit_bytes=topic.record_bytes_max,
            topic=topic.name,
        )


def record_bytes_max(message_bytes_max: int) -> int:
    """What a record may count, where a topic takes messages of so many bytes."""
    return min(message_bytes_max + RECORD_OVERHEAD_BYTES, BATCH_BYTES_MAX - HEADER_BYTES)


def _check_partition(topic: TopicOutboxes, partition: int) -> None:
    if partition.__class__ is not int:
        raise InvalidArgumentError(f"a partition is a whole number, not {partition!r}")
    if not 0 <= partition < topic.count:
        raise UnknownPartitionError(
            f"topic '{topic.name}' has no partition {partition}; it has {topic.count}, from 0 on",
            topic=topic.name,
            partition=partition,
        )


def _fitting(totals: Sequence[int], at: int, room: int) -> int:
    """Up to where records fit into so many bytes; one always does."""
    low, high = at + 1, len(totals) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if totals[middle] - totals[at] <= room:
            low = middle
        else:
            high = middle - 1
    return low
