"""The image of the metadata, against the controller's own state, whatever commands come and however they are sent.

One image hears deltas only, another one now and then a snapshot. Both must be what the state is; what they say has
changed must be what has changed, no more and no less; and what did not change must be the same object.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from quire.errors import UnavailableError
from quire.v1 import controller_pb2, metadata_pb2
from quire_broker.state.image import Changes, MetadataImage
from quire_controller.service.watching import delta_messages
from quire_controller.state.codec import metadata_record
from quire_controller.state.machine import ControllerState
from tests.property.test_controller_state_machine import ControllerMachine

EXAMPLES: Final = int(os.environ.get("QUIRE_IMAGE_EXAMPLES", "60"))

Known = dict[tuple[str, object], object]
"""All that an image knows, by kind and key."""


def known(image: MetadataImage) -> Known:
    found: Known = {("broker", broker_id): broker for broker_id, broker in image.brokers.items()}
    found |= {("topic", topic_id): topic for topic_id, topic in image.topics.items()}
    found |= {("deleted", topic_id): deleted for topic_id, deleted in image.deleted_topics.items()}
    found |= {("partition", (each.topic_id, each.partition)): each for each in image.partitions()}
    found["cluster", None] = (image.cluster_id, image.feature_level)
    return found


def check(image: MetadataImage, state: ControllerState) -> None:
    """The image is the state, by every way to look at it."""
    assert image.version == state.version
    assert state.cluster is not None
    assert (image.cluster_id, image.feature_level) == (state.cluster.cluster_id, state.cluster.feature_level)
    assert (image.active_controller is None) == (state.controller is None)
    assert {key: metadata_record(each).broker for key, each in state.brokers.items()} == dict(image.brokers)
    assert {key: metadata_record(each).topic for key, each in state.topics.items()} == dict(image.topics)
    deleted_topics = {key: metadata_record(each).topic_deleted for key, each in state.deleted_topics.items()}
    assert deleted_topics == dict(image.deleted_topics)
    partitions = [metadata_record(each).partition for each in state.partitions.values()]
    assert len(partitions) == len(list(image.partitions()))
    for partition in partitions:
        assert image.partition(partition.topic_id, partition.partition) == partition
    for topic in image.topics.values():
        assert image.topic(topic.topic_id) is topic
        assert image.topic_named(topic.tenant, topic.name) is topic
        assert [each.partition for each in image.partitions_of(topic.topic_id)] == list(range(topic.partition_count))
    for topic_id, deleted in image.deleted_topics.items():
        assert image.is_deleted(topic_id)
        assert image.topic(topic_id) is None
        assert not image.partitions_of(topic_id)
        named = image.topic_named(deleted.tenant, deleted.name)
        assert named is None or named.topic_id != topic_id


def check_changes(before: Known, after: Known, changes: Iterable[Changes]) -> None:
    """They name exactly what is not the same object any more."""
    said: set[tuple[str, object]] = set()
    for each in changes:
        said |= {("broker", key) for key in each.brokers} | {("topic", key) for key in each.topics}
        said |= {("partition", key) for key in each.partitions} | {("deleted", key) for key in each.deleted_topics}
        if each.cluster:
            said.add(("cluster", None))
        for keys in (each.brokers, each.topics, each.partitions, each.deleted_topics):
            assert list(keys) == sorted(set(keys))  # type: ignore[type-var]  # whichever they are, they are of one type
    missing = object()
    differ = {key for key in before.keys() | after.keys() if before.get(key, missing) is not after.get(key, missing)}
    differ.discard(("cluster", None))
    if before["cluster", None] != after["cluster", None]:
        differ.add(("cluster", None))
    forgotten = {key for key in differ if key[0] == "deleted" and key not in after}
    come_and_gone = {key for key in said if key not in before and key not in after}
    assert said - come_and_gone == differ - forgotten


def snapshot(state: ControllerState, records_a_part: int) -> Iterator[controller_pb2.WatchMetadataResponse]:
    records = list(state.snapshot_records())
    parts = [records[at : at + records_a_part] for at in range(0, len(records), records_a_part)] or [[]]
    for number, part in enumerate(parts):
        yield controller_pb2.WatchMetadataResponse(
            snapshot=metadata_pb2.MetadataSnapshot(
                version=state.version, records=part, first=number == 0, last=number == len(parts) - 1
            )
        )


class ImageMachine(ControllerMachine):
    def __init__(self) -> None:
        super().__init__()
        self.by_deltas = MetadataImage()
        self.by_both = MetadataImage()

    def deltas(self, version: int) -> list[controller_pb2.WatchMetadataResponse]:
        deltas = self.state.changes_since(version)
        assert deltas is not None
        # Over the wire, so that no message is shared with the controller.
        return [
            controller_pb2.WatchMetadataResponse.FromString(message.SerializeToString())
            for message in delta_messages(deltas)
        ]

    def hear(self, image: MetadataImage, messages: Iterable[controller_pb2.WatchMetadataResponse]) -> None:
        before, version = known(image), image.version
        heard = [changes for message in messages if (changes := image.apply(message)) is not None]
        assert all(each.version > version for each in heard) or heard[-1].everything
        check(image, self.state)
        after = known(image)
        check_changes(before, after, heard)
        if heard and heard[-1].everything:
            same = {key for key in before if before[key] == after.get(key) and key[0] != "cluster"}
            assert all(before[key] is after[key] for key in same), "what is as it was is still the same object"

    @rule()
    def follow(self) -> None:
        self.hear(self.by_deltas, self.deltas(self.by_deltas.version))

    @rule()
    def follow_with_the_other(self) -> None:
        self.hear(self.by_both, self.deltas(self.by_both.version))

    @rule(records_a_part=st.integers(1, 40))
    def take_snapshot(self, records_a_part: int) -> None:
        self.hear(self.by_both, snapshot(self.state, records_a_part))

    @rule(records_a_part=st.integers(1, 40), parts=st.integers(1, 5))
    def lose_the_stream_amid_a_snapshot(self, records_a_part: int, parts: int) -> None:
        before = known(self.by_both)
        for message in list(snapshot(self.state, records_a_part))[:-1][:parts]:
            assert self.by_both.apply(message) is None
        self.by_both.on_stream_begun()
        assert known(self.by_both) == before
        self.hear(self.by_both, self.deltas(self.by_both.version))

    @rule(back=st.integers(0, 5))
    def hear_what_is_known(self, back: int) -> None:
        """A stream may begin with what one has."""
        self.hear(self.by_both, self.deltas(max(0, self.by_both.version - back)))

    @rule()
    def miss_a_change(self) -> None:
        deltas = self.state.changes_since(self.by_both.version) or []
        missed = [delta for delta in deltas if delta.previous_version > self.by_both.version]
        if missed:
            before, version = known(self.by_both), self.by_both.version
            message = controller_pb2.WatchMetadataResponse(deltas=controller_pb2.MetadataDeltas(deltas=missed))
            with pytest.raises(UnavailableError, match="was left out"):
                self.by_both.apply(message)
            assert (known(self.by_both), self.by_both.version) == (before, version)

    def teardown(self) -> None:
        self.hear(self.by_deltas, self.deltas(self.by_deltas.version))
        self.hear(self.by_both, snapshot(self.state, 3))
        assert known(self.by_deltas) == known(self.by_both)


ImageMachine.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=50,
    deadline=None,
    derandomize="QUIRE_IMAGE_EXAMPLES" not in os.environ,
    phases=[Phase.generate],
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
TestImage = ImageMachine.TestCase
