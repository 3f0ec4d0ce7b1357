"""What a client knows of the cluster never goes back."""

from __future__ import annotations

from quire._client.picture import NOBODY, BrokerPlace, Leadership, Picture
from quire.v1 import broker_pb2, metadata_pb2, topics_pb2

ID, OTHER_ID = bytes(15) + b"1", bytes(15) + b"2"


def topic(name: str = "orders", topic_id: bytes = ID, partitions: int = 2) -> metadata_pb2.Topic:
    return metadata_pb2.Topic(name=name, topic_id=topic_id, partition_count=partitions)


def leader(partition: int, broker: int, epoch: int, topic_id: bytes = ID) -> broker_pb2.PartitionLeader:
    return broker_pb2.PartitionLeader(topic_id=topic_id, partition=partition, leader=broker, leader_epoch=epoch)


def told(picture: Picture, *names: str, **fields: object) -> object:
    message = broker_pb2.FollowTopicsResponse(**fields)  # type: ignore[arg-type]  # the tests' own words
    return picture.apply(message, asked=names or ("orders",))


def test_first_message_has_everything() -> None:
    picture = Picture()
    changes = picture.apply(
        broker_pb2.FollowTopicsResponse(
            version=5,
            cluster_id="c",
            brokers=[broker_pb2.BrokerAddress(broker_id=1, host="h", port=7400, active=True)],
            topics=[topic()],
            partitions=[leader(0, 1, 0), leader(1, 0, 0)],
            limits=broker_pb2.BrokerLimits(request_bytes_max=100),
        ),
        asked=["orders"],
    )
    assert changes.topics == ("orders",)
    assert changes.brokers
    assert changes.partitions == ((ID, 0), (ID, 1))
    assert picture.brokers == {1: BrokerPlace(1, "h", 7400, False, True)}
    assert (picture.version, picture.cluster_id, picture.limits.request_bytes_max) == (5, "c", 100)
    assert picture.leader(ID, 0) == Leadership(1, 0)
    assert picture.leader(ID, 7) == NOBODY
    known = picture.topic("orders")
    assert known is not None
    assert known.partition_count == 2


def test_what_is_known_already_changes_nothing() -> None:
    picture = Picture()
    message = broker_pb2.FollowTopicsResponse(version=5, topics=[topic()], partitions=[leader(0, 1, 0)])
    picture.apply(message, asked=["orders"])
    again = picture.apply(message, asked=["orders"])
    assert (again.topics, again.partitions, again.brokers) == ((), (), False)


def test_leaderships_and_versions_do_not_go_back() -> None:
    picture = Picture()
    told(picture, version=9, topics=[topic()], partitions=[leader(0, 2, 3)])
    told(picture, version=4, partitions=[leader(0, 1, 2)])
    assert (picture.version, picture.leader(ID, 0)) == (9, Leadership(2, 3))
    told(picture, version=10, partitions=[leader(0, 0, 4)])
    assert picture.leader(ID, 0) == Leadership(0, 4)


def test_limits_stay_when_a_message_has_none() -> None:
    picture = Picture()
    told(picture, limits=broker_pb2.BrokerLimits(request_bytes_max=7))
    told(picture, version=3)
    assert picture.limits.request_bytes_max == 7


def test_topic_that_goes_and_comes_back_is_another_one() -> None:
    picture = Picture()
    told(picture, topics=[topic()], partitions=[leader(0, 1, 5)])
    gone = picture.apply(
        broker_pb2.FollowTopicsResponse(missing=[topics_pb2.TopicRef(name="orders")]), asked=["orders"]
    )
    assert gone.topics == ("orders",)
    assert picture.is_missing("orders")
    assert picture.topic("orders") is None
    assert picture.leader(ID, 0) == NOBODY
    told(picture, topics=[topic(topic_id=OTHER_ID)], partitions=[leader(0, 2, 0, OTHER_ID)])
    assert not picture.is_missing("orders")
    assert picture.leader(OTHER_ID, 0) == Leadership(2, 0)


def test_topic_made_anew_between_two_messages_takes_its_leaders_along() -> None:
    picture = Picture()
    told(picture, topics=[topic()], partitions=[leader(0, 1, 5)])
    told(picture, topics=[topic(topic_id=OTHER_ID)])
    assert picture.leader(ID, 0) == NOBODY


def test_brokers_come_and_go() -> None:
    picture = Picture()
    told(picture, brokers=[broker_pb2.BrokerAddress(broker_id=1), broker_pb2.BrokerAddress(broker_id=2)])
    assert not picture.brokers[1].is_reachable
    told(picture, brokers_removed=[1])
    assert list(picture.brokers) == [2]


def test_what_nobody_asked_for_is_not_kept() -> None:
    picture = Picture()
    told(picture, "orders", topics=[topic("other")], missing=[topics_pb2.TopicRef(name="third")])
    assert picture.topic("other") is None
    assert not picture.is_missing("third")
    told(picture, topics=[topic()], partitions=[leader(0, 1, 1)])
    picture.forget(["orders"])
    assert picture.topic("orders") is None
    assert picture.leader(ID, 0) == NOBODY
