"""The rest of ControllerAdminService: the quorum, brokers, leaders and replicas."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from quire.errors import InvalidArgumentError, NotEnoughBrokersError
from quire.v1 import commands_pb2, controller_pb2, controller_pb2_grpc, metadata_pb2
from quire_controller.runtime.controller import ControllerRuntime
from quire_controller.service.changes import Change, checked
from quire_controller.service.lookups import check_broker_id, check_some, partition_of
from quire_controller.service.topics import TopicAdmin
from quire_controller.state import elections, limits, placement
from quire_controller.state.checks import check_limit
from quire_controller.state.codec import broker_message
from quire_controller.state.machine import ControllerState
from quire_controller.state.model import DrainGoal, Partition, PartitionKey
from quire_controller.state.tables import Tables

PARTITIONS_A_TURN: Final = 5_000
"""Partitions that are looked at before the rest of the loop has its turn: Raft's heartbeats among it."""


class ControllerAdminServicer(TopicAdmin, controller_pb2_grpc.ControllerAdminServiceServicer):
    def __init__(
        self,
        runtime: ControllerRuntime,
        state: ControllerState,
        *,
        randomness: random.Random,
        describe_quorum: Callable[[], controller_pb2.DescribeQuorumResponse],
        feature_level_max: Callable[[], Awaitable[int]],
    ) -> None:
        """`feature_level_max` asks every controller; it raises UnavailableError unless all answer."""
        super().__init__(runtime, state, randomness=randomness)
        self._describe_quorum = describe_quorum
        self._feature_level_max = feature_level_max
        self._counting = asyncio.Lock()

    # -- reading ---------------------------------------------------------------------------------------------------

    async def DescribeQuorum(
        self, request: controller_pb2.DescribeQuorumRequest, context: object
    ) -> controller_pb2.DescribeQuorumResponse:
        return self._describe_quorum()

    async def DescribeCluster(
        self, request: controller_pb2.DescribeClusterRequest, context: object
    ) -> controller_pb2.DescribeClusterResponse:
        await self._look(stale_ok=request.stale_ok)
        async with self._counting:
            state = self._state
            response = controller_pb2.DescribeClusterResponse(
                version=state.version,
                topics=len(state.topics),
                partitions=len(state.partitions),
                leaderless=len(state.tables.leaderless),
                moving=len(state.tables.moving),
                reassigning=len(state.tables.reassigning),
                deleted_topics=len(state.deleted_topics),
            )
            if state.cluster is not None:
                response.cluster.cluster_id = state.cluster.cluster_id
                response.cluster.feature_level = state.cluster.feature_level
            if state.controller is not None:
                response.active_controller.term = state.controller.term
                response.active_controller.controller_id = state.controller.controller_id
            brokers = [state.brokers[broker_id] for broker_id in sorted(state.brokers)]
            held = {broker_id: len(partitions) for broker_id, partitions in state.tables.replicas_on.items()}
            led, response.under_replicated = await _count(list(state.partitions.values()))
        for broker in brokers:
            response.brokers.add(
                broker=broker_message(broker),
                replicas=held.get(broker.broker_id, 0),
                leaderships=led[broker.broker_id],
            )
        return response

    # -- brokers ---------------------------------------------------------------------------------------------------

    async def DrainBroker(
        self, request: controller_pb2.DrainBrokerRequest, context: object
    ) -> controller_pb2.DrainBrokerResponse:
        check_broker_id(request.broker_id)
        if request.goal not in metadata_pb2.DrainGoal.values():
            raise InvalidArgumentError("a broker is drained of leaderships, of replicas, or not at all")
        change = Change(self._runtime, self._state, request)
        result = await change.look()
        if result is None:
            if request.goal == metadata_pb2.DRAIN_GOAL_REPLICAS:
                _check_room(self._state.tables, request.broker_id)
            change.command.drain_broker.CopyFrom(
                commands_pb2.DrainBroker(broker_id=request.broker_id, goal=request.goal)
            )
            result = await change.submit("done")
        return controller_pb2.DrainBrokerResponse(version=checked(result, "done").index)

    async def UnregisterBroker(
        self, request: controller_pb2.UnregisterBrokerRequest, context: object
    ) -> controller_pb2.UnregisterBrokerResponse:
        check_broker_id(request.broker_id)
        change = Change(self._runtime, self._state, request)
        result = await change.look()
        if result is None:
            broker = self._state.tables.broker(request.broker_id)
            change.command.unregister_broker.CopyFrom(
                commands_pb2.UnregisterBroker(
                    broker_id=request.broker_id, broker_epoch=request.broker_epoch or broker.broker_epoch
                )
            )
            result = await change.submit("done")
        return controller_pb2.UnregisterBrokerResponse(version=checked(result, "done").index)

    async def RaiseFeatureLevel(
        self, request: controller_pb2.RaiseFeatureLevelRequest, context: object
    ) -> controller_pb2.RaiseFeatureLevelResponse:
        if not request.level:
            raise InvalidArgumentError("feature levels begin with 1")
        change = Change(self._runtime, self._state, request)
        result = await change.look()
        if result is None:
            change.command.raise_feature_level.CopyFrom(
                commands_pb2.RaiseFeatureLevel(
                    level=request.level, controller_level_max=await self._feature_level_max()
                )
            )
            result = await change.submit("done")
        return controller_pb2.RaiseFeatureLevelResponse(version=checked(result, "done").index)

    # -- replicas and leaders --------------------------------------------------------------------------------------

    async def ReassignPartition(
        self, request: controller_pb2.ReassignPartitionRequest, context: object
    ) -> controller_pb2.ReassignPartitionResponse:
        check_some("brokers", len(request.target), limits.REPLICATION_FACTOR_MAX)
        change = Change(self._runtime, self._state, request)
        result = await change.look()
        if result is None:
            change.command.reassign_partition.CopyFrom(
                commands_pb2.ReassignPartition(
                    partition=partition_of(self._state, request.partition), target=request.target
                )
            )
            result = await change.submit("done")
        return controller_pb2.ReassignPartitionResponse(version=checked(result, "done").index)

    async def CancelReassignment(
        self, request: controller_pb2.CancelReassignmentRequest, context: object
    ) -> controller_pb2.CancelReassignmentResponse:
        change = Change(self._runtime, self._state, request)
        result = await change.look()
        if result is None:
            change.command.cancel_reassignment.partition.CopyFrom(partition_of(self._state, request.partition))
            result = await change.submit("done")
        return controller_pb2.CancelReassignmentResponse(version=checked(result, "done").index)

    async def MoveLeaders(
        self, request: controller_pb2.MoveLeadersRequest, context: object
    ) -> controller_pb2.MoveLeadersResponse:
        check_some("moves", len(request.moves), limits.PARTITIONS_PER_COMMAND_MAX)
        change = Change(self._runtime, self._state, request)
        result = await change.look()
        if result is None:
            for move in request.moves:
                change.command.move_leaders.moves.add(
                    partition=partition_of(self._state, move.partition), to_broker=move.to_broker
                )
            result = await change.submit("partitions")
        outcomes = checked(result, "partitions").partitions.outcomes
        return controller_pb2.MoveLeadersResponse(outcomes=outcomes, version=result.index)

    async def ElectPreferredLeaders(
        self, request: controller_pb2.ElectPreferredLeadersRequest, context: object
    ) -> controller_pb2.ElectPreferredLeadersResponse:
        check_limit("partitions in one request", len(request.partitions), limits.PARTITIONS_PER_COMMAND_MAX)
        change = Change(self._runtime, self._state, request)
        result, left = await change.look(), 0
        if result is None:
            partitions = self._partitions(request.partitions)
            if not request.partitions:
                elsewhere = self._led_elsewhere()
                chosen = elsewhere[: limits.PARTITIONS_PER_COMMAND_MAX]
                left = len(elsewhere) - len(chosen)
                partitions = [_at(self._state.partitions[key]) for key in chosen]
            change.command.elect_preferred_leaders.CopyFrom(commands_pb2.ElectPreferredLeaders(partitions=partitions))
            result = await change.submit("partitions")
        outcomes = checked(result, "partitions").partitions.outcomes
        return controller_pb2.ElectPreferredLeadersResponse(outcomes=outcomes, version=result.index, left=left)

    async def ElectUncleanLeaders(
        self, request: controller_pb2.ElectUncleanLeadersRequest, context: object
    ) -> controller_pb2.ElectUncleanLeadersResponse:
        check_some("partitions", len(request.partitions), limits.PARTITIONS_PER_COMMAND_MAX)
        change = Change(self._runtime, self._state, request)
        result = await change.look()
        if result is None:
            change.command.elect_unclean.CopyFrom(
                commands_pb2.ElectUnclean(partitions=self._partitions(request.partitions))
            )
            result = await change.submit("partitions")
        outcomes = checked(result, "partitions").partitions.outcomes
        return controller_pb2.ElectUncleanLeadersResponse(outcomes=outcomes, version=result.index)

    def _led_elsewhere(self) -> list[PartitionKey]:
        """Those that their preferred leaders can take over. The others must not keep them from having their turn.

        One that is being drained would have to give them away again at once.
        """
        tables = self._state.tables
        roster = elections.Roster(tables.brokers)

        def may_move(partition: Partition) -> bool:
            preferred = partition.preferred_leader
            return elections.may_move(partition, preferred, roster) and not roster.is_draining(preferred)

        return [key for key in sorted(tables.elsewhere_led) if may_move(tables.partitions[key])]

    def _partitions(self, refs: Iterable[controller_pb2.PartitionRef]) -> list[commands_pb2.PartitionAt]:
        return [partition_of(self._state, ref) for ref in refs]


async def _count(partitions: Sequence[Partition]) -> tuple[Counter[int], int]:
    """How many partitions each broker leads, and how many have fewer in sync than they have replicas."""
    led: Counter[int] = Counter()
    under_replicated = 0
    for first in range(0, len(partitions), PARTITIONS_A_TURN):
        await asyncio.sleep(0)
        for partition in partitions[first : first + PARTITIONS_A_TURN]:
            if partition.leader is not None:
                led[partition.leader] += 1
            under_replicated += len(partition.isr) < len(partition.replicas)
    return led, under_replicated


def _check_room(tables: Tables, broker_id: int) -> None:
    """Raise UnknownBrokerError, or NotEnoughBrokersError if a replica would have nowhere to go."""
    tables.broker(broker_id)
    takers = [each.broker_id for each in placement.candidates(tables) if each.broker_id != broker_id]
    leaving = {broker_id} | {each.broker_id for each in tables.brokers.values() if each.drain is DrainGoal.REPLICAS}
    stuck = [each for each in tables.partitions_on(broker_id) if _is_stuck(each, broker_id, leaving, set(takers))]
    if stuck:
        name = tables.topics[stuck[0].key.topic_id].name
        raise NotEnoughBrokersError(
            f"no broker could take {len(stuck)} of the replicas of broker {broker_id}, such as that of "
            f"{name}/{stuck[0].key.partition}: no two replicas of a partition are on one broker, and those "
            f"that are active and not being drained are {', '.join(map(str, takers)) or 'none'}; start another one",
            broker_id=broker_id,
            partitions=len(stuck),
        )


def _is_stuck(partition: Partition, broker_id: int, leaving: set[int], takers: set[int]) -> bool:
    """Whether the takers are too few for what it will have on those that are leaving, once its move is over."""
    move = partition.reassignment
    replicas = set(partition.replicas if move is None else move.target)
    return broker_id in replicas and len(takers - replicas) < len(leaving & replicas)


def _at(partition: Partition) -> commands_pb2.PartitionAt:
    return commands_pb2.PartitionAt(
        topic_id=partition.key.topic_id,
        partition=partition.key.partition,
        partition_epoch=partition.partition_epoch,
    )
