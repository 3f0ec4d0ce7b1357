"""Real containers, of deploy/compose.yaml: what it promises, what harm can be done to them, four faults under load.

Without Docker this fails, unless QUIRE_NO_DOCKER=1 says that it is not to be run.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from quire import aio
from quire.errors import UnavailableError
from tests.chaos import docker as docker_
from tests.chaos.containers import CHAIN, NODES, ROOT, Containers
from tests.chaos.docker import PROJECT_LABEL, docker, remove_stale, run
from tests.chaos.nemesis import named
from tests.chaos.owned import Owner
from tests.chaos.run import inflict_all
from tests.chaos.waiting import until

pytestmark = pytest.mark.skipif(
    os.environ.get("QUIRE_NO_DOCKER") == "1", reason="QUIRE_NO_DOCKER=1: nothing was run in containers"
)

FAULTS: Final = ("leader killed", "leader isolated", "node disconnected", "node wiped")
KEY: Final = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Containers]:
    cluster = Containers()
    try:
        asyncio.run(cluster.start())
        yield cluster
    finally:
        asyncio.run(cluster.end())
    left = asyncio.run(_left(cluster.project))
    assert not left, left


async def _left(project: str) -> list[str]:
    of_it = ("--filter", f"label={PROJECT_LABEL}={project}")
    lists = (("ps", "-aq", *of_it), ("network", "ls", "-q", *of_it), ("volume", "ls", "-q", *of_it))
    return [
        line for listed in (*lists, ("images", "-q", docker_.image_of(project))) if (line := await docker(*listed))
    ]


# --- what the compose file promises -------------------------------------------------------------------------------


async def test_clients_are_told_the_addresses_of_the_side_that_they_are_on(cluster: Containers) -> None:
    async with aio.Admin(cluster.bootstrap[:1]) as admin, aio.Producer(cluster.bootstrap[:1]) as producer:
        await admin.create_topic("sides", partitions=3)
        # All three brokers lead one; so all their addresses are used.
        stored = [await producer.send("sides", b"from outside", partition=partition) for partition in range(3)]
        assert {(await each).durability.replicas for each in stored} == {3}
        listeners = {
            broker.broker_id: {each.name: (f"{each.host}:{each.port}", each.tls) for each in broker.listeners}
            for broker in (await admin.describe_cluster()).brokers
        }
    for number, address in enumerate(cluster.bootstrap, start=1):
        assert listeners[number]["host"] == (address, False)
        assert listeners[number]["inside"] == (f"n{number}:7400", True)
    inside = await cluster.exec("n1", "quire", "consume", "sides", "--until-end")
    assert inside.splitlines() == ["from outside"] * 3


async def test_keys_are_for_their_owners(cluster: Containers) -> None:
    seen = set()
    for name in ("authority", *NODES):
        volume = await docker("volume", "inspect", "-f", "{{.Mountpoint}}", f"{cluster.project}_{name}")
        seen |= {f"{name}: {key}" for key in check_files(Path(volume), owner=0 if name == "authority" else 10001)}
    assert seen == {"authority: ca.key", "authority: client.pem", *(f"{node}: {node}.pem" for node in NODES)}


def check_files(volume: Path, *, owner: int) -> set[str]:
    """Nobody else may read them. Gives the names of those that have a private key."""
    found = set()
    for path in (each for each in volume.rglob("*") if each.suffix in (".pem", ".key")):
        status = path.stat()
        assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o600, owner), path
        if KEY.search(path.read_bytes()):
            found.add(path.name)
    return found


async def test_nodes_run_as_nobody_and_write_only_where_they_may(cluster: Containers) -> None:
    assert await cluster.exec("n1", "id", "-u") == "10001"
    with pytest.raises(AssertionError, match="Read-only file system"):
        await cluster.exec("n1", "touch", "/opt/quire/here")
    assert "CapEff:\t0000000000000000" in await cluster.exec("n1", "cat", "/proc/1/status")


async def test_down_and_up_again_finds_everything(cluster: Containers) -> None:
    async with aio.Admin(cluster.bootstrap) as admin, aio.Producer(cluster.bootstrap) as producer:
        await admin.create_topic("kept")
        await (await producer.send("kept", b"still there"))
        before = await admin.describe_topic("kept")
    certificates = [await cluster.certificate(node) for node in NODES]
    await cluster.down()
    assert await docker("volume", "ls", "-q", "--filter", f"label={PROJECT_LABEL}={cluster.project}")
    await cluster.up()
    assert [await cluster.is_well(node) for node in NODES] == [True] * 3, "so it comes back when they are"
    assert [await cluster.certificate(node) for node in NODES] == certificates
    async with aio.Admin(cluster.bootstrap) as admin:
        assert (await admin.describe_topic("kept")).topic_id == before.topic_id
    async with aio.Consumer(cluster.bootstrap, "kept", start="earliest") as consumer:
        assert (await anext(aiter(consumer))).value == b"still there"


async def test_new_certificates_and_tls_for_the_host(cluster: Containers, tmp_path: Path) -> None:
    files: dict[str, Any] = {"tls_ca": tmp_path / "ca.pem", "tls_cert": tmp_path / "client.pem"}
    before = [await cluster.certificate(node) for node in NODES]
    await cluster.run_certs("quire-certificates", "renew")
    for path in files.values():
        path.write_text(await cluster.run_certs("cat", f"/authority/ca/{path.name}"))
    await cluster.up(COMPOSE_QUIRE_HOST_LISTENER="host")
    after = [await cluster.certificate(node) for node in NODES]
    assert not set(before) & set(after)
    async with aio.Admin(cluster.bootstrap, **files) as admin:
        brokers = (await admin.describe_cluster()).brokers
        assert all(each.tls for broker in brokers for each in broker.listeners if each.name == "host")
        await admin.create_topic("private", partitions=3)
    async with aio.Producer(cluster.bootstrap, **files) as producer:
        for partition in range(3):
            await (await producer.send("private", b"only for us", partition=partition))
    async with aio.Admin(cluster.bootstrap, connect_ms_max=3_000) as stranger:
        with pytest.raises(UnavailableError):
            await stranger.describe_cluster()
    await cluster.up()
    await cluster.ready()


# --- what harm can be done ----------------------------------------------------------------------------------------


async def test_packets_are_dropped_between_those_nodes_alone(cluster: Containers) -> None:
    await cluster.heal()
    await check_drops(cluster, set())
    await cluster.cut("n1", "n2")
    await check_drops(cluster, {("n1", "n2")})
    await cluster.heal()
    await cluster.bridge("n3")
    await check_drops(cluster, {("n1", "n2"), ("n2", "n1")})
    # What is started anew has another network namespace, and maybe another address.
    await cluster.kill("n1", "n2")
    await cluster.restart("n2", "n1")
    await check_drops(cluster, {("n1", "n2"), ("n2", "n1")})
    await cluster.heal()
    await cluster.isolate("n1")
    await check_drops(cluster, {("n1", "n2"), ("n2", "n1"), ("n1", "n3"), ("n3", "n1")})
    await cluster.heal()
    await check_drops(cluster, set())
    await cluster.ready()


async def check_drops(cluster: Containers, dropped: set[tuple[str, str]]) -> None:
    """Nodes say something to each other all the time: so both what passes and what is dropped is counted."""
    counting = {node: await Counting.start(cluster, node) for node in NODES}
    for source in NODES:
        for target in NODES:
            if source == target:
                continue
            counts = counting[target]

            async def is_seen(
                counts: Counting = counts, source: str = source, is_dropped: bool = (source, target) in dropped
            ) -> bool:
                return (await counts.of(source, CHAIN if is_dropped else "INPUT")) > 0

            await until(is_seen, f"from {source} to {target} not, with {sorted(dropped)} dropped".__str__)
            if (source, target) not in dropped:
                assert await counts.of(source, CHAIN) == 0
    for counts in counting.values():
        await counts.end()


class Counting:
    """Of what a node receives from the others, from now on: what came past the drops."""

    def __init__(self, pid: str, addresses: dict[str, str]) -> None:
        self._pid = pid
        self._addresses = addresses

    @classmethod
    async def start(cls, cluster: Containers, node: str) -> Counting:
        state = await cluster.inspect(node)
        others = [each for each in NODES if each != node]
        addresses = {each: await cluster.address(each) for each in others}
        counting = cls(str(state["State"]["Pid"]), addresses)
        for address in addresses.values():
            await counting._iptables("-A", "INPUT", "-s", address)
        await counting._iptables("-Z")
        return counting

    async def of(self, source: str, chain: str) -> int:
        """Packets."""
        rows = (await self._iptables("-L", chain, "-v", "-x", "-n")).splitlines()[2:]
        return sum(int(row.split()[0]) for row in rows if f" {self._addresses[source]} " in row)

    async def end(self) -> None:
        for address in self._addresses.values():
            await self._iptables("-D", "INPUT", "-s", address)

    async def _iptables(self, *arguments: str) -> str:
        return await run("nsenter", "-t", self._pid, "-n", "iptables", "-w", "10", *arguments)


async def test_only_controllers_are_paused(cluster: Containers) -> None:
    await cluster.pause_controllers("n1")
    states = await cluster.exec("n1", "bash", "-c", "cat /proc/[0-9]*/status | grep -E '^(Name|State)'")
    assert states.count("T (stopped)") == 1
    await cluster.resume_controllers("n1")
    await cluster.ready()


async def test_a_node_that_crashes_is_started_again(cluster: Containers) -> None:
    before = (await cluster.inspect("n2"))["State"]
    os.kill(before["Pid"], 9)

    async def is_there() -> bool:
        state = (await cluster.inspect("n2"))["State"]
        return bool(state["Running"] and state["Pid"] != before["Pid"])

    await until(is_there, lambda: cluster.logs_of("n2"))
    await cluster.ready()


# --- under load -----------------------------------------------------------------------------------------------------


async def test_faults_under_load(cluster: Containers, tmp_path: Path) -> None:
    faults = [named(name) for name in FAULTS]
    run = await inflict_all(cluster, tmp_path / "history.jsonl", faults, seed=11, s_max=900)
    assert run.failure is None, run.failure
    assert run.report is not None
    assert run.report.anomalies == 0, run.report.as_json()
    assert run.report.not_judged == 0
    assert run.counts() == dict.fromkeys(FAULTS, 1)
    assert run.comparisons == len(FAULTS) + 1


# --- what is left behind --------------------------------------------------------------------------------------------


async def test_what_a_killed_run_has_left_is_removed(cluster: Containers) -> None:
    code = "from tests.chaos.owned import Owner; print(Owner.own().project())"
    told = await run(str(ROOT / ".venv/bin/python"), "-c", code)
    of_the_dead, of_the_living = told.strip(), Owner.own().project()
    try:
        for project in (of_the_dead, of_the_living):
            label = f"{PROJECT_LABEL}={project}"
            await docker("volume", "create", "--label", label, f"{project}_n1")
            await docker("network", "create", "--label", label, f"{project}_default")
            await docker("create", "--label", label, "--name", f"{project}_n1_1", docker_.image_of(cluster.project))
        assert of_the_dead in await remove_stale()
        assert not await _left(of_the_dead)
        assert len(await _left(of_the_living)) == 3
        await cluster.ready()
    finally:
        await docker_.remove(of_the_dead)
        await docker_.remove(of_the_living)


def test_without_docker_it_says_so(tmp_path: Path) -> None:
    """Where nothing answers and nothing may be installed: nobody may install at a daemon elsewhere."""
    environ = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/nobody"}
    code = "source scripts/lib/docker.sh; ensure_docker"
    done = subprocess.run(["bash", "-c", code], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"No Docker: nothing answers at DOCKER_HOST=unix://{tmp_path}/nobody"
