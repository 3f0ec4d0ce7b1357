"""Bugs to plant in the replication cores, most of them ones that people have really made. A check that misses them is
no check."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from quire_broker.replica import divergence, streams
from quire_broker.replica.effects import FollowerEffect, LeaderEffect
from quire_broker.replica.follower import FollowerCore
from quire_broker.replica.leader import LeaderCore, Picture
from quire_broker.replica.messages import Join, Session, StreamComparison, StreamPosition
from quire_broker.replica.progress import Progress
from quire_broker.replica.streams import RECORDS

Planted = Callable[[], AbstractContextManager[Any]]


def ack_before_isr() -> AbstractContextManager[Any]:
    """The high watermark does not wait for one of the members."""

    def waited_for(self: LeaderCore) -> list[int]:
        members = original(self)
        return [member for member in members if member != max(members) or member == self.broker_id]

    original = LeaderCore.waited_for
    return mock.patch.object(LeaderCore, "waited_for", waited_for)


def high_watermark_from_leader_alone() -> AbstractContextManager[Any]:
    return mock.patch.object(LeaderCore, "waited_for", lambda self: [self.broker_id])


def no_epoch_truncation() -> AbstractContextManager[Any]:
    """Only lengths are compared: a follower that is not longer than its leader counts as equal."""

    def agrees(at: StreamPosition, leader: StreamComparison) -> bool:
        return leader.start_offset <= at.end_offset <= leader.end_offset

    def next_step(log: streams.LogView, at: StreamPosition, leader: StreamComparison) -> divergence.Step | None:
        if agrees(at, leader):
            return None
        return original(
            log, at._replace(last_epoch=leader.epoch), leader._replace(epoch_end_offset=leader.end_offset)
        )

    original = divergence.next_step
    return mock.patch.multiple(divergence, agrees=agrees, next_step=next_step)


def one_truncation_round() -> AbstractContextManager[Any]:
    """The follower truncates to where its last epoch ends at the leader, and believes that to be all."""

    def agrees(at: StreamPosition, leader: StreamComparison) -> bool:
        return original(at, leader) or leader.start_offset <= at.end_offset <= leader.epoch_end_offset

    original = divergence.agrees
    return mock.patch.object(divergence, "agrees", agrees)


def unsynced_offsets_counted() -> AbstractContextManager[Any]:
    """A follower acknowledges what it has written, whatever the flush policy says."""

    def ack(self: FollowerCore, *, is_first: bool = False) -> Any:
        with mock.patch("tests.property.replica_world.SimLog.counted_offset", _END):
            return original(self, is_first=is_first)

    original = FollowerCore._ack
    return mock.patch.object(FollowerCore, "_ack", ack)


def leader_counts_unsynced() -> AbstractContextManager[Any]:
    """The leader counts for itself what it has written."""

    def counted(self: LeaderCore, broker_id: int, stream: int) -> int:
        with mock.patch("tests.property.replica_world.SimLog.counted_offset", _END):
            return original(self, broker_id, stream)

    original = LeaderCore._counted
    return mock.patch.object(LeaderCore, "_counted", counted)


def same_epoch_restart() -> AbstractContextManager[Any]:
    """A follower that comes back in the same leader epoch is taken for what it was."""

    def begin(self: Progress, session: Session, join: Join) -> None:
        counted, caught_up = dict(self.counted), self.caught_up_ms
        original(self, session, join)
        self.counted, self.caught_up_ms = counted, caught_up

    def end(self: Progress) -> None:
        counted = dict(self.counted)
        original_end(self)
        self.counted = counted

    original, original_end = Progress.begin, Progress.end
    return mock.patch.multiple(Progress, begin=begin, end=end)


def acks_while_comparing() -> AbstractContextManager[Any]:
    """The leader counts what a follower has from the moment it joins, whether the logs agree or not."""

    def begin(self: Progress, session: Session, join: Join) -> None:
        original(self, session, join)
        self.settle({at.stream: at.end_offset for at in join.streams})
        self.counted = {at.stream: at.end_offset for at in join.streams}

    original = Progress.begin
    return mock.patch.object(Progress, "begin", begin)


def pushes_of_any_epoch() -> AbstractContextManager[Any]:
    """A follower takes what comes, from whichever leadership and for whichever attempt."""
    return mock.patch.object(FollowerCore, "_is_present", return_value=True)


def high_watermark_beyond_the_log() -> AbstractContextManager[Any]:
    """A follower believes the leader's high watermark, whether it has what is below or not."""

    def learn(self: FollowerCore, stream: int) -> list[FollowerEffect]:
        with mock.patch("tests.property.replica_world.SimLog.end_offset", 1 << 40):
            return original(self, stream)

    original = FollowerCore._learn
    return mock.patch.object(FollowerCore, "_learn", learn)


def proposal_counts_at_once() -> AbstractContextManager[Any]:
    """A proposed ISR counts in place of the committed one before anybody agreed to it."""

    def waited_for(self: LeaderCore) -> list[int]:
        if self.proposal is None:
            return original(self)
        return [member.broker_id for member in self.proposal.isr]

    original = LeaderCore.waited_for
    return mock.patch.object(LeaderCore, "waited_for", waited_for)


def proposal_does_not_count() -> AbstractContextManager[Any]:
    """A member that was proposed is not waited for before it is committed."""
    return mock.patch.object(LeaderCore, "waited_for", lambda self: sorted(self.picture.isr))


def min_isr_ignored() -> AbstractContextManager[Any]:
    """The high watermark moves although those who left are electable because it does not."""
    return mock.patch.object(LeaderCore, "_is_isr_large_enough", return_value=True)


def joins_below_epoch_start() -> AbstractContextManager[Any]:
    """A new leader takes the high watermark that it happens to know for all that was committed."""

    def init(self: LeaderCore, **arguments: Any) -> None:
        original(self, **arguments)
        self._epoch_starts.clear()

    original = LeaderCore.__init__
    return mock.patch.object(LeaderCore, "__init__", init)


def one_stream_is_enough() -> AbstractContextManager[Any]:
    """A replica is in sync that has caught up on the records."""

    def has(self: Progress, ends: dict[int, int]) -> bool:
        return original(self, {stream: end for stream, end in ends.items() if stream == RECORDS})

    original = Progress.has
    return mock.patch.object(Progress, "has", has)


def broker_epoch_of_today() -> AbstractContextManager[Any]:
    """A replica is proposed under the broker epoch that it has, not under the one in which it was found in sync."""

    def on_metadata(self: LeaderCore, picture: Picture, now_ms: int) -> list[LeaderEffect]:
        for broker_id, follower in self._followers.items():
            follower.broker_epoch = picture.brokers.get(broker_id, 0)
        return original(self, picture, now_ms)

    original = LeaderCore.on_metadata
    return mock.patch.object(LeaderCore, "on_metadata", on_metadata)


_END = property(lambda self: self.end_offset)


PLANTED: dict[str, Planted] = {
    one.__name__: one
    for one in (
        ack_before_isr,
        high_watermark_from_leader_alone,
        no_epoch_truncation,
        one_truncation_round,
        unsynced_offsets_counted,
        leader_counts_unsynced,
        same_epoch_restart,
        acks_while_comparing,
        pushes_of_any_epoch,
        high_watermark_beyond_the_log,
        proposal_counts_at_once,
        proposal_does_not_count,
        min_isr_ignored,
        joins_below_epoch_start,
        one_stream_is_enough,
        broker_epoch_of_today,
    )
}
