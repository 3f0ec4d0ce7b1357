"""The supervisor with real processes that do as they are told."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from quire.link.network import Address
from quire.process.exits import Exit
from quire.process.run import Stop
from quire_broker.cli.supervisor import keeper
from quire_broker.cli.supervisor.keeper import Role, Stage, Supervisor
from quire_broker.cli.supervisor.logfile import LogFile
from tests.integration.controller_cluster import LOOPBACK, WAIT_S_MAX, eventually
from tests.integration.up_processes import is_over
from tests.raftkill.processes import free_ports

HERE: Final = Path(__file__).parent
LONG_MS: Final = 600_000


class Observed:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.events: list[tuple[str, ...]] = []
        self.changed = asyncio.Event()

    def _add(self, *event: str) -> None:
        self.events.append(event)
        self.changed.set()

    def ready(self, role: Role, *, took_ms: float) -> None:
        self._add("ready", role.name)

    def ended(self, role: Role, *, code: int, restart_ms: float, words: str | None) -> None:
        self._add("ended", role.name, str(code), *([words] if words else []))

    def gave_up(self, role: Role, *, code: int, words: str | None) -> None:
        self._add("gave up", role.name, str(code), *([words] if words else []))

    def stopping(self, why: str) -> None:
        self._add("stopping", why)

    def killed(self, role: Role) -> None:
        self._add("killed", role.name)

    async def until(self, *wanted: tuple[str, ...]) -> None:
        async with asyncio.timeout(WAIT_S_MAX):
            while any(self.events.count(event) < wanted.count(event) for event in wanted):
                self.changed.clear()
                await self.changed.wait()


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told = folder / "events"
        self.observed = Observed()
        self.stop = Stop(stop_ms_max=LONG_MS)
        self.supervisor: Supervisor | None = None
        self._ports = iter(free_ports(4))

    def role(
        self,
        name: str,
        behaviour: str = "serve",
        *,
        stage: Stage = Stage.BROKER,
        stop_ms_max: int = LONG_MS,
        on_crash: Callable[[], Awaitable[None]] | None = None,
    ) -> Role:
        port = next(self._ports)
        return Role(
            node="n1",
            name=name,
            module="up_child",
            arguments=(str(port), str(self.told), name, behaviour),
            stage=stage,
            stop_ms_max=stop_ms_max,
            health=Address(LOOPBACK, port),
            log=LogFile(self.folder / "logs" / f"{name}.log"),
            on_crash=on_crash,
        )

    def lines(self) -> list[str]:
        return self.told.read_text(encoding="utf-8").splitlines() if self.told.exists() else []

    async def has_begun(self) -> bool:
        return bool(self.lines())

    def pid(self, name: str) -> int:
        assert self.supervisor is not None
        return self.supervisor.pids["n1", name]

    @asynccontextmanager
    async def running(self, *roles: Role, attempts_max: int | None = None) -> AsyncIterator[asyncio.Task[int]]:
        """A supervisor of these, which is stopped in the end."""
        environ = {**os.environ, "PYTHONPATH": str(HERE)}
        self.supervisor = Supervisor(roles, self.observed, attempts_max=attempts_max, environ=environ)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self.supervisor.run(self.stop))
            try:
                yield task
            finally:
                self.stop.request("the test is over")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_keeps_what_dies_and_stops_in_order(world: World) -> None:
    broker, controller = world.role("broker"), world.role("controller", stage=Stage.CONTROLLER)
    async with world.running(controller, broker) as task:
        await world.observed.until(("ready", "broker"), ("ready", "controller"))
        first = world.pid("broker")
        os.kill(first, signal.SIGKILL)
        await world.observed.until(("ended", "broker", "-9"), ("ready", "broker"), ("ready", "broker"))
        assert world.pid("broker") != first
        assert world.observed.events.count(("ready", "controller")) == 1
        world.stop.request("enough")
        assert await task == Exit.OK
    assert world.supervisor is not None
    assert world.supervisor.pids == {}
    assert world.lines()[-4:] == ["broker asked", "broker stopped", "controller asked", "controller stopped"]
    assert world.observed.events[-1] == ("stopping", "enough")


async def test_what_somebody_else_stops_is_started_again(world: World) -> None:
    async with world.running(world.role("broker")):
        await world.observed.until(("ready", "broker"))
        os.kill(world.pid("broker"), signal.SIGTERM)
        await world.observed.until(("ended", "broker", "0"), ("ready", "broker"), ("ready", "broker"))


async def test_misconfigured_one_ends_all(world: World) -> None:
    broker, controller = world.role("broker", "2"), world.role("controller", stage=Stage.CONTROLLER)
    async with world.running(broker, controller) as task:
        assert await task == Exit.MISCONFIGURED
    assert ("gave up", "broker", "2", "as broker was told") in world.observed.events
    assert world.lines().count("broker ended") == 1
    assert world.supervisor is not None
    assert world.supervisor.pids == {}


async def test_one_that_never_gets_ready_is_tried_so_often(world: World) -> None:
    async with world.running(world.role("broker", "1"), attempts_max=3) as task:
        assert await task == Exit.FAILED
    assert world.lines() == ["broker ended"] * 3
    words = "as broker was told"
    ended, gave_up = ("ended", "broker", "1", words), ("gave up", "broker", "1", words)
    assert world.observed.events[:3] == [ended, ended, gave_up]


async def test_one_that_was_ready_is_tried_for_ever(world: World) -> None:
    async with world.running(world.role("broker", "exit-70"), attempts_max=1):
        await world.observed.until(*[("ended", "broker", "70")] * 3)


async def test_crash_is_reported_before_the_next_start(world: World) -> None:
    reported = asyncio.Event()
    may_go_on = asyncio.Event()

    async def report() -> None:
        reported.set()
        await may_go_on.wait()

    async with world.running(world.role("broker", on_crash=report)):
        await world.observed.until(("ready", "broker"))
        os.kill(world.pid("broker"), signal.SIGKILL)
        async with asyncio.timeout(WAIT_S_MAX):
            await reported.wait()
        assert world.supervisor is not None
        assert world.supervisor.pids == {}
        may_go_on.set()
        await world.observed.until(("ready", "broker"), ("ready", "broker"))


async def test_clean_stop_is_no_crash(world: World) -> None:
    async def report() -> None:
        raise AssertionError("it stopped cleanly")

    async with world.running(world.role("broker", on_crash=report)):
        await world.observed.until(("ready", "broker"))


async def test_one_that_does_not_stop_is_killed_and_reported(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "GRACE_MS", 0)
    reports: list[str] = []

    async def report() -> None:
        reports.append("crashed")

    async with world.running(world.role("broker", "stubborn", stop_ms_max=200, on_crash=report)) as task:
        await world.observed.until(("ready", "broker"))
        world.stop.request("enough")
        assert await task == Exit.OK
    assert world.observed.events[-1] == ("killed", "broker")
    assert reports == ["crashed"]


async def test_paused_one_stops_too(world: World) -> None:
    async with world.running(world.role("broker")):
        await world.observed.until(("ready", "broker"))
        os.kill(world.pid("broker"), signal.SIGSTOP)
    assert world.lines()[-1] == "broker stopped"


async def test_stops_while_one_waits_to_be_started_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "RESTART_MS_MIN", LONG_MS)
    async with world.running(world.role("broker", "1")) as task:
        await world.observed.until(("ended", "broker", "1", "as broker was told"))
        world.stop.request("enough")
        assert await task == Exit.OK
    assert world.lines() == ["broker ended"]


async def test_stops_while_nothing_is_ready(world: World) -> None:
    async with world.running(world.role("broker", "ill")) as task:
        await eventually(world.has_begun, lambda: "nothing has started")
        world.stop.request("enough")
        assert await task == Exit.OK
    assert world.observed.events == [("stopping", "enough")]


LEASHED = """
import asyncio, os, sys
from quire_broker.cli.supervisor.child import Child

async def main():
    child = Child("up_child", sys.argv[1:], environ=os.environ, output=None)
    print(child.pid, flush=True)
    print(await child.ended(), flush=True)

asyncio.run(main())
"""


@pytest.fixture
def leashed(tmp_path: Path) -> list[str]:
    return [sys.executable, "-c", LEASHED, str(free_ports(1)[0]), str(tmp_path / "events"), "child", "stubborn"]


def test_child_does_not_outlive_its_supervisor(leashed: list[str]) -> None:
    with subprocess.Popen(
        leashed, env={**os.environ, "PYTHONPATH": str(HERE)}, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        watched = os.pidfd_open(pid)
        try:
            parent.kill()
            assert is_over(watched)
        finally:
            os.close(watched)


def test_child_whose_parent_is_gone_does_not_start(tmp_path: Path) -> None:
    events = tmp_path / "events"
    done = subprocess.run(
        [sys.executable, "-m", "quire_broker.cli.supervisor.leash", "0", "up_child", "0", str(events), "x", "serve"],
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S_MAX,
    )
    assert (done.returncode, done.stderr) == (1, "quire: process 0, which started this one, is gone\n")
    assert not events.exists()


def test_imports_nothing_from_the_directory_where_it_is_started(tmp_path: Path, leashed: list[str]) -> None:
    (tmp_path / "http.py").write_text("raise SystemExit(99)", encoding="utf-8")
    leashed[-1] = "7"
    done = subprocess.run(
        leashed,
        env={**os.environ, "PYTHONPATH": str(HERE)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT_S_MAX,
    )
    assert done.stdout.splitlines()[1] == "7"
