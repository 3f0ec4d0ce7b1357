"""Three nodes as processes of this machine: a broker and a controller each, on loopback."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.chaos import injected
from tests.chaos.cluster import Ability, Unable
from tests.integration.broker_cluster import BrokerCluster, BrokerProcess
from tests.integration.broker_cluster import tail as broker_tail
from tests.integration.controller_cluster import Member
from tests.integration.controller_cluster import tail as controller_tail

NODES: Final = ("n1", "n2", "n3")
LEASE_MS: Final = 1_600
HEARTBEAT_MS: Final = 200
LOG_LINES: Final = 100


class Processes(Unable):
    kind = "processes"
    nodes: Sequence[str] = NODES
    able = frozenset({Ability.SLOW_SYNCS, Ability.CLOCK})
    lease_ms = LEASE_MS

    def __init__(self, folder: Path, *, broker: Sequence[str] = ("quire_broker",)) -> None:
        """`broker`: the module that brokers run, and what it is told before the flags."""
        self.folder = folder
        self.cluster = BrokerCluster(
            folder, brokers=len(NODES), controllers=len(NODES), lease_ms=LEASE_MS, broker_heartbeat_ms=HEARTBEAT_MS
        )
        self._told: dict[str, dict[str, int]] = {node: {} for node in NODES}
        for node in NODES:
            wrapper = ["tests.chaos.injected", str(self._control(node))]
            self._broker(node).runs = [*wrapper, *broker]
            self._controller(node).runs = [*wrapper, "quire_controller"]

    @property
    def bootstrap(self) -> Sequence[str]:
        return self.cluster.addresses

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        await self.cluster.start()

    async def end(self) -> None:
        await self.cluster.hang_up()
        await asyncio.to_thread(self.cluster.end)

    async def ready(self, *nodes: str) -> None:
        for node in nodes or NODES:
            await self._controller(node).ready()
            await self._broker(node).ready()

    # -- processes ---------------------------------------------------------------------------------------------------

    async def kill(self, *nodes: str) -> None:
        for process in self._processes(nodes):
            process.kill()
        for process in self._processes(nodes):
            await asyncio.to_thread(process.ended)

    async def terminate(self, *nodes: str) -> None:
        for processes in (map(self._broker, nodes), map(self._controller, nodes)):
            for process in processes:
                process.kill(signal.SIGTERM)
                code = await asyncio.to_thread(process.ended)
                assert code == 0, f"ended with {code}:\n{process.log.read_text()[-2_000:]}"

    async def restart(self, *nodes: str) -> None:
        for process in self._processes(nodes):
            await process.hang_up()
            process.start()

    async def wipe(self, node: str) -> None:
        for process in self._processes([node]):
            assert process.process is not None
            assert process.process.poll() is not None, f"{node} is running"
            await asyncio.to_thread(shutil.rmtree, process.data_dir)

    async def pause(self, *nodes: str) -> None:
        for process in self._processes(nodes):
            process.kill(signal.SIGSTOP)

    async def resume(self, *nodes: str) -> None:
        for process in self._processes(nodes):
            process.kill(signal.SIGCONT)

    async def pause_controllers(self, *nodes: str) -> None:
        for node in nodes:
            self._controller(node).kill(signal.SIGSTOP)

    async def resume_controllers(self, *nodes: str) -> None:
        for node in nodes:
            self._controller(node).kill(signal.SIGCONT)

    # -- injected ----------------------------------------------------------------------------------------------------

    async def slow_syncs(self, node: str, delay_ms: int) -> None:
        self._tell(node, sync_delay_ms=delay_ms)

    async def set_clock(self, node: str, offset_ms: int) -> None:
        self._tell(node, clock_ms=offset_ms)

    def _tell(self, node: str, **told: int) -> None:
        self._told[node].update(told)
        injected.tell(self._control(node), **self._told[node])

    def _control(self, node: str) -> Path:
        return self.folder / f"{node}.control"

    # -- looking in --------------------------------------------------------------------------------------------------

    async def digest(self, node: str, topic: str, partition: int) -> str:
        return await asyncio.to_thread(self._digest, node, topic, partition)

    def _digest(self, node: str, topic: str, partition: int) -> str:
        stored = self._broker(node).stored(topic, partition)
        return f"{len(stored)}:{hashlib.sha256(stored).hexdigest() if stored else ''}"

    def logs_of(self, node: str) -> str:
        return "\n".join(
            (broker_tail(self._broker(node), LOG_LINES), controller_tail(self._controller(node), LOG_LINES))
        )

    def _broker(self, node: str) -> BrokerProcess:
        return self.cluster.brokers[NODES.index(node)]

    def _controller(self, node: str) -> Member:
        return self.cluster.controllers[f"c{NODES.index(node) + 1}"]

    def _processes(self, nodes: Sequence[str]) -> list[BrokerProcess | Member]:
        return [process for node in nodes for process in (self._broker(node), self._controller(node))]
