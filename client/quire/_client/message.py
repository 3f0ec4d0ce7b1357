"""What a consumer hands out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from quire.records import Header, Record


class Message(NamedTuple):
    """A record, with its place."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    """When it was sent, or appended if the topic says so; milliseconds since 1970 UTC."""
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    """Names and values, in order; a name may occur more than once."""
    leader_epoch: int
    """Which leadership of the partition wrote it."""


def messages_of(records: Sequence[Record], *, topic: str, partition: int, leader_epoch: int) -> list[Message]:
    """Many at once. It is as much work as decoding them, so it is spelled for speed: twice that of `Message(…)`."""
    new = tuple.__new__
    return [
        new(
            Message,
            (
                topic,
                partition,
                each.offset,
                each.timestamp,
                each.key,
                each.value,
                tuple(each.headers),
                leader_epoch,
            ),
        )
        for each in records
    ]
