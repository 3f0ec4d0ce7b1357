"""What a request may look like on the wire, told before it is parsed.

A message of nothing but empty messages takes two bytes a piece to send, and a hundred to have: 30 MB of them would be
1.5 GB, and seconds in which nothing else happens. So requests are small, but for those that bring records, and of
those the parts are counted first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from quire.errors import InvalidArgumentError
from quire_broker.service.splice import divide

REQUEST_BYTES_MAX: Final = 512 * 1024
"""Of a request without records: a thousand partitions by names of full length are less."""
SMALL_BYTES: Final = 64 * 1024
"""What is not larger may have any shape."""
PARTS_MAX: Final = 50_000
"""Messages within a request: entries, records, headers."""

M = TypeVar("M", bound=Message)

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_Children = dict[int, "_Children"]


def small(kind: type[M], *, bytes_max: int = REQUEST_BYTES_MAX) -> Callable[[bytes], M]:
    """A parser that refuses what is larger."""

    def parse(data: bytes) -> M:
        if len(data) > bytes_max:
            raise InvalidArgumentError(
                f"a {kind.DESCRIPTOR.name} of {len(data)} bytes is over the limit of {bytes_max}; ask for less",
                size_bytes=len(data),
                limit_bytes=bytes_max,
            )
        return _parsed(kind, data)

    return parse


def counted(kind: type[M], *, parts_max: int = PARTS_MAX) -> Callable[[bytes], M]:
    """A parser that refuses what has too many parts."""
    children = _children(kind.DESCRIPTOR)

    def parse(data: bytes) -> M:
        if len(data) > SMALL_BYTES:
            try:
                has_too_many = _has_more_parts(data, children, parts_max)
            except IndexError as error:
                raise _no_message() from error
            if has_too_many:
                raise InvalidArgumentError(
                    f"a {kind.DESCRIPTOR.name} of more than {parts_max} entries, records and headers; send fewer",
                    limit=parts_max,
                )
        return _parsed(kind, data)

    return parse


class Received(NamedTuple, Generic[M]):
    """A request that brings records."""

    message: M
    raw: Sequence[memoryview | None]
    """Raw batches that were taken out of its entries; see `splice`."""
    size_bytes: int


def with_raw(kind: type[M], *, parts_max: int = PARTS_MAX) -> Callable[[bytes], Received[M]]:
    """The same, but large raw batches stay in the bytes that they came in."""
    parse = counted(kind, parts_max=parts_max)

    def receive(data: bytes) -> Received[M]:
        head, raw = divide(data, kind)
        return Received(parse(head), raw, len(data))

    return receive


def _parsed(kind: type[M], data: bytes) -> M:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise _no_message() from error


def _no_message() -> InvalidArgumentError:
    return InvalidArgumentError("the request does not parse as the method's message")


def _children(descriptor: Any) -> _Children:
    """The fields that hold messages, by number. Ours do not hold themselves. Descriptors are of one of two types."""
    return {
        field.number: _children(field.message_type)
        for field in descriptor.fields
        if field.type == FieldDescriptor.TYPE_MESSAGE
    }


def _has_more_parts(data: bytes, children: _Children, parts_max: int) -> bool:
    """Whether there are. Raises IndexError for what is no message: a parser could be long in finding out."""
    parts = 0
    todo = [(0, len(data), children)]
    while todo:
        at, end, children = todo.pop()
        while at < end:
            tag, at = _varint(data, at)
            kind = tag & 7
            if kind == _LENGTH:
                size, at = _varint(data, at)
                within = children.get(tag >> 3)
                if within is not None:
                    parts += 1
                    if parts > parts_max:
                        return True
                    if within and size:
                        todo.append((at, at + size, within))
                at += size
            elif kind == _VARINT:
                _, at = _varint(data, at)
            elif kind == _FIXED64:
                at += 8
            elif kind == _FIXED32:
                at += 4
            else:
                return True  # groups, which nobody sends: they could hide anything
        if at > end:
            raise IndexError
    return False


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value = data[at]
    if value < 0x80:
        return value, at + 1
    value &= 0x7F
    for shift in range(7, 70, 7):
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
    raise IndexError
