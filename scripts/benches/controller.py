"""The controller quorum: three processes, real disks, the peer link. Against bare fdatasyncs and a bare round trip.

Everything is measured in one run on one machine; what is compared is measured in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from scripts.benches.report import Report, percentile

ELECTION_MS = (300, 600)
HEARTBEAT_MS = 60


class Member:
    """A member's process, asked over its standard input."""

    def __init__(self, name: str, members: dict[str, int], directory: Path, config: dict[str, int]) -> None:
        self.name = name
        settings = {"member": name, "members": members, "directory": str(directory / name), "config": config}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "scripts.benches.controller_member", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._read()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, what: str, **arguments: Any) -> Any:
        self.tell(what, **arguments)
        return self._read()

    def tell(self, what: str, **arguments: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"ask": what, **arguments}) + "\n")
        self._process.stdin.flush()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"bench controller: member {self.name} ended, see above")
        return json.loads(line)

    def answer(self) -> Any:
        return self._read()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Quorum:
    def __init__(self, directory: Path, **config: int) -> None:
        self._directory = directory
        self._ports = {f"n{number}": port for number, port in enumerate(_free_ports(3), start=1)}
        low, high = ELECTION_MS
        self._config = {
            "election_ms_min": low,
            "election_ms_max": high,
            "heartbeat_ms": HEARTBEAT_MS,
            "snapshot_entries": 10**9,
            **config,
        }
        self.members = {name: self._start(name) for name in self._ports}

    def _start(self, name: str) -> Member:
        return Member(name, self._ports, self._directory, self._config)

    def restart(self, name: str) -> None:
        self.members[name] = self._start(name)

    def leader(self) -> Member:
        while True:
            for member in self.members.values():
                if member.ask("status")["role"] == "leader":
                    return member
            time.sleep(0.02)

    def settle(self) -> None:
        """Wait until all have applied what their leader commits now: those just started know of nothing."""
        while not self.leader().ask("commits"):
            time.sleep(0.02)  # it leads no more
        while len({member.ask("status")["applied"] for member in self.members.values()}) > 1:
            time.sleep(0.02)

    def close(self) -> None:
        for member in self.members.values():
            member.kill()


# --- baselines -----------------------------------------------------------------------------------------------------


def fdatasync_s(directory: Path, *, size: int, count: int) -> list[float]:
    """What appending so many bytes and syncing them takes."""
    fd = os.open(directory / "baseline", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    data = bytes(size)
    taken = []
    try:
        for _ in range(count):
            start = time.perf_counter()
            os.write(fd, data)
            os.fdatasync(fd)
            taken.append(time.perf_counter() - start)
    finally:
        os.close(fd)
    return taken


def round_trip_s(*, size: int, count: int) -> list[float]:
    """What a blocking round trip to another process takes over loopback TCP."""
    echo = (
        "import socket\n"
        "l = socket.create_server(('127.0.0.1', 0)); print(l.getsockname()[1], flush=True)\n"
        "s, _ = l.accept(); s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)\n"
        "while d := s.recv(65536): s.sendall(d)\n"
    )
    with subprocess.Popen([sys.executable, "-c", echo], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        with socket.create_connection(("127.0.0.1", int(process.stdout.readline()))) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            data = bytes(size)
            taken = []
            for _ in range(count):
                start = time.perf_counter()
                connection.sendall(data)
                received = 0
                while received < size:
                    received += len(connection.recv(65536))
                taken.append(time.perf_counter() - start)
    return taken


# --- what is measured ----------------------------------------------------------------------------------------------


def measure(directory: Path, options: argparse.Namespace) -> Report:
    report = Report("controller quorum, three processes")
    quorum = Quorum(directory / "latency")
    try:
        p99_s = _latency(quorum, directory, options, report)
        _failover(quorum, options, report)
    finally:
        quorum.close()
    _snapshot(directory / "snapshot", options, report, p99_s)
    return report


def _latency(quorum: Quorum, directory: Path, options: argparse.Namespace, report: Report) -> float:
    leader = quorum.leader()
    leader.ask("latency", count=200)
    commits: list[float] = []
    syncs: list[float] = []
    trips: list[float] = []
    for _ in range(options.rounds):
        commits += leader.ask("latency", count=options.commits // options.rounds)
        syncs += fdatasync_s(directory, size=100, count=options.commits // options.rounds)
        trips += round_trip_s(size=100, count=options.commits // options.rounds)
    bare_s = 2 * median(syncs) + median(trips)
    p50_s, p99_s = median(commits), percentile(commits, 99)
    report.add(
        "commit p50, one in flight",
        f"{p50_s * 1e6:.0f} us",
        f"2 fdatasync ({median(syncs) * 1e6:.0f}) + round trip ({median(trips) * 1e6:.0f}) = {bare_s * 1e6:.0f} us",
        p50_s / bare_s,
        most=2.0,
    )
    report.add(
        "commit p99, one in flight", f"{p99_s * 1e6:.0f} us", f"fdatasync p99 {percentile(syncs, 99) * 1e6:.0f} us"
    )
    rate = median(leader.ask("throughput", count=options.pipelined, in_flight=256) for _ in range(options.rounds))
    report.add("pipelined commits, 256 in flight", f"{rate:.0f}/s", f"one in flight {1 / p50_s:.0f}/s")
    quorum.settle()
    before = {name: member.cpu_s() for name, member in quorum.members.items()}
    time.sleep(options.idle_s)
    used = {name: (member.cpu_s() - before[name]) / options.idle_s for name, member in quorum.members.items()}
    follower = max(share for name, share in used.items() if name != leader.name)
    report.add("idle CPU of one core", f"leader {used[leader.name]:.1%}", f"busiest follower {follower:.1%}")
    return p99_s


def _failover(quorum: Quorum, options: argparse.Namespace, report: Report) -> None:
    low, high = ELECTION_MS
    taken = []
    for _ in range(options.failovers):
        quorum.settle()
        leader = quorum.leader()
        others = [member for member in quorum.members.values() if member is not leader]
        times: list[float] = []
        for member in others:
            member.tell("until_committed")
        # Only the member that becomes leader answers; the other is asked in vain, and killed with the next leader.
        found = threading.Event()

        def wait(member: Member, times: list[float] = times, found: threading.Event = found) -> None:
            with suppress(SystemExit):  # killed with the next leader, or ended by itself
                times.append(member.answer())
            found.set()

        threads = [threading.Thread(target=wait, args=(member,), daemon=True) for member in others]
        killed_at = time.monotonic()
        leader.kill()
        for thread in threads:
            thread.start()
        found.wait()
        if not times:
            raise SystemExit("bench controller: a member ended that was to take over, see above")
        taken.append(times[0] - killed_at)
        for member in others:
            member.kill()
        for thread in threads:
            thread.join()
        for name in quorum.members:
            quorum.restart(name)
    report.add(
        f"leader SIGKILL to next commit, median of {len(taken)}",
        f"{median(taken) * 1000:.0f} ms (worst {max(taken) * 1000:.0f})",
        f"election timeout {low}-{high} ms",
        median(taken) * 1000 / low,
        most=4.0,
    )


def _snapshot(directory: Path, options: argparse.Namespace, report: Report, p99_s: float) -> None:
    quorum = Quorum(directory, snapshot_entries=2_000)
    try:
        leader = quorum.leader()
        partitions = leader.ask("fill", partitions=options.partitions)
        leader.ask("latency", count=200)
        steady = leader.ask("latency", count=1_000)
        found = leader.ask("snapshot")
        size = max(path.stat().st_size for path in directory.rglob("snapshot-*.snap"))
    finally:
        quorum.close()
    p99_s = max(p99_s, percentile(steady, 99))
    stall_s = max(found["taken"])
    report.add(
        f"snapshot of {partitions} partitions",
        f"{found['seconds']:.2f} s, {size / 1e6:.1f} MB",
        f"{len(found['taken'])} commits meanwhile, p50 {median(found['taken']) * 1e6:.0f} us",
    )
    report.add(
        "longest stall of a commit meanwhile",
        f"{stall_s * 1000:.1f} ms",
        f"commit p99 {p99_s * 1000:.2f} ms",
        stall_s / p99_s,
        most=10.0,
    )


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench controller", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="turns that subject and baseline take (5)")
    parser.add_argument("--commits", type=int, default=3_000, help="commits one in flight (3000)")
    parser.add_argument("--pipelined", type=int, default=10_000, help="pipelined commits a turn (10000)")
    parser.add_argument("--failovers", type=int, default=9, help="leaders killed (9)")
    parser.add_argument("--partitions", type=int, default=100_000, help="size of the snapshot's state (100000)")
    parser.add_argument("--idle-s", type=float, default=5.0, help="how long to watch an idle quorum (5)")
    parser.add_argument("--dir", type=Path, default=None, help="where to write (the temporary directory)")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="quire-bench-", dir=options.dir))
    try:
        return measure(directory, options).show()
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    sys.exit(main())
