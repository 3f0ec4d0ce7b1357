"""From the bytes of a batch to its records."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter

from quire.errors import BatchTooLargeError, MalformedBatchError, PoisonBatchError
from quire.records._cython import UndecodableError, read_records
from quire.records.compression import decompress
from quire.records.header import (
    HEADER_BYTES,
    LENGTH_FIELD_END,
    RECORD_BYTES_MIN,
    BatchHeader,
    check_crc,
    parse_header,
)
from quire.records.limits import DEFAULT_LIMITS, Limits
from quire.records.record import Record
from quire.records.structure import UNCHECKED_BYTES_MAX, check_records
from quire.types import Buffer

_offset_of = attrgetter("offset")


def decode(
    buffer: Buffer, position: int = 0, *, check: bool = True, limits: Limits = DEFAULT_LIMITS
) -> Sequence[Record]:
    """Decode the batch at `position`, which must lie whole in the buffer; what follows it is left alone.

    A CRC that does not hold is a ChecksumMismatchError. Where it holds and the records still do not decode, it is a
    PoisonBatchError: fetching the batch again will not help. `check=False` leaves out the CRC, for a reader that has
    checked it already.
    """
    header = parse_header(buffer, position, batch_bytes_max=limits.batch_bytes_max)
    end = position + header.length + LENGTH_FIELD_END
    if end > len(buffer):
        raise MalformedBatchError(f"batch of {header.size_bytes} bytes is cut off after {len(buffer) - position}")
    if check:
        check_crc(buffer, header, position)
    # Before inflating anything: the count costs nothing to look at.
    if header.record_count > limits.record_count_max:
        raise BatchTooLargeError(
            f"batch of {header.record_count} records is over the limit of {limits.record_count_max}",
            record_count=header.record_count,
            limit=limits.record_count_max,
        )
    payload = memoryview(buffer)[position + HEADER_BYTES : end]
    plain = decompress(header.codec, payload, plain_bytes_max=limits.plain_bytes_max)
    records = _decode_plain(header, plain)
    _check_offsets(header, records)
    return records


def _decode_plain(header: BatchHeader, plain: Buffer) -> list[Record]:
    if header.record_count * RECORD_BYTES_MIN > len(plain):
        raise PoisonBatchError(
            f"batch claims {header.record_count} records in {len(plain)} bytes",
            record_count=header.record_count,
        )
    if len(plain) > UNCHECKED_BYTES_MAX:
        check_records(bytes(plain), record_count=header.record_count)
    try:
        return read_records(header, plain)
    except UndecodableError as error:
        check_records(bytes(plain), record_count=header.record_count)
        # Nothing is wrong with the records: what failed is this process, most likely for want of memory. Calling them
        # poison would have a queue dead-letter good messages.
        cause = error.__cause__ or error
    raise cause


def _check_offsets(header: BatchHeader, records: list[Record]) -> None:
    """Offsets must rise and stay within what the header says, or two records answer to one offset."""
    first, end = header.base_offset, header.end_offset
    offsets = list(map(_offset_of, records))
    if len(offsets) == end - first:
        risen = offsets == list(range(first, end))
    else:
        # Compaction leaves gaps.
        risen = all(before < after for before, after in pairwise([first - 1, *offsets, end]))
    if not risen:
        raise PoisonBatchError(
            f"offsets of {len(offsets)} records do not rise from {first} to below {end}", base_offset=first
        )
