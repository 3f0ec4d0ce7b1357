"""From encoded records to a batch: compress them and put the header before them."""

from __future__ import annotations

import struct
from typing import TypedDict

from quire.errors import BatchTooLargeError, InvalidArgumentError
from quire.records.compression import compress
from quire.records.header import (
    BATCH_BYTES_MAX,
    HEADER_BYTES,
    MAGIC,
    Attributes,
    BatchHeader,
    Codec,
    Lane,
    pack_batch,
)
from quire.records.limits import PLAIN_BYTES_MAX
from quire.types import NO_EPOCH, NO_PRODUCER, Buffer


class BatchOptions(TypedDict, total=False):
    """All of a batch but its records. Whatever is left out is off, or -1 where Kafka says "none" so."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool
    control: bool
    lane: Lane
    delayed: bool
    has_ttl: bool
    traced: bool
    codec: Codec
    level: int | None


def assemble(
    records: Buffer,
    *,
    record_count: int,
    base_timestamp_ms: int,
    max_timestamp_ms: int,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    lane: Lane = Lane.NORMAL,
    delayed: bool = False,
    has_ttl: bool = False,
    traced: bool = False,
    codec: Codec = Codec.NONE,
    level: int | None = None,
) -> bytes:
    """Make a batch of contiguous records, at base offset 0 and of no leader epoch: the broker assigns both.

    Whoever encodes passes its `BatchOptions` on as they are; a name that is none of these fails here.
    """
    if len(records) > PLAIN_BYTES_MAX:
        raise BatchTooLargeError(
            f"{len(records)} bytes of records are over the limit of {PLAIN_BYTES_MAX}, compressed or not",
            limit_bytes=PLAIN_BYTES_MAX,
        )
    if codec != Codec.NONE:
        compressed = compress(codec, records, level=level)
        if len(compressed) < len(records):
            records = compressed
        else:
            # Nothing was gained, so no reader shall pay for it. Other encoders do the same.
            codec = Codec.NONE
    size = HEADER_BYTES + len(records)
    if size > BATCH_BYTES_MAX:
        raise BatchTooLargeError(
            f"batch of {size} bytes is over the limit of {BATCH_BYTES_MAX}; make smaller batches",
            size_bytes=size,
            limit_bytes=BATCH_BYTES_MAX,
        )
    header = BatchHeader(
        base_offset=0,
        length=0,
        leader_epoch=NO_EPOCH,
        magic=MAGIC,
        crc=0,
        attributes=codec
        | lane << Attributes.LANE_SHIFT
        | (Attributes.TRANSACTIONAL if transactional else 0)
        | (Attributes.CONTROL if control else 0)
        | (Attributes.DELAYED if delayed else 0)
        | (Attributes.HAS_TTL if has_ttl else 0)
        | (Attributes.TRACED if traced else 0),
        last_offset_delta=record_count - 1,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=record_count,
    )
    try:
        return pack_batch(header, records)
    except struct.error as error:
        raise InvalidArgumentError(f"a field of the batch header is out of range: {error}") from error


def check_timestamp(timestamp_ms: int) -> None:
    """Refuse what is before the epoch: to Kafka -1 means "none", and nothing else below zero means anything."""
    if not 0 <= timestamp_ms < 1 << 63:
        raise InvalidArgumentError(
            f"timestamp {timestamp_ms} is not a number of milliseconds since the epoch", timestamp_ms=timestamp_ms
        )
