"""The suite fails when it should: a build that acknowledges too early is found to lose what it acknowledged."""

from __future__ import annotations

from pathlib import Path

from quire.verify import Kind, Report
from tests.chaos.processes import Processes
from tests.chaos.run import Run, chaos
from tests.chaos.waiting import until

SENT = 100


async def run(tmp_path: Path, planted: str) -> Run:
    """A leader dies when its followers lack what was sent last."""
    held = tmp_path / "held"
    cluster = Processes(tmp_path / "cluster", broker=["tests.chaos.planted", str(held), planted])
    cluster.folder.mkdir()
    history = tmp_path / "history.jsonl"
    found = Run(cluster.kind, 1, cluster.lease_ms, history)
    try:
        await cluster.start()
        async with chaos(cluster, history, seed=1, run=found) as on:
            leader = await on.leader(0)
            held.touch()
            wanted = on.load.sent + SENT
            acked = on.load.acked

            async def are_sent() -> bool:
                return on.load.sent >= wanted and (planted == "late" or on.load.acked >= acked + SENT)

            await until(are_sent, lambda: f"{on.load.sent} are sent, {on.load.acked} acknowledged")
            await cluster.kill(leader)
            held.unlink()
            await on.load.more()
            await cluster.restart(leader)
    finally:
        await cluster.end()
    return found


def report_of(found: Run) -> Report:
    assert found.report is not None
    return found.report


async def test_a_leader_that_acknowledges_alone_is_found_out(tmp_path: Path) -> None:
    found = await run(tmp_path, "alone")
    assert not found.is_well
    lost = report_of(found).verdicts[Kind.LOST_WRITE]
    assert lost.count > 0, report_of(found).as_json()
    first = lost.anomalies[0]
    lines = found.history.read_text().splitlines()
    shown = [lines[number - 1] for number in first.lines]
    assert any(f'"values":["{first.value}"]' in line and '"type":"ok","op":"send"' in line for line in shown), shown


async def test_a_leader_that_only_pushes_late_loses_nothing(tmp_path: Path) -> None:
    found = await run(tmp_path, "late")
    assert found.is_well, (found.failure, report_of(found).as_json())
