"""The supervisor. One task keeps each role; it alone starts the role's processes, and never two at a time.

start ──► until ready, then until it ends ──► said to the controllers, if it is a broker ──► pause ──► start …
                                                      └─ of no use to start again: all others are stopped
stop      stage by stage: SIGTERM to a stage's processes, SIGKILL to those that take too long, then the next stage
"""

from __future__ import annotations

import asyncio
import enum
import os
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from quire.errors import QuireError
from quire.link.backoff import Backoff
from quire.link.network import Address
from quire.process.exits import Exit
from quire.process.run import Stop
from quire_broker.cli.supervisor.child import Child
from quire_broker.cli.supervisor.health import is_healthy
from quire_broker.cli.supervisor.logfile import LogFile
from quire_broker.cli.supervisor.restarts import Restarts

RESTART_MS_MIN: Final = 200
RESTART_MS_MAX: Final = 10_000
HEALTH_MS: Final = 50
"""How often a process is asked whether it is ready, until it is."""
LOGS_MS: Final = 10_000
"""How often log files are held to their size."""
GRACE_MS: Final = 2_000
"""What a process gets on top of its own deadline for stopping, which it may well keep by itself."""


class Stage(enum.IntEnum):
    """When a role is stopped. Brokers first: to let go of what they lead they need the controllers."""

    BROKER = 1
    CONTROLLER = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Role:
    """What one process is for."""

    node: str
    name: str
    module: str
    arguments: tuple[str, ...]
    stage: Stage
    stop_ms_max: int
    health: Address | None
    """Its side door. None: whether it is ready cannot be known, so it counts as ready when it runs."""
    log: LogFile | None = None
    """None: it says what it says where the supervisor does."""
    on_crash: Callable[[], Awaitable[None]] | None = None
    """Awaited before a successor of a process that did not stop by itself is started. Takes a bounded time."""


class Observer(Protocol):
    """Told of what happens, on the event loop."""

    def ready(self, role: Role, *, took_ms: float) -> None: ...

    def ended(self, role: Role, *, code: int, restart_ms: float, words: str | None) -> None:
        """It ended, and will be started again."""
        ...

    def gave_up(self, role: Role, *, code: int, words: str | None) -> None:
        """It ended, and will not. The others are stopped."""
        ...

    def stopping(self, why: str) -> None:
        """All of them are about to be asked to stop."""
        ...

    def killed(self, role: Role) -> None:
        """It was asked to stop, did not, and is ended."""
        ...


class Supervisor:
    def __init__(
        self,
        roles: Sequence[Role],
        observer: Observer,
        *,
        attempts_max: int | None = None,
        environ: Mapping[str, str] = os.environ,
        own_log: LogFile | None = None,
    ) -> None:
        """`attempts_max`: how often a role that was never ready is tried. None: until it works.

        `own_log` is held to its size with those of the roles.
        """
        self._logs = [log for log in (own_log, *(role.log for role in roles)) if log is not None]
        self._observer = observer
        self._failed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._keepers = [
            _Keeper(role, observer, self._give_up, attempts_max=attempts_max, environ=environ) for role in roles
        ]

    @property
    def pids(self) -> dict[tuple[str, str], int]:
        """The processes that run, by node and role."""
        return {(each.role.node, each.role.name): each.child.pid for each in self._keepers if each.child is not None}

    async def run(self, stop: Stop) -> int:
        """Keep the roles until asked to stop, then stop them. Gives the exit code of one that could not be kept."""
        async with asyncio.TaskGroup() as group:
            for keeper in self._keepers:
                group.create_task(keeper.keep(), name=f"keep-{keeper.role.node}-{keeper.role.name}")
            bounding = group.create_task(self._bound_logs(), name="logs")
            asked = group.create_task(stop.wait(), name="stop")
            self._failed.add_done_callback(lambda _: stop.request("a process cannot be kept running"))
            await asked  # from now on there is a deadline
            self._observer.stopping(stop.why)
            for stage in sorted({keeper.role.stage for keeper in self._keepers}):
                await asyncio.gather(*(keeper.stop() for keeper in self._keepers if keeper.role.stage is stage))
            bounding.cancel()
        return self._failed.result() if self._failed.done() else Exit.OK

    def _give_up(self, code: int) -> None:
        if not self._failed.done():
            self._failed.set_result(code)

    async def _bound_logs(self) -> None:
        while True:
            await asyncio.sleep(LOGS_MS / 1000)
            for log in self._logs:
                log.bound()


class _Keeper:
    def __init__(
        self,
        role: Role,
        observer: Observer,
        give_up: Callable[[int], None],
        *,
        attempts_max: int | None,
        environ: Mapping[str, str],
    ) -> None:
        self.role = role
        self.child: Child | None = None
        self._observer = observer
        self._give_up = give_up
        self._environ = environ
        self._stopping = asyncio.Event()
        self._done = asyncio.Event()
        self._clock = asyncio.get_running_loop().time
        backoff = Backoff(ms_min=RESTART_MS_MIN, ms_max=RESTART_MS_MAX, uniform=random.uniform)
        self._restarts = Restarts(backoff=backoff, attempts_max=attempts_max)

    async def keep(self) -> None:
        try:
            while not self._stopping.is_set() and await self._keep_one():
                pass
        finally:
            self._done.set()

    async def stop(self) -> None:
        """Until there is no process of this role, and none will be."""
        self._stopping.set()
        if (child := self.child) is not None:
            child.terminate()
            try:
                async with asyncio.timeout((self.role.stop_ms_max + GRACE_MS) / 1000):
                    await child.ended()
            except TimeoutError:
                self._observer.killed(self.role)
                child.kill()
        await self._done.wait()

    async def _keep_one(self) -> bool:
        """One process, from its start to the moment for the next. False if there is to be none."""
        began = self._clock()
        try:
            code = await self._run()
            words = None if self.role.log is None else self.role.log.last_words()
        except QuireError as error:  # it could not even be started
            code, words = Exit.FAILED, error.message
        if code != Exit.OK and self.role.on_crash is not None:
            await self.role.on_crash()
        if self._stopping.is_set():
            return False
        restart_ms = self._restarts.after_end(code, ran_ms=(self._clock() - began) * 1000)
        if restart_ms is None:
            self._observer.gave_up(self.role, code=code, words=words)
            self._give_up(code)
            return False
        self._observer.ended(self.role, code=code, restart_ms=restart_ms, words=words)
        with suppress(TimeoutError):
            async with asyncio.timeout(restart_ms / 1000):
                await self._stopping.wait()
        return True

    async def _run(self) -> int:
        role = self.role
        output = None if role.log is None else role.log.open()
        try:
            child = Child(role.module, role.arguments, environ=self._environ, output=output)
        finally:
            if output is not None:
                os.close(output)
        self.child = child
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(self._await_ready(), name="ready")
            code = await child.ended()
            self.child = None
            waiting.cancel()
        return code

    async def _await_ready(self) -> None:
        began = self._clock()
        while True:
            if self.role.health is None or await is_healthy(self.role.health):
                break
            await asyncio.sleep(HEALTH_MS / 1000)
        self._restarts.on_ready()
        if self._stopping.is_set():
            return  # nobody is to be told that now
        self._observer.ready(self.role, took_ms=(self._clock() - began) * 1000)
