"""Whatever is encoded comes back, whichever codec, flags and encoder it went through."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quire.errors import QuireError
from quire.records import (
    BatchBuilder,
    BatchOptions,
    Codec,
    Lane,
    check_produced,
    decode,
    encode_columns,
    parse_batch,
    patch,
)
from quire.records.varint import encode_varint, read_varint
from tests.unit.records_crafting import rows
from tests.unit.records_oracle import DefaultRecordBatch

# Derandomized, so that a run fails for a change that was made and not for one that was drawn.
steady = settings(max_examples=300, deadline=None, derandomize=True)

timestamps = st.integers(0, (1 << 63) - 1) | st.integers(1_699_999_990_000, 1_700_000_010_000)
contents = st.none() | st.binary(max_size=200) | st.binary(max_size=8).map(lambda piece: piece * 500)
texts = st.text(max_size=20)  # no lone surrogates: they are not text, and are refused
headers = st.lists(st.tuples(texts, st.none() | st.binary(max_size=30)), max_size=4)
records = st.lists(st.tuples(timestamps, contents, contents, headers), min_size=1, max_size=80)
sequences = st.integers(0, (1 << 31) - 1)


@st.composite
def batch_options(draw: st.DrawFn) -> BatchOptions:
    options: BatchOptions = {
        "codec": draw(st.sampled_from(Codec)),
        "lane": draw(st.sampled_from(Lane)),
        "delayed": draw(st.booleans()),
        "has_ttl": draw(st.booleans()),
        "traced": draw(st.booleans()),
        "control": draw(st.booleans()),
    }
    if draw(st.booleans()):
        options["producer_id"] = draw(st.integers(0, (1 << 63) - 1))
        options["producer_epoch"] = draw(st.integers(0, (1 << 15) - 1))
        options["base_sequence"] = draw(sequences)
        options["transactional"] = draw(st.booleans())
    return options


@steady
@given(records, batch_options(), st.integers(0, 1 << 62))
def test_a_record_at_a_time(
    given_records: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
    options: BatchOptions,
    base_offset: int,
) -> None:
    builder = BatchBuilder()
    for timestamp_ms, key, value, record_headers in given_records:
        assert builder.append(key, value, record_headers, timestamp_ms)
    batch = bytearray(builder.build(**options))
    patch(batch, base_offset=base_offset, leader_epoch=3)

    header = parse_batch(batch)
    assert header.max_timestamp_ms == max(record[0] for record in given_records)
    assert header.producer_id == options.get("producer_id", -1)
    assert header.lane == options["lane"]
    assert header.is_control == options["control"]
    assert len(batch) <= builder.size_bytes
    expected = [(base_offset + index, *record) for index, record in enumerate(given_records)]
    assert rows(decode(batch)) == expected
    if options["control"]:
        with pytest.raises(QuireError):
            check_produced(header)
    else:
        check_produced(header)
        theirs = DefaultRecordBatch(batch)
        assert [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in theirs] == expected


@steady
@given(
    st.lists(st.tuples(contents, contents), min_size=1, max_size=200),
    st.booleans(),
    timestamps,
    batch_options(),
)
@example([(None, b"v")] * 100, True, 0, {"codec": Codec.GZIP})
@example([(b"k", b"v")] * 8200, True, 0, {"codec": Codec.LZ4})
def test_columns(
    pairs: list[tuple[bytes | None, bytes | None]], keyed: bool, timestamp_ms: int, options: BatchOptions
) -> None:
    keys = [key if keyed else None for key, _ in pairs]
    values = [value for _, value in pairs]
    builder = BatchBuilder()
    for key, value in zip(keys, values, strict=True):
        assert builder.append(key, value, [], timestamp_ms)
    batch = encode_columns(values, keys=keys if keyed else None, timestamp_ms=timestamp_ms, **options)
    assert batch == builder.build(**options)
    assert rows(decode(batch)) == [
        (index, timestamp_ms, key, value, []) for index, (key, value) in enumerate(zip(keys, values, strict=True))
    ]


@steady
@given(st.binary(max_size=300))
def test_bytes_that_mean_nothing(data: bytes) -> None:
    with pytest.raises(QuireError):
        decode(data)


@steady
@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_varints(number: int) -> None:
    spelled = encode_varint(number)
    assert read_varint(spelled, 0) == (number, len(spelled))
