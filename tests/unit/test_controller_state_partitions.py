"""Leaders change ISRs, leaderships are moved, replicas are reassigned; and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from quire.v1 import commands_pb2 as c
from quire.v1 import metadata_pb2
from quire_controller.state.model import LeaderMove, PartitionKey, Reassignment
from tests.unit.controller_crafting import Controller, uuid_of

KEY = PartitionKey(uuid_of(1), 0)


def controller_of(*replicas: int, others: tuple[int, ...] = (), min_isr: int | None = None) -> Controller:
    """One partition, led by the first of its replicas."""
    controller = Controller(sorted((*replicas, *others)))
    controller.topic("orders", replicas, min_isr=min_isr)
    return controller


# --- AlterPartitions -----------------------------------------------------------------------------------------------


def test_leader_removes_and_adds_members() -> None:
    controller = controller_of(1, 2, 3)
    assert controller.alter(KEY, [1, 3]) == "OK"
    assert controller.picture(KEY) == "1 of 1,3"
    assert controller.alter(KEY, [3, 2, 1]) == "OK"
    assert controller.picture(KEY) == "1 of 1,2,3"
    partition = controller.partition(KEY)
    assert (partition.leader_epoch, partition.partition_epoch) == (0, 2)


def test_outcome_names_the_new_partition_epoch() -> None:
    controller = controller_of(1, 2, 3)
    body = c.AlterPartitions(
        broker_id=1, broker_epoch=controller.epoch(1), changes=[controller.isr_change(KEY, [1, 2])]
    )
    outcome = controller.ok(alter_partitions=body).partitions.outcomes[0]
    assert (outcome.partition_epoch, outcome.leader_epoch) == (1, 0)
    outcome = controller.ok(alter_partitions=body).partitions.outcomes[0]
    assert outcome.partition_epoch == 1, "and of a refused one the epoch that it has"


def test_members_removed_below_the_minimum_stay_eligible_but_for_the_damaged() -> None:
    controller = controller_of(1, 2, 3)
    assert controller.alter(KEY, [1]) == "OK"
    assert controller.picture(KEY) == "1 of 1 +2,3"
    controller = controller_of(1, 2, 3)
    assert controller.alter(KEY, [1], damaged=[2]) == "OK"
    assert controller.picture(KEY) == "1 of 1 +3"


def test_same_isr_is_no_change() -> None:
    controller = controller_of(1, 2, 3)
    assert controller.alter(KEY, [1, 2, 3]) == "OK"
    assert controller.partition(KEY).partition_epoch == 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"partition_epoch": 1}, "STALE_PARTITION_EPOCH"),
        ({"leader_epoch": 1}, "STALE_EPOCH"),
        ({"topic_id": uuid_of(9)}, "UNKNOWN_TOPIC"),
        ({"partition": 5}, "UNKNOWN_PARTITION"),
        ({"partition": -5}, "UNKNOWN_PARTITION"),
        ({"isr": []}, "INVALID_ARGUMENT"),
    ],
)
def test_change_from_an_old_picture_is_refused(changes: dict[str, Any], reason: str) -> None:
    controller = controller_of(1, 2, 3)
    assert controller.alter(KEY, [1, 2], **changes) == reason
    assert controller.picture(KEY) == "1 of 1,2,3"


@pytest.mark.parametrize("isr", [[2, 3], [1, 4], [1, 1, 2]])
def test_isr_is_of_replicas_and_has_the_leader(isr: list[int]) -> None:
    controller = controller_of(1, 2, 3, others=(4,))
    assert controller.alter(KEY, isr) == "INVALID_ARGUMENT"


def test_only_the_leader_changes_the_isr() -> None:
    controller = controller_of(1, 2, 3)
    assert controller.alter(KEY, [1, 2], by=2) == "STALE_EPOCH"


def test_member_that_is_fenced_or_restarted_is_refused() -> None:
    # Otherwise a follower that lost its tail would be counted as in sync on the word of its former self.
    controller = controller_of(1, 2, 3)
    former = controller.epoch(3)
    controller.fence(3)
    assert controller.alter(KEY, [1, 2, 3]) == "BROKER_FENCED"
    controller.restart(3)
    members = [(1, controller.epoch(1)), (2, controller.epoch(2)), (3, former)]
    stale = [c.IsrMember(broker_id=broker_id, broker_epoch=epoch) for broker_id, epoch in members]
    assert controller.alter(KEY, [], by=1, isr=stale) == "STALE_BROKER_EPOCH"
    assert controller.alter(KEY, [1, 2, 3]) == "OK"


def test_change_by_a_fenced_or_former_broker_is_refused() -> None:
    controller = controller_of(1, 2, 3)
    change = controller.isr_change(KEY, [1, 2])
    body = c.AlterPartitions(broker_id=1, broker_epoch=controller.epoch(1), changes=[change])
    controller.fence(1)
    assert controller.refused(alter_partitions=body).reason == "BROKER_FENCED"
    controller.register(1)
    assert controller.refused(alter_partitions=body).reason == "STALE_BROKER_EPOCH"


def test_each_change_of_a_command_goes_well_or_not() -> None:
    controller = Controller([1, 2, 3])
    topic_id = controller.topic("orders", [1, 2], [1, 3], [2, 1])
    keys = [PartitionKey(topic_id, partition) for partition in range(3)]
    body = c.AlterPartitions(
        broker_id=1, broker_epoch=controller.epoch(1), changes=[controller.isr_change(key, [1]) for key in keys]
    )
    assert controller.outcomes(alter_partitions=body) == ["OK", "OK", "STALE_EPOCH"]
    assert [controller.picture(key) for key in keys] == ["1 of 1 +2", "1 of 1 +3", "2 of 1,2"]


def test_partitions_of_a_command_are_different_and_not_too_many() -> None:
    controller = controller_of(1, 2, 3)
    twice = c.ElectPreferredLeaders(partitions=[controller.at(KEY)] * 2)
    assert controller.refused(elect_preferred_leaders=twice).reason == "INVALID_ARGUMENT"
    many = [c.PartitionAt(topic_id=uuid_of(n)) for n in range(1, 66)]
    assert controller.refused(complete_moves=c.CompleteMoves(partitions=many)).reason == "LIMIT_EXCEEDED"
    assert controller.outcomes(complete_moves=c.CompleteMoves(partitions=many[1:])) == ["UNKNOWN_TOPIC"] * 64


# --- planned moves -------------------------------------------------------------------------------------------------


def move(controller: Controller, to_broker: int, *, later: int = 0) -> str:
    target = c.LeaderTarget(partition=controller.at(KEY, later=later), to_broker=to_broker)
    return controller.outcomes(move_leaders=c.MoveLeaders(moves=[target]))[0]


def complete(controller: Controller) -> str:
    return controller.outcomes(complete_moves=c.CompleteMoves(partitions=[controller.at(KEY)]))[0]


def test_moved_leadership_is_nobodys_until_the_old_leader_has_let_go() -> None:
    controller = controller_of(1, 2, 3)
    assert move(controller, 3) == "OK"
    partition = controller.partition(KEY)
    assert partition.move == LeaderMove(1, controller.epoch(1), 3, version=controller.index)
    assert (controller.picture(KEY), partition.leader_epoch) == ("- of 1,2,3", 1)
    assert controller.alter(KEY, [1, 2], by=1, leader_epoch=0) == "STALE_EPOCH"
    assert complete(controller) == "OK"
    partition = controller.partition(KEY)
    assert (controller.picture(KEY), partition.leader_epoch, partition.move) == ("3 of 1,2,3", 2, None)


def test_move_is_over_at_once_when_the_old_leader_is_fenced_or_registers_anew() -> None:
    for register in (False, True):
        controller = controller_of(1, 2, 3)
        move(controller, 3)
        if register:
            controller.register(1)
        else:
            controller.fence(1)
        assert controller.picture(KEY) == "2 of 2,3"
        assert controller.partition(KEY).move is None


def test_somebody_else_leads_if_the_new_leader_is_gone_when_the_time_has_come() -> None:
    controller = controller_of(1, 2, 3)
    move(controller, 3)
    controller.fence(3)
    assert controller.picture(KEY) == "- of 1,2", "the old leader may still serve reads"
    controller.fence(2)
    assert complete(controller) == "OK"
    assert controller.picture(KEY) == "1 of 1 +2"


def test_broker_that_comes_back_does_not_take_a_leadership_that_is_on_its_way() -> None:
    controller = controller_of(1, 2, 3)
    controller.fence(2)
    move(controller, 3)
    controller.unfence(2)
    assert controller.picture(KEY) == "- of 1,3"


def test_move_that_cannot_be_is_refused() -> None:
    controller = controller_of(1, 2, 3, others=(4,))
    assert move(controller, 4) == "NO_ELIGIBLE_LEADER"
    assert move(controller, 9) == "NO_ELIGIBLE_LEADER"
    assert move(controller, 2, later=1) == "STALE_PARTITION_EPOCH"
    assert complete(controller) == "NO_ELIGIBLE_LEADER", "nothing is being moved"
    assert move(controller, 1) == "OK"
    assert controller.partition(KEY).partition_epoch == 0, "it leads already"
    assert controller.alter(KEY, [1, 3]) == "OK"
    assert move(controller, 2) == "NO_ELIGIBLE_LEADER", "not in sync"
    move(controller, 3)
    assert move(controller, 1) == "NO_ELIGIBLE_LEADER", "on its way"


def test_preferred_leader_gets_its_leadership_back() -> None:
    controller = controller_of(1, 2, 3)
    controller.fence(1)
    body = c.ElectPreferredLeaders(partitions=[controller.at(KEY)])
    assert controller.outcomes(elect_preferred_leaders=body) == ["NO_ELIGIBLE_LEADER"]
    controller.unfence(1)
    controller.alter(KEY, [1, 2, 3])
    body = c.ElectPreferredLeaders(partitions=[controller.at(KEY)])
    assert controller.outcomes(elect_preferred_leaders=body) == ["OK"]
    assert complete(controller) == "OK"
    assert controller.picture(KEY) == "1 of 1,2,3"
    body = c.ElectPreferredLeaders(partitions=[controller.at(KEY)])
    assert controller.outcomes(elect_preferred_leaders=body) == ["OK"]
    assert controller.picture(KEY) == "1 of 1,2,3"


# --- reassignment --------------------------------------------------------------------------------------------------


def reassign(controller: Controller, *target: int) -> None:
    controller.ok(reassign_partition=c.ReassignPartition(partition=controller.at(KEY), target=target))


def cancel(controller: Controller) -> None:
    controller.ok(cancel_reassignment=c.CancelReassignment(partition=controller.at(KEY)))


def finish(controller: Controller) -> str:
    body = c.CompleteReassignments(partitions=[controller.at(KEY)])
    return controller.outcomes(complete_reassignments=body)[0]


def test_replicas_are_moved_when_the_new_ones_are_in_sync() -> None:
    controller = controller_of(1, 2, 3, others=(4,))
    reassign(controller, 1, 2, 4)
    partition = controller.partition(KEY)
    assert partition.replicas == (1, 2, 4, 3)
    assert partition.reassignment == Reassignment(target=(1, 2, 4), original=(1, 2, 3))
    assert finish(controller) == "REASSIGNMENT_IN_PROGRESS"
    assert controller.alter(KEY, [1, 2, 3, 4]) == "OK"
    assert finish(controller) == "OK"
    partition = controller.partition(KEY)
    assert (partition.replicas, partition.reassignment) == ((1, 2, 4), None)
    assert (controller.picture(KEY), partition.leader_epoch) == ("1 of 1,2,4", 0)
    assert controller.state.partitions_on(3) == []


def test_leader_that_goes_first_hands_over() -> None:
    controller = controller_of(1, 2, others=(3, 4))
    reassign(controller, 3, 4)
    controller.alter(KEY, [1, 2, 3, 4])
    assert finish(controller) == "OK"
    assert controller.partition(KEY).move == LeaderMove(1, controller.epoch(1), 3, version=controller.index)
    assert finish(controller) == "REASSIGNMENT_IN_PROGRESS"
    assert complete(controller) == "OK"
    assert controller.picture(KEY) == "3 of 1,2,3,4"
    assert finish(controller) == "OK"
    assert (controller.picture(KEY), controller.partition(KEY).replicas) == ("3 of 3,4", (3, 4))


def test_cancelled_reassignment_is_over_at_once() -> None:
    controller = controller_of(1, 2, 3, others=(4,))
    reassign(controller, 4, 2, 3)
    controller.alter(KEY, [1, 3, 4])
    cancel(controller)
    partition = controller.partition(KEY)
    assert (partition.replicas, partition.reassignment) == ((1, 2, 3), None)
    assert controller.picture(KEY) == "1 of 1,3"


def test_cancelled_reassignment_first_moves_the_leadership_back() -> None:
    controller = controller_of(1, 2, others=(3, 4))
    reassign(controller, 3, 4)
    controller.alter(KEY, [1, 2, 3, 4])
    finish(controller)
    complete(controller)
    controller.alter(KEY, [3, 2])
    cancel(controller)
    partition = controller.partition(KEY)
    assert partition.reassignment == Reassignment(target=(1, 2), original=(3, 4), cancelled=True)
    assert partition.move == LeaderMove(3, controller.epoch(3), 2, version=controller.index)
    cancel(controller)
    assert complete(controller) == "OK"
    assert finish(controller) == "OK"
    assert (controller.picture(KEY), controller.partition(KEY).replicas) == ("2 of 2", (1, 2))


def test_cancelled_reassignment_waits_for_an_old_replica_if_none_is_in_sync() -> None:
    controller = controller_of(1, 2, others=(3, 4), min_isr=1)
    reassign(controller, 3, 4)
    controller.alter(KEY, [1, 2, 3, 4])
    finish(controller)
    complete(controller)
    controller.alter(KEY, [3, 4])
    cancel(controller)
    assert controller.partition(KEY).reassignment == Reassignment((1, 2), (3, 4), cancelled=True)
    assert controller.picture(KEY) == "3 of 3,4"
    assert finish(controller) == "REASSIGNMENT_IN_PROGRESS"
    controller.alter(KEY, [3, 4, 2])
    assert finish(controller) == "OK"
    assert complete(controller) == "OK"
    assert finish(controller) == "OK"
    assert (controller.picture(KEY), controller.partition(KEY).replicas) == ("2 of 2", (1, 2))


def test_new_order_alone_is_a_reassignment_too() -> None:
    controller = controller_of(1, 2, 3)
    reassign(controller, 1, 2, 3)
    assert controller.partition(KEY).reassignment is None, "as it is"
    reassign(controller, 3, 2, 1)
    assert finish(controller) == "OK"
    assert controller.partition(KEY).replicas == (3, 2, 1)


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ([1, 2], "INVALID_ARGUMENT"),
        ([1, 2, 2], "INVALID_ARGUMENT"),
        ([1, 2, 9], "UNKNOWN_BROKER"),
        ([1, 2, 4], "BROKER_FENCED"),
        ([1, 2, 5], "INVALID_ARGUMENT"),
    ],
)
def test_target_that_makes_no_sense_is_refused(target: list[int], reason: str) -> None:
    controller = controller_of(1, 2, 3, others=(4, 5))
    controller.fence(4)
    controller.drain(5, metadata_pb2.DRAIN_GOAL_REPLICAS)
    body = c.ReassignPartition(partition=controller.at(KEY), target=target)
    assert controller.refused(reassign_partition=body).reason == reason


def test_one_reassignment_at_a_time() -> None:
    controller = controller_of(1, 2, 3, others=(4, 5))
    none = c.CancelReassignment(partition=controller.at(KEY))
    assert controller.refused(cancel_reassignment=none).reason == "NO_REASSIGNMENT_IN_PROGRESS"
    assert finish(controller) == "NO_REASSIGNMENT_IN_PROGRESS"
    stale = c.ReassignPartition(partition=controller.at(KEY, later=3), target=[1, 2, 4])
    assert controller.refused(reassign_partition=stale).reason == "STALE_PARTITION_EPOCH"
    reassign(controller, 1, 2, 4)
    second = c.ReassignPartition(partition=controller.at(KEY), target=[1, 2, 5])
    assert controller.refused(reassign_partition=second).reason == "REASSIGNMENT_IN_PROGRESS"


def test_replicas_that_are_being_added_do_not_lead_before_they_are_in_sync() -> None:
    controller = controller_of(1, 2, others=(3, 4))
    reassign(controller, 3, 4)
    controller.fence(1)
    assert controller.picture(KEY) == "2 of 2 +1"
    controller.fence(2)
    assert controller.picture(KEY) == "- of 2 +1"
