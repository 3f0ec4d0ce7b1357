"""A real process is killed while it appends: what it acknowledged as synced is there afterwards."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Final

from quire.disk.os_disk import OsDisk
from quire_broker.log.log import Log
from tests.integration.log_appender import CONFIG, expected_value
from tests.unit.log_crafting import NOW_MS, values

REPOSITORY: Final = Path(__file__).resolve().parents[2]
KILLS: Final = 20


def append_and_be_killed(directory: Path, *, seed: int, lines: int) -> list[int]:
    """What a child acknowledged before it died, of which its parent waited for the first `lines`."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.log_appender", str(directory), str(seed)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        acknowledged = [int(child.stdout.readline() or "-1") for _ in range(lines)]
        child.kill()
        # What it still said before the signal came was a promise too.
        acknowledged += map(int, child.stdout)
    assert child.returncode == -9, "it died by itself"
    return acknowledged


def test_nothing_acknowledged_is_missing_after_twenty_sigkills(tmp_path: Path) -> None:
    chance = random.Random(1)
    directory = tmp_path / "log"
    rolled = 0
    for kill in range(KILLS):
        acknowledged = append_and_be_killed(directory, seed=kill, lines=chance.randint(1, 40))
        assert acknowledged == sorted(acknowledged)

        log = Log.open(OsDisk(), str(directory), CONFIG, now_ms=NOW_MS)
        assert log.end_offset >= acknowledged[-1]
        assert values(log) == {offset: expected_value(offset) for offset in range(log.end_offset)}
        assert log.quarantined == []
        assert (log.recovery.distrusted, log.recovery.damaged, log.recovery.missing) == (None, [], [])
        rolled = log.segment_count
        log.close()
    assert rolled > KILLS, "the child never came to roll a segment; make them smaller"
