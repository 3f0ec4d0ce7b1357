"""Raw batches put into messages, and taken out of them, past protobuf.

It would copy them to make a message of them, once more to make bytes of that, and once more to tell how many. On the
wire a message is its fields, end to end: bytes can be put between others that protobuf has made, and taken out before
it reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from google.protobuf.message import Message

from quire.types import Buffer
from quire.v1 import broker_pb2, records_pb2

LARGE_BYTES: Final = 16 * 1024
"""Of what is smaller protobuf makes a message sooner than this would."""
ENTRIES_MAX: Final = 16
"""The entries of a request that has more are small."""

_LENGTH: Final = 2
_VARINT: Final = 0


def _tag(kind: type[Message], field: str) -> int:
    """What stands before a field that has a length."""
    return kind.DESCRIPTOR.fields_by_name[field].number << 3 | _LENGTH


_RAW: Final = _tag(records_pb2.RecordSet, "raw_batches")
_STORED: Final = _tag(broker_pb2.PartitionRecords, "records")
_NOTHING_STORED: Final = bytes((_STORED, 2, _RAW, 0))
"""Records with raw batches of no bytes."""
_READ: Final = _tag(broker_pb2.PartitionFetched, "records")
_ENTRY_READ: Final = _tag(broker_pb2.FetchResponse, "partitions")


# --- answers -------------------------------------------------------------------------------------------------------


class Fetched(NamedTuple):
    """What was read of one partition."""

    answer: broker_pb2.PartitionFetched
    raw: Buffer | None = None
    """Raw batches that belong into the answer's records, which then have none."""


class Spliced:
    """A FetchResponse or a SubscribeResponse, as bytes: on the wire they are the same."""

    __slots__ = ("_data",)

    def __init__(self, entries: Iterable[Fetched]) -> None:
        self._data = _join(entries)

    def SerializeToString(self) -> bytes:
        return self._data

    def ByteSize(self) -> int:
        return len(self._data)


def _join(entries: Iterable[Fetched]) -> bytes:
    parts: list[Buffer] = []
    for answer, raw in entries:
        head = answer.SerializeToString()
        if raw is None:
            parts += (_begin(_ENTRY_READ, len(head)), head)
        else:
            batches = _begin(_RAW, len(raw))
            records = _begin(_READ, len(batches) + len(raw))
            size_bytes = len(head) + len(records) + len(batches) + len(raw)
            parts += (_begin(_ENTRY_READ, size_bytes), head, records, batches, raw)
    return b"".join(parts)


def _begin(tag: int, size_bytes: int) -> bytes:
    found = bytearray((tag,))
    while size_bytes > 0x7F:
        found.append(size_bytes & 0x7F | 0x80)
        size_bytes >>= 7
    found.append(size_bytes)
    return bytes(found)


# --- requests ------------------------------------------------------------------------------------------------------


class Divided(NamedTuple):
    head: bytes
    """The request, with raw batches of no bytes in place of those that were taken out."""
    raw: Sequence[memoryview | None]
    """For each entry what was taken out of it. Empty if nothing was taken out of any."""


def divide(data: bytes, kind: type[Message], *, large_bytes: int = LARGE_BYTES) -> Divided:
    """Take raw batches out of a ProduceRequest or ProduceStreamRequest.

    Nothing is taken out of what looks odd: then protobuf judges.
    """
    if len(data) >= large_bytes:
        try:
            return _divide(data, _tag(kind, "partitions"), large_bytes)
        except (IndexError, _OddError):
            pass
    return Divided(data, ())


class _OddError(Exception):
    """No client of ours writes a message like this, though it may be one."""


def _divide(data: bytes, entry: int, large_bytes: int) -> Divided:
    view = memoryview(data)
    head: list[Buffer] = []
    found: list[memoryview | None] = []
    at = 0
    while at < len(data):
        begins = at
        tag, at, ends = _field(data, at, len(data))
        if tag != entry:
            head.append(view[begins:ends])
        else:
            if len(found) == ENTRIES_MAX:
                raise _OddError
            own, raw = _divide_entry(data, view, at, ends) if ends - at >= large_bytes else (view[at:ends], None)
            head += (_begin(entry, len(own)), own)
            found.append(raw)
        at = ends
    return Divided(b"".join(head), found)


def _divide_entry(data: bytes, view: memoryview, at: int, end: int) -> tuple[Buffer, memoryview | None]:
    own: list[Buffer] = []
    raw: memoryview | None = None
    begins_entry = at
    while at < end:
        begins = at
        tag, at, ends = _field(data, at, end)
        if tag != _STORED:
            own.append(view[begins:ends])
        else:
            if raw is not None:
                raise _OddError
            inner, at, inner_ends = _field(data, at, ends)
            if inner != _RAW or inner_ends != ends:
                return view[begins_entry:end], None  # records as messages
            own.append(_NOTHING_STORED)
            raw = view[at:inner_ends]
        at = ends
    return b"".join(own), raw


def _field(data: bytes, at: int, end: int) -> tuple[int, int, int]:
    """A field's tag, where its content begins, and where it ends."""
    tag, at = _varint(data, at)
    kind = tag & 7
    if kind == _LENGTH:
        size_bytes, at = _varint(data, at)
        ends = at + size_bytes
    elif kind == _VARINT:
        _, ends = _varint(data, at)
    else:
        raise _OddError
    if ends > end:
        raise _OddError
    return tag, at, ends


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise _OddError
