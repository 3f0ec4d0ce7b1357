"""Three nodes: what replication costs, against three nodes of NATS JetStream (R3) and against the bare peer link.

All processes share the machine. Quire syncs before it acknowledges, JetStream does not. Subject and baseline take
turns: trust the ratios.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from scripts.benches.broker_processes import CLUSTER, LOOPBACK, START_S_MAX, Client, Process, free_ports, touch_pages
from scripts.benches.report import Report, percentile

MIB: Final = 1 << 20
NODES: Final = 3
TOPIC: Final = "fsync"
CACHED: Final = "os"
"""Like the other topic, but left to the operating system to write to disks."""
NATS_WINDOWS: Final = (1_000, 4_000)


class QuireCluster:
    """Three controllers and three brokers, each a process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        ports = free_ports(6 * NODES)
        self.processes: list[Process] = []
        self.addresses: list[str] = []
        self._doors: list[int] = []
        members = ",".join(f"n{n}={LOOPBACK}:{ports[n]}/{ports[NODES + n]}" for n in range(NODES))
        for n in range(NODES):
            peer, grpc_port, door, client, link, broker_door = (ports[NODES * kind + n] for kind in range(6))
            data = folder / f"n{n}"
            node = ("--node-cluster-id", CLUSTER, "--node-data-dir", str(data))
            shared = ("--controller-members", members)
            self._start(
                folder,
                f"controller-{n}",
                *("quire_controller", *node, *shared, "--node-id", f"n{n}"),
                *("--controller-peer-port", str(peer), "--controller-grpc-port", str(grpc_port)),
                *("--metrics-controller-port", str(door)),
            )
            self._start(
                folder,
                f"broker-{n}",
                *("quire_broker", *node, *shared, "--node-id", f"b{n + 1}"),
                *("--broker-listeners", f"client={LOOPBACK}:{client}", "--broker-peer-port", str(link)),
                *("--metrics-broker-port", str(broker_door), "--broker-disk-free-bytes-min", "0"),
            )
            self.addresses.append(f"{LOOPBACK}:{client}")
            self._doors.append(broker_door)

    def _start(self, folder: Path, name: str, *arguments: str) -> None:
        self.processes.append(Process(name, [sys.executable, "-m", *arguments], folder / f"{name}.log"))

    def wait_until_healthy(self) -> None:
        deadline = time.monotonic() + START_S_MAX
        for door in self._doors:
            while True:
                for process in self.processes:
                    process.check()
                with suppress(OSError), urllib.request.urlopen(f"http://{LOOPBACK}:{door}/healthz", timeout=5):
                    break
                if time.monotonic() > deadline:
                    self.processes[-1].fail(f"is not healthy after {START_S_MAX:g} s")
                time.sleep(0.02)


class NatsCluster:
    """Three servers with JetStream on files, as it is set up by default."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        ports = free_ports(2 * NODES)
        routes = ", ".join(f"nats://{LOOPBACK}:{port}" for port in ports[NODES:])
        self.addresses = [f"nats://{LOOPBACK}:{port}" for port in ports[:NODES]]
        self.processes: list[Process] = []
        for n in range(NODES):
            config = folder / f"n{n}.conf"
            config.write_text(
                f'server_name: n{n}\nlisten: "{LOOPBACK}:{ports[n]}"\n'
                f'jetstream {{ store_dir: "{folder / f"n{n}"}" }}\n'
                f'cluster {{ name: bench, listen: "{LOOPBACK}:{ports[NODES + n]}", routes: [{routes}] }}\n'
            )
            command = [str(Path(sys.executable).parent / "nats-server"), "-c", str(config)]
            self.processes.append(Process(f"nats-{n}", command, folder / f"n{n}.log"))


class Follower:
    """One end of a bare peer link: `cluster_follower.py`."""

    def __init__(self, folder: Path, *, stores: bool = False) -> None:
        folder.mkdir()
        command = [
            sys.executable,
            "-m",
            "scripts.benches.cluster_follower",
            *([str(folder / "data")] if stores else []),
        ]
        self.process = Process("a follower", command, folder / "log", piped=True)
        self.port = int(self.process.line())


class BareCluster:
    """A leader and two followers with nothing in them, which sync: what no broker in Python can be quicker than."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        followers = [Follower(folder / f"follower-{n}", stores=True) for n in range(NODES - 1)]
        ports = [str(follower.port) for follower in followers]
        command = [sys.executable, "-m", "scripts.benches.cluster_leader", str(folder / "data"), *ports]
        leader = Process("the bare leader", command, folder / "log", piped=True)
        self.address = f"{LOOPBACK}:{int(leader.line())}"
        self.processes = [leader, *(follower.process for follower in followers)]


class Bench:
    def __init__(self, folder: Path, options: argparse.Namespace, report: Report) -> None:
        self._folder = folder
        self._rounds: int = options.rounds
        self._report = report
        self._client = Client(folder, "load", "cluster_client")
        self._quire = QuireCluster(folder / "quire")
        self._nats = NatsCluster(folder / "nats")
        self._bare = BareCluster(folder / "bare")
        self._followers: list[Process] = []

    def close(self) -> None:
        for process in (
            *self._quire.processes,
            *self._nats.processes,
            *self._bare.processes,
            *self._followers,
            self._client.process,
        ):
            process.kill()

    def measure(self, parts: Sequence[str]) -> None:
        self._quire.wait_until_healthy()
        for name, config in ((TOPIC, {}), (CACHED, {"flush": "os"})):
            address = self._quire.addresses[0]
            self._client.ask("create_topic", address=address, name=name, replication_factor=NODES, **config)
        for name, part in PARTS.items():
            if name in parts:
                part(self)

    def _turns(self, *works: Callable[[], float], pages_mb: int = 0) -> list[float]:
        """The medians of what each gives, after a turn that does not count."""
        found: list[list[float]] = [[] for _ in works]
        for turn in range(self._rounds + 1):
            for work, rates in zip(works, found, strict=True):
                touch_pages(self._folder, pages_mb)
                rate = work()
                if turn:
                    rates.append(rate)
        return [median(rates) for rates in found]

    # -- the parts -------------------------------------------------------------------------------------------------

    def latency(self) -> None:
        addresses: dict[str, str | list[str]] = {
            "acks_quire": self._quire.addresses,
            "acks_sdk": self._quire.addresses,
            "acks_bare": self._bare.address,
            "acks_nats": self._nats.addresses[0],
        }
        found: dict[str, list[float]] = {what: [] for what in addresses}
        for turn in range(self._rounds + 1):
            for what, taken in found.items():
                seconds = self._client.ask(what, address=addresses[what], topic=TOPIC, count=500)
                if turn:
                    taken += seconds
        shown = {
            what: f"p50 {median(taken) * 1e6:.0f} us, p99 {percentile(taken, 99) * 1e6:.0f} us"
            for what, taken in found.items()
        }
        nats = median(found["acks_nats"])
        self._report.add(
            "acks=all, one in flight, ProduceStream",
            shown["acks_quire"],
            f"nats-py publish, R3: {shown['acks_nats']}",
            median(found["acks_quire"]) / nats,
            most=1.3,
        )
        self._report.add("the same by the SDK", shown["acks_sdk"], "", median(found["acks_sdk"]) / nats)
        self._report.add(
            "the floor: gRPC, the link and three syncs",
            shown["acks_bare"],
            "",
            median(found["acks_bare"]) / nats,
        )

    def send(self) -> None:
        quire = {"address": self._quire.addresses, "topic": TOPIC, "count": 50_000, "acks": "all"}

        def publish(window: int) -> Callable[[], float]:
            arguments = {"address": self._nats.addresses[0], "count": 10_000, "window": window, "replicas": NODES}
            return lambda: self._client.ask("send_nats", **arguments)

        sent, *published = self._turns(lambda: self._client.ask("send", **quire), *map(publish, NATS_WINDOWS))
        best = max(published)
        self._report.add(
            "Producer.send, 100 B, acks=all, fsynced",
            f"{sent:.0f} k/s",
            f"nats-py, R3, {NATS_WINDOWS[published.index(best)]} in flight: {best:.0f} k/s",
            sent / best,
            least=3,
        )

    def replicate(self) -> None:
        load = {"size_bytes": MIB, "count": 64, "window": 4}
        followers = [Follower(self._folder / f"follower-{n}") for n in range(NODES - 1)]
        self._followers += [follower.process for follower in followers]
        ports = [follower.port for follower in followers]

        def quire(topic: str) -> float:
            rate: float = self._client.ask("stream_led", address=self._quire.addresses, topic=topic, **load)
            return rate

        def link() -> float:
            rate: float = self._client.ask("stream_link", ports=ports, **load)
            return rate

        def bare() -> float:
            rate: float = self._client.ask("stream_replicated", address=self._bare.address, **load)
            return rate

        stored, cached, linked, floor = self._turns(
            partial(quire, TOPIC), partial(quire, CACHED), link, bare, pages_mb=256
        )
        self._report.add(
            "1 MiB batches, acks=all, 4 in flight, fsynced three times",
            f"{stored:.0f} MiB/s",
            f"the bare peer link to two followers: {linked:.0f} MiB/s",
            stored / linked,
            least=0.5,
        )
        self._report.add("the same with flush=os", f"{cached:.0f} MiB/s", "the same link", cached / linked)
        self._report.add(
            "the floor: gRPC, the link and three syncs", f"{floor:.0f} MiB/s", "the same link", floor / linked
        )


PARTS: Final[dict[str, Callable[[Bench], None]]] = {
    "latency": Bench.latency,
    "send": Bench.send,
    "replicate": Bench.replicate,
}


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench cluster", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="turns that each side takes (5)")
    parser.add_argument("--only", default="", help=f"only these parts, with commas between: {', '.join(PARTS)}")
    parser.add_argument("--dir", type=Path, default=None, help="where to write (the temporary directory)")
    options = parser.parse_args(argv)
    parts = [part for part in options.only.split(",") if part] or list(PARTS)
    if unknown := [part for part in parts if part not in PARTS]:
        print(f"no part '{unknown[0]}'; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    report = Report(f"three nodes, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} when it began")
    folder = Path(tempfile.mkdtemp(prefix="quire-bench-", dir=options.dir))
    try:
        bench = Bench(folder, options, report)
        try:
            bench.measure(parts)
        finally:
            bench.close()
        return report.show()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
