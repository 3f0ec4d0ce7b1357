"""Walks over plain records without making any of them.

The decoder is quick and says little. This is slow (a few hundred thousand records a second) and exact, and accepts
what the decoder accepts: it runs before it where decoding could take far more memory than the bytes themselves, and
after it to say which record is wrong, and how.
"""

from __future__ import annotations

from typing import Final

from quire.errors import BatchTooLargeError, PoisonBatchError
from quire.records.varint import read_varint

HEADER_COUNT_MAX: Final = 1 << 20
"""Of a whole batch: an empty header takes 2 bytes here and some 64 once decoded."""

UNCHECKED_BYTES_MAX: Final = 2 * HEADER_COUNT_MAX
"""Records of no more bytes than this cannot break `HEADER_COUNT_MAX`, so they may be decoded at once."""


def check_records(plain: bytes, *, record_count: int) -> None:
    """Raise unless `plain` holds exactly `record_count` records that decode."""
    position = header_count = 0
    for index in range(record_count):
        try:
            position, headers = _check_record(plain, position)
        except (ValueError, IndexError) as error:
            why = "it goes on past the end of the batch" if isinstance(error, IndexError) else error
            raise PoisonBatchError(
                f"record {index} of {record_count} does not decode: {why}", record=index
            ) from error
        header_count += headers
        if header_count > HEADER_COUNT_MAX:
            raise BatchTooLargeError(f"batch has more than {HEADER_COUNT_MAX} record headers", limit=HEADER_COUNT_MAX)
    if position != len(plain):
        raise PoisonBatchError(f"{len(plain) - position} bytes follow the last of {record_count} records")


def _check_record(plain: bytes, position: int) -> tuple[int, int]:
    """Answer where the record at `position` ends and how many headers it has."""
    length, start = read_varint(plain, position)
    position = start
    for _ in ("attributes", "timestamp delta", "offset delta"):
        _, position = read_varint(plain, position)
    for _ in ("key", "value"):
        position = _skip_bytes(plain, position)
    header_count, position = read_varint(plain, position)
    if not 0 <= header_count <= HEADER_COUNT_MAX:
        raise ValueError(f"it claims {header_count} headers")
    for _ in range(header_count):
        key_length, key_start = read_varint(plain, position)
        if key_length < 0:
            raise ValueError(f"a header key of {key_length} bytes")
        position = _end_of(plain, key_start, key_length)
        plain[key_start:position].decode()
        position = _skip_bytes(plain, position)
    if position - start != length:
        raise ValueError(f"it claims {length} bytes and takes {position - start}")
    return position, header_count


def _skip_bytes(plain: bytes, position: int) -> int:
    length, position = read_varint(plain, position)
    # Any negative length is null, as it is to Kafka.
    return position if length < 0 else _end_of(plain, position, length)


def _end_of(plain: bytes, position: int, length: int) -> int:
    if length > len(plain) - position:
        raise ValueError(f"a field of {length} bytes where {len(plain) - position} are left")
    return position + length
