"""Partitions whose disk does not do what the metadata asks for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from quire.disk.port import Disk
from quire.disk.sim_disk import SimDisk, SimFile
from quire.errors import DiskIoError
from quire.records import encode_columns
from quire.types import Buffer
from quire.v1 import controller_pb2, metadata_pb2
from quire_broker.log import place as places
from quire_broker.log.place import PartitionKey, Place
from quire_broker.replica.config import ReplicaConfig
from quire_broker.replica.effects import Counted, NotFollowing, Proposal, PushReady
from quire_broker.replica.messages import Message
from quire_broker.runtime.partition import Partition
from quire_broker.runtime.partitions import Partitions
from quire_broker.runtime.replica import Replica
from quire_broker.runtime.replica_wire import Piece
from quire_broker.state.image import MetadataImage

TOPIC_ID = b"t" * 16
KEY = PartitionKey(TOPIC_ID, 0)
Record = metadata_pb2.MetadataRecord


class Alone:
    """An exchange without a way to anybody."""

    def __init__(self) -> None:
        self.handed_over: list[int] = []

    def send(self, to: int, key: PartitionKey, message: Message | Piece, data: Buffer = b"") -> None: ...

    def link_to(self, broker_id: int) -> bytes | None:
        return None

    def push_ready(self, to: int, replica: Replica, effect: PushReady) -> None: ...

    def counted(self, replica: Replica, effect: Counted) -> None: ...

    def not_following(self, replica: Replica, effect: NotFollowing) -> None: ...

    def forget(self, replica: Replica) -> None: ...

    def propose(self, replica: Replica, proposal: Proposal) -> None: ...

    def hand_over(self, replica: Replica, to: int) -> None:
        self.handed_over.append(to)


@dataclass
class Broker:
    """Broker 1 of three, and what it knows of a partition."""

    disk: SimDisk
    image: MetadataImage
    partitions: Partitions
    exchange: Alone
    registered_anew: list[str]
    now_ms: list[int]

    def tell(
        self,
        *,
        leader: int,
        epoch: int,
        replicas: tuple[int, ...] = (1, 2, 3),
        reports: tuple[metadata_pb2.LastIsrReport, ...] = (),
        settings: metadata_pb2.TopicConfig | None = None,
    ) -> None:
        """The metadata is now so."""
        partition = metadata_pb2.Partition(
            topic_id=TOPIC_ID,
            replicas=replicas,
            isr=replicas,
            leader=leader,
            leader_epoch=epoch,
            partition_epoch=epoch,
            reports=reports,
        )
        topic = metadata_pb2.Topic(topic_id=TOPIC_ID, tenant="default", name="orders", partition_count=1)
        topic.config.CopyFrom(settings or metadata_pb2.TopicConfig())
        records = [
            Record(topic=topic),
            Record(partition=partition),
        ]
        for number in (1, 2, 3):
            broker = metadata_pb2.Broker(broker_id=number, broker_epoch=1, node_id=f"b{number}", fenced=number == 2)
            records.append(Record(broker=broker))
        part = metadata_pb2.MetadataSnapshot(version=self.image.version + 1, records=records, first=True, last=True)
        changes = self.image.apply(controller_pb2.WatchMetadataResponse(snapshot=part))
        assert changes is not None
        self.partitions.on_changes(changes)

    @property
    def partition(self) -> Partition | None:
        return next(iter(self.partitions), None)


@asynccontextmanager
async def broker(disk: SimDisk | None = None) -> AsyncIterator[Broker]:
    image, exchange, registered_anew = MetadataImage(), Alone(), list[str]()
    disk, now_ms = disk or SimDisk(), [0]
    disk.make_dirs("/broker")
    with ThreadPoolExecutor(1) as pool:
        partitions = Partitions(
            image,
            broker_id=1,
            disk=disk,
            root="/broker",
            pool=pool,
            now_ms=lambda: now_ms[0],
            may_lead=lambda: True,
            broker_epoch=lambda: 1,
            exchange=exchange,
            replica_config=ReplicaConfig(),
            on_applied=lambda version: None,
            on_gone=lambda topic_id: None,
            register_anew=registered_anew.append,
            waiting_bytes_max=1 << 20,
        )
        await partitions.load()
        running = asyncio.ensure_future(partitions.run())
        yield Broker(disk, image, partitions, exchange, registered_anew, now_ms)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await partitions.close()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():  # noqa: ASYNC110 -- nothing tells
            await asyncio.sleep(0.005)


async def test_what_it_has_no_room_to_lead_is_handed_over_to_an_active_member() -> None:
    async with broker() as at:
        at.tell(leader=3, epoch=1)
        await until(lambda: at.partition is not None)
        at.disk.capacity_bytes = at.disk.used_bytes()
        at.tell(leader=1, epoch=2)
        await until(lambda: bool(at.exchange.handed_over))
        assert at.exchange.handed_over == [3]
        assert at.partition is not None
        assert at.partition.leader_epoch == -1
        at.disk.capacity_bytes = None
        await until(lambda: at.partition is not None and at.partition.leader_epoch == 2)


async def test_what_is_another_brokers_is_given_up_though_its_log_does_not_close() -> None:
    async with broker() as at:
        at.tell(leader=1, epoch=1)
        await until(lambda: at.partition is not None and at.partition.leader_epoch == 1)
        assert at.partition is not None
        await at.partition.submit([encode_columns([b"v"], timestamp_ms=1)])
        at.disk.failing_syncs.add(f"{at.partition.place.records}/checkpoint.tmp")
        at.tell(leader=3, epoch=2, replicas=(2, 3))
        await until(lambda: at.partition is None)
        assert not at.disk.failing_syncs


async def test_what_is_known_when_its_folder_is_made_counts_and_not_what_was_known_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began, go_on, make = threading.Event(), threading.Event(), places.make

    def made_slowly(disk: Disk, root: str, key: PartitionKey, *, topic: str) -> Place:
        began.set()
        go_on.wait(20)
        return make(disk, root, key, topic=topic)

    monkeypatch.setattr(places, "make", made_slowly)
    async with broker() as at:
        at.tell(leader=3, epoch=1)
        await until(began.is_set)
        at.tell(leader=1, epoch=2)
        go_on.set()
        await until(lambda: at.partition is not None and at.partition.leader_epoch == 2)
        assert at.partition is not None
        assert at.partition.writer.log.latest_epoch == 2


async def test_what_others_got_while_its_folder_was_made_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began, go_on, make = threading.Event(), threading.Event(), places.make

    def made_slowly(disk: Disk, root: str, key: PartitionKey, *, topic: str) -> Place:
        began.set()
        go_on.wait(20)
        return make(disk, root, key, topic=topic)

    monkeypatch.setattr(places, "make", made_slowly)
    async with broker() as at:
        at.tell(leader=3, epoch=1)
        await until(began.is_set)
        at.tell(leader=3, epoch=2, replicas=(2, 3))
        go_on.set()
        await until(lambda: bool(list(places.condemned(at.disk, "/broker"))))
        assert at.partition is None


def report(log_end_offset: int) -> metadata_pb2.LastIsrReport:
    return metadata_pb2.LastIsrReport(broker_id=1, broker_epoch=1, last_epoch=-1, log_end_offset=log_end_offset)


async def test_a_log_that_became_whole_is_reported_when_nobody_leads_it() -> None:
    async with broker() as at:
        at.tell(leader=1, epoch=1)
        await until(lambda: at.partition is not None and at.partition.leader_epoch == 1)
        at.tell(leader=0, epoch=2, reports=(report(0),))
        at.tell(leader=3, epoch=3)
        await asyncio.sleep(0.3)
        assert not at.registered_anew
        at.tell(leader=0, epoch=4, reports=(report(-1),))
        await until(lambda: bool(at.registered_anew))
        assert at.registered_anew[0] == "the log of orders/0 is whole, and nobody leads it"


async def test_retention_is_the_leaders() -> None:
    briefly = metadata_pb2.TopicConfig(retention_ms=1_000)
    async with broker() as at:
        at.tell(leader=1, epoch=1, replicas=(1,), settings=briefly)
        await until(lambda: at.partition is not None and at.partition.leader_epoch == 1)
        partition = at.partition
        assert partition is not None
        await partition.submit([encode_columns([b"v"], timestamp_ms=1)])
        await until(lambda: partition.high_watermark == 1)
        at.tell(leader=3, epoch=2, settings=briefly)
        await until(lambda: partition.leader_epoch == -1 and partition.replica.leader is None)
        at.now_ms[0] = 10**9  # its own clock is wrong, for all that it knows
        await at.partitions.apply_retention()
        assert partition.start_offset == 0
        at.tell(leader=1, epoch=3, replicas=(1,), settings=briefly)
        await until(lambda: partition.leader_epoch == 3 and partition.high_watermark == 1)
        await at.partitions.apply_retention()
        assert partition.start_offset == 1


class BadSector(SimDisk):
    """One file that cannot be read until it is mended."""

    is_bad = False

    def open(self, path: str, *, create: bool = False) -> SimFile:
        if self.is_bad and "/records/checkpoint" in path:
            raise DiskIoError(f"{path}: input/output error", path=path)
        return super().open(path, create=create)


async def test_a_log_that_cannot_be_opened_keeps_nothing_else_from_being_served() -> None:
    disk = BadSector()
    async with broker(disk) as at:
        at.tell(leader=1, epoch=1)
        await until(lambda: at.partition is not None and at.partition.leader_epoch == 1)
    disk.is_bad = True
    async with broker(disk) as at:
        assert at.partition is None
        assert at.partitions.log_ends() == []
        at.tell(leader=1, epoch=2)
        await until(lambda: bool(at.exchange.handed_over) or at.partitions._dirty != {})
        assert at.partition is None
        disk.is_bad = False
        await until(lambda: at.partition is not None and at.partition.leader_epoch == 2)
