"""Leases as the controller and as the broker count them. The property tests play the two against each other."""

from __future__ import annotations

from dataclasses import replace

from quire.lease import HEARTBEATS_MAX, BrokerLease
from quire_controller.state.leases import PAUSE_MS, LeaseKeeper
from quire_controller.state.model import Broker, DrainGoal

LEASE_MS = 1_000


def broker(broker_id: int = 1, *, epoch: int = 10, fenced: bool = False, lease_ms: int = LEASE_MS) -> Broker:
    return Broker(
        broker_id=broker_id,
        broker_epoch=epoch,
        incarnation_id=b"i" * 16,
        node_id=str(broker_id),
        rack="",
        listeners=(),
        level_min=1,
        level_max=1,
        fenced=fenced,
        lease_ms=lease_ms,
    )


def roster(*brokers: Broker) -> dict[int, Broker]:
    return {each.broker_id: each for each in brokers}


def keeper_of(*brokers: Broker, now_ms: int = 0) -> LeaseKeeper:
    return LeaseKeeper(term=3, now_ms=now_ms, brokers=roster(*brokers))


def expired_by_steps(keeper: LeaseKeeper, *, first_ms: int, last_ms: int) -> list[tuple[int, int]]:
    """As a controller that looks often enough not to take itself for paused."""
    expired: list[tuple[int, int]] = []
    for now_ms in [*range(first_ms, last_ms, 100), last_ms]:
        expired = keeper.expired(now_ms)
    return expired


# --- the controller's side -----------------------------------------------------------------------------------------


def test_new_leader_waits_a_lease_and_ten_percent_before_it_fences_anyone() -> None:
    keeper = keeper_of(broker(1), broker(2, epoch=20, lease_ms=2_000))
    assert expired_by_steps(keeper, first_ms=0, last_ms=1_099) == []
    assert expired_by_steps(keeper, first_ms=1_099, last_ms=1_100) == [(1, 10)]
    assert expired_by_steps(keeper, first_ms=1_100, last_ms=2_200) == [(1, 10), (2, 20)]


def test_heartbeat_counts_from_its_receipt() -> None:
    keeper = keeper_of(broker())
    assert keeper.on_heartbeat_confirmed(broker_id=1, broker_epoch=10, received_ms=500) == LEASE_MS
    assert expired_by_steps(keeper, first_ms=0, last_ms=1_509) == []
    assert keeper.expired(1_510) == [(1, 10)]


def test_older_heartbeat_does_not_shorten() -> None:
    keeper = keeper_of(broker())
    keeper.on_heartbeat_confirmed(broker_id=1, broker_epoch=10, received_ms=500)
    keeper.on_heartbeat_confirmed(broker_id=1, broker_epoch=10, received_ms=300)
    assert expired_by_steps(keeper, first_ms=0, last_ms=1_500) == []


def test_expired_lease_is_not_extended_any_more() -> None:
    # Its end may be committed by now. A broker that were told otherwise would serve beside its successor.
    keeper = keeper_of(broker())
    assert expired_by_steps(keeper, first_ms=0, last_ms=1_100) == [(1, 10)]
    assert keeper.on_heartbeat_confirmed(broker_id=1, broker_epoch=10, received_ms=1_100, applied_version=7) == 0
    assert keeper.expired(1_101) == [(1, 10)]
    assert keeper.has_applied(broker_id=1, broker_epoch=10, version=7), "what it says about itself is true"


def test_fenced_broker_has_no_lease_and_gets_a_new_one_with_the_next_grant() -> None:
    keeper = keeper_of(broker())
    assert expired_by_steps(keeper, first_ms=0, last_ms=1_100) == [(1, 10)]
    keeper.observe(roster(broker(fenced=True)), 1_200)
    assert keeper.expired(1_200) == []
    assert keeper.on_heartbeat_confirmed(broker_id=1, broker_epoch=10, received_ms=1_200) == 0
    keeper.observe(roster(broker()), 1_300)
    assert keeper.on_heartbeat_confirmed(broker_id=1, broker_epoch=10, received_ms=1_300) == LEASE_MS
    keeper.observe({}, 1_400)
    assert keeper.on_heartbeat_confirmed(broker_id=1, broker_epoch=10, received_ms=1_400) == 0


def test_fenced_and_let_in_again_between_two_looks_is_a_new_grant() -> None:
    # Else it would get no lease, although it is active and may be elected, until it is fenced once more.
    keeper = keeper_of(broker())
    assert expired_by_steps(keeper, first_ms=0, last_ms=1_100) == [(1, 10)]
    keeper.observe(roster(broker()), 1_110)
    assert keeper.expired(1_110) == []
    assert keeper.on_heartbeat_confirmed(broker_id=1, broker_epoch=10, received_ms=1_110) == LEASE_MS


def test_ended_lease_stays_so_when_the_broker_is_to_be_drained() -> None:
    active = broker()
    keeper = keeper_of(active)
    assert expired_by_steps(keeper, first_ms=0, last_ms=1_100) == [(1, 10)]
    for now in (active, replace(active, drain=DrainGoal.REPLICAS)):
        keeper.observe(roster(now), 1_110)
        assert keeper.expired(1_110) == [(1, 10)]
        assert keeper.on_heartbeat_confirmed(broker_id=1, broker_epoch=10, received_ms=1_110) == 0


def test_heartbeat_of_a_former_process_or_of_a_stranger_counts_for_nothing() -> None:
    keeper = keeper_of(broker())
    assert keeper.on_heartbeat_confirmed(broker_id=1, broker_epoch=9, received_ms=0) == 0
    assert keeper.on_heartbeat_confirmed(broker_id=2, broker_epoch=10, received_ms=0) == 0
    assert not keeper.has_applied(broker_id=1, broker_epoch=9, version=0)
    assert not keeper.has_applied(broker_id=2, broker_epoch=10, version=0)


def test_new_registration_begins_anew() -> None:
    keeper = keeper_of(broker())
    keeper.on_heartbeat_confirmed(broker_id=1, broker_epoch=10, received_ms=0, applied_version=50)
    keeper.observe(roster(broker(epoch=60)), 500)
    assert not keeper.has_applied(broker_id=1, broker_epoch=60, version=50)
    assert expired_by_steps(keeper, first_ms=500, last_ms=1_599) == []
    assert keeper.expired(1_600) == [(1, 60)]


def test_controller_that_stood_still_does_not_blame_others() -> None:
    keeper = keeper_of(broker())
    assert keeper.expired(100) == []
    late_ms = 100 + 20 * PAUSE_MS
    assert keeper.expired(late_ms) == [], "heartbeats may lie unread"
    assert keeper.on_heartbeat_confirmed(broker_id=1, broker_epoch=10, received_ms=late_ms) == LEASE_MS
    assert expired_by_steps(keeper, first_ms=late_ms, last_ms=late_ms + 1_010) == [(1, 10)]


# --- the broker's side ---------------------------------------------------------------------------------------------


def test_lease_counts_from_when_the_heartbeat_was_sent() -> None:
    lease = BrokerLease(broker_epoch=10)
    assert (lease.is_held(0), lease.expires_ms) == (False, None)
    lease.on_heartbeat_sent(1, 5_000)
    lease.on_heartbeat_answered(1, 10, LEASE_MS, 0)
    assert lease.expires_ms == 6_000
    assert lease.is_held(5_999)
    assert not lease.is_held(6_000)


def test_lease_counts_once_the_metadata_is_applied() -> None:
    # Else a broker that was deposed would go on serving on the strength of an answer that knew it.
    lease = BrokerLease(broker_epoch=10)
    lease.on_heartbeat_sent(1, 0)
    lease.on_heartbeat_answered(1, 10, LEASE_MS, 77)
    assert not lease.is_held(1)
    lease.on_applied(76)
    assert not lease.is_held(1)
    lease.on_applied(77)
    assert lease.is_held(1)
    assert lease.applied_version == 77
    lease.on_applied(70)
    assert lease.applied_version == 77


def test_answers_may_overtake_each_other() -> None:
    lease = BrokerLease(broker_epoch=10)
    lease.on_heartbeat_sent(1, 0)
    lease.on_heartbeat_sent(2, 300)
    lease.on_heartbeat_answered(2, 10, LEASE_MS, 0)
    lease.on_heartbeat_answered(1, 10, LEASE_MS, 0)
    assert lease.expires_ms == 1_300


def test_answer_without_a_lease_or_to_somebody_else_gives_none() -> None:
    lease = BrokerLease(broker_epoch=10)
    for seq in (1, 2):
        lease.on_heartbeat_sent(seq, 0)
    lease.on_heartbeat_answered(1, 10, 0, 0)
    lease.on_heartbeat_answered(2, 9, LEASE_MS, 0)
    lease.on_heartbeat_answered(3, 10, LEASE_MS, 0)
    assert lease.expires_ms is None


def test_answer_counts_once() -> None:
    lease = BrokerLease(broker_epoch=10)
    lease.on_heartbeat_sent(1, 0)
    lease.on_heartbeat_answered(1, 10, LEASE_MS, 0)
    lease.on_fenced()
    lease.on_heartbeat_answered(1, 10, LEASE_MS, 0)
    assert lease.expires_ms is None


def test_fenced_broker_gives_up_at_once_and_forgets_what_was_under_way() -> None:
    lease = BrokerLease(broker_epoch=10)
    for seq in (1, 2, 3):
        lease.on_heartbeat_sent(seq, 0)
    lease.on_heartbeat_answered(1, 10, LEASE_MS, 0)
    lease.on_heartbeat_answered(2, 10, LEASE_MS, 5)
    lease.on_fenced()
    lease.on_applied(5)
    lease.on_heartbeat_answered(3, 10, LEASE_MS, 5)
    assert not lease.is_held(1)


def test_heartbeats_that_nobody_answers_are_forgotten() -> None:
    lease = BrokerLease(broker_epoch=10)
    for seq in range(HEARTBEATS_MAX + 1):
        lease.on_heartbeat_sent(seq, seq)
    lease.on_heartbeat_answered(0, 10, LEASE_MS, 0)
    assert lease.expires_ms is None
    for seq in range(1, HEARTBEATS_MAX + 1):
        lease.on_heartbeat_answered(seq, 10, LEASE_MS, 100)
    lease.on_heartbeat_sent(99, 99)
    lease.on_heartbeat_answered(99, 10, LEASE_MS, 100)
    lease.on_applied(100)
    assert lease.expires_ms == LEASE_MS + 99
