"""Encodes many records at once, given as columns.

Between the values of a batch without headers lie only a few bytes, which depend on the record's index and on lengths:

    length 0 0 offset-delta | key-length key | value-length value | 0      and the next record

They are kept from batch to batch, laid between the values by slice assignment, and joined, without a step of Python
for each record: as one piece where all values have one length, as three where they differ. (The 0 that ends a record,
for no headers, is written as the first byte of the next one.) Where keys differ in length, or something is null, more
pieces would be left than the Cython builder needs time for, and it does the work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, Unpack, cast

from quire.errors import BatchTooLargeError, InvalidArgumentError
from quire.records._cython import write_columns
from quire.records.assemble import BatchOptions, assemble, check_timestamp
from quire.records.limits import RECORD_COUNT_MAX
from quire.records.varint import encode_varint
from quire.types import Buffer

_KEPT_COUNT_MAX: Final = 1 << 14
"""The longest batch whose pieces are kept: some 1 MB for each pair of lengths. Longer ones go to the builder."""
_KEPT_LENGTH_MAX: Final = 1 << 14

_NULL: Final = -1
_OFFSET_WIDTHS: Final = ((1, 0, 1 << 6), (2, 1 << 6, 1 << 13), (3, 1 << 13, 1 << 20))
"""How many bytes an offset delta takes, from which to below which."""


def encode_columns(
    values: Sequence[Buffer | None],
    *,
    keys: Sequence[Buffer | None] | None = None,
    timestamp_ms: int,
    **options: Unpack[BatchOptions],
) -> bytes:
    """Make a batch of records without headers that share a timestamp; byte for byte what `BatchBuilder` makes."""
    count = len(values)
    check_timestamp(timestamp_ms)
    if not count:
        raise InvalidArgumentError("a batch has at least one record")
    if count > RECORD_COUNT_MAX:
        raise BatchTooLargeError(
            f"batch of {count} records is over the limit of {RECORD_COUNT_MAX}",
            record_count=count,
            limit=RECORD_COUNT_MAX,
        )
    if keys is not None and len(keys) != count:
        raise InvalidArgumentError(f"{len(keys)} keys for {count} values")
    return assemble(
        _encode_regular(values, keys) or write_columns(values, keys, timestamp_ms),
        record_count=count,
        base_timestamp_ms=timestamp_ms,
        max_timestamp_ms=timestamp_ms,
        **options,
    )


def _encode_regular(values: Sequence[Buffer | None], keys: Sequence[Buffer | None] | None) -> bytes | None:
    """The records, or None where keys differ in length, something is null, or the batch is too long."""
    count = len(values)
    if count > _KEPT_COUNT_MAX:
        return None
    key_lengths = [_NULL] if keys is None else _lengths(keys)
    if key_lengths is None or key_lengths.count(key_lengths[0]) != len(key_lengths):
        return None
    value_lengths = _lengths(values)
    if value_lengths is None:
        return None
    key_length, value_length = key_lengths[0], value_lengths[0]
    # Up to the next power of two, or batches of 999 and of 1000 records would each keep their own.
    kept_count = 1 << (count - 1).bit_length()
    if value_lengths.count(value_length) == count:
        prefixes = _prefixes(key_length, value_length, kept_count)[:count]
        records = _join(
            [prefixes, values] if keys is None else [prefixes, keys, [_LENGTHS[value_length]] * count, values]
        )
        # A memoryview counts its items, not its bytes: with wider ones the lengths in the records would be wrong.
        return records if len(records) == _uniform_bytes(key_length, value_length, count) else None
    if set(map(type, values)) != {bytes} or (keys is not None and set(map(type, keys)) != {bytes}):
        return None  # for the same reason; here no total is known to compare with
    heads: list[bytes] = []
    for width, first, end in _OFFSET_WIDTHS:
        heads += map(_heads(key_length, width).__getitem__, value_lengths[first:end])
    middles = _middles(key_length, kept_count)[:count]
    lengths = list(map(_LENGTHS.__getitem__, value_lengths))
    return _join([heads, middles, lengths, values] if keys is None else [heads, middles, keys, lengths, values])


def _lengths(column: Sequence[Buffer | None]) -> list[int] | None:
    try:
        return list(map(len, cast(Sequence[Buffer], column)))
    except TypeError:  # None has no length
        return None


def _join(columns: Sequence[Sequence[Buffer | None]]) -> bytes:
    """Read the columns row by row, and move the 0 before the first record to the end of the last."""
    stride, count = len(columns), len(columns[0])
    pieces: list[Buffer | None] = [b"\x00"] * (stride * count + 1)
    for index, column in enumerate(columns):
        pieces[index:-1:stride] = column
    pieces[0] = cast(Buffer, pieces[0])[1:]
    return b"".join(cast(list[Buffer], pieces))


class _Kept(dict[int, bytes]):
    """Remembers what a function gave for a length; not for every one, or hostile lengths would fill the memory."""

    def __init__(self, compute: Callable[[int], bytes]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, length: int) -> bytes:
        answer = self._compute(length)
        if length <= _KEPT_LENGTH_MAX:
            self[length] = answer
        return answer


_LENGTHS: Final = _Kept(encode_varint)


@lru_cache(maxsize=16)
def _heads(key_length: int, offset_delta_bytes: int) -> _Kept:
    """What precedes the offset delta, by the length of the value."""
    return _Kept(lambda value_length: _head(_body_bytes(key_length, value_length, offset_delta_bytes)))


@lru_cache(maxsize=8)
def _middles(key_length: int, count: int) -> list[bytes]:
    """What lies between the head and the key, or the value's length when keys are null."""
    length = encode_varint(key_length)
    return [encode_varint(index) + length for index in range(count)]


@lru_cache(maxsize=8)
def _prefixes(key_length: int, value_length: int, count: int) -> list[bytes]:
    """What precedes the key of each record, or its value when keys are null."""
    length = encode_varint(value_length) if key_length == _NULL else b""
    prefixes: list[bytes] = []
    for width, first, end in _OFFSET_WIDTHS:
        head = _heads(key_length, width)[value_length]
        prefixes += (head + middle + length for middle in _middles(key_length, count)[first:end])
    return prefixes


def _head(body_bytes: int) -> bytes:
    """The end of the record before, the length of this one, its attributes and its timestamp delta."""
    return b"\x00" + encode_varint(body_bytes) + b"\x00\x00"


def _body_bytes(key_length: int, value_length: int, offset_delta_bytes: int) -> int:
    """The length that a record says it has: all of it but that length."""
    size = 3 + offset_delta_bytes  # attributes, timestamp delta and header count, a byte each
    for length in (key_length, value_length):
        size += len(encode_varint(length)) + max(0, length)
    return size


def _uniform_bytes(key_length: int, value_length: int, count: int) -> int:
    """What all records take, where lengths are all the same."""
    total = 0
    for width, first, end in _OFFSET_WIDTHS:
        body_bytes = _body_bytes(key_length, value_length, width)
        total += max(0, min(count, end) - first) * (len(encode_varint(body_bytes)) + body_bytes)
    return total
