"""A short run on processes of this machine: with what cannot be injected into containers, and some that can."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.chaos.nemesis import named, possible
from tests.chaos.processes import Processes
from tests.chaos.run import inflict_all

FAULTS: Final = (
    *("slow syncs", "clock jumps", "all killed", "controller majority lost", "rolling restart"),
    "leader paused past its lease",
)


async def test_faults_under_load(tmp_path: Path) -> None:
    cluster = Processes(tmp_path / "cluster")
    cluster.folder.mkdir()
    faults = [named(name) for name in FAULTS]
    assert set(faults) <= set(possible(cluster.able))
    try:
        await cluster.start()
        run = await inflict_all(cluster, tmp_path / "history.jsonl", faults, seed=7, s_max=900)
    finally:
        await cluster.end()
    assert run.failure is None, run.failure
    assert run.report is not None
    assert run.report.anomalies == 0, run.report.as_json()
    assert run.report.not_judged == 0
    assert run.counts() == dict.fromkeys(FAULTS, 1)
    assert run.comparisons == len(FAULTS) + 1
