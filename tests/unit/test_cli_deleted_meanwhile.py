"""A topic that is deleted while all are looked through is passed over: who looks did not ask for it."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from uuid import UUID

import pytest

from quire import FollowerLag, PartitionDescription, TopicDescription, TopicSummary
from quire.cli import cluster
from quire.errors import UnknownTopicError

MOVING = PartitionDescription(
    partition=0, leader=1, leader_epoch=1, replicas=(2, 1), isr=(1,), target=(2,), original=(1,)
)
COUNTS = SimpleNamespace(reassigning=2, leaderless=0, under_replicated=2)


def summary(name: str) -> TopicSummary:
    return TopicSummary(
        name=name, topic_id=UUID(int=1), partitions=1, replication_factor=1, internal=False, config={}
    )


@dataclass
class Topics:
    """The topics `gone` and `here`: one of them goes when it is described, or only after that."""

    is_described: bool

    def describe(self, name: str) -> TopicDescription:
        if name == "gone" and not self.is_described:
            raise UnknownTopicError("it is deleted")
        return TopicDescription(
            name=name, topic_id=UUID(int=1), replication_factor=1, internal=False, config={}, partitions=(MOVING,)
        )

    def lags(self, name: str) -> dict[int, tuple[FollowerLag, ...]]:
        if name == "gone":
            raise UnknownTopicError("it is deleted")
        return {0: (FollowerLag(broker_id=2, records=1, size_bytes=1),)}


@pytest.fixture(params=[False, True])
def topics(request: pytest.FixtureRequest) -> Topics:
    return Topics(request.param)


def test_partitions_of_the_others_are_shown(topics: Topics) -> None:
    admin = SimpleNamespace(
        list_topics=lambda include_internal: [summary("gone"), summary("here")],
        describe_topic=topics.describe,
        follower_lag=topics.lags,
    )
    troubled = cluster._troubled(admin, COUNTS)  # type: ignore[arg-type]  # as much as it uses
    assert [name for name, _ in troubled] == [*(["gone"] if topics.is_described else []), "here"]
    assert list(cluster._lags(admin, troubled)) == [("here", 0)]  # type: ignore[arg-type]  # as much as it uses
