"""The state machine around its handlers: the cluster's own commands, repeated commands, and bytes that are none."""

from __future__ import annotations

import random

import pytest

from quire.errors import InvariantViolation
from quire.v1 import commands_pb2 as c
from quire.v1 import metadata_pb2
from quire_controller.state import limits
from quire_controller.state.machine import HANDLERS, ControllerState
from quire_controller.state.model import PartitionKey
from quire_controller.state.results import error_of
from tests.unit.controller_crafting import (
    CLUSTER_ID,
    INITIALIZATION,
    Controller,
    command_bytes,
    everything,
    registration,
    uuid_of,
)


def reason_of(data: bytes) -> str | None:
    error = error_of(c.CommandResult.FromString(data))
    return None if error is None else error.reason


# --- the cluster ---------------------------------------------------------------------------------------------------


def test_every_kind_of_command_has_a_handler() -> None:
    kinds = [field.name for field in c.Command.DESCRIPTOR.oneofs_by_name["body"].fields]
    assert sorted(HANDLERS) == sorted(kinds)


def test_nothing_is_accepted_before_the_cluster_has_an_id() -> None:
    state = ControllerState()
    for index, kind in enumerate(sorted(set(HANDLERS) - {"initialize_cluster", "begin_term"}), start=1):
        command = c.Command()
        getattr(command, kind).SetInParent()
        assert reason_of(state.apply(index, command.SerializeToString())) == "UNAVAILABLE"


def test_cluster_gets_its_id_once() -> None:
    controller = Controller()
    assert controller.state.cluster is not None
    assert (controller.state.cluster.cluster_id, controller.state.cluster.feature_level) == (CLUSTER_ID, 1)
    controller.ok(initialize_cluster=INITIALIZATION)
    for cluster_id, reason in (
        ("other", "CLUSTER_ID_MISMATCH"),
        ("", "INVALID_ARGUMENT"),
        ("a/b", "INVALID_ARGUMENT"),
    ):
        body = c.InitializeCluster(cluster_id=cluster_id, feature_level=1)
        assert controller.refused(initialize_cluster=body).reason == reason


@pytest.mark.parametrize(("level", "reason"), [(0, "INVALID_ARGUMENT"), (3, "UNSUPPORTED_FEATURE")])
def test_cluster_begins_at_a_level_that_every_controller_can_work_at(level: int, reason: str) -> None:
    body = c.InitializeCluster(cluster_id="c", feature_level=level, controller_level_max=2)
    assert reason_of(ControllerState().apply(1, command_bytes(initialize_cluster=body))) == reason


def test_terms_only_rise() -> None:
    controller = Controller()
    controller.ok(begin_term=c.BeginTerm(term=5, controller_id="n2"))
    controller.ok(begin_term=c.BeginTerm(term=5, controller_id="n2"))
    for term in (4, 5):
        error = controller.refused(begin_term=c.BeginTerm(term=term, controller_id="n3"))
        assert (error.reason, error.details) == ("NOT_CONTROLLER", {"leader_id": "n2", "term": "5"})
    assert controller.refused(begin_term=c.BeginTerm(term=0, controller_id="n3")).reason == "INVALID_ARGUMENT"
    assert controller.refused(begin_term=c.BeginTerm(term=9)).reason == "INVALID_ARGUMENT"
    assert controller.state.controller is not None
    assert controller.state.controller.controller_id == "n2"


def test_producer_ids_are_given_once() -> None:
    controller = Controller([1, 2])

    def block(broker_id: int, count: int) -> tuple[int, int]:
        body = c.AllocateProducerIds(broker_id=broker_id, broker_epoch=controller.epoch(broker_id), count=count)
        ids = controller.ok(allocate_producer_ids=body).producer_ids
        return ids.first_producer_id, ids.count

    assert [block(1, 1_000), block(2, 500), block(1, 1)] == [(0, 1_000), (1_000, 500), (1_500, 1)]
    assert controller.state.next_producer_id == 1_501
    published = controller.state.published_version
    block(1, 1)
    assert controller.state.published_version == published, "nobody has to be told"


def test_producer_ids_are_for_active_brokers_and_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller([1])
    epoch = controller.epoch(1)
    for count in (0, -1, limits.PRODUCER_IDS_PER_BLOCK_MAX + 1):
        body = c.AllocateProducerIds(broker_id=1, broker_epoch=epoch, count=count)
        assert controller.refused(allocate_producer_ids=body).reason == "INVALID_ARGUMENT"
    body = c.AllocateProducerIds(broker_id=1, broker_epoch=epoch, count=10)
    monkeypatch.setattr(limits, "PRODUCER_ID_END", 9)
    assert controller.refused(allocate_producer_ids=body).reason == "LIMIT_EXCEEDED"
    controller.fence(1)
    assert controller.refused(allocate_producer_ids=body).reason == "BROKER_FENCED"


# --- feature levels ------------------------------------------------------------------------------------------------


def raise_to(level: int, controller_level_max: int) -> c.RaiseFeatureLevel:
    return c.RaiseFeatureLevel(level=level, controller_level_max=controller_level_max)


def test_level_rises_when_everyone_can_work_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FEATURE_LEVEL_MAX", 3)
    controller = Controller()
    wide = metadata_pb2.FeatureRange(level_max=3)
    controller.ok(register_broker=registration(1, features=wide))
    controller.ok(register_broker=registration(2))
    error = controller.refused(raise_feature_level=raise_to(2, 3))
    assert (error.reason, error.details["brokers"]) == ("UNSUPPORTED_FEATURE", "2")
    controller.ok(unregister_broker=c.UnregisterBroker(broker_id=2, broker_epoch=controller.epoch(2)))
    assert controller.refused(raise_feature_level=raise_to(2, 1)).reason == "UNSUPPORTED_FEATURE"
    controller.ok(raise_feature_level=raise_to(2, 3))
    controller.ok(raise_feature_level=raise_to(2, 3))
    assert controller.state.cluster is not None
    assert controller.state.cluster.feature_level == 2
    assert controller.refused(raise_feature_level=raise_to(1, 3)).reason == "INVALID_ARGUMENT"
    assert controller.refused(register_broker=registration(2)).reason == "UNSUPPORTED_FEATURE"


def test_controller_that_is_too_old_stops_instead_of_guessing() -> None:
    controller = Controller()
    with pytest.raises(InvariantViolation):
        controller.run(raise_feature_level=raise_to(limits.FEATURE_LEVEL_MAX + 1, 99))
    body = c.InitializeCluster(cluster_id="c", feature_level=99, controller_level_max=99)
    with pytest.raises(InvariantViolation):
        ControllerState().apply(1, command_bytes(initialize_cluster=body))


def test_command_of_a_higher_level_is_refused_whatever_is_in_it() -> None:
    controller = Controller([1])
    body = c.DrainBroker(broker_id=1, goal=metadata_pb2.DRAIN_GOAL_REPLICAS)
    assert controller.refused(level=2, drain_broker=body).reason == "UNSUPPORTED_FEATURE"
    controller.ok(level=1, drain_broker=body)


def test_command_that_is_not_understood_in_full_is_refused() -> None:
    controller = Controller([1])
    before = everything(controller.state)
    unknown_kind = b"\xa2\x7d\x00"  # field 2004, empty
    unknown_field = command_bytes(drain_broker=c.DrainBroker(broker_id=1)) + b"\xa0\x7d\x01"
    inner = c.DrainBroker(broker_id=1).SerializeToString() + b"\xa0\x7d\x01"
    assert c.Command.DRAIN_BROKER_FIELD_NUMBER == 17
    unknown_inside = b"\x8a\x01" + bytes([len(inner)]) + inner
    for data in (b"", unknown_kind, unknown_field, unknown_inside):
        assert reason_of(controller.apply(data)) == "UNSUPPORTED_FEATURE"
    assert everything(controller.state) == before


# --- repeated commands ---------------------------------------------------------------------------------------------


def test_repeated_command_is_carried_out_once_and_answered_alike() -> None:
    controller = Controller([1])
    body = c.AllocateProducerIds(broker_id=1, broker_epoch=controller.epoch(1), count=10)
    data = command_bytes(client="n1", sequence=1, allocate_producer_ids=body)
    first = controller.apply(data)
    before = list(controller.state.freeze())[1:]
    assert controller.apply(data) == first
    assert list(controller.state.freeze())[1:] == before
    assert controller.state.next_producer_id == 10
    assert controller.state.version == controller.index, "the version moves all the same"


def test_refusal_is_repeated_too() -> None:
    controller = Controller([1])
    data = command_bytes(client="n1", sequence=1, delete_topic=c.DeleteTopic(topic_id=uuid_of(1)))
    first = controller.apply(data)
    assert reason_of(first) == "UNKNOWN_TOPIC"
    controller.topic("orders", [1])
    assert controller.apply(data) == first
    assert uuid_of(1) in controller.state.topics


def test_other_client_other_process_and_other_sequence_are_other_commands() -> None:
    controller = Controller([1])
    body = c.AllocateProducerIds(broker_id=1, broker_epoch=controller.epoch(1), count=1)
    command = c.Command(client_id="a", client_incarnation=uuid_of(1), sequence=1, allocate_producer_ids=body)
    controller.apply(command.SerializeToString())
    for changes in ({"client_id": "b"}, {"client_incarnation": uuid_of(2)}, {"sequence": 2}):
        other = c.Command()
        other.CopyFrom(command)
        other.MergeFrom(c.Command(**changes))
        controller.apply(other.SerializeToString())
    assert controller.state.next_producer_id == 4


def test_commands_may_overtake_each_other_within_the_window() -> None:
    controller = Controller([1])
    newest = limits.RESULTS_PER_CLIENT_MAX + 1

    def allocate(sequence: int) -> c.CommandResult:
        body = c.AllocateProducerIds(broker_id=1, broker_epoch=controller.epoch(1), count=1)
        return controller.run(client="n1", sequence=sequence, allocate_producer_ids=body)

    assert allocate(newest).producer_ids.first_producer_id == 0
    assert allocate(2).producer_ids.first_producer_id == 1
    error = error_of(allocate(1))
    assert error is not None
    assert (error.reason, error.details) == ("DUPLICATE_COMMAND", {"sequence": "1", "newest": str(newest)})
    assert allocate(newest + 1).producer_ids.first_producer_id == 2
    late = error_of(allocate(2))
    assert late is not None
    assert late.reason == "DUPLICATE_COMMAND", "forgotten, so it is not carried out again"


@pytest.mark.parametrize(
    ("client_id", "incarnation", "sequence"),
    [
        ("a", b"", 1),
        ("a", uuid_of(1), 0),
        ("", uuid_of(1), 1),
        ("", b"", 1),
        ("a", b"short", 1),
        ("a" * 129, uuid_of(1), 1),
    ],
)
def test_half_a_name_is_refused(client_id: str, incarnation: bytes, sequence: int) -> None:
    controller = Controller([1])
    command = c.Command(client_id=client_id, client_incarnation=incarnation, sequence=sequence)
    command.drain_broker.broker_id = 1
    assert reason_of(controller.apply(command.SerializeToString())) == "INVALID_ARGUMENT"


def test_proposer_that_was_silent_longest_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLIENTS_MAX", 2)
    controller = Controller([1])
    drain = c.DrainBroker(broker_id=1)
    for client, sequence in (("a", 1), ("b", 1), ("a", 2), ("c", 1)):
        controller.ok(client=client, sequence=sequence, drain_broker=drain)
    assert [key.client_id for key in controller.state.tables.sessions] == ["a", "c"]
    restored = ControllerState()
    restored.restore(controller.state.freeze())
    assert list(restored.tables.sessions) == list(controller.state.tables.sessions), "also after a restart"


def test_largest_results_fit_what_is_remembered() -> None:
    controller = Controller([1])
    name = "é" * 5_000
    error = controller.refused(client="a", sequence=1, create_topic=c.CreateTopic(topic_id=uuid_of(1), tenant=name))
    assert error.reason == "INVALID_ARGUMENT"
    many = [c.PartitionAt(topic_id=uuid_of(n)) for n in range(1, 65)]
    controller.ok(client="a", sequence=2, complete_moves=c.CompleteMoves(partitions=many))
    (session,) = controller.state.tables.sessions.values()
    assert all(len(result) <= limits.RESULT_BYTES_MAX for _, result in session.results)


# --- bytes that are no command -------------------------------------------------------------------------------------


def test_garbage_is_refused_and_changes_nothing_but_the_version() -> None:
    chance = random.Random(1)
    controller = Controller([1, 2, 3])
    controller.topic("orders", [1, 2, 3])
    before = everything(controller.state)
    for _ in range(20_000):
        result = controller.state.apply(controller.state.version + 1, chance.randbytes(chance.randrange(40)))
        assert c.CommandResult.FromString(result).index == controller.state.version
    assert everything(controller.state) == before


def test_mutated_commands_never_stop_the_machine() -> None:
    chance = random.Random(2)
    controller = Controller([1, 2, 3])
    controller.topic("orders", [1, 2, 3], [2, 3, 1])
    key = PartitionKey(uuid_of(1), 0)
    controller.alter(key, [1, 2])
    controller.ok(reassign_partition=c.ReassignPartition(partition=controller.at(key), target=[3, 2, 1]))
    originals = [data for _, data in controller.commands]
    for _ in range(20_000):
        data = bytearray(chance.choice(originals))
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(data))
            data[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, data[at] ^ 1 << chance.randrange(8)))
        result = controller.state.apply(controller.state.version + 1, bytes(data))
        assert c.CommandResult.FromString(result).WhichOneof("outcome") is not None


def test_command_that_is_too_long_is_refused() -> None:
    controller = Controller()
    assert reason_of(controller.apply(bytes(limits.COMMAND_BYTES_MAX + 1))) == "INVALID_ARGUMENT"


def test_index_never_goes_back() -> None:
    controller = Controller()
    with pytest.raises(InvariantViolation):
        controller.state.apply(controller.index, b"")
