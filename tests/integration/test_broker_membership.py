"""Brokers' memberships as real processes, with real controllers that are killed, stopped and gone."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from quire.errors import QuireError
from quire.link import certs
from quire.process.exits import Exit
from quire.v1 import controller_pb2, metadata_pb2
from tests.integration.controller_cluster import (
    CLUSTER_ID,
    ControllerCluster,
    Member,
    controller_cluster,
    eventually,
    tail,
    told,
)
from tests.raftkill.processes import REPOSITORY

LEASE_S = 2.0
SETTINGS: dict[str, int] = {"controller_lease_ms": int(LEASE_S * 1000), "broker_heartbeat_ms": 250}
"""Of controllers and brokers alike."""
SCRIPT = Path(__file__).with_name("broker_member.py")


class Broker:
    """One process, and what it has written."""

    def __init__(self, cluster: ControllerCluster, number: int, *, name: str = "") -> None:
        self.id = number
        self.name = name or f"b{number}"
        self._cluster = cluster
        self.data_dir = cluster.folder / self.name
        self._events = cluster.folder / f"{self.name}.events"
        self.log = cluster.folder / f"{self.name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, **changed: str | int | Path) -> None:
        settings: dict[str, str | int | Path] = {
            "node-id": self.name,
            "node-cluster-id": CLUSTER_ID,
            "node-data-dir": self.data_dir,
            "broker-id": self.id,
            "broker-controllers": ",".join(member.address for member in self._cluster),
            "broker-listeners": f"client=127.0.0.1:{7000 + self.id}",
            **{name.replace("_", "-"): value for name, value in (SETTINGS | changed).items()},
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, str(SCRIPT), str(os.getpid()), str(self._events)),
                    *(f"--{name}={value}" for name, value in settings.items()),
                ],
                cwd=REPOSITORY,
                env={name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def ended(self) -> int:
        assert self.process is not None
        return await asyncio.to_thread(self.process.wait, 30)

    def events(self, *what: str) -> list[dict[str, Any]]:
        lines = self._events.read_text().splitlines() if self._events.exists() else []
        found = [json.loads(line) for line in lines if line.endswith("}")]
        return [event for event in found if not what or event["what"] in what]

    def seen(self, *what: str) -> list[str]:
        return [event["what"] for event in self.events(*what)]

    async def until(self, condition: Callable[[], bool]) -> None:
        async def holds() -> bool:
            return condition()

        await eventually(holds, self._story)

    async def leading(self, times: int = 1) -> None:
        """Until it has gained a lease so many times, and not lost the last one."""

        def leads() -> bool:
            told, looked = self.seen("gained", "lost"), self.seen("may lead")
            return min(told.count("gained"), looked.count("may lead")) >= times and told[-1] == "gained"

        await self.until(leads)

    def _story(self) -> str:
        log = self.log.read_text(errors="replace")[-3000:] if self.log.exists() else ""
        return "\n".join([*map(json.dumps, self.events()[-30:]), log, *map(tail, self._cluster)])


@asynccontextmanager
async def cluster_of(folder: Path, *numbers: int) -> AsyncIterator[tuple[ControllerCluster, list[Broker]]]:
    """Three controllers and brokers that hold leases."""
    brokers: list[Broker] = []
    async with controller_cluster(folder, **SETTINGS) as cluster:
        try:
            for number in numbers:
                brokers.append(Broker(cluster, number))
                brokers[-1].start()
            for broker in brokers:
                await broker.leading()
            yield cluster, brokers
        finally:
            for broker in brokers:
                end(broker)


def end(broker: Broker) -> None:
    if broker.process is not None:
        broker.process.kill()
        broker.process.wait()


async def described(cluster: ControllerCluster, number: int) -> metadata_pb2.Broker | None:
    """What the controllers say of a broker, whichever of them answers."""
    for member in cluster.running:
        try:
            answer = await told(
                member.admin.DescribeCluster(controller_pb2.DescribeClusterRequest(stale_ok=False), timeout=2)
            )
        except QuireError:
            continue
        return next((each.broker for each in answer.brokers if each.broker.broker_id == number), None)
    return None


async def until_fenced(cluster: ControllerCluster, number: int, *, fenced: bool = True) -> metadata_pb2.Broker:
    found: metadata_pb2.Broker | None = None

    async def is_so() -> bool:
        nonlocal found
        found = await described(cluster, number)
        return found is not None and found.fenced is fenced

    await eventually(is_so, lambda: f"broker {number}: {found}")
    assert found is not None
    return found


# --- one broker ----------------------------------------------------------------------------------------------------


async def test_registers_leaves_and_comes_back_as_itself(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 1) as (cluster, [broker]):
        first = await until_fenced(cluster, 1, fenced=False)
        assert (first.node_id, [(each.name, each.port) for each in first.listeners]) == ("b1", [("client", 7001)])
        assert first.lease_ms == SETTINGS["controller_lease_ms"]
        assert first.incarnation_id.hex() == broker.events("started")[0]["incarnation"]

        broker.signal(signal.SIGTERM)
        assert await broker.ended() == Exit.OK
        left = await described(cluster, 1)
        assert left is not None
        assert left.fenced, "at once: nobody waits for its lease to end"

        broker.start()
        await broker.leading(2)
        again = await until_fenced(cluster, 1, fenced=False)
        assert again.incarnation_id == first.incarnation_id
        assert again.broker_epoch > first.broker_epoch

        broker.signal(signal.SIGKILL)
        await broker.ended()
        shutil.rmtree(broker.data_dir)
        broker.start()
        await broker.leading(3)
        wiped = await until_fenced(cluster, 1, fenced=False)
        assert wiped.incarnation_id != first.incarnation_id
        await broker.until(lambda: len(broker.events("producer id")) == 3)
        assert len({event["number"] for event in broker.events("producer id")}) == 3


async def test_damaged_id_keeps_it_from_starting(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 1) as (_, [broker]):
        broker.signal(signal.SIGTERM)
        await broker.ended()
        path = broker.data_dir / "broker" / "incarnation"
        content = bytearray(path.read_bytes())
        content[-5] ^= 1
        path.write_bytes(content)
        broker.start()
        assert await broker.ended() == Exit.FAILED
        assert "move the broker's directory away and start it again" in broker.log.read_text()
        assert path.read_bytes() == content


async def test_stopped_past_its_lease_it_leads_no_more_when_it_wakes(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 1, 2) as (cluster, [broker, other]):
        before = await until_fenced(cluster, 1, fenced=False)
        for times in (2, 3):
            broker.signal(signal.SIGSTOP)
            fenced = await until_fenced(cluster, 1)
            assert fenced.broker_epoch >= before.broker_epoch
            broker.signal(signal.SIGCONT)
            await broker.leading(times)
            resumed = broker.events("resumed")[-1]
            assert not resumed["may_lead"], "the first look at the clock says so, before anything was heard"
            await until_fenced(cluster, 1, fenced=False)
        assert broker.seen("registered", "may lead", "may not lead") == [
            *("registered", "may lead", "may not lead"),
            *("registered", "may lead", "may not lead"),
            *("registered", "may lead"),
        ]
        epochs = [event["epoch"] for event in broker.events("registered")]
        assert epochs == sorted(set(epochs))
        assert other.seen("gained", "lost") == ["gained"]


async def test_two_with_one_number_are_told_apart(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 1) as (cluster, [broker]):
        second = Broker(cluster, 1, name="twin")
        second.start()
        try:
            await second.leading()
            assert await broker.ended() == Exit.FAILED
        finally:
            end(second)
        assert "another process" in broker.log.read_text()
        assert "no two may have the same number" in broker.log.read_text()
        assert broker.seen("gained", "lost", "ended") == ["gained", "lost", "ended"]


# --- the controllers -----------------------------------------------------------------------------------------------


async def test_leases_outlive_controllers_that_die_or_stand_still(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 1, 2) as (cluster, brokers):
        for how in (signal.SIGKILL, signal.SIGSTOP, signal.SIGKILL, signal.SIGSTOP):
            leader = await cluster.leader()
            others = cluster.others(leader)
            leader.kill(how)
            await until_led_by(others)
            await moved_on(cluster, others)
            if how is signal.SIGKILL:
                leader.ended()
                leader.start()
            else:
                leader.kill(signal.SIGCONT)
            await cluster.ready()
        for broker in brokers:
            assert broker.seen("registered", "gained", "lost") == ["registered", "gained"]


async def until_led_by(members: list[Member]) -> None:
    async def is_led() -> bool:
        try:
            leaders = {(await member.quorum()).leader_id for member in members}
        except QuireError:
            return False
        return len(leaders) == 1 and leaders <= {member.id for member in members}

    await eventually(is_led, lambda: "\n".join(map(tail, members)))


async def moved_on(cluster: ControllerCluster, members: list[Member]) -> None:
    """Until the new leader would have fenced whoever did not find it: it has given everyone a lease and 10 % more."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + 1.3 * LEASE_S

    async def is_later() -> bool:
        answer = await told(
            members[0].admin.DescribeCluster(controller_pb2.DescribeClusterRequest(stale_ok=True), timeout=5)
        )
        assert not any(each.broker.fenced for each in answer.brokers), answer
        return loop.time() > end_s

    await eventually(is_later, lambda: "")


async def test_without_controllers_the_lease_ends_and_with_them_it_comes_back(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 1) as (cluster, [broker]):
        for member in cluster:
            member.kill()
        for member in cluster:
            member.ended()
        await broker.until(lambda: "lost" in broker.seen())
        cluster.start_all()
        await cluster.ready()
        await broker.leading(2)
        await until_fenced(cluster, 1, fenced=False)
        assert broker.process is not None
        assert broker.process.poll() is None


async def test_with_certificates(tmp_path: Path) -> None:
    now = datetime.datetime.now(datetime.UTC)
    nodes = [certs.NodeSpec(name, ("127.0.0.1",)) for name in ("c1", "c2", "c3", "b1", "b2")]
    folder = tmp_path / "certs"
    certs.init(folder, cluster_id=CLUSTER_ID, nodes=nodes, days=2, now=now)
    cluster = ControllerCluster(tmp_path, tls_ca_file=str(folder / "ca.pem"), **SETTINGS)
    broker, liar = Broker(cluster, 1), Broker(cluster, 2)
    try:
        for member in cluster:
            member.start(tls_node_file=folder / f"{member.id}.pem")
        await cluster.ready()
        broker.start(tls_ca_file=folder / "ca.pem", tls_node_file=folder / "b1.pem")
        await broker.leading()
        liar.start(tls_ca_file=folder / "ca.pem", tls_node_file=folder / "b1.pem")
        assert await liar.ended() == Exit.FAILED
        assert "the certificate is of node 'b1', not 'b2'" in liar.log.read_text()
        assert broker.seen("gained", "lost") == ["gained"]
    finally:
        end(broker)
        end(liar)
        await cluster.hang_up()
        cluster.end()
