"""`quire.aio.Admin`: topics and the cluster, for programs that run an event loop."""

from __future__ import annotations

import asyncio
import secrets
import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self, TypeVar
from uuid import UUID

import grpc.aio

from quire._client import descriptions, followers, offsets, topic_config
from quire._client.addresses import Addresses
from quire._client.arguments import check_whole
from quire._client.cluster import Cluster, unknown_topic
from quire._client.descriptions import (
    ClusterDescription,
    FollowerLag,
    MoveDescription,
    PartitionOffsets,
    QuorumDescription,
    TopicDescription,
    TopicSummary,
)
from quire._client.options import CONNECT_MS_MAX, MS_MAX, Connection, PathArgument, connection
from quire._client.starts import EARLIEST, LATEST
from quire._client.stored import TopicPartition
from quire._client.topic_config import Setting
from quire.errors import UnavailableError, UnknownTopicError
from quire.v1 import broker_pb2, controller_pb2, controller_pb2_grpc, metadata_pb2, topics_pb2

CALL_MS_MAX: Final = 30_000
CLIENT_ID: Final = "quire-sdk"
CHANGES_MAX: Final = 16
"""Changes under way at once; the controllers remember the results of 24."""
PARTITIONS_MAX: Final = 10_000
PARTITIONS_A_CHANGE: Final = 64
BROKER_ID_MAX: Final = 2**31 - 1
LAG_S_MAX: Final = 5.0
"""How long a leader may take to say how far its followers are."""
REPLICATION_FACTOR_MAX: Final = 15

T = TypeVar("T")


class Admin:
    """Makes, changes and describes topics, and describes the cluster. Belongs to one event loop.

    async with Admin("localhost:7400") as admin:
        await admin.create_topic("orders", partitions=3)
    """

    def __init__(
        self,
        addresses: Addresses,
        *,
        call_ms_max: int = CALL_MS_MAX,
        client_id: str = "",
        tls_ca: PathArgument | None = None,
        tls_cert: PathArgument | None = None,
        connect_ms_max: int = CONNECT_MS_MAX,
    ) -> None:
        """docs/SDK.md says what the arguments mean. Nothing is connected before the first call."""
        self._connection: Connection = connection(
            addresses, client_id=client_id, tls_ca=tls_ca, tls_cert=tls_cert, connect_ms_max=connect_ms_max
        )
        self._timeout_s = check_whole("call_ms_max", call_ms_max, 1, MS_MAX) / 1000
        self._incarnation = secrets.token_bytes(16)
        self._sequence = 0
        self._changing: asyncio.Semaphore | None = None
        self._made: Cluster | None = None
        self._closed = False

    # -- topics ------------------------------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication_factor: int = 0,
        config: Mapping[str, Setting] | None = None,
    ) -> UUID:
        """Make a topic; its id. Without a replication factor: 3, or as many as there are brokers if those are fewer.

        Raises TopicAlreadyExistsError, InvalidTopicNameError, NotEnoughBrokersError, InvalidArgumentError.
        """
        request = controller_pb2.CreateTopicRequest(
            name=name,
            partition_count=check_whole("partitions", partitions, 1, PARTITIONS_MAX),
            replication_factor=check_whole("replication_factor", replication_factor, 0, REPLICATION_FACTOR_MAX),
            config=topic_config.to_wire(config or {}),
        )
        async with self._change(request.change_id):
            answer = await self._ask(lambda stub, **how: stub.CreateTopic(request, **how))
        return UUID(bytes=answer.topic_id)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and all its records. Raises UnknownTopicError."""
        request = controller_pb2.DeleteTopicRequest(topic=topics_pb2.TopicRef(name=name))
        async with self._change(request.change_id):
            await self._ask(lambda stub, **how: stub.DeleteTopic(request, **how), name=name)

    async def alter_topic(
        self, name: str, set: Mapping[str, Setting] | None = None, unset: Iterable[str] = ()
    ) -> None:
        """Give settings values, or their defaults back. Raises UnknownTopicError, InvalidArgumentError."""
        names = list(unset)
        topic_config.check_names(names)
        request = controller_pb2.ConfigureTopicRequest(
            topic=topics_pb2.TopicRef(name=name), set=topic_config.to_wire(set or {}), unset=names
        )
        async with self._change(request.change_id):
            await self._ask(lambda stub, **how: stub.ConfigureTopic(request, **how), name=name)

    async def add_partitions(self, name: str, count: int) -> None:
        """Give a topic more partitions, `count` altogether. Keys go to other partitions by that."""
        request = controller_pb2.AddPartitionsRequest(
            topic=topics_pb2.TopicRef(name=name), partition_count=check_whole("count", count, 1, PARTITIONS_MAX)
        )
        async with self._change(request.change_id):
            await self._ask(lambda stub, **how: stub.AddPartitions(request, **how), name=name)

    async def list_topics(self, *, include_internal: bool = False) -> list[TopicSummary]:
        """All topics, in ascending order of names."""
        topics: list[TopicSummary] = []
        request = controller_pb2.ListTopicsRequest(include_internal=include_internal)
        while True:
            answer = await self._ask(lambda stub, **how: stub.ListTopics(request, **how))
            topics += map(descriptions.topic_summary, answer.topics)
            request.page_token = answer.next_page_token
            if not request.page_token:
                return topics

    async def describe_topic(self, name: str) -> TopicDescription:
        """One topic and its partitions. Raises UnknownTopicError."""
        request = controller_pb2.DescribeTopicRequest(topic=topics_pb2.TopicRef(name=name))
        return descriptions.topic_description(
            await self._ask(lambda stub, **how: stub.DescribeTopic(request, **how), name=name)
        )

    async def offsets(self, topic: str) -> dict[int, PartitionOffsets]:
        """The first and the next offset of each partition of a topic. Raises UnknownTopicError."""
        cluster = self._cluster
        known = await cluster.topic(topic, timeout_s=self._timeout_s)
        partitions = [TopicPartition(topic, index) for index in range(known.partition_count)]
        isolation, timeout_s = broker_pb2.ISOLATION_READ_COMMITTED, self._timeout_s
        # The end first: what is deleted in between could else make a partition begin behind its end.
        latest, earliest = [
            await offsets.find(cluster, dict.fromkeys(partitions, place), isolation=isolation, timeout_s=timeout_s)
            for place in (LATEST, EARLIEST)
        ]
        return {
            each.partition: PartitionOffsets(
                earliest=earliest[each].offset, latest=max(latest[each].offset, earliest[each].offset)
            )
            for each in partitions
        }

    # -- the cluster -------------------------------------------------------------------------------------------------

    async def describe_cluster(self) -> ClusterDescription:
        """The cluster and its brokers, and how far moves and drains have come."""
        request = controller_pb2.DescribeClusterRequest()
        return descriptions.cluster_description(
            await self._ask(lambda stub, **how: stub.DescribeCluster(request, **how))
        )

    async def describe_quorum(self) -> QuorumDescription:
        """How the controllers are doing, as the one that is asked sees it; also without a majority."""
        request = controller_pb2.DescribeQuorumRequest()
        return descriptions.quorum_description(
            await self._ask(lambda stub, **how: stub.DescribeQuorum(request, **how))
        )

    # -- who has what and leads it ---------------------------------------------------------------------------------

    async def follower_lag(self, topic: str) -> dict[int, tuple[FollowerLag, ...]]:
        """How far the followers of each partition of a topic are. Partitions whose leader does not say are left out.

        Raises UnknownTopicError.
        """
        described = await self.describe_topic(topic)
        return await self._lags(topic, {each.partition: each.leader for each in described.partitions if each.leader})

    async def move_partition(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        """Begin to move a partition to these brokers, the preferred leader first. `list_moves` shows how far it is.

        Raises UnknownTopicError, UnknownPartitionError, UnknownBrokerError, BrokerFencedError, InvalidArgumentError,
        ReassignmentInProgressError.
        """
        request = controller_pb2.ReassignPartitionRequest(
            partition=_partition(topic, partition), target=[_broker(each) for each in replicas]
        )
        async with self._change(request.change_id):
            await self._ask(lambda stub, **how: stub.ReassignPartition(request, **how), name=topic)

    async def cancel_move(self, topic: str, partition: int) -> None:
        """Turn such a move back. Raises NoReassignmentInProgressError, UnknownTopicError, UnknownPartitionError."""
        request = controller_pb2.CancelReassignmentRequest(partition=_partition(topic, partition))
        async with self._change(request.change_id):
            await self._ask(lambda stub, **how: stub.CancelReassignment(request, **how), name=topic)

    async def list_moves(self) -> list[MoveDescription]:
        """All partitions that are being moved, and how far their replicas are."""
        moves: list[MoveDescription] = []
        left = (await self.describe_cluster()).reassigning
        for topic in await self.list_topics(include_internal=True) if left else ():
            try:
                described = await self.describe_topic(topic.name)
            except UnknownTopicError:
                continue  # deleted a moment ago
            moving = [each for each in described.partitions if each.target is not None]
            if not moving:
                continue
            lags = await self._lags(topic.name, {each.partition: each.leader for each in moving if each.leader})
            moves += [
                MoveDescription(
                    topic=topic.name,
                    partition=each.partition,
                    original=each.original or (),
                    target=each.target or (),
                    cancelled=each.cancelled,
                    followers=lags.get(each.partition, ()),
                )
                for each in moving
            ]
            if len(moves) >= left:
                break
        return moves

    async def elect_preferred(self, topic: str | None = None) -> int:
        """Give leaderships back to the first of each partition's replicas, of one topic or of all; how many.

        Those whose preferred leader is away, or not in sync, stay where they are. The moves are over a moment later.
        """
        if topic is None:
            return await self._elect_preferred_everywhere()
        described = await self.describe_topic(topic)
        elsewhere = [each.partition for each in described.partitions if each.leader not in (None, each.replicas[0])]
        moved = 0
        for first in range(0, len(elsewhere), PARTITIONS_A_CHANGE):
            request = controller_pb2.ElectPreferredLeadersRequest(
                partitions=[_partition(topic, each) for each in elsewhere[first : first + PARTITIONS_A_CHANGE]]
            )
            moved += (await self._elect_preferred(request))[0]
        return moved

    async def _elect_preferred_everywhere(self) -> int:
        moved = 0
        while True:
            done, left = await self._elect_preferred(controller_pb2.ElectPreferredLeadersRequest())
            moved += done
            if not left or not done:
                return moved

    async def _elect_preferred(self, request: controller_pb2.ElectPreferredLeadersRequest) -> tuple[int, int]:
        async with self._change(request.change_id):
            answer = await self._ask(lambda stub, **how: stub.ElectPreferredLeaders(request, **how))
        return sum(not outcome.error for outcome in answer.outcomes), answer.left

    async def drain_broker(self, broker_id: int, *, leaderships_only: bool = False) -> None:
        """Begin to rid a broker of what it leads and has. `describe_cluster` shows what is left.

        It gets nothing new from now on, also after a restart, until `undrain`. With `leaderships_only` it keeps its
        replicas. Raises UnknownBrokerError, NotEnoughBrokersError.
        """
        goal = metadata_pb2.DRAIN_GOAL_LEADERSHIPS if leaderships_only else metadata_pb2.DRAIN_GOAL_REPLICAS
        await self._drain(broker_id, goal)

    async def undrain(self, broker_id: int) -> None:
        """Let a broker work as any other again. Moves that are under way go on. Raises UnknownBrokerError."""
        await self._drain(broker_id, metadata_pb2.DRAIN_GOAL_UNSPECIFIED)

    async def _drain(self, broker_id: int, goal: metadata_pb2.DrainGoal.ValueType) -> None:
        request = controller_pb2.DrainBrokerRequest(broker_id=_broker(broker_id), goal=goal)
        async with self._change(request.change_id):
            await self._ask(lambda stub, **how: stub.DrainBroker(request, **how))

    async def unregister_broker(self, broker_id: int) -> None:
        """Forget a broker that has no replicas. Raises UnknownBrokerError, BrokerNotEmptyError."""
        request = controller_pb2.UnregisterBrokerRequest(broker_id=_broker(broker_id))
        async with self._change(request.change_id):
            await self._ask(lambda stub, **how: stub.UnregisterBroker(request, **how))

    # -- life --------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        self._closed = True
        if self._made is not None:
            await self._made.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self, warn: Callable[..., object] = warnings.warn) -> None:
        if getattr(self, "_made", None) is not None and not self._closed:
            warn(f"unclosed {self!r}; use 'async with' or close()", ResourceWarning, source=self)

    def __repr__(self) -> str:
        return f"<quire.aio.Admin, {'closed' if self._closed else 'open'}>"

    async def _lags(self, topic: str, leaders: Mapping[int, int]) -> dict[int, tuple[FollowerLag, ...]]:
        # Without an eye on the topic: a client has one on so many at most, and here it may come by all there are.
        await self._cluster.meet_brokers(timeout_s=self._timeout_s)
        return await followers.lags(self._cluster, topic, leaders, timeout_s=min(self._timeout_s, LAG_S_MAX))

    # -- calls -------------------------------------------------------------------------------------------------------

    @property
    def _cluster(self) -> Cluster:
        if self._closed:
            raise UnavailableError("this admin client is closed; make another one")
        if self._made is None:
            self._made = Cluster(self._connection)
        return self._made

    def _change(self, change_id: controller_pb2.ChangeId) -> asyncio.Semaphore:
        """Name a change, so that it may be asked for again until there is an answer, and is made once."""
        if self._changing is None:
            self._changing = asyncio.Semaphore(CHANGES_MAX)
        self._sequence += 1
        change_id.client_id = self._connection.client_id or CLIENT_ID
        change_id.client_incarnation = self._incarnation
        change_id.sequence = self._sequence
        return self._changing

    async def _ask(self, call: Callable[..., Awaitable[T]], *, name: str | None = None) -> T:
        """Every call may be repeated: it only looks, or its change has a name. `name` is the topic that is meant."""
        cluster = self._cluster

        async def ask(channel: grpc.aio.Channel, timeout_s: float) -> T:
            stub = controller_pb2_grpc.ControllerAdminServiceStub(channel)
            return await call(stub, timeout=timeout_s, metadata=cluster.metadata)

        try:
            return await cluster.ask_anyone(ask, timeout_s=self._timeout_s, may_repeat=True)
        except UnknownTopicError as error:
            raise (unknown_topic(name) if name is not None else error) from None


def _partition(topic: str, partition: int) -> controller_pb2.PartitionRef:
    return controller_pb2.PartitionRef(
        topic=topics_pb2.TopicRef(name=topic), partition=check_whole("partition", partition, 0, PARTITIONS_MAX)
    )


def _broker(broker_id: int) -> int:
    return check_whole("broker_id", broker_id, 1, BROKER_ID_MAX)
