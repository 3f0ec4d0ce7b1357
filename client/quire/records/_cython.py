"""The one door to aiokafka's Cython record codec, a path that aiokafka does not promise to keep.

What it does that we must not let out, seen in 0.14:

- It reads numbers without looking where the buffer ends, and looks afterwards. So it is only given buffers that go on
  in zeros: the first one ends any number, and the next look then finds itself past the end.
- Its header reader never looks, so it is given no less than a header.
- A length near 2**63 overflows its bounds check and asks for that much memory: MemoryError, as if there were none.
- It decompresses without a bound, so it only ever sees plain records.
- Attribute bits from 8 on are an OverflowError and some lower ones are dropped: headers are made elsewhere.
- A first timestamp of -1 means "none yet" to its builder, so negative ones must not get in.
- Header keys that are not UTF-8 leave as UnicodeDecodeError.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from itertools import repeat
from typing import Final, Protocol, cast

from aiokafka.errors import CorruptRecordException
from aiokafka.record._crecords.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from quire.records.header import HEADER_BYTES, MAGIC, Attributes, BatchHeader, pack_header
from quire.records.record import Header, Record
from quire.types import Buffer

_GUARD: Final = bytes(32)


class UndecodableError(Exception):
    """The decoder gave up. Its own words are of no use; `structure.check_records` says why."""


def read_records(header: BatchHeader, plain: Buffer) -> list[Record]:
    """Decode plain records. The count in the header is believed; offsets are as the records have them."""
    plain_header = header._replace(attributes=header.attributes & Attributes.LOG_APPEND_TIME)
    batch = memoryview(b"".join((pack_header(plain_header), plain, _GUARD)))[: -len(_GUARD)]
    try:
        return cast(list[Record], list(DefaultRecordBatch(batch)))
    except (CorruptRecordException, UnicodeDecodeError, OverflowError, MemoryError) as error:
        raise UndecodableError from error


class RecordWriter(Protocol):
    """Encodes records one after another behind room for a header."""

    def append(
        self, offset: int, timestamp: int, key: Buffer | None, value: Buffer | None, headers: Sequence[Header], /
    ) -> object | None:
        """Take a record, or answer None when it would not fit. The first one, at offset 0, always fits.

        Headers that are not in a list are a TypeError.
        """

    def size(self) -> int:
        """Bytes so far, with the header's."""

    def size_in_bytes(
        self, offset: int, timestamp: int, key: Buffer | None, value: Buffer | None, headers: list[Header], /
    ) -> int:
        """What a record would take."""

    def build(self) -> bytearray:
        """The live buffer itself, with a header in which timestamps and counts are right."""


def new_writer(*, batch_bytes_max: int) -> RecordWriter:
    """A writer whose batches reach at most `batch_bytes_max`, but for a first record that is larger."""
    # Theirs is a size that must not be reached.
    return cast(RecordWriter, DefaultRecordBatchBuilder(MAGIC, 0, 0, -1, -1, -1, batch_bytes_max + 1))


def write_columns(
    values: Sequence[Buffer | None], keys: Sequence[Buffer | None] | None, timestamp_ms: int
) -> memoryview:
    """Encode records without headers, in one sweep that stays in C."""
    writer = new_writer(batch_bytes_max=sys.maxsize - 1)
    key_column = repeat(None) if keys is None else keys
    deque(map(writer.append, range(len(values)), repeat(timestamp_ms), key_column, values, repeat([])), maxlen=0)
    return memoryview(writer.build())[HEADER_BYTES:]
