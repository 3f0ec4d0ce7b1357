"""The Node example against real processes: another language, another gRPC library, nothing but the contract."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import mmh3
import pytest

from tests.integration.broker_cluster import BrokerCluster, broker_cluster
from tests.raftkill.processes import REPOSITORY

EXAMPLE: Final = REPOSITORY / "examples" / "node"
MANIFESTS: Final = ("package.json", "package-lock.json")
CACHE: Final = REPOSITORY / ".cache" / "node"
"""Installed packages, by the manifests that ask for them."""
RUN_S_MAX: Final = 60
INSTALL_S_MAX: Final = 300
MISSING: Final = "the Node example needs Node.js 18 or newer with npm; on Debian: apt-get install nodejs npm"


def packages() -> Path:
    """The example's dependencies, from the registry or from an earlier run."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.fail(MISSING)
    manifests = [EXAMPLE / name for name in MANIFESTS]
    wanted = CACHE / sha256(b"".join(path.read_bytes() for path in manifests)).hexdigest()[:16]
    if not wanted.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="install-", dir=CACHE) as temporary:
            folder = Path(temporary) / "packages"
            folder.mkdir()
            for path in manifests:
                shutil.copy(path, folder)
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S_MAX)
            assert done.returncode == 0, f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}"
            if not wanted.exists():  # another run may have been quicker
                folder.rename(wanted)
    return wanted / "node_modules"


class Example:
    """A copy of the example, as a user has it, that talks to a cluster."""

    def __init__(self, folder: Path, cluster: BrokerCluster) -> None:
        self._folder = folder / "examples" / "node"
        self._cluster = cluster
        shutil.copytree(EXAMPLE, self._folder, ignore=shutil.ignore_patterns("node_modules"))
        shutil.copytree(REPOSITORY / "proto", folder / "proto")
        (self._folder / "node_modules").symlink_to(packages())

    def command(self, program: str, *arguments: str) -> list[str]:
        return ["node", f"{program}.js", *arguments, "--broker", ",".join(self._cluster.addresses)]

    async def run(self, program: str, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(
            subprocess.run,
            self.command(program, *arguments),
            cwd=self._folder,
            input=given,
            capture_output=True,
            text=True,
            timeout=RUN_S_MAX,
        )

    async def lines(self, program: str, *arguments: str, given: str = "") -> list[Any]:
        """What a program that succeeds prints, which is JSON."""
        done = await self.run(program, *arguments, given=given)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    @contextmanager
    def started(self, program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            self.command(program, *arguments),
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                yield process
            finally:
                process.kill()


async def line_of(stream: Any) -> str:
    async with asyncio.timeout(RUN_S_MAX):
        line: str = await asyncio.to_thread(stream.readline)
    assert line, "the program ended"
    return line


async def test_records_are_created_produced_and_consumed_by_node(tmp_path: Path) -> None:
    async with broker_cluster(tmp_path) as cluster:
        example = Example(tmp_path / "client", cluster)
        done = await example.run("create-topic", "orders", "--partitions", "3")
        assert (done.returncode, done.stdout) == (0, "created orders with 3 partition(s)\n"), done.stderr

        # More than the subscription's credit, so that it ends unless credit is given back.
        sent = [(f"customer-{n % 50}", f"{n}:{'x' * 200}") for n in range(10_000)]
        given = "".join(f"{key}\t{value}\n" for key, value in sent)
        stored = await example.lines("produce", "orders", given=given)
        assert sum(each["endOffset"] - each["baseOffset"] for each in stored) == len(sent)
        assert {(each["replicas"], each["fsynced"]) for each in stored} == {(1, True)}

        found = await example.lines("consume", "orders", "--from", "earliest", "--max", str(len(sent)))
        expected: dict[int, list[tuple[str, str]]] = {0: [], 1: [], 2: []}
        for key, value in sent:
            expected[mmh3.hash(key.encode(), 0, False) % 3].append((key, value))
        for partition, records in expected.items():
            here = [each for each in found if each["partition"] == partition]
            assert [each["offset"] for each in here] == list(range(len(records)))
            assert [(each["key"], each["value"]) for each in here] == records
        assert all(each["headers"] == [["source", "node"]] and each["timestampMs"] > 0 for each in found)

        (null,) = await example.lines("produce", "orders", given="no key\n")
        found = await example.lines("consume", "orders", "--from", "earliest", "--max", str(len(sent) + 1))
        (last,) = (each for each in found if each["key"] is None)
        assert (last["partition"], last["offset"], last["value"]) == (null["partition"], null["baseOffset"], "no key")


async def test_node_reads_on_where_it_was_when_the_broker_comes_back(tmp_path: Path) -> None:
    async with broker_cluster(tmp_path) as cluster:
        example = Example(tmp_path / "client", cluster)
        await cluster.create_topic("orders", partitions=2)
        await example.lines("produce", "orders", given="before anyone read\n")
        broker = cluster.brokers[0]
        with example.started("consume", "orders", "--max", "2") as consumer:
            assert await line_of(consumer.stderr) == "reading orders: 2 partition(s)\n"
            await example.lines("produce", "orders", given="first\n")
            assert json.loads(await line_of(consumer.stdout))["value"] == "first"
            broker.die()
            await broker.hang_up()
            broker.start()
            await broker.ready()
            await example.lines("produce", "orders", given="second\n")
            assert json.loads(await line_of(consumer.stdout))["value"] == "second"
            assert await asyncio.to_thread(consumer.wait, RUN_S_MAX) == 0


async def test_node_names_the_reason_of_an_error(tmp_path: Path) -> None:
    async with broker_cluster(tmp_path) as cluster:
        example = Example(tmp_path / "client", cluster)
        await cluster.create_topic("orders")
        for reason, program, *arguments in (
            ("TOPIC_ALREADY_EXISTS", "create-topic", "orders"),
            ("INVALID_TOPIC_NAME", "create-topic", "../orders"),
            ("INVALID_ARGUMENT", "create-topic", "many", "--partitions", "1000000"),
            ("UNKNOWN_TOPIC", "produce", "nothing"),
            ("UNKNOWN_TOPIC", "consume", "nothing"),
        ):
            done = await example.run(program, *arguments)
            assert (done.returncode, done.stderr.partition(":")[0]) == (1, reason), done.stderr
        done = await example.run("produce", "orders", given=f"{'x' * 2 * 1024 * 1024}\n")
        assert (done.returncode, done.stderr.partition(":")[0]) == (1, "BATCH_TOO_LARGE"), done.stderr
        cluster.brokers[0].die()
        # Nobody answers, so nobody knows: that is not called a failure.
        done = await example.run("create-topic", "late")
        assert (done.returncode, done.stderr.partition(":")[0]) == (1, "OUTCOME_UNKNOWN"), done.stderr
