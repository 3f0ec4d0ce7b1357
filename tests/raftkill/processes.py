"""Member processes: started, killed by signal, and none left behind."""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from tests.raftkill.control import LOOPBACK

REPOSITORY: Final = Path(__file__).resolve().parents[2]
PR_SET_PDEATHSIG: Final = 1
PORT_MIN: Final = 10_000
PORT_END: Final = 32_768
PORTS_TRIED_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class MemberArguments:
    """A member's command line: `python -m <module>` and these."""

    member_id: str
    peers: dict[str, tuple[str, int]]
    """Where each member is reached by the others, itself included."""
    control_port: int
    directory: Path
    snapshot_every: int

    def command_line(self) -> list[str]:
        peers = ",".join(f"{peer}={host}:{port}" for peer, (host, port) in sorted(self.peers.items()))
        return [
            *("--id", self.member_id, "--peers", peers, "--control-port", str(self.control_port)),
            *("--dir", str(self.directory), "--snapshot-every", str(self.snapshot_every)),
            *("--parent", str(os.getpid())),
        ]


def begin_member() -> MemberArguments:
    """What a member process does first: read its command line, and see to it that it dies with the harness."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--id", required=True)
    parser.add_argument("--peers", required=True, help="n1=127.0.0.1:7001,n2=…")
    parser.add_argument("--control-port", type=int, required=True)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--snapshot-every", type=int, required=True, help="entries")
    parser.add_argument("--parent", type=int, help="end at once when this process is no longer the parent")
    options = parser.parse_args()
    if options.parent is not None:
        _die_with_parent(options.parent)
    return MemberArguments(
        member_id=options.id,
        peers=dict(map(_parse_peer, options.peers.split(","))),
        control_port=options.control_port,
        directory=options.dir,
        snapshot_every=options.snapshot_every,
    )


def _parse_peer(text: str) -> tuple[str, tuple[str, int]]:
    peer, _, address = text.partition("=")
    host, _, port = address.rpartition(":")
    return peer, (host, int(port))


def _die_with_parent(parent: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:  # it died before we asked to be told
        raise SystemExit("the harness is gone")


class MemberProcess:
    """One life of a member after another. To be started on a thread that lives as long as the members are to.

    Each life is a process group of its own: what a member has forked lives on when it is killed, and is ended by
    `end`. Until then nobody waits for the dead: the number of a process that was waited for may be given to a
    stranger, and the group would be his.
    """

    def __init__(self, module: str, arguments: MemberArguments, log: Path) -> None:
        self.member_id = arguments.member_id
        self.directory = arguments.directory
        self.control_port = arguments.control_port
        self.log = log
        self._command = [sys.executable, "-m", module, *arguments.command_line()]
        self._lives: list[subprocess.Popen[bytes]] = []
        self._is_to_run = False
        arguments.directory.mkdir(parents=True, exist_ok=True)

    def __repr__(self) -> str:
        return self.member_id

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._say(log, f"life {len(self._lives) + 1} begins")
            self._lives.append(
                subprocess.Popen(
                    self._command,
                    cwd=REPOSITORY,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    process_group=0,
                )
            )
        self._is_to_run = True

    @property
    def has_ended_by_itself(self) -> bool:
        return self._is_to_run and _is_dead(self._lives[-1].pid, wait=False)

    def kill(self) -> None:
        """SIGKILL for the member alone, not for what it has forked. `wait_dead` follows."""
        self._is_to_run = False
        os.kill(self._lives[-1].pid, signal.SIGKILL)

    def wait_dead(self) -> None:
        _is_dead(self._lives[-1].pid, wait=True)
        with self.log.open("ab") as log:
            self._say(log, f"life {len(self._lives)} was killed")

    def end(self) -> None:
        """Kill what is left of all lives, descendants too."""
        self._is_to_run = False
        for life in self._lives:
            with suppress(ProcessLookupError):
                os.killpg(life.pid, signal.SIGKILL)
        for life in self._lives:
            life.wait()
        self._lives.clear()

    def log_tail(self, lines: int) -> str:
        with suppress(FileNotFoundError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return "(no log)"

    def _say(self, log: IO[bytes], what: str) -> None:
        log.write(f"--- {self.member_id}: {what}\n".encode())


def _is_dead(pid: int, *, wait: bool) -> bool:
    """Without taking the zombie away: its number stays taken."""
    options = os.WEXITED | os.WNOWAIT | (0 if wait else os.WNOHANG)
    return os.waitid(os.P_PID, pid, options) is not None


def living_with_argument(argument: str) -> list[int]:
    """The processes with this in their command line, forked children included, that are not dead."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                # What is dead and waits to be reaped has no command line.
                if argument.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def free_ports(count: int) -> list[int]:
    """Loopback ports that nobody has, below those which the system gives to outgoing connections.

    Members come back to the same port again and again; an outgoing connection must not take it meanwhile.
    """
    ephemeral_min = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    end = ephemeral_min if ephemeral_min >= PORT_MIN + PORTS_TRIED_MAX else PORT_END  # else no such place is left
    chance = random.SystemRandom()  # not seeded: two runs at the same time are to choose differently
    found: list[int] = []
    with ExitStack() as held:
        for port in chance.sample(range(PORT_MIN, end), PORTS_TRIED_MAX):
            if len(found) == count:
                return found
            listener = held.enter_context(socket.socket())
            with suppress(OSError):
                listener.bind((LOOPBACK, port))
                found.append(port)
    raise OSError(f"no {count} free ports between {PORT_MIN} and {end}")
