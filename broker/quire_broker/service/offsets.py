"""ListOffsets: the first offset, the next, or the first one at or after a moment."""

from __future__ import annotations

import asyncio
from typing import Final

from quire.errors import InvalidArgumentError, QuireError, UnavailableError
from quire.process.rpc.context import current
from quire.refusals import refusal_of
from quire.v1 import broker_pb2
from quire_broker.runtime.partition import NO_OFFSET, Partition
from quire_broker.runtime.partitions import Partitions
from quire_broker.service.answers import COPIES, Answers, CallContext
from quire_broker.service.reading import check_isolation

QUERIES_MAX: Final = 1_000
SLICE: Final = 64
"""Queries that are answered in one turn of the loop."""


class Offsets:
    """Finds offsets on behalf of clients."""

    def __init__(self, partitions: Partitions, answers: Answers) -> None:
        self._partitions = partitions
        self._answers = answers
        self._searching = asyncio.Lock()
        """To find a moment takes decoding a batch. One at a time, or the loop would do nothing else."""

    async def list_offsets(
        self, request: broker_pb2.ListOffsetsRequest, context: CallContext
    ) -> broker_pb2.ListOffsetsResponse:
        if not 1 <= len(request.queries) <= QUERIES_MAX:
            raise InvalidArgumentError(f"a request has 1 to {QUERIES_MAX} queries, not {len(request.queries)}")
        check_isolation(request.isolation)
        caller = self._answers.caller(context)
        await self._answers.room(caller, deadline=current().deadline)
        response = broker_pb2.ListOffsetsResponse()
        for number, query in enumerate(request.queries):
            if number % SLICE == SLICE - 1:
                await self._answers.turns.next()
            try:
                response.offsets.append(await self._find(query))
            except QuireError as error:
                response.offsets.add(refusal=refusal_of(error), offset=NO_OFFSET, timestamp_ms=NO_OFFSET)
        self._answers.keep(caller, self._answers.lend(caller, COPIES * response.ByteSize()))
        return response

    async def _find(self, query: broker_pb2.OffsetQuery) -> broker_pb2.OffsetFound:
        topic = self._partitions.topic(current().tenant, query.topic)
        epoch = query.leader_epoch if query.HasField("leader_epoch") else None
        partition = self._partitions.led(topic, query.partition, epoch)
        leader_epoch = partition.leader_epoch
        offset = timestamp_ms = NO_OFFSET
        if query.place == broker_pb2.OFFSET_PLACE_EARLIEST:
            offset = partition.start_offset
        elif query.place == broker_pb2.OFFSET_PLACE_LATEST:
            offset = partition.latest_offset()
        elif query.place == broker_pb2.OFFSET_PLACE_TIMESTAMP:
            if query.timestamp_ms < 0:
                raise InvalidArgumentError(f"{query.timestamp_ms} is no moment since 1970")
            timestamp_ms, offset = await self._search(partition, query.timestamp_ms, epoch)
        else:
            raise InvalidArgumentError("say which offset: the earliest, the latest, or the first one after a moment")
        return broker_pb2.OffsetFound(offset=offset, timestamp_ms=timestamp_ms, leader_epoch=leader_epoch)

    async def _search(self, partition: Partition, timestamp_ms: int, epoch: int | None) -> tuple[int, int]:
        """(timestamp, offset) of the first record that is so late; -1 and -1 without one."""
        loop = asyncio.get_running_loop()
        async with self._searching:
            if loop.time() >= current().deadline:
                raise UnavailableError("there was no time to look for this moment; ask for fewer at once")
            self._partitions.check_led(partition, epoch)
            partition.latest_offset()  # or what was just committed elsewhere would not be found
            began = loop.time()
            found = partition.find_time(timestamp_ms)
            await asyncio.sleep(loop.time() - began)  # as long again for everybody else
        return (NO_OFFSET, NO_OFFSET) if found is None else (found.timestamp_ms, found.offset)
