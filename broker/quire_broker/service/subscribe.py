"""Subscribe: one stream that sends records of many partitions as they come, as far as the client's credit reaches.

Nothing is read before it can be sent, so a client that takes nothing costs a few objects and no records.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from quire.errors import InvalidArgumentError, LimitExceededError, QuireError, UnavailableError
from quire.process.rpc.context import current
from quire.refusals import refusal_of
from quire.v1 import broker_pb2
from quire_broker.runtime.budget import Budget, Charge
from quire_broker.runtime.partition import Partition
from quire_broker.service.answers import MESSAGE_BYTES, Answers, CallContext, Caller, Loan
from quire_broker.service.reading import FORMS, PARTITION_BYTES, Reading, check_isolation
from quire_broker.service.splice import Fetched, Spliced

PARTITIONS_MAX: Final = 10_000
FEED_BYTES: Final = 1_024
"""What a partition of a subscription takes, or the refusal of one that has not been sent yet."""
CREDIT_BYTES: Final = 4 * 1024 * 1024
CREDIT_BYTES_MAX: Final = 64 * 1024 * 1024
GATHERED_BYTES: Final = 256 * 1024
"""Small pieces of several partitions share a message up to this."""
GATHERED_MAX: Final = 256
PIECE_BYTES_MAX: Final = 16 * 1024 * 1024
SLICE: Final = 64
"""Partitions that are added, or looked at in vain, in one turn of the loop."""
FEEDS_MAX: Final = 200_000
"""Partitions of all subscriptions."""
START_S_MAX: Final = 15.0
ALIVE_S: Final = 1.0


class Subscriptions:
    """All Subscribe streams."""

    def __init__(self, reading: Reading, answers: Answers) -> None:
        self.reading = reading
        self.answers = answers
        self.feeds = Budget(what="the subscriptions of this broker", bytes_max=FEEDS_MAX * FEED_BYTES)
        self._streams: dict[_Subscription, None] = {}
        self._stopping = False

    def stop(self) -> None:
        """End all streams: whoever reads goes on elsewhere."""
        self._stopping = True
        for stream in list(self._streams):
            stream.stop()

    async def serve(self, context: CallContext) -> None:
        subscription = _Subscription(self, self.answers.caller(context))
        self._streams[subscription] = None
        try:
            if self._stopping:
                subscription.stop()
            await subscription.run()
        finally:
            del self._streams[subscription]
            subscription.close()


class _Feed:
    """One partition of a subscription. Keeps nothing of the request, of which this may be a small part."""

    __slots__ = ("charge", "epoch", "index", "number", "offset", "partition", "topic_id", "wake")

    def __init__(self, asked: broker_pb2.SubscribeFrom, charge: Charge) -> None:
        self.number = asked.correlation_id
        self.index = asked.partition
        self.epoch = asked.leader_epoch if asked.HasField("leader_epoch") else None
        self.offset = asked.offset
        self.charge = charge
        self.topic_id = b""
        self.partition: Partition | None = None
        self.wake: Callable[[], None] | None = None


class _Subscription:
    def __init__(self, owner: Subscriptions, caller: Caller) -> None:
        self._reading = owner.reading
        self._partitions = owner.reading.partitions
        self._answers = owner.answers
        self._budget = owner.feeds
        self._caller = caller
        self._tenant = current().tenant
        self._feeds: dict[int, _Feed] = {}
        self._keys: dict[tuple[bytes, int], int] = {}
        self._ready: dict[int, None] = {}
        """Feeds that may have something, the one that was served longest ago first."""
        self._refused: deque[tuple[broker_pb2.PartitionFetched, Charge]] = deque()
        self._credit = 0
        self._form = broker_pb2.RECORD_FORM_DECODED
        self._piece_bytes = PARTITION_BYTES
        self._something = asyncio.Event()
        self._failure: QuireError | None = None
        self._stopped = False
        self._ended = False

    def stop(self) -> None:
        self._stopped = True
        self._something.set()

    def close(self) -> None:
        for number in list(self._feeds):
            self._remove(number)
        for _, charge in self._refused:
            charge.let_go()

    async def run(self) -> None:
        try:
            async with asyncio.timeout(START_S_MAX):
                first = await self._caller.read(broker_pb2.SubscribeRequest)
        except TimeoutError:
            raise InvalidArgumentError(f"a subscription begins with `start`, within {START_S_MAX:g} s") from None
        if first is None:
            return
        self._begin(first)
        async with asyncio.TaskGroup() as group:
            listening = group.create_task(self._listen(), name="subscribe-requests")
            await self._send()
            listening.cancel()
        if self._failure is not None:
            raise self._failure
        if self._stopped:
            raise UnavailableError("this broker is stopping; find the partitions' leaders anew")

    # -- what the client says --------------------------------------------------------------------------------------

    def _begin(self, request: broker_pb2.SubscribeRequest) -> None:
        if request.WhichOneof("kind") != "start":
            raise InvalidArgumentError("a subscription begins with `start`")
        start = request.start
        if not 0 <= start.credit_bytes <= CREDIT_BYTES_MAX:
            raise InvalidArgumentError(
                f"credit_bytes lies between 0 and {CREDIT_BYTES_MAX}, not {start.credit_bytes}"
            )
        if not 0 <= start.bytes_max <= PIECE_BYTES_MAX:
            raise InvalidArgumentError(f"bytes_max lies between 0 and {PIECE_BYTES_MAX}, not {start.bytes_max}")
        if start.form not in FORMS:
            raise InvalidArgumentError(f"there is no record form {start.form}")
        check_isolation(start.isolation)
        self._form = start.form
        self._credit = start.credit_bytes or CREDIT_BYTES
        self._piece_bytes = start.bytes_max or PARTITION_BYTES

    async def _listen(self) -> None:
        try:
            while True:
                request = await self._caller.read(broker_pb2.SubscribeRequest)
                if request is None:
                    return
                await self._take(request)
        except QuireError as error:
            self._failure = error
        finally:
            self._ended = True
            self._something.set()

    async def _take(self, request: broker_pb2.SubscribeRequest) -> None:
        match request.WhichOneof("kind"):
            case "add":
                for number, asked in enumerate(request.add.partitions):
                    if number % SLICE == SLICE - 1:
                        self._something.set()
                        await self._answers.turns.next()
                    self._add(asked)
            case "remove":
                for number in request.remove.correlation_ids:
                    self._remove(number)
            case "credit_bytes":
                if request.credit_bytes < 1 or self._credit + request.credit_bytes > CREDIT_BYTES_MAX:
                    raise InvalidArgumentError(
                        f"credit of {request.credit_bytes} beside {self._credit} is over {CREDIT_BYTES_MAX}, or none"
                    )
                self._credit += request.credit_bytes
            case "start":
                raise InvalidArgumentError("a subscription begins with `start` once")
            case _:
                return  # a newer client says something that this version does not know
        self._something.set()

    def _add(self, asked: broker_pb2.SubscribeFrom) -> None:
        if asked.correlation_id in self._feeds:
            raise InvalidArgumentError(f"the number {asked.correlation_id} is in use in this subscription")
        if len(self._feeds) >= PARTITIONS_MAX or len(self._refused) >= PARTITIONS_MAX:
            raise LimitExceededError(f"a subscription has at most {PARTITIONS_MAX} partitions; open another one")
        charge = Charge(self._budget, self._caller.connection)
        charge.take(FEED_BYTES)
        feed = _Feed(asked, charge)
        try:
            topic = self._partitions.topic(self._tenant, asked.topic)
            feed.topic_id = topic.topic_id
            before = self._keys.get((topic.topic_id, feed.index))
            if before is not None:
                self._remove(before)
            feed.partition = self._partitions.led(topic, feed.index, feed.epoch)
        except QuireError as error:
            self._refused.append((_refusal(feed, error), charge))
            return
        number = feed.number
        feed.wake = lambda: self._wake(number)
        feed.partition.watch(feed.wake)
        self._feeds[number] = feed
        self._keys[feed.topic_id, feed.index] = number
        self._ready[number] = None

    def _remove(self, number: int) -> None:
        feed = self._feeds.pop(number, None)
        if feed is None:
            return
        self._ready.pop(number, None)
        self._keys.pop((feed.topic_id, feed.index), None)
        feed.charge.let_go()
        if feed.partition is not None and feed.wake is not None:
            feed.partition.unwatch(feed.wake)

    def _wake(self, number: int) -> None:
        self._ready[number] = None
        self._something.set()

    # -- what it is sent -------------------------------------------------------------------------------------------

    async def _send(self) -> None:
        """Until the client or this broker ends it."""
        while True:
            self._something.clear()
            while self._has_something():
                await self._send_next()
            if self._stopped or self._ended:
                return
            try:
                async with asyncio.timeout(ALIVE_S):
                    await self._something.wait()
            except TimeoutError:
                await self._answers.write(self._caller, broker_pb2.SubscribeResponse())

    def _has_something(self) -> bool:
        if self._stopped or self._failure is not None:
            return False
        return bool(self._refused or (self._ready and self._credit > 0))

    async def _send_next(self) -> None:
        await self._answers.room(self._caller)
        loan = self._answers.lend(self._caller, MESSAGE_BYTES)
        try:
            pieces, size = await self._gather(loan)
        except BaseException:
            loan.release()
            raise
        if not pieces:
            loan.release()
            return
        self._reading.observer.fetched(size)
        await self._answers.hand_over(self._caller, Spliced(pieces), loan)

    async def _gather(self, loan: Loan) -> tuple[list[Fetched], int]:
        """What one message holds, and how many bytes of records."""
        pieces: list[Fetched] = []
        while self._refused and len(pieces) < GATHERED_MAX:
            refusal, charge = self._refused.popleft()
            charge.let_go()
            loan.add(FEED_BYTES)
            pieces.append(Fetched(refusal))
        size = looked_at = 0
        while self._ready and self._credit > 0 and size < GATHERED_BYTES and len(pieces) < GATHERED_MAX:
            looked_at += 1
            if looked_at % SLICE == 0:
                await self._answers.turns.next()
                continue  # what is ready may have changed
            feed = self._feeds[next(iter(self._ready))]
            del self._ready[feed.number]
            piece = await self._read(feed, loan)
            if piece is None:
                continue
            pieces.append(piece)
            if not piece.answer.HasField("refusal"):
                self._ready[feed.number] = None  # there may be more, after the others had their turn
                self._credit -= piece.answer.credit_bytes
                size += piece.answer.credit_bytes
        return pieces, size

    async def _read(self, feed: _Feed, loan: Loan) -> Fetched | None:
        if feed.partition is None:
            return None
        answer = broker_pb2.PartitionFetched(topic_id=feed.topic_id, partition=feed.index, correlation_id=feed.number)
        try:
            answer.credit_bytes, raw = await self._reading.read(
                answer,
                feed.partition,
                feed.offset,
                epoch=feed.epoch,
                form=self._form,
                bytes_max=min(self._piece_bytes, self._credit),
                is_first=True,
                loan=loan,
            )
        except QuireError as error:
            if self._feeds.get(feed.number) is not feed:
                return None
            self._remove(feed.number)
            loan.add(FEED_BYTES)
            return Fetched(_refusal(feed, error))
        if not answer.credit_bytes or self._feeds.get(feed.number) is not feed:
            return None  # the second: the client has changed its mind while it was being decoded
        feed.offset = answer.next_offset
        return Fetched(answer, raw)


def _refusal(feed: _Feed, error: QuireError) -> broker_pb2.PartitionFetched:
    return broker_pb2.PartitionFetched(
        topic_id=feed.topic_id,
        partition=feed.index,
        correlation_id=feed.number,
        refusal=refusal_of(error),
        next_offset=feed.offset,
    )
