"""Brokers with leases under a controller quorum, on virtual time, while everything is paused, cut and killed.

The real parts: Raft, state machine, `ControllerRuntime`, `BrokerLease`. A broker here leads what the metadata that it
has applied says it leads, as long as it holds its lease by its own clock, and brings everyone into the ISR who lives.

Checked whenever that may change: no partition has two brokers that believe to lead it; nobody is fenced for an ended
lease that he still holds; metadata versions rise at each broker, and none comes back with another content.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from quire.errors import QuireError
from quire.lease import BrokerLease
from quire.v1 import commands_pb2, metadata_pb2
from quire_controller.raft.config import RaftConfig
from quire_controller.runtime.controller import ControllerRuntime, Heartbeat, RuntimeConfig
from quire_controller.state.duties import DutyConfig
from quire_controller.state.machine import ControllerState
from tests.sim.raft_world import CLUSTER, Member, Violation, Weather, World

BROKERS: Final = 4
PARTITIONS: Final = 3
LEASE_MS: Final = 1_000
BEAT_S: Final = 0.25
FAULTS_S: Final = 20.0
HEAL_S: Final = 40.0
TOPIC: Final = b"t" * 16

Key = tuple[bytes, int]
Command = commands_pb2.Command


@dataclass
class Picture:
    version: int = 0
    partitions: dict[Key, metadata_pb2.Partition] = field(default_factory=dict)
    brokers: dict[int, metadata_pb2.Broker] = field(default_factory=dict)

    def apply(self, record: metadata_pb2.MetadataRecord) -> None:
        match record.WhichOneof("kind"):
            case "partition":
                self.partitions[record.partition.topic_id, record.partition.partition] = record.partition
            case "broker":
                self.brokers[record.broker.broker_id] = record.broker
            case _:
                pass


class SimBroker:
    """A broker as far as leases go. Its clock has an offset and runs a little too fast or too slow."""

    def __init__(self, lease_world: LeaseWorld, broker_id: int) -> None:
        self.world = lease_world.world
        self._owner = lease_world
        self.broker_id = broker_id
        self.host = self.world.network.host(f"b{broker_id}")
        chance = self.world.random
        self._offset_s = chance.uniform(0, 1000)
        self._rate = chance.uniform(0.997, 1.003)
        self._disk = chance.randbytes(16)
        self.lives = 0
        self.start()

    def start(self) -> None:
        """A new process on the same disk."""
        self.lives += 1
        self.is_up = True
        self._incarnation = self.world.random.randbytes(16)
        self._sequence = 0
        self._command: Command | None = None
        self.lease: BrokerLease | None = None
        self.picture = Picture()
        self._beat = 0
        self._leader: str | None = None
        self._tick()

    def crash(self) -> None:
        self.world.note(f"b{self.broker_id} is killed")
        self.world.network.crash(self.host.name)
        self.is_up = False
        self.lease = None

    def now_ms(self) -> int:
        return int((self.world.now * self._rate + self._offset_s) * 1000)

    def leads(self, key: Key) -> bool:
        partition = self.picture.partitions.get(key)
        return (
            self.is_up
            and self.lease is not None
            and partition is not None
            and partition.leader == self.broker_id
            and self._is_active()
            and self.lease.is_held(self.now_ms())
        )

    def _is_active(self) -> bool:
        me = self.picture.brokers.get(self.broker_id)
        return (
            me is not None and self.lease is not None and me.broker_epoch == self.lease.broker_epoch and not me.fenced
        )

    # -- what it does ----------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self.host.call_later(BEAT_S * self.world.random.uniform(0.8, 1.2), self._tick)
        self._watch()
        me = self.picture.brokers.get(self.broker_id)
        if self.lease is None:
            self._submit(self._registration(), self._on_registered)
            return
        if me is not None and me.broker_epoch == self.lease.broker_epoch and me.fenced:
            command = Command()
            command.unfence_broker.broker_id = self.broker_id
            command.unfence_broker.broker_epoch = self.lease.broker_epoch
            command.unfence_broker.lease_ms = LEASE_MS
            self._submit(command, lambda _: None)
        self._heartbeat()
        self._expand_isrs()

    def _registration(self) -> Command:
        command = Command()
        register = command.register_broker
        register.cluster_id = CLUSTER
        register.broker_id = self.broker_id
        register.incarnation_id = self._disk
        register.features.level_min = register.features.level_max = 1
        register.listeners.add(
            name="clients", protocol=metadata_pb2.LISTENER_PROTOCOL_GRPC, host=self.host.name, port=7400
        )
        for topic_id, partition in self._owner.keys:
            register.log_ends.add(topic_id=topic_id, partition=partition, last_epoch=0, log_end_offset=0)
        return command

    def _submit(self, command: Command, done: Callable[[commands_pb2.CommandResult], None]) -> None:
        """Each command again under its sequence until it is answered, one at a time."""
        if self._command is None:
            self._sequence += 1
            command.client_id = f"b{self.broker_id}"
            command.client_incarnation = self._incarnation
            command.sequence = self._sequence
            self._command = command
        sent = self._command

        def answered(outcome: Any) -> None:
            if not isinstance(outcome, QuireError) and self._command is sent:
                self._command = None
                if sent.WhichOneof("body") == command.WhichOneof("body"):
                    done(outcome)

        self._call(lambda runtime, reply: runtime.submit(sent, reply), answered)

    def _on_registered(self, result: commands_pb2.CommandResult) -> None:
        if result.WhichOneof("outcome") == "broker_registered":
            self.lease = BrokerLease(broker_epoch=result.broker_registered.broker_epoch)
            self.lease.on_applied(self.picture.version)

    def _heartbeat(self) -> None:
        lease = self.lease
        assert lease is not None
        self._beat += 1
        beat = self._beat
        lease.on_heartbeat_sent(beat, self.now_ms())

        def answered(outcome: Any) -> None:
            if isinstance(outcome, Heartbeat):
                if self._owner.counts_from_answer:
                    lease.on_heartbeat_sent(beat, self.now_ms())
                if self.lease is lease:
                    lease.on_heartbeat_answered(beat, lease.broker_epoch, outcome.lease_ms, outcome.metadata_version)
                    self._owner.check()
            elif isinstance(outcome, QuireError):
                self._leader = outcome.details.get("leader")

        self._call(
            lambda runtime, reply: runtime.heartbeat(
                broker_id=self.broker_id,
                broker_epoch=lease.broker_epoch,
                applied_version=self.picture.version,
                callback=reply,
            ),
            answered,
            target=self._leader,
        )

    def _watch(self) -> None:
        version = self.picture.version

        def answer(runtime: ControllerRuntime, reply: Callable[[Any], None]) -> None:
            state = runtime._state
            deltas = state.changes_since(version)
            if deltas is None:
                reply((state.version, list(state.snapshot_records()), True))
            elif deltas:
                reply((deltas[-1].version, [record for delta in deltas for record in delta.records], False))

        def answered(outcome: tuple[int, list[metadata_pb2.MetadataRecord], bool]) -> None:
            reached, records, is_whole = outcome
            if self.picture.version != version or reached <= version:
                return  # from a member that is behind, or overtaken by another answer
            if is_whole:
                self.picture = Picture()
            for record in records:
                self.picture.apply(record)
            self.picture.version = reached
            lease, me = self.lease, self.picture.brokers.get(self.broker_id)
            if lease is not None:
                if me is not None and me.broker_epoch == lease.broker_epoch and me.fenced:
                    lease.on_fenced()
                lease.on_applied(reached)
            self._owner.check()

        self._call(answer, answered)

    def _expand_isrs(self) -> None:
        lease = self.lease
        if lease is None or self._command is not None:
            return
        command = Command()
        command.alter_partitions.broker_id = self.broker_id
        command.alter_partitions.broker_epoch = lease.broker_epoch
        for key in self._owner.keys:
            partition = self.picture.partitions.get(key)
            if partition is None or not self.leads(key):
                continue
            alive = [
                self.picture.brokers[replica]
                for replica in partition.replicas
                if replica in self.picture.brokers and not self.picture.brokers[replica].fenced
            ]
            if {broker.broker_id for broker in alive} == set(partition.isr):
                continue
            change = command.alter_partitions.changes.add(
                topic_id=key[0],
                partition=key[1],
                leader_epoch=partition.leader_epoch,
                partition_epoch=partition.partition_epoch,
            )
            for broker in alive:
                change.isr.add(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch)
        if command.alter_partitions.changes:
            self._submit(command, lambda _: None)

    # -- the way to the controllers --------------------------------------------------------------------------------

    def _call(
        self,
        request: Callable[[ControllerRuntime, Callable[[Any], None]], None],
        answered: Callable[[Any], None],
        *,
        target: str | None = None,
    ) -> None:
        world, name, life = self.world, self.host.name, self.host.life
        target = target if target in world.names else world.random.choice(world.names)

        def arrive() -> None:
            runtime = world.members[target].extra
            if runtime is not None:
                request(runtime, reply)

        def reply(outcome: Any) -> None:
            self._travel(target, name, lambda: None if self.host.life != life else answered(outcome))

        self._travel(name, target, arrive)

    def _travel(self, source: str, target: str, arrive: Callable[[], object]) -> None:
        world = self.world
        if world.network.is_cut(source, target) or world.random.random() < world.weather.loss:
            return
        for _ in range(2 if world.random.random() < world.weather.doubling else 1):
            slow = world.random.random() < 0.03
            delay = world.random.uniform(0, 1.2 if slow else world.weather.delay_ms_max / 1000)
            world.scheduler.call_later(delay, lambda: world.network.host(target).run(arrive))


class LeaseWorld:
    def __init__(self, seed: int, size: int = 3, *, counts_from_answer: bool = False) -> None:
        self.counts_from_answer = counts_from_answer
        self.keys: list[Key] = [(TOPIC, partition) for partition in range(PARTITIONS)]
        self.world = World(
            seed=seed,
            size=size,
            make_machine=ControllerState,
            config=RaftConfig(tick_ms=20, snapshot_entries=60, chunk_bytes=2048),
            on_start=self._on_start,
        )
        self.world.on_command = self._on_command
        self.leaderships: set[tuple[Key, int, int]] = set()
        """(partition, leader epoch, broker) of all that were believed in."""
        self.brokers: list[SimBroker] = []

    def run(self) -> None:
        world = self.world
        for name in world.names:
            world.start(name)
        world.run_until(self._is_in_charge, within=HEAL_S, what="a controller in charge")
        self.brokers = [SimBroker(self, broker_id) for broker_id in range(1, BROKERS + 1)]
        self._create_topic()
        world.run_until(self._all_led, within=HEAL_S, what="a leader for each partition")
        end = world.now + FAULTS_S
        while world.now < end:
            self._fault()
            world.run_for(world.random.uniform(0.1, 1.0))
        self._heal()
        world.run_until(self._all_led, within=HEAL_S, what="a leader for each partition after all was healed")

    # -- checks ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        for key in self.keys:
            believers = [broker for broker in self.brokers if broker.leads(key)]
            if len(believers) > 1:
                names = [broker.broker_id for broker in believers]
                raise Violation(f"seed {self.world.seed}: brokers {names} believe to lead partition {key[1]}")
            for broker in believers:
                self.leaderships.add((key, broker.picture.partitions[key].leader_epoch, broker.broker_id))

    def _on_command(self, index: int, data: bytes) -> None:
        """A command is applied for the first time anywhere."""
        command = Command.FromString(data)
        if command.WhichOneof("body") != "fence_broker":
            return
        fence = command.fence_broker
        broker = next(broker for broker in self.brokers if broker.broker_id == fence.broker_id)
        if (
            fence.cause == commands_pb2.FENCE_CAUSE_LEASE_EXPIRED
            and broker.lease is not None
            and broker.lease.broker_epoch == fence.broker_epoch
            and broker.lease.is_held(broker.now_ms())
            and self._is_accepted(fence)
        ):
            raise Violation(f"seed {self.world.seed}: broker {fence.broker_id} is fenced while it holds its lease")

    def _is_accepted(self, fence: commands_pb2.FenceBroker) -> bool:
        """Whether the fence is of the controller's own term; others do nothing."""
        return all(
            member.extra is None
            or member.extra._state.controller is None
            or member.extra._state.controller.term <= fence.term
            for member in self.world.running()
        )

    def _is_in_charge(self) -> bool:
        return any(member.extra is not None and member.extra.is_in_charge for member in self.world.running())

    def _all_led(self) -> bool:
        return all(any(broker.leads(key) for broker in self.brokers) for key in self.keys)

    # -- what happens ----------------------------------------------------------------------------------------------

    def _on_start(self, world: World, member: Member) -> None:
        node, machine = member.node, member.machine
        assert node is not None
        assert machine is not None
        assert isinstance(machine.inner, ControllerState)
        runtime = ControllerRuntime(
            quorum=node,
            state=machine.inner,
            scheduler=world.network.host(member.name),
            randomness=random.Random(world.random.getrandbits(64)),
            config=RuntimeConfig(
                cluster_id=CLUSTER,
                member_id=member.name,
                lease_ms=LEASE_MS,
                duties=DutyConfig(election_wait_ms=1_000, preferred_wait_ms=2_000, repeat_ms=500),
            ),
        )
        member.extra = runtime
        node.observe(runtime.on_turn)
        runtime.start()

    def _create_topic(self) -> None:
        world = self.world
        member = world.random.choice(world.running())
        command = Command(client_id="admin", client_incarnation=b"a" * 16, sequence=1)
        create = command.create_topic
        create.topic_id, create.tenant, create.name = TOPIC, "default", "orders"
        create.partition_count, create.replication_factor = PARTITIONS, 3
        create.config.min_isr = 1
        create.placement_seed = 7

        def answered(outcome: Any) -> None:
            if isinstance(outcome, QuireError) or outcome.WhichOneof("outcome") == "error":
                # Not enough brokers yet, perhaps: as another command, since this one has been answered.
                command.sequence += 1
                world.scheduler.call_later(0.3, submit)

        def submit() -> None:
            assert member.extra is not None
            member.extra.submit(command, answered)

        submit()

    def _fault(self) -> None:
        world, chance = self.world, self.world.random
        everyone = [*world.names, *(broker.host.name for broker in self.brokers)]
        match chance.randint(0, 10):
            case 0:
                cut = chance.sample(everyone, chance.randint(1, len(everyone) - 1))
                world.note(f"partition {cut} from the rest")
                world.network.partition(cut, [name for name in everyone if name not in cut])
            case 1:
                source, target = chance.sample(everyone, 2)
                world.note(f"cut {source} to {target}")
                world.network.cut(source, target)
            case 2:
                world.weather = Weather(
                    loss=chance.uniform(0, 0.3),
                    doubling=chance.uniform(0, 0.3),
                    delay_ms_max=chance.choice([5, 50, 400]),
                    stray=chance.uniform(0, 0.1),
                )
            case 3 | 4:
                broker = chance.choice(self.brokers)
                world.note(f"b{broker.broker_id} is stopped")
                broker.host.pause()
                world.scheduler.call_later(chance.uniform(0.1, 3), broker.host.resume)
            case 5:
                broker = chance.choice(self.brokers)
                if broker.is_up:
                    broker.crash()
                    world.scheduler.call_later(chance.uniform(0.1, 2), lambda: self._restart(broker))
            case 6:
                leader = world.leader()
                if leader is not None:
                    world.pause(leader.name)
                    name = leader.name
                    world.scheduler.call_later(chance.uniform(0.1, 3), lambda: world.resume(name))
            case 7:
                name = chance.choice(world.names)
                world.crash(name, lose_unsynced=chance.random() < 0.5)
                world.scheduler.call_later(chance.uniform(0.1, 2), lambda: self._restart_member(name))
            case 8:
                names = chance.sample(everyone, len(everyone))
                middle = len(names) // 2
                world.note(f"bridge {names[:middle]} - {names[middle]} - {names[middle + 1 :]}")
                world.network.partition(names[:middle], names[middle + 1 :])
            case _:
                self._heal()

    def _restart(self, broker: SimBroker) -> None:
        if not broker.is_up:
            broker.start()

    def _restart_member(self, name: str) -> None:
        if self.world.members[name].node is None:
            self.world.start(name)

    def _heal(self) -> None:
        self.world.note("heal")
        self.world.network.heal()
        self.world.weather = Weather()
        for name in self.world.names:
            self.world.resume(name)
            self._restart_member(name)
        for broker in self.brokers:
            broker.host.resume()
            self._restart(broker)
