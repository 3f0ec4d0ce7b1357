"""One broker's ProduceStream: requests go out in order, answers come back in any; its end is an answer, too."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

import grpc.aio

from quire._client import tasks
from quire._client.cluster import Cluster, new_backoff, no_connection
from quire._client.dispatch import Entry, Load
from quire._client.stored import Durability, Placed
from quire.errors import OutcomeUnknownError, QuireError, UnavailableError
from quire.refusals import from_refusal
from quire.rpc_errors import from_rpc_error, never_left
from quire.v1 import broker_pb2, broker_pb2_grpc, durability_pb2, records_pb2, topics_pb2

REQUESTS_MAX: Final = 64
"""Requests that may wait for their answer."""
BYTES_MAX: Final = 16 * 1024 * 1024
"""And bytes of them, less where the broker wants less of a connection."""
WAIT_MS_MAX: Final = 30_000
"""How long a broker may take to store records as safely as asked, before it says that it does not know."""
GRACE_MS: Final = 10_000
"""A broker that does not even say that has hung: its stream is cut."""

Answered = Callable[[Entry, "Placed | QuireError", int | None], object]


_Call: TypeAlias = "grpc.aio.StreamStreamCall[broker_pb2.ProduceStreamRequest, broker_pb2.ProduceStreamResponse]"


class _Sent(NamedTuple):
    load: Load
    overdue_s: float


class _NeverSent(UnavailableError):
    """No connection came about, so nothing of the stream reached anybody."""


class ProduceLink:
    """To be used on one event loop."""

    def __init__(
        self,
        cluster: Cluster,
        broker_id: int,
        *,
        acks: durability_pb2.Acks.ValueType,
        answered: Answered,
        ready: Callable[[], object],
    ) -> None:
        """`answered` is told what became of each entry; `ready` is called when more may be sent."""
        self._cluster = cluster
        self._broker_id = broker_id
        self._acks = acks
        self._answered = answered
        self._ready = ready
        self._waiting: deque[Load] = deque()
        self._sent: dict[int, _Sent] = {}
        self._bytes = 0
        self._next_id = 0
        self._something = asyncio.Event()
        self.problem: QuireError | None = None
        """Why nothing can be sent at the moment."""
        self._running = tasks.start(self._run(), name=f"quire-produce-{broker_id}")

    def has_room(self, collected_bytes: int) -> bool:
        """Whether a batch may be sent beside so many bytes that are about to be."""
        if self.problem is not None or len(self._sent) + len(self._waiting) >= REQUESTS_MAX:
            return False
        limit = self._cluster.picture.limits.connection_bytes_max // 2
        return self._bytes + collected_bytes < min(BYTES_MAX, limit or BYTES_MAX)

    def send(self, load: Load) -> None:
        self._bytes += load.size_bytes
        self._waiting.append(load)
        self._something.set()

    async def close(self) -> None:
        self._running.cancel()
        await asyncio.wait([self._running])

    # -- the stream --------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        backoff = new_backoff()
        while True:
            await self._something.wait()
            try:
                await self._stream(backoff.reset)
                error: QuireError = UnavailableError(f"broker {self._broker_id} ended the stream")
            except QuireError as failed:
                error = failed
            finally:
                # Also when this link is closed: whoever waits is told what is known.
                lost = self._take_back()
            self.problem = error
            self._tell(lost, error)
            await asyncio.sleep(backoff.next_ms() / 1000)
            self.problem = None
            self._ready()

    def _take_back(self) -> tuple[list[Load], list[Load]]:
        """What was sent, and what was not."""
        sent, waiting = [each.load for each in self._sent.values()], list(self._waiting)
        self._sent = {}
        self._waiting.clear()
        self._something.clear()
        self._bytes = 0
        return sent, waiting

    def _tell(self, lost: tuple[list[Load], list[Load]], error: QuireError) -> None:
        sent, waiting = lost
        # Only a connection that never came about is certain to have carried nothing. Whatever else ends a stream says
        # nothing of the requests on it.
        unknown = OutcomeUnknownError(f"broker {self._broker_id} did not answer: {error.message}")
        not_sent = UnavailableError(f"broker {self._broker_id} cannot be reached: {error.message}")
        for loads, outcome in ((sent, not_sent if isinstance(error, _NeverSent) else unknown), (waiting, not_sent)):
            for load in loads:
                for entry in load.entries:
                    self._answered(entry, outcome, None)
        self._ready()

    async def _stream(self, connected: Callable[[], object]) -> None:
        place = self._cluster.place(self._broker_id)
        if isinstance(place, QuireError):
            raise place
        stub = broker_pb2_grpc.BrokerServiceStub(self._cluster.channel(place))
        call = stub.ProduceStream(metadata=self._cluster.metadata)
        try:
            try:
                async with asyncio.TaskGroup() as group:
                    reading = group.create_task(self._read(call, connected), name="quire-produce-answers")
                    writing = group.create_task(self._write(call), name="quire-produce-requests")
                    watching = group.create_task(self._watch(), name="quire-produce-watch")
                    reading.add_done_callback(lambda _: (writing.cancel(), watching.cancel()))
            except BaseExceptionGroup as several:
                raise _first(several) from several
        except grpc.aio.AioRpcError as error:
            if never_left(error):
                raise _NeverSent(f"nobody answers at {place.host}:{place.port}: {no_connection(error)}") from error
            raise from_rpc_error(error) from error
        finally:
            call.cancel()

    async def _write(self, call: _Call) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while self._waiting:
                load = self._waiting.popleft()
                self._next_id += 1
                self._sent[self._next_id] = _Sent(load, loop.time() + (WAIT_MS_MAX + GRACE_MS) / 1000)
                try:
                    await call.write(self._request(load, self._next_id))
                except asyncio.InvalidStateError:
                    return  # the call is over; reading tells why
            self._something.clear()
            await self._something.wait()

    async def _read(self, call: _Call, connected: Callable[[], object]) -> None:
        while True:
            answer = await call.read()
            if not isinstance(answer, broker_pb2.ProduceStreamResponse):
                return
            connected()
            self._take(answer)

    async def _watch(self) -> None:
        """Not a timeout around the reading, for gRPC ends the call of whoever stops waiting for it."""
        loop = asyncio.get_running_loop()
        while True:
            if any(each.overdue_s <= loop.time() for each in self._sent.values()):
                raise OutcomeUnknownError("it was silent for too long")
            await asyncio.sleep(GRACE_MS / 4000)

    def _take(self, answer: broker_pb2.ProduceStreamResponse) -> None:
        sent = self._sent.pop(answer.correlation_id, None)
        if sent is None:
            return
        load = sent.load
        self._bytes -= load.size_bytes
        if answer.HasField("refusal"):
            error = from_refusal(answer.refusal)
            for entry in load.entries:
                self._answered(entry, error, None)
        elif len(answer.partitions) != len(load.entries):
            for entry in load.entries:
                self._answered(entry, OutcomeUnknownError("the broker's answer is not to the request"), None)
        else:
            for entry, stored in zip(load.entries, answer.partitions, strict=True):
                self._answered(entry, _outcome(stored), stored.leader_epoch if stored.leader_epoch >= 0 else None)
        self._ready()

    def _request(self, load: Load, correlation_id: int) -> broker_pb2.ProduceStreamRequest:
        return broker_pb2.ProduceStreamRequest(
            correlation_id=correlation_id,
            acks=self._acks,
            wait_ms_max=WAIT_MS_MAX,
            partitions=[
                broker_pb2.PartitionRecords(
                    topic=topics_pb2.TopicRef(topic_id=batch.outbox.topic.topic_id),
                    partition=batch.outbox.partition,
                    # No other leadership may carry it out: see `outbox`.
                    leader_epoch=batch.sent_epoch,
                    records=records_pb2.RecordSet(raw_batches=batch.encoded),
                )
                for batch, _ in load.entries
            ],
        )


def _outcome(stored: broker_pb2.PartitionStored) -> Placed | QuireError:
    if stored.HasField("refusal"):
        return from_refusal(stored.refusal)
    durability = Durability(stored.durability.replicas, stored.durability.fsynced)
    return Placed(stored.base_offset, stored.duplicate, durability)


def _first(several: BaseExceptionGroup[BaseException]) -> BaseException:
    errors: Sequence[BaseException] = several.exceptions
    for error in errors:
        if isinstance(error, BaseExceptionGroup):
            return _first(error)
    return errors[0]


ACKS: Final = {
    "all": durability_pb2.ACKS_ALL,
    "leader": durability_pb2.ACKS_LEADER,
    "none": durability_pb2.ACKS_NONE,
}
"""How users spell what to wait for."""
