"""A leader: what is committed, who is in sync, what it proposes, and when it hands over."""

from __future__ import annotations

import pytest

from quire.errors import InvariantViolation, NotEnoughReplicasError
from quire_broker.log.ranges import OffsetRange
from quire_broker.replica.config import ReplicaConfig
from quire_broker.replica.effects import (
    Counted,
    HandOver,
    HighWatermark,
    IsrMember,
    LeaderEffect,
    NotFollowing,
    Proposal,
    Propose,
    PushReady,
    Send,
)
from quire_broker.replica.leader import Answer, LeaderCore
from quire_broker.replica.messages import JoinAnswer, Push, Rejoin
from quire_broker.replica.streams import RECORDS
from tests.property.replica_world import OTHER, SimLog
from tests.unit.replica_crafting import (
    ACTIVE,
    CONFIG,
    LINK,
    ack_of,
    extend,
    follow,
    join_of,
    leader_of,
    log_of,
    only,
    picture,
    push_all,
)

LAG = CONFIG.lag_ms_max


def led_by_one(log: SimLog, *followers: int, **changes: object) -> LeaderCore:
    """Broker 1 leads in epoch 5, and these follow it and have everything."""
    log.known_epochs.begin(5, log.end_offset)
    core = leader_of({RECORDS: log}, at=picture(**changes))
    for broker_id in followers:
        follow(core, broker_id, log)
    return core


def proposed(effects: list[LeaderEffect]) -> Proposal:
    [effect] = only(effects, Propose)
    return effect.proposal


def members(proposal: Proposal) -> list[int]:
    return [member.broker_id for member in proposal.isr]


def append(core: LeaderCore, log: SimLog, *to: int, now_ms: int = 0) -> None:
    """One more record, on the leader's disk and on its way to these."""
    extend(log, 5)
    core.on_local(now_ms)
    push_all(core, *to)


# --- what is committed ----------------------------------------------------------------------------------------------


def test_a_record_is_committed_when_every_member_counts_it() -> None:
    log = log_of(1, 1)
    core = led_by_one(log, 2, 3)
    assert core.high_watermark(RECORDS) == 2
    extend(log, 5, synced=False)
    assert only(core.on_local(1), PushReady) == [PushReady(2, RECORDS, False), PushReady(3, RECORDS, False)]
    push_all(core, 2, 3)
    assert core.on_ack(2, LINK, ack_of((RECORDS, 3)), 2) == [Counted(2, RECORDS, 3)]
    assert only(core.on_ack(3, LINK, ack_of((RECORDS, 3)), 3), HighWatermark) == []
    log.sync(3)  # the leader's own sync is the last one
    assert only(core.on_local(4), HighWatermark) == [HighWatermark(RECORDS, 3)]
    assert core.replicas_counting(RECORDS, 3) == 3


def test_each_stream_has_a_high_watermark_of_its_own() -> None:
    records, other = log_of(1, 1), log_of(1)
    core = leader_of({RECORDS: records, OTHER: other}, at=picture(replicas=(1, 2), isr=(1, 2)))
    join = join_of(2, records)
    core.on_join(2, LINK, join._replace(streams=(*join.streams, *join_of(2, other, stream=OTHER).streams)), 0)
    assert only(core.on_ack(2, LINK, ack_of((OTHER, 1)), 1), HighWatermark) == [HighWatermark(OTHER, 1)]
    assert only(core.on_ack(2, LINK, ack_of((RECORDS, 2)), 1), HighWatermark) == [HighWatermark(RECORDS, 2)]


def test_a_lone_replica_commits_what_it_has_synced() -> None:
    log = log_of(1)
    core = leader_of({RECORDS: log}, at=picture(replicas=(1,), isr=(1,), min_isr=1))
    assert only(core.on_tick(0), HighWatermark) == [HighWatermark(RECORDS, 1)]


def test_nothing_is_committed_below_the_minimum() -> None:
    log = log_of(1, 1)
    core = led_by_one(log, 2, isr=(1,), eligible=(2, 3))
    assert core.high_watermark(RECORDS) == 0
    with pytest.raises(NotEnoughReplicasError) as caught:
        core.require_enough_replicas()
    assert caught.value.details == {"isr": "1", "min_isr": "2"}
    # A proposal is not enough: only once it is committed are those who left electable no more.
    assert core.proposal is not None
    assert core.high_watermark(RECORDS) == 0
    effects = core.on_metadata(picture(isr=(1, 2), partition_epoch=11), 1)
    assert only(effects, HighWatermark) == [HighWatermark(RECORDS, 2)]
    core.require_enough_replicas()


def test_a_new_leader_does_not_know_what_is_the_latest_before_its_epoch_is_reached() -> None:
    log = log_of(1, 1, 1)
    log.known_epochs.begin(5, 3)
    core = leader_of({RECORDS: log}, known={RECORDS: 1})
    assert core.high_watermark(RECORDS) == 1
    assert not core.is_latest_known(RECORDS)
    for broker_id in (2, 3):
        follow(core, broker_id, log)
    assert core.high_watermark(RECORDS) == 3
    assert core.is_latest_known(RECORDS)


def test_a_log_below_its_high_watermark_cannot_lead() -> None:
    with pytest.raises(InvariantViolation):
        leader_of({RECORDS: log_of(1)}, known={RECORDS: 2})


# --- sessions -------------------------------------------------------------------------------------------------------


def test_what_was_counted_in_another_session_counts_no_more() -> None:
    log = log_of(1, 1)
    core = led_by_one(log, 2, 3)
    append(core, log, 2, 3)
    core.on_ack(3, LINK, ack_of((RECORDS, 3)), 1)
    core.on_ack(2, LINK, ack_of((RECORDS, 3)), 1)
    append(core, log, 2, 3)
    core.on_ack(3, LINK, ack_of((RECORDS, 4)), 2)
    # Broker 2 restarts in the same leader epoch, and has lost its last records.
    effects = core.on_join(2, b"N" * 16, join_of(2, log_of(1, 1), attempt=1), 3)
    assert NotFollowing(2) in effects
    assert core.replicas_counting(RECORDS, 3) == 2
    core.on_ack(2, LINK, ack_of((RECORDS, 4)), 4)  # of the session that is over
    assert core.high_watermark(RECORDS) == 3
    push_all(core, 2)
    assert only(core.on_ack(2, b"N" * 16, ack_of((RECORDS, 4)), 5), HighWatermark) == [HighWatermark(RECORDS, 4)]


def test_acks_of_other_epochs_attempts_and_strangers_are_nothing() -> None:
    log = log_of(1, 1)
    core = led_by_one(log)
    core.on_join(2, LINK, join_of(2, log, attempt=3), 0)
    for broker_id, ack in (
        (2, ack_of((RECORDS, 2), attempt=2)),
        (2, ack_of((RECORDS, 2), attempt=3, epoch=4)),
        (3, ack_of((RECORDS, 2), attempt=3)),
        (9, ack_of((RECORDS, 2), attempt=3)),
    ):
        assert core.on_ack(broker_id, LINK, ack, 1) == []
    assert core.replicas_counting(RECORDS, 2) == 1


def test_an_ack_of_what_was_never_sent_ends_the_attempt() -> None:
    log = log_of(1, 1)
    core = led_by_one(log, 2)
    effects = core.on_ack(2, LINK, ack_of((RECORDS, 99)), 1)
    assert effects == [NotFollowing(2), Send(2, Rejoin(5, 1))]
    assert core.replicas_counting(RECORDS, 2) == 1


def test_nothing_counts_before_the_logs_agree() -> None:
    log = log_of(1, 1)
    core = led_by_one(log)
    [effect] = only(core.on_join(2, LINK, join_of(2, log_of(1, 3)), 0), Send)
    assert isinstance(effect.message, JoinAnswer)
    assert not effect.message.is_settled
    assert core.on_ack(2, LINK, ack_of((RECORDS, 2)), 1) == []
    assert core.next_push(2, RECORDS) is None


def test_late_joins_and_those_of_processes_that_are_gone_are_nothing() -> None:
    log = log_of(1)
    core = led_by_one(log)
    core.on_join(2, LINK, join_of(2, log, attempt=2), 0)
    assert core.on_join(2, LINK, join_of(2, log, attempt=1), 1) == []
    assert core.on_join(2, LINK, join_of(2, log, attempt=3)._replace(broker_epoch=ACTIVE[2] - 1), 1) == []
    assert core.on_join(2, LINK, join_of(2, log, attempt=3, epoch=4), 1) == []
    assert core.on_join(9, LINK, join_of(2, log, attempt=3), 1) == []


def test_a_lost_link_ends_its_own_session_and_no_other() -> None:
    log = log_of(1)
    core = led_by_one(log, 2)
    assert core.on_link_lost(2, b"N" * 16, 1) == []
    assert NotFollowing(2) in core.on_link_lost(2, LINK, 1)
    assert core.next_push(2, RECORDS) is None


def test_a_follower_whose_next_record_was_deleted_begins_anew() -> None:
    log = log_of(1, 1, 1)
    core = led_by_one(log, 3)
    core.on_join(2, LINK, join_of(2, log_of(1)), 0)
    log.advance_start(2)
    assert Send(2, Rejoin(5, 1)) in core.on_local(1)
    assert core.next_push(2, RECORDS) is None


def test_a_follower_that_counts_nothing_for_long_is_begun_with_anew() -> None:
    log = log_of(1)
    core = led_by_one(log, 2, 3)
    append(core, log, 2)
    assert Send(2, Rejoin(5, 1)) not in core.on_tick(0)
    assert Send(2, Rejoin(5, 1)) in core.on_tick(LAG // 2 + 1)


def test_the_high_watermark_is_told_when_there_is_nothing_to_push() -> None:
    log = log_of(1)
    core = led_by_one(log, 2, 3)
    told = [effect.message for effect in only(core.on_tick(1), Send) if effect.to == 2]
    assert told == [Push(5, 1, RECORDS, 1, 1, 0, 1)]
    assert only(core.on_tick(2), Send) == []
    log.advance_start(1)
    assert len(only(core.on_tick(3), Send)) == 2


# --- the ISR --------------------------------------------------------------------------------------------------------


def test_who_is_not_caught_up_for_long_leaves() -> None:
    log = log_of(1)
    log.known_epochs.begin(5, 1)
    core = leader_of({RECORDS: log}, config=ReplicaConfig(ack_ms_max=LAG))
    for broker_id in (2, 3):
        follow(core, broker_id, log)
    append(core, log, 2, 3)
    core.on_ack(2, LINK, ack_of((RECORDS, 2)), 1)
    assert only(core.on_tick(LAG), Propose) == []
    proposal = proposed(core.on_tick(LAG + 1))
    assert proposal == Proposal(5, 10, (IsrMember(1, 101), IsrMember(2, 102)), ())
    # It is waited for as long as nobody knows what became of that.
    assert core.waited_for() == [1, 2, 3]
    assert core.high_watermark(RECORDS) == 1
    assert core.on_answered(proposal, Answer.COMMITTED, LAG + 2) == []
    assert core.high_watermark(RECORDS) == 1
    effects = core.on_metadata(picture(isr=(1, 2), partition_epoch=11), LAG + 3)
    assert only(effects, HighWatermark) == [HighWatermark(RECORDS, 2)]
    assert core.proposal is None


def test_who_keeps_up_at_a_distance_stays() -> None:
    """Under load a follower is never at the end, but always where the end was a moment ago."""
    log = log_of(1)
    core = led_by_one(log, 2, 3)
    for now_ms in range(0, 3 * LAG, 100):
        append(core, log, 2, 3, now_ms=now_ms)
        for broker_id in (2, 3):
            assert only(core.on_ack(broker_id, LINK, ack_of((RECORDS, log.end_offset - 1)), now_ms), Propose) == []
        assert only(core.on_tick(now_ms), Propose) == []


def test_members_get_time_to_find_a_new_leader() -> None:
    core = led_by_one(log_of(1))
    assert only(core.on_tick(LAG), Propose) == []
    assert members(proposed(core.on_tick(LAG + 1))) == [1]


def test_who_has_caught_up_joins_under_its_broker_epoch() -> None:
    log = log_of(1, 1)
    core = led_by_one(log, 2, isr=(1, 2))
    core.on_join(3, LINK, join_of(3, log_of(1)), 1)
    assert core.next_push(3, RECORDS) == (1, 2, True)
    push_all(core, 3)
    assert only(core.on_ack(3, LINK, ack_of((RECORDS, 1)), 2), Propose) == []
    proposal = proposed(core.on_ack(3, LINK, ack_of((RECORDS, 2)), 3))
    assert proposal.isr == (IsrMember(1, 101), IsrMember(2, 102), IsrMember(3, 103))
    # From here on it is waited for, whether the proposal is committed already or not.
    append(core, log, 2, 3)
    core.on_ack(2, LINK, ack_of((RECORDS, 3)), 4)
    assert core.high_watermark(RECORDS) == 2
    assert only(core.on_ack(3, LINK, ack_of((RECORDS, 3)), 5), HighWatermark) == [HighWatermark(RECORDS, 3)]


def test_who_has_not_all_of_earlier_epochs_does_not_join() -> None:
    """This leader's high watermark may be behind what its predecessor acknowledged."""
    log = log_of(1, 1, 1)
    log.known_epochs.begin(5, 3)
    # Broker 3 was in sync, so it counts as caught up when the leader begins; then it left.
    core = leader_of({RECORDS: log}, known={RECORDS: 1})
    core.on_metadata(picture(isr=(1,), partition_epoch=11, min_isr=2), 1)
    core.on_join(3, LINK, join_of(3, log_of(1, 1)), 1)
    push_all(core, 3)
    assert only(core.on_ack(3, LINK, ack_of((RECORDS, 2)), 2), Propose) == []
    assert members(proposed(core.on_ack(3, LINK, ack_of((RECORDS, 3)), 3))) == [1, 3]


def test_a_replica_is_in_sync_with_all_streams_or_not_at_all() -> None:
    records, other = log_of(1), log_of(1, 1)
    core = leader_of({RECORDS: records, OTHER: other}, at=picture(replicas=(1, 2), isr=(1,), min_isr=1))
    core.on_tick(0)
    core.on_join(2, LINK, join_of(2, records), 1)
    push_all(core, 2, stream=OTHER)
    assert only(core.on_ack(2, LINK, ack_of((RECORDS, 1), (OTHER, 1)), 2), Propose) == []
    assert members(proposed(core.on_ack(2, LINK, ack_of((OTHER, 2)), 3))) == [1, 2]


@pytest.mark.parametrize("brokers", [{1: 101}, {1: 101, 3: 104}])
def test_who_is_fenced_or_registered_anew_does_not_join(brokers: dict[int, int]) -> None:
    log = log_of(1)
    core = led_by_one(log, 3, isr=(1,), min_isr=1, brokers=brokers)
    assert core.proposal is None


def test_a_process_that_is_gone_counts_no_more() -> None:
    log = log_of(1)
    core = led_by_one(log, 2, 3)
    effects = core.on_metadata(picture(brokers={**ACTIVE, 2: 200}), 1)
    assert NotFollowing(2) in effects


def test_one_proposal_at_a_time() -> None:
    log = log_of(1)
    core = led_by_one(log)
    first = proposed(core.on_tick(LAG + 1))
    follow(core, 2, log, now_ms=LAG + 2)
    assert core.proposal == first
    assert only(core.on_tick(LAG + 3), Propose) == []


@pytest.mark.parametrize("answer", [Answer.COMMITTED, Answer.STALE])
def test_after_an_answer_that_metadata_will_explain_the_union_stays(answer: Answer) -> None:
    log = log_of(1)
    core = led_by_one(log, 2, isr=(1,), min_isr=1)
    proposal = core.proposal
    assert proposal is not None
    core.on_answered(proposal, answer, 1)
    append(core, log, 2)
    assert core.high_watermark(RECORDS) == 1
    core.on_metadata(picture(isr=(1,), min_isr=1), 2)  # something else has changed: the same partition epoch
    assert core.high_watermark(RECORDS) == 1
    core.on_metadata(picture(isr=(1,), min_isr=1, partition_epoch=11), 3)
    assert core.high_watermark(RECORDS) == 2


def test_after_a_refusal_the_proposed_are_waited_for_no_more() -> None:
    log = log_of(1)
    core = led_by_one(log, 2, isr=(1,), min_isr=1)
    proposal = core.proposal
    assert proposal is not None
    append(core, log, 2)
    assert only(core.on_answered(proposal, Answer.REFUSED, 100), HighWatermark) == [HighWatermark(RECORDS, 2)]
    assert core.proposal is None
    core.on_ack(2, LINK, ack_of((RECORDS, 2)), 101)
    assert core.proposal is None  # a pause, lest it asks all the time
    assert members(proposed(core.on_tick(100 + CONFIG.proposal_ms_min))) == [1, 2]


def test_metadata_does_not_go_back() -> None:
    core = led_by_one(log_of(1))
    with pytest.raises(InvariantViolation):
        core.on_metadata(picture(partition_epoch=9), 1)
    with pytest.raises(InvariantViolation):
        core.on_metadata(picture(leader_epoch=6), 1)


def test_replicas_come_and_go_with_a_reassignment() -> None:
    log = log_of(1)
    core = led_by_one(log, 2, 3)
    brokers = {**ACTIVE, 4: 104}
    effects = core.on_metadata(picture(replicas=(1, 2, 4), isr=(1, 2), partition_epoch=11, brokers=brokers), 1)
    assert NotFollowing(3) in effects
    assert core.on_ack(3, LINK, ack_of((RECORDS, 1)), 2) == []
    join = join_of(3, log_of())._replace(broker_epoch=104)
    assert only(core.on_join(4, LINK, join, 2), PushReady) == [PushReady(4, RECORDS, True)]
    assert core.lag() == {2: {RECORDS: 0}, 4: {RECORDS: 1}}


# --- slow acknowledgements ------------------------------------------------------------------------------------------

QUICK = ReplicaConfig(ack_ms_max=100, slow_ms_min=300, recovery_ms=1_000)


class Traffic:
    """A record every 250 ms, each acknowledged after so many milliseconds by broker 2, and at once by broker 3."""

    def __init__(self, *, isr: tuple[int, ...] = (1, 2, 3), min_isr: int = 2) -> None:
        self.log = log_of(1)
        self.log.known_epochs.begin(5, 1)
        self.core = leader_of({RECORDS: self.log}, at=picture(isr=isr, min_isr=min_isr), config=QUICK)
        for broker_id in (2, 3):
            follow(self.core, broker_id, self.log)
        self.now_ms = 0
        self.proposals: list[Proposal] = []

    def go_on(self, records: int, *, takes_ms: int) -> None:
        for _ in range(records):
            begun_ms = self.now_ms
            append(self.core, self.log, 2, 3, now_ms=begun_ms)
            end = self.log.end_offset
            for after_ms in range(0, 250, 10):
                self.now_ms = begun_ms + after_ms
                effects: list[LeaderEffect] = self.core.on_tick(self.now_ms)
                for broker_id, at_ms in ((3, 0), (2, takes_ms)):
                    if after_ms == at_ms:
                        effects += self.core.on_ack(broker_id, LINK, ack_of((RECORDS, end)), self.now_ms)
                self.proposals += [effect.proposal for effect in only(effects, Propose)]
            self.now_ms = begun_ms + 250

    def commit(self) -> None:
        proposal, before = self.proposals[-1], self.core.picture
        isr = tuple(members(proposal))
        self.core.on_metadata(before._replace(isr=isr, partition_epoch=before.partition_epoch + 1), self.now_ms)


def test_whose_acks_stay_slow_leaves_while_enough_remain_and_comes_back_when_they_are_quick() -> None:
    traffic = Traffic()
    traffic.go_on(1, takes_ms=200)
    assert not traffic.proposals  # one slow sync is no reason
    traffic.go_on(2, takes_ms=200)
    assert [members(proposal) for proposal in traffic.proposals] == [[1, 3]]
    traffic.commit()
    traffic.go_on(8, takes_ms=90)  # not slow any more, but not quick either
    traffic.go_on(3, takes_ms=20)  # not for long enough
    assert len(traffic.proposals) == 1
    traffic.go_on(3, takes_ms=20)
    assert [members(proposal) for proposal in traffic.proposals[1:]] == [[1, 2, 3]]


def test_whoever_is_needed_stays_however_slow() -> None:
    traffic = Traffic(isr=(1, 2), min_isr=2)
    traffic.core.on_metadata(traffic.core.picture._replace(replicas=(1, 2)), 0)
    for _ in range(8):
        extend(traffic.log, 5)
        traffic.core.on_local(traffic.now_ms)
        push_all(traffic.core, 2)
        traffic.now_ms += 400
        assert only(traffic.core.on_tick(traffic.now_ms), Propose) == []
        traffic.core.on_ack(2, LINK, ack_of((RECORDS, traffic.log.end_offset)), traffic.now_ms)


def test_who_left_for_slowness_comes_back_when_there_is_nothing_to_do() -> None:
    traffic = Traffic()
    traffic.go_on(3, takes_ms=200)
    traffic.commit()
    for after_ms in range(0, 2_000, 50):
        effects = traffic.core.on_tick(traffic.now_ms + after_ms)
        traffic.proposals += [effect.proposal for effect in only(effects, Propose)]
    assert [members(proposal) for proposal in traffic.proposals] == [[1, 3], [1, 2, 3]]


# --- damage ---------------------------------------------------------------------------------------------------------


def test_a_damaged_copy_leaves_and_does_not_stay_eligible() -> None:
    log = log_of(1)
    core = led_by_one(log, 2, 3)
    proposal = proposed(core.on_ack(2, LINK, ack_of(damaged=True), 1))
    assert members(proposal) == [1, 3]
    assert proposal.damaged == (2,)


def test_an_eligible_replica_that_is_damaged_is_one_no_more() -> None:
    log = log_of(1)
    log.known_epochs.begin(5, 1)
    core = leader_of({RECORDS: log}, at=picture(isr=(1,), eligible=(2,)))
    proposal = proposed(core.on_join(2, LINK, join_of(2, log, damaged=True), 1))
    assert members(proposal) == [1]
    assert proposal.damaged == (2,)


def test_a_damaged_replica_joins_when_it_is_mended() -> None:
    log = log_of(1)
    core = led_by_one(log, isr=(1, 3))
    core.on_join(2, LINK, join_of(2, log, damaged=True), 1)
    assert only(core.on_ack(2, LINK, ack_of((RECORDS, 1), damaged=True), 2), Propose) == []
    assert members(proposed(core.on_ack(2, LINK, ack_of(), 3))) == [1, 2, 3]


def test_a_damaged_leader_hands_over_to_who_has_most() -> None:
    log = log_of(1)
    core = led_by_one(log, 2, 3)
    append(core, log, 2, 3)
    core.on_ack(3, LINK, ack_of((RECORDS, 2)), 1)
    log.quarantined = [OffsetRange(0, 1)]
    assert only(core.on_local(2), HandOver) == [HandOver(3)]
    assert only(core.on_tick(3), HandOver) == []  # it takes its time
    assert only(core.on_tick(2 + CONFIG.hand_over_ms_min), HandOver) == [HandOver(3)]


def test_a_damaged_leader_stays_where_nobody_else_can_lead() -> None:
    log = log_of(1)
    core = led_by_one(log, 2, isr=(1, 3))
    log.quarantined = [OffsetRange(0, 1)]
    assert only(core.on_local(2), HandOver) == []


# --- streams --------------------------------------------------------------------------------------------------------


def test_a_stream_may_be_made_while_it_leads() -> None:
    logs = {RECORDS: log_of(1)}
    core = leader_of(logs, at=picture(replicas=(1, 2), isr=(1, 2)))
    follow(core, 2, logs[RECORDS])
    logs[OTHER] = log_of(5)
    assert PushReady(2, OTHER, False) in core.on_local(1)
    push_all(core, 2, stream=OTHER)
    assert only(core.on_ack(2, LINK, ack_of((OTHER, 1)), 2), HighWatermark) == [HighWatermark(OTHER, 1)]
    assert core.high_watermarks() == {RECORDS: 1, OTHER: 1}


def test_pushes_have_no_gaps() -> None:
    log = log_of(1, 1, 1)
    core = led_by_one(log)
    core.on_join(2, LINK, join_of(2, log_of(1)), 0)
    with pytest.raises(InvariantViolation):
        core.push(2, RECORDS, base_offset=2, end_offset=3)
    with pytest.raises(InvariantViolation):
        core.push(3, RECORDS, base_offset=0, end_offset=1)
