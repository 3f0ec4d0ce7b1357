"""What somebody knows who follows the published metadata, as a broker does."""

from __future__ import annotations

from collections.abc import Iterable

from quire.v1 import metadata_pb2
from quire_controller.state.machine import ControllerState

Picture = dict[tuple[object, ...], bytes]


class Follower:
    def __init__(self) -> None:
        self.version = 0
        self.picture: Picture = {}
        self.snapshots = 0

    def catch_up(self, state: ControllerState) -> None:
        deltas = state.changes_since(self.version)
        if deltas is None:
            self.snapshots += 1
            self.picture = picture_of(state)
            self.version = state.version
            return
        for delta in deltas:
            assert delta.previous_version <= self.version < delta.version, "a delta was missed, or came twice"
            _apply(self.picture, delta.records)
            self.version = delta.version
        assert self.version == state.version


def picture_of(state: ControllerState) -> Picture:
    picture: Picture = {}
    _apply(picture, state.snapshot_records())
    return picture


def _apply(picture: Picture, records: Iterable[metadata_pb2.MetadataRecord]) -> None:
    for record in records:
        match record.WhichOneof("kind"):
            case "partition":
                topic_id, partition = record.partition.topic_id, record.partition.partition
                picture["partition", topic_id, partition] = record.SerializeToString(deterministic=True)
            case "topic":
                picture["topic", record.topic.topic_id] = record.SerializeToString(deterministic=True)
            case "topic_deleted":
                gone = record.topic_deleted.topic_id
                for key in [key for key in picture if key[0] in ("topic", "partition") and key[1] == gone]:
                    del picture[key]
                picture["deleted", gone] = record.SerializeToString(deterministic=True)
            case "deleted_topic_forgotten":
                del picture["deleted", record.deleted_topic_forgotten]
            case "broker":
                picture["broker", record.broker.broker_id] = record.SerializeToString(deterministic=True)
            case "broker_removed":
                del picture["broker", record.broker_removed]
            case "cluster" | "active_controller" as kind:
                picture[(kind,)] = record.SerializeToString(deterministic=True)
            case None:
                raise AssertionError("a record of no kind")
