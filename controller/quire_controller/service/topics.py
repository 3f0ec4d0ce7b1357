"""The part of ControllerAdminService that is about topics."""

from __future__ import annotations

import asyncio
import heapq
import random
from typing import Final

from quire.errors import InvalidArgumentError
from quire.process.rpc.context import current
from quire.v1 import commands_pb2, controller_pb2
from quire_controller.runtime.controller import ControllerRuntime
from quire_controller.service import calls
from quire_controller.service.changes import Change, checked
from quire_controller.service.lookups import (
    check_partition_count,
    check_replication_factor,
    default_replication_factor,
    new_topic_id,
    topic_of,
    users_topic_of,
)
from quire_controller.state import limits, topic_settings
from quire_controller.state.checks import TOPIC_NAME, check_limit, check_range, check_topic_name
from quire_controller.state.codec import partition_message, topic_message
from quire_controller.state.machine import ControllerState

PAGE_SIZE_MAX: Final = 1_000
PARTITIONS_A_TURN: Final = 1_000
"""Partitions that are described before the rest of the loop has its turn: Raft's heartbeats among it."""


class TopicAdmin:
    def __init__(self, runtime: ControllerRuntime, state: ControllerState, *, randomness: random.Random) -> None:
        self._runtime = runtime
        self._state = state
        self._randomness = randomness

    # -- reading ---------------------------------------------------------------------------------------------------

    async def ListTopics(
        self, request: controller_pb2.ListTopicsRequest, context: object
    ) -> controller_pb2.ListTopicsResponse:
        size = check_range("page_size", request.page_size, 0, PAGE_SIZE_MAX) or PAGE_SIZE_MAX
        after = request.page_token
        if after and not TOPIC_NAME.fullmatch(after):
            raise InvalidArgumentError("the page token is none that an answer had")
        await self._look(stale_ok=request.stale_ok)
        tenant = current().tenant
        found = (
            topic
            for topic in self._state.topics.values()
            if topic.tenant == tenant and topic.name > after and (request.include_internal or not topic.internal)
        )
        page = heapq.nsmallest(size + 1, found, key=lambda topic: topic.name)
        return controller_pb2.ListTopicsResponse(
            topics=map(topic_message, page[:size]),
            next_page_token=page[size - 1].name if len(page) > size else "",
            version=self._state.version,
        )

    async def DescribeTopic(
        self, request: controller_pb2.DescribeTopicRequest, context: object
    ) -> controller_pb2.DescribeTopicResponse:
        await self._look(stale_ok=request.stale_ok)
        topic = topic_of(self._state, request.topic)
        response = controller_pb2.DescribeTopicResponse(topic=topic_message(topic), version=self._state.version)
        partitions = self._state.partitions_of(topic.topic_id)
        for first in range(0, len(partitions), PARTITIONS_A_TURN):
            response.partitions.extend(map(partition_message, partitions[first : first + PARTITIONS_A_TURN]))
            await asyncio.sleep(0)
        return response

    async def _look(self, *, stale_ok: bool) -> None:
        if not stale_ok:
            await calls.read(self._runtime)

    # -- changing --------------------------------------------------------------------------------------------------

    async def CreateTopic(
        self, request: controller_pb2.CreateTopicRequest, context: object
    ) -> controller_pb2.CreateTopicResponse:
        check_topic_name(request.name, internal=False)
        check_partition_count(request.partition_count, least=0)
        check_replication_factor(request.replication_factor)
        check_limit("assignments", len(request.assignments), limits.PARTITIONS_PER_TOPIC_MAX)
        change = Change(self._runtime, self._state, request)
        replication_factor = request.replication_factor
        if request.assignments:
            replication_factor = replication_factor or len(request.assignments[0].replicas)
        elif not replication_factor:
            if (earlier := await change.look()) is not None:
                return _created(checked(earlier, "topic_created"))
            replication_factor = default_replication_factor(self._state)
        topic_settings.checked(request.config, replication_factor=replication_factor)
        change.command.create_topic.CopyFrom(
            commands_pb2.CreateTopic(
                topic_id=new_topic_id(self._randomness),
                tenant=current().tenant,
                name=request.name,
                partition_count=request.partition_count or len(request.assignments) or 1,
                replication_factor=replication_factor,
                config=request.config,
                placement_seed=self._randomness.getrandbits(64),
                assignments=request.assignments,
            )
        )
        return _created(await change.submit("topic_created"))

    async def DeleteTopic(
        self, request: controller_pb2.DeleteTopicRequest, context: object
    ) -> controller_pb2.DeleteTopicResponse:
        change = Change(self._runtime, self._state, request)
        result = await change.look()
        if result is None:
            topic = users_topic_of(self._state, request.topic)
            change.command.delete_topic.topic_id = topic.topic_id
            result = await change.submit("done")
        return controller_pb2.DeleteTopicResponse(version=checked(result, "done").index)

    async def ConfigureTopic(
        self, request: controller_pb2.ConfigureTopicRequest, context: object
    ) -> controller_pb2.ConfigureTopicResponse:
        check_limit("settings to unset", len(request.unset), len(topic_settings.NAMES))
        change = Change(self._runtime, self._state, request)
        result = await change.look()
        if result is None:
            topic = topic_of(self._state, request.topic)
            wanted = topic_settings.checked(request.set, replication_factor=topic.replication_factor)
            topic_settings.merged(topic.config, wanted, request.unset)
            change.command.configure_topic.CopyFrom(
                commands_pb2.ConfigureTopic(topic_id=topic.topic_id, set=request.set, unset=request.unset)
            )
            result = await change.submit("done")
        return controller_pb2.ConfigureTopicResponse(version=checked(result, "done").index)

    async def AddPartitions(
        self, request: controller_pb2.AddPartitionsRequest, context: object
    ) -> controller_pb2.AddPartitionsResponse:
        check_partition_count(request.partition_count, least=1)
        check_limit("assignments", len(request.assignments), limits.PARTITIONS_PER_TOPIC_MAX)
        change = Change(self._runtime, self._state, request)
        result = await change.look()
        if result is None:
            topic = users_topic_of(self._state, request.topic)
            change.command.add_partitions.CopyFrom(
                commands_pb2.AddPartitions(
                    topic_id=topic.topic_id,
                    partition_count=request.partition_count,
                    placement_seed=self._randomness.getrandbits(64),
                    assignments=request.assignments,
                )
            )
            result = await change.submit("done")
        return controller_pb2.AddPartitionsResponse(version=checked(result, "done").index)


def _created(result: commands_pb2.CommandResult) -> controller_pb2.CreateTopicResponse:
    return controller_pb2.CreateTopicResponse(topic_id=result.topic_created.topic_id, version=result.index)
