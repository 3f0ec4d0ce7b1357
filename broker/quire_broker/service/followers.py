"""DescribeFollowers: how far the other replicas are, as the leader of each partition knows it."""

from __future__ import annotations

from typing import Final

from quire.errors import InvalidArgumentError, QuireError
from quire.process.rpc.context import current
from quire.refusals import refusal_of
from quire.v1 import broker_pb2
from quire_broker.replica.streams import RECORDS
from quire_broker.runtime.partition import Partition
from quire_broker.runtime.partitions import Partitions
from quire_broker.service.answers import COPIES, Answers, CallContext

PARTITIONS_MAX: Final = 1_000
SLICE: Final = 64
"""Partitions that are described in one turn of the loop."""


class Followers:
    """Describes followers on behalf of clients."""

    def __init__(self, partitions: Partitions, answers: Answers) -> None:
        self._partitions = partitions
        self._answers = answers

    async def describe(
        self, request: broker_pb2.DescribeFollowersRequest, context: CallContext
    ) -> broker_pb2.DescribeFollowersResponse:
        if not 1 <= len(request.partitions) <= PARTITIONS_MAX:
            raise InvalidArgumentError(
                f"a request names 1 to {PARTITIONS_MAX} partitions, not {len(request.partitions)}"
            )
        caller = self._answers.caller(context)
        await self._answers.room(caller, deadline=current().deadline)
        response = broker_pb2.DescribeFollowersResponse()
        for number, asked in enumerate(request.partitions):
            if number % SLICE == SLICE - 1:
                await self._answers.turns.next()
            try:
                topic = self._partitions.topic(current().tenant, asked.topic)
                epoch = asked.leader_epoch if asked.HasField("leader_epoch") else None
                response.partitions.append(_found(self._partitions.led(topic, asked.partition, epoch)))
            except QuireError as error:
                response.partitions.add(refusal=refusal_of(error))
        self._answers.keep(caller, self._answers.lend(caller, COPIES * response.ByteSize()))
        return response


def _found(partition: Partition) -> broker_pb2.FollowersFound:
    log, leader = partition.writer.log, partition.replica.leader
    found = broker_pb2.FollowersFound(
        leader_epoch=partition.leader_epoch,
        log_end_offset=log.end_offset,
        high_watermark=partition.high_watermark,
    )
    for broker_id, lag in ({} if leader is None else leader.lag()).items():
        follower = found.followers.add(broker_id=broker_id, following=lag is not None)
        if lag is not None:
            follower.lag = lag.get(RECORDS, 0)
            try:
                follower.lag_bytes = log.bytes_from(log.end_offset - follower.lag)
            except QuireError:
                follower.ClearField("lag_bytes")  # the index is damaged, and nobody has looked at it yet
    return found
