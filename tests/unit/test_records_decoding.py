"""What decodes, what does not, and with which error."""

from __future__ import annotations

import pytest

from quire.errors import (
    BatchTooLargeError,
    ChecksumMismatchError,
    MalformedBatchError,
    PoisonBatchError,
    QuireError,
    UnsupportedBatchError,
)
from quire.records import RECORD_COUNT_MAX, Attributes, Codec, Limits, decode, encode_columns, parse_batch
from quire.records import decoder as decoder_module
from quire.records._cython import UndecodableError
from quire.records.structure import HEADER_COUNT_MAX
from quire.records.varint import encode_varint, read_varint
from tests.unit.records_crafting import BASE_TIMESTAMP_MS, batch, field, record, rows

NO_HEADERS = encode_varint(0)
HUGE = (2**63 - 1, 2**63 - 20, 2**63 - 60, 2**63 - 100, 2**62, 2**32, 2**31, 1000)


def headers(*pairs: bytes, claimed: int | None = None) -> bytes:
    return encode_varint(len(pairs) if claimed is None else claimed) + b"".join(pairs)


def test_offsets_and_timestamps_are_relative_to_the_header() -> None:
    data = batch(
        record(0, timestamp_delta=encode_varint(5)),
        record(1, timestamp_delta=encode_varint(-7)),
        base_offset=1 << 40,
    )
    assert [r.offset for r in decode(data)] == [1 << 40, (1 << 40) + 1]
    assert [r.timestamp for r in decode(data)] == [BASE_TIMESTAMP_MS + 5, BASE_TIMESTAMP_MS - 7]


def test_append_time_is_the_batches_for_every_record() -> None:
    data = batch(
        record(0, timestamp_delta=encode_varint(5)),
        record(1),
        attributes=Attributes.LOG_APPEND_TIME,
        max_timestamp_ms=42,
    )
    assert [r.timestamp for r in decode(data)] == [42, 42]


def test_nulls_and_empties_are_told_apart() -> None:
    data = batch(
        record(0, key=field(None), value=field(None)),
        record(1, key=field(b""), value=field(b"")),
        record(2, headers=headers(field(b"") + field(None), field("clé".encode()) + field(b""))),
        record(3, key=encode_varint(-9)),
    )
    assert rows(decode(data)) == [
        (0, BASE_TIMESTAMP_MS, None, None, []),
        (1, BASE_TIMESTAMP_MS, b"", b"", []),
        (2, BASE_TIMESTAMP_MS, None, b"value", [("", None), ("clé", b"")]),
        (3, BASE_TIMESTAMP_MS, None, b"value", []),
    ]


def test_gaps_of_compaction_are_fine() -> None:
    data = batch(record(2), record(5), base_offset=100, last_offset_delta=9)
    assert [r.offset for r in decode(data)] == [102, 105]
    assert list(decode(batch(record_count=0, last_offset_delta=9))) == []


@pytest.mark.parametrize("deltas", [(0, 0), (1, 0), (0, 2), (-1, 0), (0, -1), (2**32, 1), (0, 2**63 - 1)])
def test_offsets_must_rise_within_the_batch(deltas: tuple[int, int]) -> None:
    with pytest.raises(PoisonBatchError):
        decode(batch(*map(record, deltas)))


@pytest.mark.parametrize("deltas", [(5, 5), (6, 5), (5, 10), (-1, 5)])
def test_offsets_must_rise_with_gaps_too(deltas: tuple[int, int]) -> None:
    with pytest.raises(PoisonBatchError):
        decode(batch(*map(record, deltas), last_offset_delta=9))


def test_a_batch_amid_others_is_decoded_where_it_lies() -> None:
    first, second = (encode_columns([value], timestamp_ms=1) for value in (b"one", b"two"))
    for joined in (first + second, bytearray(first + second), memoryview(first + second)):
        assert [r.value for r in decode(joined)] == [b"one"]
        assert [r.value for r in decode(joined, len(first))] == [b"two"]


def test_damage_and_poison_are_different_errors() -> None:
    good = bytearray(batch(record(0)))
    good[-1] = 2  # a header that is not there
    with pytest.raises(ChecksumMismatchError):
        decode(good)
    with pytest.raises(PoisonBatchError):
        decode(good, check=False)
    with pytest.raises(MalformedBatchError):
        decode(good[:-1])


POISON = {
    "too few records": batch(record(0), record_count=2),
    "too many records": batch(record(0), record(1), record_count=1),
    "bytes left over": batch(record(0), b"\x00", record_count=1),
    "record shorter than it says": batch(record(0, claimed_bytes=100)),
    "record longer than it says": batch(record(0, claimed_bytes=3)),
    "record of a negative length": batch(record(0, claimed_bytes=-5)),
    "negative header count": batch(record(0, headers=headers(claimed=-1))),
    "headers that are not there": batch(record(0, headers=headers(claimed=3))),
    "more headers than anyone has": batch(record(0, headers=headers(claimed=2**62))),
    "negative header key": batch(record(0, headers=headers(encode_varint(-1) + field(b"v")))),
    "header key that is not UTF-8": batch(record(0, headers=headers(field(b"\xff\xfe") + field(b"v")))),
    "header value past the end": batch(record(0, headers=headers(field(b"k") + field(b"v", claimed=50)))),
    "number that does not end": batch(record(0, timestamp_delta=b"\xff" * 11)),
    "record that ends within a number": batch(record(0)[:-1] + b"\x80"),
    "null header value in a number past the end": batch(
        record(0, headers=headers(field(b"k") + b"\x81", claimed=2), claimed_bytes=15)
    ),
    "nothing": batch(record_count=1),
    **{f"key of {size}": batch(record(0, key=field(b"k", claimed=size))) for size in HUGE},
    **{f"value of {size}": batch(record(0, value=field(b"v", claimed=size))) for size in HUGE},
    **{
        f"header key of {size}": batch(record(0, headers=headers(field(b"k", claimed=size) + field(b"v"))))
        for size in HUGE
    },
}


@pytest.mark.parametrize("data", POISON.values(), ids=POISON.keys())
def test_poison(data: bytes) -> None:
    parse_batch(data)
    with pytest.raises(PoisonBatchError):
        decode(data)


@pytest.mark.parametrize("cut", range(1, 40))
def test_records_cut_off_anywhere_are_poison(cut: int) -> None:
    whole = record(0, key=field(b"key"), headers=headers(field(b"k") + field(b"v"), field(b"l") + field(None)))
    two = record(0) + whole
    with pytest.raises(PoisonBatchError):
        decode(batch(two[: cut % len(two)], record_count=2))


def test_poison_says_which_record() -> None:
    with pytest.raises(PoisonBatchError, match="record 1 of 2") as caught:
        decode(batch(record(0), record(1, value=field(b"v", claimed=500))))
    assert caught.value.details["record"] == "1"


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codecs(codec: int) -> None:
    with pytest.raises(UnsupportedBatchError):
        decode(batch(record(0), attributes=codec))


def test_record_count_limit() -> None:
    lying = batch(record(0), record_count=RECORD_COUNT_MAX + 1)
    with pytest.raises(BatchTooLargeError):
        decode(lying)
    three = encode_columns([b"v"] * 3, timestamp_ms=1)
    assert len(decode(three, limits=Limits(record_count_max=3))) == 3
    with pytest.raises(BatchTooLargeError):
        decode(three, limits=Limits(record_count_max=2))


def test_batch_and_plain_limits() -> None:
    data = encode_columns([b"v" * 1000] * 3, timestamp_ms=1, codec=Codec.ZSTD)
    with pytest.raises(BatchTooLargeError):
        decode(data, limits=Limits(batch_bytes_max=len(data) - 1))
    with pytest.raises(BatchTooLargeError):
        decode(data, limits=Limits(plain_bytes_max=3000))
    assert len(decode(data, limits=Limits(batch_bytes_max=len(data), plain_bytes_max=4000))) == 3


@pytest.mark.parametrize("codec", list(Codec))
def test_more_headers_than_memory_is_worth(codec: Codec) -> None:
    # Each record is within the limit, all of them are not.
    pairs = (field(b"") + field(None)) * (HEADER_COUNT_MAX // 2 + 1)
    many = encode_varint(HEADER_COUNT_MAX // 2 + 1) + pairs
    data = batch(record(0, headers=many), record(1, headers=many), attributes=codec)
    with pytest.raises(BatchTooLargeError):
        decode(data)
    assert len(decode(batch(record(0, headers=many), attributes=codec))[0].headers) == HEADER_COUNT_MAX // 2 + 1


def test_large_batches_decode() -> None:
    values = [bytes([i % 256]) * 1000 for i in range(5000)]
    assert [r.value for r in decode(encode_columns(values, timestamp_ms=1))] == values


def test_lack_of_memory_is_not_poison(monkeypatch: pytest.MonkeyPatch) -> None:
    # A queue dead-letters what is poison, so a good batch must never be called that.
    def starved(*_: object) -> None:
        raise UndecodableError from MemoryError()

    monkeypatch.setattr(decoder_module, "read_records", starved)
    with pytest.raises(MemoryError):
        decode(batch(record(0)))
    with pytest.raises(QuireError):
        decode(batch(record(0, value=field(b"", claimed=9))))


@pytest.mark.parametrize("number", [0, 1, -1, 63, -64, 64, -65, 8191, 8192, 2**31, -(2**31), 2**63 - 1, -(2**63)])
def test_varints(number: int) -> None:
    spelled = encode_varint(number)
    assert read_varint(spelled, 0) == (number, len(spelled))
    assert read_varint(b"\xff" + spelled + b"\xff", 1) == (number, 1 + len(spelled))
    with pytest.raises(IndexError):
        read_varint(spelled[:-1], 0)
