"""The state is frozen, restored and followed; and its bytes of today are read tomorrow.

The files in tests/golden/controller were written once, in a Python prompt at the root of the repository, after
`from tests.unit.test_controller_state_snapshots import *`:

    for name, data in written().items(): (GOLDEN / name).write_bytes(data)

A file that is there already is never written anew: if it no longer matches, what changed is the format, or what
commands do, and members of different versions would differ.
"""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from quire.errors import DamagedFileError
from quire.v1 import commands_pb2 as c
from quire.v1 import durability_pb2, metadata_pb2, state_pb2
from quire_controller.state import limits
from quire_controller.state.machine import ControllerState
from quire_controller.state.model import PartitionKey
from tests.unit.controller_crafting import Controller, registration, uuid_of
from tests.unit.controller_follower import Follower, picture_of

ROOT: Final = Path(__file__).resolve().parents[2]
GOLDEN: Final = ROOT / "tests" / "golden" / "controller"
COMMANDS, RESULTS, SNAPSHOT = "commands-v1.bin", "results-v1.bin", "snapshot-v1.bin"


def eventful() -> Controller:
    """A state in which every kind of value occurs, and most of their fields."""
    controller = Controller([1, 2, 3], racks={1: "east", 2: "west"})
    controller.register(4)
    config = metadata_pb2.TopicConfig(
        partitioner=metadata_pb2.PARTITIONER_MURMUR2,
        flush=durability_pb2.FlushPolicy(mode=durability_pb2.FLUSH_MODE_INTERVAL, interval_ms=250),
        min_isr=1,
        retention_ms=-1,
        retention_bytes=1 << 30,
        retention_segments=9,
        segment_bytes=1 << 20,
        cleanup=metadata_pb2.CLEANUP_POLICY_COMPACT_AND_DELETE,
        message_bytes_max=4096,
        unclean_election=True,
    )
    body = c.CreateTopic(
        topic_id=uuid_of(0xA1),
        tenant="default",
        name="orders",
        partition_count=5,
        replication_factor=3,
        config=config,
        placement_seed=2**63,
    )
    controller.ok(client="n1", sequence=1, create_topic=body)
    body = c.CreateTopic(topic_id=uuid_of(0xA2), tenant="default", name="__groups", internal=True)
    body.assignments.extend(c.ReplicaAssignment(replicas=replicas) for replicas in ([1], [2, 3][:1]))
    controller.ok(client="n1", sequence=2, create_topic=body)
    controller.topic("gone", [1, 2], number=0xA3)
    controller.ok(delete_topic=c.DeleteTopic(topic_id=uuid_of(0xA3)))
    controller.topic("strict", [1, 2, 3], [2, 3, 1], [3, 1, 2], number=0xA4, min_isr=3)
    moved, reassigned = (PartitionKey(uuid_of(0xA4), partition) for partition in (0, 1))
    target = c.LeaderTarget(partition=controller.at(moved), to_broker=3)
    controller.ok(move_leaders=c.MoveLeaders(moves=[target]))
    controller.unfence(4)
    controller.ok(reassign_partition=c.ReassignPartition(partition=controller.at(reassigned), target=[4, 3, 1]))
    controller.alter(reassigned, [2, 3])
    controller.register(2, ends={PartitionKey(uuid_of(0xA2), 1): (7, 1 << 40)})
    controller.drain(3, metadata_pb2.DRAIN_GOAL_REPLICAS)
    epoch = controller.epoch(3)
    controller.ok(allocate_producer_ids=c.AllocateProducerIds(broker_id=3, broker_epoch=epoch, count=1_000))
    for sequence in (1, 2):
        controller.run(client="n2", sequence=sequence, delete_topic=c.DeleteTopic(topic_id=uuid_of(0xFF)))
    controller.ok(begin_term=c.BeginTerm(term=3, controller_id="n2"))
    return controller


def restored(pieces: Iterable[bytes]) -> ControllerState:
    state = ControllerState()
    state.restore(pieces)
    return state


def joined(parts: Iterable[bytes]) -> bytes:
    """Each with its length before it."""
    return b"".join(struct.pack(">I", len(part)) + part for part in parts)


def parted(data: bytes) -> list[bytes]:
    parts, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        parts.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    return parts


def written() -> dict[str, bytes]:
    controller = eventful()
    state = ControllerState()
    results = [state.apply(index, data) for index, data in controller.commands]
    return {
        COMMANDS: joined(data for _, data in controller.commands),
        RESULTS: joined(results),
        SNAPSHOT: joined(state.freeze()),
    }


# --- frozen bytes --------------------------------------------------------------------------------------------------


def test_frozen_commands_still_give_the_frozen_results_and_state() -> None:
    commands = parted((GOLDEN / COMMANDS).read_bytes())
    state = ControllerState()
    results = [state.apply(index, data) for index, data in enumerate(commands, start=1)]
    assert joined(results) == (GOLDEN / RESULTS).read_bytes()
    assert joined(state.freeze()) == (GOLDEN / SNAPSHOT).read_bytes()


def test_frozen_snapshot_is_still_read_and_written_alike() -> None:
    data = (GOLDEN / SNAPSHOT).read_bytes()
    assert joined(restored(parted(data)).freeze()) == data


def test_frozen_files_are_still_what_we_write() -> None:
    for name, data in written().items():
        assert data == (GOLDEN / name).read_bytes(), f"{name} differs"


def test_every_kind_of_record_occurs() -> None:
    kinds = {
        record.WhichOneof("kind")
        for piece in parted((GOLDEN / SNAPSHOT).read_bytes())
        for record in state_pb2.SnapshotPiece.FromString(piece).records.records
    }
    assert kinds == {field.name for field in state_pb2.StateRecord.DESCRIPTOR.fields}


def test_order_of_sets_and_dicts_shows_nowhere() -> None:
    script = (
        "import hashlib; from tests.unit.test_controller_state_snapshots import written; "
        "print(hashlib.sha256(repr(sorted(written().items())).encode()).hexdigest())"
    )

    def digest(seed: str) -> str:
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", script]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout

    assert len({digest(seed) for seed in ("0", "1", "4242")}) == 1


# --- freezing and restoring ----------------------------------------------------------------------------------------


def test_restored_state_goes_on_alike() -> None:
    first = eventful()
    second = restored(first.state.freeze())
    assert second.version == first.state.version
    for body in (
        {"fence_broker": c.FenceBroker(broker_id=1, broker_epoch=first.epoch(1), cause=c.FENCE_CAUSE_CRASHED)},
        {"register_broker": registration(3)},
        {"delete_topic": c.DeleteTopic(topic_id=uuid_of(0xA1))},
    ):
        result = first.ok(**body)
        again = second.apply(first.index, first.commands[-1][1])
        assert again == result.SerializeToString(deterministic=True)
    assert list(second.freeze()) == list(first.state.freeze())
    assert picture_of(second) == picture_of(first.state)


def test_picture_is_that_of_the_moment() -> None:
    controller = eventful()
    before = list(controller.state.freeze())
    frozen = controller.state.freeze()
    assert next(frozen) == before[0]
    controller.ok(delete_topic=c.DeleteTopic(topic_id=uuid_of(0xA1)))
    controller.fence(1)
    assert list(frozen) == before[1:]


def test_same_state_gives_the_same_bytes_whatever_led_to_it() -> None:
    first, second = Controller([1, 2]), Controller([1, 2])
    first.topic("a", [1, 2], number=1)
    first.topic("b", [2, 1], number=2)
    second.topic("b", [2, 1], number=2)
    second.topic("a", [1, 2], number=1)
    assert list(first.state.freeze()) == list(second.state.freeze())


def test_empty_state_can_be_frozen() -> None:
    pieces = list(ControllerState().freeze())
    assert list(restored(pieces).freeze()) == pieces


def test_pieces_are_small() -> None:
    controller = Controller([1, 2, 3])
    controller.topic("big", partition_count=4_000, replication_factor=3)
    many = [c.PartitionAt(topic_id=uuid_of(n)) for n in range(1, 65)]
    for sequence in range(1, 40):
        controller.ok(client="x" * 128, sequence=sequence, complete_moves=c.CompleteMoves(partitions=many))
    pieces = list(controller.state.freeze())
    assert len(pieces) > 4
    for piece in pieces:
        records = state_pb2.SnapshotPiece.FromString(piece).records.records
        assert len(piece) <= limits.PIECE_BYTES_MAX or len(records) == 1
    assert max(map(len, pieces)) <= 64 * 1024
    assert list(restored(pieces).freeze()) == pieces


# --- what is not readable ------------------------------------------------------------------------------------------


def changed_piece(pieces: list[bytes], number: int, message: state_pb2.SnapshotPiece) -> list[bytes]:
    return [*pieces[:number], message.SerializeToString(), *pieces[number + 1 :]]


def test_snapshot_that_is_not_whole_is_refused() -> None:
    pieces = list(eventful().state.freeze())
    assert len(pieces) == 3
    for damaged in (
        [],
        pieces[:1],
        pieces[:2],
        pieces[1:],
        [pieces[0], pieces[2]],
        [*pieces, pieces[1]],
        [pieces[0], *pieces],
        [pieces[0], pieces[1], pieces[1], pieces[2]],
        [pieces[0], pieces[1][:-1], pieces[2]],
        [pieces[0], b"", pieces[2]],
    ):
        controller = Controller([1])
        before = list(controller.state.freeze())
        with pytest.raises(DamagedFileError):
            controller.state.restore(damaged)
        assert list(controller.state.freeze()) == before, "what cannot be read changes nothing"


def test_snapshot_of_a_newer_version_is_refused() -> None:
    pieces = list(eventful().state.freeze())
    header = state_pb2.SnapshotPiece.FromString(pieces[0])
    header.header.format_version += 1
    records = state_pb2.SnapshotPiece.FromString(pieces[1])
    records.records.records.add()
    level = state_pb2.SnapshotPiece.FromString(pieces[0])
    level.header.feature_level = limits.FEATURE_LEVEL_MAX + 1
    future_field = [pieces[0], pieces[1] + b"\xa0\x7d\x01", pieces[2]]
    for damaged in (
        changed_piece(pieces, 0, header),
        changed_piece(pieces, 0, level),
        changed_piece(pieces, 1, records),
        future_field,
    ):
        with pytest.raises(DamagedFileError):
            restored(damaged)


@pytest.mark.parametrize("kind", ["topic", "partition"])
def test_snapshot_that_contradicts_itself_is_refused(kind: str) -> None:
    pieces = list(eventful().state.freeze())
    message = state_pb2.SnapshotPiece.FromString(pieces[1])
    end = state_pb2.SnapshotPiece.FromString(pieces[2])
    kept = [record for record in message.records.records if record.WhichOneof("kind") != kind]
    end.end.record_count = len(kept)
    message = state_pb2.SnapshotPiece(records=state_pb2.StateRecords(records=kept))
    with pytest.raises(DamagedFileError):
        restored([pieces[0], message.SerializeToString(), end.SerializeToString()])


def test_mutated_snapshot_is_read_or_refused_and_nothing_else() -> None:
    chance = random.Random(3)
    pieces = list(eventful().state.freeze())
    for _ in range(3_000):
        number = chance.randrange(len(pieces))
        data = bytearray(pieces[number])
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        with suppress(DamagedFileError):
            restored([*pieces[:number], bytes(data), *pieces[number + 1 :]])


# --- those who follow ----------------------------------------------------------------------------------------------


def test_follower_of_every_change_knows_what_a_snapshot_holds() -> None:
    controller = eventful()
    state, follower = ControllerState(), Follower()
    for index, data in controller.commands:
        state.apply(index, data)
        follower.catch_up(state)
        assert follower.picture == picture_of(state)
    assert follower.snapshots == 0


def test_version_moves_also_where_nothing_changed() -> None:
    controller = Controller([1])
    version = controller.state.version
    assert controller.state.changes_since(version) == []
    controller.apply(b"no command")
    assert controller.state.published_version == version
    deltas = controller.state.changes_since(version)
    assert deltas == [metadata_pb2.MetadataDelta(version=version + 1, previous_version=version)]


def test_who_is_too_far_behind_or_ahead_gets_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RECENT_DELTAS_MAX", 3)
    controller = Controller([1])
    for goal in (1, 2, 1, 2):
        controller.ok(drain_broker=c.DrainBroker(broker_id=1, goal=goal))  # type: ignore[arg-type]  # by number
    version = controller.state.version
    assert controller.state.changes_since(version - 4) is None
    assert controller.state.changes_since(version + 1) is None
    deltas = controller.state.changes_since(version - 3)
    assert deltas is not None
    assert [delta.version for delta in deltas] == [version - 2, version - 1, version]


def test_many_records_crowd_out_old_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RECENT_RECORDS_MAX", 50)
    controller = Controller([1])
    version = controller.state.version
    controller.topic("wide", partition_count=100, replication_factor=1)
    assert controller.state.changes_since(version) is None
    assert controller.state.changes_since(controller.state.version) == []


def test_restored_state_knows_no_changes_before_it() -> None:
    controller = eventful()
    controller.apply(b"no command")
    state = restored(controller.state.freeze())
    assert state.published_version == controller.state.published_version
    assert state.changes_since(state.published_version - 1) is None
    assert state.changes_since(state.version) == []
    deltas = state.changes_since(state.published_version)
    assert deltas is not None
    assert [(delta.version, len(delta.records)) for delta in deltas] == [(state.version, 0)]
