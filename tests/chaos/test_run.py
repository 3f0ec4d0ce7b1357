"""The comparison of replicas can say no, and a run that fails says why and is judged as far as it came."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from quire.verify import HistoryWriter
from tests.chaos import waiting
from tests.chaos.run import Chaos, Run
from tests.chaos.traffic import Traffic


class Replicas:
    """All that the comparison asks a cluster for."""

    nodes = ("n1", "n2", "n3")

    def __init__(self, **digests: str) -> None:
        self.digests = digests

    async def digest(self, node: str, topic: str, partition: int) -> str:
        return self.digests[node] if partition == 1 else "3:abc"


def compared(tmp_path: Path, cluster: Replicas) -> Chaos:
    history = HistoryWriter(io.BytesIO())
    run = Run("processes", 1, 0, tmp_path / "history.jsonl")
    load = Traffic([], history, partitions=3)
    return Chaos(cluster, history, load, run)  # type: ignore[arg-type]  # it is asked for nothing else


@pytest.mark.parametrize("other", ["3:abd", "2:abc", "0:"])
async def test_replicas_that_differ_are_found(tmp_path: Path, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "WAIT_S_MAX", 0.0)
    found = compared(tmp_path, Replicas(n1="3:abc", n2=other, n3="3:abc"))
    with pytest.raises(AssertionError, match="replicas of partition 1 differ"):
        await found.compare()
    assert found.run.comparisons == 0


async def test_replicas_that_have_nothing_are_no_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "WAIT_S_MAX", 0.0)
    found = compared(tmp_path, Replicas(n1="0:", n2="0:", n3="0:"))
    with pytest.raises(AssertionError, match="replicas of partition 1 differ"):
        await found.compare()


async def test_equal_replicas_are_counted(tmp_path: Path) -> None:
    found = compared(tmp_path, Replicas(n1="3:abc", n2="3:abc", n3="3:abc"))
    await found.compare()
    assert found.run.comparisons == 1
