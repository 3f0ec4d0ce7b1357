"""Builds a batch a record at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from quire.errors import BatchTooLargeError, InvalidArgumentError
from quire.records._cython import new_writer
from quire.records.assemble import BatchOptions, assemble, check_timestamp
from quire.records.header import BATCH_BYTES_MAX, HEADER_BYTES, parse_header
from quire.records.limits import RECORD_COUNT_MAX
from quire.records.record import Header
from quire.types import Buffer


class BatchBuilder:
    """A batch that is still open.

    It is full when another record would take it over `batch_bytes_max`, before compression, or over
    `record_count_max`. An empty one takes any record that a batch can hold at all: a record larger than
    `batch_bytes_max` would fit in no other either.
    """

    __slots__ = ("_count", "_count_max", "_writer")

    def __init__(self, *, batch_bytes_max: int = BATCH_BYTES_MAX, record_count_max: int = RECORD_COUNT_MAX) -> None:
        if not (HEADER_BYTES < batch_bytes_max <= BATCH_BYTES_MAX and 0 < record_count_max <= RECORD_COUNT_MAX):
            raise InvalidArgumentError(
                f"a batch of up to {batch_bytes_max} bytes and {record_count_max} records is out of range"
            )
        self._writer = new_writer(batch_bytes_max=batch_bytes_max)
        self._count = 0
        self._count_max = record_count_max

    @property
    def record_count(self) -> int:
        return self._count

    @property
    def size_bytes(self) -> int:
        """What `build` would give without compression, header included; with it, no more than this."""
        return self._writer.size()

    def append(self, key: Buffer | None, value: Buffer | None, headers: Sequence[Header], timestamp_ms: int) -> bool:
        """Take a record, or answer False when the batch is full; it is as it was then."""
        count = self._count
        try:
            if not count:
                headers = list(headers)  # read here and by the writer: an iterator would be empty by then
                self._check_first(key, value, headers, timestamp_ms)
            if count >= self._count_max:
                return False
            if timestamp_ms < 0:
                check_timestamp(timestamp_ms)
            if self._writer.append(count, timestamp_ms, key, value, headers) is None:
                return False
        except TypeError:
            # The writer takes lists only. Looking here spares every call that brings one.
            if isinstance(headers, list):
                raise
            return self.append(key, value, list(headers), timestamp_ms)
        except OverflowError:
            check_timestamp(timestamp_ms)
            raise
        except UnicodeEncodeError as error:
            raise InvalidArgumentError(f"a header key is not text: {error}") from error
        self._count = count + 1
        return True

    def build(self, **options: Unpack[BatchOptions]) -> bytes:
        """The batch as it stands. It stays open, and may be built again: under another producer epoch, say."""
        if not self._count:
            raise InvalidArgumentError("a batch has at least one record")
        built = memoryview(self._writer.build())
        header = parse_header(built)
        return assemble(
            built[HEADER_BYTES:],
            record_count=self._count,
            base_timestamp_ms=header.base_timestamp_ms,
            max_timestamp_ms=header.max_timestamp_ms,
            **options,
        )

    def _check_first(
        self, key: Buffer | None, value: Buffer | None, headers: list[Header], timestamp_ms: int
    ) -> None:
        check_timestamp(timestamp_ms)
        size = HEADER_BYTES + self._writer.size_in_bytes(0, timestamp_ms, key, value, headers)
        if size > BATCH_BYTES_MAX:
            raise BatchTooLargeError(
                f"a batch of this record alone takes {size} bytes, over the limit of {BATCH_BYTES_MAX}",
                size_bytes=size,
                limit_bytes=BATCH_BYTES_MAX,
            )
