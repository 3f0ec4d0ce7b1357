"""Real controller processes: what they answer, and what becomes of it when they die, stop, are cut off or lied to."""

from __future__ import annotations

import asyncio
import datetime
import random
import shlex
import shutil
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from quire.config import load
from quire.errors import (
    ClusterIdMismatchError,
    DuplicateCommandError,
    InvalidArgumentError,
    InvalidTopicNameError,
    LimitExceededError,
    OutcomeUnknownError,
    PeerRefusedError,
    QuireError,
    StaleBrokerEpochError,
    TopicAlreadyExistsError,
    UnavailableError,
    UnknownBrokerError,
    UnknownPartitionError,
    UnknownTopicError,
)
from quire.link import certs
from quire.process.exits import Exit
from quire.v1 import commands_pb2, controller_pb2, controller_pb2_grpc, metadata_pb2, topics_pb2
from tests.integration.controller_cluster import (
    CLUSTER_ID,
    LEASE_MS,
    WAIT_S_MAX,
    ControllerCluster,
    Member,
    controller_cluster,
    eventually,
    refusal,
    tail,
    told,
)
from tests.integration.metrics_docs import OPERATING, documented_metrics, metrics_in

FEATURES = metadata_pb2.FeatureRange(level_min=1, level_max=1)
CALL_S = 10.0


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControllerCluster]:
    """Three members for the tests that harm none of them."""
    cluster = ControllerCluster(tmp_path_factory.mktemp("controllers"))
    cluster.start_all()
    try:
        yield cluster
    finally:
        cluster.end()


@pytest.fixture
async def cluster(processes: ControllerCluster) -> AsyncIterator[ControllerCluster]:
    await processes.ready()
    try:
        yield processes
    finally:
        await processes.hang_up()


# --- what the tests ask --------------------------------------------------------------------------------------------


def named(name: str) -> topics_pb2.TopicRef:
    return topics_pb2.TopicRef(name=name)


async def register(member: Member, broker_id: int) -> int:
    """A broker that takes part; its epoch."""
    request = controller_pb2.RegisterBrokerRequest(
        cluster_id=CLUSTER_ID, broker_id=broker_id, incarnation_id=bytes([broker_id]) * 16, features=FEATURES
    )
    epoch = (await told(member.brokers.RegisterBroker(request, timeout=CALL_S))).broker_epoch
    ready = controller_pb2.UnfenceBrokerRequest(broker_id=broker_id, broker_epoch=epoch)
    await told(member.brokers.UnfenceBroker(ready, timeout=CALL_S))
    return epoch


async def create(member: Member, name: str, **settings: Any) -> controller_pb2.CreateTopicResponse:
    settings = {"partition_count": 1, "replication_factor": 1, **settings}
    return await told(
        member.admin.CreateTopic(controller_pb2.CreateTopicRequest(name=name, **settings), timeout=CALL_S)
    )


async def describe(member: Member, name: str) -> controller_pb2.DescribeTopicResponse:
    request = controller_pb2.DescribeTopicRequest(topic=named(name))
    return await told(member.admin.DescribeTopic(request, timeout=CALL_S))


async def delete(member: Member, name: str) -> controller_pb2.DeleteTopicResponse:
    request = controller_pb2.DeleteTopicRequest(topic=named(name))
    return await told(member.admin.DeleteTopic(request, timeout=CALL_S))


async def write_until_done(member: Member, name: str) -> float:
    """Ask as clients do, again and again under the same change id; the seconds that it took."""
    began = time.monotonic()
    request = controller_pb2.CreateTopicRequest(
        change_id=controller_pb2.ChangeId(client_id="t", client_incarnation=random.randbytes(16), sequence=1),
        name=name,
        partition_count=1,
        replication_factor=1,
    )
    while True:
        try:
            await told(member.admin.CreateTopic(request, timeout=2))
            return time.monotonic() - began
        except (UnavailableError, OutcomeUnknownError):
            assert time.monotonic() < began + WAIT_S_MAX
            await asyncio.sleep(0.02)


class Follower:
    """One who watches, wherever somebody answers, and holds what it is told to the contract."""

    def __init__(self, version: int = 0) -> None:
        self.version = version
        self.topics: dict[bytes, str] = {}
        self.kinds: list[str] = []
        self.error: QuireError | None = None
        self._snapshot: list[metadata_pb2.MetadataRecord] | None = None

    async def follow(self, member: Member) -> None:
        """Until the stream ends; `error` says why."""
        request = controller_pb2.WatchMetadataRequest(from_version=self.version, cluster_id=CLUSTER_ID)
        try:
            async for response in member.brokers.WatchMetadata(request):
                self._take(response)
        except grpc.aio.AioRpcError as error:
            self.error = await refusal(_raises(error))

    async def follow_any(self, cluster: ControllerCluster) -> None:
        while True:
            for member in cluster.running:
                await self.follow(member)
                await asyncio.sleep(0.02)

    async def until(self, condition: Any) -> None:
        async def holds() -> bool:
            return bool(condition(self))

        await eventually(holds, lambda: f"at version {self.version} there are {sorted(self.topics.values())}")

    def _take(self, response: controller_pb2.WatchMetadataResponse) -> None:
        kind = str(response.WhichOneof("kind"))
        self.kinds.append(kind)
        if kind == "alive":
            assert response.alive.version == self.version
        elif kind == "deltas":
            assert self._snapshot is None, "between the parts of a snapshot"
            for delta in response.deltas.deltas:
                assert delta.previous_version <= self.version < delta.version
                self.version = delta.version
                self._apply(delta.records)
        else:
            part = response.snapshot
            assert part.version >= self.version, "went back"
            assert part.first == (self._snapshot is None)
            self._snapshot = [*(self._snapshot or []), *part.records]
            if part.last:
                self.topics.clear()
                self._apply(self._snapshot)
                self.version, self._snapshot = part.version, None

    def _apply(self, records: Any) -> None:
        for record in records:
            if record.WhichOneof("kind") == "topic":
                self.topics[record.topic.topic_id] = record.topic.name
            elif record.WhichOneof("kind") == "topic_deleted":
                self.topics.pop(record.topic_deleted.topic_id, None)


async def _raises(error: BaseException) -> None:
    raise error


# --- members agree -------------------------------------------------------------------------------------------------


async def test_topics_through_any_member(cluster: ControllerCluster) -> None:
    one, two, three = cluster
    for broker_id in (1, 2, 3):
        await register(one, broker_id)
    made = await create(one, "orders", partition_count=3, replication_factor=0)
    for member in cluster:
        seen = await describe(member, "orders")
        assert (seen.topic.topic_id, seen.topic.partition_count) == (made.topic_id, 3)
        assert seen.topic.replication_factor == 3, "as many as there are brokers"
        assert [len(partition.isr) for partition in seen.partitions] == [3, 3, 3]
        assert seen.version >= made.version
    by_id = topics_pb2.TopicRef(topic_id=made.topic_id)
    settings = metadata_pb2.TopicConfig(min_isr=1, retention_ms=60_000)
    change = controller_pb2.ConfigureTopicRequest(topic=by_id, set=settings)
    await told(two.admin.ConfigureTopic(change, timeout=CALL_S))
    more = controller_pb2.AddPartitionsRequest(topic=by_id, partition_count=5)
    await told(three.admin.AddPartitions(more, timeout=CALL_S))
    seen = await describe(one, "orders")
    assert (len(seen.partitions), seen.topic.config) == (5, settings)

    assert isinstance(
        await refusal(two.admin.CreateTopic(controller_pb2.CreateTopicRequest(name="orders"), timeout=CALL_S)),
        TopicAlreadyExistsError,
    )
    await delete(two, "orders")
    for member in cluster:
        request = controller_pb2.DescribeTopicRequest(topic=named("orders"))
        assert isinstance(await refusal(member.admin.DescribeTopic(request, timeout=CALL_S)), UnknownTopicError)


async def test_topics_are_listed_in_pages(cluster: ControllerCluster) -> None:
    one, two, _ = cluster
    await register(one, 1)
    names = [f"page-{number}" for number in range(5)]
    for name in names:
        await create(one, name)
    found: list[str] = []
    token = "page"
    while token:
        request = controller_pb2.ListTopicsRequest(page_size=2, page_token=token)
        page = await told(two.admin.ListTopics(request, timeout=CALL_S))
        assert len(page.topics) <= 2
        found += [topic.name for topic in page.topics]
        token = page.next_page_token
    assert found == names
    for name in names:
        await delete(one, name)


async def test_retry_is_answered_as_the_first_time(cluster: ControllerCluster) -> None:
    await register(cluster["c1"], 1)
    incarnation = random.randbytes(16)

    def change_id(sequence: int) -> controller_pb2.ChangeId:
        return controller_pb2.ChangeId(client_id="cli", client_incarnation=incarnation, sequence=sequence)

    making = controller_pb2.CreateTopicRequest(change_id=change_id(1), name="retried", replication_factor=1)
    made = {(await told(member.admin.CreateTopic(making, timeout=CALL_S))).SerializeToString() for member in cluster}
    assert len(made) == 1

    deleting = controller_pb2.DeleteTopicRequest(change_id=change_id(2), topic=named("retried"))
    gone = {(await told(member.admin.DeleteTopic(deleting, timeout=CALL_S))).version for member in cluster}
    assert len(gone) == 1, "although there is no topic of that name any more"

    missing = controller_pb2.DeleteTopicRequest(change_id=change_id(3), topic=named("nothing"))
    assert isinstance(await refusal(cluster["c2"].admin.DeleteTopic(missing, timeout=CALL_S)), UnknownTopicError)

    wrong = controller_pb2.CreateTopicRequest(change_id=change_id(2), name="other", replication_factor=1)
    assert isinstance(await refusal(cluster["c3"].admin.CreateTopic(wrong, timeout=CALL_S)), InvalidArgumentError)
    drain = controller_pb2.DrainBrokerRequest(change_id=change_id(100), broker_id=1)
    await told(cluster["c1"].admin.DrainBroker(drain, timeout=CALL_S))
    old = controller_pb2.DrainBrokerRequest(change_id=change_id(50), broker_id=1)
    assert isinstance(await refusal(cluster["c1"].admin.DrainBroker(old, timeout=CALL_S)), DuplicateCommandError)


async def test_heartbeat_is_the_leaders(cluster: ControllerCluster) -> None:
    leader = await cluster.leader()
    epoch = await register(cluster.others(leader)[0], 9)
    beat = controller_pb2.HeartbeatRequest(broker_id=9, broker_epoch=epoch, applied_version=epoch)
    answer = await told(leader.brokers.Heartbeat(beat, timeout=CALL_S))
    assert answer.lease_ms == LEASE_MS
    assert answer.metadata_version > epoch
    for member in cluster.others(leader):
        error = await refusal(member.brokers.Heartbeat(beat, timeout=CALL_S))
        assert isinstance(error, UnavailableError)
        assert error.details == {"leader": leader.id, "leader_address": leader.address}

    old = controller_pb2.HeartbeatRequest(broker_id=9, broker_epoch=epoch - 1)
    assert isinstance(await refusal(leader.brokers.Heartbeat(old, timeout=CALL_S)), StaleBrokerEpochError)
    none = controller_pb2.HeartbeatRequest(broker_id=999)
    assert isinstance(await refusal(leader.brokers.Heartbeat(none, timeout=CALL_S)), UnknownBrokerError)

    crash = controller_pb2.FenceBrokerRequest(broker_id=9, broker_epoch=epoch, cause=commands_pb2.FENCE_CAUSE_CRASHED)
    await told(cluster["c1"].brokers.FenceBroker(crash, timeout=CALL_S))
    assert (await told(leader.brokers.Heartbeat(beat, timeout=CALL_S))).lease_ms == 0


async def test_changes_reach_those_who_watch_any_member(cluster: ControllerCluster) -> None:
    await register(cluster["c1"], 1)
    followers = [(Follower(), member) for member in cluster]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(follower.follow(member)) for follower, member in followers]
        made = await create(cluster["c2"], "watched")
        for follower, _ in followers:
            await follower.until(lambda each: made.topic_id in each.topics)
        gone = await delete(cluster["c3"], "watched")
        for follower, _ in followers:
            await follower.until(lambda each: each.version >= gone.version)
            assert made.topic_id not in follower.topics
        alive = Follower(followers[0][0].version)
        tasks.append(group.create_task(alive.follow(cluster["c1"])))
        await alive.until(lambda each: each.kinds.count("alive") >= 2)
        for task in tasks:
            task.cancel()


async def test_watch_is_refused_from_the_future_and_for_others(cluster: ControllerCluster) -> None:
    future = controller_pb2.WatchMetadataRequest(from_version=10**9)
    assert isinstance(await refusal(cluster["c1"].brokers.WatchMetadata(future).read()), InvalidArgumentError)
    other = controller_pb2.WatchMetadataRequest(cluster_id="another")
    assert isinstance(await refusal(cluster["c1"].brokers.WatchMetadata(other).read()), ClusterIdMismatchError)


# --- what every process has ----------------------------------------------------------------------------------------


async def test_health_reflection_and_metrics(cluster: ControllerCluster) -> None:
    leader = await cluster.leader()
    stub = health_pb2_grpc.HealthStub(leader.channel)
    for service in ("", "quire.v1.ControllerService", "quire.v1.ControllerAdminService"):
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=CALL_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING

    async def ask() -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")
        yield reflection_pb2.ServerReflectionRequest(file_containing_symbol="quire.v1.ControllerService")

    reflected = reflection_pb2_grpc.ServerReflectionStub(leader.channel).ServerReflectionInfo(ask())
    services = (await reflected.read()).list_services_response.service
    assert {"quire.v1.ControllerService", "quire.v1.ControllerAdminService"} <= {each.name for each in services}
    assert (await reflected.read()).file_descriptor_response.file_descriptor_proto
    reflected.cancel()

    await register(leader, 1)
    status, text = await asyncio.to_thread(leader.http, "/metrics")
    assert status == 200
    metrics = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert metrics['quire_controller_role{role="leader"}'] == "1.0"
    assert float(metrics["quire_controller_applied_index"]) == float(metrics["quire_controller_commit_index"]) > 1
    assert metrics["quire_controller_peers_connected"] == "2.0"
    assert float(metrics['quire_controller_proposals_total{outcome="ok"}']) > 0
    assert float(metrics["quire_controller_commit_seconds_count"]) > 0
    assert float(metrics["quire_controller_leader_changes_total"]) >= 1
    assert float(metrics["quire_controller_journal_bytes"]) > 0
    assert "quire_controller_snapshot_seconds_count" in metrics
    assert float(metrics['quire_rpc_calls_total{method="/grpc.health.v1.Health/Check",status="OK"}']) >= 3
    assert (await asyncio.to_thread(leader.http, "/healthz"))[0] == 200
    assert metrics_in(text) == documented_metrics("controller")


async def test_second_process_is_refused(cluster: ControllerCluster, tmp_path: Path) -> None:
    one = cluster["c1"]
    second = ControllerCluster(tmp_path)["c2"]
    second.start(node_data_dir=one.data_dir, node_id="c1", controller_members=cluster.members)
    assert second.ended() == Exit.DIRECTORY_IN_USE
    assert "is in use by process" in tail(second)
    for port in ("controller_grpc_port", "controller_peer_port", "metrics_controller_port"):
        taken = {"controller_grpc_port": one.grpc_port, "controller_peer_port": one.peer_port}
        second.start(controller_members="", **{port: taken.get(port, one.metrics_port)})
        assert second.ended() == Exit.FAILED
        assert "cannot listen on 127.0.0.1:" in second.events()[-1]["message"]
    second.start(node_id="c9")
    assert second.ended() == Exit.MISCONFIGURED
    assert one.process is not None
    assert one.process.poll() is None


def test_example_of_the_documentation_holds(tmp_path: Path) -> None:
    text = OPERATING.read_text(encoding="utf-8")
    file = tmp_path / "cluster.toml"
    file.write_text(text.partition("<<'END'\n")[2].partition("END\n")[0], encoding="utf-8")
    line = text.partition("python -m quire_controller ")[2].partition(" 2>")[0].replace("\\\n", " ")
    for number in ("1", "2", "3"):
        arguments = shlex.split(line.replace("$n", number).replace("cluster.toml", str(file)))
        config = load(arguments, environ={}).config
        (me,) = [each for each in config.controller.quorum(config.node.id) if each.id == config.node.id]
        assert (me.peer_port, me.grpc_port) == (config.controller.peer_port, config.controller.grpc_port)


# --- hostile input -------------------------------------------------------------------------------------------------

BAD_NAMES = ["", ".", "..", "../etc", "a/b", "a\0b", "x" * 250, "x" * 10_000, "ü", "__groups", "a b", "a\n"]


async def test_bad_requests_are_refused_with_reasons(cluster: ControllerCluster) -> None:
    member = cluster["c2"]
    epoch = await register(member, 1)
    await create(member, "good")
    admin, brokers = member.admin, member.brokers

    for name in BAD_NAMES:
        error = await refusal(admin.CreateTopic(controller_pb2.CreateTopicRequest(name=name), timeout=CALL_S))
        assert isinstance(error, InvalidTopicNameError), name[:20]
        assert len(error.message) < 300
        asked = controller_pb2.DescribeTopicRequest(topic=named(name))
        assert isinstance(await refusal(admin.DescribeTopic(asked, timeout=CALL_S)), UnknownTopicError)

    def topic(**settings: Any) -> Any:
        return admin.CreateTopic(controller_pb2.CreateTopicRequest(name="new", **settings), timeout=CALL_S)

    at_good = controller_pb2.PartitionRef(topic=named("good"), partition=7)
    expected: list[tuple[Any, type[QuireError]]] = [
        (topic(partition_count=-1), InvalidArgumentError),
        (topic(partition_count=2**31 - 1), InvalidArgumentError),
        (topic(replication_factor=-3), InvalidArgumentError),
        (topic(replication_factor=16), InvalidArgumentError),
        (topic(config=metadata_pb2.TopicConfig(retention_ms=-7)), InvalidArgumentError),
        (topic(config=metadata_pb2.TopicConfig(cleanup=77)), InvalidArgumentError),  # type: ignore[arg-type]  # on purpose
        (topic(assignments=[commands_pb2.ReplicaAssignment(replicas=[1, 1])]), InvalidArgumentError),
        (topic(assignments=[commands_pb2.ReplicaAssignment(replicas=[404])]), UnknownBrokerError),
        (topic(change_id=controller_pb2.ChangeId(client_id="x")), InvalidArgumentError),
        (topic(change_id=controller_pb2.ChangeId()), InvalidArgumentError),
        (admin.DeleteTopic(controller_pb2.DeleteTopicRequest(), timeout=CALL_S), InvalidArgumentError),
        (
            admin.DeleteTopic(
                controller_pb2.DeleteTopicRequest(topic=topics_pb2.TopicRef(topic_id=b"short")), timeout=CALL_S
            ),
            InvalidArgumentError,
        ),
        (
            admin.DeleteTopic(
                controller_pb2.DeleteTopicRequest(topic=topics_pb2.TopicRef(topic_id=b"?" * 16)), timeout=CALL_S
            ),
            UnknownTopicError,
        ),
        (
            admin.CancelReassignment(controller_pb2.CancelReassignmentRequest(partition=at_good), timeout=CALL_S),
            UnknownPartitionError,
        ),
        (
            admin.ElectUncleanLeaders(
                controller_pb2.ElectUncleanLeadersRequest(partitions=[at_good] * 65), timeout=CALL_S
            ),
            LimitExceededError,
        ),
        (admin.UnregisterBroker(controller_pb2.UnregisterBrokerRequest(broker_id=404)), UnknownBrokerError),
        (admin.DrainBroker(controller_pb2.DrainBrokerRequest(broker_id=-1)), InvalidArgumentError),
        (admin.ListTopics(controller_pb2.ListTopicsRequest(page_size=-1)), InvalidArgumentError),
        (admin.ListTopics(controller_pb2.ListTopicsRequest(page_token="../")), InvalidArgumentError),
        (
            brokers.AllocateProducerIds(
                controller_pb2.AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch, count=-5)
            ),
            InvalidArgumentError,
        ),
        (
            brokers.AllocateProducerIds(
                controller_pb2.AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch - 1, count=5)
            ),
            StaleBrokerEpochError,
        ),
        (
            brokers.FenceBroker(
                controller_pb2.FenceBrokerRequest(
                    broker_id=1, broker_epoch=epoch, cause=commands_pb2.FENCE_CAUSE_LEASE_EXPIRED
                )
            ),
            InvalidArgumentError,
        ),
        (
            brokers.RegisterBroker(
                controller_pb2.RegisterBrokerRequest(
                    cluster_id="other", broker_id=5, incarnation_id=b"5" * 16, features=FEATURES
                )
            ),
            ClusterIdMismatchError,
        ),
    ]
    for call, kind in expected:
        error = await refusal(call)
        assert type(error) is kind, error
    await delete(member, "good")


async def test_bytes_that_are_no_request(cluster: ControllerCluster) -> None:
    """Garbage, too much of it, and methods that do not exist: refused, and the member goes on."""
    member = cluster["c2"]

    def raw(method: str, body: bytes) -> Any:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = member.channel.unary_unary(method)
        return call(body, timeout=CALL_S)

    method = "/quire.v1.ControllerAdminService/CreateTopic"
    error = await refusal(raw(method, b"\xff" * 100))
    assert isinstance(error, InvalidArgumentError)
    unknown_field = controller_pb2.CreateTopicRequest(name="../").SerializeToString() + b"\xfa\x7f\x03new"
    assert isinstance(await refusal(raw(method, unknown_field)), InvalidTopicNameError)
    with pytest.raises(grpc.aio.AioRpcError) as too_long:
        await raw(method, b"\0" * 5_000_000)
    assert too_long.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    for name in ("/quire.v1.ControllerAdminService/Nothing", "/x", "/quire.v1.Command/CreateTopic"):
        with pytest.raises(grpc.aio.AioRpcError) as missing:
            await raw(name, b"")
        assert missing.value.code() == grpc.StatusCode.UNIMPLEMENTED

    reader, writer = await asyncio.open_connection("127.0.0.1", member.grpc_port)
    writer.write(random.randbytes(100_000))
    with suppress(ConnectionError):
        await writer.drain()
        await reader.read()
    writer.close()
    assert (await member.quorum()).leader_id


async def test_newer_clients_fields_are_ignored(cluster: ControllerCluster) -> None:
    await register(cluster["c1"], 1)
    body = (
        controller_pb2.CreateTopicRequest(name="newer", replication_factor=1).SerializeToString() + b"\xfa\x7f\x03new"
    )
    config = metadata_pb2.TopicConfig.FromString(b"\xfa\x7f\x03new")
    body += controller_pb2.CreateTopicRequest(config=config).SerializeToString()
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = cluster["c1"].channel.unary_unary(
        "/quire.v1.ControllerAdminService/CreateTopic"
    )
    await told(call(body, timeout=CALL_S))
    await delete(cluster["c1"], "newer")


async def test_watchers_who_never_read_cost_no_memory(cluster: ControllerCluster) -> None:
    member = cluster["c3"]
    await register(member, 1)
    await create(member, "big", partition_count=2_000)
    before = member.rss_bytes()
    channels = [grpc.aio.insecure_channel(member.address, options=[("c", number)]) for number in range(4)]
    calls: list[grpc.aio.UnaryStreamMultiCallable[bytes, bytes]] = [
        channel.unary_stream("/quire.v1.ControllerService/WatchMetadata") for channel in channels
    ]
    streams = [call(b"") for call in calls for _ in range(50)]
    assert all([await stream.read() for stream in streams]), "each has begun"
    for number in range(20):
        await create(member, f"more-{number}", partition_count=500)
        await delete(member, f"more-{number}")
    grown = member.rss_bytes() - before
    assert grown < 100 * 2**20, f"{grown} bytes for {len(streams)} streams"
    follower = Follower()
    reading = asyncio.create_task(follower.follow(member))
    await follower.until(lambda each: "big" in each.topics.values())
    reading.cancel()
    for stream in streams:
        stream.cancel()
    for channel in channels:
        await channel.close()
    await delete(member, "big")


# --- members that die or stop --------------------------------------------------------------------------------------


async def test_leader_dies_and_comes_back(tmp_path: Path) -> None:
    """Nothing that was answered is lost, followers go on where they were, and who comes back catches up."""
    async with controller_cluster(tmp_path, controller_snapshot_entries=100) as cluster:
        leader = await cluster.leader()
        await register(leader, 1)
        follower = Follower()
        watching = asyncio.create_task(follower.follow_any(cluster))
        made = await create(leader, "before")
        await follower.until(lambda each: made.topic_id in each.topics)
        leader.die()
        other = cluster.others(leader)[0]
        assert await write_until_done(other, "during") < 10
        await follower.until(lambda each: "during" in each.topics.values())
        assert (await cluster.leader()) is not leader

        for number in range(60):  # more than the journal keeps
            await create(other, f"many-{number}")
            await delete(other, f"many-{number}")
        leader.start()
        await cluster.ready(leader)
        assert (await describe(leader, "before")).topic.topic_id == made.topic_id
        await describe(leader, "during")
        quorum = await leader.quorum()
        assert quorum.snapshot_index > 1
        restarted = Follower(version=made.version)
        catching_up = asyncio.create_task(restarted.follow(leader))
        await restarted.until(lambda each: "during" in each.topics.values())
        assert "snapshot" in restarted.kinds, "what changed since then is not known to a process that has restarted"
        assert sorted(restarted.topics.values()) == ["before", "during"]
        await follower.until(lambda each: each.version >= restarted.version)
        assert follower.topics == restarted.topics
        for task in (watching, catching_up):
            task.cancel()


async def test_leader_stops_gracefully(tmp_path: Path) -> None:
    async with controller_cluster(tmp_path) as cluster:
        leader = await cluster.leader()
        term = (await leader.quorum()).term
        await register(leader, 1)
        made = await create(leader, "kept")
        follower = Follower()
        watching = asyncio.create_task(follower.follow(leader))
        await follower.until(lambda each: made.topic_id in each.topics)
        leader.kill(signal.SIGTERM)
        await watching
        assert isinstance(follower.error, UnavailableError), follower.error
        assert leader.ended() == Exit.OK
        events = [event["event"] for event in leader.events()]
        assert events.index("handing over") < events.index("handed over") < events.index("stopped")
        successor = await cluster.leader()
        assert (await successor.quorum()).term == term + 1, "without an election that somebody had to wait for"
        assert await write_until_done(successor, "after") < 5

        for member in cluster.running:
            member.kill(signal.SIGTERM)
        assert {member.ended() for member in cluster} == {Exit.OK}
        cluster.start_all()
        await cluster.ready()
        for member in cluster:
            assert (await describe(member, "kept")).topic.topic_id == made.topic_id
            await describe(member, "after")


async def test_without_a_majority_nothing_hangs(tmp_path: Path) -> None:
    async with controller_cluster(tmp_path) as cluster:
        leader = await cluster.leader()
        await register(leader, 1)
        made = await create(leader, "kept")
        for is_leader in (True, False):
            leader = await cluster.leader()
            lonely = leader if is_leader else cluster.others(leader)[0]
            others = cluster.others(lonely)
            for member in others:
                member.die()
            for number in range(2):
                began = time.monotonic()
                request = controller_pb2.CreateTopicRequest(name=f"lost-{number}", replication_factor=1)
                error = await refusal(lonely.admin.CreateTopic(request, timeout=CALL_S))
                assert isinstance(error, UnavailableError | OutcomeUnknownError), error
                assert "leader" in error.message
                assert time.monotonic() - began < 5
                reading = controller_pb2.DescribeTopicRequest(topic=named("kept"))
                error = await refusal(lonely.admin.DescribeTopic(reading, timeout=CALL_S))
                assert isinstance(error, UnavailableError)
                assert time.monotonic() - began < 10
            # What does not need the quorum is answered all the same.
            stale = controller_pb2.DescribeTopicRequest(topic=named("kept"), stale_ok=True)
            assert (await told(lonely.admin.DescribeTopic(stale, timeout=CALL_S))).topic.topic_id == made.topic_id
            assert (await lonely.quorum()).member_id == lonely.id

            async def is_unwell(member: Member = lonely) -> bool:
                return not await member.is_healthy()

            # It looks at itself now and then; what it refuses it may have refused before that.
            await eventually(is_unwell, lambda: "a member without a majority says that it is well")
            for member in others:
                member.start()
            await cluster.ready()


# --- damage --------------------------------------------------------------------------------------------------------


async def test_damaged_member_says_so_and_comes_back_empty(tmp_path: Path) -> None:
    async with controller_cluster(tmp_path, controller_snapshot_entries=100) as cluster:
        leader = await cluster.leader()
        await register(leader, 1)
        made = await create(leader, "kept")
        for number in range(110):
            goal = metadata_pb2.DRAIN_GOAL_LEADERSHIPS if number % 2 else metadata_pb2.DRAIN_GOAL_UNSPECIFIED
            request = controller_pb2.DrainBrokerRequest(broker_id=1, goal=goal)
            await told(leader.admin.DrainBroker(request, timeout=CALL_S))
        member = cluster.others(leader)[0]

        async def has_snapshot() -> bool:
            return (await member.quorum()).snapshot_index > 1

        await eventually(has_snapshot, lambda: tail(member))
        member.kill(signal.SIGTERM)
        assert member.ended() == Exit.OK
        whole = tmp_path / "whole"
        shutil.copytree(member.data_dir, whole)
        for kind in ("journal-*", "member", "snapshot-*"):
            path = max(member.raft_directory.glob(kind))
            flip_a_byte(path)
            member.start()
            assert member.ended() == Exit.FAILED
            error = member.events()[-1]
            assert error["level"] == "error"
            assert str(path) in error["message"]
            assert "move its directory away and start it again" in error["message"]
            shutil.rmtree(member.data_dir)
            shutil.copytree(whole, member.data_dir)

        shutil.rmtree(member.raft_directory)
        member.start()
        await cluster.ready(member)
        stale = controller_pb2.DescribeTopicRequest(topic=named("kept"), stale_ok=True)
        assert (await told(member.admin.DescribeTopic(stale, timeout=CALL_S))).topic.topic_id == made.topic_id

        async def votes() -> bool:
            return (await member.quorum()).role == controller_pb2.QUORUM_ROLE_FOLLOWER

        await eventually(votes, lambda: tail(member))


async def test_member_that_cannot_write_ends_itself(tmp_path: Path) -> None:
    async with controller_cluster(tmp_path) as cluster:
        leader = await cluster.leader()
        broken, sound = cluster.others(leader)
        shutil.rmtree(broken.raft_directory)  # as if the disk was gone: no vote can be written down
        leader.die()
        assert await asyncio.to_thread(broken.ended) == Exit.FAILED
        events = broken.events()
        assert "this member cannot go on" in [event["event"] for event in events]
        assert events[-1]["reason"] == "DISK_IO"
        assert sound.process is not None
        assert sound.process.poll() is None


# --- certificates --------------------------------------------------------------------------------------------------


async def test_with_certificates_only_nodes_of_the_cluster_are_served(tmp_path: Path) -> None:
    now = datetime.datetime.now(datetime.UTC)
    for folder, cluster_id in (("ours", CLUSTER_ID), ("theirs", "another")):
        nodes = [certs.NodeSpec(name, ("127.0.0.1",)) for name in ("c1", "c2", "c3", "b1")]
        certs.init(tmp_path / folder, cluster_id=cluster_id, nodes=nodes, days=2, now=now)
    cluster = ControllerCluster(tmp_path, tls_ca_file=str(tmp_path / "ours" / "ca.pem"))
    try:
        for member in cluster:
            member.start(tls_node_file=tmp_path / "ours" / f"{member.id}.pem")
        await cluster.ready()
        address = cluster["c1"].address

        def channel(folder: str, node: str) -> grpc.aio.Channel:
            own = (tmp_path / folder / f"{node}.pem").read_bytes()
            ca = (tmp_path / "ours" / "ca.pem").read_bytes()
            return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(ca, own, own))

        request = controller_pb2.RegisterBrokerRequest(
            cluster_id=CLUSTER_ID, broker_id=1, incarnation_id=b"1" * 16, features=FEATURES
        )
        async with channel("ours", "b1") as ours:
            brokers = controller_pb2_grpc.ControllerServiceStub(ours)
            epoch = (await told(brokers.RegisterBroker(request, timeout=CALL_S))).broker_epoch
            admin = controller_pb2_grpc.ControllerAdminServiceStub(ours)
            described = await told(admin.DescribeCluster(controller_pb2.DescribeClusterRequest(), timeout=CALL_S))
            assert [each.broker.node_id for each in described.brokers] == ["b1"], "as its certificate says"
            raised = controller_pb2.RaiseFeatureLevelRequest(level=1)
            await told(admin.RaiseFeatureLevel(raised, timeout=CALL_S))  # for which the members ask each other
        async with channel("ours", "c2") as another:
            crash = controller_pb2.FenceBrokerRequest(
                broker_id=1, broker_epoch=epoch, cause=commands_pb2.FENCE_CAUSE_CRASHED
            )
            brokers = controller_pb2_grpc.ControllerServiceStub(another)
            assert isinstance(await refusal(brokers.FenceBroker(crash, timeout=CALL_S)), PeerRefusedError)
        for stranger in (channel("theirs", "b1"), grpc.aio.insecure_channel(address)):
            async with stranger:
                brokers = controller_pb2_grpc.ControllerServiceStub(stranger)
                error = await refusal(brokers.RegisterBroker(request, timeout=CALL_S))
                assert isinstance(error, UnavailableError | OutcomeUnknownError)
    finally:
        cluster.end()


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[60] ^= 0x10  # in the beginning: the end of a journal is room made ahead, which holds nothing
    path.write_bytes(content)
