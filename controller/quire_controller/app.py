"""One controller process: everything is built here, started in order, and stopped in the opposite one.

start   lock ──► state from disk ──► gRPC port ──► peers ──► runtime ──► gRPC serves ──► health: SERVING
stop    health: NOT_SERVING ──► leadership handed over ──► streams end, calls are drained ──► member ──► lock
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from quire.config import Config
from quire.disk.os_disk import OsDisk
from quire.errors import InvariantViolation, QuireError, UnavailableError
from quire.link import tls
from quire.link.config import LinkConfig
from quire.link.network import Address
from quire.link.tcp import TcpNetwork
from quire.process import logs
from quire.process.lock import DirectoryLock
from quire.process.rpc import permissions, server
from quire.process.rpc.gate import Gate, Limits
from quire.process.run import Stop, fail_fast
from quire.process.sidedoor import Health, SideDoor
from quire.v1 import controller_pb2, controller_pb2_grpc, metadata_pb2
from quire_controller.adapters.members import OtherMembers
from quire_controller.adapters.metrics import Metrics
from quire_controller.adapters.thread import BackgroundThread
from quire_controller.raft.config import RaftConfig
from quire_controller.raft.node import RaftNode
from quire_controller.raft.peers import LinkPeers
from quire_controller.runtime.controller import ControllerRuntime, RuntimeConfig
from quire_controller.service.brokers import ControllerServicer
from quire_controller.service.cluster import ControllerAdminServicer
from quire_controller.service.watching import Watches
from quire_controller.state.duties import DutyConfig
from quire_controller.state.limits import FEATURE_LEVEL_MAX, FEATURE_LEVEL_MIN
from quire_controller.state.machine import ControllerState

FOLDER: Final = "controller"
RAFT_FOLDER: Final = "raft"
LISTENER: Final = "controller"
NEVER_MS: Final = 10**12

HEALTH_MS: Final = 500
"""How often a member asks the quorum whether it is up to date."""
CURRENT_MS_MAX: Final = 3_000
"""A member that got no such answer for so long sends those who follow it elsewhere."""
BACKOFF_MS_MAX: Final = 500
"""Between attempts to reach another member: there are few, and each counts for the majority."""
DRAIN_MS_MAX: Final = 3_000
"""How long calls that are under way may take when the process stops."""

SERVICES: Final = (
    controller_pb2.DESCRIPTOR.services_by_name["ControllerService"],
    controller_pb2.DESCRIPTOR.services_by_name["ControllerAdminService"],
    health_pb2.DESCRIPTOR.services_by_name["Health"],
    reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"],
)
"""All that is served."""

_ROLES: Final = {
    "follower": controller_pb2.QUORUM_ROLE_FOLLOWER,
    "candidate": controller_pb2.QUORUM_ROLE_CANDIDATE,
    "leader": controller_pb2.QUORUM_ROLE_LEADER,
    "learner": controller_pb2.QUORUM_ROLE_LEARNER,
}

_log = logs.get("controller")
_problems = logs.Throttled(_log)


async def serve(config: Config, stop: Stop) -> None:
    """Be a member of the quorum until asked to stop. Raises QuireError for what it cannot go on without."""
    config.controller.quorum(config.node.id)  # before the directory is made: is this node a member at all?
    with DirectoryLock(config.node.data_dir / FOLDER):
        await Controller(config).run(stop)


class Controller:
    """To be made on the running loop. Opens the directory, and raises DamagedFileError for what it finds there."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._loop = asyncio.get_running_loop()
        section = config.controller
        self._members = section.quorum(config.node.id)
        self._me = next(member for member in self._members if member.id == config.node.id)
        others = {member.id: member for member in self._members if member.id != config.node.id}
        randomness = random.SystemRandom()
        self._fatal: asyncio.Future[None] = self._loop.create_future()
        self._turned = asyncio.Event()
        self._caught_up_at: float | None = None
        self._is_serving = False

        files = config.tls.files
        link = LinkConfig(backoff_ms_max=BACKOFF_MS_MAX)
        self._metrics = Metrics(self._loop.time)
        self._thread = BackgroundThread("snapshot")
        self._network = TcpNetwork(
            contexts=None if files is None else tls.load(files), handshake_ms_max=link.handshake_ms_max
        )
        self._state = ControllerState()
        self._peers = LinkPeers(
            network=self._network,
            local=config.node.identity,
            listen=Address(section.listen_host, section.peer_port),
            members={member.id: member.peer_address for member in others.values()},
            randomness=randomness,
            config=link,
        )
        self._node = RaftNode(
            cluster_id=config.node.cluster_id,
            member_id=config.node.id,
            others=sorted(others),
            disk=OsDisk(),
            directory=str(config.node.data_dir / FOLDER / RAFT_FOLDER),
            state_machine=self._metrics.state_machine(self._state),
            peers=self._peers,
            scheduler=self._loop,
            background=self._metrics.background(self._thread),
            randomness=randomness,
            on_fatal=self._on_fatal,
            config=RaftConfig(
                election_ms_min=section.election_ms_min,
                election_ms_max=section.election_ms_max,
                heartbeat_ms=section.heartbeat_ms,
                tick_ms=section.tick_ms,
                snapshot_entries=section.snapshot_entries,
                command_bytes_max=section.command_bytes_max,
            ),
        )
        self._runtime = ControllerRuntime(
            quorum=self._metrics.quorum(self._node),
            state=self._state,
            scheduler=self._loop,
            randomness=randomness,
            config=RuntimeConfig(
                cluster_id=config.node.cluster_id,
                member_id=config.node.id,
                lease_ms=section.lease_ms,
                duties=DutyConfig(
                    election_wait_ms=section.election_wait_ms, preferred_wait_ms=section.rebalance_ms or NEVER_MS
                ),
            ),
        )
        self._node.observe(self._runtime.on_turn)
        self._node.observe(self._on_turn)
        self._watches = Watches(self._runtime, self._state, is_current=self._is_current)
        self._gate = Gate(
            permissions.declared(SERVICES),
            cluster_id=config.node.cluster_id,
            listener=LISTENER,
            limits=Limits(calls_max=section.rpcs_max),
            observer=self._metrics.call_ended,
        )
        self._health = health.aio.HealthServicer()
        addresses = {member.id: member.grpc_address for member in others.values()}
        asks = OtherMembers(addresses, tls=files)
        self._server = server.build(self._gate, request_bytes_max=section.request_bytes_max)
        controller_pb2_grpc.add_ControllerServiceServicer_to_server(
            ControllerServicer(
                self._runtime,
                self._state,
                self._watches,
                randomness=randomness,
                addresses={member.id: str(member.grpc_address) for member in self._members},
            ),
            self._server,
        )
        controller_pb2_grpc.add_ControllerAdminServiceServicer_to_server(
            ControllerAdminServicer(
                self._runtime,
                self._state,
                randomness=randomness,
                describe_quorum=self._describe_quorum,
                feature_level_max=lambda: asks.feature_level_max(FEATURE_LEVEL_MAX),
            ),
            self._server,
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection([service.full_name for service in SERVICES], self._server)
        self._metrics.collect_from(self._node.status, self._gauges)
        self._door = SideDoor(self._metrics.registry, self._healthz)

    # -- life ------------------------------------------------------------------------------------------------------

    async def run(self, stop: Stop) -> None:
        try:
            await self._start()
            async with asyncio.TaskGroup() as group:
                checking = group.create_task(self._keep_checking(), name="health")
                asked = group.create_task(stop.wait(), name="stop")
                await asyncio.wait([asked, self._fatal], return_when=asyncio.FIRST_COMPLETED)
                checking.cancel()
                asked.cancel()
            if self._fatal.done():
                stop.request("this member cannot go on")  # from now on there is a deadline
                await self._server.stop(None)
            else:
                await self._stop()
            if self._fatal.done():
                self._fatal.result()
        finally:
            await self._close()

    async def _start(self) -> None:
        section, metrics = self._config.controller, self._config.metrics
        for torn in self._node.torn:
            _log.warning("cut a write that a crash had torn", what=torn)
        if (section.peer_port, section.grpc_port) != (self._me.peer_port, self._me.grpc_port):
            _log.warning(
                "others are told other ports than this process has; right only if they are mapped",
                told=str(self._me),
                peer_port=section.peer_port,
                grpc_port=section.grpc_port,
            )
        address = Address(section.listen_host, section.grpc_port)
        server.listen(self._server, address, tls=self._config.tls.files)
        if metrics.controller_port:
            await self._door.start(Address(metrics.host, metrics.controller_port))
        await self._set_health(False)
        self._node.start()
        self._runtime.start()
        await self._server.start()
        _log.info(
            "listening",
            grpc=str(address),
            peers=str(self._peers.address),
            members=", ".join(map(str, self._members)),
            applied_index=self._node.applied_index,
        )

    async def _stop(self) -> None:
        self._is_serving = False
        budget_s = self._config.node.stop_ms_max / 1000
        # What waits for a condition that may not come takes at most half of the time that there is.
        with suppress(TimeoutError):
            async with asyncio.timeout(min(budget_s / 4, 4 * self._config.controller.election_ms_max / 1000)):
                await self._health.enter_graceful_shutdown()
                await self._hand_over()
        self._watches.stop()
        await self._server.stop(min(DRAIN_MS_MAX / 1000, budget_s / 4))

    async def _hand_over(self) -> None:
        """Until another member leads, if this one does and there is another."""
        asked_at = None
        while self._node.is_leader and self._node.status().connected:
            now = self._loop.time()
            if asked_at is None or now - asked_at >= self._config.controller.election_ms_min / 1000:
                successor = self._node.hand_over()
                if successor is not None:
                    asked_at = now
                    _log.info("handing over", successor=successor)
            await self._next_turn()
        while asked_at is not None and self._node.leader_id is None:
            await self._next_turn()
        if asked_at is not None:
            _log.info("handed over", leader=self._node.leader_id)

    async def _close(self) -> None:
        self._runtime.stop()
        self._node.stop()
        await self._server.stop(None)
        await self._door.close()
        self._peers.close()  # a member that failed has not done so
        await self._peers.wait_closed()
        await self._network.close()
        self._thread.close()

    def _on_fatal(self, error: BaseException) -> None:
        if isinstance(error, InvariantViolation):
            fail_fast(error)
        _log.error("this member cannot go on", exc_info=error)
        if not self._fatal.done():
            self._fatal.set_exception(error)

    # -- watching itself -------------------------------------------------------------------------------------------

    def _on_turn(self) -> None:
        self._turned.set()
        leader_id = self._node.leader_id
        if self._metrics.look_at_leader(leader_id, self._node.term):
            _log.info("leader", leader=leader_id, term=self._node.term, is_me=self._node.is_leader)

    async def _next_turn(self) -> None:
        self._turned.clear()
        await self._turned.wait()

    async def _keep_checking(self) -> None:
        began = self._loop.time()
        while True:
            error = await self._read()
            if error is None:
                self._caught_up_at = self._loop.time()
            elif not self._is_current() and self._loop.time() - began >= CURRENT_MS_MAX / 1000:
                _problems.warning("not in touch with a leader", why=error.message, peers=self._peers.problems())
            await self._set_health(error is None)
            await asyncio.sleep(HEALTH_MS / 1000)

    async def _read(self) -> QuireError | None:
        answered: asyncio.Future[QuireError | None] = self._loop.create_future()
        self._runtime.read(lambda error: None if answered.done() else answered.set_result(error))
        try:
            async with asyncio.timeout(CURRENT_MS_MAX / 1000):
                error = await answered
        except TimeoutError:
            return UnavailableError("this member does not catch up: it lacks what a majority has")
        if error is None and self._state.cluster is None:
            return UnavailableError("the cluster has no id yet: its first leader has not given it one")
        return error

    async def _set_health(self, is_serving: bool) -> None:
        if is_serving and not self._is_serving:
            _log.info("serving", leader=self._node.leader_id, applied_index=self._node.applied_index)
        self._is_serving = is_serving
        serving = health_pb2.HealthCheckResponse.ServingStatus
        for service in ("", *(each.full_name for each in SERVICES[:2])):
            await self._health.set(service, serving.SERVING if is_serving else serving.NOT_SERVING)

    def _is_current(self) -> bool:
        return self._caught_up_at is not None and self._loop.time() - self._caught_up_at < CURRENT_MS_MAX / 1000

    def _healthz(self) -> Health:
        status = self._node.status()
        details: dict[str, object] = {
            "node": status.member_id,
            "role": status.role,
            "leader": status.leader_id,
            "term": status.term,
            "applied_index": status.applied_index,
            "peers_connected": sorted(status.connected),
        }
        return Health(self._is_serving, details)

    def _gauges(self) -> Iterator[tuple[str, str, float]]:
        tables = self._state.tables
        fenced = sum(broker.fenced for broker in tables.brokers.values())
        yield "quire_controller_metadata_version", "The metadata version here.", self._state.version
        yield "quire_controller_brokers", "Brokers that are registered.", len(tables.brokers)
        yield "quire_controller_brokers_fenced", "Those of them that are shut out.", fenced
        yield "quire_controller_topics", "Topics.", len(tables.topics)
        yield "quire_controller_partitions", "Partitions.", len(tables.partitions)
        yield "quire_controller_partitions_leaderless", "Those that nobody leads.", len(tables.leaderless)
        yield "quire_controller_partitions_reassigning", "Those that are being moved.", len(tables.reassigning)
        yield "quire_rpc_calls_in_progress", "Calls that are being served.", self._gate.call_count
        yield "quire_rpc_streams_in_progress", "Streams that are being served.", self._gate.stream_count

    def _describe_quorum(self) -> controller_pb2.DescribeQuorumResponse:
        status, problems = self._node.status(), self._peers.problems()
        response = controller_pb2.DescribeQuorumResponse(
            cluster_id=self._config.node.cluster_id,
            member_id=status.member_id,
            role=_ROLES[status.role],
            leader_id=status.leader_id or "",
            term=status.term,
            commit_index=status.commit_index,
            applied_index=status.applied_index,
            first_index=status.first_index,
            last_index=status.last_index,
            snapshot_index=status.snapshot_index,
            journal_bytes=status.journal_bytes,
            disk_full=status.is_blocked,
            features=metadata_pb2.FeatureRange(level_min=FEATURE_LEVEL_MIN, level_max=FEATURE_LEVEL_MAX),
        )
        for member in self._members:
            is_me = member.id == status.member_id
            response.members.add(
                member_id=member.id,
                peer_address=str(member.peer_address),
                grpc_address=str(member.grpc_address),
                connected=is_me or member.id in status.connected,
                match_index=status.last_index
                if is_me and self._node.is_leader
                else status.match_indexes.get(member.id),
                problem=problems.get(member.id, ""),
            )
        return response
