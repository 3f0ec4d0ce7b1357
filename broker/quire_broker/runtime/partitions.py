"""All partitions of this broker: what the metadata says that it has and leads, and what is on its disk.

    metadata ──► leaderships that ended: at once ──► applied ──► folders, logs, new leaderships: one after the other

A version counts as applied when the leaderships that it ended have ended: that is what others wait for. If it waited
for the rest, a thousand new partitions, or one that the disk has no room for, would cost the lease on all others.
Nothing is removed because it looks orphaned: only what the metadata names as deleted, or as another broker's by now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple, TypeVar

from quire.disk.port import Disk
from quire.errors import (
    DamagedFileError,
    DiskFullError,
    DiskIoError,
    LogOfflineError,
    NotLeaderError,
    QuireError,
    UnknownPartitionError,
    UnknownTopicError,
)
from quire.process import logs
from quire.records.header import Attributes
from quire.records.produced import PRODUCIBLE_ATTRIBUTES
from quire.v1 import commands_pb2, metadata_pb2, topics_pb2
from quire_broker.log import place as places
from quire_broker.log.log import Log
from quire_broker.log.place import PartitionKey, Place
from quire_broker.log.recovery import RecoveryReport
from quire_broker.replica.config import ReplicaConfig
from quire_broker.replica.effects import IsrMember
from quire_broker.replica.leader import Picture
from quire_broker.runtime.kernel_syncs import KernelSyncs
from quire_broker.runtime.log_writer import LogWriter
from quire_broker.runtime.partition import NO_EPOCH, Partition
from quire_broker.runtime.replica import Exchange, Replica
from quire_broker.runtime.tail import TailRoom
from quire_broker.runtime.topic_config import log_config, may_lose, min_isr
from quire_broker.state.image import Changes, MetadataImage

RETRY_MS: Final = 1_000
"""After a disk had no room for what the metadata asks for, or failed, it is tried again."""
TICK_S: Final = 0.1
HAND_OVER_S: Final = 2.0
"""Between two attempts to hand over a leadership: the first one takes its time, and the next one goes to another."""
REMOVAL_MS: Final = 60_000
"""How long the files of a partition that is gone stay where they are: a person who erred has as long."""

ATTRIBUTES_TAKEN: Final = PRODUCIBLE_ATTRIBUTES & ~(
    Attributes.TRANSACTIONAL | Attributes.LANE_MASK | Attributes.DELAYED | Attributes.HAS_TTL | Attributes.TRACED
)
"""The bits of what this broker does. A batch that asks for more is refused."""


T = TypeVar("T")

_log = logs.get("partitions")
_problems = logs.Throttled(_log)


class Role(NamedTuple):
    """What this broker is for a partition."""

    me: IsrMember
    is_leader: bool
    leader_epoch: int

    def continues(self, before: Role | None) -> bool:
        """Whether a replica that was this before can go on: a leader in its epoch, a follower under any leader."""
        if before is None or (before.me, before.is_leader) != (self.me, self.is_leader):
            return False
        return not self.is_leader or before.leader_epoch == self.leader_epoch

    def continues_as(self, after: Role | None) -> bool:
        return after is not None and after.continues(self)


class _HandOver(NamedTuple):
    """The last attempt to have another broker lead."""

    at: float
    attempts: int


class Partitions:
    def __init__(
        self,
        image: MetadataImage,
        *,
        broker_id: int,
        disk: Disk,
        root: str,
        pool: ThreadPoolExecutor,
        kernel: KernelSyncs | None = None,
        now_ms: Callable[[], int],
        may_lead: Callable[[], bool],
        broker_epoch: Callable[[], int],
        exchange: Exchange,
        replica_config: ReplicaConfig,
        on_applied: Callable[[int], None],
        on_gone: Callable[[bytes], None],
        register_anew: Callable[[str], None],
        waiting_bytes_max: int,
        removal_ms: int = REMOVAL_MS,
    ) -> None:
        """`on_applied` is told of versions that are applied, `on_gone` of deleted topics without files here.

        `register_anew`: the last registration said nothing of a log that somebody may have to lead from by now.
        """
        self._image = image
        self._broker_id = broker_id
        self._disk = disk
        self._root = root
        self._pool = pool
        self._kernel = kernel
        self._tails = TailRoom()
        self._now_ms = now_ms
        self._may_lead = may_lead
        self._broker_epoch = broker_epoch
        self._exchange = exchange
        self._replica_config = replica_config
        self._on_applied = on_applied
        self._on_gone = on_gone
        self._register_anew = register_anew
        self._waiting_bytes_max = waiting_bytes_max
        self._removal_s = removal_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._partitions: dict[PartitionKey, Partition] = {}
        self._roles: dict[PartitionKey, Role] = {}
        """What the replicas are now. One that is changing is not here."""
        self._dirty: dict[PartitionKey, None] = {}
        self._deleted: dict[bytes, None] = {}
        self._changed = asyncio.Event()
        self._folders = asyncio.Lock()
        """Held by whoever makes or removes folders."""
        self._listeners: dict[Callable[[Changes], None], None] = {}
        self._handed_over: dict[PartitionKey, _HandOver] = {}
        """Leaderships that this broker cannot carry out."""

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._partitions.values())

    # -- for those who serve requests ------------------------------------------------------------------------------

    def topic(self, tenant: str, ref: topics_pb2.TopicRef) -> metadata_pb2.Topic:
        """The topic that is meant, if it is of this tenant."""
        if ref.WhichOneof("ref") == "topic_id":
            topic = self._image.topic(ref.topic_id)
            if topic is None or topic.tenant != tenant:
                raise UnknownTopicError(
                    f"there is no topic with the id {ref.topic_id[:16].hex()}; it may have been deleted",
                    topic_id=ref.topic_id[:16].hex(),
                )
            return topic
        topic = self._image.topic_named(tenant, ref.name)
        if topic is None:
            raise UnknownTopicError(
                f"there is no topic {ref.name[:80]!a}; create it first", topic=ascii(ref.name[:80])[1:-1]
            )
        return topic

    def led(self, topic: metadata_pb2.Topic, index: int, epoch: int | None) -> Partition:
        """The partition, if this broker leads it and may. Raises what a client has to do about it."""
        key = PartitionKey(topic.topic_id, index)
        partition = self._partitions.get(key)
        if partition is None:
            if not 0 <= index < topic.partition_count:
                raise UnknownPartitionError(
                    f"topic '{topic.name}' has partitions 0 to {topic.partition_count - 1}, not {index}"
                )
            raise NotLeaderError(f"this broker does not lead {topic.name}/{index}; find its leader anew")
        self.check_led(partition, epoch)
        return partition

    def check_led(self, partition: Partition, epoch: int | None) -> None:
        """Raise NotLeaderError or StaleEpochError unless this broker leads it, and may."""
        partition.check_leads(epoch)
        if not self._may_lead():
            raise NotLeaderError(f"this broker's lease has ended, so it may not act as the leader of {partition}")

    # -- life ------------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Open all logs that are on the disk, or can be opened; the others are tried again once they are wanted.

        Raises DamagedFileError for a folder that does not say whose it is.
        """
        found = await self._aside(lambda: list(places.find(self._disk, self._root)))
        for place in found:
            try:
                await self._open(place, topic=place.directory.split("/")[-2].rpartition("-")[0], config=None)
            except QuireError as error:
                _log.error("a log cannot be opened", directory=place.directory, why=error.message)

    def log_ends(self) -> list[commands_pb2.LogEnd]:
        """What is in the logs, for the registration."""
        return [
            commands_pb2.LogEnd(
                topic_id=partition.key.topic_id,
                partition=partition.key.partition,
                last_epoch=partition.writer.log.last_batch_epoch,
                log_end_offset=partition.writer.log.end_offset,
            )
            for partition in self._partitions.values()
            if partition.writer.log.offline is None and not partition.writer.log.quarantined
        ]

    def on_changes(self, changes: Changes) -> None:
        """The metadata has changed. Leaderships that ended end now, what is new is done as soon as it can be."""
        keys = {PartitionKey(topic_id, index): None for topic_id, index in changes.partitions}
        if changes.everything or changes.brokers:
            keys |= dict.fromkeys(self._partitions)
        for topic_id in changes.topics:
            keys |= dict.fromkeys(self._of_topic(topic_id))
        for topic_id in changes.deleted_topics:
            self._deleted[topic_id] = None
            keys |= dict.fromkeys(self._of_topic(topic_id))
        for key in keys:
            if not self._keep_role(key):
                self._dirty[key] = None
        self._changed.set()
        self._on_applied(changes.version)
        for listener in list(self._listeners):
            listener(changes)

    def on_registered(self) -> None:
        """This broker has another epoch: it leads nothing, and follows anew once the metadata shows that epoch."""
        self.resign_all()
        self._dirty |= dict.fromkeys(self._partitions)
        self._changed.set()

    def follow(self, listener: Callable[[Changes], None]) -> Callable[[], None]:
        """Call with each change of the metadata, until what this gives is called."""
        self._listeners[listener] = None
        return lambda: self._listeners.pop(listener, None) and None

    def resign_all(self) -> None:
        """Neither lead nor follow."""
        self._roles.clear()
        for partition in self._partitions.values():
            partition.resign()

    def find(self, key: PartitionKey) -> Partition | None:
        return self._partitions.get(key)

    def replica_of(self, key: PartitionKey) -> Replica | None:
        partition = self._partitions.get(key)
        return None if partition is None else partition.replica

    def replicas(self) -> list[Replica]:
        return [partition.replica for partition in self._partitions.values()]

    async def run(self) -> None:
        """Do what the metadata says, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._remove_condemned(), name="removals")
            group.create_task(self._tick(), name="ticks")
            while True:
                await self._changed.wait()
                self._changed.clear()
                dirty, self._dirty = self._dirty, {}
                deleted, self._deleted = self._deleted, {}
                failed = False
                for key in dirty:
                    failed |= not await self._settle(key)
                    await asyncio.sleep(0)  # each syncs on the loop: heartbeats are not to wait for all of them
                for topic_id in deleted:
                    gone = self._image.deleted_topics.get(topic_id)
                    if self._of_topic(topic_id):
                        self._deleted[topic_id] = None
                    elif gone is not None and self._broker_id in gone.brokers:
                        self._on_gone(topic_id)
                if failed:
                    self._loop.call_later(RETRY_MS / 1000, self._changed.set)

    async def close(self) -> None:
        """Close all logs: the next start need not look for what they hold."""
        self.resign_all()
        for partition in list(self._partitions.values()):
            try:
                await partition.close()
            except QuireError as error:
                _log.error("a log could not be closed", partition=str(partition), why=error.message)

    async def apply_retention(self) -> None:
        """Remove what is older or more than the topics' settings allow, as a leader: followers are told."""
        now_ms = self._now_ms()
        for partition in list(self._partitions.values()):
            if partition.closed or partition.leader_epoch == NO_EPOCH or not self._may_lead():
                continue
            try:
                await partition.writer.exclusively(
                    partial(Log.apply_retention, now_ms=now_ms, end_offset_max=partition.high_watermark)
                )
            except QuireError as error:
                _problems.warning("retention failed", key=partition.key, partition=str(partition), why=error.message)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _of_topic(self, topic_id: bytes) -> list[PartitionKey]:
        return [key for key in self._partitions if key.topic_id == topic_id]

    def _me(self) -> IsrMember | None:
        """This broker as the metadata shows it; None while that is not its present registration."""
        mine = self._image.brokers.get(self._broker_id)
        if mine is None or mine.broker_epoch != self._broker_epoch():
            return None
        return IsrMember(self._broker_id, mine.broker_epoch)

    def _role_of(self, key: PartitionKey) -> Role | None:
        """What this broker is to be for a partition, as far as it is known; None for nothing."""
        wanted, topic, me = self._image.partition(*key), self._image.topic(key.topic_id), self._me()
        if wanted is None or topic is None or me is None or self._broker_id not in wanted.replicas:
            return None
        return Role(me=me, is_leader=wanted.leader == self._broker_id, leader_epoch=wanted.leader_epoch)

    def _keep_role(self, key: PartitionKey) -> bool:
        """Tell a replica what has changed for it, if its role is what it was. Else it has none from now on."""
        partition, role = self._partitions.get(key), self._role_of(key)
        if partition is None:
            return role is None and self._image.partition(*key) is None
        topic = self._image.topic(key.topic_id)
        if role is None or topic is None or not role.continues(self._roles.get(key)):
            partition.resign()
            self._roles.pop(key, None)
            return False
        self._roles[key] = role
        self._tell(partition, topic, role)
        return partition.writer.log.config == log_config(topic.config)

    def _tell(self, partition: Partition, topic: metadata_pb2.Topic, role: Role) -> None:
        wanted = self._image.partition(*partition.key)
        if wanted is None:
            return
        if role.is_leader:
            partition.replica.on_picture(self._picture(wanted, topic))
        else:
            partition.replica.on_leader(
                leader=wanted.leader or None, leader_epoch=wanted.leader_epoch, may_lose=may_lose(topic.config)
            )

    def _picture(self, wanted: metadata_pb2.Partition, topic: metadata_pb2.Topic) -> Picture:
        return Picture(
            replicas=tuple(wanted.replicas),
            isr=tuple(wanted.isr),
            eligible=tuple(wanted.eligible),
            leader_epoch=wanted.leader_epoch,
            partition_epoch=wanted.partition_epoch,
            min_isr=min_isr(topic),
            brokers={each.broker_id: each.broker_epoch for each in self._image.brokers.values() if not each.fenced},
        )

    async def _settle(self, key: PartitionKey) -> bool:
        """Do what the metadata says of one partition. False if that has to be tried again."""
        try:
            await self._settle_now(key)
        except (DamagedFileError, DiskFullError, DiskIoError, LogOfflineError) as error:
            self._dirty[key] = None
            _problems.warning("cannot do what the metadata says", key=key, partition=str(key), why=error.message)
            if (partition := self._partitions.get(key)) is not None:
                self._hand_over(partition)
            return False
        return True

    async def _settle_now(self, key: PartitionKey) -> None:
        partition = self._partitions.get(key)
        wanted = self._image.partition(key.topic_id, key.partition)
        if wanted is None or self._broker_id not in wanted.replicas:
            # What it is to be is known for sure only by metadata that shows the present registration.
            is_gone = wanted is not None or self._image.is_deleted(key.topic_id)
            if partition is not None and is_gone and self._me() is not None:
                await self._discard(partition)
            return
        topic = self._image.topic(key.topic_id)
        if topic is None:
            return
        config = log_config(topic.config)
        if partition is None:
            async with self._folders:
                place = await self._aside(lambda: places.make(self._disk, self._root, key, topic=topic.name))
            await self._open(place, topic=topic.name, config=topic.config)
            # That took its time: the metadata may ask for something else by now.
            await self._settle_now(key)
            return
        if partition.writer.log.config != config:
            partition.writer.configure(config)
        role = self._role_of(key)
        if role is None or self._roles.get(key) == role:
            return
        if role.is_leader:
            await partition.lead(self._picture(wanted, topic), role.me)
        else:
            await partition.follow(
                leader=wanted.leader or None,
                leader_epoch=wanted.leader_epoch,
                replicas=tuple(wanted.replicas),
                me=role.me,
                may_lose=may_lose(topic.config),
            )
        # It took its time: what has become known meanwhile is still to be told.
        if not role.continues_as(self._role_of(key)):
            partition.resign()
            self._dirty[key] = None
            self._changed.set()
            return
        self._roles[key] = role
        if role.is_leader:
            end_offset = partition.writer.log.end_offset
            _log.info("leads", partition=str(partition), epoch=role.leader_epoch, end_offset=end_offset)
        self._keep_role(key)

    async def _open(self, place: Place, *, topic: str, config: metadata_pb2.TopicConfig | None) -> Partition:
        now_ms = self._now_ms()
        log = await self._aside(
            lambda: Log.open(
                self._disk, place.records, log_config(config or metadata_pb2.TopicConfig()), now_ms=now_ms
            )
        )
        partition = Partition(place, topic=topic)
        writer = LogWriter(
            log,
            pool=self._pool,
            kernel=self._kernel,
            tails=self._tails,
            now_ms=self._now_ms,
            waiting_bytes_max=self._waiting_bytes_max,
            attributes_allowed=ATTRIBUTES_TAKEN,
            on_progress=partition.on_progress,
        )
        partition.open(writer, self._exchange, self._replica_config)
        _report(partition, log.recovery)
        self._partitions[place.key] = partition
        return partition

    async def _discard(self, partition: Partition) -> None:
        """The partition is not this broker's any more."""
        try:
            await partition.close()
        except QuireError as error:
            # Its files are closed all the same, and what could not be written to them is wanted no more.
            _log.warning("a log could not be closed well", partition=str(partition), why=error.message)
        await self._aside(lambda: places.condemn(self._disk, partition.place))
        del self._partitions[partition.key]
        self._roles.pop(partition.key, None)
        self._handed_over.pop(partition.key, None)
        _log.info("given up", partition=str(partition), directory=partition.place.directory)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            for partition in list(self._partitions.values()):
                if partition.is_offline:
                    self._hand_over(partition)
                else:
                    partition.replica.on_tick()
                    if self._is_wanted_and_unreported(partition):
                        self._register_anew(f"the log of {partition} is whole, and nobody leads it")

    def _is_wanted_and_unreported(self, partition: Partition) -> bool:
        """Whether nobody leads it, and this broker, of the last ISR, could not say what its log has, and now can."""
        wanted = self._image.partition(*partition.key)
        if wanted is None or wanted.leader or partition.closed or partition.writer.log.quarantined:
            return False
        me = self._me()
        return me is not None and any(
            (report.broker_id, report.broker_epoch) == me and report.log_end_offset < 0 for report in wanted.reports
        )

    def _hand_over(self, partition: Partition) -> None:
        """Its log has failed, or its disk has no room to begin with, so another broker is to lead, if this one is.

        Metadata that says so ends this.
        """
        key, now = partition.key, self._loop.time()
        wanted, last = self._image.partition(*key), self._handed_over.get(key)
        if wanted is None or wanted.leader != self._broker_id:
            return
        if last is not None and now < last.at + HAND_OVER_S:
            return
        active = [each.broker_id for each in self._image.brokers.values() if not each.fenced]
        fit = [each for each in wanted.isr if each in active and each != self._broker_id]
        if fit:
            before = 0 if last is None else last.attempts
            self._handed_over[key] = _HandOver(now, before + 1)
            self._exchange.hand_over(partition.replica, fit[before % len(fit)])

    async def _remove_condemned(self) -> None:
        """Remove the files of partitions that are gone, some time later."""
        while True:
            found = await self._aside(lambda: list(places.condemned(self._disk, self._root)))
            await asyncio.sleep(self._removal_s)
            for directory in found:
                try:
                    async with self._folders:
                        await self._aside(partial(places.remove, self._disk, directory))
                except DiskIoError as error:
                    _problems.warning("files could not be removed", directory=directory, why=error.message)

    async def _aside(self, work: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._pool, work)


def _report(partition: Partition, report: RecoveryReport) -> None:
    """What opening a log has found, where a person should know."""
    if report.torn is not None:
        _log.warning("cut a write that a crash had torn", partition=str(partition), offset=report.torn.offset)
    for damage in report.damaged:
        _log.error("a range of a log is damaged", partition=str(partition), what=str(damage))
    for missing in report.missing:
        _log.error("a range of a log is missing", partition=str(partition), what=str(missing))
