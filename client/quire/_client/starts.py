"""Where to begin to read: what users say, and what is asked of the broker."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal, NamedTuple

from quire.errors import InvalidArgumentError
from quire.v1 import broker_pb2

StartArgument = Literal["latest", "earliest"] | int | datetime | tuple[Literal["timestamp"], int]

OFFSET_MAX: Final = 2**63 - 1


class Place(NamedTuple):
    """An offset that has to be looked up."""

    place: broker_pb2.OffsetPlace.ValueType
    timestamp_ms: int = 0


EARLIEST: Final = Place(broker_pb2.OFFSET_PLACE_EARLIEST)
LATEST: Final = Place(broker_pb2.OFFSET_PLACE_LATEST)
NAMED: Final = {"earliest": EARLIEST, "latest": LATEST}

Start = int | Place
"""An offset, or how to find it."""


def start_of(start: object) -> Start:
    """Raises InvalidArgumentError for what is no place to start."""
    if isinstance(start, str) and start in NAMED:
        return NAMED[start]
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise InvalidArgumentError("a datetime to start at needs a time zone: datetime.now(UTC), for one")
        return at_time(int(start.timestamp() * 1000))
    if isinstance(start, tuple) and len(start) == 2 and start[0] == "timestamp":
        return at_time(start[1])
    if isinstance(start, int) and not isinstance(start, bool):
        return offset_of(start)
    raise InvalidArgumentError(
        "start is 'earliest', 'latest', an offset, a datetime with a time zone, or ('timestamp', milliseconds), not "
        f"{start!r}"
    )


def at_time(timestamp_ms: object) -> Place:
    if not isinstance(timestamp_ms, int) or isinstance(timestamp_ms, bool) or not 0 <= timestamp_ms <= OFFSET_MAX:
        raise InvalidArgumentError(f"a moment is a whole number of milliseconds since 1970 UTC, not {timestamp_ms!r}")
    return Place(broker_pb2.OFFSET_PLACE_TIMESTAMP, timestamp_ms)


def offset_of(offset: object) -> int:
    if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset <= OFFSET_MAX:
        raise InvalidArgumentError(f"an offset is a whole number from 0 on, not {offset!r}")
    return offset
