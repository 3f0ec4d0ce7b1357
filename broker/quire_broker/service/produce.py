"""Produce, and what it shares with ProduceStream: records go to partitions, answers come when they hold.

    take ──► translate ──► hand over ──► written, synced, committed ──► answer

Of one caller's requests the next is looked at when the one before is handed over, so they stay in their order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

from google.protobuf.message import Message

from quire.errors import (
    DiskFullError,
    InvalidArgumentError,
    MalformedBatchError,
    OutcomeUnknownError,
    QuireError,
    UnavailableError,
)
from quire.process.rpc.context import current
from quire.records.header import LENGTH_FIELD_END, iter_batches, parse_header
from quire.refusals import refusal_of
from quire.types import Buffer
from quire.v1 import broker_pb2, durability_pb2, records_pb2
from quire_broker.runtime.budget import Charge
from quire_broker.runtime.log_writer import Outcome, Stored
from quire_broker.runtime.partition import Partition
from quire_broker.runtime.partitions import Partitions
from quire_broker.service.answers import COPIES, Answers, CallContext, Caller, Loan
from quire_broker.service.encode import RECORDS_MAX, encode_records
from quire_broker.service.wire import Received

ENTRIES_MAX: Final = 1_000
BATCHES_MAX: Final = 4_000
"""Raw batches in all entries of a request: each takes its time, however small."""
WAIT_MS: Final = 30_000
WAIT_MS_MAX: Final = 300_000
REQUEST_BYTES: Final = 1_024
"""What a request takes beside its records: a million tiny ones are not free."""
ENTRY_BYTES: Final = 4_096
"""What an entry takes beside its records until its caller has the answer, which may be a refusal of full length."""
SLICE: Final = 20
"""Entries that are looked at in one turn of the loop."""

Asked: TypeAlias = "Received[broker_pb2.ProduceRequest] | Received[broker_pb2.ProduceStreamRequest]"


class Observer(Protocol):
    def produced(self, *, batches: int, size_bytes: int) -> None: ...


class _Entry:
    """Records for one partition, on their way."""

    __slots__ = ("answer", "asked", "batches", "epoch", "error", "partition")

    def __init__(self, asked: broker_pb2.PartitionRecords) -> None:
        self.asked = asked
        self.error: QuireError | None = None
        self.batches: list[Buffer] = []
        self.partition: Partition | None = None
        self.epoch = -1
        self.answer: asyncio.Future[list[Outcome]] | None = None


class Work:
    """A request that is being carried out."""

    __slots__ = ("acks", "answering", "entries", "storing", "wait_ms_max")

    def __init__(self, received: Asked, *, storing: Charge, answering: Charge) -> None:
        self.acks = received.message.acks
        self.wait_ms_max = received.message.wait_ms_max or WAIT_MS
        self.entries: list[_Entry] = []
        self.storing = storing
        """What its records take: until it is done, and none of them waits to be written any more."""
        self.answering = answering
        """What its answer takes: until its caller has it."""

    def finished(self) -> None:
        """The answer is known. The records may still be on their way, if nobody waits for them."""
        self.entries = []
        self.storing.let_go()


class Producing:
    """Stores records on behalf of clients."""

    def __init__(
        self,
        partitions: Partitions,
        answers: Answers,
        *,
        has_room: Callable[[], bool],
        now_ms: Callable[[], int],
        observer: Observer,
    ) -> None:
        """`has_room` says whether the disk is above its watermark."""
        self._partitions = partitions
        self._answers = answers
        self._has_room = has_room
        self._now_ms = now_ms
        self._observer = observer
        self.stopping = False

    def stop(self) -> None:
        """Take nothing more."""
        self.stopping = True

    async def produce(
        self, request: Received[broker_pb2.ProduceRequest], context: CallContext
    ) -> broker_pb2.ProduceResponse:
        caller = self._answers.caller(context)
        deadline = asyncio.get_running_loop().time() + (request.message.wait_ms_max or WAIT_MS) / 1000
        if context.time_remaining() is not None:
            # What is known of some partitions by then would not be heard if the caller had hung up.
            deadline = min(deadline, current().deadline)
        work = self.take(request, caller)
        try:
            await self.hand_over(request, work)
            response = broker_pb2.ProduceResponse(partitions=await self.finish(work, deadline=deadline))
        except BaseException:
            work.answering.let_go()
            raise
        finally:
            work.finished()
        self._answers.keep(caller, self.answer(work, response, caller))
        return response

    # -- one request -----------------------------------------------------------------------------------------------

    def take(self, received: Asked, caller: Caller) -> Work:
        """Take a request into memory. Raises QuireError for one that is refused as a whole."""
        request = received.message
        if self.stopping:
            raise UnavailableError("this broker is stopping; find the partitions' leaders anew")
        if not 1 <= len(request.partitions) <= ENTRIES_MAX:
            raise InvalidArgumentError(f"a request has 1 to {ENTRIES_MAX} entries, not {len(request.partitions)}")
        if request.wait_ms_max < 0 or request.wait_ms_max > WAIT_MS_MAX:
            raise InvalidArgumentError(f"wait_ms_max lies between 0 and {WAIT_MS_MAX}, not {request.wait_ms_max}")
        if request.acks not in _ACKS:
            raise InvalidArgumentError(f"there is no acks {request.acks}")
        if not self._has_room():
            raise DiskFullError("the disk of this broker is almost full, so it takes nothing; an operator makes room")
        budgets = (self._answers.memory.requests, caller.connection)
        storing, answering = Charge(*budgets), Charge(*budgets)
        answer_bytes = REQUEST_BYTES + ENTRY_BYTES * len(request.partitions)
        storing.take(received.size_bytes + answer_bytes)
        # Both are asked for at once, or half a request would keep itself out.
        storing.add(-answer_bytes)
        answering.add(answer_bytes)
        return Work(received, storing=storing, answering=answering)

    async def hand_over(self, received: Asked, work: Work) -> None:
        """Let the partitions write, in the order of the entries. Raises QuireError if nothing was handed over."""
        await self._translate(received, work)
        if self.stopping:
            raise UnavailableError("this broker is stopping; find the partitions' leaders anew")
        tenant = current().tenant
        for number, entry in enumerate(work.entries):
            if number % SLICE == SLICE - 1:
                await self._answers.turns.next()
            if entry.error is None:
                try:
                    self._hand_over(entry, tenant, work)
                except QuireError as error:
                    entry.error = error.with_traceback(None)  # which would keep in memory all that it has seen

    async def _translate(self, received: Asked, work: Work) -> None:
        """Make batches of what was sent, or find out what is wrong with it."""
        batches = records = 0
        for number, asked in enumerate(received.message.partitions):
            if number % SLICE == SLICE - 1:
                await self._answers.turns.next()
            entry = _Entry(asked)
            try:
                if asked.records.WhichOneof("form") == "decoded":
                    records += len(asked.records.decoded.records)
                    if records > RECORDS_MAX:
                        raise InvalidArgumentError(
                            f"a request has at most {RECORDS_MAX} records that are messages; send fewer at once"
                        )
                    entry.batches = encode_records(asked.records.decoded.records, now_ms=self._now_ms())
                else:
                    raw = received.raw[number] if received.raw else None
                    entry.batches = _batches_of(asked.records, raw, count_max=BATCHES_MAX - batches)
                    batches += len(entry.batches)
            except QuireError as error:
                entry.error = error.with_traceback(None)
            work.entries.append(entry)

    def _hand_over(self, entry: _Entry, tenant: str, work: Work) -> None:
        asked = entry.asked
        topic = self._partitions.topic(tenant, asked.topic)
        epoch = asked.leader_epoch if asked.HasField("leader_epoch") else None
        partition = self._partitions.led(topic, asked.partition, epoch)
        if topic.internal:
            raise InvalidArgumentError(f"'{topic.name}' is a topic of Quire's own; nobody else writes to it")
        if work.acks not in (durability_pb2.ACKS_NONE, durability_pb2.ACKS_LEADER):
            partition.check_enough_replicas()
        entry.partition, entry.epoch = partition, partition.leader_epoch
        entry.answer = partition.submit(entry.batches)
        # Whoever hangs up, or does not wait, leaves them in memory all the same.
        work.storing.hold()
        entry.answer.add_done_callback(lambda answer: _written(answer, work.storing))
        self._observer.produced(batches=len(entry.batches), size_bytes=sum(map(len, entry.batches)))

    async def finish(self, work: Work, *, deadline: float) -> list[broker_pb2.PartitionStored]:
        """What became of the records, as soon as it holds."""
        answers: list[broker_pb2.PartitionStored] = []
        for number, entry in enumerate(work.entries):
            if number % SLICE == SLICE - 1:
                await self._answers.turns.next()
            try:
                async with asyncio.timeout_at(deadline):
                    answers.append(await self._finish_entry(entry, work.acks))
            except TimeoutError:
                late = "the records were not stored everywhere in the time that the request gives"
                answers.append(_refused(OutcomeUnknownError(late), entry))
        return answers

    def answer(self, work: Work, response: Message, caller: Caller) -> Loan:
        """What the answer takes from now on."""
        work.answering.add(max(0, COPIES * response.ByteSize() - work.answering.size_bytes))
        return Loan(self._answers, caller, work.answering)

    async def _finish_entry(self, entry: _Entry, acks: int) -> broker_pb2.PartitionStored:
        answer, partition = entry.answer, entry.partition
        if entry.error is not None or answer is None or partition is None:
            return _refused(entry.error or OutcomeUnknownError("nobody knows"), entry)
        if acks == durability_pb2.ACKS_NONE:
            return broker_pb2.PartitionStored(
                base_offset=-1,
                end_offset=-1,
                leader_epoch=entry.epoch,
                durability=durability_pb2.Durability(replicas=0, fsynced=False),
            )
        try:
            # Not the answer itself, which is of the batches: to stop waiting for them takes nothing back.
            outcomes = await asyncio.shield(answer)
            replicas = 1
            end = max((each.end_offset for each in outcomes if isinstance(each, Stored)), default=0)
            if end and acks == durability_pb2.ACKS_LEADER:
                self._check_still_led(partition, entry.epoch)
            elif end:
                waiting = partition.committed(end, epoch=entry.epoch)
                if waiting is not None:
                    await waiting
                replicas = partition.replicas_counting(end)
        except QuireError as error:
            return _refused(error, entry)
        return _stored(outcomes, entry, replicas)

    def _check_still_led(self, partition: Partition, epoch: int) -> None:
        """Raise OutcomeUnknownError if the leadership ended meanwhile: its successor need not have the records."""
        try:
            self._partitions.check_led(partition, epoch)
        except QuireError as error:
            raise OutcomeUnknownError(
                f"the leadership of {partition} ended while the records were being stored; they may be kept or not"
            ) from error


# --- translation ---------------------------------------------------------------------------------------------------

_ACKS: Final = frozenset(durability_pb2.Acks.values())


def _batches_of(records: records_pb2.RecordSet, taken_out: memoryview | None, *, count_max: int) -> list[Buffer]:
    if records.WhichOneof("form") is None:
        raise InvalidArgumentError("there are no records for one of the partitions")
    raw = records.raw_batches if taken_out is None else taken_out
    if len(raw) >= LENGTH_FIELD_END and parse_header(raw).size_bytes == len(raw) and count_max:
        return [raw]  # one batch, as almost always
    view = memoryview(raw)
    batches: list[Buffer] = []
    for at, header in iter_batches(view, check=False):
        if len(batches) == count_max:
            raise InvalidArgumentError(f"a request has at most {BATCHES_MAX} batches; send fewer at once")
        batches.append(view[at : at + header.size_bytes])
    if not batches:
        raise MalformedBatchError("there is not one batch for one of the partitions")
    return batches


def _refused(error: QuireError, entry: _Entry) -> broker_pb2.PartitionStored:
    return broker_pb2.PartitionStored(
        refusal=refusal_of(error), base_offset=-1, end_offset=-1, leader_epoch=entry.epoch
    )


def _stored(outcomes: Sequence[Outcome], entry: _Entry, replicas: int) -> broker_pb2.PartitionStored:
    if len(outcomes) == 1 or _lie_together(outcomes):
        first, last = outcomes[0], outcomes[-1]
        if isinstance(first, QuireError):
            return _refused(first, entry)
        if isinstance(last, Stored):
            return broker_pb2.PartitionStored(
                base_offset=first.base_offset,
                end_offset=last.end_offset,
                duplicate=first.duplicate,
                durability=durability_pb2.Durability(
                    replicas=replicas, fsynced=all(isinstance(each, Stored) and each.fsynced for each in outcomes)
                ),
                leader_epoch=entry.epoch,
            )
    stored = [each for each in outcomes if isinstance(each, Stored)]
    failed = [each for each in outcomes if isinstance(each, QuireError)]
    return broker_pb2.PartitionStored(
        refusal=refusal_of(failed[0]) if failed else None,
        base_offset=min((each.base_offset for each in stored), default=-1),
        end_offset=max((each.end_offset for each in stored), default=-1),
        duplicate=bool(stored) and all(each.duplicate for each in stored),
        durability=durability_pb2.Durability(
            replicas=replicas if stored else 0, fsynced=bool(stored) and all(each.fsynced for each in stored)
        ),
        leader_epoch=entry.epoch,
        batches=[
            broker_pb2.BatchStored(base_offset=each.base_offset, duplicate=each.duplicate)
            if isinstance(each, Stored)
            else broker_pb2.BatchStored(refusal=refusal_of(each), base_offset=-1)
            for each in outcomes
        ],
    )


def _lie_together(outcomes: Sequence[Outcome]) -> bool:
    """Whether all batches were stored one behind the other, now or all before."""
    expected = None
    for each in outcomes:
        if not isinstance(each, Stored) or (expected is not None and (each.base_offset, each.duplicate) != expected):
            return False
        expected = (each.end_offset, each.duplicate)
    return True


def _written(answer: asyncio.Future[list[Outcome]], storing: Charge) -> None:
    storing.let_go()
    if not answer.cancelled():
        answer.exception()  # of no interest where nobody waits for it any more
