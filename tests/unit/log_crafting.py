"""Batches to put into a log, and ways to look at what is in one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypedDict, Unpack

from quire.errors import DamagedRangeError, QuireError
from quire.records import BatchOptions, Record, decode, encode_columns, iter_batches
from quire.types import Buffer
from quire_broker.log.appender import Appended
from quire_broker.log.log import Log

NOW_MS: Final = 1_700_000_000_000


class ProducerOptions(TypedDict):
    producer_id: int
    producer_epoch: int
    base_sequence: int


def batch(*values: bytes, timestamp_ms: int = NOW_MS, **options: Unpack[BatchOptions]) -> bytes:
    return encode_columns(values or (b"value",), timestamp_ms=timestamp_ms, **options)


def producer(sequence: int, *, producer_id: int = 7, epoch: int = 0) -> ProducerOptions:
    return {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}


def append(log: Log, *batches: Buffer, now_ms: int = NOW_MS) -> list[Appended]:
    """Append as the leader of the latest epoch, which begins if there is none, and expect nothing refused."""
    if log.latest_epoch < 0:
        log.begin_epoch(0)
    outcomes = log.append(batches, epoch=log.latest_epoch, now_ms=now_ms)
    stored = [outcome for outcome in outcomes if isinstance(outcome, Appended)]
    assert len(stored) == len(outcomes), outcomes
    return stored


def append_one(log: Log, data: Buffer, *, now_ms: int = NOW_MS) -> Appended | QuireError:
    """The outcome of one batch, stored or refused."""
    [outcome] = log.append([data], epoch=log.latest_epoch, now_ms=now_ms)
    return outcome


def stored(log: Log, *, first: int | None = None, end: int | None = None) -> bytes:
    """All bytes that can be read, from an offset on; DamagedRangeError where some cannot."""
    offset = log.start_offset if first is None else first
    end = log.end_offset if end is None else end
    parts: list[bytes] = []
    while offset < end:
        batches = log.read(offset, bytes_max=1 << 20, end_offset=end)
        assert len(batches.data) > 0
        parts.append(bytes(batches.data))
        offset = batches.end_offset
    return b"".join(parts)


def records(data: Buffer) -> list[Record]:
    view = memoryview(data)
    return [
        record
        for position, header in iter_batches(view)
        for record in decode(view[position : position + header.size_bytes])
    ]


def values(log: Log) -> dict[int, bytes | None]:
    """Value by offset of every record that can be read; what is damaged is passed over."""
    found: dict[int, bytes | None] = {}
    offset = log.start_offset
    while offset < log.end_offset:
        try:
            batches = log.read(offset, bytes_max=1 << 20)
        except DamagedRangeError as damage:
            offset = damage.end_offset
            continue
        found.update((r.offset, r.value) for r in records(batches.data) if r.offset >= log.start_offset)
        offset = batches.end_offset
    return found


def numbered(first: int, end: int, *, size: int = 100) -> dict[int, bytes]:
    """What `values` gives of batches that `fill` has made."""
    return {offset: value_at(offset, size=size) for offset in range(first, end)}


def value_at(offset: int, *, size: int = 100) -> bytes:
    """A value that tells which offset it belongs to."""
    return (b"%d " % offset).ljust(size, b".")


def fill(log: Log, count: int, *, size: int = 100, now_ms: int = NOW_MS) -> Sequence[Appended]:
    """Append `count` batches of one record each, whose value and timestamp tell its offset."""
    end = log.end_offset
    batches = [batch(value_at(offset, size=size), timestamp_ms=NOW_MS + offset) for offset in range(end, end + count)]
    return append(log, *batches, now_ms=now_ms)
