"""Records of bare stubs, as batches and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from quire.errors import (
    BatchTooLargeError,
    InvalidArgumentError,
    MalformedBatchError,
    UnsupportedBatchError,
)
from quire.records import BatchBuilder, decode, iter_batches
from quire.records.header import BATCH_BYTES_MAX, HEADER_BYTES, Attributes, BatchHeader
from quire.records.limits import Limits
from quire.types import Buffer
from quire.v1 import records_pb2

RECORDS_MAX: Final = 10_000
"""Records as messages in one request: each costs the broker much more than one in a batch."""
RESERVED_PREFIX: Final = "quire."
_LANES: Final = (records_pb2.LANE_UNSPECIFIED, records_pb2.LANE_NORMAL)

DECODING: Final = Limits(plain_bytes_max=BATCH_BYTES_MAX)
"""What a batch may be when it is decoded here: no more than one that is not compressed. All of it is in memory."""
HEADERS_MAX: Final = 100_000
"""The same, of the headers of a batch's records."""
RECORD_OVERHEAD_BYTES: Final = 24
"""What a record as a message takes beside key, value and headers."""
AT_ONCE_BYTES: Final = 64 * 1024
AT_ONCE_RECORDS: Final = 500
"""What is decoded so quickly that nobody else would notice."""


def encode_records(records: Sequence[records_pb2.Record], *, now_ms: int) -> list[Buffer]:
    """One batch of them all. The log says whether it is too large."""
    if not records:
        raise InvalidArgumentError("there are no records for one of the partitions")
    if len(records) > RECORDS_MAX:
        raise BatchTooLargeError(
            f"{len(records)} records are over the limit of {RECORDS_MAX} for records that are messages; send fewer "
            "at once, or send batches"
        )
    builder = BatchBuilder()
    for record in records:
        if record.lane not in _LANES:
            raise UnsupportedBatchError("priority lanes are not served; leave `lane` out")
        headers = [(header.key, header.value if header.HasField("value") else None) for header in record.headers]
        for name, _ in headers:
            if name.startswith(RESERVED_PREFIX):
                raise InvalidArgumentError(f"the header {name[:80]!a} is Quire's own; choose another name")
        taken = builder.append(
            record.key if record.HasField("key") else None,
            record.value if record.HasField("value") else None,
            headers,
            record.timestamp_ms if record.HasField("timestamp_ms") else now_ms,
        )
        if not taken:
            raise BatchTooLargeError(
                "the records of one partition make a batch that is too large; send fewer at once"
            )
    return [builder.build()]


def is_quick(data: Buffer) -> bool:
    """Whether to decode these batches takes no time worth mentioning."""
    if len(data) > AT_ONCE_BYTES:
        return False
    count = 0
    for _, header in iter_batches(data, check=False):
        count += header.record_count
        if header.codec or count > AT_ONCE_RECORDS:
            return False
    return True


def decode_records(
    data: Buffer, into: records_pb2.RecordList, *, from_offset: int, bytes_max: int
) -> tuple[int, int]:
    """Take the records of whole batches that a log has checked, without those before `from_offset`.

    Answers how many bytes of batches it took, and the offset after them. Stops before a batch with which the records
    would be more than `bytes_max`, and before one that does not decode, unless it is the first. Raises the QuireError
    for that one; its details say where to go on if it is left out.
    """
    taken, next_offset = 0, from_offset
    size = 0
    for position, header in iter_batches(data, check=False):
        try:
            size += _add(into, data, position, header, from_offset, bytes_max - size if size else None)
        except _NoRoomError:
            break
        except (MalformedBatchError, UnsupportedBatchError) as error:
            if position:
                break
            error.details |= {"first_offset": str(header.base_offset), "end_offset": str(header.end_offset)}
            raise
        taken, next_offset = position + header.size_bytes, header.end_offset
    return taken, next_offset


class _NoRoomError(Exception):
    """The batch has to wait for the next answer."""


def _add(
    into: records_pb2.RecordList,
    data: Buffer,
    position: int,
    header: BatchHeader,
    from_offset: int,
    room_bytes: int | None,
) -> int:
    """How many bytes it added, or would have."""
    if header.is_control:
        return 0
    try:
        limits = DECODING if room_bytes is None else Limits(plain_bytes_max=min(room_bytes, BATCH_BYTES_MAX))
        records = decode(data, position, check=False, limits=limits)
    except BatchTooLargeError:
        if room_bytes is None:
            raise
        raise _NoRoomError from None
    kind = (
        records_pb2.TIMESTAMP_TYPE_LOG_APPEND_TIME
        if header.attributes & Attributes.LOG_APPEND_TIME
        else records_pb2.TIMESTAMP_TYPE_CREATE_TIME
    )
    size = HEADER_BYTES + RECORD_OVERHEAD_BYTES * len(records)
    if sum(len(record.headers) for record in records) > HEADERS_MAX:
        raise BatchTooLargeError(f"a batch has more than {HEADERS_MAX} record headers; read it as a batch")
    for record in records:
        if record.offset < from_offset:
            continue
        added = into.records.add(
            timestamp_ms=record.timestamp,
            timestamp_type=kind,
            lane=records_pb2.LANE_NORMAL,
            offset=record.offset,
        )
        if record.key is not None:
            added.key = record.key
            size += len(record.key)
        if record.value is not None:
            added.value = record.value
            size += len(record.value)
        for name, value in record.headers:
            added.headers.add(key=name, value=value)
            size += len(name) + len(value or b"")
    return size
