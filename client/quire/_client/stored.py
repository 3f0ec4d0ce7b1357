"""What is told of records that were stored, and of their place."""

from __future__ import annotations

from typing import Final, NamedTuple

OFFSET_UNKNOWN: Final = -1
"""Where nobody waited for the offset (acks "none"), or the broker no longer knows it of a record sent twice."""


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"'{self.topic}', partition {self.partition}"


class Durability(NamedTuple):
    """How safe records were at the moment of the answer."""

    replicas: int
    """How many replicas counted the records as written, the leader among them. 0 where nobody waited."""
    fsynced: bool
    """Whether each of those had them on its disk."""


class Stored(NamedTuple):
    """Where a record is, and how safe."""

    topic: str
    partition: int
    offset: int
    """-1 with acks "none", or if it was sent again so late that the broker only knows that it has it."""
    timestamp_ms: int
    duplicate: bool
    """Whether a retry found it stored already. It is stored once."""
    durability: Durability


class StoredRange(NamedTuple):
    """The same of records that lie together: so many of them, from `offset` on."""

    topic: str
    partition: int
    offset: int
    record_count: int
    timestamp_ms: int
    duplicate: bool
    durability: Durability


class Placed(NamedTuple):
    """What a broker answered of a whole batch."""

    base_offset: int
    duplicate: bool
    durability: Durability
