"""The kill harness leaves no process behind, whichever way it ends."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.integration.test_raft_kill_stock import STOCK
from tests.raftkill.checker import Kind
from tests.raftkill.harness import MEMBERS, Workload, run
from tests.raftkill.processes import REPOSITORY, living_with_argument

WAIT_S: Final = 60
"""When a condition that must become true counts as one that does not."""

WORKLOAD: Final = Workload(seed=1, rounds=1_000_000, run_s_max=3600.0)

RUN: Final = """
import asyncio, pathlib, sys
from tests.integration.test_raft_kill_harness import STOCK, WORKLOAD, run
asyncio.run(run(STOCK, WORKLOAD, pathlib.Path(sys.argv[1])))
"""


def harness_in(directory: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", RUN, str(directory)], cwd=REPOSITORY)


def members_in(directory: Path) -> list[int]:
    return [pid for member in MEMBERS for pid in living_with_argument(str(directory / member))]


def is_under_way(directory: Path) -> bool:
    """Members have been killed, and started again."""
    return any("life 2 begins" in log.read_text() for log in directory.glob("*.log"))


async def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)


async def test_nothing_is_left_when_a_test_fails(tmp_path: Path) -> None:
    running = asyncio.create_task(run(STOCK, WORKLOAD, tmp_path))
    await until(lambda: is_under_way(tmp_path))
    assert members_in(tmp_path)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    # A forked child is told to die as its parent is, but nobody here can wait for it.
    await until(lambda: not members_in(tmp_path))
    assert (tmp_path / "history.jsonl").stat().st_size > 0


async def test_members_die_with_a_harness_that_is_killed(tmp_path: Path) -> None:
    with harness_in(tmp_path) as harness:
        try:
            await until(lambda: is_under_way(tmp_path))
            assert members_in(tmp_path)
        finally:
            harness.kill()
    # A snapshot's child may outlive its parent; it ends when the snapshot is written.
    await until(lambda: not members_in(tmp_path))


async def test_member_that_ends_by_itself_is_an_anomaly(tmp_path: Path) -> None:
    # PySyncObj refuses to start with such a number.
    broken = Workload(seed=1, rounds=1, settle_s_max=0.0, snapshot_every=0)
    result = await run(STOCK, broken, tmp_path)
    assert {anomaly.kind for anomaly in result.anomalies} == {Kind.WEDGED, Kind.CRASHED}
    assert "AssertionError" in result.report()
