"""Members of our quorum are killed without warning, one, two or all at once: what was acknowledged is there.

`test_raft_kill_stock.py` shows that the same harness sees PySyncObj lose what it acknowledged. A killed process
leaves the page cache behind, so this says nothing of missing syncs: the simulator's disk does.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from tests.integration.test_raft_kill_stock import WORKLOAD as WHERE_STOCK_LOSES
from tests.raftkill.harness import MemberKind, Result, Workload, run
from tests.raftkill.quire_member import SNAPSHOT_UNDER_WAY

OURS: Final = MemberKind(module="tests.raftkill.quire_member", snapshot_under_way=SNAPSHOT_UNDER_WAY)


def check_is_sound(result: Result) -> None:
    print(result)
    assert not result.anomalies, result.report()
    assert set(result.replicas) == {"n1", "n2", "n3"}
    assert result.kills_at_snapshot > 0, "nobody was killed while writing a snapshot; make snapshots more frequent"
    assert all(status.snapshot > 0 for status in result.statuses.values()), result.report()


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_nothing_acknowledged_is_missing_after_20_rounds_of_sigkill(seed: int, tmp_path: Path) -> None:
    result = await run(OURS, Workload(seed=seed, rounds=20), tmp_path)
    check_is_sound(result)
    assert result.kills >= 20


async def test_nothing_is_lost_where_stock_pysyncobj_loses(tmp_path: Path) -> None:
    # Our snapshots are over before ten values have been acknowledged: all three are killed as soon as all write one.
    workload = replace(
        WHERE_STOCK_LOSES, acks_into_snapshot=0, progress_s_max=20.0, settle_s_max=20.0, run_s_max=120.0
    )
    check_is_sound(await run(OURS, workload, tmp_path))
