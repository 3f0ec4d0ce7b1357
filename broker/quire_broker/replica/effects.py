"""What the cores ask their owner to do, in this order, before the next event."""

from __future__ import annotations

from typing import NamedTuple

from quire_broker.replica.messages import Message


class Send(NamedTuple):
    """Send this to a broker, in the link's session that the partition uses now. If there is none: drop it."""

    to: int
    message: Message


class HighWatermark(NamedTuple):
    """Of this stream everything below is committed. Never falls. On a leader: answer those who wait for it."""

    stream: int
    offset: int


class PushReady(NamedTuple):
    """There are batches to push to a follower: let its window give this stream a turn."""

    to: int
    stream: int
    is_catch_up: bool
    """The leader does not wait for that follower: others go first."""


class Counted(NamedTuple):
    """A follower counts what was pushed, up to here: its window has room again."""

    to: int
    stream: int
    offset: int


class NotFollowing(NamedTuple):
    """A follower follows no more, or begins anew: nothing that was pushed to it is waited for."""

    to: int


class IsrMember(NamedTuple):
    broker_id: int
    broker_epoch: int


class Proposal(NamedTuple):
    """A change of the ISR, for `AlterPartitions`."""

    leader_epoch: int
    partition_epoch: int
    """The one that it is made from: at another one nothing happens."""
    isr: tuple[IsrMember, ...]
    damaged: tuple[int, ...]


class Propose(NamedTuple):
    """Send this to the controller, and report what came of it. Until it is answered, send the same command again,
    under the same change id: the refusal of another command with the same content would say nothing of the first,
    which may still be on its way."""

    proposal: Proposal


class HandOver(NamedTuple):
    """This leader's copy is damaged: ask the controller to move the leadership to another broker."""

    to: int


class Truncate(NamedTuple):
    """Remove everything from `end_offset` on, and epochs without a batch also if there is nothing to remove."""

    stream: int
    end_offset: int


class Reset(NamedTuple):
    """Remove everything, and go on at another offset."""

    stream: int
    start_offset: int


class Trim(NamedTuple):
    """Do all of these, durably, then call `on_trimmed`; or `on_trim_failed`, if that cannot be."""

    steps: tuple[Truncate | Reset, ...]


class Append(NamedTuple):
    """Write the batches of the push at hand, after those of earlier ones, then call `on_local`. If that fails, drop
    those that follow too, and call `on_append_failed`."""

    stream: int
    base_offset: int
    end_offset: int


class AdvanceStart(NamedTuple):
    """Forget all that lies below an offset, as the leader did."""

    stream: int
    start_offset: int


class Stop(NamedTuple):
    """This replica cannot follow without losing what was committed: tell an operator. Nothing was removed."""

    reason: str


class Mend(NamedTuple):
    """Write the batches of the answer at hand over the damaged range that they are."""

    stream: int
    base_offset: int
    end_offset: int


LeaderEffect = Send | HighWatermark | PushReady | Counted | NotFollowing | Propose | HandOver
FollowerEffect = Send | HighWatermark | Trim | Append | AdvanceStart | Stop
MenderEffect = Send | Mend
