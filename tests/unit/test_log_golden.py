"""A log's directory frozen in tests/golden/log: what is on people's disks must stay readable and the same.

Written once, in a Python prompt at the root of the repository, after `from tests.unit.test_log_golden import *`:

    for name, data in written().items(): (GOLDEN / name).write_bytes(data)

A file that is there already is never written anew: if it no longer matches, what changed is the format.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from quire.disk.sim_disk import SimDisk
from quire_broker.log.appender import Appended
from quire_broker.log.config import LogConfig
from quire_broker.log.log import Log
from tests.unit.log_crafting import NOW_MS, append, append_one, batch, numbered, producer, value_at, values

GOLDEN: Final = Path(__file__).resolve().parents[1] / "golden" / "log"
DIRECTORY: Final = "/log"
CONFIG: Final = LogConfig(segment_bytes=1_500, index_interval_bytes=400, retention_ms=None)
RECORDS: Final = 16


def written() -> dict[str, bytes]:
    """What today's code writes: two leader epochs, an idempotent producer, a sealed segment and an active one."""
    disk = SimDisk()
    log = Log.open(disk, DIRECTORY, CONFIG, now_ms=NOW_MS)
    for n in range(RECORDS):
        if n in (0, 6):
            log.begin_epoch(n + 1)
        value, timestamp_ms = value_at(n), NOW_MS + 10 * n
        options = producer(n // 2, producer_id=1 << 40, epoch=3)
        data = (
            batch(value, timestamp_ms=timestamp_ms, **options) if n % 2 else batch(value, timestamp_ms=timestamp_ms)
        )
        append(log, data, now_ms=NOW_MS + n)
    log.close()
    return files(disk)


def files(disk: SimDisk) -> dict[str, bytes]:
    found = {}
    for name in disk.names(DIRECTORY):
        file = disk.open(f"{DIRECTORY}/{name}")
        found[name] = file.read(0, file.size())
    return found


def frozen() -> SimDisk:
    disk = SimDisk()
    disk.make_dirs(DIRECTORY)
    for path in sorted(GOLDEN.iterdir()):
        disk.open(f"{DIRECTORY}/{path.name}", create=True).write(0, [path.read_bytes()])
    return disk


def test_frozen_files_are_still_what_we_write() -> None:
    assert written() == {path.name: path.read_bytes() for path in GOLDEN.iterdir()}


def test_every_sort_of_file_is_frozen() -> None:
    suffixes = {path.suffix or path.name for path in GOLDEN.iterdir()}
    assert suffixes == {".log", ".index", ".timeindex", ".producers", "checkpoint", "synced"}


def test_the_frozen_log_opens() -> None:
    log = Log.open(frozen(), DIRECTORY, CONFIG, now_ms=NOW_MS)
    assert (log.recovery.distrusted, log.recovery.torn, log.recovery.rebuilt) == (None, None, [])
    assert log.segment_count == 2
    assert (log.start_offset, log.end_offset, log.recovery_point) == (0, RECORDS, RECORDS)
    assert list(log.epochs) == [(1, 0), (7, 6)]
    assert values(log) == numbered(0, RECORDS)
    for n in range(RECORDS):
        assert log.read(n, bytes_max=1).base_offset == n
        assert log.find_time(NOW_MS + 10 * n) == (NOW_MS + 10 * n, n)
    again = batch(value_at(15), timestamp_ms=NOW_MS + 150, **producer(7, producer_id=1 << 40, epoch=3))
    assert append_one(log, again) == Appended(15, 16, duplicate=True)


def test_the_frozen_log_opens_without_what_can_be_made_anew() -> None:
    disk = frozen()
    for name in disk.names(DIRECTORY):
        if not name.endswith(".log"):
            disk.remove(f"{DIRECTORY}/{name}")
    log = Log.open(disk, DIRECTORY, CONFIG, now_ms=NOW_MS)
    assert values(log) == numbered(0, RECORDS)
    assert list(log.epochs) == [(1, 0), (7, 6)]
