"""One broker: what it and the SDK do, against a bare gRPC server and against NATS JetStream.

Client and servers share the machine, and what is compared is measured in turns: trust the ratios. The bare server is
grpc.aio on uvloop in a process of its own, with the same memory settings; its client sends the same bytes in the same
way.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from scripts.benches import broker_profile
from scripts.benches.broker_processes import START_S_MAX, Bare, Client, Nats, Quire, touch_pages
from scripts.benches.report import Report, percentile

MIB: Final = 1 << 20
PRODUCE: Final = "/quire.v1.BrokerService/Produce"
STORE: Final = "/bare/Store"
NATS_WINDOWS: Final = (1_000, 4_000, 16_000)
"""How many records of nats-py may wait for their acknowledgement; the quickest is taken. Its own default is 4,000."""
IDLE_S: Final = 3.0
RESTARTS: Final = 5


class Bench:
    def __init__(self, folder: Path, options: argparse.Namespace, report: Report) -> None:
        self._folder = folder
        self._rounds: int = options.rounds
        self._report = report
        self._quire = Quire(folder / "quire")
        self._client = Client(folder, "load")
        self._processes: list[Callable[[], None]] = [self._quire.kill, self._client.process.kill]

    def close(self) -> None:
        for kill in self._processes:
            kill()

    def measure(self, parts: Sequence[str]) -> None:
        self._quire.start()
        self._quire.wait_until_healthy()
        address = self._quire.address
        # A topic that says nothing is synced before anything in it is acknowledged.
        self._client.ask("create_topic", address=address, name="fsync")
        self._client.ask("create_topic", address=address, name="os", flush="os")
        for name, part in PARTS.items():
            if name in parts:
                part(self)

    def _bare(self, name: str) -> Bare:
        bare = Bare(self._folder / name)
        self._processes.append(bare.process.kill)
        return bare

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

    def idle(self) -> None:
        time.sleep(IDLE_S)  # what a start leaves behind is collected and given back
        controller = self._quire.processes["controller"]
        self._report.add("idle RSS of a broker", f"{self._quire.broker.rss_mb():.0f} MB", "aim <= 90 MB")
        self._report.add("idle RSS of a controller", f"{controller.rss_mb():.0f} MB")

    def stream(self) -> None:
        bare = self._bare("bare-stream")
        load = {"size_bytes": MIB, "count": 128, "window": 4}

        def quire(topic: str) -> Callable[[], float]:
            return lambda: self._client.ask("stream_quire", address=self._quire.address, topic=topic, **load)

        def other(method: str) -> Callable[[], float]:
            return lambda: self._client.ask("stream_bare", address=bare.address, method=method, **load)

        rates = self._turns(quire("os"), other("/bare/Echo"), other("/bare/Sink"), quire("fsync"), pages_mb=256)
        megabytes = self._client.ask("request_bytes", topic="os", size_bytes=MIB) / 1e6
        stored, echoed, sunk, synced = (rate * megabytes for rate in rates)
        self._report.add(
            "ProduceStream, 1 MiB batches, 4 in flight, flush=os",
            f"{stored:.0f} MB/s",
            f"bare echo {echoed:.0f} MB/s",
            stored / echoed,
            least=0.6,
        )
        self._report.add("the same", f"{stored:.0f} MB/s", f"bare sink {sunk:.0f} MB/s", stored / sunk)
        self._report.add(
            "the same with flush=fsync", f"{synced:.0f} MB/s", f"bare echo {echoed:.0f} MB/s", synced / echoed
        )

    def subscribe(self) -> None:
        bare = self._bare("bare-subscribe")
        address = self._quire.address
        megabytes = 128
        # A topic of its own: here the size of what is read matters.
        self._client.ask("create_topic", address=address, name="read", flush="os")
        load = {"size_bytes": MIB, "count": megabytes, "window": 4}
        self._client.ask("stream_quire", address=address, topic="read", **load)
        ours, bares = self._turns(
            lambda: self._client.ask("subscribe", address=address, topic="read", megabytes=megabytes),
            lambda: self._client.ask("subscribe_bare", address=bare.address, megabytes=megabytes, size_bytes=MIB),
        )
        self._report.add(
            "Subscribe, raw 1 MiB batches", f"{ours:.0f} MB/s", f"bare push {bares:.0f} MB/s", ours / bares
        )

    def small(self) -> None:
        bare = self._bare("bare-small")
        load = {"size_bytes": 0, "count": 3_000, "window": 16}

        def quire() -> float:
            rate: float = self._client.ask("stream_quire", address=self._quire.address, topic="os", **load)
            return rate

        def sink() -> float:
            rate: float = self._client.ask("stream_bare", address=bare.address, method="/bare/Sink", **load)
            return rate

        before = self._quire.broker.cpu_s(), bare.process.cpu_s()
        stored, sunk = self._turns(quire, sink)
        requests = (self._rounds + 1) * 3_000
        ours, theirs = self._quire.broker.cpu_s() - before[0], bare.process.cpu_s() - before[1]
        self._report.add(
            "ProduceStream, one record a request, 16 in flight, flush=os",
            f"{stored:.0f}/s",
            f"bare sink {sunk:.0f}/s",
            stored / sunk,
        )
        self._report.add(
            "processor time of the server for each",
            f"{ours / requests * 1e6:.0f} us",
            f"bare sink {theirs / requests * 1e6:.0f} us",
            ours / theirs,
        )

    def send(self) -> None:
        nats = Nats(self._folder / "nats")
        client = Client(self._folder, "nats")
        self._processes += [nats.process.kill, client.process.kill]

        def publish(window: int) -> Callable[[], float]:
            return lambda: client.ask("send_nats", address=nats.address, count=20_000, window=window)

        def quire(topic: str, what: str = "send") -> Callable[[], float]:
            arguments = {"address": self._quire.address, "topic": topic, "count": 100_000, "acks": "leader"}
            return lambda: self._client.ask(what, **arguments)

        synced, unsynced, aio, *published = self._turns(
            quire("fsync"), quire("os"), quire("os", "send_aio"), *map(publish, NATS_WINDOWS)
        )
        best = max(published)
        against = f"nats-py, {NATS_WINDOWS[published.index(best)]} in flight: {best:.0f} k/s"
        self._report.add(
            "Producer.send, 100 B, acks=leader, flush=os", f"{unsynced:.0f} k/s", against, unsynced / best, least=3
        )
        self._report.add("the same with flush=fsync", f"{synced:.0f} k/s", against, synced / best)
        self._report.add("quire.aio, flush=os", f"{aio:.0f} k/s", against, aio / best)

    def latency(self) -> None:
        bare = self._bare("bare-latency")
        topic = {"address": self._quire.address, "topic": "fsync", "count": 200}
        found: dict[str, list[float]] = {"latency_quire": [], "latency_bare": [], "latency_sdk": []}
        for turn in range(self._rounds + 1):
            for what, taken in found.items():
                arguments = {"address": bare.address, "count": 200} if what == "latency_bare" else topic
                seconds = self._client.ask(what, **arguments)
                if turn:
                    taken += seconds
        shown = {
            what: f"p50 {median(taken) * 1e6:.0f} us, p99 {percentile(taken, 99) * 1e6:.0f} us"
            for what, taken in found.items()
        }
        ratio = {what: median(taken) / median(found["latency_bare"]) for what, taken in found.items()}
        self._report.add(
            "Produce to Subscribe, one in flight, acks=all, fsynced",
            shown["latency_quire"],
            f"unary, fdatasync, push: {shown['latency_bare']}",
            ratio["latency_quire"],
            most=1.5,
        )
        self._report.add("the same by the SDK, send to poll", shown["latency_sdk"], "", ratio["latency_sdk"])

    def rates(self) -> None:
        arguments = {"address": self._quire.address, "topic": "os"}
        many = {**arguments, "count": 500_000, "at_once": 1_000, "acks": "leader"}
        sent, consumed, decoded = self._turns(
            lambda: self._client.ask("send_many", **many),
            lambda: self._client.ask("consume", **arguments, count=300_000),
            lambda: self._client.ask("decode", count=300_000, size_bytes=256 << 10),
        )
        self._report.add("Producer.send_many, 1,000 records of 100 B a call, flush=os", f"{sent:.0f} k/s")
        self._report.add(
            "Consumer.poll, from the earliest on",
            f"{consumed:.0f} k/s",
            f"codec {decoded:.0f} k/s",
            consumed / decoded,
        )

    def start(self) -> None:
        """Last of all: it kills the broker."""
        quire: list[float] = []
        bare: list[float] = []
        within = {"topic": "fsync", "within_s": START_S_MAX}
        for number in range(RESTARTS):
            self._quire.kill()
            began = time.monotonic()
            self._quire.start()
            stored = self._client.ask("until_stored", address=self._quire.address, method=PRODUCE, **within)
            quire.append(stored - began)
            began = time.monotonic()
            server = self._bare(f"bare-start-{number}")
            stored = self._client.ask("until_stored", address=server.address, method=STORE, **within)
            bare.append(stored - began)
            server.process.kill()
        self._report.add(
            "controller and broker killed and started: first durable write",
            f"{median(quire) * 1e3:.0f} ms (worst {max(quire) * 1e3:.0f})",
            f"bare server started: {median(bare) * 1e3:.0f} ms",
            median(quire) / median(bare),
        )

    def profile(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._quire.start()
        self._quire.wait_until_healthy()
        address = self._quire.address
        for name in ("large", "small", "read"):
            self._client.ask("create_topic", address=address, name=name, flush="os")
        self._client.ask("create_topic", address=address, name="fsync")
        stream = {"address": address, "window": 4, "size_bytes": MIB, "count": 64}
        self._client.ask("stream_quire", topic="read", **stream | {"count": 128})
        broker, client = self._quire.broker.pid, self._client.process.pid
        small = stream | {"size_bytes": 0, "count": 1_000, "window": 16}
        send = {"address": address, "topic": "small", "count": 50_000, "acks": "leader"}
        read = {"address": address, "topic": "read"}
        loads: dict[str, tuple[int, str, dict[str, Any]]] = {
            "Broker, `ProduceStream` of 1 MiB batches": (broker, "stream_quire", stream | {"topic": "large"}),
            "Broker, `ProduceStream` of one record a request": (broker, "stream_quire", small | {"topic": "small"}),
            "Broker, `Producer.send` of 100 bytes": (broker, "send", send),
            "Client, `Producer.send` of 100 bytes": (client, "send", send),
            "Broker, `Subscribe` to raw 1 MiB batches": (broker, "subscribe", read | {"megabytes": 128}),
            "Broker, `Consumer.poll` of 100 bytes": (broker, "consume", read | {"count": 300_000}),
            "Client, `Consumer.poll` of 100 bytes": (client, "consume", read | {"count": 300_000}),
            "Broker, one record at a time from `Produce` to `Subscribe`, fsynced": (
                *(broker, "latency_quire"),
                {"address": address, "topic": "fsync", "count": 200},
            ),
        }
        profiles: dict[str, broker_profile.Profile] = {}
        for number, (what, (pid, ask, arguments)) in enumerate(loads.items(), start=1):
            load = partial(self._client.ask, ask, **arguments)
            load()
            profiles[what] = broker_profile.record(pid, folder / f"{number}.txt", load)
            broker_profile.show(what, profiles[what])
        broker_profile.write_page(folder / broker_profile.PAGE, profiles)


PARTS: Final[dict[str, Callable[[Bench], None]]] = {
    "idle": Bench.idle,
    "stream": Bench.stream,
    "subscribe": Bench.subscribe,
    "small": Bench.small,
    "send": Bench.send,
    "latency": Bench.latency,
    "rates": Bench.rates,
    "start": Bench.start,
}


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench broker", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="turns that each side takes (7)")
    parser.add_argument("--only", default="", help=f"only these parts, with commas between: {', '.join(PARTS)}")
    parser.add_argument("--profile", type=Path, help="instead, show where the time goes; stacks and a page go here")
    parser.add_argument("--dir", type=Path, default=None, help="where to write (the temporary directory)")
    options = parser.parse_args(argv)
    parts = [part for part in options.only.split(",") if part] or list(PARTS)
    if unknown := [part for part in parts if part not in PARTS]:
        print(f"no part '{unknown[0]}'; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    report = Report(f"one broker, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} when it began")
    folder = Path(tempfile.mkdtemp(prefix="quire-bench-", dir=options.dir))
    try:
        bench = Bench(folder, options, report)
        try:
            if options.profile is not None:
                bench.profile(options.profile)
                return 0
            bench.measure(parts)
        finally:
            bench.close()
        return report.show()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
