"""Real processes that a whole module of tests shares, for clients that bring their own event loop.

@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SdkCluster]:
    yield from sdk_cluster(tmp_path_factory)
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from quire import Admin
from tests.integration.broker_cluster import LEASE_MS, BrokerCluster, BrokerProcess

WAIT_S_MAX: Final = 30.0
POLL_S: Final = 0.01


class SdkCluster:
    def __init__(self, folder: Path, *, brokers: int, **settings: str | int) -> None:
        self._cluster = BrokerCluster(folder, brokers=brokers, controllers=1, lease_ms=LEASE_MS, **settings)
        self._names = itertools.count(1)

    @property
    def addresses(self) -> list[str]:
        return self._cluster.addresses

    @property
    def broker(self) -> BrokerProcess:
        """The first one."""
        return self._cluster.brokers[0]

    @property
    def brokers(self) -> list[BrokerProcess]:
        return self._cluster.brokers

    def start(self) -> None:
        async def start() -> None:
            await self._cluster.start()
            await self._cluster.hang_up()  # channels belong to a loop, and this one ends here

        asyncio.run(start())

    def ready(self, broker: BrokerProcess) -> None:
        async def ready() -> None:
            await broker.ready()
            await broker.hang_up()

        asyncio.run(ready())

    def end(self) -> None:
        self._cluster.end()

    def topic(self, *, partitions: int = 1, **config: Any) -> str:
        """A topic of its own for a test."""
        name = f"topic-{next(self._names)}"
        with Admin(self.addresses) as admin:
            admin.create_topic(name, partitions=partitions, config=config)
        return name

    @contextmanager
    def paused(self, broker: BrokerProcess | None = None) -> Iterator[None]:
        """The broker is there and does nothing."""
        stopped = broker or self.broker
        stopped.kill(signal.SIGSTOP)
        try:
            yield
        finally:
            stopped.kill(signal.SIGCONT)

    def restart(self, broker: BrokerProcess | None = None, *, wait: bool = True) -> None:
        """Kill it, and start it again."""
        killed = broker or self.broker
        killed.die()
        killed.start()
        if wait:
            self.ready(killed)


def sdk_cluster(
    tmp_path_factory: pytest.TempPathFactory, *, brokers: int = 1, **settings: str | int
) -> Iterator[SdkCluster]:
    cluster = SdkCluster(tmp_path_factory.mktemp("cluster"), brokers=brokers, **settings)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(POLL_S)
