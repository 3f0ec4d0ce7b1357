"""What a log does on a file system that is full.

Run inside a mount namespace, on a small tmpfs of its own, as
`python -m tests.integration.log_on_small_disk <scenario> <directory on the tmpfs> <directory elsewhere>`.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from quire.disk.os_disk import OsDisk
from quire.errors import DiskFullError
from quire_broker.log.appender import Appended
from quire_broker.log.config import LogConfig
from quire_broker.log.log import Log
from tests.unit.log_crafting import NOW_MS, append, batch, numbered, value_at, values

SIZE: Final = 700
CONFIG: Final = LogConfig(segment_bytes=256 * 1024, checkpoint_bytes=128 * 1024, retention_ms=None)


def fill_up(log: Log) -> DiskFullError:
    """Append, and sync now and then, until there is no room."""
    if log.latest_epoch < 0:
        log.begin_epoch(0)
    while True:
        first = log.end_offset
        batches = [batch(value_at(first + n, size=SIZE)) for n in range(10)]
        outcomes = log.append(batches, epoch=log.latest_epoch, now_ms=NOW_MS)
        for n, outcome in enumerate(outcomes):
            if isinstance(outcome, DiskFullError):
                assert all(isinstance(later, DiskFullError) for later in outcomes[n:])
                return outcome
            assert isinstance(outcome, Appended)
            assert not outcome.duplicate
        if first % 100 == 0:
            log.sync()


def check_contents(log: Log) -> None:
    assert values(log) == numbered(log.start_offset, log.end_offset, size=SIZE)
    assert log.quarantined == []


def append_more(log: Log, count: int) -> None:
    end = log.end_offset
    append(log, *(batch(value_at(end + n, size=SIZE)) for n in range(count)))
    log.sync()
    assert log.synced_offset == log.end_offset == end + count
    check_contents(log)


def a_full_disk_is_a_typed_error_and_tears_nothing(disk: Path, elsewhere: Path) -> None:
    log = Log.open(OsDisk(), str(disk / "log"), CONFIG, now_ms=NOW_MS)
    error = fill_up(log)
    assert error.retriable
    assert error.retry_after_ms is not None
    assert str(disk) in error.details["path"]
    assert log.offline is None
    assert sum(path.stat().st_size for path in disk.glob("log/*.log")) == log.size_bytes
    check_contents(log)

    shutil.copytree(disk / "log", elsewhere / "log")
    copy = Log.open(OsDisk(), str(elsewhere / "log"), CONFIG, now_ms=NOW_MS)
    assert copy.recovery.torn is None
    assert copy.end_offset == log.end_offset
    check_contents(copy)
    copy.close()


def appending_goes_on_once_there_is_room(disk: Path, _: Path) -> None:
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(512 * 1024))
    log = Log.open(OsDisk(), str(disk / "log"), CONFIG, now_ms=NOW_MS)
    fill_up(log)
    fill_up(log)
    ballast.unlink()
    append_more(log, 100)
    log.close()
    log = Log.open(OsDisk(), str(disk / "log"), CONFIG, now_ms=NOW_MS)
    assert log.recovery.torn is None
    append_more(log, 100)
    log.close()


def removing_the_oldest_makes_room(disk: Path, _: Path) -> None:
    log = Log.open(OsDisk(), str(disk / "log"), CONFIG, now_ms=NOW_MS)
    fill_up(log)
    log.sync()
    (disk / "ballast").write_bytes(b"")
    fill_to_the_last_byte(disk / "ballast")
    end = log.end_offset
    log.advance_start(end // 2)
    assert (log.start_offset, log.end_offset) == (end // 2, end)
    check_contents(log)
    append_more(log, 100)
    log.close()


def a_log_opens_on_a_full_disk(disk: Path, _: Path) -> None:
    log = Log.open(OsDisk(), str(disk / "log"), CONFIG, now_ms=NOW_MS)
    fill_up(log)
    end = log.end_offset
    fill_to_the_last_byte(disk / "ballast")
    # Not closed: the process that wrote it died.
    again = Log.open(OsDisk(), str(disk / "log"), CONFIG, now_ms=NOW_MS)
    assert again.end_offset == end
    check_contents(again)
    (disk / "ballast").unlink()
    fill_up(again)
    check_contents(again)


def fill_to_the_last_byte(ballast: Path) -> None:
    with ballast.open("ab", buffering=0) as file:
        try:
            while file.write(bytes(4096)) > 0:
                pass
        except OSError:
            return


SCENARIOS: Final[dict[str, Callable[[Path, Path], None]]] = {
    scenario.__name__: scenario
    for scenario in (
        a_full_disk_is_a_typed_error_and_tears_nothing,
        appending_goes_on_once_there_is_room,
        removing_the_oldest_makes_room,
        a_log_opens_on_a_full_disk,
    )
}

if __name__ == "__main__":
    SCENARIOS[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
