"""Small files that are written whole: frames, the checkpoint, the synced mark, snapshots of producers."""

from __future__ import annotations

import random
from typing import Final

import pytest

from quire.disk.framed import frame, read_whole, stage, unframe
from quire.disk.sim_disk import SimDisk, SimulatedCrash
from quire.errors import DamagedFileError, DiskFullError
from quire.records import parse_header
from quire_broker.log import checkpoint as checkpoints
from quire_broker.log import snapshots, synced_mark
from quire_broker.log.checkpoint import Checkpoint, Cut
from quire_broker.log.producers import Producer, Producers, SentBatch
from quire_broker.log.synced_mark import SyncedMark
from tests.unit.log_crafting import NOW_MS, batch, producer

PATH: Final = "/d/file"


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    disk.make_dirs("/d")
    return disk


# --- frames -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [b"", b"x", b"a\nb\n", bytes(range(256)) * 10])
def test_a_frame_gives_its_payload_back(payload: bytes) -> None:
    assert unframe(frame("some-kind", 3, payload), kind="some-kind", version_max=3, path=PATH) == payload


def test_no_flip_in_a_frame_goes_unnoticed() -> None:
    data = frame("kind", 1, b"payload")
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            if damaged.lower() == data:
                continue  # a hexadecimal digit is the same in upper case
            with pytest.raises(DamagedFileError) as caught:
                unframe(bytes(damaged), kind="kind", version_max=1, path=PATH)
            # In particular no flip makes it the file of a newer version.
            assert caught.value.details == {"path": PATH}


def test_no_cut_and_no_addition_goes_unnoticed() -> None:
    data = frame("kind", 1, b"payload")
    for wrong in [*(data[:size] for size in range(len(data))), data + b"\n", b"\n" + data]:
        with pytest.raises(DamagedFileError):
            unframe(wrong, kind="kind", version_max=1, path=PATH)


def test_another_kind_or_a_newer_version_is_refused() -> None:
    with pytest.raises(DamagedFileError):
        unframe(frame("other", 1, b""), kind="kind", version_max=1, path=PATH)
    with pytest.raises(DamagedFileError, match="version 2"):
        unframe(frame("kind", 2, b""), kind="kind", version_max=1, path=PATH)


def test_a_file_that_is_too_large_is_not_read(disk: SimDisk) -> None:
    stage(disk, PATH, b"12345")
    assert read_whole(disk, PATH, bytes_max=5) == b"12345"
    with pytest.raises(DamagedFileError):
        read_whole(disk, PATH, bytes_max=4)


def test_a_staged_file_is_the_old_one_or_the_new_one() -> None:
    for steps in range(8):
        for seed in range(10):
            disk = SimDisk()
            disk.make_dirs("/d")
            stage(disk, PATH, b"old" * 400)
            disk.sync_dir("/d")
            disk.crash_after(steps)
            try:
                stage(disk, PATH, b"new" * 500)
                disk.sync_dir("/d")
                expected = {b"new" * 500}
            except SimulatedCrash:
                expected = {b"old" * 400, b"new" * 500}
            disk.power_cut(random.Random(seed))
            assert read_whole(disk, PATH, bytes_max=10_000) in expected


def test_what_does_not_fit_leaves_no_half_file(disk: SimDisk) -> None:
    stage(disk, PATH, b"old")
    disk.capacity_bytes = 10
    with pytest.raises(DiskFullError):
        stage(disk, PATH, b"x" * 100)
    assert disk.names("/d") == ["file"]
    assert disk.used_bytes() == 3
    assert read_whole(disk, PATH, bytes_max=10) == b"old"


# --- the checkpoint -----------------------------------------------------------------------------------------------

FULL: Final = Checkpoint(
    start_offset=5,
    recovery_point=1 << 40,
    epochs=((1, 0), (4, 17)),
    quarantined=((20, 30), (40, 41)),
    cut=Cut(10, 4096, 15),
)


@pytest.mark.parametrize("checkpoint", [Checkpoint(), FULL])
def test_a_checkpoint_is_loaded_as_it_was_saved(disk: SimDisk, checkpoint: Checkpoint) -> None:
    checkpoints.save(disk, "/d", checkpoint)
    assert checkpoints.load(disk, "/d") == checkpoint
    disk.power_cut(random.Random(0))
    assert checkpoints.load(disk, "/d") == checkpoint


def test_a_missing_checkpoint_is_no_damaged_one(disk: SimDisk) -> None:
    assert checkpoints.load(disk, "/d") is None


def test_a_damaged_checkpoint_is_told(disk: SimDisk) -> None:
    checkpoints.save(disk, "/d", FULL)
    disk.flip("/d/checkpoint", 60, 1)
    error = checkpoints.load(disk, "/d")
    assert isinstance(error, DamagedFileError)
    assert error.details == {"path": "/d/checkpoint"}


# --- the synced mark ----------------------------------------------------------------------------------------------


def test_a_mark_is_loaded_as_it_was_written(disk: SimDisk) -> None:
    assert synced_mark.load(disk, "/d") == 0
    mark = SyncedMark(disk, "/d")
    assert synced_mark.load(disk, "/d") == 0
    mark.write(1 << 40)
    assert synced_mark.load(disk, "/d") == 1 << 40
    mark.close()


def test_a_mark_that_went_back_stays_there(disk: SimDisk) -> None:
    mark = SyncedMark(disk, "/d")
    disk.sync_dir("/d")
    mark.write(90)
    mark.lower(40)
    disk.power_cut(random.Random(0))
    assert synced_mark.load(disk, "/d") == 40


def test_a_damaged_mark_claims_nothing() -> None:
    for position in range(12):
        disk = SimDisk()
        disk.make_dirs("/d")
        SyncedMark(disk, "/d").write(123_456)
        disk.flip("/d/synced", position, position % 8)
        assert synced_mark.load(disk, "/d") == 0


# --- producers ----------------------------------------------------------------------------------------------------


def some_producers() -> Producers:
    producers = Producers(producers_max=100, expiry_ms=1_000)
    for n in range(7):
        header = parse_header(batch(b"a", b"b", **producer(2 * n)))._replace(base_offset=10 + 2 * n)
        producers.learn(header, now_ms=NOW_MS)
    producers.put(9, Producer(3, (), NOW_MS + 1, transaction_first_offset=44, coordinator_epoch=6))
    producers.put(8, Producer(32767, (SentBatch(2**31 - 1, 0, 1 << 50),), NOW_MS + 2))
    return producers


def test_a_snapshot_gives_the_producers_back() -> None:
    producers, loaded = some_producers(), Producers(producers_max=100, expiry_ms=1_000)
    assert loaded.load(producers.to_bytes(77), path=PATH) == 77
    assert list(loaded.items()) == list(producers.items())
    assert loaded.to_bytes(77) == producers.to_bytes(77)


def test_five_batches_of_a_producer_are_remembered() -> None:
    known = some_producers().get(7)
    assert known is not None
    assert [sent.base_offset for sent in known.batches] == [14, 16, 18, 20, 22]


def test_a_snapshot_that_contradicts_itself_is_refused() -> None:
    payload = unframe(some_producers().to_bytes(77), kind="producers", version_max=1, path=PATH)
    for wrong in (payload[:-1], payload + b"\x00", payload[:11], b""):
        producers = some_producers()
        with pytest.raises(DamagedFileError):
            producers.load(frame("producers", 1, wrong), path=PATH)
        assert list(producers.items()) == list(some_producers().items())


def test_the_newest_good_snapshot_is_taken(disk: SimDisk) -> None:
    for offset in (10, 20, 30):
        stage(disk, snapshots.path_of("/d", offset), some_producers().to_bytes(offset))
    disk.flip(snapshots.path_of("/d", 20), 70, 0)
    producers = Producers(producers_max=100, expiry_ms=1_000)
    assert snapshots.load_newest(disk, "/d", producers, at_most=29) == 10
    assert len(producers) == 3
    assert snapshots.load_newest(disk, "/d", producers, at_most=9) == 0
    assert len(producers) == 0


def test_later_snapshots_are_removed(disk: SimDisk) -> None:
    for offset in (10, 20, 30):
        stage(disk, snapshots.path_of("/d", offset), b"")
    snapshots.remove_after(disk, "/d", 20)
    assert snapshots.offsets(disk.names("/d")) == [10, 20]
    assert snapshots.offsets(["00000000000000000030.producers.tmp", "7.producers", "checkpoint"]) == []
