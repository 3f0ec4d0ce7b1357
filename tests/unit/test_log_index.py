"""Sparse indexes: in memory and in files they say the same, and a wrong row is noticed."""

from __future__ import annotations

import contextlib
import random
from typing import Final

import pytest

from quire.disk.framed import stage
from quire.disk.sim_disk import SimDisk
from quire_broker.log.index import (
    BEGINNING,
    INDEX_SUFFIX,
    TIME_SUFFIX,
    TIMESTAMP_NONE,
    MisleadingIndexError,
    Seal,
    SealedIndex,
    SegmentIndex,
)

STEM: Final = "/d/00000000000000001000"
BASE: Final = 1_000
SEAL: Final = Seal(end_offset=BASE + 500, size_bytes=99_999, max_timestamp_ms=7_000)


def saved(index: SegmentIndex, *, seal: Seal | None = SEAL) -> SimDisk:
    disk = SimDisk()
    disk.make_dirs("/d")
    stage(disk, STEM + INDEX_SUFFIX, index.offsets_to_bytes(base_offset=BASE, seal=seal))
    stage(disk, STEM + TIME_SUFFIX, index.times_to_bytes(base_offset=BASE, seal=seal))
    return disk


def made(count: int, *, seed: int = 0) -> SegmentIndex:
    """An index of rising entries, some of the same timestamp."""
    chance = random.Random(seed)
    index, relative, position, timestamp_ms = SegmentIndex(), 0, 0, 1_000
    for _ in range(count):
        relative += chance.randint(1, 9)
        position += chance.randint(100, 900)
        timestamp_ms += chance.choice([0, 0, 5, 80])
        index.add(relative, position, timestamp_ms)
    return index


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 50])
def test_memory_and_files_give_the_same_answers(count: int) -> None:
    index = made(count)
    sealed = SealedIndex(saved(index), STEM)
    for relative in range(500):
        assert sealed.floor_offset(relative) == index.floor_offset(relative)
    for timestamp_ms in [TIMESTAMP_NONE, -1, 0, *range(900, 4_000, 5), 2**63 - 1]:
        assert sealed.floor_time(timestamp_ms) == index.floor_time(timestamp_ms)


def test_the_floor_of_an_offset_is_the_last_entry_at_or_before_it() -> None:
    index = SegmentIndex()
    index.add(10, 400, 1_000)
    index.add(20, 800, 1_000)
    assert [index.floor_offset(n) for n in (0, 9, 10, 19, 20, 99)] == [
        *(BEGINNING, BEGINNING),
        *((10, 400), (10, 400)),
        *((20, 800), (20, 800)),
    ]


def test_the_floor_of_a_timestamp_has_only_older_records_before_it() -> None:
    index = SegmentIndex()
    index.add(10, 400, 1_000)
    index.add(20, 800, 1_000)
    index.add(30, 1_200, 1_500)
    assert index.floor_time(1_000) == BEGINNING
    assert index.floor_time(1_001) == (20, 800)
    assert index.floor_time(1_501) == (30, 1_200)


@pytest.mark.parametrize("seal", [None, SEAL])
def test_a_saved_index_is_loaded_as_it_was(seal: Seal | None) -> None:
    index = made(20)
    loaded = SegmentIndex.load(saved(index, seal=seal), STEM, end_relative=500)
    assert loaded is not None
    assert list(loaded) == list(index)
    assert loaded.last() == index.last()
    assert loaded.last_position == index.last_position


def test_entries_from_an_offset_on_are_not_loaded() -> None:
    index = made(20)
    third = list(index)[2]
    loaded = SegmentIndex.load(saved(index), STEM, end_relative=third.relative_offset)
    assert loaded is not None
    assert list(loaded) == list(index)[:2]


def test_forgotten_entries_are_gone() -> None:
    index = made(20)
    entries = list(index)
    index.keep_below(entries[5].relative_offset)
    assert list(index) == entries[:5]
    assert index.last_position == entries[4].position
    index.keep_below(0)
    assert (len(index), index.last_position, index.last()) == (0, 0, (BEGINNING, TIMESTAMP_NONE))


def test_a_copy_does_not_follow() -> None:
    index = made(3)
    copy = index.copy()
    index.add(400, 90_000, 9_000)
    assert len(copy) == 3
    assert copy.last_position < index.last_position


def test_a_seal_says_what_the_segment_must_look_like() -> None:
    assert SealedIndex(saved(made(20)), STEM).seal(BASE) == SEAL
    assert SealedIndex(saved(made(0)), STEM).seal(BASE) == SEAL


def test_an_index_without_a_seal_is_not_sealed() -> None:
    for count in (0, 1, 20):
        assert SealedIndex(saved(made(count), seal=None), STEM).seal(BASE) is None


@pytest.mark.parametrize("suffix", [INDEX_SUFFIX, TIME_SUFFIX])
def test_a_missing_file_is_noticed(suffix: str) -> None:
    disk = saved(made(20))
    disk.remove(STEM + suffix)
    assert SealedIndex(disk, STEM).seal(BASE) is None
    assert SegmentIndex.load(disk, STEM, end_relative=500) is None
    with pytest.raises(MisleadingIndexError):
        SealedIndex(disk, STEM).floor_time(1 << 40)


@pytest.mark.parametrize("cut", [1, 8, 16])
@pytest.mark.parametrize("suffix", [INDEX_SUFFIX, TIME_SUFFIX])
def test_a_file_that_is_too_short_is_noticed(suffix: str, cut: int) -> None:
    disk = saved(made(20))
    file = disk.open(STEM + suffix)
    file.truncate(file.size() - cut)
    assert SealedIndex(disk, STEM).seal(BASE) is None
    assert SegmentIndex.load(disk, STEM, end_relative=500) is None


def test_no_flip_in_a_time_index_changes_an_answer() -> None:
    index = made(9)
    for position in range(9 * 16):
        disk = saved(index)
        disk.flip(STEM + TIME_SUFFIX, position, position % 8)
        assert SegmentIndex.load(disk, STEM, end_relative=500) is None
        for timestamp_ms in range(900, 2_000, 20):
            with contextlib.suppress(MisleadingIndexError):
                assert SealedIndex(disk, STEM).floor_time(timestamp_ms) == index.floor_time(timestamp_ms)


def test_no_flip_in_a_seal_goes_unnoticed() -> None:
    for suffix, row_bytes in ((INDEX_SUFFIX, 4), (TIME_SUFFIX, 16)):
        for n in range(row_bytes):
            disk = saved(made(9))
            row = disk.open(STEM + suffix).size() - (8 if suffix == INDEX_SUFFIX else 16)
            disk.flip(STEM + suffix, row + n, n % 8)
            assert SealedIndex(disk, STEM).seal(BASE) is None
