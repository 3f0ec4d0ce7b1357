"""A short run on processes of this machine, with what cannot be injected into containers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.nemesis import Fault, possible
from tests.chaos.processes import Processes
from tests.chaos.run import inflict_all


async def run(tmp_path: Path, *faults: Fault) -> None:
    cluster = Processes(tmp_path / "cluster")
    cluster.folder.mkdir()
    try:
        await cluster.start()
        run = await inflict_all(cluster, tmp_path / "history.jsonl", faults, seed=7, s_max=600)
    finally:
        await cluster.end()
    assert run.failure is None, run.failure
    assert run.report is not None
    assert run.report.anomalies == 0, run.report.as_json()
    assert run.report.not_judged == 0
    assert run.counts() == {fault.name: 1 for fault in faults}
    assert run.comparisons == len(faults) + 1


@pytest.mark.parametrize("fault", possible(Processes.able), ids=lambda fault: fault.name)
async def test_fault(tmp_path: Path, fault: Fault) -> None:
    await run(tmp_path, fault)
