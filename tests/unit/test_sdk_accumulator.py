"""Records gather in batches, room is bounded, and whoever waits for it is served in turn."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from quire._client.accumulator import (
    RECORD_OVERHEAD_BYTES,
    STICKY_BYTES,
    Accumulator,
    Clocks,
    Settings,
    TopicOutboxes,
)
from quire._client.batch import Batch
from quire._client.partitioners import murmur3
from quire._client.stored import Durability, Placed
from quire.errors import BatchTooLargeError, InvalidArgumentError, UnavailableError, UnknownPartitionError
from quire.link.backoff import Backoff
from quire.records import Codec, decode, parse_batch

TOPIC = "orders"
PLACED = Placed(100, False, Durability(1, True))
Taken = tuple[Batch, int]


class Kit:
    """An accumulator with a clock to turn by hand."""

    def __init__(self, *, batch_bytes: int = 10_000, buffer_bytes: int = 1 << 20, partitions: int = 3) -> None:
        self.now_ms = 0.0
        self.wakes = 0
        self.accumulator: Accumulator[Taken] = Accumulator(
            Settings(
                batch_bytes=batch_bytes,
                buffer_bytes=buffer_bytes,
                delivery_ms_max=1_000,
                idempotent=True,
                codec=Codec.NONE,
            ),
            clocks=Clocks(now_ms=lambda: self.now_ms, wall_ms=lambda: 5_000_000 + int(self.now_ms)),
            lock=threading.Lock(),
            backoff=lambda: Backoff(ms_min=1, ms_max=1, uniform=max),
            delivery=lambda batch, index: (batch, index),
            wake=self._wake,
        )
        self.topic = TopicOutboxes(
            TOPIC,
            bytes(16),
            by_key=murmur3,
            choose=None,
            batch_bytes=batch_bytes,
            record_bytes_max=100_000,
            first_sticky=0,
        )
        self.accumulator.set_topic(self.topic, partitions)

    def _wake(self) -> None:
        self.wakes += 1

    def take(self, value: Any = b"v", **given: Any) -> Taken:
        taken = self.maybe(value, **given)
        assert taken is not None
        return taken

    def maybe(self, value: Any = b"v", **given: Any) -> Taken | None:
        all_given: Mapping[str, Any] = {"key": None, "headers": (), "partition": None, "timestamp_ms": None} | given
        return self.accumulator.append(TOPIC, value, *(all_given[name] for name in all_given))

    def encoded(self, batch: Batch) -> list[tuple[Any, ...]]:
        batch.encode(producer_id=7, producer_epoch=0, base_sequence=0, codec=Codec.NONE)
        records = decode(batch.encoded)
        return [(each.key, each.value, tuple(each.headers), each.timestamp) for each in records]


def test_nothing_is_known_of_a_topic_until_it_is_told() -> None:
    kit = Kit()
    assert kit.accumulator.append("other", b"v", None, (), None, None) is None
    kit.accumulator.drop_topic(TOPIC)
    assert kit.maybe() is None


def test_records_of_a_partition_share_a_batch_and_wake_once() -> None:
    kit = Kit()
    (batch, first), (again, second) = kit.take(b"a", partition=1), kit.take(b"b", partition=1)
    assert batch is again
    assert (first, second, kit.wakes) == (0, 1, 1)
    assert kit.encoded(batch) == [(None, b"a", (), 5_000_000), (None, b"b", (), 5_000_000)]


def test_columns_are_filled_in_from_the_first_record_that_needs_them() -> None:
    kit = Kit()
    batch, _ = kit.take(b"a", partition=0)
    kit.take(None, partition=0, key=b"k")
    kit.take(b"c", partition=0, headers={"h": b"1", "n": None})
    kit.take(b"d", partition=0, timestamp_ms=42)
    kit.take(b"e", partition=0, headers=[("h", b"1"), ("h", b"2")])
    kit.take(bytearray(b"f"), partition=0, key=memoryview(b"m"))
    at = 5_000_000
    assert kit.encoded(batch) == [
        (None, b"a", (), at),
        (b"k", None, (), at),
        (None, b"c", (("h", b"1"), ("n", None)), at),
        (None, b"d", (), 42),
        (None, b"e", (("h", b"1"), ("h", b"2")), at),
        (b"m", b"f", (), at),
    ]
    batch.settle(PLACED)
    assert [batch.stored(index).timestamp_ms for index in range(6)] == [at, at, at, 42, at, at]
    assert batch.stored(3).offset == 103


def test_a_batch_never_takes_more_than_it_may() -> None:
    kit = Kit(batch_bytes=500, partitions=1)
    values = [bytes(size) for size in (0, 100, 300, 10, 499, 1, 2, 90)]
    batches = list(
        dict.fromkeys(
            kit.take(value, partition=0, headers={"n": b"x"} if n % 2 else ())[0] for n, value in enumerate(values)
        )
    )
    outbox = kit.topic.outboxes[0]
    assert [*outbox.waiting, outbox.open] == batches
    for batch in batches:
        counted = batch.size_bytes
        kit.encoded(batch)
        header = parse_batch(batch.encoded)
        assert header.size_bytes <= counted + 61
        assert counted <= 500 or header.record_count == 1


def test_sequences_can_be_given_anew_without_encoding_again() -> None:
    kit = Kit()
    batch, _ = kit.take(b"a", key=b"k")
    batch.encode(producer_id=7, producer_epoch=0, base_sequence=9, codec=Codec.ZSTD)
    batch.encode(producer_id=8, producer_epoch=3, base_sequence=0, codec=Codec.ZSTD)
    header = parse_batch(batch.encoded)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (8, 3, 0)
    assert [record.value for record in decode(batch.encoded)] == [b"a"]
    assert batch.count == 1


def test_keys_decide_and_records_without_keys_stick() -> None:
    kit = Kit()
    for number in range(100):
        key = b"%d" % number
        assert kit.take(key=key)[0].outbox.partition == murmur3(key, 3)
    assert {kit.take()[0].outbox.partition for _ in range(50)} == {0}


def test_sticking_ends_after_some_bytes_and_leaves_no_half_empty_batch() -> None:
    kit = Kit(batch_bytes=2 * STICKY_BYTES)
    value = bytes(1000)
    partitions = [kit.take(value)[0].outbox.partition for _ in range(300)]
    changes = [index for index in range(1, 300) if partitions[index] != partitions[index - 1]]
    assert [partitions[index] for index in [0, *changes]] == [0, 1, 2, 0, 1][: len(changes) + 1]
    assert len(changes) == 4
    for outbox in kit.topic.outboxes:
        assert all(len(batch.values) > 20 for batch in outbox.waiting)


def test_sticking_counts_batches_that_were_sent_before_they_were_full() -> None:
    kit = Kit()
    seen = set()
    for _ in range(60):
        batch, _ = kit.take(bytes(5000))
        seen.add(batch.outbox.partition)
        kit.accumulator.next_new(batch.outbox, opened_ms_max=kit.now_ms)
    assert seen == {0, 1, 2}


@pytest.mark.parametrize(
    ("value", "given", "advice"),
    [
        ("text", {}, "encode"),
        (7, {}, "give bytes"),
        (b"v", {"key": "text"}, "encode"),
        (b"v", {"headers": 7}, "mapping"),
        (b"v", {"headers": [("a",)]}, "mapping"),
        (b"v", {"headers": {1: b"x"}}, "give text"),
        (b"v", {"headers": {"a": "x"}}, "encode"),
        (b"v", {"headers": {"\ud800": b"x"}}, "UTF-8"),
        (b"v", {"timestamp_ms": -1}, "milliseconds"),
        (b"v", {"partition": "1"}, "whole number"),
    ],
)
def test_what_no_record_can_have_is_refused_with_advice(value: Any, given: dict[str, Any], advice: str) -> None:
    kit = Kit()
    with pytest.raises(InvalidArgumentError, match=advice):
        kit.take(value, **given)
    assert not kit.accumulator.unsettled


def test_partition_that_is_not_there_and_record_that_fits_nowhere() -> None:
    kit = Kit()
    for partition in (-1, 3):
        with pytest.raises(UnknownPartitionError, match="it has 3"):
            kit.take(partition=partition)
    with pytest.raises(BatchTooLargeError, match="message_bytes_max"):
        kit.take(bytes(100_000))


def test_more_partitions_keep_those_that_are_there() -> None:
    kit = Kit()
    before = list(kit.topic.outboxes)
    kit.accumulator.set_topic(kit.topic, 5)
    assert kit.topic.outboxes[:3] == before
    assert kit.take(partition=4)[0].outbox.partition == 4


# --- room ----------------------------------------------------------------------------------------------------------


def test_room_is_bounded_and_given_back() -> None:
    size = RECORD_OVERHEAD_BYTES + 100
    kit = Kit(buffer_bytes=3 * size)
    batch = [kit.take(bytes(100))[0] for _ in range(3)].pop()
    assert kit.maybe(bytes(100)) is None
    batch.settle(PLACED)
    assert kit.maybe(bytes(100)) is not None


def test_whoever_waits_for_room_is_served_in_turn() -> None:
    size = RECORD_OVERHEAD_BYTES + 100
    kit = Kit(buffer_bytes=4 * size)
    first, _ = kit.take(bytes(100), partition=0)
    second, _ = kit.take(bytes(100), partition=1)
    served: list[str] = []
    big = kit.accumulator.room.wait(3 * size, lambda: served.append("big"))
    small = kit.accumulator.room.wait(size, lambda: served.append("small"))
    assert kit.maybe(bytes(1)) is None, "nobody overtakes those that wait"
    first.settle(PLACED)
    assert served == ["big", "small"][:1] or not big.is_granted
    second.settle(PLACED)
    assert served == ["big", "small"]
    assert kit.accumulator.append(TOPIC, bytes(100), None, (), None, None, size) is not None
    kit.accumulator.room.leave(big)
    assert kit.maybe(bytes(100)) is not None
    assert small.is_granted


def test_whoever_leaves_the_line_is_not_waited_for() -> None:
    size = RECORD_OVERHEAD_BYTES + 100
    kit = Kit(buffer_bytes=2 * size)
    kit.take(bytes(100))
    served: list[str] = []
    big = kit.accumulator.room.wait(2 * size, lambda: served.append("big"))
    kit.accumulator.room.wait(size, lambda: served.append("small"))
    kit.accumulator.room.leave(big)
    assert served == ["small"]


def test_record_larger_than_the_buffer_goes_alone() -> None:
    kit = Kit(buffer_bytes=100)
    batch, _ = kit.take(bytes(10))
    served: list[bool] = []
    kit.accumulator.room.wait(500, lambda: served.append(True))
    assert not served
    batch.settle(PLACED)
    assert served


# --- many ----------------------------------------------------------------------------------------------------------


def sent_many(kit: Kit, values: list[Any], keys: list[Any] | None = None, **given: Any) -> list[Any]:
    columns, key_column, sizes = kit.accumulator.many(values, keys, given.get("timestamp_ms"))
    kit.accumulator.check_fits(kit.topic, sizes)
    waiter = kit.accumulator.room.wait(sum(sizes), lambda: None)
    assert waiter.is_granted
    spans = kit.accumulator.append_many(
        kit.topic, columns, key_column, given.get("partition"), given.get("timestamp_ms"), sizes
    )
    assert spans is not None
    return spans


def test_many_records_fill_batches_in_order() -> None:
    kit = Kit(batch_bytes=1000)
    values = [b"%04d" % number + bytes(number % 97) for number in range(500)]
    spans = sent_many(kit, values, partition=2)
    laid = [value for span in spans for value in span.batch.values[span.first : span.first + span.count]]
    assert laid == values
    assert all(span.batch.size_bytes <= 1000 for span in spans)
    assert all(len(batch.values) for batch in kit.accumulator.batches())


def test_many_records_with_keys_go_where_their_keys_go() -> None:
    kit = Kit()
    keys = [b"%d" % (number % 7) for number in range(100)]
    values = [b"%d" % number for number in range(100)]
    spans = sent_many(kit, values, keys, timestamp_ms=77)
    assert sum(span.count for span in spans) == 100
    for span in spans:
        batch = span.batch
        expected = [
            (key, value) for key, value in zip(keys, values, strict=True) if murmur3(key, 3) == batch.outbox.partition
        ]
        assert [(key, value) for key, value, _, _ in kit.encoded(batch)] == expected
        assert batch.timestamps is not None
        assert set(batch.timestamps) == {77}


def test_many_records_without_keys_stick_and_move_on() -> None:
    kit = Kit(batch_bytes=2 * STICKY_BYTES)
    spans = sent_many(kit, [bytes(1000)] * 300)
    assert [span.batch.outbox.partition for span in spans] == [0, 1, 2, 0, 1]
    assert all(batch.values for batch in kit.accumulator.batches())


def test_single_and_many_records_mix_in_a_batch() -> None:
    kit = Kit()
    batch, _ = kit.take(b"a", partition=0, headers={"h": b"1"}, key=b"k")
    sent_many(kit, [b"b", None], partition=0)
    kit.take(b"d", partition=0)
    assert [(key, value) for key, value, _, _ in kit.encoded(batch)] == [
        (b"k", b"a"),
        (None, b"b"),
        (None, None),
        (None, b"d"),
    ]


def test_many_that_cannot_be_taken_are_refused_whole() -> None:
    kit = Kit(buffer_bytes=1000)
    for values, keys in (
        ([], None),
        ([b"a"], [b"k", b"l"]),
        (["text"], None),
        (b"bytes", None),
        ([bytes(2000)], None),
    ):
        with pytest.raises(InvalidArgumentError):
            sent_many(kit, values, keys)  # type: ignore[arg-type]
    with pytest.raises(BatchTooLargeError):
        sent_many(kit, [bytes(200_000)])
    assert not kit.accumulator.unsettled


def test_topic_that_was_dropped_takes_nothing_more() -> None:
    kit = Kit()
    kit.accumulator.drop_topic(TOPIC)
    columns, _, sizes = kit.accumulator.many([b"a"], None, None)
    assert kit.accumulator.append_many(kit.topic, columns, None, None, None, sizes) is None
    assert not kit.accumulator.unsettled


# --- outcomes ------------------------------------------------------------------------------------------------------


def test_failure_that_nobody_asked_about_is_told_once() -> None:
    kit = Kit()
    seen, _ = kit.take(partition=0)
    seen.observed = True
    unseen, _ = kit.take(partition=1)
    fine, _ = kit.take(partition=2)
    for batch, outcome in ((seen, UnavailableError("a")), (unseen, UnavailableError("b")), (fine, PLACED)):
        batch.settle(outcome)
    assert [error.message for error in kit.accumulator.take_unseen()] == ["b"]
    assert kit.accumulator.take_unseen() == []
    assert kit.accumulator.batches() == []


def test_threads_lose_no_record_and_share_no_index() -> None:
    kit = Kit(batch_bytes=2_000, buffer_bytes=1 << 24)
    taken: list[list[Taken]] = [[] for _ in range(4)]

    def work(mine: list[Taken]) -> None:
        mine.extend(kit.take(bytes(20), key=b"%d" % number) for number in range(5_000))

    threads = [threading.Thread(target=work, args=(mine,)) for mine in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = [(id(batch), index) for mine in taken for batch, index in mine]
    assert len(set(everything)) == len(everything) == 20_000
    assert sum(len(batch.values) for batch in kit.accumulator.batches()) == 20_000
