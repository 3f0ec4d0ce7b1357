"""The 61-byte header of a Kafka v2 record batch: all that the hot path ever looks at.

    offset  bytes  field                      under the CRC
         0      8  base offset                no: the broker assigns it
         8      4  length of what follows     no
        12      4  partition leader epoch     no: the broker assigns it
        16      1  magic (2)                  no
        17      4  CRC32-C of bytes 21…       -
        21      2  attributes                 yes, like all that follows
        23      4  last offset delta
        27      8  base timestamp
        35      8  max timestamp
        43      8  producer id
        51      2  producer epoch
        53      4  base sequence
        57      4  record count
        61         records, compressed as the attributes say

Since offset and epoch lie outside the CRC a broker patches the first 16 bytes and never encodes again. For the same
reason a reader must check those two against what it knows; the CRC says nothing of them.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from quire.errors import BatchTooLargeError, ChecksumMismatchError, MalformedBatchError
from quire.types import Buffer

HEADER_BYTES: Final = 61
PREFIX_BYTES: Final = 16
"""Base offset, length and leader epoch: the part that a broker rewrites."""
LENGTH_FIELD_END: Final = 12
CRC_FIELD: Final = 17
CRC_START: Final = 21
MAGIC: Final = 2

BATCH_BYTES_MAX: Final = 16 * 1024 * 1024
"""No batch is larger, header included, whatever a topic allows."""

RECORD_BYTES_MIN: Final = 7
"""Length, attributes, timestamp delta, offset delta, key length, value length, header count: a byte each at least."""

_HEADER = struct.Struct(">qiibIhiqqqhii")
_PREFIX = struct.Struct(">qii")


class Codec(enum.IntEnum):
    """How the records of a batch are compressed: bits 0–2 of the attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class Lane(enum.IntEnum):
    """Priority lane of a batch: bits 8–9 of the attributes."""

    NORMAL = 0
    HIGH = 1
    LOW = 2


class Attributes:
    """Bits of the attributes field. 0–6 are Kafka's, 8–12 are Quire's; the others must be zero."""

    CODEC_MASK: Final = 0x0007
    LOG_APPEND_TIME: Final = 0x0008
    TRANSACTIONAL: Final = 0x0010
    CONTROL: Final = 0x0020
    DELETE_HORIZON: Final = 0x0040
    LANE_SHIFT: Final = 8
    LANE_MASK: Final = 0x0300
    DELAYED: Final = 0x0400
    HAS_TTL: Final = 0x0800
    TRACED: Final = 0x1000
    KNOWN: Final = 0x1F7F


class BatchHeader(NamedTuple):
    """A parsed header. Fields in the order of the wire."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """The whole batch, header included."""
        return self.length + LENGTH_FIELD_END

    @property
    def end_offset(self) -> int:
        """The offset after the last record's."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """The compression as a number; `Codec(n)` where it must be a known one."""
        return self.attributes & Attributes.CODEC_MASK

    @property
    def lane(self) -> int:
        """The priority lane as a number; 3 is reserved."""
        return (self.attributes & Attributes.LANE_MASK) >> Attributes.LANE_SHIFT

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & Attributes.TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & Attributes.CONTROL)


def parse_header(buffer: Buffer, position: int = 0, *, batch_bytes_max: int = BATCH_BYTES_MAX) -> BatchHeader:
    """Unpack the header at `position` and refuse one that no honest writer makes.

    Only the header is looked at: the batch itself may lie partly beyond the buffer.
    """
    if len(buffer) - position < HEADER_BYTES:
        raise MalformedBatchError(
            f"a batch header takes {HEADER_BYTES} bytes and only {max(0, len(buffer) - position)} are left"
        )
    header = BatchHeader._make(_HEADER.unpack_from(buffer, position))
    if header.magic != MAGIC:
        raise MalformedBatchError(f"batch has magic {header.magic}; only Kafka's format {MAGIC} is spoken here")
    size = header.length + LENGTH_FIELD_END
    if size < HEADER_BYTES:
        raise MalformedBatchError(f"batch claims {header.length} bytes, less than its own header")
    if size > batch_bytes_max:
        raise BatchTooLargeError(
            f"batch of {size} bytes is over the limit of {batch_bytes_max}; send smaller batches",
            size_bytes=size,
            limit_bytes=batch_bytes_max,
        )
    if header.last_offset_delta < 0 or header.record_count < 0:
        raise MalformedBatchError(
            f"batch claims {header.record_count} records up to offset delta {header.last_offset_delta}"
        )
    return header


def check_crc(buffer: Buffer, header: BatchHeader, position: int = 0) -> None:
    """Raise unless the CRC in `header` is that of the batch at `position`, which must lie whole in the buffer."""
    actual = crc32c(memoryview(buffer)[position + CRC_START : position + header.length + LENGTH_FIELD_END])
    if actual != header.crc:
        raise ChecksumMismatchError(
            f"batch at base offset {header.base_offset} has CRC {actual:#010x}, its header says {header.crc:#010x}",
            base_offset=header.base_offset,
        )


def parse_batch(buffer: Buffer, position: int = 0, *, batch_bytes_max: int = BATCH_BYTES_MAX) -> BatchHeader:
    """Parse the header of a batch that must lie whole in the buffer, and check its CRC."""
    header = parse_header(buffer, position, batch_bytes_max=batch_bytes_max)
    left = len(buffer) - position
    if header.length + LENGTH_FIELD_END > left:
        raise MalformedBatchError(f"batch of {header.size_bytes} bytes is cut off after {left}")
    check_crc(buffer, header, position)
    return header


def iter_batches(
    buffer: Buffer, *, batch_bytes_max: int = BATCH_BYTES_MAX, check: bool = True
) -> Iterator[tuple[int, BatchHeader]]:
    """Walk over whole batches laid end to end, yielding (position, header).

    `check=False` leaves out the CRC, for a reader that has checked it already.
    """
    position, end = 0, len(buffer)
    while position < end:
        header = parse_header(buffer, position, batch_bytes_max=batch_bytes_max)
        if header.length + LENGTH_FIELD_END > end - position:
            raise MalformedBatchError(f"batch of {header.size_bytes} bytes is cut off after {end - position}")
        if check:
            check_crc(buffer, header, position)
        yield position, header
        position += header.length + LENGTH_FIELD_END


def make_prefix(*, base_offset: int, length: int, leader_epoch: int) -> bytes:
    """The first 16 bytes of a batch, as the broker that stores it writes them."""
    return _PREFIX.pack(base_offset, length, leader_epoch)


def patch(batch: bytearray | memoryview, *, base_offset: int, leader_epoch: int, position: int = 0) -> None:
    """Assign offset and epoch in place. The CRC stays good: neither is under it."""
    _PREFIX.pack_into(
        batch,
        position,
        base_offset,
        int.from_bytes(batch[position + 8 : position + LENGTH_FIELD_END], "big", signed=True),
        leader_epoch,
    )


def pack_header(header: BatchHeader) -> bytes:
    """The 61 bytes that `parse_header` reads, with every field as it is."""
    return _HEADER.pack(*header)


def pack_batch(header: BatchHeader, records: Buffer) -> bytes:
    """Lay a header before its records, with length and CRC computed from them (those in `header` are ignored)."""
    length = HEADER_BYTES - LENGTH_FIELD_END + len(records)
    packed = bytearray(pack_header(header._replace(length=length, crc=0)))
    # The CRC goes on from the header to the records, so that they are copied only once, into the batch.
    crc = crc32c(records, crc32c(memoryview(packed)[CRC_START:]))
    packed[CRC_FIELD:CRC_START] = crc.to_bytes(4, "big")
    return b"".join((packed, records))
