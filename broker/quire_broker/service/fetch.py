"""Fetch: many partitions at once, and a wait if there is nothing yet."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from quire.errors import InvalidArgumentError, QuireError, UnavailableError
from quire.process.rpc.context import current
from quire.refusals import refusal_of
from quire.v1 import broker_pb2
from quire_broker.runtime.partition import Partition
from quire_broker.service.answers import MESSAGE_BYTES, Answers, CallContext, Caller, Loan
from quire_broker.service.reading import FORMS, PARTITION_BYTES, Reading, check_isolation, tell
from quire_broker.service.splice import Fetched, Spliced

PARTITIONS_MAX: Final = 1_000
WAIT_MS_MAX: Final = 30_000
BYTES: Final = 4 * 1024 * 1024
BYTES_MAX: Final = 32 * 1024 * 1024
SLICE: Final = 16
"""Partitions that are looked at in one turn of the loop."""
PARTITION_ANSWER_BYTES: Final = 512
"""What the answer about a partition takes beside its records."""
GATHER_S: Final = 0.01
"""Where there is something, but less than was asked for: how long more may come before all of it is read again."""


class _Reader:
    """One partition of a request."""

    __slots__ = ("asked", "partition", "refusal", "topic_id")

    def __init__(self, asked: broker_pb2.FetchFrom) -> None:
        self.asked = asked
        self.topic_id = b""
        self.partition: Partition | None = None
        self.refusal: QuireError | None = None

    @property
    def epoch(self) -> int | None:
        return self.asked.leader_epoch if self.asked.HasField("leader_epoch") else None


class Fetching:
    """Reads on behalf of clients."""

    def __init__(self, reading: Reading, answers: Answers) -> None:
        self._reading = reading
        self._partitions = reading.partitions
        self._answers = answers
        self._waiting: dict[asyncio.Event, None] = {}
        self._stopping = False

    def stop(self) -> None:
        """Let nobody wait any more."""
        self._stopping = True
        for changed in self._waiting:
            changed.set()

    async def fetch(self, request: broker_pb2.FetchRequest, context: CallContext) -> Spliced:
        bytes_max = _checked(request)
        caller = self._answers.caller(context)
        loop = asyncio.get_running_loop()
        deadline = min(loop.time() + request.wait_ms_max / 1000, current().deadline)
        bytes_min = min(max(1, request.bytes_min), bytes_max)
        readers = [self._find(each) for each in request.partitions]
        changed = asyncio.Event()
        watched = [reader.partition for reader in readers if reader.partition is not None]
        for partition in watched:
            partition.watch(changed.set)
        self._waiting[changed] = None
        try:
            while True:
                changed.clear()
                # Nothing is held while this waits: those who wait for records are many.
                await self._answers.room(caller, deadline=deadline)
                loan = self._answers.lend(caller, MESSAGE_BYTES + PARTITION_ANSWER_BYTES * len(readers))
                try:
                    fetched, size = await self._read(readers, request.form, bytes_max, caller, loan)
                except BaseException:
                    loan.release()
                    raise
                refused = any(each.answer.HasField("refusal") for each in fetched)
                if size >= bytes_min or refused or self._stopping or loop.time() >= deadline:
                    self._reading.observer.fetched(size)
                    self._answers.keep(caller, loan)
                    return Spliced(fetched)
                loan.release()
                try:
                    async with asyncio.timeout_at(deadline):
                        await changed.wait()
                        if size:
                            await asyncio.sleep(GATHER_S)
                except TimeoutError:
                    continue  # whatever is there by now
        finally:
            del self._waiting[changed]
            for partition in watched:
                partition.unwatch(changed.set)

    def _find(self, asked: broker_pb2.FetchFrom) -> _Reader:
        reader = _Reader(asked)
        try:
            topic = self._partitions.topic(current().tenant, asked.topic)
            reader.topic_id = topic.topic_id
            reader.partition = self._partitions.led(topic, asked.partition, reader.epoch)
        except QuireError as error:
            reader.refusal = error
        return reader

    async def _read(
        self, readers: Sequence[_Reader], form: int, bytes_max: int, caller: Caller, loan: Loan
    ) -> tuple[list[Fetched], int]:
        """What there is now, and how many bytes of records."""
        fetched: list[Fetched] = []
        size = 0
        for number, reader in enumerate(readers):
            if number % SLICE == SLICE - 1:
                await self._answers.turns.next()
            asked = reader.asked
            answer = broker_pb2.PartitionFetched(topic_id=reader.topic_id, partition=asked.partition)
            raw: bytes | None = None
            try:
                if reader.refusal is not None or reader.partition is None:
                    raise reader.refusal or UnavailableError("nothing is known of this partition")
                left = min(asked.bytes_max or PARTITION_BYTES, bytes_max - size)
                if left <= 0 or (size and not self._answers.has_room(caller)):
                    self._partitions.check_led(reader.partition, reader.epoch)
                    tell(answer, reader.partition, asked.offset)
                else:
                    taken, raw = await self._reading.read(
                        answer,
                        reader.partition,
                        asked.offset,
                        epoch=reader.epoch,
                        form=form,
                        bytes_max=left,
                        is_first=not size,
                        loan=loan,
                    )
                    size += taken
            except QuireError as error:
                answer.ClearField("records")
                answer.refusal.CopyFrom(refusal_of(error))
                loan.add(answer.ByteSize())
            fetched.append(Fetched(answer, raw))
        useful = [
            each
            for reader, each in zip(readers, fetched, strict=True)
            if each.answer.HasField("refusal") or each.answer.next_offset != reader.asked.offset
        ]
        return useful or fetched, size


def _checked(request: broker_pb2.FetchRequest) -> int:
    """How many bytes to read at most. Raises InvalidArgumentError for what makes no sense."""
    if not 1 <= len(request.partitions) <= PARTITIONS_MAX:
        raise InvalidArgumentError(f"a request has 1 to {PARTITIONS_MAX} partitions, not {len(request.partitions)}")
    if not 0 <= request.wait_ms_max <= WAIT_MS_MAX:
        raise InvalidArgumentError(f"wait_ms_max lies between 0 and {WAIT_MS_MAX}, not {request.wait_ms_max}")
    if request.bytes_min < 0 or not 0 <= request.bytes_max <= BYTES_MAX:
        raise InvalidArgumentError(f"bytes_min is not negative, and bytes_max lies between 0 and {BYTES_MAX}")
    if request.form not in FORMS:
        raise InvalidArgumentError(f"there is no record form {request.form}")
    check_isolation(request.isolation)
    named: set[tuple[bytes, int]] = set()
    for each in request.partitions:
        key = (each.topic.SerializeToString(), each.partition)
        if key in named:
            raise InvalidArgumentError(f"partition {each.partition} of a topic is there twice")
        named.add(key)
        if each.bytes_max < 0:
            raise InvalidArgumentError(f"bytes_max of a partition is negative: {each.bytes_max}")
    return request.bytes_max or BYTES
