"""A sorter that writes sorted runs into temporary files, and merges them."""

from __future__ import annotations

import heapq
import marshal
import tempfile
from collections.abc import Iterator
from typing import IO, Final

from quire.verify.sorting import Fact

FACTS_MAX: Final = 100_000
"""How many are in memory at once: some 25 MiB."""
CHUNK: Final = 500
"""So many of a run are read at a time."""
RUNS_MAX: Final = 64
"""So many are merged at a time: then they are one."""


class Spill:
    def __init__(self, facts_max: int = FACTS_MAX, runs_max: int = RUNS_MAX) -> None:
        self._facts: list[Fact] = []
        self._facts_max = facts_max
        self._runs_max = runs_max
        self._runs: list[IO[bytes]] = []

    def add(self, fact: Fact) -> None:
        self._facts.append(fact)
        if len(self._facts) >= self._facts_max:
            self._facts.sort()
            self._keep(iter(self._facts))
            self._facts = []
            if len(self._runs) >= self._runs_max:
                runs, self._runs = self._runs, []
                self._keep(heapq.merge(*map(_read, runs)))

    def sorted(self) -> Iterator[Fact]:
        self._facts.sort()
        if not self._runs:
            return iter(self._facts)
        return heapq.merge(*map(_read, self._runs), iter(self._facts))

    def _keep(self, facts: Iterator[Fact]) -> None:
        run = tempfile.TemporaryFile(prefix="quire-verify-")  # noqa: SIM115  # closed by _read, or when it is forgotten
        chunk: list[Fact] = []
        for fact in facts:
            chunk.append(fact)
            if len(chunk) == CHUNK:
                marshal.dump(chunk, run)
                chunk = []
        marshal.dump(chunk, run)
        marshal.dump(None, run)
        run.seek(0)
        self._runs.append(run)


def _read(run: IO[bytes]) -> Iterator[Fact]:
    with run:
        while (chunk := marshal.load(run)) is not None:
            yield from chunk
