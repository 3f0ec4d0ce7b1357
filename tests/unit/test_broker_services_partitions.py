"""What the metadata says of partitions, done: settings, deletion, disks without room, and the lease meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from quire.disk.sim_disk import SimDisk
from quire.errors import BatchTooLargeError, NotLeaderError, UnknownTopicError
from quire.v1 import durability_pb2, metadata_pb2
from quire_broker.log.config import LogConfig
from quire_broker.runtime.topic_config import log_config, may_lose, min_isr
from tests.unit.broker_services_harness import (
    NOW_MS,
    ROOT,
    World,
    at,
    batch,
    batches,
    entry,
    raw,
    refusal_in,
    settle,
    values_of,
    virtual,
)

OS = durability_pb2.FlushPolicy(mode=durability_pb2.FLUSH_MODE_OS)
DAY_MS = 24 * 3600 * 1000


# --- settings -------------------------------------------------------------------------------------------------------


def test_what_a_topic_does_not_set_has_the_defaults() -> None:
    assert log_config(metadata_pb2.TopicConfig()) == LogConfig()
    unlimited = metadata_pb2.TopicConfig(retention_ms=-1, retention_bytes=-1, retention_segments=-1)
    made = log_config(unlimited)
    assert (made.retention_ms, made.retention_bytes, made.retention_segments) == (None, None, None)
    interval = durability_pb2.FlushPolicy(mode=durability_pb2.FLUSH_MODE_INTERVAL, interval_ms=50)
    made = log_config(metadata_pb2.TopicConfig(flush=interval, message_bytes_max=16 * 2**20, segment_bytes=20_000))
    assert (str(made.flush), made.batch_bytes_max, made.segment_bytes) == ("interval(50)", 16 * 2**20, 20_000)


def test_replicas_and_risks() -> None:
    for factor, expected in ((1, 1), (2, 2), (3, 2), (5, 3)):
        assert min_isr(metadata_pb2.Topic(replication_factor=factor)) == expected
    assert min_isr(metadata_pb2.Topic(replication_factor=3, config=metadata_pb2.TopicConfig(min_isr=1))) == 1
    assert not may_lose(metadata_pb2.TopicConfig())
    assert may_lose(metadata_pb2.TopicConfig(flush=OS))
    assert may_lose(metadata_pb2.TopicConfig(unclean_election=True))


@virtual
async def test_settings_take_effect_while_it_runs() -> None:
    async with World() as world:
        await world.create("orders", message_bytes_max=1_024)
        [stored] = await world.produce(entry("orders", raw(bytes(10_000))))
        assert isinstance(refusal_in(stored), BatchTooLargeError)
        await world.configure("orders", message_bytes_max=20_000)
        assert (await world.store(bytes(10_000))).durability.fsynced
        await world.configure("orders", flush=OS)
        assert not (await world.store(b"a")).durability.fsynced
        await world.configure("orders")
        assert (await world.store(b"b")).durability.fsynced
        [fetched] = await world.fetch(at(offset=1))
        assert values_of(fetched) == [b"a", b"b"]


@virtual
async def test_retention_by_age_takes_effect_while_it_runs() -> None:
    async with World() as world:
        await world.create("orders", retention_ms=-1)
        for day in range(4):
            world.now_ms = NOW_MS + day * DAY_MS
            await world.produce(entry("orders", batches(batch(b"%d" % day, timestamp_ms=world.now_ms))))
            await world.configure("orders", segment_bytes=16_384 + day)
            await world.partition().writer.exclusively(lambda log: log._state.roll())
        await world.partitions.apply_retention()
        assert world.partition().start_offset == 0
        await world.configure("orders", retention_ms=DAY_MS + 1)
        await world.partitions.apply_retention()
        assert world.partition().start_offset == 2
        [fetched] = await world.fetch(at(offset=2))
        assert values_of(fetched) == [b"2", b"3"]


# --- deletion -------------------------------------------------------------------------------------------------------


def files(disk: SimDisk, directory: str = ROOT) -> list[str]:
    found: list[str] = []
    for name in disk.names(directory):
        path = f"{directory}/{name}"
        try:
            found += files(disk, path) or [f"{path}/"]
        except Exception:
            found.append(path)
    return found


@virtual
async def test_a_deleted_topics_files_go_after_a_grace() -> None:
    async with World(removal_ms=60_000) as world:
        topic_id = await world.create("orders", partitions=2)
        await world.create("others")
        await world.store(b"a")
        await world.delete("orders")
        [stored] = await world.produce(entry("orders", raw(b"b")))
        assert isinstance(refusal_in(stored), UnknownTopicError)
        assert world.gone == [topic_id]
        of_orders = [path for path in files(world.disk) if "/orders-" in path]
        assert any(path.endswith(".log") for path in of_orders), "a person who erred has the grace to copy them"
        assert any(path.endswith("partition.gone") for path in of_orders)
        assert not any(path.endswith("partition.meta") for path in of_orders)
        await asyncio.sleep(50)
        assert [path for path in files(world.disk) if "/orders-" in path] == of_orders
        await asyncio.sleep(80)
        assert not [path for path in files(world.disk) if "/orders-" in path]
        assert [path for path in files(world.disk) if "/others-" in path]


@virtual
async def test_a_topic_made_anew_begins_empty() -> None:
    async with World() as world:
        await world.create("orders")
        await world.store(b"old")
        await world.delete("orders")
        await world.create("orders")
        assert (await world.store(b"new")).base_offset == 0
        [fetched] = await world.fetch(at())
        assert values_of(fetched) == [b"new"]


@virtual
async def test_a_topic_whose_log_has_failed_can_be_deleted() -> None:
    async with World() as world:
        topic_id = await world.create("orders")
        await world.store(b"a")
        world.disk.failing_syncs.add(f"{world.partition().place.records}/{0:020}.log")
        await world.produce(entry("orders", raw(b"b")))
        assert world.partition().is_offline
        await world.delete("orders")
        await asyncio.sleep(3)
        assert world.gone == [topic_id]


@virtual
async def test_a_topic_whose_log_fails_when_it_is_closed_can_be_deleted() -> None:
    async with World() as world:
        topic_id = await world.create("orders", flush=OS)
        await world.store(b"a")
        world.disk.failing_syncs.add(f"{world.partition().place.records}/{0:020}.log")
        await world.delete("orders")
        assert not world.disk.failing_syncs, "it has failed"
        await asyncio.sleep(3)
        assert world.gone == [topic_id]


# --- versions -------------------------------------------------------------------------------------------------------


@virtual
async def test_what_ended_has_ended_before_the_version_is_applied() -> None:
    async with World() as world:
        await world.create("orders", isr=(1, 2), min_isr=1)
        assert world.applied[-1] == world.image.version
        led: list[int] = []
        partition = world.partition()
        world.partitions._on_applied = lambda version: led.append(partition.leader_epoch)
        world.elect_now("orders", leader=2)
        assert led == [-1]


@virtual
async def test_new_partitions_do_not_keep_the_version_from_being_applied() -> None:
    """Or the lease on all others would end while their files are made."""
    async with World() as world:
        await world.create("orders")
        world.aside.hold()
        await world.create("many", partitions=100)
        assert world.applied[-1] == world.image.version
        [stored] = await world.produce(entry("many", raw(b"a"), partition=5))
        assert isinstance(refusal_in(stored), NotLeaderError)
        world.aside.let_go()
        await settle()
        for _ in range(5):
            await settle()
        assert (await world.store(b"a", topic="many", partition=99)).base_offset == 0


@virtual
async def test_a_disk_without_room_costs_no_lease_and_passes() -> None:
    async with World() as world:
        await world.create("orders")
        await world.store(b"a")
        world.disk.capacity_bytes = world.disk.used_bytes()
        await world.create("more")
        await world.elect("orders")
        assert world.applied[-1] == world.image.version
        [stored] = await world.produce(entry("more", raw(b"a")))
        assert isinstance(refusal_in(stored), NotLeaderError)
        world.disk.capacity_bytes = None
        await asyncio.sleep(3)
        assert (await world.store(b"a", topic="more")).base_offset == 0
        assert (await world.store(b"b")).base_offset == 1


@pytest.mark.parametrize("count", [300])
@virtual
async def test_leaderships_come_and_go_many_times(count: int) -> None:
    async with World() as world:
        await world.create("orders", isr=(1, 2), min_isr=1)
        for number in range(count):
            world.elect_now("orders", leader=1 if number % 3 else 2, isr=(1,) if number % 3 else (1, 2))
            if number % 7 == 0:
                await asyncio.sleep(0)
        await settle()
        assert await world.elect("orders", isr=(1,)) == count + 2
        assert (await world.store(b"a")).leader_epoch == count + 2
