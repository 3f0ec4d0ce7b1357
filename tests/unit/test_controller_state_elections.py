"""Who leads after brokers were fenced, restarted, wiped or came back. A picture is 'leader of ISR +eligible'."""

from __future__ import annotations

import pytest

from quire.v1 import commands_pb2 as c
from quire.v1 import metadata_pb2
from quire_controller.state.model import LastIsrReport, PartitionKey
from tests.unit.controller_crafting import Controller, LogEnds, uuid_of

KEY = PartitionKey(uuid_of(1), 0)


def controller_of(*replicas: int, min_isr: int | None = None, unclean: bool | None = None) -> Controller:
    """One partition, led by the first of its replicas."""
    controller = Controller(sorted(replicas))
    controller.topic("orders", replicas, min_isr=min_isr, unclean=unclean)
    return controller


def ends(last_epoch: int, log_end_offset: int) -> LogEnds:
    return {KEY: (last_epoch, log_end_offset)}


def elect_last_isr(controller: Controller) -> str:
    return controller.outcomes(elect_last_isr=c.ElectLastIsr(partitions=[controller.at(KEY)]))[0]


def elect_unclean(controller: Controller) -> str:
    return controller.outcomes(elect_unclean=c.ElectUnclean(partitions=[controller.at(KEY)]))[0]


# --- fenced --------------------------------------------------------------------------------------------------------


def test_next_replica_in_order_leads_when_the_leader_is_fenced() -> None:
    controller = controller_of(3, 1, 2)
    controller.fence(3)
    assert controller.picture(KEY) == "1 of 1,2"
    assert controller.partition(KEY).leader_epoch == 1


def test_follower_leaves_the_isr_and_the_leader_stays_under_its_epoch() -> None:
    controller = controller_of(1, 2, 3)
    controller.fence(2)
    partition = controller.partition(KEY)
    assert controller.picture(KEY) == "1 of 1,3"
    assert (partition.leader_epoch, partition.partition_epoch) == (0, 1)


def test_below_the_minimum_who_leaves_stays_eligible() -> None:
    controller = controller_of(1, 2, 3)
    controller.fence(2)
    assert controller.picture(KEY) == "1 of 1,3", "two are enough: acknowledged without broker 2 from here on"
    controller.fence(3)
    assert controller.picture(KEY) == "1 of 1 +3"


def test_last_member_stays_in_the_isr_and_nobody_leads() -> None:
    controller = controller_of(1, 2, 3)
    controller.fence(1, 2)
    epoch = controller.partition(KEY).leader_epoch
    controller.fence(3)
    assert controller.picture(KEY) == "- of 3 +2"
    assert controller.partition(KEY).leader_epoch == epoch + 1, "requests of the old leader must be refused"


def test_eligible_replica_leads_when_the_last_member_of_the_isr_is_fenced() -> None:
    controller = controller_of(1, 2, 3)
    controller.fence(2, 3)
    controller.unfence(3)  # it only was slow, and is a follower again; not in sync yet
    assert controller.picture(KEY) == "1 of 1 +3"
    controller.fence(1)
    assert controller.picture(KEY) == "3 of 3 +1"


def test_replica_that_is_neither_in_sync_nor_eligible_never_leads() -> None:
    controller = controller_of(1, 2, 3, min_isr=1)
    controller.fence(2)
    controller.unfence(2)
    controller.fence(3)
    controller.unfence(3)
    controller.fence(1)
    assert controller.picture(KEY) == "- of 1"
    controller.unfence(1)
    assert controller.picture(KEY) == "1 of 1"


def test_member_that_was_only_fenced_leads_at_once_when_it_is_back() -> None:
    controller = controller_of(1, 2, 3)
    controller.fence(1, 2, 3)
    assert controller.picture(KEY) == "- of 3 +2"
    controller.unfence(1)
    assert controller.picture(KEY) == "- of 3 +2"
    controller.unfence(2)
    assert controller.picture(KEY) == "2 of 2 +3"
    controller.unfence(3)
    assert controller.picture(KEY) == "2 of 2 +3"


def test_enough_members_end_eligibility() -> None:
    controller = controller_of(1, 2, 3)
    controller.fence(2, 3)
    controller.unfence(2)
    assert controller.alter(KEY, [1, 2]) == "OK"
    assert controller.picture(KEY) == "1 of 1,2"


def test_member_of_the_isr_comes_before_an_eligible_one_whatever_the_order_of_replicas() -> None:
    controller = controller_of(2, 1, 3, min_isr=3)
    controller.fence(2)
    controller.unfence(2)
    move = c.LeaderTarget(partition=controller.at(KEY), to_broker=3)
    controller.ok(move_leaders=c.MoveLeaders(moves=[move]))
    controller.fence(3)
    assert controller.picture(KEY) == "- of 1 +2,3"
    controller.ok(complete_moves=c.CompleteMoves(partitions=[controller.at(KEY)]))
    assert controller.picture(KEY) == "1 of 1 +2,3"


# --- restarted -----------------------------------------------------------------------------------------------------


def test_restarted_leader_leads_no_more_and_is_not_in_sync() -> None:
    controller = controller_of(1, 2, 3)
    controller.register(1, ends=ends(0, 100))
    assert controller.picture(KEY) == "2 of 2,3"
    controller.unfence(1)
    assert controller.picture(KEY) == "2 of 2,3"


def test_restarted_follower_leaves_the_isr_and_is_not_eligible() -> None:
    # It may have lost what it had acknowledged: the power may have failed, whatever the flush setting promised.
    controller = controller_of(1, 2)
    controller.register(2, ends=ends(0, 100))
    assert controller.picture(KEY) == "1 of 1"


def test_restarted_eligible_replica_is_not_eligible_any_more() -> None:
    controller = controller_of(1, 2, 3)
    controller.fence(2, 3)
    assert controller.picture(KEY) == "1 of 1 +3"
    controller.restart(3, ends=ends(0, 100))
    assert controller.picture(KEY) == "1 of 1"


def test_restarted_last_member_gives_way_to_an_eligible_one_that_lives() -> None:
    controller = controller_of(1, 2)
    controller.fence(2)
    controller.unfence(2)
    assert controller.picture(KEY) == "1 of 1 +2"
    controller.register(1, ends=ends(0, 100))
    assert controller.picture(KEY) == "2 of 2"


def test_only_replica_leads_again_when_it_is_back() -> None:
    controller = controller_of(1)
    epoch = controller.partition(KEY).leader_epoch
    controller.register(1, ends=ends(0, 100))
    assert controller.picture(KEY) == "- of 1"
    assert controller.partition(KEY).reports == (LastIsrReport(1, controller.epoch(1), 0, 100),)
    controller.unfence(1)
    assert controller.picture(KEY) == "1 of 1"
    assert controller.partition(KEY).reports == ()
    assert controller.partition(KEY).leader_epoch > epoch, "also the same leader again gets a new epoch"


def test_only_replica_without_its_log_does_not_lead() -> None:
    controller = controller_of(1)
    controller.restart(1)
    assert controller.picture(KEY) == "- of 1"
    assert elect_last_isr(controller) == "NO_ELIGIBLE_LEADER"


# --- the reserve ---------------------------------------------------------------------------------------------------


def in_reserve(controller: Controller) -> dict[int, int]:
    return {report.broker_id: report.log_end_offset for report in controller.partition(KEY).reserve}


def test_who_restarted_below_the_minimum_is_kept_in_reserve() -> None:
    controller = controller_of(1, 2, 3)
    controller.restart(3, ends=ends(0, 90))
    assert in_reserve(controller) == {}, "two are enough: acknowledged without broker 3 from here on"
    controller.restart(2, ends=ends(0, 100))
    assert controller.picture(KEY) == "1 of 1"
    assert in_reserve(controller) == {2: 100}


def test_reserve_is_the_last_isr_when_the_last_member_is_wiped() -> None:
    # All three lose their power, and one of them its disk: it is the last one to come back.
    controller = controller_of(1, 2, 3, min_isr=3)
    controller.restart(2, ends=ends(0, 100))
    controller.restart(3, ends=ends(0, 101))
    assert (controller.picture(KEY), in_reserve(controller)) == ("1 of 1", {2: 100, 3: 101})
    epoch = controller.partition(KEY).leader_epoch
    controller.restart(1, disk=9)
    assert (controller.picture(KEY), in_reserve(controller)) == ("3 of 3", {2: 100})
    assert controller.partition(KEY).leader_epoch > epoch


def test_those_in_reserve_who_are_away_are_waited_for() -> None:
    controller = controller_of(1, 2, 3, min_isr=3)
    controller.restart(2, ends=ends(0, 100))
    controller.restart(3, ends=ends(0, 101))
    controller.fence(3)
    controller.restart(1, disk=9)
    assert controller.picture(KEY) == "- of 2,3"
    assert elect_unclean(controller) == "NO_ELIGIBLE_LEADER", "nothing need be lost"
    controller.unfence(3)
    assert controller.picture(KEY) == "3 of 3"


def test_a_second_restart_in_reserve_brings_a_new_report() -> None:
    controller = controller_of(1, 2, 3, min_isr=3)
    controller.restart(2, ends=ends(0, 100))
    controller.restart(2, ends=ends(0, 80))
    assert in_reserve(controller) == {2: 80}
    controller.fence(1)
    controller.restart(2, ends=ends(0, 70))
    assert in_reserve(controller) == {2: 70}, "also while nobody leads"
    controller.restart(2)
    assert in_reserve(controller) == {}, "its log is gone, or not to be read"


def test_reserve_ends_when_the_isr_has_its_minimum() -> None:
    controller = controller_of(1, 2, 3, min_isr=3)
    controller.restart(2, ends=ends(0, 100))
    controller.restart(3, ends=ends(0, 100))
    controller.alter(KEY, [1, 2])
    assert (controller.picture(KEY), in_reserve(controller)) == ("1 of 1,2", {3: 100})
    controller.alter(KEY, [1, 2, 3])
    assert in_reserve(controller) == {}


def test_reserve_ends_when_the_minimum_is_lowered() -> None:
    controller = controller_of(1, 2, 3, min_isr=3)
    controller.restart(2, ends=ends(0, 100))
    controller.run(configure_topic=c.ConfigureTopic(topic_id=uuid_of(1), set=metadata_pb2.TopicConfig(min_isr=2)))
    assert (controller.picture(KEY), in_reserve(controller)) == ("1 of 1,3", {})


def test_who_is_wiped_leaves_the_reserve() -> None:
    controller = controller_of(1, 2, min_isr=2)
    controller.restart(2, ends=ends(0, 100))
    controller.restart(2, disk=9)
    assert in_reserve(controller) == {}
    controller.restart(1, disk=9)
    assert controller.picture(KEY) == "- of "


# --- the last ISR --------------------------------------------------------------------------------------------------


def all_down(min_isr: int = 3) -> Controller:
    """Three members of the last ISR: one in it, the others eligible."""
    controller = controller_of(1, 2, 3, min_isr=min_isr)
    controller.fence(1, 2, 3)
    assert controller.picture(KEY) == "- of 3 +1,2"
    return controller


@pytest.mark.parametrize(
    ("first", "second", "leader"),
    [
        ((4, 10), (4, 11), 2),
        ((4, 11), (4, 10), 1),
        ((5, 1), (4, 1_000), 1),
        ((4, 10), (4, 10), 1),
        ((-1, 0), (0, 0), 2),
    ],
)
def test_longest_log_of_those_that_are_back_leads(
    first: tuple[int, int], second: tuple[int, int], leader: int
) -> None:
    controller = all_down()
    controller.restart(1, ends=ends(*first))
    controller.restart(2, ends=ends(*second))
    assert controller.picture(KEY) == "- of 3 +1,2", "broker 3 may come back, and is waited for"
    assert elect_last_isr(controller) == "OK"
    assert controller.picture(KEY) == f"{leader} of {leader} +3", "who did not restart may still have everything"
    assert controller.partition(KEY).reports == ()


def test_nobody_is_waited_for_when_all_are_back() -> None:
    controller = all_down()
    controller.restart(2, ends=ends(3, 30))
    controller.restart(1, ends=ends(3, 31))
    controller.register(3, ends=ends(2, 90))
    assert controller.picture(KEY) == "- of 3 +1,2", "registered, not ready yet"
    controller.unfence(3)
    assert controller.picture(KEY) == "1 of 1"


def test_fenced_member_is_not_elected_from_its_report() -> None:
    controller = all_down()
    controller.register(1, ends=ends(9, 90))
    controller.restart(2, ends=ends(3, 30))
    assert elect_last_isr(controller) == "OK"
    assert controller.picture(KEY) == "2 of 2 +3"


def test_member_that_lost_its_log_is_not_waited_for_nor_elected() -> None:
    controller = all_down()
    controller.restart(1)
    controller.restart(2, ends=ends(3, 30))
    controller.restart(3)
    assert controller.picture(KEY) == "2 of 2"


def test_second_restart_replaces_the_report() -> None:
    controller = all_down()
    controller.restart(1, ends=ends(5, 50))
    controller.restart(1, ends=ends(4, 40))
    controller.restart(2, ends=ends(4, 41))
    assert elect_last_isr(controller) == "OK"
    assert controller.picture(KEY) == "2 of 2 +3"


def test_member_that_did_not_restart_is_better_than_any_report() -> None:
    controller = all_down()
    controller.restart(1, ends=ends(9, 90))
    controller.unfence(2)
    assert controller.picture(KEY) == "2 of 2 +3"


def test_last_isr_election_needs_somebody_to_elect() -> None:
    controller = all_down()
    assert elect_last_isr(controller) == "NO_ELIGIBLE_LEADER"
    controller = controller_of(1, 2)
    assert elect_last_isr(controller) == "NO_ELIGIBLE_LEADER", "there is a leader"


# --- wiped ---------------------------------------------------------------------------------------------------------


def test_wiped_broker_leaves_every_isr() -> None:
    controller = controller_of(1, 2, 3)
    controller.restart(1, disk=77, ends=ends(9, 99))
    assert controller.picture(KEY) == "2 of 2,3"


def test_wiped_broker_is_not_eligible() -> None:
    controller = controller_of(1, 2, 3)
    controller.fence(2, 3)
    assert controller.picture(KEY) == "1 of 1 +3"
    controller.restart(3, disk=77)
    assert controller.picture(KEY) == "1 of 1"


def test_eligible_ones_are_what_is_left_when_the_last_member_was_wiped() -> None:
    controller = all_down()
    controller.restart(3, disk=77, ends=ends(9, 99))
    assert controller.picture(KEY) == "- of 1,2"
    controller.unfence(2)
    assert controller.picture(KEY) == "2 of 2 +1"


def test_nothing_is_left_when_the_only_copy_was_wiped() -> None:
    controller = controller_of(1)
    controller.restart(1, disk=77, ends=ends(0, 0))
    assert controller.partition(KEY).isr == ()
    assert controller.partition(KEY).leader is None
    assert elect_last_isr(controller) == "NO_ELIGIBLE_LEADER"
    assert elect_unclean(controller) == "NO_ELIGIBLE_LEADER"
    allow = metadata_pb2.TopicConfig(unclean_election=True)
    controller.ok(configure_topic=c.ConfigureTopic(topic_id=KEY.topic_id, set=allow))
    assert elect_unclean(controller) == "OK"
    assert controller.picture(KEY) == "1 of 1"


def test_wiped_broker_is_in_sync_again_when_the_leader_says_so() -> None:
    controller = controller_of(1, 2)
    controller.restart(2, disk=77)
    assert controller.alter(KEY, [1, 2]) == "OK"
    assert controller.picture(KEY) == "1 of 1,2"


# --- unclean -------------------------------------------------------------------------------------------------------


def test_unclean_election_is_off_by_default() -> None:
    controller = controller_of(1, 2, min_isr=1)
    controller.fence(2)
    controller.fence(1)
    controller.unfence(2)
    assert elect_unclean(controller) == "NO_ELIGIBLE_LEADER"
    assert controller.picture(KEY) == "- of 1"


def test_unclean_election_takes_an_active_replica_if_the_topic_allows() -> None:
    controller = controller_of(1, 2, 3, min_isr=1, unclean=True)
    controller.fence(2, 3)
    controller.fence(1)
    assert elect_unclean(controller) == "NO_ELIGIBLE_LEADER", "nobody is there"
    controller.unfence(3)
    assert controller.picture(KEY) == "- of 1"
    assert elect_unclean(controller) == "OK"
    assert controller.picture(KEY) == "3 of 3"
    controller.unfence(1)
    assert controller.picture(KEY) == "3 of 3", "what broker 1 has and broker 3 lacks is lost"


def test_unclean_election_does_not_take_the_place_of_a_clean_one() -> None:
    controller = controller_of(1, 2, 3, min_isr=3, unclean=True)
    assert elect_unclean(controller) == "NO_ELIGIBLE_LEADER"
    controller.fence(1, 2, 3)
    controller.restart(1, ends=ends(0, 5))
    assert elect_unclean(controller) == "NO_ELIGIBLE_LEADER"
    assert elect_last_isr(controller) == "OK"


# --- drained -------------------------------------------------------------------------------------------------------


def test_drained_broker_leads_only_where_nobody_else_can() -> None:
    controller = controller_of(1, 2, 3)
    controller.drain(2, metadata_pb2.DRAIN_GOAL_LEADERSHIPS)
    controller.fence(1)
    assert controller.picture(KEY) == "3 of 2,3"
    controller.fence(3)
    assert controller.picture(KEY) == "2 of 2 +3"
