"""The image of the metadata: what is refused of a stream, and what becomes of names and objects."""

from __future__ import annotations

import pytest

from quire.errors import UnavailableError
from quire.v1 import controller_pb2, metadata_pb2
from quire_broker.state.image import Changes, MetadataImage

ORDERS, BILLS = b"o" * 16, b"b" * 16
Record = metadata_pb2.MetadataRecord
Response = controller_pb2.WatchMetadataResponse


def topic(topic_id: bytes, name: str, count: int = 1) -> list[Record]:
    made = metadata_pb2.Topic(topic_id=topic_id, tenant="default", name=name, partition_count=count)
    return [Record(topic=made), *(partition(topic_id, index) for index in range(count))]


def partition(topic_id: bytes, index: int, leader: int = 1) -> Record:
    return Record(
        partition=metadata_pb2.Partition(topic_id=topic_id, partition=index, replicas=[1, 2], isr=[1], leader=leader)
    )


def deletion(topic_id: bytes, name: str, *brokers: int) -> Record:
    return Record(
        topic_deleted=metadata_pb2.DeletedTopic(topic_id=topic_id, tenant="default", name=name, brokers=brokers)
    )


def deltas(*steps: tuple[int, int, list[Record]]) -> Response:
    """(previous version, version, records)"""
    return Response(
        deltas=controller_pb2.MetadataDeltas(
            deltas=[
                metadata_pb2.MetadataDelta(previous_version=previous, version=version, records=records)
                for previous, version, records in steps
            ]
        )
    )


def part(version: int, records: list[Record], *, first: bool = True, last: bool = True) -> Response:
    return Response(snapshot=metadata_pb2.MetadataSnapshot(version=version, records=records, first=first, last=last))


def alive(version: int) -> Response:
    return Response(alive=controller_pb2.WatchAlive(version=version))


def test_nothing_is_known_at_first() -> None:
    image = MetadataImage()
    assert (image.version, image.cluster_id, image.feature_level, image.active_controller) == (0, "", 0, None)
    assert (image.topic(ORDERS), image.topic_named("default", "orders"), image.partition(ORDERS, 0)) == (None,) * 3
    assert image.partitions_of(ORDERS) == []
    assert not image.is_deleted(ORDERS)


def test_deltas_of_one_message_make_one_change() -> None:
    image = MetadataImage()
    cluster = Record(cluster=metadata_pb2.Cluster(cluster_id="c", feature_level=1))
    changes = image.apply(
        deltas((0, 3, [cluster, *topic(ORDERS, "orders", 2)]), (3, 7, [partition(ORDERS, 1, leader=2)]), (7, 9, []))
    )
    assert changes == Changes(version=9, cluster=True, topics=(ORDERS,), partitions=((ORDERS, 0), (ORDERS, 1)))
    assert (image.version, image.cluster_id, image.feature_level) == (9, "c", 1)
    found = image.partition(ORDERS, 1)
    assert found is not None
    assert found.leader == 2


def test_a_version_in_which_nothing_changed_is_a_change_of_the_version() -> None:
    image = MetadataImage()
    assert image.apply(deltas((0, 5, []))) == Changes(version=5)
    assert image.apply(deltas((4, 5, []))) is None
    assert image.apply(alive(5)) is None
    assert image.apply(alive(4)) is None, "said by one who is behind"
    assert image.apply(Response()) is None, "of a kind that is not known"


def test_unknown_kinds_of_records_are_passed_over() -> None:
    image = MetadataImage()
    unknown = Record.FromString(b"\xfa\x3f\x03abc")  # field 1023
    assert image.apply(deltas((0, 1, [unknown, *topic(ORDERS, "orders")]))) is not None
    assert image.topic(ORDERS) is not None


@pytest.mark.parametrize(
    "message",
    [
        deltas((6, 8, topic(BILLS, "bills"))),
        deltas((5, 6, topic(BILLS, "bills")), (7, 8, [])),
        part(4, topic(BILLS, "bills")),
        part(9, topic(BILLS, "bills"), first=False),
        alive(6),
    ],
    ids=["gap", "gap after a step", "older snapshot", "part without its first", "silence over a change"],
)
def test_what_does_not_fit_changes_nothing(message: Response) -> None:
    image = MetadataImage()
    image.apply(deltas((0, 5, topic(ORDERS, "orders"))))
    with pytest.raises(UnavailableError, match="it is begun anew"):
        image.apply(message)
    assert (image.version, list(image.topics)) == (5, [ORDERS])


def test_deltas_amid_a_snapshot_do_not_fit() -> None:
    image = MetadataImage()
    image.apply(part(5, topic(ORDERS, "orders"), last=False))
    with pytest.raises(UnavailableError, match="not sent to its end"):
        image.apply(deltas((0, 6, [])))
    assert image.version == 0


def test_parts_of_two_snapshots_do_not_mix() -> None:
    image = MetadataImage()
    image.apply(part(5, topic(ORDERS, "orders"), last=False))
    with pytest.raises(UnavailableError, match="without the first one"):
        image.apply(part(6, [], first=False))
    image.apply(part(5, topic(ORDERS, "orders"), last=False))
    image.apply(part(6, topic(BILLS, "bills")))
    assert (image.version, list(image.topics)) == (6, [BILLS]), "a first part begins anew"
    image.apply(part(7, topic(ORDERS, "orders"), last=False))
    image.on_stream_begun()
    with pytest.raises(UnavailableError, match="without the first one"):
        image.apply(part(7, [], first=False))


def test_snapshot_replaces_everything_and_says_what_differs() -> None:
    image = MetadataImage()
    broker = Record(broker=metadata_pb2.Broker(broker_id=1, broker_epoch=4))
    image.apply(deltas((0, 5, [broker, *topic(ORDERS, "orders", 2), *topic(BILLS, "bills")])))
    kept = image.partition(ORDERS, 0)
    changes = image.apply(part(9, [*topic(ORDERS, "orders", 2)[:2], partition(ORDERS, 1, leader=2)]))
    assert changes == Changes(
        version=9,
        brokers=(1,),
        topics=(BILLS,),
        partitions=((BILLS, 0), (ORDERS, 1)),
        everything=True,
    )
    assert image.partition(ORDERS, 0) is kept
    assert (dict(image.brokers), image.topic_named("default", "bills")) == ({}, None)
    again = image.apply(part(9, [*topic(ORDERS, "orders", 2)[:2], partition(ORDERS, 1, leader=2)]))
    assert again == Changes(version=9, everything=True), "at the version that one has, too"


def test_deletion_takes_partitions_and_name_and_a_new_topic_may_have_it() -> None:
    image = MetadataImage()
    image.apply(deltas((0, 5, topic(ORDERS, "orders", 2))))
    changes = image.apply(deltas((5, 6, [deletion(ORDERS, "orders", 1, 2), *topic(BILLS, "orders")])))
    assert changes is not None
    assert changes.topics == (BILLS, ORDERS)
    assert changes.deleted_topics == (ORDERS,)
    assert changes.partitions == ((BILLS, 0), (ORDERS, 0), (ORDERS, 1))
    named = image.topic_named("default", "orders")
    assert named is not None
    assert named.topic_id == BILLS
    assert image.is_deleted(ORDERS)
    fewer = image.apply(deltas((6, 7, [deletion(ORDERS, "orders", 2)])))
    assert fewer == Changes(version=7, deleted_topics=(ORDERS,))
    forgotten = image.apply(deltas((7, 8, [Record(deleted_topic_forgotten=ORDERS)])))
    assert forgotten == Changes(version=8)
    assert not image.is_deleted(ORDERS)


def test_what_is_kept_of_a_delta_does_not_keep_the_message() -> None:
    image = MetadataImage()
    message = deltas((0, 5, topic(ORDERS, "orders")))
    image.apply(message)
    message.deltas.deltas[0].records[1].partition.leader = 9
    found = image.partition(ORDERS, 0)
    assert found is not None
    assert found.leader == 1
