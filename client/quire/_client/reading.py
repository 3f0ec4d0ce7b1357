"""One partition that is read: what it holds, by which stream it came, what is told when it cannot be read. Pure."""

from __future__ import annotations

from collections import deque

from quire._client.message import Message
from quire._client.starts import Place, Start
from quire._client.stored import TopicPartition
from quire.errors import DamagedRangeError, MalformedBatchError, OffsetOutOfRangeError, QuireError
from quire.link.backoff import Backoff

Key = tuple[bytes, int]
"""A topic's id and a partition: what streams and metadata know of a TopicPartition."""


class Stream:
    """One subscription at one broker, from its beginning to its end."""

    __slots__ = ("broker_id", "credit_bytes", "ended", "held_bytes", "owed_bytes")

    def __init__(self, broker_id: int, credit_bytes: int) -> None:
        self.broker_id = broker_id
        self.credit_bytes = credit_bytes
        self.held_bytes = 0
        """Sent, and not taken yet."""
        self.owed_bytes = 0
        """Taken, and the broker has not been told."""
        self.ended = False

    @property
    def is_due(self) -> bool:
        """Whether the broker is to be told now: not for every little, but before it runs dry."""
        return self.owed_bytes > 0 and (self.owed_bytes * 4 >= self.credit_bytes or not self.held_bytes)


class Chunk:
    """Batches of one message, end to end, and how far they are taken."""

    __slots__ = ("at", "credit_bytes", "data", "next_offset", "stream")

    def __init__(self, data: bytes, *, next_offset: int, credit_bytes: int, stream: Stream) -> None:
        self.data = data
        self.at = 0
        self.next_offset = next_offset
        self.credit_bytes = credit_bytes
        self.stream = stream


def release(chunk: Chunk) -> None:
    """Its bytes are taken."""
    stream = chunk.stream
    stream.held_bytes -= chunk.credit_bytes
    stream.owed_bytes += chunk.credit_bytes


class Reading:
    """One partition that is assigned."""

    __slots__ = (
        "backoff",
        "bad_bytes",
        "chunks",
        "decoded",
        "decoded_at",
        "error",
        "fetch_offset",
        "number",
        "partition",
        "paused",
        "position",
        "resume_ms",
        "start",
        "stream",
        "topic_id",
    )

    def __init__(self, partition: TopicPartition, topic_id: bytes, start: Start, *, backoff: Backoff) -> None:
        self.partition = partition
        self.topic_id = topic_id
        self.backoff = backoff
        self.start: Place | None = None
        """What to look up before anything can be read."""
        self.position = 0
        """The offset after the last one that was handed out, or is known to hold nothing."""
        self.fetch_offset = 0
        """From where the broker is to send on: behind all chunks."""
        self.chunks: deque[Chunk] = deque()
        self.decoded: list[Message] = []
        self.decoded_at = 0
        """A batch of which only a part was taken, and the first message that is left of it."""
        self.number = 0
        """Under which number it is subscribed; 0 if it is not."""
        self.stream: Stream | None = None
        self.paused = False
        self.error: QuireError | None = None
        """What the user is to be told."""
        self.resume_ms = 0.0
        self.bad_bytes = 0
        self.go_to(start)

    @property
    def key(self) -> Key:
        return self.topic_id, self.partition.partition

    @property
    def is_wanted(self) -> bool:
        """Whether it is to be subscribed and is not."""
        return not (self.number or self.paused or self.error or self.start is not None)

    def go_to(self, start: Start) -> None:
        if isinstance(start, Place):
            self.start = start
        else:
            self.start = None
            self.position = self.fetch_offset = start


def advised(error: QuireError, partition: TopicPartition, position: int) -> QuireError:
    """The error with its place, and with what can be done about it."""
    end_offset = error.details.get("end_offset")
    if isinstance(error, OffsetOutOfRangeError):
        advice = (
            "Seek to 'earliest' or 'latest', or have that done by on_out_of_range. Records between may be gone: "
            "retention deletes the oldest"
        )
    elif isinstance(error, DamagedRangeError):
        advice = f"Poll again once it is mended, or seek to {error.end_offset} to go on without what is damaged"
    elif isinstance(error, MalformedBatchError) and end_offset is not None:
        advice = f"Seek to {end_offset} to go on behind it"
    else:
        advice = "Poll again to try again"
    text = f"{partition}, offset {position}: {error.message}. {advice}"
    error.message = text
    error.args = (text,)
    for name, value in (("topic", partition.topic), ("partition", partition.partition), ("offset", position)):
        error.details.setdefault(name, str(value))
    return error
