"""A follower: it compares before it follows, acknowledges only then, and never removes what was committed."""

from __future__ import annotations

from typing import TypeVar

import pytest

from quire_broker.log.ranges import OffsetRange
from quire_broker.replica import divergence
from quire_broker.replica.effects import (
    AdvanceStart,
    Append,
    FollowerEffect,
    HighWatermark,
    Reset,
    Send,
    Stop,
    Trim,
    Truncate,
)
from quire_broker.replica.follower import FollowerCore, State
from quire_broker.replica.messages import Ack, Join, JoinAnswer, Push, Rejoin, StreamCount, StreamPosition
from quire_broker.replica.streams import RECORDS, LogView
from tests.property.replica_world import OTHER, Entry, SimLog
from tests.unit.replica_crafting import CONFIG, LINK, extend, log_of, only

M = TypeVar("M")


class Follower:
    """One that has been told of leader 1 in epoch 5, and of the link to it."""

    def __init__(self, *, known: dict[int, int] | None = None, may_lose: bool = False, **logs: SimLog) -> None:
        self.logs = {RECORDS if name == "records" else OTHER: log for name, log in logs.items()}
        self.core = FollowerCore(broker_epoch=102, logs=self.logs, high_watermarks=known or {}, config=CONFIG)
        self.core.on_metadata(leader=1, leader_epoch=5, may_lose=may_lose, now_ms=0)
        self.joined = said(self.core.on_link(LINK, 0), Join)

    def answer(self, *, now_ms: int = 0, **leader: LogView) -> list[FollowerEffect]:
        """The leader's answer to the latest join, from logs that are these."""
        by_stream = {RECORDS if name == "records" else OTHER: log for name, log in leader.items()}
        asked = {at.stream: at for at in self.joined.streams}
        for stream in by_stream:
            asked.setdefault(stream, StreamPosition(stream, 0, 0, -1))
        comparisons = tuple(
            divergence.compare(by_stream.get(stream) or log_of(), at) for stream, at in sorted(asked.items())
        )
        settled = all(divergence.agrees(asked[each.stream], each) for each in comparisons)
        return self.core.on_join_answer(JoinAnswer(5, self.joined.attempt, settled, comparisons), now_ms)

    def push(
        self, base: int, end: int, *, stream: int = RECORDS, high_watermark: int = 0, start: int = 0, epoch: int = 5
    ) -> list[FollowerEffect]:
        push = Push(epoch, self.core.attempt, stream, base, end, start, high_watermark)
        return self.core.on_push(push, 0)

    def write(self, base: int, end: int, *, stream: int = RECORDS) -> list[FollowerEffect]:
        log = self.logs.setdefault(stream, SimLog("fsync"))
        assert log.end_offset == base
        log.append([Entry(5, offset) for offset in range(base, end)])
        return self.core.on_local(0)


def said(effects: list[FollowerEffect], kind: type[M]) -> M:
    [message] = [effect.message for effect in only(effects, Send) if isinstance(effect.message, kind)]
    return message


def following(records: SimLog) -> Follower:
    follower = Follower(records=records)
    follower.answer(records=records)
    assert follower.core.state is State.FOLLOWING
    return follower


# --- joining --------------------------------------------------------------------------------------------------------


def test_it_says_how_its_logs_end() -> None:
    follower = Follower(records=log_of(1, 3), other=log_of(2, start=7))
    positions = (StreamPosition(RECORDS, 0, 2, 3), StreamPosition(OTHER, 7, 8, 2))
    assert follower.joined == Join(5, 102, 1, False, positions)


def test_logs_that_agree_are_followed_and_acknowledged_as_far_as_they_count() -> None:
    log = log_of(1, 1)
    extend(log, 2, synced=False)
    effects = Follower(records=log).answer(records=log_of(1, 1, 2, 2))
    assert effects == [Send(1, Ack(5, 1, False, (StreamCount(RECORDS, 2),)))]


def test_nothing_is_acknowledged_before_the_logs_agree() -> None:
    log = log_of(1, 2)
    follower = Follower(records=log)
    assert follower.core.on_local(0) == []
    assert follower.answer(records=log_of(1, 3, 3)) == [Trim((Truncate(RECORDS, 1),))]
    assert follower.core.on_local(0) == []
    log.truncate(1)
    follower.joined = said(follower.core.on_trimmed(0), Join)
    assert follower.joined.attempt == 2
    assert said(follower.answer(records=log_of(1, 3, 3)), Ack).streams == (StreamCount(RECORDS, 1),)


def test_streams_are_compared_one_by_one_and_followed_together() -> None:
    follower = Follower(records=log_of(1, 1), other=log_of(1, 2))
    effects = follower.answer(records=log_of(1, 1, 3), other=log_of(1, 3))
    assert effects == [Trim((Truncate(OTHER, 1),))]
    assert follower.core.state is State.TRIMMING


def test_a_stream_that_the_leader_lacks_is_emptied_and_one_that_it_lacks_itself_begins_where_the_leader_does() -> (
    None
):
    assert Follower(other=log_of(1)).answer() == [Trim((Reset(OTHER, 0),))]
    assert Follower().answer(other=log_of(1, 1, start=3)) == [Trim((Reset(OTHER, 3),))]


def test_what_was_accepted_for_the_last_leader_is_written_before_the_next_one_is_asked() -> None:
    log = log_of(1)
    follower = following(records=log)
    follower.push(1, 3)
    follower.core.on_metadata(leader=3, leader_epoch=6, may_lose=False, now_ms=0)
    assert follower.core.on_link(b"N" * 16, 0) == []
    assert not follower.core.is_idle
    join = said(follower.write(1, 3), Join)
    assert (join.leader_epoch, join.streams) == (6, (StreamPosition(RECORDS, 0, 3, 5),))


def test_a_trim_that_has_begun_is_finished_before_the_next_leader_is_asked() -> None:
    log = log_of(1, 2)
    follower = Follower(records=log)
    follower.answer(records=log_of(1, 3))
    follower.core.on_metadata(leader=3, leader_epoch=6, may_lose=False, now_ms=0)
    assert follower.core.on_link(LINK, 0) == []
    log.truncate(1)
    assert said(follower.core.on_trimmed(0), Join).leader_epoch == 6


def test_a_trim_that_failed_is_found_out_anew_after_a_pause() -> None:
    follower = Follower(records=log_of(1, 2))
    follower.answer(records=log_of(1, 3))
    assert follower.core.on_trim_failed(0) == []
    assert follower.core.on_tick(0) == []
    assert said(follower.core.on_tick(2 * CONFIG.join_ms_min), Join).attempt == 2


def test_it_asks_again_at_growing_intervals() -> None:
    follower = Follower(records=log_of(1))
    times = [now_ms for now_ms in range(0, 3_000, 10) if follower.core.on_tick(now_ms)]
    assert times == [50, 150, 350, 750, 1550]


def test_without_a_leader_or_a_link_it_waits() -> None:
    core = FollowerCore(broker_epoch=102, logs={}, high_watermarks={}, config=CONFIG)
    assert core.on_metadata(leader=None, leader_epoch=4, may_lose=False, now_ms=0) == []
    assert core.on_link(LINK, 0) == []
    assert core.on_metadata(leader=1, leader_epoch=5, may_lose=False, now_ms=0) == []
    assert core.on_tick(10_000) == []
    assert said(core.on_link(LINK, 10_000), Join).leader_epoch == 5
    assert core.on_metadata(leader=3, leader_epoch=4, may_lose=False, now_ms=10_000) == []  # an old one
    assert core.leader_epoch == 5


# --- following ------------------------------------------------------------------------------------------------------


def test_what_is_pushed_is_written_and_acknowledged_once_it_counts() -> None:
    log = log_of(1)
    follower = following(records=log)
    assert follower.push(1, 3) == [Append(RECORDS, 1, 3)]
    assert follower.push(3, 4) == [Append(RECORDS, 3, 4)]  # more may come while that is being written
    assert follower.write(1, 3) == []
    log.sync(2)
    assert follower.core.on_local(0) == [Send(1, Ack(5, 1, False, (StreamCount(RECORDS, 2),)))]
    assert follower.core.on_local(0) == []


def test_a_new_stream_begins_with_its_first_push() -> None:
    follower = following(records=log_of(1))
    assert follower.push(0, 2, stream=OTHER) == [Append(OTHER, 0, 2)]
    follower.write(0, 2, stream=OTHER)
    follower.logs[OTHER].sync(2)
    assert said(follower.core.on_local(0), Ack).streams == (StreamCount(OTHER, 2),)


def test_the_high_watermark_is_the_leaders_as_far_as_the_log_goes() -> None:
    log = log_of(1, 1)
    follower = following(records=log)
    assert only(follower.push(2, 5, high_watermark=4), HighWatermark) == [HighWatermark(RECORDS, 2)]
    assert only(follower.write(2, 5), HighWatermark) == [HighWatermark(RECORDS, 4)]
    assert only(follower.push(5, 5, high_watermark=3), HighWatermark) == []
    assert follower.core.high_watermarks() == {RECORDS: 4}


def test_what_the_leader_deleted_is_deleted() -> None:
    log = log_of(1, 1, 1)
    follower = following(records=log)
    assert only(follower.push(3, 3, start=2, high_watermark=3), AdvanceStart) == [AdvanceStart(RECORDS, 2)]
    assert only(follower.push(3, 3, start=2, high_watermark=3), AdvanceStart) == []  # asked for already


def test_a_gap_or_a_repetition_ends_the_attempt() -> None:
    for base in (0, 2):
        follower = following(records=log_of(1))
        assert follower.push(base, base + 1) == []
        assert follower.core.state is State.WAITING
        assert said(follower.core.on_tick(1_000), Join).attempt == 2


def test_it_begins_anew_when_the_leader_says_so() -> None:
    follower = following(records=log_of(1))
    assert follower.core.on_rejoin(Rejoin(5, 1), 0) == []
    assert follower.core.state is State.WAITING
    assert said(follower.core.on_tick(1_000), Join).attempt == 2


def test_what_other_leaders_and_attempts_say_is_nothing() -> None:
    follower = following(records=log_of(1))
    assert follower.push(1, 2, epoch=4) == []
    assert follower.core.on_push(Push(5, 0, RECORDS, 1, 2, 0, 0), 0) == []
    assert follower.core.on_rejoin(Rejoin(4, 1), 0) == []
    assert follower.core.on_rejoin(Rejoin(5, 0), 0) == []
    assert follower.core.state is State.FOLLOWING
    assert follower.core.on_join_answer(JoinAnswer(5, 1, True, ()), 0) == []


def test_a_failed_append_drops_what_is_behind_it() -> None:
    log = log_of(1)
    follower = following(records=log)
    follower.push(1, 2)
    follower.push(2, 3)
    assert follower.core.on_append_failed(0) == []
    assert follower.core.is_idle
    assert follower.push(3, 4) == []
    assert said(follower.core.on_tick(1_000), Join).streams == (StreamPosition(RECORDS, 0, 1, 1),)


def test_a_new_session_of_the_link_begins_anew() -> None:
    follower = following(records=log_of(1))
    assert follower.core.on_link(LINK, 0) == []
    assert follower.core.on_link(None, 0) == []
    assert follower.core.state is State.WAITING
    assert said(follower.core.on_link(b"N" * 16, 0), Join).attempt == 2


def test_attempts_of_a_process_never_come_again() -> None:
    core = FollowerCore(broker_epoch=102, logs={}, high_watermarks={}, config=CONFIG, attempts=7)
    core.on_metadata(leader=1, leader_epoch=5, may_lose=False, now_ms=0)
    assert said(core.on_link(LINK, 0), Join).attempt == 8


def test_damage_is_said_at_once_and_until_it_is_mended() -> None:
    log = log_of(1, 1)
    follower = following(records=log)
    log.quarantined = [OffsetRange(0, 1)]
    assert said(follower.core.on_local(0), Ack).is_damaged
    assert follower.core.on_local(0) == []
    log.quarantined = []
    assert not said(follower.core.on_local(0), Ack).is_damaged
    log.quarantined = [OffsetRange(0, 1)]
    assert Follower(records=log).joined.is_damaged


# --- what was committed ---------------------------------------------------------------------------------------------


def test_it_stops_rather_than_remove_what_was_committed() -> None:
    follower = Follower(records=log_of(1, 1, 2), known={RECORDS: 3})
    [stop] = only(follower.answer(records=log_of(1, 1, 3)), Stop)
    assert "below 3" in stop.reason
    assert follower.core.state is State.STOPPED
    assert follower.core.on_tick(100_000) == []
    assert follower.core.on_link(None, 0) == []
    assert follower.core.on_link(LINK, 0) == []
    # Another leader may have it.
    follower.core.on_metadata(leader=3, leader_epoch=6, may_lose=False, now_ms=0)
    assert said(follower.core.on_link(LINK, 0), Join).leader_epoch == 6


def test_it_goes_on_once_an_operator_allows_the_loss() -> None:
    log = log_of(1, 1, 2)
    follower = Follower(records=log, known={RECORDS: 3})
    follower.answer(records=log_of(1, 1, 3))
    effects = follower.core.on_metadata(leader=1, leader_epoch=5, may_lose=True, now_ms=0)
    follower.joined = said(effects, Join)
    assert follower.answer(records=log_of(1, 1, 3)) == [Trim((Truncate(RECORDS, 2),))]
    log.truncate(2)
    follower.core.on_trimmed(0)
    assert follower.core.high_watermark(RECORDS) == 2


def test_what_every_replica_deleted_is_no_loss() -> None:
    log = log_of(1, 1)
    follower = Follower(records=log, known={RECORDS: 2})
    assert follower.answer(records=log_of(3, start=5)) == [Trim((Reset(RECORDS, 5),))]
    log.reset(5)
    follower.core.on_trimmed(0)
    assert follower.core.high_watermark(RECORDS) == 5


@pytest.mark.parametrize("settled", [True, False])
def test_two_sides_that_do_not_see_the_same_try_again(settled: bool) -> None:
    """An answer whose verdict does not fit what it says is a bug of one side; nothing is lost by it."""
    log = log_of(1, 1)
    follower = Follower(records=log)
    comparison = divergence.compare(log, divergence.position(RECORDS, log))
    if settled:
        comparison = comparison._replace(epoch_end_offset=1)
    effects = follower.core.on_join_answer(JoinAnswer(5, 1, settled, (comparison,)), 0)
    if settled:
        assert effects == [Trim((Truncate(RECORDS, 1),))]
    else:
        assert effects == []
        assert said(follower.core.on_tick(1_000), Join).attempt == 2
