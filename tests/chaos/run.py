"""One run: a cluster, traffic on it, faults one after another, and what the history says in the end.

After each fault all nodes are to be well and in sync again by themselves; then traffic pauses for a moment, and the
bytes of all replicas are compared.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from quire import aio
from quire.errors import QuireError
from quire.verify import HistoryWriter, Report, Type, check
from tests.chaos import nemesis
from tests.chaos.cluster import Cluster
from tests.chaos.nemesis import Fault
from tests.chaos.traffic import TOPIC, Traffic, read_all, traffic
from tests.chaos.waiting import until
from tests.chaos.watch import describe, watch

PARTITIONS: Final = 3
MIN_ISR: Final = 2


@dataclass
class Inflicted:
    fault: str
    nodes: list[str]
    began_s: float
    ended_s: float = 0.0
    well_s: float = 0.0


@dataclass
class Run:
    """What happened, as far as it came."""

    kind: str
    seed: int
    lease_ms: int
    history: Path
    faults: list[Inflicted] = field(default_factory=list)
    comparisons: int = 0
    """So often all replicas were found equal."""
    failure: str | None = None
    """Why it ended before its time."""
    ended_s: float = 0.0
    report: Report | None = None

    @property
    def is_well(self) -> bool:
        return self.failure is None and self.report is not None and not self.report.anomalies

    def counts(self) -> dict[str, int]:
        """How often which fault was inflicted, and survived."""
        found: dict[str, int] = {}
        for each in self.faults:
            found[each.fault] = found.get(each.fault, 0) + (each.well_s > 0)
        return found


class Chaos:
    """What faults are inflicted on."""

    def __init__(self, cluster: Cluster, history: HistoryWriter, load: Traffic, run: Run) -> None:
        self.cluster = cluster
        self.history = history
        self.load = load
        self.run = run
        self.randomness = random.Random(run.seed)

    async def leader(self, partition: int) -> str:
        """The node that leads a partition."""
        found: list[str] = []

        async def is_led() -> bool:
            described = await describe(self.cluster.bootstrap, TOPIC)
            leader = None if described is None else described.partitions[partition].leader
            if leader is not None:
                found.append(self.cluster.nodes[leader - 1])
            return bool(found)

        await until(is_led, lambda: f"nobody leads partition {partition}\n{self._logs()}")
        return found[-1]

    async def inflict(self, fault: Fault) -> None:
        """A fault from its beginning until all is well again, and equal."""
        leader = await self.leader(self.randomness.randrange(PARTITIONS))
        cast = nemesis.roles(self.cluster.nodes, leader, self.randomness)
        inflicted = Inflicted(fault.name, nemesis.struck(fault, cast), self.history.now_s)
        self.run.faults.append(inflicted)
        self._note("begins", fault, inflicted)
        await nemesis.inflict(fault, self.cluster, cast, self.randomness, settle=self.settle)
        inflicted.ended_s = self.history.now_s
        self._note("ends", fault, inflicted)
        await self.settle()
        well_s = self.history.now_s
        self._note("is over", fault, inflicted)
        await self.compare()
        inflicted.well_s = well_s

    async def settle(self) -> None:
        """Until all nodes are well, everybody is in sync, and traffic goes on."""
        await self.cluster.ready()
        why = ""

        async def is_well() -> bool:
            nonlocal why
            described = await describe(self.cluster.bootstrap, TOPIC)
            if described is None:
                why = "nobody describes the topic"
                return False
            why = f"in sync are {[each.isr for each in described.partitions]}"
            return all(each.leader and len(each.isr) == len(each.replicas) for each in described.partitions)

        await until(is_well, lambda: f"not well: {why}\n{self._logs()}")
        await self.load.more(20)

    async def compare(self) -> None:
        """That all replicas have the same bytes."""
        async with self.load.quiet():
            for partition in range(PARTITIONS):
                digests: list[str] = []

                async def are_equal(partition: int = partition, digests: list[str] = digests) -> bool:
                    digests[:] = await asyncio.gather(
                        *(self.cluster.digest(node, TOPIC, partition) for node in self.cluster.nodes)
                    )
                    return len(set(digests)) == 1 and not digests[0].startswith("0:")

                await until(are_equal, lambda p=partition, d=digests: f"replicas of partition {p} differ: {d}")  # type: ignore[misc]  # mypy knows no types of a lambda's defaults
        self.run.comparisons += 1
        self.history.add("nemesis", Type.INFO, "compare", equal=True)

    def _note(self, what: str, fault: Fault, inflicted: Inflicted) -> None:
        self.history.add("nemesis", Type.INFO, "fault", name=fault.name, what=what, nodes=inflicted.nodes)

    def _logs(self) -> str:
        return "\n".join(self.cluster.logs_of(node) for node in self.cluster.nodes)


@asynccontextmanager
async def chaos(cluster: Cluster, history: Path, *, seed: int, run: Run | None = None) -> AsyncIterator[Chaos]:
    """A cluster that was started, with traffic on it. When the block is left, all is read and compared once more."""
    run = run or Run(cluster.kind, seed, cluster.lease_ms, history)
    with HistoryWriter(history.open("wb"), kind=cluster.kind, seed=seed, lease_ms=cluster.lease_ms) as writer:
        await _make_topic(cluster)
        watching = asyncio.create_task(watch(cluster.bootstrap, writer, TOPIC), name="watch")
        try:
            async with traffic(cluster.bootstrap, writer, partitions=PARTITIONS) as load:
                await load.more()
                found = Chaos(cluster, writer, load, run)
                try:
                    yield found
                    await found.settle()
                except (AssertionError, QuireError) as error:
                    run.failure = str(error)
                    writer.add("nemesis", Type.INFO, "failure", why=str(error)[:2_000])
                    with suppress(AssertionError):  # it may still be of use to read what there is
                        await cluster.heal()
            if run.failure is None:
                await found.compare()
            run.ended_s = writer.now_s
            await read_all(cluster.bootstrap, writer)
        except (AssertionError, QuireError) as error:
            run.failure = run.failure or str(error)
        finally:
            run.ended_s = run.ended_s or writer.now_s
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
    with history.open("rb") as file:
        run.report = await asyncio.to_thread(check, file)


async def _make_topic(cluster: Cluster) -> None:
    async with aio.Admin(cluster.bootstrap) as admin:
        await admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3, config={"min_isr": MIN_ISR})


async def inflict_all(cluster: Cluster, history: Path, faults: Iterable[Fault], *, seed: int, s_max: float) -> Run:
    """Faults in this order, until there are no more or the time is over."""
    run = Run(cluster.kind, seed, cluster.lease_ms, history)
    deadline = time.monotonic() + s_max
    async with chaos(cluster, history, seed=seed, run=run) as found:
        for fault in faults:
            if time.monotonic() >= deadline:
                break
            print(f"{found.history.now_s:7.1f} s  {fault.name}", flush=True)
            await found.inflict(fault)
    return run
