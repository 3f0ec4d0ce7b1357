"""ControllerService: what brokers and their supervisors ask."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping

from quire.errors import InvalidArgumentError, PeerRefusedError, TopicAlreadyExistsError, UnavailableError
from quire.process.rpc.context import current
from quire.v1 import commands_pb2, controller_pb2, controller_pb2_grpc
from quire_controller.runtime.controller import ControllerRuntime
from quire_controller.service import calls
from quire_controller.service.changes import Change
from quire_controller.service.lookups import (
    check_broker_id,
    check_partition_count,
    check_replication_factor,
    check_some,
    check_speaks_for,
    default_replication_factor,
    new_topic_id,
)
from quire_controller.service.watching import Watches
from quire_controller.state import limits, topic_settings
from quire_controller.state.checks import check_limit, check_range, check_topic_name, check_uuid, current_broker
from quire_controller.state.machine import ControllerState

FENCE_CAUSES = (commands_pb2.FENCE_CAUSE_CRASHED, commands_pb2.FENCE_CAUSE_STOPPING)
"""What others than the leading controller can know of."""


class ControllerServicer(controller_pb2_grpc.ControllerServiceServicer):
    def __init__(
        self,
        runtime: ControllerRuntime,
        state: ControllerState,
        watches: Watches,
        *,
        randomness: random.Random,
        addresses: Mapping[str, str],
    ) -> None:
        """`addresses` says where each member of the quorum is called, by id."""
        self._runtime = runtime
        self._state = state
        self._watches = watches
        self._randomness = randomness
        self._addresses = addresses

    async def RegisterBroker(
        self, request: controller_pb2.RegisterBrokerRequest, context: object
    ) -> controller_pb2.RegisterBrokerResponse:
        check_broker_id(request.broker_id)
        check_uuid("incarnation id", request.incarnation_id)
        check_limit("listeners", len(request.listeners), limits.LISTENERS_MAX)
        check_limit("log ends", len(request.log_ends), limits.LOG_ENDS_MAX)
        proven = current().node_id
        if proven is not None and request.node_id not in ("", proven):
            raise PeerRefusedError(
                f"the certificate is of node '{proven}', not {request.node_id[:80]!a}", refusal="CERTIFICATE"
            )
        change = Change(self._runtime, self._state, request)
        change.command.register_broker.CopyFrom(
            commands_pb2.RegisterBroker(
                cluster_id=request.cluster_id,
                broker_id=request.broker_id,
                incarnation_id=request.incarnation_id,
                node_id=request.node_id or proven or "",
                rack=request.rack,
                listeners=request.listeners,
                features=request.features,
                log_ends=request.log_ends,
            )
        )
        result = await change.submit("broker_registered")
        return controller_pb2.RegisterBrokerResponse(
            broker_epoch=result.broker_registered.broker_epoch, version=result.index
        )

    async def UnfenceBroker(
        self, request: controller_pb2.UnfenceBrokerRequest, context: object
    ) -> controller_pb2.UnfenceBrokerResponse:
        check_speaks_for(self._state, request.broker_id)
        change = Change(self._runtime, self._state, request)
        change.command.unfence_broker.CopyFrom(
            commands_pb2.UnfenceBroker(
                broker_id=request.broker_id, broker_epoch=request.broker_epoch, lease_ms=self._runtime.lease_ms
            )
        )
        result = await change.submit("done")
        return controller_pb2.UnfenceBrokerResponse(version=result.index)

    async def Heartbeat(
        self, request: controller_pb2.HeartbeatRequest, context: object
    ) -> controller_pb2.HeartbeatResponse:
        check_speaks_for(self._state, request.broker_id)
        try:
            answer = await calls.heartbeat(
                self._runtime,
                broker_id=request.broker_id,
                broker_epoch=request.broker_epoch,
                applied_version=request.applied_version,
            )
        except UnavailableError as error:
            leader = error.details.get("leader", "")
            if leader in self._addresses:
                error.details["leader_address"] = self._addresses[leader]
            raise
        if not answer.lease_ms:
            # The quorum has just confirmed what this member has: better say that another process has its id.
            current_broker(self._state.tables, request.broker_id, request.broker_epoch)
        return controller_pb2.HeartbeatResponse(lease_ms=answer.lease_ms, metadata_version=answer.metadata_version)

    async def FenceBroker(
        self, request: controller_pb2.FenceBrokerRequest, context: object
    ) -> controller_pb2.FenceBrokerResponse:
        check_speaks_for(self._state, request.broker_id)
        if request.cause not in FENCE_CAUSES:
            raise InvalidArgumentError("a broker stops, or crashed; that a lease expired only the controller can see")
        change = Change(self._runtime, self._state, request)
        change.command.fence_broker.CopyFrom(
            commands_pb2.FenceBroker(
                broker_id=request.broker_id, broker_epoch=request.broker_epoch, cause=request.cause
            )
        )
        result = await change.submit("done")
        return controller_pb2.FenceBrokerResponse(version=result.index)

    async def AlterPartitions(
        self, request: controller_pb2.AlterPartitionsRequest, context: object
    ) -> controller_pb2.AlterPartitionsResponse:
        check_speaks_for(self._state, request.broker_id)
        check_some("changes", len(request.changes), limits.PARTITIONS_PER_COMMAND_MAX)
        change = Change(self._runtime, self._state, request)
        change.command.alter_partitions.CopyFrom(
            commands_pb2.AlterPartitions(
                broker_id=request.broker_id, broker_epoch=request.broker_epoch, changes=request.changes
            )
        )
        result = await change.submit("partitions")
        return controller_pb2.AlterPartitionsResponse(outcomes=result.partitions.outcomes, version=result.index)

    async def AllocateProducerIds(
        self, request: controller_pb2.AllocateProducerIdsRequest, context: object
    ) -> controller_pb2.AllocateProducerIdsResponse:
        check_speaks_for(self._state, request.broker_id)
        check_range("count", request.count, 1, limits.PRODUCER_IDS_PER_BLOCK_MAX)
        change = Change(self._runtime, self._state, request)
        change.command.allocate_producer_ids.CopyFrom(
            commands_pb2.AllocateProducerIds(
                broker_id=request.broker_id, broker_epoch=request.broker_epoch, count=request.count
            )
        )
        block = (await change.submit("producer_ids")).producer_ids
        return controller_pb2.AllocateProducerIdsResponse(
            first_producer_id=block.first_producer_id, count=block.count
        )

    async def ConfirmDeletions(
        self, request: controller_pb2.ConfirmDeletionsRequest, context: object
    ) -> controller_pb2.ConfirmDeletionsResponse:
        check_speaks_for(self._state, request.broker_id)
        check_some("topic ids", len(request.topic_ids), limits.TOPIC_IDS_PER_COMMAND_MAX)
        change = Change(self._runtime, self._state, request)
        change.command.confirm_deletions.CopyFrom(
            commands_pb2.ConfirmDeletions(
                broker_id=request.broker_id, broker_epoch=request.broker_epoch, topic_ids=request.topic_ids
            )
        )
        result = await change.submit("done")
        return controller_pb2.ConfirmDeletionsResponse(version=result.index)

    async def EnsureInternalTopic(
        self, request: controller_pb2.EnsureInternalTopicRequest, context: object
    ) -> controller_pb2.EnsureInternalTopicResponse:
        name = check_topic_name(request.name, internal=True)
        check_partition_count(request.partition_count, least=1)
        check_replication_factor(request.replication_factor)
        change = Change(self._runtime, self._state, None)
        await change.look()
        tenant = current().tenant
        if (found := self._state.topic_named(tenant, name)) is not None:
            return controller_pb2.EnsureInternalTopicResponse(topic_id=found.topic_id, version=self._state.version)
        replication_factor = request.replication_factor or default_replication_factor(self._state)
        topic_settings.checked(request.config, replication_factor=replication_factor)
        change.command.create_topic.CopyFrom(
            commands_pb2.CreateTopic(
                topic_id=new_topic_id(self._randomness),
                tenant=tenant,
                name=name,
                internal=True,
                partition_count=request.partition_count,
                replication_factor=replication_factor,
                config=request.config,
                placement_seed=self._randomness.getrandbits(64),
            )
        )
        try:
            result = await change.submit("topic_created")
        except TopicAlreadyExistsError as error:
            # Another broker was faster. This member is to have applied that before it names a version.
            await calls.read(self._runtime)
            return controller_pb2.EnsureInternalTopicResponse(
                topic_id=bytes.fromhex(error.details["topic_id"]), version=self._state.version
            )
        return controller_pb2.EnsureInternalTopicResponse(
            topic_id=result.topic_created.topic_id, version=result.index
        )

    def WatchMetadata(
        self, request: controller_pb2.WatchMetadataRequest, context: object
    ) -> AsyncIterator[controller_pb2.WatchMetadataResponse]:
        return self._watches.watch(request)
