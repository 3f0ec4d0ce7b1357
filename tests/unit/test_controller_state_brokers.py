"""Brokers register, are let in and shut out, are drained, and go; and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from quire.v1 import commands_pb2 as c
from quire.v1 import metadata_pb2
from quire_controller.state import limits
from quire_controller.state.model import DrainGoal, Listener, ListenerProtocol
from tests.unit.controller_crafting import LEASE_MS, Controller, registration, uuid_of

GRPC = metadata_pb2.LISTENER_PROTOCOL_GRPC


def test_registered_broker_is_fenced_and_has_the_index_as_its_epoch() -> None:
    controller = Controller()
    listeners = [
        metadata_pb2.Listener(name="z", protocol=GRPC, host="10.0.0.1", port=1, tls=True),
        metadata_pb2.Listener(name="a", protocol=metadata_pb2.LISTENER_PROTOCOL_PEER, host="::1", port=7410),
    ]
    controller.ok(register_broker=registration(5, rack="r1", listeners=listeners, node_id="n5"))
    broker = controller.broker(5)
    assert (broker.broker_epoch, broker.fenced, broker.lease_ms) == (controller.index, True, 0)
    assert (broker.node_id, broker.rack) == ("n5", "r1")
    assert [listener.name for listener in broker.listeners] == ["a", "clients", "z"]
    assert broker.listeners[0] == Listener("a", ListenerProtocol.PEER, "::1", 7410, tls=False)


def test_node_id_is_the_broker_id_unless_it_is_given() -> None:
    controller = Controller([5])
    assert controller.broker(5).node_id == "5"


def test_grant_names_the_lease() -> None:
    controller = Controller([1])
    assert (controller.broker(1).fenced, controller.broker(1).lease_ms) == (False, LEASE_MS)


def test_registering_anew_gives_a_new_epoch_and_fences() -> None:
    controller = Controller([1])
    before = controller.epoch(1)
    controller.register(1)
    assert controller.epoch(1) > before
    assert controller.broker(1).fenced
    assert controller.broker(1).lease_ms == 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"cluster_id": "other"}, "CLUSTER_ID_MISMATCH"),
        ({"incarnation_id": b"short"}, "INVALID_ARGUMENT"),
        ({"node_id": "a b"}, "INVALID_ARGUMENT"),
        ({"node_id": "1"}, "INVALID_ARGUMENT"),
        ({"rack": "a/b"}, "INVALID_ARGUMENT"),
        ({"features": metadata_pb2.FeatureRange(level_min=2)}, "INVALID_ARGUMENT"),
        ({"features": metadata_pb2.FeatureRange(level_min=2, level_max=3)}, "UNSUPPORTED_FEATURE"),
        ({"listeners": [metadata_pb2.Listener(name="clients", protocol=GRPC, host="x", port=1)]}, "INVALID_ARGUMENT"),
        ({"listeners": [metadata_pb2.Listener(name="a b", protocol=GRPC, host="x", port=1)]}, "INVALID_ARGUMENT"),
        ({"listeners": [metadata_pb2.Listener(name="x", protocol=GRPC, host="x", port=0)]}, "INVALID_ARGUMENT"),
        ({"listeners": [metadata_pb2.Listener(name="x", protocol=GRPC, host="x", port=65536)]}, "INVALID_ARGUMENT"),
        ({"listeners": [metadata_pb2.Listener(name="x", protocol=GRPC, host="a b", port=1)]}, "INVALID_ARGUMENT"),
        ({"listeners": [metadata_pb2.Listener(name="x", protocol=GRPC, host="", port=1)]}, "INVALID_ARGUMENT"),
        ({"listeners": [metadata_pb2.Listener(name="x", host="x", port=1)]}, "INVALID_ARGUMENT"),
        (
            {"listeners": [metadata_pb2.Listener(name=f"x{n}", protocol=GRPC, host="x", port=1) for n in range(16)]},
            "LIMIT_EXCEEDED",
        ),
        ({"log_ends": [c.LogEnd(topic_id=uuid_of(1), last_epoch=-2)]}, "INVALID_ARGUMENT"),
        ({"log_ends": [c.LogEnd(topic_id=uuid_of(1), log_end_offset=-1)]}, "INVALID_ARGUMENT"),
        ({"log_ends": [c.LogEnd(topic_id=uuid_of(1))] * 2}, "INVALID_ARGUMENT"),
    ],
)
def test_registration_that_makes_no_sense_is_refused(changes: dict[str, Any], reason: str) -> None:
    controller = Controller([1])
    assert controller.refused(register_broker=registration(2, **changes)).reason == reason


@pytest.mark.parametrize("broker_id", [0, -1])
def test_registration_without_an_id_is_refused(broker_id: int) -> None:
    body = registration(1)
    body.broker_id = broker_id
    assert Controller().refused(register_broker=body).reason == "INVALID_ARGUMENT"


def test_number_of_brokers_and_of_log_ends_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BROKERS_MAX", 1)
    monkeypatch.setattr(limits, "LOG_ENDS_MAX", 1)
    controller = Controller([1])
    assert controller.refused(register_broker=registration(2)).reason == "LIMIT_EXCEEDED"
    controller.register(1)
    ends = [c.LogEnd(topic_id=uuid_of(n)) for n in (1, 2)]
    assert controller.refused(register_broker=registration(1, log_ends=ends)).reason == "LIMIT_EXCEEDED"


@pytest.mark.parametrize("command", ["fence_broker", "unfence_broker", "unregister_broker"])
def test_commands_about_brokers_name_a_known_one_and_its_epoch(command: str) -> None:
    controller = Controller([1])
    kind = {"fence_broker": c.FenceBroker, "unfence_broker": c.UnfenceBroker, "unregister_broker": c.UnregisterBroker}
    body: Any = kind[command]
    assert controller.refused(**{command: body(broker_id=9, broker_epoch=1)}).reason == "UNKNOWN_BROKER"
    error = controller.refused(**{command: body(broker_id=1, broker_epoch=1)})
    assert (error.reason, error.details["broker_epoch"]) == ("STALE_BROKER_EPOCH", str(controller.epoch(1)))


def test_fence_needs_a_cause() -> None:
    controller = Controller([1])
    body = c.FenceBroker(broker_id=1, broker_epoch=controller.epoch(1))
    assert controller.refused(fence_broker=body).reason == "INVALID_ARGUMENT"


def test_only_the_leading_controller_may_say_that_a_lease_has_expired() -> None:
    controller = Controller([1])
    controller.ok(begin_term=c.BeginTerm(term=5, controller_id="n2"))

    def expiry(term: int) -> c.FenceBroker:
        return c.FenceBroker(
            broker_id=1, broker_epoch=controller.epoch(1), cause=c.FENCE_CAUSE_LEASE_EXPIRED, term=term
        )

    for term in (0, 1, 6):
        error = controller.refused(fence_broker=expiry(term))
        assert (error.reason, error.details) == ("NOT_CONTROLLER", {"leader_id": "n2", "term": "5"})
    controller.ok(fence_broker=expiry(5))
    assert controller.broker(1).fenced


def test_fence_and_grant_twice_are_no_errors_and_change_nothing() -> None:
    controller = Controller([1])
    controller.fence(1)
    published = controller.state.published_version
    controller.fence(1)
    assert controller.state.published_version == published
    controller.unfence(1)
    longer = c.UnfenceBroker(broker_id=1, broker_epoch=controller.epoch(1), lease_ms=2 * LEASE_MS)
    controller.ok(unfence_broker=longer)
    assert controller.broker(1).lease_ms == LEASE_MS, "a lease that is being counted on does not change"


@pytest.mark.parametrize("lease_ms", [-1, 0, 99, 60_001])
def test_lease_has_bounds(lease_ms: int) -> None:
    controller = Controller([1])
    controller.fence(1)
    body = c.UnfenceBroker(broker_id=1, broker_epoch=controller.epoch(1), lease_ms=lease_ms)
    assert controller.refused(unfence_broker=body).reason == "INVALID_ARGUMENT"


def test_drain_outlasts_a_restart_and_is_ended_by_command() -> None:
    controller = Controller([1])
    controller.drain(1, metadata_pb2.DRAIN_GOAL_REPLICAS)
    controller.restart(1)
    assert controller.broker(1).drain is DrainGoal.REPLICAS
    controller.drain(1, metadata_pb2.DRAIN_GOAL_UNSPECIFIED)
    assert controller.broker(1).drain is DrainGoal.NONE
    assert controller.refused(drain_broker=c.DrainBroker(broker_id=2)).reason == "UNKNOWN_BROKER"
    unknown: Any = 77
    assert controller.refused(drain_broker=c.DrainBroker(broker_id=1, goal=unknown)).reason == "INVALID_ARGUMENT"


def test_broker_is_unregistered_only_without_replicas() -> None:
    controller = Controller([1, 2])
    controller.topic("orders", [1], [2])
    body = c.UnregisterBroker(broker_id=2, broker_epoch=controller.epoch(2))
    error = controller.refused(unregister_broker=body)
    assert (error.reason, error.details) == ("BROKER_NOT_EMPTY", {"replicas": "1"})
    controller.ok(delete_topic=c.DeleteTopic(topic_id=uuid_of(1)))
    controller.ok(unregister_broker=body)
    assert sorted(controller.state.brokers) == [1]
    controller.register(2)
