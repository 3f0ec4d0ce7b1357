"""The controller's state machine under commands of all kinds, sensible or not, repeated, or no commands at all.

After each: the invariants of every partition; that nothing acknowledged is lacking where it must be; that a twin,
which is frozen and restored now and then, is the same to the byte; that a follower of the deltas knows everything.
"""

from __future__ import annotations

import os
from typing import Any, Final

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from quire.v1 import commands_pb2 as c
from quire.v1 import metadata_pb2
from quire_controller.state.duties import Duties, DutyConfig
from quire_controller.state.leases import LeaseKeeper
from quire_controller.state.machine import ControllerState
from quire_controller.state.model import Partition, PartitionKey
from tests.property.controller_checks import CommittedData, History, check_indexes, check_partition
from tests.unit.controller_crafting import LEASE_MS, Controller, command_bytes, registration, uuid_of
from tests.unit.controller_follower import Follower, picture_of

EXAMPLES: Final = int(os.environ.get("QUIRE_CONTROLLER_EXAMPLES", "200"))
"""More of them, and other ones each time, when the number is given."""

BROKERS: Final = st.integers(1, 5)
MEMBERS: Final = st.sets(BROKERS, max_size=5)
STALENESS: Final = st.sampled_from([0, 0, 0, 0, 0, 0, 1, -1])
TOPICS: Final = st.integers(1, 4)
CLIENTS: Final = st.sampled_from(["", "", "a", "b"])


class ControllerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.controller = Controller()
        self.twin = ControllerState()
        self.twin_applied = 0
        self.follower = Follower()
        self.history = History()
        self.data = CommittedData()
        self.sequences = {"a": 0, "b": 0}
        self.remembered: list[tuple[bytes, bytes]] = []
        self.disks: dict[int, int] = {}
        self.wiped: set[tuple[PartitionKey, int]] = set()
        self.now_ms = 0
        self.keeper = LeaseKeeper(term=1, now_ms=0, brokers={})
        self.duties = Duties(self.keeper, DutyConfig(election_wait_ms=500, preferred_wait_ms=500, repeat_ms=100))

    @property
    def state(self) -> ControllerState:
        return self.controller.state

    # -- how commands are applied ----------------------------------------------------------------------------------

    def run(self, client: str = "", **body: Any) -> c.CommandResult:
        before = dict(self.state.partitions)
        if client:
            self.sequences[client] += 1
        data = command_bytes(client=client, sequence=self.sequences.get(client, 0), **body)
        result = self.controller.apply(data)
        if client:
            self.remembered = [*self.remembered[-7:], (data, result)]
        for partition in self.state.partitions.values():
            check_partition(self.state, partition)
        self.history.check(self.state.partitions)
        self.data.check_and_go_on(
            self.state, before, unclean="elect_unclean" in body, waited="elect_last_isr" in body
        )
        return c.CommandResult.FromString(result)

    def epoch(self, broker_id: int, staleness: int = 0) -> int:
        broker = self.state.brokers.get(broker_id)
        return (0 if broker is None else broker.broker_epoch) + staleness

    def some_partition(self, number: int) -> Partition | None:
        keys = sorted(self.state.partitions)
        return self.state.partitions[keys[number % len(keys)]] if keys else None

    def at(self, partition: Partition, staleness: int = 0) -> c.PartitionAt:
        return c.PartitionAt(
            topic_id=partition.key.topic_id,
            partition=partition.key.partition,
            partition_epoch=partition.partition_epoch + staleness,
        )

    # -- brokers ---------------------------------------------------------------------------------------------------

    @initialize(count=st.integers(3, 5))
    def begin(self, count: int) -> None:
        for broker_id in range(1, count + 1):
            self.register(broker_id, wiped=False, lost=0, reports=True, client="")
            self.unfence(broker_id, 0)
        self.create_topic(1, 3, 3, None, False, [], "a")

    @rule(
        broker_id=BROKERS, wiped=st.booleans(), lost=st.sampled_from([0, 0, 2]), reports=st.booleans(), client=CLIENTS
    )
    def register(self, broker_id: int, wiped: bool, lost: int, reports: bool, client: str) -> None:
        held = {partition.key: partition for partition in self.state.partitions_on(broker_id)}
        disk = self.disks.get(broker_id, 10 * broker_id) + wiped
        if wiped or broker_id not in self.disks:
            self.data.on_wiped(broker_id, held)
        else:
            self.data.on_restarted(broker_id, held, lost=lost)
        ends = self.data.ends(broker_id, held) if reports else {}
        known = broker_id in self.state.brokers
        result = self.run(
            client, register_broker=registration(broker_id, disk=disk, ends=ends, rack="r" * (broker_id % 3))
        )
        assert result.broker_registered.broker_epoch == self.controller.index
        self.disks[broker_id] = disk
        if wiped or not known:
            self.wiped |= {(key, broker_id) for key in held}

    @rule(broker_id=BROKERS, staleness=STALENESS, cause=st.sampled_from([0, 1, 2, 2, 2, 3]))
    def fence(self, broker_id: int, staleness: int, cause: Any) -> None:
        epoch = self.epoch(broker_id, staleness)
        self.run(fence_broker=c.FenceBroker(broker_id=broker_id, broker_epoch=epoch, cause=cause, term=1))

    @rule(broker_id=BROKERS, staleness=STALENESS)
    def unfence(self, broker_id: int, staleness: int) -> None:
        epoch = self.epoch(broker_id, staleness)
        self.run(unfence_broker=c.UnfenceBroker(broker_id=broker_id, broker_epoch=epoch, lease_ms=LEASE_MS))

    @rule()
    def unfence_all(self) -> None:
        for broker_id in sorted(self.state.brokers):
            self.unfence(broker_id, 0)

    @rule()
    def fence_all(self) -> None:
        for broker_id in sorted(self.state.brokers):
            self.fence(broker_id, 0, 2)

    @rule(broker_id=BROKERS, goal=st.sampled_from([0, 0, 1, 2, 9]))
    def drain(self, broker_id: int, goal: Any) -> None:
        self.run(drain_broker=c.DrainBroker(broker_id=broker_id, goal=goal))

    @rule(broker_id=BROKERS, staleness=STALENESS)
    def unregister(self, broker_id: int, staleness: int) -> None:
        epoch = self.epoch(broker_id, staleness)
        result = self.run(unregister_broker=c.UnregisterBroker(broker_id=broker_id, broker_epoch=epoch))
        if result.WhichOneof("outcome") == "done":
            del self.disks[broker_id]

    # -- topics ----------------------------------------------------------------------------------------------------

    @rule(
        number=TOPICS,
        count=st.integers(0, 3),
        factor=st.integers(0, 4),
        min_isr=st.one_of(st.none(), st.integers(1, 4)),
        unclean=st.booleans(),
        assigned=st.lists(st.lists(BROKERS, max_size=3), max_size=2),
        client=CLIENTS,
    )
    def create_topic(
        self,
        number: int,
        count: int,
        factor: int,
        min_isr: int | None,
        unclean: bool,
        assigned: list[list[int]],
        client: str,
    ) -> None:
        topic_id = uuid_of(self.controller.index + 1 if uuid_of(number) in self.state.deleted_topics else number)
        body = c.CreateTopic(
            topic_id=topic_id,
            tenant="default",
            name=f"t{number}",
            partition_count=count,
            replication_factor=factor,
            config=metadata_pb2.TopicConfig(min_isr=min_isr, unclean_election=unclean),
            placement_seed=self.controller.index,
            assignments=[c.ReplicaAssignment(replicas=replicas) for replicas in assigned],
        )
        self.run(client, create_topic=body)

    def topic_id(self, number: int) -> bytes:
        topic = self.state.topic_named("default", f"t{number}")
        return uuid_of(99) if topic is None else topic.topic_id

    @rule(number=st.integers(1, 12), client=CLIENTS)
    def delete_topic(self, number: int, client: str) -> None:
        self.run(client, delete_topic=c.DeleteTopic(topic_id=self.topic_id(number)))

    @rule(number=TOPICS, broker_id=BROKERS)
    def confirm_deletion(self, number: int, broker_id: int) -> None:
        topic_ids = sorted(self.state.deleted_topics)[:number]
        body = c.ConfirmDeletions(broker_id=broker_id, broker_epoch=self.epoch(broker_id), topic_ids=topic_ids)
        self.run(confirm_deletions=body)

    @rule(number=TOPICS, min_isr=st.integers(0, 4), unclean=st.booleans(), unset=st.booleans())
    def configure_topic(self, number: int, min_isr: int, unclean: bool, unset: bool) -> None:
        config = metadata_pb2.TopicConfig(unclean_election=unclean)
        if not unset:
            config.min_isr = min_isr
        body = c.ConfigureTopic(topic_id=self.topic_id(number), set=config, unset=["min_isr"] if unset else [])
        self.run(configure_topic=body)

    @rule(number=TOPICS, count=st.integers(0, 5))
    def add_partitions(self, number: int, count: int) -> None:
        self.run(add_partitions=c.AddPartitions(topic_id=self.topic_id(number), partition_count=count))

    # -- partitions ------------------------------------------------------------------------------------------------

    @rule(number=st.integers(0, 20), members=MEMBERS, with_leader=st.booleans(), staleness=STALENESS, client=CLIENTS)
    def alter_partition(self, number: int, members: set[int], with_leader: bool, staleness: int, client: str) -> None:
        partition = self.some_partition(number)
        if partition is None or partition.leader is None:
            return
        wanted = sorted(members & set(partition.replicas) | ({partition.leader} if with_leader else set()))
        self.alter(partition, wanted, staleness, client)

    @rule(number=st.integers(0, 20))
    def expand_isr(self, number: int) -> None:
        partition = self.some_partition(number)
        if partition is not None and partition.leader is not None:
            wanted = [each for each in partition.replicas if not self.state.brokers[each].fenced]
            self.alter(partition, wanted, 0, "")

    def alter(self, partition: Partition, wanted: list[int], staleness: int, client: str) -> None:
        leader = partition.leader
        assert leader is not None
        change = c.IsrChange(
            topic_id=partition.key.topic_id,
            partition=partition.key.partition,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch + staleness,
            isr=[c.IsrMember(broker_id=each, broker_epoch=self.epoch(each)) for each in wanted],
        )
        body = c.AlterPartitions(broker_id=leader, broker_epoch=self.epoch(leader), changes=[change])
        # The leader counts those whom it proposes before the proposal's fate is known: so they have everything.
        for member in wanted:
            self.data.on_in_sync(partition.key, member)
        result = self.run(client, alter_partitions=body)
        if not result.partitions.outcomes or result.partitions.outcomes[0].error:
            return
        self.wiped -= {(partition.key, member) for member in wanted}

    @rule(number=st.integers(0, 20), to_broker=BROKERS, staleness=STALENESS)
    def move_leader(self, number: int, to_broker: int, staleness: int) -> None:
        if (partition := self.some_partition(number)) is not None:
            target = c.LeaderTarget(partition=self.at(partition, staleness), to_broker=to_broker)
            self.run(move_leaders=c.MoveLeaders(moves=[target]))

    @rule(numbers=st.sets(st.integers(0, 20), max_size=5), staleness=STALENESS, kind=st.integers(0, 4))
    def many(self, numbers: set[int], staleness: int, kind: int) -> None:
        chosen = {each.key: each for number in sorted(numbers) if (each := self.some_partition(number)) is not None}
        partitions = [self.at(partition, staleness) for partition in chosen.values()]
        bodies: list[dict[str, Any]] = [
            {"elect_preferred_leaders": c.ElectPreferredLeaders(partitions=partitions)},
            {"complete_moves": c.CompleteMoves(partitions=partitions)},
            {"elect_last_isr": c.ElectLastIsr(partitions=partitions)},
            {"complete_reassignments": c.CompleteReassignments(partitions=partitions)},
            {"elect_unclean": c.ElectUnclean(partitions=partitions)},
        ]
        self.run(**bodies[kind])
        self.forgive_wiped(kind == 4)

    def forgive_wiped(self, unclean: bool) -> None:
        """Whoever is elected uncleanly is in the ISR, whatever it has."""
        if unclean:
            self.wiped -= {
                (key, each.leader) for key, each in self.state.partitions.items() if each.leader is not None
            }

    @rule(number=st.integers(0, 20), wanted=st.lists(BROKERS, max_size=4), staleness=STALENESS)
    def reassign(self, number: int, wanted: list[int], staleness: int) -> None:
        if (partition := self.some_partition(number)) is not None:
            self.run(reassign_partition=c.ReassignPartition(partition=self.at(partition, staleness), target=wanted))
            now = self.state.partitions[partition.key]
            for broker_id in set(now.replicas) - set(partition.replicas):
                self.data.on_wiped(broker_id, {partition.key: partition})

    @rule(number=st.integers(0, 20), staleness=STALENESS)
    def cancel(self, number: int, staleness: int) -> None:
        if (partition := self.some_partition(number)) is not None:
            self.run(cancel_reassignment=c.CancelReassignment(partition=self.at(partition, staleness)))

    # -- everything else -------------------------------------------------------------------------------------------

    @rule(broker_id=BROKERS, count=st.integers(-1, 1_000), client=CLIENTS)
    def allocate(self, broker_id: int, count: int, client: str) -> None:
        first = self.state.next_producer_id
        body = c.AllocateProducerIds(broker_id=broker_id, broker_epoch=self.epoch(broker_id), count=count)
        result = self.run(client, allocate_producer_ids=body)
        if result.WhichOneof("outcome") == "producer_ids":
            assert result.producer_ids.first_producer_id == first
            assert self.state.next_producer_id == first + count

    @rule(data=st.binary(max_size=60))
    def garbage(self, data: bytes) -> None:
        self.controller.apply(data)

    @precondition(lambda self: self.remembered)
    @rule(which=st.integers(0, 7))
    def repeat(self, which: int) -> None:
        data, result = self.remembered[which % len(self.remembered)]
        before = list(self.state.freeze())[1:]
        assert self.controller.apply(data) == result
        assert list(self.state.freeze())[1:] == before

    @rule(elapsed_ms=st.integers(0, 900), alive=st.sets(BROKERS), times=st.integers(1, 6))
    def do_duties(self, elapsed_ms: int, alive: set[int], times: int) -> None:
        for _ in range(times):
            self.now_ms += elapsed_ms
            self.keeper.observe(self.state.brokers, self.now_ms)
            for broker_id in sorted(alive):
                self.keeper.on_heartbeat_confirmed(
                    broker_id=broker_id,
                    broker_epoch=self.epoch(broker_id),
                    received_ms=self.now_ms,
                    applied_version=self.state.version,
                )
            for command in self.duties.due(self.state.tables, self.now_ms):
                kind = command.WhichOneof("body")
                assert kind is not None
                partitions = dict(self.state.partitions)
                self.run(**{kind: getattr(command, kind)})
                self.forgive_wiped(kind == "elect_unclean")
                for key, partition in self.state.partitions.items():
                    for broker_id in set(partition.replicas) - set(partitions[key].replicas):
                        self.data.on_wiped(broker_id, {key: partition})

    @rule()
    def restore_twin(self) -> None:
        self.catch_up_twin()
        pieces = list(self.twin.freeze())
        self.twin = ControllerState()
        self.twin.restore(pieces)
        assert list(self.twin.freeze()) == pieces
        check_indexes(self.state.tables)

    @rule()
    def catch_up_follower(self) -> None:
        self.follower.catch_up(self.state)
        assert self.follower.picture == picture_of(self.state)

    def catch_up_twin(self) -> None:
        for index, data in self.controller.commands[self.twin_applied :]:
            self.twin.apply(index, data)
        self.twin_applied = len(self.controller.commands)
        assert list(self.twin.freeze()) == list(self.state.freeze())

    @invariant()
    def wiped_brokers_are_not_in_sync(self) -> None:
        for partition in self.state.partitions.values():
            for broker_id in (*partition.isr, *partition.eligible):
                assert (partition.key, broker_id) not in self.wiped

    def teardown(self) -> None:
        self.catch_up_twin()
        self.catch_up_follower()
        check_indexes(self.state.tables)


ControllerMachine.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=50,
    deadline=None,
    derandomize="QUIRE_CONTROLLER_EXAMPLES" not in os.environ,
    # No shrinking: it takes minutes, and the steps as they are can be read.
    phases=[Phase.generate],
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
TestController = ControllerMachine.TestCase
