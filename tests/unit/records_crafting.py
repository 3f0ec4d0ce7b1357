"""Batches that no encoder of ours would make, spelled out byte by byte."""

from __future__ import annotations

from collections.abc import Sequence

from quire.records import BatchHeader, Codec, Record, pack_batch
from quire.records.compression import compress
from quire.records.varint import encode_varint

BASE_TIMESTAMP_MS = 1_700_000_000_000

Row = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def rows(records: Sequence[Record]) -> list[Row]:
    """Decoded records as tuples, which compare."""
    return [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in records]


def field(content: bytes | None, *, claimed: int | None = None) -> bytes:
    """Bytes after their length, true or claimed."""
    if content is None:
        return encode_varint(-1 if claimed is None else claimed)
    return encode_varint(len(content) if claimed is None else claimed) + content


def record(
    offset_delta: int = 0,
    *,
    key: bytes = field(None),
    value: bytes = field(b"value"),
    headers: bytes = encode_varint(0),
    timestamp_delta: bytes = encode_varint(0),
    claimed_bytes: int | None = None,
) -> bytes:
    """One record of fields that are spelled already."""
    body = b"\x00" + timestamp_delta + encode_varint(offset_delta) + key + value + headers
    return encode_varint(len(body) if claimed_bytes is None else claimed_bytes) + body


def batch(
    *records: bytes,
    attributes: int = 0,
    base_offset: int = 0,
    record_count: int | None = None,
    last_offset_delta: int | None = None,
    base_timestamp_ms: int = BASE_TIMESTAMP_MS,
    max_timestamp_ms: int = BASE_TIMESTAMP_MS,
) -> bytes:
    """A batch with a good CRC around any records; compressed as the attributes say."""
    count = len(records) if record_count is None else record_count
    codec = attributes & 0x7
    plain = b"".join(records)
    return pack_batch(
        BatchHeader(
            base_offset=base_offset,
            length=0,
            leader_epoch=-1,
            magic=2,
            crc=0,
            attributes=attributes,
            last_offset_delta=count - 1 if last_offset_delta is None else last_offset_delta,
            base_timestamp_ms=base_timestamp_ms,
            max_timestamp_ms=max_timestamp_ms,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            record_count=count,
        ),
        compress(Codec(codec), plain) if codec in set(Codec) else plain,
    )


def batch_around(payload: bytes, codec: Codec, *, record_count: int = 1) -> bytes:
    """A batch with a good CRC whose compressed part is `payload` as it is."""
    header = BatchHeader(0, 0, -1, 2, 0, codec, record_count - 1, 0, 0, -1, -1, -1, record_count)
    return pack_batch(header, payload)
