"""Against kafka-python, which shares no code with us or with the codec that we wrap."""

from __future__ import annotations

import gzip
import random
from collections.abc import Sequence

import pytest

from quire.records import BatchBuilder, Codec, decode, encode_columns, iter_batches, patch
from tests.unit.records_crafting import Row
from tests.unit.records_oracle import DefaultRecordBatch, DefaultRecordBatchBuilder

NOW_MS = 1_700_000_000_000
EPOCH_END = 16
"""Base offset, length and leader epoch come before; kafka-python writes another epoch for "none"."""

Records = list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]]


def sample(seed: int, count: int) -> Records:
    """(timestamp, key, value, headers), with all that may be null or empty being so at times."""
    rng = random.Random(seed)
    records: Records = []
    for index in range(count):
        key = rng.choice([None, b"", b"key-%d" % rng.randrange(10), rng.randbytes(70)])
        value = rng.choice([None, b"", b'{"id":%d,"note":"%s"}' % (index, b"x" * rng.randrange(200))])
        headers = [
            (rng.choice(["", "h", "schlüssel", "traceparent"]), rng.choice([None, b"", b"header value"]))
            for _ in range(rng.choice([0, 0, 1, 3]))
        ]
        records.append((NOW_MS + rng.randrange(-5000, 5000), key, value, headers))
    return records


def ours(records: Records, codec: Codec, **producer: int) -> bytes:
    builder = BatchBuilder()
    for timestamp_ms, key, value, headers in records:
        assert builder.append(key, value, headers, timestamp_ms)
    return builder.build(codec=codec, **producer)  # type: ignore[arg-type]  # integers for three options of integers


def theirs(records: Records, codec: Codec, producer: Sequence[int] = (-1, -1, -1), transactional: int = 0) -> bytes:
    builder = DefaultRecordBatchBuilder(2, int(codec), transactional, *producer, 1 << 30)
    for offset, (timestamp_ms, key, value, headers) in enumerate(records):
        assert builder.append(offset, timestamp_ms, key, value, headers) is not None
    return bytes(builder.build())


def read_by_them(batch: bytes) -> list[Row]:
    reader = DefaultRecordBatch(batch)
    assert reader.validate_crc()
    return [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in reader]


def read_by_us(batch: bytes) -> list[Row]:
    return [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in decode(batch)]


def expected(records: Records) -> list[Row]:
    return [(offset, *record) for offset, record in enumerate(records)]


@pytest.fixture(autouse=True)
def _no_time_in_gzip(monkeypatch: pytest.MonkeyPatch) -> None:
    # kafka-python lets gzip write the time of day into every batch; we write none.
    monkeypatch.setattr(gzip.time, "time", lambda: 0.0)  # type: ignore[attr-defined]  # how gzip reads the clock


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("count", [1, 2, 70, 3000])
def test_we_write_the_same_bytes(codec: Codec, count: int) -> None:
    # lz4 too: both of us call the same library with independent blocks.
    records = sample(count, count)
    assert ours(records, codec)[EPOCH_END:] == theirs(records, codec)[EPOCH_END:]


@pytest.mark.parametrize("codec", list(Codec))
def test_columns_write_the_same_bytes(codec: Codec) -> None:
    for values in ([b"value %06d" % i for i in range(9000)], [b"v" * (i % 90) for i in range(900)]):
        records: Records = [(NOW_MS, b"key-%04d" % (i % 1000), value, []) for i, value in enumerate(values)]
        batch = encode_columns(values, keys=[key for _, key, _, _ in records], timestamp_ms=NOW_MS, codec=codec)
        assert batch[EPOCH_END:] == theirs(records, codec)[EPOCH_END:]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("seed", range(8))
def test_each_reads_the_other(codec: Codec, seed: int) -> None:
    records = sample(seed, 100)
    assert read_by_them(ours(records, codec)) == expected(records)
    assert read_by_us(theirs(records, codec)) == expected(records)


def test_producer_state() -> None:
    records = sample(1, 5)
    mine = ours(records, Codec.NONE, producer_id=1 << 40, producer_epoch=7, base_sequence=1 << 30)
    assert mine[EPOCH_END:] == theirs(records, Codec.NONE, (1 << 40, 7, 1 << 30))[EPOCH_END:]
    builder = BatchBuilder()
    builder.append(None, b"v", [], NOW_MS)
    mine = builder.build(producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    assert mine[EPOCH_END:] == theirs([(NOW_MS, None, b"v", [])], Codec.NONE, (5, 0, 0), 1)[EPOCH_END:]


def test_a_transaction_marker() -> None:
    builder = BatchBuilder()
    # version 0, type 1: commit; then the version and epoch of the coordinator
    builder.append(b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00\x09", [], NOW_MS)
    batch = builder.build(producer_id=5, producer_epoch=3, transactional=True, control=True)
    reader = DefaultRecordBatch(batch)
    assert reader.is_control_batch
    assert reader.is_transactional
    (marker,) = reader
    assert marker.commit
    (record,) = decode(batch)
    assert record.key == b"\x00\x00\x00\x01"


def test_they_read_the_offsets_that_a_broker_patched() -> None:
    records = sample(4, 10)
    log = bytearray()
    for base_offset in (100, 110):
        batch = bytearray(ours(records, Codec.LZ4))
        patch(batch, base_offset=base_offset, leader_epoch=6)
        log += batch
    for position, header in iter_batches(log):
        batch = log[position : position + header.size_bytes]
        assert [row[0] for row in read_by_them(bytes(batch))] == [row[0] for row in read_by_us(bytes(batch))]
        assert read_by_us(bytes(batch))[0][0] == header.base_offset
