"""PySyncObj as it comes loses what it acknowledged when its processes are killed; our checker sees it.

Why it does: a member clears its whole journal at start when the journal does not begin where the dump does, and a
snapshot's forked child outlives its killed parent and renames a newer dump into place. So whatever was acknowledged
after a snapshot began is gone when a majority is killed before it has trimmed its journal.

This is what our own member is measured against: a harness that were blind to this loss would prove nothing there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.raftkill.checker import lost_everywhere
from tests.raftkill.harness import MemberKind, Workload, run
from tests.raftkill.stock_member import DUMP_UNDER_WAY_NAME

STOCK: Final = MemberKind(module="tests.raftkill.stock_member", snapshot_under_way=DUMP_UNDER_WAY_NAME)

WORKLOAD: Final = Workload(
    seed=1,
    rounds=4,
    victims=(3,),
    again=0.0,
    at_snapshot=1.0,
    acks_into_snapshot=10,
    snapshot_every=50,
    value_bytes=8000,
    progress_s_max=6.0,
    settle_s_max=2.0,
    run_s_max=15.0,
)
"""Four times, kill all three while all are writing a snapshot and have acknowledged ten values since it began.

Values are large so that a snapshot lasts long enough. A run loses some 30 to 70 of 700 acknowledged values.
"""

ATTEMPTS_MAX: Final = 2
"""One was enough in each of the 28 runs by which the workload was chosen, eight of them on a busy machine."""


async def test_stock_pysyncobj_loses_acknowledged_commits(tmp_path: Path) -> None:
    told = []
    for attempt in range(1, ATTEMPTS_MAX + 1):
        directory = tmp_path / str(attempt)
        directory.mkdir()
        result = await run(STOCK, WORKLOAD, directory)
        told.append(str(result))
        print(result)
        if lost_everywhere(result.anomalies, result.replicas):
            return
    raise AssertionError(f"no acknowledged commit was lost in {ATTEMPTS_MAX} attempts:\n" + "\n".join(told))
