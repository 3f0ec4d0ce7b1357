"""Where the log of a follower and that of its leader part (KIP-101, KIP-279).

Two logs that have an epoch in common are equal up to where it ends in the shorter one, since one leader wrote it. So
the follower names its last epoch, the leader answers with its largest one that is not above, and the follower removes
what it has behind that. One round is not enough: what is then the follower's last epoch may be one that the leader
never had, and where logs have the same length they need not be the same.
"""

from __future__ import annotations

from typing import NamedTuple

from quire.types import NO_EPOCH
from quire_broker.replica.effects import Reset, Truncate
from quire_broker.replica.messages import StreamComparison, StreamPosition
from quire_broker.replica.streams import LogView


def position(stream: int, log: LogView) -> StreamPosition:
    return StreamPosition(stream, log.start_offset, log.end_offset, log.latest_epoch)


def compare(log: LogView, at: StreamPosition) -> StreamComparison:
    """The leader's answer."""
    epoch, epoch_end = log.epoch_end(at.last_epoch)
    return StreamComparison(at.stream, log.start_offset, log.end_offset, epoch, epoch_end)


def agrees(at: StreamPosition, leader: StreamComparison) -> bool:
    """Whether the follower's log is the beginning of the leader's, and the leader can go on from its end."""
    if at.last_epoch == NO_EPOCH:
        return leader.start_offset <= at.end_offset <= leader.end_offset and at.start_offset == at.end_offset
    return leader.epoch == at.last_epoch and leader.start_offset <= at.end_offset <= leader.epoch_end_offset


class Step(NamedTuple):
    trim: Truncate | Reset
    keeps_below: int
    """What is removed from here on the leader does not have. (Below the leader's start it had it once.)"""


def next_step(log: LogView, at: StreamPosition, leader: StreamComparison) -> Step | None:
    """What the follower has to remove before it asks again; None if nothing."""
    if agrees(at, leader):
        return None
    if at.last_epoch == NO_EPOCH:
        end = min(at.end_offset, leader.end_offset)
        return Step(Reset(at.stream, leader.start_offset), max(end, leader.start_offset))
    _, own_end = log.epoch_end(leader.epoch)
    end = min(own_end, leader.epoch_end_offset, at.end_offset)
    if end <= leader.start_offset:
        return Step(Reset(at.stream, leader.start_offset), leader.start_offset)
    if end < at.start_offset:
        return Step(Reset(at.stream, leader.start_offset), end)
    return Step(Truncate(at.stream, end), end)
