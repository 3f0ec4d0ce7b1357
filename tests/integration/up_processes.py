"""`quire up` as a process of the tests, and what they need to know of processes that are nobody's children any more.

with running_up(tmp_path / "data", nodes=3) as up:
    channel = grpc.aio.insecure_channel(up.bootstrap)
"""

from __future__ import annotations

import os
import random
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from quire.link.network import Address
from quire_broker.cli.supervisor import ports
from quire_broker.cli.up_plan import Cluster, bootstrap_of, nodes_of
from tests.integration.controller_cluster import LOOPBACK, WAIT_S_MAX
from tests.raftkill.processes import PORT_END, PORT_MIN

QUIRE: Final = Path(sys.executable).parent / "quire"


class Up:
    """One run of it. Its output is read as it comes."""

    def __init__(self, process: subprocess.Popen[str], data_dir: Path, bootstrap: str) -> None:
        self.process = process
        self.data_dir = data_dir
        self.bootstrap = bootstrap
        self.output = ""

    def until(self, pattern: str) -> re.Match[str]:
        """Wait for a line of its output in which this is found."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"{pattern!r} is not in what it said:\n{self.output}{self.logs()}")

    def ready(self) -> None:
        self.until("^Ready after ")

    def pid(self, role: str, node: str = "n1") -> int:
        """Of the process that began last, as its own log has it."""
        text = (self.data_dir / "logs" / f"{node}-{role}.log").read_text()
        return int(re.findall(r" starting .* pid=(\d+) ", text)[-1])

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        """Read to the end; the exit code."""
        assert self.process.stdout is not None
        self.output += self.process.stdout.read()
        return self.process.wait(timeout=WAIT_S_MAX)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.send(number)
        return self.ended()

    def logs(self) -> str:
        files = sorted((self.data_dir / "logs").glob("*.log"))
        return "".join(f"--- {path.name}\n{path.read_text()[-3_000:]}\n" for path in files)


@contextmanager
def running_up(
    data_dir: Path, *arguments: str, nodes: int = 1, port_base: int | None = None, ready: bool = True
) -> Iterator[Up]:
    """Ready when the block begins, gone when it ends."""
    base = port_base or free_port_base(nodes)
    command = [
        str(QUIRE),
        "up",
        "--data-dir",
        str(data_dir),
        "--nodes",
        str(nodes),
        "--port-base",
        str(base),
        *arguments,
    ]
    with started(command) as process:
        up = Up(process, data_dir, _bootstrap(base, nodes))
        try:
            if ready:
                up.ready()
            yield up
        finally:
            process.kill()


def started(command: list[str], *, hangups: signal.Handlers = signal.SIG_DFL) -> subprocess.Popen[str]:
    # Whoever runs the tests in the background ignores it, and a child would too. Not by preexec_fn: gRPC, which the
    # tests use, does not like to be forked.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL), signal.signal(signal.SIGHUP, hangups)
    try:
        return subprocess.Popen(
            command,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGHUP, before[1])


def environment() -> dict[str, str]:
    """In which `quire` is found, and nothing is configured."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")}
    return {**environ, "PATH": f"{QUIRE.parent}:{environ['PATH']}"}


def free_port_base(nodes: int = 1) -> int:
    """A base from which all ports are free at the moment."""
    while True:
        base = random.randrange(PORT_MIN, PORT_END)
        if all(ports.obstacle(Address(LOOPBACK, port)) is None for port in _ports(base, nodes)):
            return base


def is_over(pidfd: int) -> bool:
    """Whether this process ends. In /proc it may stay for longer: nobody waits for it but the system."""
    return bool(select.select([pidfd], [], [], WAIT_S_MAX)[0])


def _bootstrap(base: int, nodes: int) -> str:
    return bootstrap_of(nodes_of(Cluster(cluster_id="", nodes=nodes, port_base=base), Path()))


def _ports(base: int, nodes: int) -> list[int]:
    planned = nodes_of(Cluster(cluster_id="", nodes=nodes, port_base=base), Path())
    return [port for node in planned for port in node.ports]
