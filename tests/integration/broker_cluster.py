"""Controllers and brokers as real processes on loopback, and calls to them.

async with broker_cluster(tmp_path) as cluster:
    broker = cluster.brokers[0]
    await told(broker.stub.Produce(…))
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from quire.v1 import broker_pb2, broker_pb2_grpc, controller_pb2, controller_pb2_grpc, metadata_pb2, topics_pb2
from tests.integration.controller_cluster import CLUSTER_ID, LOOPBACK, POLL_S, ControllerCluster, eventually, told
from tests.raftkill.processes import PR_SET_PDEATHSIG, REPOSITORY, free_ports

LAUNCHER: Final = f"""
import ctypes, os, runpy, signal, sys
ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG}, signal.SIGKILL)  # whatever ends the tests ends the brokers
if os.getppid() != int(sys.argv.pop(1)):
    sys.exit("the tests are gone")
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""
"""`python -m quire_broker`, or a module that runs it.

Not by `preexec_fn`: gRPC, which the tests use, does not like to be forked.
"""

LEASE_MS: Final = 3_000
END_S_MAX: Final = 30.0
MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024


class BrokerProcess:
    """One broker: its files, its process, and channels to it."""

    def __init__(self, cluster: BrokerCluster, number: int, *, client: int, peer: int, metrics: int) -> None:
        self.id = number
        self.node_id = f"b{number}"
        self.client_port, self.peer_port, self.metrics_port = client, peer, metrics
        self.data_dir = cluster.folder / self.node_id
        self.log = cluster.folder / f"{self.node_id}.log"
        self.runs = ["quire_broker"]
        """The module that is run, and what it is told before the flags."""
        self._cluster = cluster
        self._channel: grpc.aio.Channel | None = None
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.client_port}"

    # -- the process -----------------------------------------------------------------------------------------------

    def arguments(self, **changed: str | int | Path) -> list[str]:
        settings: dict[str, str | int | Path] = {
            "node-id": self.node_id,
            "node-cluster-id": CLUSTER_ID,
            "node-data-dir": self.data_dir,
            "broker-listeners": f"client={self.address}",
            "broker-peer-port": self.peer_port,
            "broker-controllers": ",".join(member.address for member in self._cluster.controllers),
            "metrics-broker-port": self.metrics_port,
            "broker-disk-free-bytes-min": 0,
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
        return self.process.wait(timeout=END_S_MAX)

    def die(self) -> None:
        self.kill()
        self.ended()

    def events(self) -> list[dict[str, Any]]:
        """What it has logged in all its lives."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return [json.loads(line) for line in lines if line.startswith("{")]

    def records_directory(self, topic: str, partition: int) -> Path | None:
        """Where its copy of a partition is."""
        found = sorted((self.data_dir / "broker" / "topics").glob(f"{topic}-*/{partition}/records"))
        return found[0] if found else None

    def stored(self, topic: str, partition: int) -> bytes:
        """All that is in its copy, segment after segment."""
        directory = self.records_directory(topic, partition)
        return b"" if directory is None else b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))

    def rss_bytes(self) -> int:
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    # -- calls -----------------------------------------------------------------------------------------------------

    @property
    def channel(self) -> grpc.aio.Channel:
        if self._channel is None:
            options = [
                ("grpc.initial_reconnect_backoff_ms", 50),
                ("grpc.max_reconnect_backoff_ms", 200),
                ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
                ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
            ]
            self._channel = grpc.aio.insecure_channel(self.address, options=options)
        return self._channel

    @property
    def stub(self) -> broker_pb2_grpc.BrokerServiceAsyncStub:
        return broker_pb2_grpc.BrokerServiceStub(self.channel)

    @property
    def admin(self) -> controller_pb2_grpc.ControllerAdminServiceAsyncStub:
        return controller_pb2_grpc.ControllerAdminServiceStub(self.channel)

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


class BrokerCluster:
    def __init__(self, folder: Path, *, brokers: int, controllers: int, lease_ms: int, **settings: str | int) -> None:
        """Settings are flags of the brokers: `node_stop_ms_max=500`."""
        self.folder = folder
        self.settings = {name.replace("_", "-"): value for name, value in settings.items()}
        self.controllers = ControllerCluster(folder, size=controllers, controller_lease_ms=lease_ms)
        ports = iter(free_ports(3 * brokers))
        self.brokers = [
            BrokerProcess(self, number, client=next(ports), peer=next(ports), metrics=next(ports))
            for number in range(1, brokers + 1)
        ]

    @property
    def addresses(self) -> list[str]:
        return [broker.address for broker in self.brokers]

    @property
    def running(self) -> list[BrokerProcess]:
        return [each for each in self.brokers if each.process is not None and each.process.poll() is None]

    async def start(self) -> None:
        self.controllers.start_all()
        for broker in self.brokers:
            broker.start()
        await self.controllers.ready()
        for broker in self.brokers:
            await broker.ready()

    async def create_topic(
        self, name: str, *, partitions: int = 1, replication_factor: int = 0, **config: Any
    ) -> bytes:
        """Make a topic, and wait until each of its partitions is led and its leader knows it. Its id."""
        made = await told(
            self.running[0].admin.CreateTopic(
                controller_pb2.CreateTopicRequest(
                    name=name,
                    partition_count=partitions,
                    replication_factor=replication_factor,
                    config=metadata_pb2.TopicConfig(**config),
                ),
                timeout=20,
            )
        )
        for partition in range(partitions):
            await self.leader_of(name, partition)
        return made.topic_id

    async def leader_of(self, name: str, partition: int = 0) -> BrokerProcess:
        """The broker that leads a partition, once it serves it."""
        found: list[BrokerProcess] = []

        async def is_led() -> bool:
            query = broker_pb2.OffsetQuery(
                topic=topics_pb2.TopicRef(name=name), partition=partition, place=broker_pb2.OFFSET_PLACE_LATEST
            )
            for broker in self.running:
                try:
                    answer = await broker.stub.ListOffsets(broker_pb2.ListOffsetsRequest(queries=[query]), timeout=5)
                except grpc.aio.AioRpcError:
                    continue
                if not answer.offsets[0].HasField("refusal"):
                    found.append(broker)
                    return True
            return False

        await eventually(is_led, lambda: f"nobody leads {name}/{partition}:\n" + "\n".join(map(tail, self.brokers)))
        return found[-1]

    async def restart(self, broker: BrokerProcess) -> None:
        """Start one that has ended, and wait until it is well."""
        await broker.hang_up()
        broker.start()
        await broker.ready()

    async def isr(self, name: str, partition: int = 0) -> list[int]:
        """Who is in sync, as a broker that answers has heard; nobody, if none does."""
        request = controller_pb2.DescribeTopicRequest(topic=topics_pb2.TopicRef(name=name))
        for broker in self.running:
            try:
                answer = await broker.admin.DescribeTopic(request, timeout=5)
            except grpc.aio.AioRpcError:
                continue
            return list(answer.partitions[partition].isr)
        return []

    async def hang_up(self) -> None:
        for broker in self.brokers:
            await broker.hang_up()
        await self.controllers.hang_up()

    def end(self) -> None:
        for broker in self.brokers:
            if broker.process is not None:
                broker.process.kill()
                broker.process.wait()
        self.controllers.end()


@asynccontextmanager
async def broker_cluster(
    folder: Path, *, brokers: int = 1, controllers: int = 1, lease_ms: int = LEASE_MS, **settings: str | int
) -> AsyncIterator[BrokerCluster]:
    """Processes that are all healthy, and gone in the end whatever happens."""
    cluster = BrokerCluster(folder, brokers=brokers, controllers=controllers, lease_ms=lease_ms, **settings)
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.hang_up()
        cluster.end()


def tail(broker: BrokerProcess, lines: int = 15) -> str:
    text = broker.log.read_text(errors="replace") if broker.log.exists() else "(no log)"
    return f"--- {broker.node_id}\n" + "\n".join(text.splitlines()[-lines:])


__all__ = ["POLL_S", "BrokerCluster", "BrokerProcess", "broker_cluster", "tail"]
