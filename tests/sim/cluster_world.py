"""A whole cluster in one process on virtual time: controllers, brokers and clients, on simulated disks and a network.

The real parts: Raft, the controller's state machine, runtime and services; the broker's membership, replication over
the peer link, logs, partitions, produce and fetch. Replaced are gRPC (`wires`), the event loop, the clock, the disk.

After every step of a broker: one leader an epoch; no two brokers that may lead a partition at once. Whenever a high
watermark moves: it never falls, and what is below it is the same on whichever replica, for ever. In the end, when all
is healed: everything goes on, and what was acknowledged is there once, in its order, alike on all replicas.

Two seeds of five are of worlds in which answers of the controllers get lost for a while, so that brokers do not know
what became of their changes; one of fifty is of a world with some hundred partitions.

    Cluster(seed).run()                  same seed, same `trace`
"""

from __future__ import annotations

import asyncio
import io
import random
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from quire.config.sections import LogFormat, LogLevel
from quire.disk.sim_disk import SimDisk
from quire.errors import InvariantViolation, OutcomeUnknownError, QuireError
from quire.link.config import LinkConfig
from quire.link.handshake import NodeIdentity
from quire.link.network import Address
from quire.process import logs
from quire.records import BatchOptions, decode, encode_columns, iter_batches
from quire.v1 import broker_pb2, controller_pb2, durability_pb2, metadata_pb2, topics_pb2
from quire_broker.log.place import TOPICS, PartitionKey
from quire_broker.replica.config import ReplicaConfig
from quire_broker.runtime import replica as replica_module
from quire_broker.runtime.budget import Memory
from quire_broker.runtime.controllers import QuorumClient, QuorumClientConfig
from quire_broker.runtime.incarnation import incarnation_id
from quire_broker.runtime.membership import Membership, MembershipConfig, Registration
from quire_broker.runtime.partition import Partition
from quire_broker.runtime.partitions import Partitions
from quire_broker.runtime.replication import Replication
from quire_broker.service.answers import Answers
from quire_broker.service.fetch import Fetching
from quire_broker.service.produce import Producing
from quire_broker.service.reading import Reading
from quire_broker.service.wire import with_raw
from quire_broker.state.image import Changes, MetadataImage
from quire_controller.raft.config import RaftConfig
from quire_controller.runtime.controller import ControllerRuntime, RuntimeConfig
from quire_controller.service.brokers import ControllerServicer
from quire_controller.service.cluster import ControllerAdminServicer
from quire_controller.service.watching import Watches
from quire_controller.state.duties import DutyConfig
from quire_controller.state.machine import ControllerState
from tests.sim.host_loop import HostLoop
from tests.sim.raft_world import CLUSTER, Member, Violation, World
from tests.sim.wires import Service, WireMember, Wires

BROKERS: Final = 3
PARTITIONS: Final = 2
PARTITIONS_MANY: Final = 220
PARTITIONS_USED_MAX: Final = 4
"""Of many, so many are written to; the others are only led and followed, and looked at now and then."""
STEPS_A_LOOK: Final = 10
TOPIC: Final = "orders"
LEASE_MS: Final = 1_000
BEAT_MS: Final = 200
BEAT_ANSWER_S_MAX: Final = 0.45
"""A broker does not wait for the answer to a heartbeat for longer than half of a lease."""
FAULTS_S: Final = 8.0
PROPOSE_S_MAX: Final = 1.0
"""Where answers get lost: a broker gives up waiting for one while they do, and its change is of unknown fate."""
HEAL_S: Final = 40.0
ROOT: Final = "/broker"
EPOCH_MS: Final = 1_700_000_000_000
REF: Final = topics_pb2.TopicRef(name=TOPIC)

logs.configure(node="sim", role="sim", level=LogLevel.ERROR, format=LogFormat.TEXT, stream=io.StringIO())


def shape_of(seed: int) -> Shape:
    """Not of the world's randomness: what is added here leaves the histories of other seeds alone."""
    return Shape(
        controllers=3 if seed % 4 == 0 else 1,
        partitions=PARTITIONS_MANY if seed % 50 == 7 else PARTITIONS,
        loses_answers=seed % 5 < 2,
    )


class Shape(NamedTuple):
    """Of what size a world is, and what may happen in it."""

    controllers: int
    partitions: int
    loses_answers: bool


class ImpatientClient(QuorumClient):
    """Says when nobody knows what became of a change of an ISR."""

    def __init__(self, cluster: Cluster, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._cluster = cluster

    async def alter_partitions(
        self, request: controller_pb2.AlterPartitionsRequest, *, timeout_s: float
    ) -> controller_pb2.AlterPartitionsResponse:
        try:
            return await super().alter_partitions(request, timeout_s=timeout_s)
        except OutcomeUnknownError:
            self._cluster.faults.add("unknown outcome")
            self._cluster.world.note(f"b{request.broker_id} does not know what became of its change of an ISR")
            raise


class Nobody:
    """Counts nothing."""

    def produced(self, *, batches: int, size_bytes: int) -> None: ...

    def fetched(self, size_bytes: int, /) -> None: ...


class Broker:
    """One broker: a disk, and now and then a process on it."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.name = f"b{number}"
        self.host = cluster.world.network.host(self.name)
        self.disk = SimDisk()
        self.disk.make_dirs("/")
        self.rate = cluster.world.random.uniform(0.998, 1.002)
        self.wall_ms = cluster.world.random.randint(-5_000, 5_000)
        self.sync_s_max = 0.004
        self.is_up = False
        self.loop: HostLoop | None = None
        self.partitions: Partitions | None = None
        self.membership: Membership | None = None

    def start(self) -> None:
        world = self.cluster.world
        loop = HostLoop.make(
            self.host,
            rate=self.rate,
            aside_s=lambda: world.random.uniform(0.0002, self.sync_s_max),
            on_ran=self._on_ran,
            on_unhandled=self._on_unhandled,
        )
        self.cluster.loops.append(loop)
        self.is_up, self.loop = True, loop
        world.note(f"{self.name} starts")
        loop.enter(lambda: loop.create_task(self._main(loop), name="main"))

    def crash(self, *, lose_unsynced: bool) -> None:
        if not self.is_up:
            return
        world = self.cluster.world
        world.note(f"{self.name} {'loses power' if lose_unsynced else 'is killed'}")
        self.is_up = False
        world.network.crash(self.name)
        self.cluster.wires.on_crash(self.name)
        self.loop = self.partitions = self.membership = None
        if lose_unsynced:
            self.disk.power_cut(world.random)
        else:
            self.disk.kill()

    def wipe(self) -> None:
        self.crash(lose_unsynced=False)
        self.cluster.world.note(f"{self.name} is wiped")
        self.disk = SimDisk()
        self.disk.make_dirs("/")

    def now_ms(self) -> int:
        return EPOCH_MS + self.wall_ms + int(self.cluster.world.now * 1000)

    async def _main(self, loop: HostLoop) -> None:
        try:
            await self._run(loop)
        except BaseException as error:
            if self.disk.dead or self.loop is not loop or isinstance(error, asyncio.CancelledError):
                return
            leaves = list(_leaves(error))
            if any(not isinstance(leaf, QuireError) for leaf in leaves):
                self.cluster.violate(error)
                return
            # As a process that ends with an error, whose supervisor starts it again.
            self.cluster.world.note(f"{self.name} stops: {leaves[0]}")
            self.cluster.world.scheduler.call_soon(self._end)

    def _end(self) -> None:
        self.crash(lose_unsynced=False)
        self.cluster.world.scheduler.call_later(0.5, lambda: self.cluster.restart(self))

    async def _run(self, loop: HostLoop) -> None:
        world, disk, name = self.cluster.world, self.disk, self.name
        randomness = random.Random(world.random.getrandbits(64))
        disk.make_dirs(ROOT)
        image = MetadataImage()
        controllers = ImpatientClient(
            self.cluster,
            [WireMember(self.cluster.wires, name, each) for each in world.names],
            client_id=f"broker-{self.number}",
            randomness=randomness,
            config=QuorumClientConfig(attempt_ms_max=400 if self.cluster.shape.loses_answers else 1_500),
        )
        incarnation = incarnation_id(
            disk, ROOT, cluster_id=CLUSTER, broker_id=self.number, data=TOPICS, randomness=randomness
        )

        def on_changes(changes: Changes) -> None:
            replication.on_changes(changes)
            partitions.on_changes(changes)

        membership = Membership(
            controllers,
            image,
            registration=Registration(
                cluster_id=CLUSTER,
                broker_id=self.number,
                node_id=name,
                incarnation_id=incarnation,
                listeners=[
                    metadata_pb2.Listener(name=kind, protocol=protocol, host=name, port=port)
                    for kind, protocol, port in (
                        ("client", metadata_pb2.LISTENER_PROTOCOL_GRPC, 7400),
                        ("peer", metadata_pb2.LISTENER_PROTOCOL_PEER, 7410),
                    )
                ],
                features=metadata_pb2.FeatureRange(level_min=1, level_max=1),
                rack=name,
            ),
            heartbeat_ms=BEAT_MS,
            randomness=randomness,
            log_ends=lambda: partitions.log_ends(),
            on_changes=on_changes,
            on_registered=lambda _: partitions.on_registered(),
            config=MembershipConfig(silence_ms_max=2_500, register_ms_max=5_000, backoff_ms_max=500),
        )
        replication = Replication(
            image,
            controllers,
            broker_id=self.number,
            local=NodeIdentity(CLUSTER, name),
            network=self.host,
            listen=Address(name, 7410),
            randomness=randomness,
            broker_epoch=lambda: membership.broker_epoch,
            replica_of=lambda key: partitions.replica_of(key),
            replicas=lambda: partitions.replicas(),
            link=LinkConfig(ping_ms=100, silence_ms_max=600, backoff_ms_max=200, backoff_ms_min=20),
            propose_s_max=PROPOSE_S_MAX if self.cluster.shape.loses_answers else 600.0,
        )
        partitions = Partitions(
            image,
            broker_id=self.number,
            disk=disk,
            root=ROOT,
            pool=None,  # type: ignore[arg-type]  # the loop does what is done aside
            now_ms=self.now_ms,
            may_lead=membership.may_lead,
            broker_epoch=lambda: membership.broker_epoch,
            exchange=replication,
            replica_config=ReplicaConfig(
                lag_ms_max=2_000, ack_ms_max=300, slow_ms_min=500, recovery_ms=1_000, proposal_ms_min=200
            ),
            on_applied=membership.on_applied,
            on_gone=membership.confirm_deletion,
            register_anew=membership.register_anew,
            waiting_bytes_max=1 << 20,
            removal_ms=1_000,
        )
        await partitions.load()
        answers = Answers(Memory(process_bytes_max=1 << 24, connection_bytes_max=1 << 24))
        producing = Producing(partitions, answers, has_room=lambda: True, now_ms=self.now_ms, observer=Nobody())
        fetching = Fetching(Reading(partitions, answers.turns, observer=Nobody()), answers)

        receive = with_raw(broker_pb2.ProduceRequest)

        async def unary(method: str, request: bytes) -> bytes:
            match method:
                case "Produce":
                    stored = await producing.produce(receive(request), SimContext())
                    return stored.SerializeToString()
                case "Fetch":
                    fetched = await fetching.fetch(broker_pb2.FetchRequest.FromString(request), SimContext())
                    return fetched.SerializeToString()
                case "InitProducer":
                    return str(await membership.next_producer_id()).encode()
            raise InvariantViolation(method)

        replication.start()
        self.partitions, self.membership = partitions, membership
        self.cluster.wires.serve(name, Service(loop, unary, _no_streams))
        async with asyncio.TaskGroup() as group:
            group.create_task(membership.run())
            group.create_task(partitions.run())
            group.create_task(replication.run())

    def _on_ran(self) -> None:
        if self.disk.dead:
            self.cluster.world.scheduler.call_soon(self._end_with_disk)
            return
        self.cluster.look_at(self)

    def _end_with_disk(self) -> None:
        if self.disk.dead:
            self.crash(lose_unsynced=True)

    def _on_unhandled(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if self.disk.dead or not self.is_up:
            return
        if isinstance(error, Violation):
            raise error
        raise Violation(f"{self.name}: {context.get('message')}: {error!r}") from error


class SimContext:
    """What a handler uses of gRPC's context, for a call: its answer is taken when the task that serves it ends."""

    def peer(self) -> str:
        return "sim"

    def time_remaining(self) -> float | None:
        return None

    async def read(self) -> object:
        raise InvariantViolation("a call has one request")

    async def write(self, message: object, /) -> None:
        raise InvariantViolation("a call has one answer")


async def _no_streams(method: str, request: bytes) -> AsyncIterator[bytes]:
    raise InvariantViolation(method)
    yield b""


@dataclass
class Sent:
    """A batch that a client has sent, once or more often."""

    values: list[bytes]
    partition: int
    sequence: int
    acked_at: int | None = None


class Client:
    """Sends batches of unique values, one after the other to each partition, each until it is acknowledged."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.name = f"client{number}"
        self.number = number
        self.sent: list[Sent] = []
        self.done = False
        world = cluster.world
        self._chance = random.Random(world.random.getrandbits(64))
        self.loop = HostLoop.make(
            world.network.host(self.name),
            rate=1.0,
            aside_s=lambda: 0.0,
            on_ran=lambda: None,
            on_unhandled=cluster.on_unhandled,
        )

    def start(self) -> None:
        self.loop.enter(lambda: self.loop.create_task(self._main()))

    async def _main(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for partition in self.cluster.used:
                    group.create_task(self._produce(partition))
                    group.create_task(self._read(partition))
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError):
                self.cluster.violate(error)

    async def _produce(self, partition: int) -> None:
        producer_id = await self._producer_id()
        sequence = count = 0
        while not self.cluster.is_over:
            values = [
                b"%d-%d-%d" % (self.number, partition, count + each) for each in range(self._chance.randint(1, 3))
            ]
            count += len(values)
            sent = Sent(values, partition, sequence)
            self.sent.append(sent)
            options: BatchOptions = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
            batch = encode_columns(values, timestamp_ms=EPOCH_MS, **options)
            sequence += len(values)
            await self._send(sent, batch)
            await asyncio.sleep(self._chance.uniform(0.0, 0.15))

    async def _send(self, sent: Sent, batch: bytes) -> None:
        request = broker_pb2.ProduceRequest(acks=durability_pb2.ACKS_ALL, wait_ms_max=1_000)
        entry = request.partitions.add(topic=REF, partition=sent.partition)
        entry.records.raw_batches = batch
        data = request.SerializeToString()
        broker = self._chance.choice(self.cluster.brokers)
        while True:
            try:
                answer = broker_pb2.ProduceResponse.FromString(
                    await self.cluster.wires.call(self.name, broker.name, "Produce", data, timeout_s=1.5)
                ).partitions[0]
            except QuireError:
                answer = None
            if answer is not None and not answer.HasField("refusal"):
                sent.acked_at = answer.base_offset
                self.cluster.on_acked(sent)
                return
            if answer is not None and answer.refusal.reason in ("OUT_OF_ORDER_SEQUENCE", "PRODUCER_FENCED"):
                raise Violation(f"{self.cluster.seed}: {self.name} is refused: {answer.refusal.message}")
            broker = self._chance.choice(self.cluster.brokers)
            await asyncio.sleep(self._chance.uniform(0.01, 0.1))

    async def _producer_id(self) -> int:
        while True:
            broker = self._chance.choice(self.cluster.brokers)
            try:
                return int(await self.cluster.wires.call(self.name, broker.name, "InitProducer", b"", timeout_s=1.0))
            except QuireError:
                await asyncio.sleep(0.1)

    async def _read(self, partition: int) -> None:
        offset = 0
        while not self.cluster.is_over:
            broker = self._chance.choice(self.cluster.brokers)
            request = broker_pb2.FetchRequest(wait_ms_max=200, form=broker_pb2.RECORD_FORM_RAW)
            request.partitions.add(topic=REF, partition=partition, offset=offset)
            try:
                answer = broker_pb2.FetchResponse.FromString(
                    await self.cluster.wires.call(
                        self.name, broker.name, "Fetch", request.SerializeToString(), timeout_s=1.0
                    )
                ).partitions[0]
            except QuireError:
                continue
            if answer.HasField("refusal"):
                if answer.refusal.reason == "OFFSET_OUT_OF_RANGE":
                    raise Violation(f"{self.cluster.seed}: {answer.refusal.message}")
                await asyncio.sleep(0.05)
                continue
            for position, header in iter_batches(answer.records.raw_batches):
                self.cluster.on_committed(partition, header.base_offset, header.crc, f"a reader at {broker.name}")
                del position
            offset = answer.next_offset


@dataclass
class Cluster:
    seed: int
    is_over: bool = False
    leaders: dict[tuple[PartitionKey, int], str] = field(default_factory=dict)
    committed: dict[tuple[int, int], int] = field(default_factory=dict)
    """(partition, base offset) → CRC of the batch that was committed there."""
    marks: dict[tuple[str, int, PartitionKey], int] = field(default_factory=dict)
    faults: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.shape = shape_of(self.seed)
        self.world = World(
            seed=self.seed,
            size=self.shape.controllers,
            make_machine=ControllerState,
            config=RaftConfig(tick_ms=20, snapshot_entries=60, chunk_bytes=2048),
            on_start=self._on_start,
        )
        self.wires = Wires(self.world.network, self._is_answer_lost)
        self._answers_lost_until = 0.0
        self._steps = self._heals = 0
        everything = range(self.shape.partitions)
        self.used = sorted(self.world.random.sample(everything, min(len(everything), PARTITIONS_USED_MAX)))
        self.brokers = [Broker(self, number) for number in range(1, BROKERS + 1)]
        self.clients = [Client(self, number) for number in range(1, 3)]
        self.loops: list[HostLoop] = [client.loop for client in self.clients]
        setattr(replica_module, "fail_fast", self._on_bug)  # noqa: B010 -- it would end this process

    @property
    def trace(self) -> list[str]:
        return self.world.trace

    # -- the run ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        try:
            self._run()
        finally:
            for loop in self.loops:
                loop.dispose()

    def _run(self) -> None:
        world = self.world
        for name in world.names:
            world.start(name)
        for broker in self.brokers:
            broker.start()
        self._create_topic()
        world.run_until(self._all_led, within=HEAL_S, what="a leader for each partition")
        for client in self.clients:
            client.start()
        end = world.now + FAULTS_S
        while world.now < end:
            self._fault()
            world.run_for(world.random.uniform(0.1, 0.8))
        self._heal()
        acked = self.acked_count
        world.run_until(lambda: self.acked_count > acked + 5, within=HEAL_S, what="progress after all was healed")
        self.is_over = True
        world.run_until(self._is_quiet, within=HEAL_S, what="equal replicas after all was healed")
        self._check_everything()

    @property
    def acked_count(self) -> int:
        return sum(sent.acked_at is not None for client in self.clients for sent in client.sent)

    # -- checks ----------------------------------------------------------------------------------------------------

    def look_at(self, broker: Broker) -> None:
        """After each step of a broker."""
        if broker.partitions is None or not broker.is_up:
            return
        self._steps += 1
        everything = self._steps % STEPS_A_LOOK == 0
        for partition in broker.partitions:
            if partition.closed or not (everything or partition.key.partition in self.used):
                continue
            epoch = partition.leader_epoch
            if epoch >= 0:
                me = f"{broker.name}/{broker.host.life}"
                leader = self.leaders.get((partition.key, epoch))
                if leader is None:
                    leader = self.leaders[partition.key, epoch] = me
                    where = f"end {partition.writer.log.end_offset} high watermark {partition.high_watermark}"
                    self.world.note(f"{broker.name} leads {partition} in epoch {epoch}: {where}")
                if leader != me:
                    raise Violation(f"{self.seed}: {broker.name} and {leader} both lead {partition} in epoch {epoch}")
                self._check_lease(broker, partition)
            self._look_at_high_watermark(broker, partition)

    def _check_lease(self, broker: Broker, partition: Partition) -> None:
        if broker.membership is None or not broker.membership.may_lead():
            return
        for other in self.brokers:
            if other is broker or not other.is_up or other.partitions is None or other.membership is None:
                continue
            theirs = other.partitions.find(partition.key)
            if theirs is not None and theirs.leader_epoch >= 0 and other.membership.may_lead():
                raise Violation(f"{self.seed}: {broker.name} and {other.name} both may lead {partition}")

    def _look_at_high_watermark(self, broker: Broker, partition: Partition) -> None:
        place = (broker.name, broker.host.life, partition.key)
        before, now = self.marks.get(place, 0), partition.high_watermark
        if now == before:
            return
        if now < before:
            raise Violation(f"{self.seed}: the high watermark of {partition} at {broker.name} fell to {now}")
        log = partition.writer.log
        if log.offline is not None or log.quarantined:
            return
        offset = max(before, log.start_offset)
        while offset < now:
            batches = log.read(offset, bytes_max=1 << 16, end_offset=now)
            if not batches.data:
                break
            for _, header in iter_batches(batches.data, check=False):
                self.on_committed(partition.key.partition, header.base_offset, header.crc, broker.name)
            offset = batches.end_offset
        self.marks[place] = now

    def on_committed(self, partition: int, base_offset: int, crc: int, where: str) -> None:
        before = self.committed.setdefault((partition, base_offset), crc)
        if before != crc:
            raise Violation(f"{self.seed}: offset {base_offset} of partition {partition} is another one at {where}")

    def on_acked(self, sent: Sent) -> None:
        self.world.note(f"acknowledged: {sent.values[0].decode()} at {sent.partition}/{sent.acked_at}")
        if (sent.partition, sent.acked_at) not in self.committed:
            raise Violation(f"{self.seed}: {sent.values} is acknowledged at {sent.acked_at} and not committed")

    def violate(self, error: BaseException) -> None:
        """End the run because of this, whichever task has found it."""
        first = next(_leaves(error))

        def end() -> None:
            raise first if isinstance(first, Violation) else Violation(f"{self.seed}: {first!r}") from error

        self.world.scheduler.call_soon(end)

    def on_unhandled(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        raise Violation(f"{self.seed}: {context.get('message')}: {error!r}") from error

    def _on_bug(self, error: BaseException) -> None:
        raise Violation(f"{self.seed}: a bug: {error!r}") from error

    def _all_led(self) -> bool:
        led = {
            partition.key.partition
            for broker in self.brokers
            if broker.is_up and broker.partitions is not None and broker.membership is not None
            for partition in broker.partitions
            if partition.leader_epoch >= 0 and broker.membership.may_lead()
        }
        return len(led) == self.shape.partitions

    def _is_quiet(self) -> bool:
        """Everything that was sent is acknowledged, and all replicas have committed all of it."""
        for client in self.clients:
            if any(sent.acked_at is None for sent in client.sent):
                return False
        ends: dict[int, set[tuple[int, int]]] = {}
        for broker in self.brokers:
            if not broker.is_up or broker.partitions is None:
                return False
            own = [each for each in broker.partitions if not each.closed]
            if len(own) < self.shape.partitions:
                return False
            for each in own:
                ends.setdefault(each.key.partition, set()).add((each.writer.log.end_offset, each.high_watermark))
        return all(len(each) == 1 and len(set(min(each))) == 1 for each in ends.values())

    def _check_everything(self) -> None:
        for index in self.used:
            contents = set()
            for broker in self.brokers:
                if broker.partitions is None:
                    raise Violation(f"{self.seed}: {broker.name} is down")
                partition = next(each for each in broker.partitions if each.key.partition == index)
                log = partition.writer.log
                data, offset = b"", log.start_offset
                while offset < log.end_offset:
                    batches = log.read(offset, bytes_max=1 << 20)
                    data, offset = data + bytes(batches.data), batches.end_offset
                contents.add(data)
            if len(contents) != 1:
                raise Violation(f"{self.seed}: the replicas of partition {index} differ")
            self._check_values(index, contents.pop())

    def _check_values(self, index: int, data: bytes) -> None:
        found: dict[bytes, int] = {}
        for position, _ in iter_batches(data):
            for record in decode(data, position):
                value = record.value or b""
                if value in found:
                    raise Violation(f"{self.seed}: {value!r} is there twice, at {found[value]} and {record.offset}")
                found[value] = record.offset
        for client in self.clients:
            last = -1
            for sent in client.sent:
                if sent.partition == index and sent.acked_at is not None:
                    for number, value in enumerate(sent.values):
                        if found.get(value) != sent.acked_at + number:
                            raise Violation(
                                f"{self.seed}: {value!r} was acknowledged at {sent.acked_at + number}, and is at "
                                f"{found.get(value)}"
                            )
                    if sent.acked_at <= last:
                        raise Violation(f"{self.seed}: {sent.values} lies before what was sent earlier")
                    last = sent.acked_at

    # -- what happens ----------------------------------------------------------------------------------------------

    def _fault(self) -> None:
        world, chance = self.world, self.world.random
        everyone = [*world.names, *(broker.name for broker in self.brokers)]
        broker = chance.choice(self.brokers)
        fault = chance.choice(
            [
                *(["lost answers"] * 3 if self.shape.loses_answers else []),
                "partition", "one way", "one way", "bridge", "broken links", "pause", "pause", "kill", "kill",
                "power", "power all", "wipe", "slow disk", "clock", "disk full", "controller", "late answers",
                "heal", "heal", "heal",
            ]
        )  # fmt: skip
        self.faults.add(fault)
        match fault:
            case "partition":
                cut = chance.sample(everyone, chance.randint(1, len(everyone) - 1))
                world.note(f"partition {cut} from the rest")
                world.network.partition(cut, [name for name in everyone if name not in cut])
            case "one way":
                source, target = chance.sample(everyone, 2)
                world.note(f"cut {source} to {target}")
                world.network.cut(source, target)
            case "bridge":
                names = chance.sample(everyone, len(everyone))
                middle = len(names) // 2
                world.note(f"bridge {names[:middle]} - {names[middle]} - {names[middle + 1 :]}")
                world.network.partition(names[:middle], names[middle + 1 :])
            case "broken links":
                one, other = chance.sample([each.name for each in self.brokers], 2)
                world.note(f"connections of {one} and {other} break")
                world.network.break_connections(one, other)
            case "pause":
                if broker.is_up:
                    world.note(f"{broker.name} is stopped")
                    broker.host.pause()
                    world.scheduler.call_later(chance.uniform(0.1, 2.5), broker.host.resume)
            case "kill":
                self._crash(broker, lose_unsynced=False)
            case "power":
                self._crash(broker, lose_unsynced=True)
            case "power all":
                for each in self.brokers:
                    self._crash(each, lose_unsynced=True)
            case "wipe":
                if self._may_wipe(broker):
                    broker.wipe()
                    world.scheduler.call_later(chance.uniform(0.1, 1.5), lambda: self.restart(broker))
            case "slow disk":
                for each in self.brokers if chance.random() < 0.5 else [broker]:
                    world.note(f"{each.name} has a slow disk")
                    each.sync_s_max = chance.choice([0.05, 0.5])
            case "clock":
                broker.wall_ms += chance.choice([-3_600_000, 3_600_000])
                world.note(f"the wall clock of {broker.name} jumps")
            case "disk full":
                world.note(f"the disk of {broker.name} is full")
                broker.disk.capacity_bytes = broker.disk.used_bytes() + chance.randint(0, 500)
            case "controller":
                name = chance.choice(world.names)
                world.crash(name, lose_unsynced=chance.random() < 0.5)
                self.wires.on_crash(name)
                world.scheduler.call_later(chance.uniform(0.1, 1.5), lambda: self._restart_controller(name))
            case "late answers":
                self._hold_answers(broker, chance.uniform(0.1, BEAT_ANSWER_S_MAX))
            case "lost answers":
                self._answers_lost_until = world.now + chance.uniform(0.5, 3.0)
                world.note("answers of the controllers get lost")
            case "heal":
                self._heal()

    def _hold_answers(self, broker: Broker, held_s: float) -> None:
        """What the controllers answer a broker arrives late; then nothing of them and the other brokers does."""
        world, heals = self.world, self._heals
        world.note(f"answers to {broker.name} are held up, then it is cut off")
        for name in world.names:
            world.network.cut(name, broker.name)

        def let_go() -> None:
            if self._heals == heals:
                self._heal_network()
                world.scheduler.call_later(0.05, cut_off)

        def cut_off() -> None:
            if self._heals != heals:
                return  # all is well again, and is to stay so
            others = [each.name for each in self.brokers if each is not broker]
            world.network.partition([broker.name], [*world.names, *others])

        world.scheduler.call_later(held_s, let_go)

    def _heal_network(self) -> None:
        self.world.network.heal()
        self.wires.on_heal()

    def _is_answer_lost(self, method: str) -> bool:
        """Of controllers, to brokers: what was asked is done, and whoever asked does not hear of it."""
        if self.world.now >= self._answers_lost_until or not method.endswith(("AlterPartitions", "UnfenceBroker")):
            return False
        return self.world.random.random() < 0.95

    def _crash(self, broker: Broker, *, lose_unsynced: bool) -> None:
        broker.crash(lose_unsynced=lose_unsynced)
        self.world.scheduler.call_later(self.world.random.uniform(0.1, 1.5), lambda: self.restart(broker))

    def _tables(self) -> Any:
        """The controller's, where there is one only: of three, one could be behind."""
        members = [member for member in self.world.running() if member.machine is not None]
        return None if len(self.world.names) > 1 or not members else _inner(members[0]).tables

    def _may_wipe(self, broker: Broker) -> bool:
        """Whether all are in sync, and one disk may go: then each of the others has everything, come what may."""
        tables = self._tables()
        if tables is None or "wiped" in self.faults or not all(each.is_up for each in self.brokers):
            return False
        if any(len(each.isr) < BROKERS for each in tables.partitions.values()):
            return False
        self.faults.add("wiped")
        return True

    def restart(self, broker: Broker) -> None:
        if not broker.is_up:
            broker.start()

    def _restart_controller(self, name: str) -> None:
        if self.world.members[name].node is None:
            self.world.start(name)

    def _heal(self) -> None:
        self.world.note("heal")
        self._heals += 1
        self._answers_lost_until = 0.0
        self._heal_network()
        for name in self.world.names:
            self._restart_controller(name)
        for broker in self.brokers:
            broker.disk.capacity_bytes = None
            broker.sync_s_max = 0.004
            broker.host.resume()
            self.restart(broker)

    # -- controllers -----------------------------------------------------------------------------------------------

    def _on_start(self, world: World, member: Member) -> None:
        node, machine = member.node, member.machine
        if node is None or machine is None or not isinstance(machine.inner, ControllerState):
            raise InvariantViolation("a member without a state machine")
        host, state = world.network.host(member.name), machine.inner
        randomness = random.Random(world.random.getrandbits(64))
        runtime = ControllerRuntime(
            quorum=node,
            state=state,
            scheduler=host,
            randomness=randomness,
            config=RuntimeConfig(
                cluster_id=CLUSTER,
                member_id=member.name,
                lease_ms=LEASE_MS,
                duties=DutyConfig(election_wait_ms=1_000, preferred_wait_ms=3_000, repeat_ms=500),
            ),
        )
        loop = HostLoop.make(
            host,
            rate=1.0,
            aside_s=lambda: 0.0,
            on_ran=lambda: None,
            on_unhandled=lambda context: None if member.node is not node else self.on_unhandled(context),
        )
        self.loops.append(loop)
        member.extra = runtime
        node.observe(runtime.on_turn)
        runtime.start()

        def serve() -> None:
            watches = Watches(runtime, state, is_current=lambda: node.leader_id is not None, alive_ms=500)
            brokers = ControllerServicer(
                runtime,
                state,
                watches,
                randomness=randomness,
                addresses={name: f"{name}:7401" for name in world.names},
            )
            admin = ControllerAdminServicer(
                runtime,
                state,
                randomness=randomness,
                describe_quorum=controller_pb2.DescribeQuorumResponse,
                feature_level_max=_one,
            )
            self.wires.serve(member.name, Service(loop, _unary(brokers, admin), _watching(brokers)))

        loop.enter(serve)

    def _create_topic(self) -> None:
        request = controller_pb2.CreateTopicRequest(
            name=TOPIC, partition_count=self.shape.partitions, replication_factor=3
        )
        request.config.min_isr = 2
        request.config.segment_bytes = 16 * 1024
        request.config.retention_ms = -1
        client = self.clients[0]

        async def create() -> None:
            while True:
                name = self.world.random.choice(self.world.names)
                try:
                    await self.wires.call(
                        client.name,
                        name,
                        "/quire.v1.ControllerAdminService/CreateTopic",
                        request.SerializeToString(),
                        timeout_s=1.0,
                    )
                except QuireError as error:
                    if error.reason == "TOPIC_ALREADY_EXISTS":
                        return
                    await asyncio.sleep(0.1)
                else:
                    return

        client.loop.enter(lambda: client.loop.create_task(create()))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


async def _one() -> int:
    return 1


def _inner(member: Member) -> Any:
    return None if member.machine is None else member.machine.inner


def _unary(brokers: ControllerServicer, admin: ControllerAdminServicer) -> Callable[[str, bytes], Any]:
    async def unary(path: str, data: bytes) -> bytes:
        name = path.rpartition("/")[2]
        request = getattr(controller_pb2, f"{name}Request").FromString(data)
        servicer: object = brokers if "/quire.v1.ControllerService/" in path else admin
        answer = await getattr(servicer, name)(request, None)
        return bytes(answer.SerializeToString())

    return unary


def _watching(brokers: ControllerServicer) -> Callable[[str, bytes], AsyncIterator[bytes]]:
    async def streaming(path: str, data: bytes) -> AsyncIterator[bytes]:
        async for answer in brokers.WatchMetadata(controller_pb2.WatchMetadataRequest.FromString(data), None):
            yield answer.SerializeToString()

    return streaming
