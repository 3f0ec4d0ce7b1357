"""FollowTopics: a client that keeps what it is told has the same picture as the broker, at each version."""

from __future__ import annotations

import asyncio
import random
from typing import Final

import pytest

from quire.errors import InvalidArgumentError, InvalidTopicNameError, UnavailableError
from quire.v1 import broker_pb2, controller_pb2, metadata_pb2, topics_pb2
from quire_broker.service import follow
from tests.unit.broker_services_harness import (
    EPOCH,
    ME,
    Call,
    Stream,
    World,
    broker_record,
    enter,
    ref,
    settle,
    virtual,
)

Said = broker_pb2.FollowTopicsResponse


class Picture:
    """What a client makes of it."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.version = 0
        self.messages = 0
        self.partial = 0
        self.brokers: dict[int, broker_pb2.BrokerAddress] = {}
        self.topics: dict[bytes, metadata_pb2.Topic] = {}
        self.partitions: dict[tuple[bytes, int], broker_pb2.PartitionLeader] = {}
        self.missing: list[topics_pb2.TopicRef] = []
        self.limits: list[broker_pb2.BrokerLimits] = []

    async def take(self, message: Said | None = None) -> Said:
        message = message or await self.stream.next()
        self.messages += 1
        for broker in message.brokers:
            self.brokers[broker.broker_id] = broker
        for broker_id in message.brokers_removed:
            del self.brokers[broker_id]
        for topic in message.topics:
            self.topics[topic.topic_id] = topic
        for partition in message.partitions:
            self.partitions[partition.topic_id, partition.partition] = partition
        self.missing += message.missing
        if message.HasField("limits"):
            self.limits.append(message.limits)
        assert message.version == 0 or message.version >= self.version, "versions do not go back"
        self.version = message.version or self.version
        self.partial += not message.version
        return message

    async def until(self, version: int) -> None:
        while self.version < version:
            await self.take()

    def leaders(self, topic_id: bytes) -> dict[int, tuple[int, int]]:
        return {
            index: (each.leader, each.leader_epoch) for (of, index), each in self.partitions.items() if of == topic_id
        }


@virtual
async def test_everything_first_then_what_changed() -> None:
    async with World() as world:
        orders = await world.create("orders", partitions=3)
        await world.create("others", partitions=2)
        picture = Picture(world.follow(ref("orders"), ref("nothing")))
        first = await picture.take()
        assert first.version == world.image.version
        assert first.cluster_id == "c"
        assert list(picture.topics) == [orders]
        assert picture.leaders(orders) == {0: (1, 1), 1: (1, 1), 2: (1, 1)}
        assert picture.missing == [ref("nothing")]
        assert [each.request_bytes_max for each in picture.limits] == [32 * 2**20]
        world.elect_now("orders", 1, leader=2)
        second = await picture.take()
        assert [(each.partition, each.leader, each.leader_epoch) for each in second.partitions] == [(1, 2, 2)]
        assert not (second.topics)
        assert not (second.brokers)
        assert not (second.missing)
        assert not (second.HasField("limits"))


@virtual
async def test_what_is_not_followed_moves_only_the_version() -> None:
    async with World() as world:
        await world.create("orders")
        picture = Picture(world.follow(ref("orders")))
        await picture.take()
        await world.create("others", partitions=5)
        world.elect_now("others", 3, leader=2)
        version = world.image.version
        while picture.version < version:
            message = await picture.take()
            assert not (message.topics)
            assert not (message.partitions)
            assert not (message.brokers)
            assert not (message.missing)


@virtual
async def test_a_topic_that_is_deleted_and_made_anew() -> None:
    async with World() as world:
        old = await world.create("orders", partitions=2)
        by_name, by_id = Picture(world.follow(ref("orders"))), Picture(world.follow(ref(old)))
        await by_name.take()
        await by_id.take()
        await world.delete("orders")
        assert list((await by_name.take()).missing) == [ref("orders")]
        assert list((await by_id.take()).missing) == [ref(old)]
        new = await world.create("orders", partitions=3)
        await by_name.until(world.image.version)
        assert [each.topic_id for each in by_name.topics.values() if each.name == "orders"][-1] == new
        assert by_name.leaders(new) == {0: (1, 1), 1: (1, 1), 2: (1, 1)}
        await by_id.until(world.image.version)
        assert list(by_id.topics) == [old], "another topic, whatever its name"


@virtual
async def test_deleted_and_made_anew_while_the_client_did_not_read() -> None:
    async with World() as world:
        await world.create("orders", partitions=2)
        call = Call()
        picture = Picture(world.follow(ref("orders"), call=call))
        await picture.take()
        call.takes.clear()
        await world.delete("orders")
        await settle()
        new = await world.create("orders", partitions=1)
        world.elect_now("orders", 0, leader=2)
        call.takes.set()
        await picture.until(world.image.version)
        assert picture.leaders(new) == {0: (2, 2)}


@virtual
async def test_settings_and_more_partitions() -> None:
    async with World() as world:
        orders = await world.create("orders", partitions=2)
        picture = Picture(world.follow(ref("orders"), ref(orders)))
        first = await picture.take()
        assert len(first.topics) == 1, "once, though it was asked for twice"
        await world.configure("orders", retention_ms=5)
        await picture.take()
        assert picture.topics[orders].config.retention_ms == 5
        grown = metadata_pb2.Topic()
        grown.CopyFrom(picture.topics[orders])
        grown.partition_count = 4
        more = [
            metadata_pb2.MetadataRecord(
                partition=metadata_pb2.Partition(topic_id=orders, partition=index, replicas=[2], isr=[2], leader=2)
            )
            for index in (2, 3)
        ]
        version = world.apply(metadata_pb2.MetadataRecord(topic=grown), *more)
        await picture.until(version)
        assert sorted(picture.leaders(orders)) == [0, 1, 2, 3]


@virtual
async def test_brokers_by_the_listener_that_the_client_came_by() -> None:
    async with World() as world:
        world.apply(
            broker_record(ME, epoch=EPOCH, client=1, public=2), broker_record(2, client=3), broker_record(3, client=4)
        )
        enter(listener="public")
        picture = Picture(world.follow())
        await picture.take()
        assert {number: (each.host, each.port) for number, each in picture.brokers.items()} == {
            1: ("b1", 2),
            2: ("", 0),
            3: ("", 0),
        }
        world.apply(broker_record(2, fenced=True, client=3, public=9))
        await picture.take()
        assert (picture.brokers[2].port, picture.brokers[2].active) == (9, False)
        world.apply(metadata_pb2.MetadataRecord(broker_removed=3))
        await picture.take()
        assert sorted(picture.brokers) == [1, 2]


@virtual
async def test_a_large_answer_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "PARTITIONS_A_MESSAGE", 10)
    async with World() as world:
        orders = await world.create("orders", partitions=35, isr=(2,), leader=2)
        picture = Picture(world.follow(ref("orders")))
        await picture.until(world.image.version)
        assert (picture.messages, picture.partial) == (4, 3), "the version comes with the last one"
        assert len(picture.leaders(orders)) == 35


@virtual
async def test_a_picture_is_of_one_version_though_it_changes_while_it_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follow, "PARTITIONS_A_MESSAGE", 10)
    async with World() as world:
        orders = await world.create("orders", partitions=20, isr=(2,), leader=2)
        call = Call()
        call.takes.clear()
        picture = Picture(world.follow(ref("orders"), call=call))
        await settle()
        for index in range(20):
            world.elect_now("orders", index, leader=3)
        call.takes.set()
        await picture.until(1)
        assert set(picture.leaders(orders).values()) == {(2, 1)}
        await picture.until(world.image.version)
        assert set(picture.leaders(orders).values()) == {(3, 2)}


@virtual
async def test_a_whole_new_image() -> None:
    """As after a controller's snapshot."""
    async with World() as world:
        orders = await world.create("orders", partitions=2)
        picture = Picture(world.follow(ref("orders")))
        await picture.take()
        version = world.image.version + 10
        snapshot = metadata_pb2.MetadataSnapshot(
            version=version,
            first=True,
            last=True,
            records=[
                metadata_pb2.MetadataRecord(cluster=metadata_pb2.Cluster(cluster_id="c")),
                broker_record(7, client=1),
                metadata_pb2.MetadataRecord(topic=picture.topics[orders]),
                *[
                    metadata_pb2.MetadataRecord(
                        partition=metadata_pb2.Partition(topic_id=orders, partition=index, leader=7, leader_epoch=9)
                    )
                    for index in range(2)
                ],
            ],
        )
        changes = world.image.apply(controller_pb2.WatchMetadataResponse(snapshot=snapshot))
        assert changes is not None
        world.partitions.on_changes(changes)
        await picture.until(version)
        assert sorted(picture.brokers) == [7]
        assert picture.leaders(orders) == {0: (7, 9), 1: (7, 9)}


@virtual
async def test_many_changes_at_random() -> None:
    chance = random.Random(7)
    async with World() as world:
        names = ["a", "b", "c", "d"]
        pictures = [Picture(world.follow(*map(ref, chosen))) for chosen in (names, names[:2], names[2:], [])]
        for _ in range(150):
            name = chance.choice(names)
            if name not in world._topics:
                await world.create(name, partitions=chance.randint(1, 4), isr=(2,), leader=2)
            elif chance.random() < 0.15:
                await world.delete(name)
            else:
                index = chance.randrange(world._topics[name].partition_count)
                world.elect_now(name, index, leader=chance.randint(2, 4))
            if chance.random() < 0.3:
                world.apply(broker_record(chance.randint(2, 4), client=chance.randint(1, 9)))
        for picture, chosen in zip(pictures, (names, names[:2], names[2:], []), strict=True):
            await picture.until(world.image.version)
            for name in set(chosen) & set(world._topics):
                topic_id = world.ids[name]
                expected = {
                    each.partition: (each.leader, each.leader_epoch) for each in world.image.partitions_of(topic_id)
                }
                assert picture.leaders(topic_id) == expected
            assert {number: each.port for number, each in picture.brokers.items()} == {
                number: each.listeners[0].port if each.listeners else 0
                for number, each in world.image.brokers.items()
            }


# --- time -----------------------------------------------------------------------------------------------------------


@virtual
async def test_a_sign_of_life() -> None:
    async with World() as world:
        picture = Picture(world.follow())
        await picture.take()
        message = await picture.take()
        assert (message.version, message.cluster_id) == (world.image.version, "c")
        assert asyncio.get_running_loop().time() == pytest.approx(follow.ALIVE_S, abs=0.1)


@virtual
async def test_what_the_client_knows_from_elsewhere_is_awaited() -> None:
    async with World() as world:
        ahead = world.image.version + 1
        picture = Picture(world.follow(from_version=ahead))
        await settle()
        assert picture.stream.call.answers.empty()
        world.apply(broker_record(2))
        assert (await picture.take()).version == ahead
        never = world.follow(from_version=2**64 - 1)
        error = await never.closed()
        assert isinstance(error, UnavailableError)
        assert error.retry_after_ms == 500


@virtual
async def test_stopping_ends_streams() -> None:
    async with World() as world:
        streams = [world.follow(), world.follow(from_version=10**9)]
        await settle()
        world.following.stop()
        for stream in (*streams, world.follow()):
            assert isinstance(await stream.closed(), UnavailableError)


@virtual
async def test_a_broker_without_a_lease_sends_its_followers_elsewhere() -> None:
    """Else a client that reaches it, while the controllers do not, would never hear of a new leader."""
    async with World() as world:
        orders = await world.create("orders")
        picture = Picture(world.follow(ref("orders")))
        await picture.take()
        await asyncio.sleep(5 * follow.ALIVE_S)
        assert not (await picture.take()).partitions, "it says that it is there"
        world.may_lead = False
        assert isinstance(await picture.stream.closed(), UnavailableError)
        # Who knows nobody else yet learns of the others first.
        late = Picture(world.follow(ref("orders")))
        await late.take()
        assert late.brokers
        assert late.leaders(orders)
        assert isinstance(await late.stream.closed(), UnavailableError)


# --- hostile --------------------------------------------------------------------------------------------------------

LONGEST: Final = "x" * 249


@pytest.mark.parametrize(
    ("refs", "kind"),
    [
        ([topics_pb2.TopicRef()], InvalidArgumentError),
        ([ref("x")] * 1_001, InvalidArgumentError),
        ([ref("x" * 250)], InvalidTopicNameError),
    ],
)
@virtual
async def test_what_is_refused(refs: list[topics_pb2.TopicRef], kind: type[Exception]) -> None:
    async with World() as world:
        assert type(await world.follow(*refs).closed()) is kind


@virtual
async def test_names_that_no_topic_has_are_missing() -> None:
    async with World() as world:
        odd = [ref(name) for name in ("../../x", "\0", "", LONGEST, ".")] + [ref(b""), ref(b"x" * 16)]
        picture = Picture(world.follow(*odd, ref(b"y" * 5_000)))
        await picture.take()
        assert picture.missing == [*odd, ref(b"y" * 16)]


@virtual
async def test_a_client_that_takes_nothing_is_hung_up_on() -> None:
    async with World() as world:
        call = Call()
        call.takes.clear()
        stream = world.follow(call=call)
        await asyncio.sleep(20)
        assert stream.task.cancelled()
        assert not world.partitions._listeners


@virtual
async def test_clients_that_vanish_leave_nothing_behind() -> None:
    async with World() as world:
        await world.create("orders")
        for turns in range(20):
            stream = world.follow(ref("orders"), from_version=10**9 if turns % 2 else 0)
            for _ in range(turns):
                await asyncio.sleep(0)
            await stream.hang_up()
        assert not world.partitions._listeners
        assert not world.following._wakers
