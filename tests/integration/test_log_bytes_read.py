"""How much of a log is read to open it or to find something in it, counted in bytes."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from quire.disk.os_disk import OsDisk
from quire_broker.log.config import LogConfig
from quire_broker.log.log import Log
from tests.integration.counting_disk import CountingDisk
from tests.unit.log_crafting import NOW_MS, append, batch, records, value_at

GIB: Final = 1 << 30
INTERVAL_BYTES: Final = 4096
SMALL: Final = LogConfig(segment_bytes=2 << 20, index_interval_bytes=INTERVAL_BYTES, retention_ms=None)
INDEX_ROWS_MAX: Final = 12
"""What a binary search over the 512 entries of such a segment looks at, and the row that it finds."""
LOOKUPS: Final = 150


class Placed(NamedTuple):
    base_offset: int
    end_offset: int
    size_bytes: int
    timestamp_ms: int


@pytest.fixture
def large_log(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "large"
    try:
        log = Log.open(OsDisk(), str(directory), LogConfig(retention_ms=None), now_ms=NOW_MS)
        large = batch(bytes(1 << 20))
        while log.size_bytes < GIB:
            append(log, *[large] * 16)
        log.close()
        yield directory
    finally:
        shutil.rmtree(directory)


def test_opening_a_closed_gibibyte_reads_less_than_a_hundredth_of_it(large_log: Path) -> None:
    disk = CountingDisk()
    log = Log.open(disk, str(large_log), LogConfig(retention_ms=None), now_ms=NOW_MS)
    assert log.size_bytes >= GIB
    assert log.recovery.rebuilt == []
    assert disk.read_bytes.total() < GIB / 100
    log.close()


@pytest.fixture(scope="module")
def small_batches(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Placed]]:
    """A closed log of three segments, and its batches."""
    directory = str(tmp_path_factory.mktemp("log") / "small")
    log = Log.open(OsDisk(), directory, SMALL, now_ms=NOW_MS)
    chance = random.Random(5)
    placed: list[Placed] = []
    while log.segment_count < 3 or log.size_bytes < 5 << 20:
        timestamp_ms = NOW_MS + 3 * log.end_offset + chance.randint(-20, 0)
        data = batch(
            *(value_at(log.end_offset + n, size=chance.randint(200, 700)) for n in range(chance.randint(1, 3))),
            timestamp_ms=timestamp_ms,
        )
        [stored] = append(log, data)
        placed.append(Placed(stored.base_offset, stored.end_offset, len(data), timestamp_ms))
    log.close()
    return directory, placed


def freshly_opened(directory: str) -> tuple[Log, Counter[str]]:
    disk = CountingDisk()
    log = Log.open(disk, directory, SMALL, now_ms=NOW_MS)
    disk.read_bytes.clear()
    return log, disk.read_bytes


def chosen_from(placed: list[Placed]) -> list[Placed]:
    """Many of all, and those at the edges of the log."""
    return [*placed[:3], *random.Random(6).sample(placed, LOOKUPS), *placed[-20:]]


def test_a_lookup_by_offset_reads_an_interval_and_a_batch(small_batches: tuple[str, list[Placed]]) -> None:
    directory, placed = small_batches
    for wanted in chosen_from(placed):
        log, read_bytes = freshly_opened(directory)
        batches = log.read(wanted.end_offset - 1, bytes_max=1)
        assert (batches.base_offset, len(batches.data)) == (wanted.base_offset, wanted.size_bytes)
        assert read_bytes[".log"] <= INTERVAL_BYTES + wanted.size_bytes
        assert read_bytes[".index"] <= INDEX_ROWS_MAX * 8
        assert set(read_bytes) <= {".log", ".index"}
        log.close()


def test_a_lookup_by_timestamp_reads_an_interval_and_a_batch(small_batches: tuple[str, list[Placed]]) -> None:
    directory, placed = small_batches
    for wanted in chosen_from(placed):
        log, read_bytes = freshly_opened(directory)
        found = log.find_time(wanted.timestamp_ms)
        first = next(p for p in placed if p.timestamp_ms >= wanted.timestamp_ms)
        assert found == (first.timestamp_ms, first.base_offset)
        assert read_bytes[".log"] <= INTERVAL_BYTES + first.size_bytes
        assert read_bytes[".index"] <= (INDEX_ROWS_MAX + 1) * 8
        assert read_bytes[".timeindex"] <= INDEX_ROWS_MAX * 16
        assert set(read_bytes) <= {".log", ".index", ".timeindex"}
        log.close()


def test_a_lookup_past_the_newest_timestamp_reads_nothing(small_batches: tuple[str, list[Placed]]) -> None:
    directory, placed = small_batches
    log, read_bytes = freshly_opened(directory)
    assert log.find_time(max(p.timestamp_ms for p in placed) + 1) is None
    assert read_bytes.total() == 0
    log.close()


def test_reading_on_needs_no_search(small_batches: tuple[str, list[Placed]]) -> None:
    directory, _ = small_batches
    log, read_bytes = freshly_opened(directory)
    offset = log.read(0, bytes_max=64 * 1024).end_offset
    read_bytes.clear()
    batches = log.read(offset, bytes_max=64 * 1024)
    assert records(batches.data)[0].offset == offset
    assert read_bytes == {".log": 64 * 1024}
    log.close()
