"""What replicas say to each other. Of which partition, and in which session of the link: that comes with it."""

from __future__ import annotations

from typing import NamedTuple


class Session(NamedTuple):
    """One attempt of one follower to follow. What was said in another one says nothing in this one."""

    link: bytes
    """The id of the link's session: the follower's process and the way to it have not changed since."""
    attempt: int


class StreamPosition(NamedTuple):
    """How a follower's log of one stream ends."""

    stream: int
    start_offset: int
    end_offset: int
    last_epoch: int


class Join(NamedTuple):
    """A follower wants to follow, and says how its logs end."""

    leader_epoch: int
    broker_epoch: int
    attempt: int
    is_damaged: bool
    streams: tuple[StreamPosition, ...]


class StreamComparison(NamedTuple):
    """What the leader's log of a stream says to a follower's position."""

    stream: int
    start_offset: int
    end_offset: int
    epoch: int
    """The leader's largest epoch that is not above the follower's last one."""
    epoch_end_offset: int


class JoinAnswer(NamedTuple):
    leader_epoch: int
    attempt: int
    is_settled: bool
    """All streams agree: pushes begin where the follower's logs end."""
    streams: tuple[StreamComparison, ...]


class Rejoin(NamedTuple):
    """The attempt is over: begin another one."""

    leader_epoch: int
    attempt: int


class Push(NamedTuple):
    """Batches of one stream, or none and only what there is to know."""

    leader_epoch: int
    attempt: int
    stream: int
    base_offset: int
    end_offset: int
    log_start_offset: int
    high_watermark: int


class StreamCount(NamedTuple):
    stream: int
    counted_offset: int


class Ack(NamedTuple):
    """What a follower counts as written. The first of an attempt has all streams, later ones those that moved."""

    leader_epoch: int
    attempt: int
    is_damaged: bool
    streams: tuple[StreamCount, ...]


class Want(NamedTuple):
    """A replica asks for batches that it had and that are damaged."""

    request_id: int
    stream: int
    base_offset: int
    end_offset: int


ToLeader = Join | Ack
ToFollower = JoinAnswer | Rejoin | Push
Message = ToLeader | ToFollower | Want
