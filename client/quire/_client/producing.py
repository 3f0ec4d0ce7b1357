"""The running part of a producer: it brings together what is appended, who leads, and the streams to brokers."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import grpc.aio

from quire._client import tasks
from quire._client.accumulator import Accumulator, Clocks, Settings, TopicOutboxes, record_bytes_max
from quire._client.batch import Batch
from quire._client.cluster import Cluster, new_backoff, unknown_topic
from quire._client.deliveries import wait_for_async
from quire._client.dispatch import NEVER, Dispatch, Gone, Leader
from quire._client.options import Connection
from quire._client.outbox import Outbox
from quire._client.partitioners import Chooser, KeyPartitioner, key_partitioner
from quire._client.picture import Changes
from quire._client.produce_link import ProduceLink
from quire.errors import LogBusyError, QuireError, UnavailableError
from quire.records import BATCH_BYTES_MAX, HEADER_BYTES, Codec
from quire.v1 import broker_pb2, broker_pb2_grpc, durability_pb2, metadata_pb2

MESSAGE_BYTES_MAX: Final = 1024 * 1024
"""What a topic takes that does not say."""
REQUEST_BYTES: Final = 1024 * 1024
"""Batches share a request up to this; a larger batch goes alone."""
REQUEST_OVERHEAD_BYTES: Final = 1024

_log = logging.getLogger("quire")

D = TypeVar("D")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProducerOptions:
    acks: durability_pb2.Acks.ValueType
    codec: Codec
    linger_ms: float
    batch_bytes: int
    buffer_bytes: int
    buffer_wait_ms_max: int
    delivery_ms_max: int
    idempotent: bool
    by_key: bool
    """Whether records with keys go where the topic says."""
    choose: Callable[[], Chooser] | None
    """Makes what decides for the other records, for each topic anew; None to stick."""

    @property
    def settings(self) -> Settings:
        return Settings(
            batch_bytes=self.batch_bytes,
            buffer_bytes=self.buffer_bytes,
            delivery_ms_max=self.delivery_ms_max,
            idempotent=self.idempotent,
            codec=self.codec,
        )


class Producing(Generic[D]):
    """All but `append`, which any thread may call, is to be called on one event loop."""

    def __init__(
        self,
        connection: Connection,
        options: ProducerOptions,
        *,
        lock: AbstractContextManager[object],
        delivery: Callable[[Batch, int], D],
        schedule: Callable[[Callable[[], object]], object],
    ) -> None:
        """`schedule` has something called on the loop soon; any thread may call it."""
        self._options = options
        self._connection = connection
        self._schedule = schedule
        self._woken = False
        self.accumulator: Accumulator[D] = Accumulator(
            options.settings,
            clocks=Clocks(now_ms=_now_ms, wall_ms=lambda: time.time_ns() // 1_000_000),
            lock=lock,
            backoff=new_backoff,
            delivery=delivery,
            wake=self.wake,
        )
        self._dispatch = Dispatch(
            self.accumulator,
            idempotent=options.idempotent,
            linger_ms=options.linger_ms,
            leader_of=self._leader_of,
            has_room=self._has_room,
            request_bytes_max=self._request_bytes_max,
        )
        self._links: dict[int, ProduceLink] = {}
        self._identifying: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = NEVER
        self._cluster: Cluster | None = None
        self._identity_problem: QuireError | None = None
        self.closed = False

    @property
    def is_woken(self) -> bool:
        """Whether something waits to be sent, and nobody has looked yet."""
        return self._woken

    @property
    def is_begun(self) -> bool:
        """Whether there is anything that must be ended."""
        return self._cluster is not None

    @property
    def cluster(self) -> Cluster:
        """Made when it is first wanted, on the loop."""
        if self._cluster is None:
            self._cluster = Cluster(self._connection)
            self._cluster.on_changes(self._on_changes)
            self._cluster.start()
        return self._cluster

    # -- topics ------------------------------------------------------------------------------------------------------

    async def learn(self, name: str) -> TopicOutboxes:
        """Find out what is needed to send to a topic. Raises UnknownTopicError, UnavailableError."""
        self.check_usable()
        topic = await self.cluster.topic(name, timeout_s=self._options.buffer_wait_ms_max / 1000)
        self.check_usable()
        return self._use(topic)

    def _use(self, topic: metadata_pb2.Topic) -> TopicOutboxes:
        known = self.accumulator.topic(topic.name)
        if known is None or known.topic_id != topic.topic_id:
            known = self._outboxes(topic)
        known.batch_bytes, known.record_bytes_max = self._sizes(topic)
        self.accumulator.set_topic(known, topic.partition_count)
        return known

    def _outboxes(self, topic: metadata_pb2.Topic) -> TopicOutboxes:
        by_key: KeyPartitioner | None = None
        if self._options.by_key:
            by_key = key_partitioner(topic.config.partitioner)
        batch_bytes, record_bytes = self._sizes(topic)
        return TopicOutboxes(
            topic.name,
            topic.topic_id,
            by_key=by_key,
            choose=self._options.choose() if self._options.choose is not None else None,
            batch_bytes=batch_bytes,
            record_bytes_max=record_bytes,
            first_sticky=random.randrange(topic.partition_count),
        )

    def _sizes(self, topic: metadata_pb2.Topic) -> tuple[int, int]:
        limit = MESSAGE_BYTES_MAX
        if topic.config.HasField("message_bytes_max"):
            limit = topic.config.message_bytes_max
        request_bytes_max = self.cluster.picture.limits.request_bytes_max
        if request_bytes_max:
            limit = min(limit, request_bytes_max - REQUEST_OVERHEAD_BYTES)
        record = record_bytes_max(limit)
        if self._options.codec != Codec.NONE:
            record = BATCH_BYTES_MAX - HEADER_BYTES  # what it takes once compressed is for the broker to judge
        return min(self._options.batch_bytes, limit), record

    def _on_changes(self, changes: Changes) -> None:
        for name in changes.topics:
            if self.accumulator.topic(name) is None:
                continue
            topic = self.cluster.picture.topic(name)
            try:
                if topic is not None:
                    self._use(topic)
                    continue
            except QuireError:
                pass  # whoever sends next is told why it cannot be used
            self.accumulator.drop_topic(name)
        self.wake()

    # -- who gets what -----------------------------------------------------------------------------------------------

    def _leader_of(self, outbox: Outbox) -> Leader | Gone | QuireError:
        topic = self.cluster.picture.topic(outbox.topic.name)
        if topic is None:
            if self.cluster.picture.is_missing(outbox.topic.name):
                return Gone(unknown_topic(outbox.topic.name))
            return self.cluster.problem or UnavailableError(f"nothing is known of topic '{outbox.topic.name}'")
        if topic.topic_id != outbox.topic.topic_id:
            error = unknown_topic(topic.name)
            error.message = f"topic '{topic.name}' was deleted and made anew; records for the old one are not stored"
            error.args = (error.message,)
            return Gone(error)
        if self._dispatch.wants_identity and self._identity_problem is not None:
            return self._identity_problem
        leadership = self.cluster.leader(topic.topic_id, outbox.partition)
        if not leadership.leader:
            return self.cluster.problem or UnavailableError(
                f"nobody leads {outbox.place} at the moment; 'quire topic describe {topic.name}' shows its brokers"
            )
        problem = self._link(leadership.leader).problem
        return problem or Leader(leadership.leader, leadership.epoch)

    def _link(self, broker_id: int) -> ProduceLink:
        link = self._links.get(broker_id)
        if link is None:
            link = self._links[broker_id] = ProduceLink(
                self.cluster,
                broker_id,
                acks=self._options.acks,
                answered=lambda entry, outcome, epoch: self._dispatch.answered(
                    entry, outcome, leader_epoch=epoch, now_ms=_now_ms()
                ),
                ready=self.wake,
            )
        return link

    def _has_room(self, broker_id: int, collected_bytes: int) -> bool:
        return self._link(broker_id).has_room(collected_bytes)

    def _request_bytes_max(self, broker_id: int) -> int:
        limit = self.cluster.picture.limits.request_bytes_max
        return min(REQUEST_BYTES, limit - REQUEST_OVERHEAD_BYTES) if limit else REQUEST_BYTES

    # -- the pump ----------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """There may be something to send. Any thread may call this; it is cheap if somebody did before."""
        if not self._woken:
            self._woken = True
            self._schedule(self._pump)

    def _pump(self) -> None:
        self._woken = False  # before looking: what is appended from here on wakes again
        if self.closed:
            return
        if self._dispatch.fenced is not None:
            self._stop_taking()
            self._dispatch.fail_all(self._dispatch.fenced)
            return
        now_ms = _now_ms()
        loads, wake_ms = self._dispatch.collect(now_ms)
        for load in loads:
            self._link(load.broker_id).send(load)
        if self._dispatch.wants_identity and self.accumulator.active and self._identifying is None:
            self._identifying = tasks.start(self._identify(), name="quire-init-producer")
        self._wake_at(wake_ms)

    def _stop_taking(self) -> None:
        """Without its topic no record is taken, and whoever sends one is told why by `check_usable`."""
        for topic in self.accumulator.topics:
            self.accumulator.drop_topic(topic.name)

    def _wake_at(self, wake_ms: float) -> None:
        if self._timer is not None:
            if self._timer_ms <= wake_ms and not self._timer.cancelled() and self._timer_ms > _now_ms():
                return  # it looks again early enough
            self._timer.cancel()
            self._timer = None
        if wake_ms < NEVER:
            self._timer_ms = wake_ms
            delay_s = max(0.0, wake_ms - _now_ms()) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.wake)

    async def _identify(self) -> None:
        """Get a producer id, however long that takes: what waits for it has deadlines of its own."""
        backoff = new_backoff()
        while True:
            try:
                answer = await self.cluster.ask_anyone(
                    self._init_producer,
                    timeout_s=self._options.delivery_ms_max / 1000,
                    may_repeat=True,  # an id that nobody uses is no loss
                )
                break
            except QuireError as error:
                self._identity_problem = error
                self.wake()
                await asyncio.sleep(backoff.next_ms() / 1000)
        self._identity_problem = None
        self._dispatch.identity = answer.producer_id
        self._identifying = None
        self.wake()

    async def _init_producer(self, channel: grpc.aio.Channel, timeout_s: float) -> broker_pb2.InitProducerResponse:
        stub = broker_pb2_grpc.BrokerServiceStub(channel)
        return await stub.InitProducer(
            broker_pb2.InitProducerRequest(), timeout=timeout_s, metadata=self.cluster.metadata
        )

    # -- room and the end --------------------------------------------------------------------------------------------

    def check_usable(self) -> None:
        if self.closed:
            raise closed()
        if self._dispatch.fenced is not None:
            raise self._dispatch.fenced.with_traceback(None)

    def no_room(self, size_bytes: int) -> LogBusyError:
        return LogBusyError(
            f"the producer's buffer of {self._options.buffer_bytes} bytes had no room for {size_bytes} more within "
            f"{self._options.buffer_wait_ms_max} ms, so they were not taken: brokers take them more slowly than they "
            "come. Send again later, or give the producer more buffer_bytes or buffer_wait_ms_max",
            buffer_bytes=self._options.buffer_bytes,
        )

    async def flush(self, timeout_s: float | None) -> None:
        """Until all that was appended before has an outcome. Raises what nobody has looked at."""
        self._dispatch.hurry += 1
        self.wake()
        try:
            await wait_for_async(self.accumulator.batches(), timeout_s)
        finally:
            self._dispatch.hurry -= 1
        self.raise_unseen()

    def raise_unseen(self) -> None:
        """The first failure at whose delivery nobody looked."""
        unseen = self.accumulator.take_unseen()
        if unseen:
            if len(unseen) > 1:
                _log.warning("%d batches were not delivered; the first error is raised", len(unseen))
            raise unseen[0].with_traceback(None)

    async def close(self, timeout_s: float | None) -> None:
        """Flush, then end everything: what has no outcome by then gets one."""
        if self.closed:
            return
        try:
            if self.accumulator.active:
                await self.flush(timeout_s)
        finally:
            await self._shut()
        self.raise_unseen()

    async def _shut(self) -> None:
        self.closed = True
        self._stop_taking()
        for task in [self._identifying] if self._identifying is not None else []:
            task.cancel()
            await asyncio.wait([task])
        if self._timer is not None:
            self._timer.cancel()
        for link in self._links.values():
            await link.close()
        self._dispatch.fail_all(
            UnavailableError("the producer was closed before the records were sent; they are not stored")
        )
        if self._cluster is not None:
            await self._cluster.close()


def closed() -> UnavailableError:
    return UnavailableError("this producer is closed; make another one")


def _now_ms() -> float:
    return time.monotonic() * 1000
