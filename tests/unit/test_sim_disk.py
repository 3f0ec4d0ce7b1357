"""The faults that only the simulated disk has: a test that trusts them must be able to."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import pytest

from quire.disk.sim_disk import SECTOR_BYTES, SimDisk, SimFile, SimulatedCrash
from quire.errors import DiskFullError, DiskIoError, SyncFailedError

PATH: Final = "/d/file"
SEEDS: Final = range(60)


def disk_with(content: bytes = b"") -> tuple[SimDisk, SimFile]:
    """A disk with a durable file."""
    disk = SimDisk()
    disk.make_dirs("/d")
    file = disk.open(PATH, create=True)
    file.write(0, [content])
    file.sync()
    disk.sync_dir("/d")
    return disk, file


def content(disk: SimDisk, path: str = PATH) -> bytes:
    file = disk.open(path)
    return file.read(0, file.size())


def after_power_cuts(prepare: Callable[[], SimDisk]) -> list[bytes | None]:
    """What the file holds after each of many power cuts; None where it is gone."""
    found: list[bytes | None] = []
    for seed in SEEDS:
        disk = prepare()
        disk.power_cut(random.Random(seed))
        found.append(content(disk) if disk.exists(PATH) else None)
    return found


def test_what_was_synced_survives_every_power_cut() -> None:
    assert set(after_power_cuts(lambda: disk_with(b"x" * 2_000)[0])) == {b"x" * 2_000}


def test_what_was_not_synced_may_be_lost_or_kept() -> None:
    def prepare() -> SimDisk:
        disk, file = disk_with(b"old")
        file.write(0, [b"new"])
        return disk

    assert set(after_power_cuts(prepare)) == {b"old", b"new"}


def test_unsynced_changes_arrive_in_order() -> None:
    def prepare() -> SimDisk:
        disk, file = disk_with()
        for n in range(4):
            file.write(n, [b"%d" % n])
        return disk

    # A write of one sector arrives or not; when a later one is there its predecessors had their chance, torn or not.
    found = set(after_power_cuts(prepare))
    assert {b"", b"0", b"01", b"012", b"0123"} <= found
    assert all(part is not None and len(part) <= 4 for part in found)


def test_an_unsynced_truncation_may_be_undone() -> None:
    def prepare() -> SimDisk:
        disk, file = disk_with(b"abc")
        file.truncate(1)
        return disk

    assert set(after_power_cuts(prepare)) == {b"abc", b"a"}


def test_a_torn_write_loses_whole_sectors() -> None:
    old, new = b"o" * (4 * SECTOR_BYTES), b"n" * (4 * SECTOR_BYTES)

    def prepare() -> SimDisk:
        disk, file = disk_with(old)
        file.write(0, [new])
        return disk

    torn = 0
    for found in after_power_cuts(prepare):
        assert found is not None
        sectors = {found[at : at + SECTOR_BYTES] for at in range(0, len(found), SECTOR_BYTES)}
        assert sectors <= {old[:SECTOR_BYTES], new[:SECTOR_BYTES]}
        torn += len(sectors) > 1
    assert torn > 5


def test_a_torn_write_past_the_end_leaves_zeros_or_a_shorter_file() -> None:
    def prepare() -> SimDisk:
        disk, file = disk_with()
        file.write(0, [b"n" * (3 * SECTOR_BYTES)])
        return disk

    found = [part for part in after_power_cuts(prepare) if part]
    assert any(part.startswith(bytes(SECTOR_BYTES)) and part.endswith(b"n" * SECTOR_BYTES) for part in found)
    assert b"n" * SECTOR_BYTES in found
    assert b"n" * (3 * SECTOR_BYTES) in found


def test_a_name_may_be_lost_until_its_directory_is_synced() -> None:
    def prepare() -> SimDisk:
        disk = SimDisk()
        disk.make_dirs("/d")
        file = disk.open(PATH, create=True)
        file.write(0, [b"x"])
        file.sync()
        return disk

    assert set(after_power_cuts(prepare)) == {None, b"x"}


def test_a_removal_may_be_undone_until_its_directory_is_synced() -> None:
    def prepare() -> SimDisk:
        disk, _ = disk_with(b"x")
        disk.remove(PATH)
        return disk

    def prepare_synced() -> SimDisk:
        disk = prepare()
        disk.sync_dir("/d")
        return disk

    assert set(after_power_cuts(prepare)) == {None, b"x"}
    assert set(after_power_cuts(prepare_synced)) == {None}


def test_a_rename_happens_or_not() -> None:
    outcomes = set()
    for seed in SEEDS:
        disk, _ = disk_with(b"old")
        other = disk.open("/d/tmp", create=True)
        other.write(0, [b"new"])
        other.sync()
        disk.sync_dir("/d")
        disk.rename("/d/tmp", PATH)
        disk.power_cut(random.Random(seed))
        outcomes.add((content(disk), disk.exists("/d/tmp")))
    assert outcomes == {(b"old", True), (b"new", False)}


def test_syncing_one_directory_does_not_sync_another() -> None:
    def prepare() -> SimDisk:
        disk, _ = disk_with(b"x")
        disk.make_dirs("/e")
        disk.remove(PATH)
        disk.sync_dir("/e")
        return disk

    assert b"x" in after_power_cuts(prepare)


def test_the_same_seed_gives_the_same_disk() -> None:
    def after(seed: int) -> bytes:
        disk, file = disk_with(b"o" * 4_000)
        for at in range(0, 4_000, 700):
            file.write(at, [b"n" * 900])
        disk.power_cut(random.Random(seed))
        return content(disk)

    assert [after(seed) for seed in SEEDS] == [after(seed) for seed in SEEDS]
    assert len({after(seed) for seed in SEEDS}) > 5


def test_a_killed_process_leaves_the_page_cache() -> None:
    disk, file = disk_with(b"old")
    file.write(0, [b"new"])
    disk.open("/d/other", create=True)
    disk.kill()
    assert content(disk) == b"new"
    assert disk.names("/d") == ["file", "other"]


def test_what_a_killed_process_wrote_is_still_not_on_the_disk() -> None:
    def prepare() -> SimDisk:
        disk, file = disk_with(b"old")
        file.write(0, [b"new"])
        disk.kill()
        return disk

    assert set(after_power_cuts(prepare)) == {b"old", b"new"}


@pytest.mark.parametrize("end", [SimDisk.kill, lambda disk: disk.power_cut(random.Random(0))])
def test_files_of_a_dead_process_cannot_be_used(end: Callable[[SimDisk], None]) -> None:
    disk, file = disk_with(b"x")
    end(disk)
    with pytest.raises(SimulatedCrash):
        file.read(0, 1)


def test_a_crash_comes_in_the_step_it_was_planned_for() -> None:
    disk, file = disk_with()
    disk.crash_after(2)
    file.write(0, [b"a"])
    file.sync()
    file.read(0, 1)  # does not count: it changes nothing
    with pytest.raises(SimulatedCrash):
        file.write(1, [b"b"])
    for use in (file.size, lambda: disk.names("/d"), lambda: disk.open(PATH), lambda: disk.exists(PATH)):
        with pytest.raises(SimulatedCrash):
            use()
    disk.kill()
    assert content(disk) in (b"a", b"ab")


CHANGES: Final[dict[str, Callable[[SimDisk, SimFile], object]]] = {
    "write": lambda disk, file: file.write(0, [b"y"]),
    "truncate": lambda disk, file: file.truncate(0),
    "sync": lambda disk, file: file.sync(),
    "create": lambda disk, file: disk.open("/d/new", create=True),
    "rename": lambda disk, file: disk.rename(PATH, "/d/new"),
    "remove": lambda disk, file: disk.remove(PATH),
    "sync_dir": lambda disk, file: disk.sync_dir("/d"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_a_step(change: str) -> None:
    disk, file = disk_with(b"x")
    disk.crash_after(0)
    with pytest.raises(SimulatedCrash):
        CHANGES[change](disk, file)


def test_a_failed_sync_is_told_once_and_the_data_is_lost() -> None:
    disk, file = disk_with(b"old")
    file.write(0, [b"new"])
    disk.failing_syncs.add(PATH)
    with pytest.raises(SyncFailedError) as caught:
        file.sync()
    assert caught.value.details == {"path": PATH}
    file.sync()  # as Linux: the second one succeeds, and has done nothing
    assert content(disk) == b"new"
    disk.power_cut(random.Random(0))
    assert content(disk) == b"old"


def test_a_failed_sync_of_a_directory_is_told_once() -> None:
    disk, _ = disk_with()
    disk.failing_syncs.add("/d")
    with pytest.raises(SyncFailedError):
        disk.sync_dir("/d")
    disk.sync_dir("/d")


def test_a_failing_write_writes_nothing() -> None:
    disk, file = disk_with(b"old")
    disk.failing_writes.add(PATH)
    with pytest.raises(DiskIoError):
        file.write(0, [b"new"])
    assert content(disk) == b"old"


def test_a_full_disk_takes_what_fits() -> None:
    disk, file = disk_with(b"abc")
    disk.capacity_bytes = 5
    with pytest.raises(DiskFullError) as caught:
        file.write(3, [b"de", b"fg"])
    assert caught.value.details == {"path": PATH}
    assert caught.value.retry_after_ms is not None
    assert content(disk) == b"abcde"
    assert disk.room() == 0


def test_a_full_disk_can_be_written_over() -> None:
    disk, file = disk_with(b"abc")
    disk.capacity_bytes = 3
    file.write(0, [b"xyz"])
    assert content(disk) == b"xyz"


def test_a_full_disk_has_room_again_once_something_is_removed() -> None:
    disk, _ = disk_with(b"abc")
    other = disk.open("/d/other", create=True)
    disk.capacity_bytes = 3
    with pytest.raises(DiskFullError):
        other.write(0, [b"x"])
    disk.remove(PATH)
    assert other.write(0, [b"x"]) == 1


def test_a_flip_is_seen_and_survives() -> None:
    disk, file = disk_with(b"\x00\x00")
    file.write(1, [b"\x00"])
    disk.flip(PATH, 1, 3)
    assert content(disk) == b"\x00\x08"
    for seed in SEEDS:
        copy, again = disk_with(b"\x00\x00")
        again.write(1, [b"\x00"])
        copy.flip(PATH, 1, 3)
        copy.power_cut(random.Random(seed))
        assert content(copy) == b"\x00\x08"


def test_syncs_are_counted() -> None:
    disk, file = disk_with()
    before = disk.syncs
    file.sync()
    file.sync()
    assert disk.syncs == before + 2
