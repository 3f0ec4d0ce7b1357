"""What `scripts/bench broker` starts: Quire, a bare gRPC server, NATS. All on loopback, all ended with the bench."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

LOOPBACK: Final = "127.0.0.1"
CLUSTER: Final = "bench"
START_S_MAX: Final = 30.0
POLL_S: Final = 0.002
PR_SET_PDEATHSIG: Final = 1


class Process:
    """A child with a name. Its output goes to a file, unless `piped` leaves its standard streams to us."""

    def __init__(self, name: str, command: Sequence[str], log: Path, *, piped: bool = False) -> None:
        self.name = name
        self._log = log
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command,
                env={key: value for key, value in os.environ.items() if not key.startswith("QUIRE_")},
                stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else file,
                stderr=file,
                text=True,
                preexec_fn=_end_with_parent,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.fail("ended")
        return line

    def check(self) -> None:
        if self._process.poll() is not None:
            self.fail(f"ended with {self._process.returncode}")

    def fail(self, what: str) -> None:
        text = self._log.read_text(errors="replace").splitlines()[-20:]
        raise SystemExit("\n".join([f"bench broker: {self.name} {what}; the end of its log:", *text]))

    def rss_mb(self) -> float:
        fields = Path(f"/proc/{self.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


class Quire:
    """One controller and one broker."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        controller, raft, door, client, peer, self._door = free_ports(6)
        self.address = f"{LOOPBACK}:{client}"
        node = ("--node-cluster-id", CLUSTER, "--node-data-dir", str(folder))
        self._commands = {
            "controller": [
                *(sys.executable, "-m", "quire_controller", *node, "--node-id", "c1"),
                *("--controller-peer-port", str(raft), "--controller-grpc-port", str(controller)),
                *("--metrics-controller-port", str(door)),
            ],
            "broker": [
                *(sys.executable, "-m", "quire_broker", *node, "--node-id", "b1"),
                *("--broker-listeners", f"client={self.address}", "--broker-peer-port", str(peer)),
                *("--broker-controllers", f"{LOOPBACK}:{controller}", "--metrics-broker-port", str(self._door)),
                *("--broker-disk-free-bytes-min", "0"),
            ],
        }
        self.processes: dict[str, Process] = {}

    @property
    def broker(self) -> Process:
        return self.processes["broker"]

    def start(self) -> None:
        self.processes = {
            role: Process(role, command, self._folder / f"{role}.log") for role, command in self._commands.items()
        }

    def wait_until_healthy(self) -> None:
        deadline = time.monotonic() + START_S_MAX
        while True:
            for process in self.processes.values():
                process.check()
            with suppress(OSError), urllib.request.urlopen(f"http://{LOOPBACK}:{self._door}/healthz", timeout=5):
                return
            if time.monotonic() > deadline:
                self.broker.fail(f"is not healthy after {START_S_MAX:g} s")
            time.sleep(POLL_S)

    def kill(self) -> None:
        for process in self.processes.values():
            process.kill()


class Bare:
    """The server of `broker_bare.py`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "scripts.benches.broker_bare", str(folder / "stored")]
        self.process = Process("the bare server", command, folder / "log", piped=True)
        self.address = f"{LOOPBACK}:{int(self.process.line())}"


class Nats:
    """One server with JetStream on files, as it is set up by default."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        (port,) = free_ports(1)
        self.address = f"nats://{LOOPBACK}:{port}"
        program = Path(sys.executable).parent / "nats-server"
        command = [str(program), "-a", LOOPBACK, "-p", str(port), "-js", "-sd", str(folder / "store")]
        self.process = Process("nats-server", command, folder / "log")
        deadline = time.monotonic() + START_S_MAX
        while True:
            self.process.check()
            with suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
                return
            if time.monotonic() > deadline:
                self.process.fail(f"takes no connection after {START_S_MAX:g} s")
            time.sleep(POLL_S)


class Client:
    """A process of `broker_client.py`, which puts load on the others when it is asked to."""

    def __init__(self, folder: Path, name: str, module: str = "broker_client") -> None:
        command = [sys.executable, "-m", f"scripts.benches.{module}"]
        self.process = Process(f"the client '{name}'", command, folder / f"client-{name}.log", piped=True)

    def ask(self, what: str, **arguments: Any) -> Any:
        self.process.tell(json.dumps({"ask": what, **arguments}))
        return json.loads(self.process.line())


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server((LOOPBACK, 0)) for _ in range(count)]
    ports: list[int] = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def touch_pages(folder: Path, size_mb: int) -> None:
    """Have so much free memory that the kernel need not ask a hypervisor for it.

    A virtual machine gives free pages back to its host and gets each back at its first use, which costs several times
    what writing to it does. The broker writes to fresh page cache, and the bare server writes nothing.
    """
    path = folder / "touched"
    data = bytes(1 << 20)
    with path.open("wb", buffering=0) as file:
        for _ in range(size_mb):
            file.write(data)
    path.unlink()
