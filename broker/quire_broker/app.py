"""One broker process: everything is built here, started in order, and stopped in the opposite one.

start   lock ──► incarnation ──► logs ──► gRPC ports ──► registered ──► metadata applied ──► unfenced ──► healthy
stop    not healthy ──► streams end, calls are drained ──► leaderships given up, fenced ──► logs ──► lock
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from quire.config import Config
from quire.config.broker import PEER_LISTENER, BrokerListener, broker_id
from quire.disk.os_disk import OsDisk
from quire.errors import QuireError, UnavailableError
from quire.link import tls
from quire.link.config import LinkConfig
from quire.link.network import Address
from quire.link.tcp import TcpNetwork
from quire.process import logs
from quire.process.lock import DirectoryLock
from quire.process.rpc import permissions, server
from quire.process.rpc.gate import Gate, Limits
from quire.process.run import Stop
from quire.process.sidedoor import Health, SideDoor
from quire.v1 import broker_pb2, controller_pb2, metadata_pb2
from quire_broker.adapters.controllers import GrpcMember
from quire_broker.adapters.metrics import Metrics
from quire_broker.log.place import TOPICS
from quire_broker.replica.config import ReplicaConfig
from quire_broker.runtime.budget import Memory
from quire_broker.runtime.controllers import QuorumClient
from quire_broker.runtime.incarnation import incarnation_id
from quire_broker.runtime.kernel_syncs import KernelSyncs
from quire_broker.runtime.membership import Membership, Registration
from quire_broker.runtime.partitions import ATTRIBUTES_TAKEN, Partitions
from quire_broker.runtime.replication import Replication
from quire_broker.service import hangup
from quire_broker.service.answers import Answers
from quire_broker.service.broker import BrokerService
from quire_broker.service.fetch import Fetching
from quire_broker.service.follow import Following
from quire_broker.service.followers import Followers
from quire_broker.service.forward import Forwarding
from quire_broker.service.offsets import Offsets
from quire_broker.service.produce import Producing
from quire_broker.service.produce_stream import ProduceStreams
from quire_broker.service.reading import Reading
from quire_broker.service.subscribe import Subscriptions
from quire_broker.state.image import Changes, MetadataImage

FOLDER: Final = "broker"
FEATURES: Final = metadata_pb2.FeatureRange(level_min=1, level_max=1)
BACKOFF_MS_MAX: Final = 500
"""Between attempts to reach another broker: replicas wait for it."""
DRAIN_MS_MAX: Final = 3_000
"""How long calls that are under way may take when the process stops."""
SYNCS_AT_ONCE_MAX: Final = 4
"""How many syncs the disk has to do at once."""
RETENTION_S: Final = 30.0
ROOM_S: Final = 0.5
"""How often the disk's free room is looked at."""

SERVICES: Final = (
    broker_pb2.DESCRIPTOR.services_by_name["BrokerService"],
    controller_pb2.DESCRIPTOR.services_by_name["ControllerAdminService"],
    health_pb2.DESCRIPTOR.services_by_name["Health"],
    reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"],
)
"""All that is served."""

_log = logs.get("broker")
_problems = logs.Throttled(_log)


async def serve(config: Config, stop: Stop) -> None:
    """Be a broker of the cluster until asked to stop. Raises QuireError for what it cannot go on without."""
    number = config.broker.id or broker_id(config.node.id)  # before the directory is made: who is this?
    with DirectoryLock(config.node.data_dir / FOLDER):
        await Broker(config, number).run(stop)


class Broker:
    """To be made on the running loop."""

    def __init__(self, config: Config, number: int) -> None:
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._number = number
        section, files = config.broker, config.tls.files
        randomness = random.SystemRandom()
        root = str(config.node.data_dir / FOLDER)
        disk = OsDisk()
        disk.make_dirs(root)
        self._disk, self._root = disk, root
        self._healthy = False
        self._has_room = True
        self._stopping = False

        self._metrics = Metrics()
        self._pool = ThreadPoolExecutor(SYNCS_AT_ONCE_MAX, thread_name_prefix="disk")
        self._kernel = _kernel_syncs()
        self._image = MetadataImage()
        incarnation = incarnation_id(
            disk, root, cluster_id=config.node.cluster_id, broker_id=number, data=TOPICS, randomness=randomness
        )
        self._members = [GrpcMember(address, tls=files) for address in config.controllers]
        self._controllers = QuorumClient(self._members, client_id=f"broker-{number}", randomness=randomness)
        self._membership = Membership(
            self._controllers,
            self._image,
            registration=Registration(
                broker_id=number,
                cluster_id=config.node.cluster_id,
                node_id=config.node.id,
                incarnation_id=incarnation,
                rack=config.node.rack or "",
                listeners=self._listeners(),
                features=FEATURES,
            ),
            heartbeat_ms=section.heartbeat_ms,
            randomness=randomness,
            log_ends=lambda: self._partitions.log_ends(),
            on_changes=self._on_changes,
            on_registered=lambda _: self._partitions.on_registered(),
            on_lease_lost=self._on_lease_lost,
        )
        link = LinkConfig(backoff_ms_max=BACKOFF_MS_MAX)
        self._network = TcpNetwork(
            contexts=None if files is None else tls.load(files), handshake_ms_max=link.handshake_ms_max
        )
        self._replication = Replication(
            self._image,
            self._controllers,
            broker_id=number,
            local=config.node.identity,
            network=self._network,
            listen=Address(section.peer_host, section.peer_port),
            randomness=randomness,
            broker_epoch=lambda: self._membership.broker_epoch,
            replica_of=lambda key: self._partitions.replica_of(key),
            replicas=lambda: self._partitions.replicas(),
            link=link,
        )
        self._partitions = Partitions(
            self._image,
            broker_id=number,
            disk=disk,
            root=root,
            pool=self._pool,
            kernel=self._kernel,
            now_ms=_now_ms,
            may_lead=self._membership.may_lead,
            broker_epoch=lambda: self._membership.broker_epoch,
            exchange=self._replication,
            replica_config=ReplicaConfig(
                lag_ms_max=section.replica_lag_ms_max, ack_ms_max=section.replica_ack_ms_max
            ),
            on_applied=self._membership.on_applied,
            on_gone=self._membership.confirm_deletion,
            register_anew=self._membership.register_anew,
            waiting_bytes_max=section.partition_bytes_max,
        )
        hangup.install(self._loop)
        self._memory = Memory(
            process_bytes_max=section.process_bytes_max, connection_bytes_max=section.connection_bytes_max
        )
        answers = Answers(self._memory)
        self._reading = Reading(self._partitions, answers.turns, observer=self._metrics)
        producing = Producing(
            self._partitions,
            answers,
            has_room=lambda: self._has_room,
            now_ms=_now_ms,
            observer=self._metrics,
        )
        limits = broker_pb2.BrokerLimits(
            request_bytes_max=section.request_bytes_max,
            attributes_allowed=ATTRIBUTES_TAKEN,
            connection_bytes_max=section.connection_bytes_max,
        )
        self._service = BrokerService(
            producing=producing,
            streams=ProduceStreams(producing, answers),
            fetching=Fetching(self._reading, answers),
            offsets=Offsets(self._partitions, answers),
            subscriptions=Subscriptions(self._reading, answers),
            following=Following(
                self._image, self._partitions, answers, limits=limits, has_lease=self._membership.may_lead
            ),
            followers=Followers(self._partitions, answers),
            next_producer_id=self._membership.next_producer_id,
        )
        self._forwarding = Forwarding(self._controllers, answers)
        self._health = health.aio.HealthServicer()
        self._gates: list[Gate] = []
        self._servers = [self._serve(listener) for listener in section.listeners]
        self._metrics.collect_from(self._gauges)
        self._door = SideDoor(self._metrics.registry, self._healthz)

    def _serve(self, listener: BrokerListener) -> grpc.aio.Server:
        """A server of its own for each listener: so a call is known to have come by it."""
        section = self._config.broker
        gate = Gate(
            permissions.declared(SERVICES),
            cluster_id=self._config.node.cluster_id,
            listener=listener.name,
            limits=Limits(calls_max=section.rpcs_max, streams_max=section.streams_max),
            observer=self._metrics.call_ended,
        )
        self._gates.append(gate)
        made = server.build(gate, request_bytes_max=section.request_bytes_max)
        made.add_generic_rpc_handlers((self._service.handlers(), self._forwarding.handlers()))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, made)
        reflection.enable_server_reflection([service.full_name for service in SERVICES], made)
        return made

    def _listeners(self) -> Sequence[metadata_pb2.Listener]:
        section, files = self._config.broker, self._config.tls.files
        listeners = [
            metadata_pb2.Listener(
                name=each.name,
                protocol=metadata_pb2.LISTENER_PROTOCOL_GRPC,
                host=each.advertised.host,
                port=each.advertised.port,
                tls=files is not None and not each.plain,
            )
            for each in section.listeners
        ]
        listeners.append(
            metadata_pb2.Listener(
                name=PEER_LISTENER,
                protocol=metadata_pb2.LISTENER_PROTOCOL_PEER,
                host=section.peer_advertised_host or section.peer_host,
                port=section.peer_port,
                tls=files is not None,
            )
        )
        return listeners

    # -- life ------------------------------------------------------------------------------------------------------

    async def run(self, stop: Stop) -> None:
        try:
            await self._start()
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._membership.run(), name="membership"),
                    group.create_task(self._partitions.run(), name="partitions"),
                    group.create_task(self._replication.run(), name="replication"),
                    group.create_task(self._keep_checking(), name="health"),
                    group.create_task(self._keep_retention(), name="retention"),
                    group.create_task(self._watch_room(), name="room"),
                ]
                await stop.wait()
                await self._stop()
                for task in tasks:
                    task.cancel()
        finally:
            await self._close()

    async def _start(self) -> None:
        section, metrics = self._config.broker, self._config.metrics
        await self._partitions.load()
        for listener, each in zip(section.listeners, self._servers, strict=True):
            files = None if listener.plain else self._config.tls.files
            server.listen(each, listener.address, tls=files, plain_is_meant=listener.plain)
        self._replication.start()
        if metrics.broker_port:
            await self._door.start(Address(metrics.host, metrics.broker_port))
        await self._set_health(False)
        for each in self._servers:
            await each.start()
        _log.info(
            "listening",
            broker=self._number,
            listeners=", ".join(map(str, section.listeners)),
            controllers=", ".join(member.address for member in self._members),
        )

    async def _stop(self) -> None:
        self._stopping = True
        self._healthy = False
        budget_s = self._config.node.stop_ms_max / 1000
        with suppress(TimeoutError):
            async with asyncio.timeout(budget_s / 4):
                await self._health.enter_graceful_shutdown()
        self._service.stop()
        grace_s = min(DRAIN_MS_MAX / 1000, budget_s / 4)
        await asyncio.gather(*(each.stop(grace_s) for each in self._servers))
        self._partitions.resign_all()
        with suppress(TimeoutError, QuireError):
            async with asyncio.timeout(budget_s / 4):
                await self._membership.leave()

    async def _close(self) -> None:
        await asyncio.gather(*(each.stop(None) for each in self._servers))
        await self._door.close()
        self._reading.close()
        await self._replication.close()
        await self._network.close()
        await self._partitions.close()
        await self._controllers.close()
        self._pool.shutdown()
        if self._kernel is not None:
            self._kernel.close()

    def _on_changes(self, changes: Changes) -> None:
        self._replication.on_changes(changes)
        self._partitions.on_changes(changes)

    def _on_lease_lost(self) -> None:
        for partition in self._partitions:
            partition.wake()  # whoever waits for records here is to wait elsewhere
        if self._stopping:
            return
        _problems.warning("the lease has ended: nothing is served until the controllers answer again")

    # -- watching itself -------------------------------------------------------------------------------------------

    async def _keep_checking(self) -> None:
        while True:
            await self._set_health(self._membership.may_lead() and not self._stopping)
            await asyncio.sleep(ROOM_S / 2)

    async def _set_health(self, is_serving: bool) -> None:
        if is_serving and not self._healthy:
            _log.info("serving", broker_epoch=self._membership.broker_epoch, version=self._image.version)
        self._healthy = is_serving
        serving = health_pb2.HealthCheckResponse.ServingStatus
        for service in ("", *(each.full_name for each in SERVICES[:2])):
            await self._health.set(service, serving.SERVING if is_serving else serving.NOT_SERVING)

    async def _keep_retention(self) -> None:
        while True:
            await asyncio.sleep(RETENTION_S)
            await self._partitions.apply_retention()

    async def _watch_room(self) -> None:
        while True:
            try:
                free_bytes = self._disk.free_bytes(self._root)
            except QuireError as error:
                _problems.warning("the disk does not say how much room it has", why=error.message)
            else:
                has_room = free_bytes >= self._config.broker.disk_free_bytes_min
                if has_room is not self._has_room:
                    _log.warning(
                        "the disk has room again" if has_room else "the disk is almost full", free_bytes=free_bytes
                    )
                self._has_room = has_room
            await asyncio.sleep(ROOM_S)

    def _healthz(self) -> Health:
        details: dict[str, object] = {
            "node": self._config.node.id,
            "broker": self._number,
            "broker_epoch": self._membership.broker_epoch,
            "metadata_version": self._image.version,
            "partitions": sum(1 for _ in self._partitions),
            "leads": sum(each.leader_epoch >= 0 for each in self._partitions),
            "disk_has_room": self._has_room,
        }
        return Health(self._healthy, details)

    def _gauges(self) -> Iterator[tuple[str, str, float]]:
        partitions = list(self._partitions)
        yield "quire_broker_metadata_version", "The metadata version here.", self._image.version
        yield "quire_broker_may_lead", "1 while it holds a lease.", self._membership.may_lead()
        yield "quire_broker_partitions", "Partitions of which it has a copy.", len(partitions)
        yield (
            "quire_broker_partitions_led",
            "Those that it leads.",
            sum(each.leader_epoch >= 0 for each in partitions),
        )
        offline = sum(each.is_offline for each in partitions)
        yield "quire_broker_partitions_offline", "Those whose log failed; a restart opens it again.", offline
        yield "quire_broker_waiting_bytes", "Bytes of requests that are being served.", self._memory.used_bytes
        yield "quire_broker_disk_has_room", "0 while the disk is below its watermark.", self._has_room
        calls, streams = sum(gate.call_count for gate in self._gates), sum(gate.stream_count for gate in self._gates)
        yield "quire_rpc_calls_in_progress", "Calls that are being served.", calls
        yield "quire_rpc_streams_in_progress", "Streams that are being served.", streams


def _kernel_syncs() -> KernelSyncs | None:
    try:
        return KernelSyncs()
    except UnavailableError as error:
        _log.info("files are synced on threads", why=error.message)
        return None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
