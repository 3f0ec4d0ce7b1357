"""A quorum of real controller processes on loopback, and calls to them.

async with controller_cluster(tmp_path) as cluster:
    await told(cluster["c1"].admin.CreateTopic(…))
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc
import grpc.aio

from quire.errors import QuireError
from quire.rpc_errors import from_rpc_error
from quire.v1 import controller_pb2, controller_pb2_grpc
from tests.raftkill.processes import PR_SET_PDEATHSIG, REPOSITORY, free_ports

CLUSTER_ID: Final = "test"
LOOPBACK: Final = "127.0.0.1"
LEASE_MS: Final = 60_000
"""Longer than any test: brokers that are only registered are not to be fenced."""
WAIT_S_MAX: Final = 30.0
"""For conditions that hold within a second on an idle machine."""
POLL_S: Final = 0.02

LAUNCHER: Final = f"""
import ctypes, os, runpy, signal, sys
ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG}, signal.SIGKILL)  # whatever ends the tests ends the members
if os.getppid() != int(sys.argv.pop(1)):
    sys.exit("the tests are gone")
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""
"""`python -m quire_controller`, or a module that runs it.

Not by `preexec_fn`: gRPC, which the tests use, does not like to be forked.
"""

T = TypeVar("T")


class Member:
    """One controller: its files, its process, and channels to it."""

    def __init__(
        self, cluster: ControllerCluster, member_id: str, *, peer: int, grpc_port: int, metrics: int
    ) -> None:
        self.id = member_id
        self.peer_port, self.grpc_port, self.metrics_port = peer, grpc_port, metrics
        self.data_dir = cluster.folder / member_id
        self.log = cluster.folder / f"{member_id}.log"
        self.runs = ["quire_controller"]
        """The module that is run, and what it is told before the flags."""
        self._cluster = cluster
        self._channel: grpc.aio.Channel | None = None
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def raft_directory(self) -> Path:
        return self.data_dir / "controller" / "raft"

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.grpc_port}"

    # -- the process -----------------------------------------------------------------------------------------------

    def arguments(self, **changed: str | int | Path) -> list[str]:
        settings: dict[str, str | int | Path] = {
            "node-id": self.id,
            "node-cluster-id": CLUSTER_ID,
            "node-data-dir": self.data_dir,
            "controller-members": self._cluster.members,
            "controller-peer-port": self.peer_port,
            "controller-grpc-port": self.grpc_port,
            "metrics-controller-port": self.metrics_port,
            "controller-lease-ms": LEASE_MS,
            **self._cluster.settings,
            **{name.replace("_", "-"): value for name, value in changed.items()},
        }
        return [f"--{name}={value}" for name, value in settings.items()]

    def start(self, **changed: str | int | Path) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", LAUNCHER, str(os.getpid()), *self.runs, *self.arguments(**changed)],
                cwd=REPOSITORY,
                env={name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def ended(self) -> int:
        """Wait for the end; the exit code."""
        assert self.process is not None
        return self.process.wait(timeout=WAIT_S_MAX)

    def die(self) -> None:
        self.kill()
        self.ended()

    def events(self) -> list[dict[str, Any]]:
        """What it has logged in all its lives."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return [json.loads(line) for line in lines if line.startswith("{")]

    def rss_bytes(self) -> int:
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    # -- calls -----------------------------------------------------------------------------------------------------

    @property
    def channel(self) -> grpc.aio.Channel:
        if self._channel is None:
            # Not the default backoff of a second and more: members come back within tenths.
            options = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200)]
            self._channel = grpc.aio.insecure_channel(self.address, options=options)
        return self._channel

    @property
    def admin(self) -> controller_pb2_grpc.ControllerAdminServiceAsyncStub:
        return controller_pb2_grpc.ControllerAdminServiceStub(self.channel)

    @property
    def brokers(self) -> controller_pb2_grpc.ControllerServiceAsyncStub:
        return controller_pb2_grpc.ControllerServiceStub(self.channel)

    async def quorum(self) -> controller_pb2.DescribeQuorumResponse:
        return await told(self.admin.DescribeQuorum(controller_pb2.DescribeQuorumRequest(), timeout=5))

    def http(self, path: str) -> tuple[int, str]:
        """Status and body of the side door."""
        try:
            with urllib.request.urlopen(f"http://{LOOPBACK}:{self.metrics_port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    async def is_healthy(self) -> bool:
        try:
            return (await asyncio.to_thread(self.http, "/healthz"))[0] == 200
        except OSError:
            return False

    async def ready(self) -> None:
        async def is_healthy() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{tail(self)}"
            return await self.is_healthy()

        await eventually(is_healthy, lambda: f"not healthy:\n{tail(self)}")

    async def hang_up(self) -> None:
        """Close the channel: it belongs to the event loop of one test."""
        if self._channel is not None:
            await self._channel.close()
            self._channel = None


class ControllerCluster:
    def __init__(self, folder: Path, *, size: int = 3, **settings: str | int) -> None:
        """Settings are flags: `node_stop_ms_max=500`."""
        self.folder = folder
        self.settings = {name.replace("_", "-"): value for name, value in settings.items()}
        ports = iter(free_ports(3 * size))
        self._members = {
            (member_id := f"c{number}"): Member(
                self, member_id, peer=next(ports), grpc_port=next(ports), metrics=next(ports)
            )
            for number in range(1, size + 1)
        }

    def __getitem__(self, member_id: str) -> Member:
        return self._members[member_id]

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    @property
    def members(self) -> str:
        """The setting `controller.members`."""
        return ",".join(f"{each.id}={LOOPBACK}:{each.peer_port}/{each.grpc_port}" for each in self._members.values())

    @property
    def running(self) -> list[Member]:
        return [each for each in self if each.process is not None and each.process.poll() is None]

    def others(self, *members: Member) -> list[Member]:
        return [each for each in self if each not in members]

    def start_all(self) -> None:
        for each in self:
            each.start()

    async def ready(self, *members: Member) -> None:
        """Until these, or all that run, say that they are healthy."""
        for each in members or self.running:
            await each.ready()

    async def leader(self) -> Member:
        """The member that all running ones take for the leader."""

        async def agreed() -> str | None:
            try:
                leaders = {(await each.quorum()).leader_id for each in self.running}
            except QuireError:
                return None
            return leaders.pop() if len(leaders) == 1 else None

        running = {each.id for each in self.running}

        async def found() -> bool:
            return (await agreed()) in running

        await eventually(found, lambda: "no leader: " + "\n".join(map(tail, self)))
        leader = await agreed()
        return self[leader] if leader in running else await self.leader()

    async def hang_up(self) -> None:
        for each in self:
            await each.hang_up()

    def end(self) -> None:
        for each in self:
            if each.process is not None:
                each.process.kill()
                each.process.wait()


@asynccontextmanager
async def controller_cluster(
    folder: Path, *, size: int = 3, **settings: str | int
) -> AsyncIterator[ControllerCluster]:
    """Members that are all healthy, and gone in the end whatever happens."""
    cluster = ControllerCluster(folder, size=size, **settings)
    try:
        cluster.start_all()
        await cluster.ready()
        yield cluster
    finally:
        await cluster.hang_up()
        cluster.end()


async def told(call: Awaitable[T]) -> T:
    """What a call answers, or its error as ours."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error


async def refusal(call: Awaitable[Any]) -> QuireError:
    """The error with which a call ends."""
    try:
        answer = await told(call)
    except QuireError as error:
        return error
    raise AssertionError(f"not refused, but answered: {answer}")


async def eventually(condition: Callable[[], Awaitable[bool]], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not await condition():
        assert time.monotonic() < deadline, what()
        await asyncio.sleep(POLL_S)


def tail(member: Member, lines: int = 15) -> str:
    text = member.log.read_text(errors="replace") if member.log.exists() else "(no log)"
    return f"--- {member.id}\n" + "\n".join(text.splitlines()[-lines:])
