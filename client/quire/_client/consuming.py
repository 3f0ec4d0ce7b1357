"""The running part of a consumer: it brings together what is assigned, who leads, and the streams from brokers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from quire._client import offsets, tasks
from quire._client.arguments import check_choice, check_whole
from quire._client.cluster import Cluster, new_backoff, unknown_topic
from quire._client.collector import PAUSED
from quire._client.intake import Intake
from quire._client.options import Connection
from quire._client.picture import Changes
from quire._client.reading import Reading, Stream
from quire._client.starts import EARLIEST, NAMED, Place, Start, offset_of, start_of
from quire._client.stored import TopicPartition
from quire._client.subscribe_link import SubscribeLink
from quire.errors import InvalidArgumentError, QuireError, UnavailableError
from quire.link.backoff import Backoff
from quire.v1 import broker_pb2

PREFETCH_BYTES: Final = 8 * 1024 * 1024
PREFETCH_BYTES_MAX: Final = 64 * 1024 * 1024
PARTITION_BYTES: Final = 1024 * 1024
PARTITION_BYTES_MAX: Final = 16 * 1024 * 1024
POSITION_S_MAX: Final = 30.0
"""How long a new consumer looks for where to begin."""
LOOK_UP_S_MAX: Final = 5.0
"""The same while it runs, before it tries anew: other partitions wait for their turn."""

ISOLATIONS: Final = {
    "committed": broker_pb2.ISOLATION_READ_COMMITTED,
    "uncommitted": broker_pb2.ISOLATION_READ_UNCOMMITTED,
}
OUT_OF_RANGE: Final = ("error", *NAMED)

PartitionArgument = TopicPartition | tuple[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerOptions:
    start: Start
    isolation: broker_pb2.Isolation.ValueType
    prefetch_bytes: int
    partition_bytes: int
    on_out_of_range: str


def consumer_options(
    *, start: object, isolation: str, prefetch_bytes: int, partition_bytes: int, on_out_of_range: str
) -> ConsumerOptions:
    """Raises InvalidArgumentError for what makes no sense."""
    return ConsumerOptions(
        start=start_of(start),
        isolation=ISOLATIONS[check_choice("isolation", isolation, ISOLATIONS)],
        prefetch_bytes=check_whole("prefetch_bytes", prefetch_bytes, 1, PREFETCH_BYTES_MAX),
        partition_bytes=check_whole("partition_bytes", partition_bytes, 1, PARTITION_BYTES_MAX),
        on_out_of_range=check_choice("on_out_of_range", on_out_of_range, OUT_OF_RANGE),
    )


class Consuming:
    """All but what is said to be for any thread is to be called on one event loop."""

    def __init__(
        self,
        connection: Connection,
        options: ConsumerOptions,
        *,
        lock: AbstractContextManager[object],
        schedule: Callable[[Callable[[], object]], object],
        arrived: Callable[[], object],
    ) -> None:
        """`schedule` has something called on the loop soon; `arrived` is called when there may be messages.

        Both may be called by any thread.
        """
        self._connection = connection
        self._options = options
        self._schedule = schedule
        self._woken = False
        self.intake = Intake(
            lock=lock,
            on_out_of_range=options.on_out_of_range,
            wake=self.wake,
            arrived=arrived,
            now_ms=_now_ms,
            decoding=PAUSED,
        )
        self._arrived = arrived
        self._cluster: Cluster | None = None
        self._topics: dict[str, None] = {}
        """Those of which all partitions are read, also such as are added later."""
        self._links: dict[int, SubscribeLink] = {}
        self._backoffs: dict[int, Backoff] = {}
        self._not_before_ms: dict[int, float] = {}
        self._looking: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.closed = False

    @property
    def is_begun(self) -> bool:
        return self._cluster is not None

    @property
    def cluster(self) -> Cluster:
        """Made when it is first wanted, on the loop."""
        if self._cluster is None:
            self.check_open()
            self._cluster = Cluster(self._connection)
            self._cluster.on_changes(self._on_changes)
            self._cluster.start()
        return self._cluster

    def check_open(self) -> None:
        """For any thread."""
        if self.closed:
            raise UnavailableError("this consumer is closed; make another one")

    # -- assignment ------------------------------------------------------------------------------------------------

    async def assign_topics(self, names: Iterable[str]) -> None:
        """Read all partitions of these topics."""
        partitions: list[TopicPartition] = []
        for name in names:
            topic = await self.cluster.topic(name, timeout_s=POSITION_S_MAX)
            partitions += [TopicPartition(name, index) for index in range(topic.partition_count)]
        await self._assign(partitions, self._options.start)
        self._topics = dict.fromkeys(names)
        for name in names:  # partitions may have been added meanwhile
            self._add_partitions(name)

    async def assign(self, partitions: Iterable[TopicPartition], start: Start | None) -> None:
        """Read these, and no others."""
        wanted = list(dict.fromkeys(partitions))
        await self._assign(wanted, self._options.start if start is None else start)
        self._topics = {}

    async def _assign(self, partitions: list[TopicPartition], start: Start) -> None:
        # First all that can fail: an assignment is changed as a whole, or not at all.
        if isinstance(start, Place):
            starts: Mapping[TopicPartition, int] = await self._look_up(dict.fromkeys(partitions, start))
        else:
            starts = dict.fromkeys(partitions, start)
        topics = {}
        for partition in partitions:
            topic = topics[partition] = await self.cluster.topic(partition.topic, timeout_s=POSITION_S_MAX)
            offsets.check_partition(topic, partition)
        self.check_open()
        for partition in self.intake.partitions:
            self.intake.unassign(partition)
        for partition in partitions:
            self._read(partition, topics[partition].topic_id, starts[partition])

    def _read(self, partition: TopicPartition, topic_id: bytes, start: Start) -> None:
        self.intake.assign(Reading(partition, topic_id, start, backoff=new_backoff()))

    def _add_partitions(self, name: str) -> None:
        topic = self.cluster.picture.topic(name)
        if topic is None:
            return
        for index in range(topic.partition_count):
            partition = TopicPartition(name, index)
            reading = self.intake.reading(partition)
            if reading is None:
                # It is new, so nobody has seen its beginning.
                self._read(partition, topic.topic_id, EARLIEST)

    def _on_changes(self, changes: Changes) -> None:
        for name in changes.topics:
            if name in self._topics:
                self._add_partitions(name)
        self.wake()

    # -- positions -------------------------------------------------------------------------------------------------

    def reading(self, partition: PartitionArgument) -> Reading:
        """For any thread. Raises InvalidArgumentError unless it is assigned."""
        self.check_open()
        checked = as_partition(partition)
        reading = self.intake.reading(checked)
        if reading is None:
            raise InvalidArgumentError(f"{checked} is not assigned to this consumer; assign it first")
        return reading

    def seek_to_offset(self, partition: PartitionArgument, offset: object) -> None:
        """For any thread: nothing has to be looked up."""
        self.intake.seek(self.reading(partition), offset_of(offset))

    async def seek(self, partition: PartitionArgument, place: Place) -> None:
        reading = self.reading(partition)
        found = await self._look_up({reading.partition: place})
        self.intake.seek(reading, found[reading.partition])

    async def _look_up(
        self, places: Mapping[TopicPartition, Place], *, timeout_s: float = POSITION_S_MAX
    ) -> dict[TopicPartition, int]:
        return await offsets.find_starts(self.cluster, places, isolation=self._options.isolation, timeout_s=timeout_s)

    async def find(
        self, partitions: Iterable[PartitionArgument] | None, place: Place
    ) -> dict[TopicPartition, offsets.Found]:
        """Of these partitions, or of all that are assigned."""
        self.check_open()
        wanted = self.intake.partitions if partitions is None else [as_partition(each) for each in partitions]
        return await offsets.find(
            self.cluster,
            dict.fromkeys(wanted, place),
            isolation=self._options.isolation,
            timeout_s=POSITION_S_MAX,
        )

    # -- the pump --------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """There may be something to tell the brokers. For any thread."""
        if not self._woken:
            self._woken = True
            self._schedule(self._pump)

    def _pump(self) -> None:
        self._woken = False
        if self.closed or not self.is_begun:
            return
        now_ms = _now_ms()
        streams = {broker: link.stream for broker, link in self._links.items()}
        orders, lacking, again_ms = self.intake.plan(self._leader_of, streams, now_ms)
        for broker, each in orders.items():
            self._links[broker].tell(each)
        for broker in lacking:
            ready_ms = self._not_before_ms.get(broker, 0.0)
            if ready_ms <= now_ms:
                self._open(broker)
                self.wake()
            else:
                again_ms = min(again_ms, ready_ms)
        if self._looking is None and (unresolved := self.intake.unresolved(now_ms)):
            self._looking = tasks.start(self._resolve(unresolved), name="quire-list-offsets")
        self._wake_at(again_ms, now_ms)

    def _wake_at(self, again_ms: float, now_ms: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if again_ms < float("inf"):
            delay_s = max(1.0, again_ms - now_ms) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.wake)

    def _leader_of(self, reading: Reading) -> int | QuireError:
        name = reading.partition.topic
        topic = self.cluster.picture.topic(name)
        if topic is None:
            return unknown_topic(name) if self.cluster.picture.is_missing(name) else 0
        if topic.topic_id != reading.topic_id:
            error = unknown_topic(name)
            error.message = f"topic '{name}' was deleted and made anew; make a new consumer, or assign it again"
            return error
        return self.cluster.leader(*reading.key).leader

    def _open(self, broker_id: int) -> None:
        options = self._options
        self._links[broker_id] = SubscribeLink(
            self.cluster,
            Stream(broker_id, options.prefetch_bytes),
            broker_pb2.SubscribeStart(
                isolation=options.isolation,
                form=broker_pb2.RECORD_FORM_RAW,
                credit_bytes=options.prefetch_bytes,
                bytes_max=options.partition_bytes,
            ),
            received=self.intake.received,
            ended=self._ended,
        )

    def _ended(self, link: SubscribeLink, error: QuireError) -> None:
        broker_id = link.stream.broker_id
        if self._links.get(broker_id) is not link:
            return
        del self._links[broker_id]
        backoff = self._backoffs.setdefault(broker_id, new_backoff())
        if link.heard:
            backoff.reset()
        pause_ms = max(backoff.next_ms(), error.retry_after_ms or 0)
        self._not_before_ms[broker_id] = _now_ms() + pause_ms
        self.intake.stream_ended(link.stream, pause_ms=0.0)

    async def _resolve(self, unresolved: Mapping[Reading, Place]) -> None:
        """Look up where to begin: for partitions that are new, or whose position was out of range."""
        try:
            places = {reading.partition: place for reading, place in unresolved.items()}
            found = await self._look_up(places, timeout_s=LOOK_UP_S_MAX)
            for reading, place in unresolved.items():
                self.intake.found(reading, place, found[reading.partition])
        except QuireError as error:
            self.intake.not_found(list(unresolved), error)
        finally:
            self._looking = None
            self.wake()

    # -- the end ---------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        for partition in self.intake.partitions:
            self.intake.unassign(partition)
        self._arrived()
        if self._timer is not None:
            self._timer.cancel()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        links, self._links = self._links, {}
        for link in links.values():
            await link.close()
        if self._cluster is not None:
            await self._cluster.close()


def nothing_assigned() -> InvalidArgumentError:
    return InvalidArgumentError("nothing is assigned to this consumer: name topics when it is made, or call assign")


def as_partition(partition: object) -> TopicPartition:
    if (
        isinstance(partition, tuple)
        and len(partition) == 2
        and isinstance(partition[0], str)
        and isinstance(partition[1], int)
    ):
        return TopicPartition(*partition)
    raise InvalidArgumentError(f"a partition is TopicPartition('orders', 0) or ('orders', 0), not {partition!r}")


def _now_ms() -> float:
    return time.monotonic() * 1000
