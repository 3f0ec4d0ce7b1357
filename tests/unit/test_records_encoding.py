"""Both encoders: when a batch is full, what is refused, and that they make the same bytes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from quire.errors import BatchTooLargeError, InvalidArgumentError
from quire.records import (
    BATCH_BYTES_MAX,
    HEADER_BYTES,
    RECORD_COUNT_MAX,
    Attributes,
    BatchBuilder,
    BatchOptions,
    Codec,
    Lane,
    decode,
    encode_columns,
    parse_batch,
)
from quire.types import Buffer
from tests.unit.records_crafting import rows

NOW_MS = 1_700_000_000_000


def build(values: Sequence[Buffer | None], keys: Sequence[Buffer | None] | None = None, **options: object) -> bytes:
    builder = BatchBuilder()
    for index, value in enumerate(values):
        assert builder.append(None if keys is None else keys[index], value, [], NOW_MS)
    return builder.build(**options)  # type: ignore[arg-type]  # the options are whatever a test asks for


def test_full_is_an_answer_and_leaves_the_batch_as_it_was() -> None:
    builder = BatchBuilder(batch_bytes_max=HEADER_BYTES + 40)
    assert builder.append(b"k", b"v" * 10, [], NOW_MS)
    size = builder.size_bytes
    assert not builder.append(None, b"v" * 30, [], NOW_MS)
    assert (builder.size_bytes, builder.record_count) == (size, 1)
    assert builder.append(None, b"v", [], NOW_MS + 5)
    assert len(builder.build()) == builder.size_bytes
    assert rows(decode(builder.build())) == [(0, NOW_MS, b"k", b"v" * 10, []), (1, NOW_MS + 5, None, b"v", [])]


def test_the_byte_limit_can_be_reached_but_not_passed() -> None:
    record_bytes = 7 + 10
    builder = BatchBuilder(batch_bytes_max=HEADER_BYTES + 3 * record_bytes)
    assert [builder.append(None, b"v" * 10, [], NOW_MS) for _ in range(4)] == [True, True, True, False]
    assert len(builder.build()) == HEADER_BYTES + 3 * record_bytes


def test_count_limit() -> None:
    builder = BatchBuilder(record_count_max=2)
    assert [builder.append(None, b"", [], NOW_MS) for _ in range(3)] == [True, True, False]
    assert parse_batch(builder.build()).record_count == 2


def test_an_empty_batch_takes_a_record_over_its_limit() -> None:
    builder = BatchBuilder(batch_bytes_max=100)
    assert builder.append(None, b"v" * 1000, [], NOW_MS)
    assert not builder.append(None, b"", [], NOW_MS)
    assert [r.value for r in decode(builder.build())] == [b"v" * 1000]


def test_a_record_over_the_limit_of_all_batches_is_refused() -> None:
    builder = BatchBuilder()
    with pytest.raises(BatchTooLargeError):
        builder.append(None, bytes(BATCH_BYTES_MAX), [], NOW_MS)
    assert builder.record_count == 0
    assert builder.append(None, b"small", [], NOW_MS)
    with pytest.raises(BatchTooLargeError):
        encode_columns([bytes(BATCH_BYTES_MAX)], timestamp_ms=NOW_MS)


def test_building_again_with_another_producer_state() -> None:
    builder = BatchBuilder()
    builder.append(None, b"a", [], NOW_MS)
    first = parse_batch(builder.build(producer_id=5, producer_epoch=0, base_sequence=8))
    assert builder.append(None, b"b", [], NOW_MS)
    again = builder.build(producer_id=5, producer_epoch=1, base_sequence=0)
    assert (first.producer_epoch, first.record_count) == (0, 1)
    assert (parse_batch(again).producer_epoch, parse_batch(again).record_count) == (1, 2)
    assert [r.value for r in decode(again)] == [b"a", b"b"]


def test_a_refused_record_leaves_no_trace() -> None:
    builder = BatchBuilder()
    builder.append(None, b"a", [], NOW_MS)
    for headers in ([("k", "not bytes")], [("\ud800", b"")], [(b"k", b"v")], [None]):
        with pytest.raises((TypeError, InvalidArgumentError)):
            builder.append(None, b"x", headers, NOW_MS)  # type: ignore[arg-type]  # that is the point
    builder.append(None, b"b", (("k", b"v"),), NOW_MS)
    assert rows(decode(builder.build())) == [(0, NOW_MS, None, b"a", []), (1, NOW_MS, None, b"b", [("k", b"v")])]


def test_headers_that_can_be_read_only_once_are_kept() -> None:
    builder = BatchBuilder()
    for value in (b"a", b"b"):
        assert builder.append(None, value, iter([("k", b"v")]), NOW_MS)  # type: ignore[arg-type]  # easily passed
    assert [list(record.headers) for record in decode(builder.build())] == [[("k", b"v")]] * 2


def test_timestamps_may_go_back_but_not_before_the_epoch() -> None:
    builder = BatchBuilder()
    for timestamp_ms in (NOW_MS, NOW_MS - 10, NOW_MS + 10, 0, (1 << 63) - 1):
        assert builder.append(None, b"", [], timestamp_ms)
    batch = builder.build()
    assert [r.timestamp for r in decode(batch)] == [NOW_MS, NOW_MS - 10, NOW_MS + 10, 0, (1 << 63) - 1]
    assert parse_batch(batch).max_timestamp_ms == (1 << 63) - 1
    for timestamp_ms in (-1, -(1 << 63), 1 << 63):
        with pytest.raises(InvalidArgumentError):
            builder.append(None, b"", [], timestamp_ms)
        with pytest.raises(InvalidArgumentError):
            BatchBuilder().append(None, b"", [], timestamp_ms)
        with pytest.raises(InvalidArgumentError):
            encode_columns([b""], timestamp_ms=timestamp_ms)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InvalidArgumentError):
        BatchBuilder().build()
    with pytest.raises(InvalidArgumentError):
        BatchBuilder(batch_bytes_max=BATCH_BYTES_MAX + 1)
    with pytest.raises(InvalidArgumentError):
        BatchBuilder(record_count_max=0)
    with pytest.raises(InvalidArgumentError):
        encode_columns([], timestamp_ms=NOW_MS)
    with pytest.raises(InvalidArgumentError):
        encode_columns([b""], keys=[], timestamp_ms=NOW_MS)
    with pytest.raises(InvalidArgumentError):
        encode_columns([b""], timestamp_ms=NOW_MS, producer_epoch=1 << 15)
    with pytest.raises(InvalidArgumentError):
        encode_columns([b"a" * 100], timestamp_ms=NOW_MS, codec=Codec.GZIP, level=77)
    with pytest.raises(InvalidArgumentError):
        encode_columns([b"a" * 100], timestamp_ms=NOW_MS, codec=Codec.SNAPPY, level=1)
    with pytest.raises(BatchTooLargeError):
        encode_columns([b""] * (RECORD_COUNT_MAX + 1), timestamp_ms=NOW_MS)
    with pytest.raises(TypeError):
        encode_columns([b""], timestamp_ms=NOW_MS, compression="zstd")  # type: ignore[call-arg]  # no such option
    for wrong in ("text", 7, ["list"]):
        with pytest.raises(TypeError):
            encode_columns([b"text", wrong], timestamp_ms=NOW_MS)  # type: ignore[list-item]  # that is the point


FLAGS: list[tuple[BatchOptions, int]] = [
    ({}, 0),
    ({"transactional": True}, Attributes.TRANSACTIONAL),
    ({"control": True}, Attributes.CONTROL),
    ({"lane": Lane.HIGH}, 0x0100),
    ({"lane": Lane.LOW}, 0x0200),
    ({"delayed": True}, Attributes.DELAYED),
    ({"has_ttl": True}, Attributes.HAS_TTL),
    ({"traced": True}, Attributes.TRACED),
    ({"codec": Codec.ZSTD, "lane": Lane.LOW, "traced": True}, 0x1204),
]


@pytest.mark.parametrize(("options", "bits"), FLAGS)
def test_flags_reach_the_attributes(options: BatchOptions, bits: int) -> None:
    batch = encode_columns([b"v" * 100], timestamp_ms=NOW_MS, **options)
    assert parse_batch(batch).attributes == bits
    assert [r.value for r in decode(batch)] == [b"v" * 100]
    assert build([b"v" * 100], **options) == batch


@pytest.mark.parametrize("codec", list(Codec))
def test_compression_that_gains_nothing_is_left_out(codec: Codec) -> None:
    noise = random.Random(3).randbytes(50)
    batch = encode_columns([noise], timestamp_ms=NOW_MS, codec=codec)
    assert parse_batch(batch).codec == Codec.NONE
    assert decode(batch)[0].value == noise


@pytest.mark.parametrize(("codec", "level"), [(Codec.GZIP, 1), (Codec.LZ4, 9), (Codec.ZSTD, 1), (Codec.ZSTD, 19)])
def test_levels(codec: Codec, level: int) -> None:
    values = [b"value %d" % (i % 17) for i in range(500)]
    batch = encode_columns(values, timestamp_ms=NOW_MS, codec=codec, level=level)
    assert batch != encode_columns(values, timestamp_ms=NOW_MS, codec=codec)
    assert [r.value for r in decode(batch)] == values


# Around each number of records at which an offset delta grows by a byte, and around the longest kept prefixes.
COUNTS = [1, 2, 63, 64, 65, 1000, 8191, 8192, 8193, 16384, 16385]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("size", [0, 1, 56, 57, 58, 59, 63, 64, 100])
def test_columns_of_one_length_equal_a_record_at_a_time(count: int, size: int) -> None:
    values = [bytes([i % 251]) * size for i in range(count)]
    assert encode_columns(values, timestamp_ms=NOW_MS) == build(values)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("shape", ["keyed", "varying", "both varying", "null keys", "null values", "all null"])
def test_columns_of_any_shape_equal_a_record_at_a_time(count: int, shape: str) -> None:
    rng = random.Random(count)
    values: list[bytes | None] = [b"v" * 40] * count
    keys: list[bytes | None] | None = [b"key-%06d" % i for i in range(count)]
    if shape == "varying":
        keys = None
    if shape in ("varying", "both varying"):
        values = [rng.randbytes(rng.choice((0, 1, 62, 63, 64, 200))) for _ in range(count)]
    if shape == "both varying":
        keys = [rng.randbytes(rng.choice((0, 1, 63, 64))) for _ in range(count)]
    if shape == "null keys":
        keys = [None if rng.random() < 0.5 else b"k" for _ in range(count)]
    if shape == "null values":
        values = [None if rng.random() < 0.5 else b"v" for _ in range(count)]
    if shape == "all null":
        values, keys = [None] * count, [None] * count
    batch = encode_columns(values, keys=keys, timestamp_ms=NOW_MS)
    assert batch == build(values, keys)
    assert [r.value for r in decode(batch)] == values


def test_columns_take_anything_that_holds_bytes() -> None:
    wide = memoryview(b"01234567").cast("H")
    columns: list[list[Buffer]] = [
        [bytearray(b"ab"), b"cd"],
        [memoryview(b"abc"), bytearray(b"d")],
        [wide, wide],  # one length in items, but not in bytes
        [b"abcd", wide],
        [wide, b"longer"],
    ]
    for values in columns:
        batch = encode_columns(values, timestamp_ms=NOW_MS)
        assert batch == build(values)
        assert [r.value for r in decode(batch)] == [bytes(value) for value in values]


def test_columns_from_many_threads() -> None:
    def encode(seed: int) -> bool:
        rng = random.Random(seed)
        values = [bytes(rng.randrange(100))] * rng.randrange(1, 9000)
        return encode_columns(values, timestamp_ms=NOW_MS) == build(values)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(encode, range(64)))
