"""DescribeFollowers: what a leader says of its followers, and who is refused."""

from __future__ import annotations

import pytest

from quire.errors import (
    InvalidArgumentError,
    NotLeaderError,
    StaleEpochError,
    UnknownPartitionError,
    UnknownTopicError,
)
from quire.v1 import broker_pb2
from tests.unit.broker_services_harness import ME, World, ref, refusal_in, virtual

OTHERS = [ME + 1, ME + 2]


def of(name: str, partition: int = 0, *, leader_epoch: int | None = None) -> broker_pb2.FollowersOf:
    return broker_pb2.FollowersOf(topic=ref(name), partition=partition, leader_epoch=leader_epoch)


@virtual
async def test_followers_that_do_not_follow_are_named() -> None:
    async with World() as world:
        await world.create("t", replicas=[ME, *OTHERS], isr=[ME], min_isr=1)
        await world.store(b"a", b"b", topic="t")
        [found] = await world.describe_followers(of("t"))
        assert not found.HasField("refusal")
        assert (found.log_end_offset, found.leader_epoch) == (2, world.partition("t").leader_epoch)
        assert [(each.broker_id, each.following, each.HasField("lag_bytes")) for each in found.followers] == [
            (other, False, False) for other in OTHERS
        ]


@virtual
async def test_each_partition_is_refused_on_its_own() -> None:
    async with World() as world:
        await world.create("t")
        epoch = world.partition("t").leader_epoch
        found = await world.describe_followers(
            of("t"), of("nosuch"), of("t", 7), of("t", leader_epoch=epoch + 1), of("t", leader_epoch=epoch - 1)
        )
        assert [type(refusal_in(each)) for each in found[1:]] == [
            UnknownTopicError,
            UnknownPartitionError,
            NotLeaderError,
            StaleEpochError,
        ]
        assert not found[0].followers
        for count in (0, 1_001):
            with pytest.raises(InvalidArgumentError):
                await world.describe_followers(*[of("t")] * count)
