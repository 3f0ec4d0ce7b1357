"""What the leading controller proposes by itself, played against the state that carries it out."""

from __future__ import annotations

from quire.v1 import commands_pb2 as c
from quire.v1 import metadata_pb2
from quire_controller.state.duties import Duties, DutyConfig
from quire_controller.state.leases import LeaseKeeper
from quire_controller.state.model import PartitionKey
from tests.unit.controller_crafting import LEASE_MS, Controller, uuid_of

KEY = PartitionKey(uuid_of(1), 0)
STEP_MS = 100


class Leader:
    """A controller that leads: its clock, its leases, its duties. Brokers send heartbeats unless they are silent."""

    def __init__(self, controller: Controller, **config: int) -> None:
        self.controller = controller
        self.now_ms = 1_000_000
        self.silent: set[int] = set()
        self.deaf: set[int] = set()
        """Those that apply no metadata."""
        self.applied: dict[int, int] = {}
        self.keeper = LeaseKeeper(term=1, now_ms=self.now_ms, brokers=controller.state.brokers)
        self.duties = Duties(self.keeper, DutyConfig(**config))

    def due(self) -> list[str | None]:
        """The kinds of commands that are due now, in order; they are not proposed."""
        return [command.WhichOneof("body") for command in self.look()]

    def look(self) -> list[c.Command]:
        return self.duties.due(self.controller.state.tables, self.now_ms)

    def run(self, milliseconds: int) -> list[str | None]:
        """Let time pass; what is due is proposed. Gives what was."""
        proposed: list[str | None] = []
        for _ in range(milliseconds // STEP_MS):
            self.now_ms += STEP_MS
            for broker_id, broker in self.controller.state.brokers.items():
                if broker_id not in self.deaf:
                    self.applied[broker_id] = self.controller.state.version
                if broker_id not in self.silent:
                    self.keeper.on_heartbeat_confirmed(
                        broker_id=broker_id,
                        broker_epoch=broker.broker_epoch,
                        received_ms=self.now_ms,
                        applied_version=self.applied.get(broker_id, 0),
                    )
            for command in self.look():
                proposed.append(command.WhichOneof("body"))
                self.controller.apply(command.SerializeToString())
        return proposed


def leader_of(*replicas: int, others: tuple[int, ...] = (), min_isr: int | None = None, **config: int) -> Leader:
    controller = Controller(sorted((*replicas, *others)))
    controller.topic("orders", replicas, min_isr=min_isr)
    return Leader(controller, **config)


def test_nothing_is_due_where_all_is_well() -> None:
    assert leader_of(1, 2, 3).run(100_000) == []


# --- leases --------------------------------------------------------------------------------------------------------


def test_silent_broker_is_fenced_after_its_lease() -> None:
    leader = leader_of(1, 2, 3)
    leader.run(5_000)
    leader.silent = {1}
    assert leader.run(LEASE_MS - STEP_MS) == []
    assert leader.run(3 * STEP_MS) == ["fence_broker"]
    assert leader.controller.picture(KEY) == "2 of 2,3"


def test_expiry_is_proposed_in_the_term_of_the_leases_and_repeated_until_it_is_done() -> None:
    leader = leader_of(1, 2, 3)
    leader.silent = {1, 2, 3}
    for _ in range(40):
        leader.now_ms += STEP_MS
        commands = leader.look()
        if commands:
            break
    fences = [command.fence_broker for command in commands]
    assert [fence.broker_id for fence in fences] == [1, 2, 3]
    assert {(fence.term, fence.cause) for fence in fences} == {(1, c.FENCE_CAUSE_LEASE_EXPIRED)}
    assert leader.due() == [], "their fate is not known yet"
    leader.now_ms += 2_000
    assert leader.due() == ["fence_broker"] * 3


def test_deposed_controller_fences_nobody() -> None:
    leader = leader_of(1, 2, 3)
    leader.controller.ok(begin_term=c.BeginTerm(term=2, controller_id="n2"))
    leader.silent = {1, 2, 3}
    assert leader.run(5_000)
    assert not any(broker.fenced for broker in leader.controller.state.brokers.values())


# --- moves ---------------------------------------------------------------------------------------------------------


def move(controller: Controller, to_broker: int) -> None:
    target = c.LeaderTarget(partition=controller.at(KEY), to_broker=to_broker)
    controller.ok(move_leaders=c.MoveLeaders(moves=[target]))


def test_move_is_completed_when_the_old_leader_has_applied_it() -> None:
    leader = leader_of(1, 2, 3)
    leader.run(1_000)
    leader.deaf = {1}
    move(leader.controller, 3)
    assert leader.run(2_000) == []
    assert leader.controller.picture(KEY) == "- of 1,2,3"
    leader.deaf = set()
    assert leader.run(200) == ["complete_moves"]
    assert leader.controller.picture(KEY) == "3 of 1,2,3"


def test_move_is_over_when_the_old_leaders_lease_has_ended() -> None:
    leader = leader_of(1, 2, 3)
    leader.silent = {1}
    move(leader.controller, 3)
    assert leader.run(LEASE_MS + 500) == ["fence_broker"]
    assert leader.controller.picture(KEY) == "2 of 2,3"


# --- elections -----------------------------------------------------------------------------------------------------


def test_others_of_the_last_isr_are_waited_for() -> None:
    leader = leader_of(1, 2, 3, election_wait_ms=2_000)
    controller = leader.controller
    controller.fence(1, 2, 3)
    assert controller.picture(KEY) == "- of 3 +2"
    assert leader.run(5_000) == []
    controller.restart(2, ends={KEY: (0, 5)})
    assert leader.run(2_000) == []
    assert leader.run(2 * STEP_MS) == ["elect_last_isr"]
    assert controller.picture(KEY) == "2 of 2 +3"


def test_wait_begins_anew_after_another_election() -> None:
    leader = leader_of(1, 2, min_isr=2, election_wait_ms=2_000)
    controller = leader.controller
    controller.fence(1, 2)
    controller.restart(1, ends={KEY: (0, 5)})
    leader.run(1_500)
    controller.unfence(2)
    assert controller.picture(KEY) == "2 of 2"
    controller.register(2, ends={KEY: (1, 9)})
    controller.fence(1)
    leader.silent = {2}
    assert leader.run(5_000) == []


def test_unclean_election_is_proposed_only_where_the_topic_allows_it() -> None:
    for unclean in (False, True):
        controller = Controller([1, 2])
        controller.topic("orders", [1, 2], min_isr=1, unclean=unclean)
        leader = Leader(controller, election_wait_ms=2_000)
        controller.fence(2)
        controller.fence(1)
        controller.unfence(2)
        assert leader.run(5_000) == (["elect_unclean"] if unclean else [])
        assert controller.picture(KEY) == ("2 of 2" if unclean else "- of 1")


# --- preferred leaders ---------------------------------------------------------------------------------------------


def test_preferred_leader_leads_again_when_it_has_settled() -> None:
    leader = leader_of(1, 2, 3, preferred_wait_ms=5_000)
    controller = leader.controller
    controller.restart(1)
    assert controller.picture(KEY) == "2 of 2,3"
    assert leader.run(10_000) == [], "it is not in sync"
    controller.alter(KEY, [1, 2, 3])
    assert leader.run(300) == ["elect_preferred_leaders", "complete_moves"]
    assert controller.picture(KEY) == "1 of 1,2,3"
    controller.restart(1)
    controller.alter(KEY, [1, 2, 3])
    assert leader.run(4_900) == [], "it has not been there for long enough"
    assert leader.run(500) == ["elect_preferred_leaders", "complete_moves"]


def test_no_more_leaderships_are_on_their_way_than_may_be() -> None:
    controller = Controller([1, 2])
    topic_id = controller.topic("orders", *[[1, 2]] * 50)
    controller.restart(1)
    for partition in range(50):
        controller.alter(PartitionKey(topic_id, partition), [1, 2])
    leader = Leader(controller, preferred_wait_ms=0, moves_max=20)
    leader.deaf = {2}
    leader.run(10_000)
    assert len(controller.state.tables.moving) == 20
    leader.deaf = set()
    leader.run(20_000)
    assert controller.state.tables.elsewhere_led == {}


# --- drains --------------------------------------------------------------------------------------------------------


def test_drained_broker_loses_its_leaderships_and_nothing_comes_back() -> None:
    controller = Controller([1, 2, 3])
    topic_id = controller.topic("orders", [1, 2], [1, 3], [2, 1])
    only = controller.topic("single", [1], number=2)
    leader = Leader(controller, preferred_wait_ms=0)
    controller.drain(1, metadata_pb2.DRAIN_GOAL_LEADERSHIPS)
    assert leader.run(20_000) == ["move_leaders", "complete_moves"]
    pictures = [controller.picture(PartitionKey(topic_id, partition)) for partition in range(3)]
    assert pictures == ["2 of 1,2", "3 of 1,3", "2 of 1,2"]
    assert controller.picture(PartitionKey(only, 0)) == "1 of 1", "nobody else has it"
    controller.drain(1, metadata_pb2.DRAIN_GOAL_UNSPECIFIED)
    assert leader.run(20_000) == ["elect_preferred_leaders", "complete_moves"]


def test_broker_that_is_drained_of_replicas_ends_empty() -> None:
    controller = Controller([1, 2, 3, 4], racks={1: "a", 2: "b", 3: "c", 4: "a"})
    topic_id = controller.topic("orders", [1, 2, 3], [2, 3, 1], [3, 1, 2])
    only = controller.topic("single", [1], number=2)
    leader = Leader(controller, reassignments_max=2)
    controller.drain(1, metadata_pb2.DRAIN_GOAL_REPLICAS)
    for _ in range(200):
        leader.run(STEP_MS)
        assert len(controller.state.tables.reassigning) <= 2
        for key in sorted(controller.state.tables.reassigning):
            partition = controller.partition(key)
            if partition.leader is not None:
                controller.alter(key, partition.replicas)
    assert controller.state.partitions_on(1) == []
    replicas = [controller.partition(PartitionKey(topic_id, partition)).replicas for partition in range(3)]
    assert replicas == [(4, 2, 3), (2, 3, 4), (3, 4, 2)]
    assert controller.partition(PartitionKey(only, 0)).replicas != (1,)
    controller.ok(unregister_broker=c.UnregisterBroker(broker_id=1, broker_epoch=controller.epoch(1)))


def test_replica_that_nobody_can_take_stays() -> None:
    leader = leader_of(1, 2)
    leader.controller.drain(1, metadata_pb2.DRAIN_GOAL_REPLICAS)
    assert leader.run(5_000) == ["move_leaders", "complete_moves"]
    assert leader.controller.partition(KEY).replicas == (1, 2)


# --- reassignments -------------------------------------------------------------------------------------------------


def test_reassignment_is_finished_when_the_target_is_in_sync() -> None:
    leader = leader_of(1, 2, others=(3, 4))
    controller = leader.controller
    controller.ok(reassign_partition=c.ReassignPartition(partition=controller.at(KEY), target=[3, 4]))
    assert leader.run(2_000) == []
    controller.alter(KEY, [1, 2, 3, 4])
    assert leader.run(2_000) == ["complete_reassignments", "complete_moves", "complete_reassignments"]
    assert controller.picture(KEY) == "3 of 3,4"


# --- bounds --------------------------------------------------------------------------------------------------------


def test_call_gives_a_bounded_number_of_commands_and_the_rest_later() -> None:
    controller = Controller([1, 2])
    topic_id = controller.topic("orders", *[[1, 2]] * 300, min_isr=2)
    leader = Leader(controller, election_wait_ms=0, commands_max=2)
    controller.fence(1, 2)
    controller.restart(2, ends={PartitionKey(topic_id, partition): (0, 1) for partition in range(300)})
    assert len(controller.state.tables.leaderless) == 300
    given: list[int] = []
    for _ in range(4):
        commands = leader.look()
        assert len(commands) <= 2
        given += [at.partition for command in commands for at in command.elect_last_isr.partitions]
    assert given == list(range(300))
