"""Partitions move to other brokers and a broker is drained, under load: nothing is lost, doubled or left behind."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from signal import SIGCONT, SIGINT, SIGSTOP, SIGTERM

import pytest

from quire import aio
from quire.errors import (
    BrokerNotEmptyError,
    InvalidArgumentError,
    NoReassignmentInProgressError,
    NotEnoughBrokersError,
    ReassignmentInProgressError,
    UnknownBrokerError,
    UnknownPartitionError,
    UnknownTopicError,
)
from quire_broker.log.place import GONE, META
from tests.faults.load import TOPIC, Load, check, load
from tests.integration.broker_cluster import BrokerCluster, BrokerProcess, broker_cluster
from tests.integration.controller_cluster import WAIT_S_MAX, eventually
from tests.integration.up_processes import QUIRE, environment

PARTITIONS = 3
LEASE_MS = 1_600
LONG_LEASE_MS = 10_000
"""A broker that stands still counts for so long as one that can take replicas."""


@asynccontextmanager
async def under_load(
    folder: Path, *, brokers: int = 4, lease_ms: int = LEASE_MS
) -> AsyncIterator[tuple[BrokerCluster, Load, aio.Admin]]:
    async with broker_cluster(folder, brokers=brokers, lease_ms=lease_ms, broker_heartbeat_ms=200) as cluster:
        await cluster.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3, min_isr=2)
        async with (
            aio.Admin(cluster.addresses) as admin,
            load(cluster.addresses, partitions=PARTITIONS) as found,
        ):
            await found.more()
            yield cluster, found, admin
            await found.more()
        await check(cluster, found, partitions=PARTITIONS)


async def test_partition_moves_to_other_brokers_and_back(tmp_path: Path) -> None:
    async with under_load(tmp_path) as (cluster, found, admin):
        before = (await admin.describe_topic(TOPIC)).partitions[0].replicas
        spare = next(each for each in cluster.brokers if each.id not in before)
        target = (spare.id, *before[1:])
        gone = cluster.brokers[before[0] - 1]
        await admin.move_partition(TOPIC, 0, target)
        await found.more()
        await settled(admin)
        assert (await admin.describe_topic(TOPIC)).partitions[0].replicas == target
        await given_up(gone, 0)
        assert await admin.list_moves() == []
        await admin.move_partition(TOPIC, 0, before)  # its old files are still there, under another name
        await settled(admin)
        assert (await admin.describe_topic(TOPIC)).partitions[0].replicas == before
        await given_up(spare, 0)


async def test_move_that_cannot_end_is_shown_and_turned_back(tmp_path: Path) -> None:
    async with under_load(tmp_path, lease_ms=LONG_LEASE_MS) as (cluster, found, admin):
        before = (await admin.describe_topic(TOPIC)).partitions[0].replicas
        spare = next(each for each in cluster.brokers if each.id not in before)
        target = (*before[1:], spare.id)
        spare.kill(SIGSTOP)
        try:
            async with aio.Admin(all_but(cluster, spare)) as answered:
                await answered.move_partition(TOPIC, 0, target)
            with pytest.raises(ReassignmentInProgressError):
                await admin.move_partition(TOPIC, 0, before)
            [move] = await admin.list_moves()
            assert (move.topic, move.partition, move.original, move.target) == (TOPIC, 0, before, target)
            assert not move.cancelled
            await found.more()
            await admin.cancel_move(TOPIC, 0)
            await settled(admin)
            assert (await admin.describe_topic(TOPIC)).partitions[0].replicas == before
            with pytest.raises(NoReassignmentInProgressError):
                await admin.cancel_move(TOPIC, 0)
        finally:
            spare.kill(SIGCONT)


async def test_broker_is_drained_and_leaves(tmp_path: Path) -> None:
    async with under_load(tmp_path) as (cluster, found, admin):
        broker = cluster.brokers[0]
        partitions = (await admin.describe_topic(TOPIC)).partitions
        held = [each.partition for each in partitions if broker.id in each.replicas]
        assert held
        with pytest.raises(BrokerNotEmptyError):
            await admin.unregister_broker(broker.id)
        done = await quire(cluster, "cluster", "drain", broker.node_id)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1].startswith("b1 (broker 1) has nothing any more: stop it, and `quire ")
        await found.more()
        for partition in held:
            await given_up(broker, partition)
        assert all(broker.id not in each.replicas for each in (await admin.describe_topic(TOPIC)).partitions)
        running = await quire(cluster, "cluster", "unregister", broker.node_id)
        assert (running.returncode, running.stdout) == (1, "")
        assert "is running, and would register again" in running.stderr
        broker.kill(SIGTERM)
        assert broker.ended() == 0

        async def is_fenced() -> bool:
            described = (await admin.describe_cluster()).brokers[0]
            return described.broker_id == broker.id and described.fenced

        await eventually(is_fenced, lambda: "it is not shut out")
        left = await quire(cluster, "cluster", "unregister", broker.node_id)
        assert (left.stdout, left.returncode) == ("b1 (broker 1) is forgotten\n", 0)
        assert [each.broker_id for each in (await admin.describe_cluster()).brokers] == [2, 3, 4]
        with pytest.raises(UnknownBrokerError):
            await admin.drain_broker(broker.id)


async def test_drain_that_is_interrupted_goes_on_and_can_be_undone(tmp_path: Path) -> None:
    async with under_load(tmp_path, lease_ms=LONG_LEASE_MS) as (cluster, found, _):
        await interrupt_a_drain(cluster, found)


async def interrupt_a_drain(cluster: BrokerCluster, found: Load) -> None:
    async with aio.Admin(cluster.addresses) as admin:
        replicas = (await admin.describe_topic(TOPIC)).partitions[0].replicas
        drained = cluster.brokers[replicas[0] - 1]
        [spare] = [each for each in cluster.brokers if each.id not in replicas]
    spare.kill(SIGSTOP)  # partition 0 can go nowhere else, so the drain cannot end before it goes on
    async with aio.Admin(all_but(cluster, spare)) as admin:
        await admin.drain_broker(drained.id)

        async def is_moving() -> bool:
            return (await admin.describe_cluster()).reassigning > 0

        await eventually(is_moving, lambda: "nothing is moved")
        bootstrap = ",".join(all_but(cluster, spare))
        watched = start(cluster, "cluster", "drain", drained.node_id, "--json", "-b", bootstrap)
        try:
            first = json.loads(await line(watched))
            assert (first["broker_id"], first["node_id"], first["done"]) == (drained.id, drained.node_id, False)
            watched.send_signal(SIGINT)
            _, said = await asyncio.to_thread(watched.communicate, timeout=WAIT_S_MAX)
            assert watched.returncode == 130
            assert "is drained further; `quire cluster drain " in said
        finally:
            watched.kill()
            watched.wait()
        described = {each.broker_id: each.drain for each in (await admin.describe_cluster()).brokers}
        assert described == {**dict.fromkeys(described), drained.id: "replicas"}
        undone = await quire(cluster, "cluster", "drain", drained.node_id, "--undo", "-b", bootstrap)
        assert "works as any other again; " in undone.stdout
        assert all(each.drain is None for each in (await admin.describe_cluster()).brokers)
        await found.more()
        spare.kill(SIGCONT)  # what has begun goes on: in the end each partition is to have three replicas again


async def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    async with under_load(tmp_path, brokers=3) as (cluster, _, admin):
        with pytest.raises(NotEnoughBrokersError, match="no broker could take 3 of the replicas of broker 1"):
            await admin.drain_broker(1)
        with pytest.raises(UnknownBrokerError):
            await admin.drain_broker(9)
        with pytest.raises(UnknownBrokerError):
            await admin.undrain(9)
        with pytest.raises(UnknownBrokerError):
            await admin.move_partition(TOPIC, 0, [1, 2, 9])
        with pytest.raises(InvalidArgumentError, match="3 replicas a partition, and the target 2"):
            await admin.move_partition(TOPIC, 0, [1, 2])
        with pytest.raises(InvalidArgumentError):
            await admin.move_partition(TOPIC, 0, [1, 2, 2])
        with pytest.raises(UnknownPartitionError):
            await admin.move_partition(TOPIC, 99, [1, 2, 3])
        with pytest.raises(UnknownTopicError):
            await admin.move_partition("nosuch", 0, [1, 2, 3])
        for arguments, expected in (
            (("cluster", "drain", "b1"), "NOT_ENOUGH_BROKERS"),
            (("topic", "move", TOPIC, 0, "-r", "b1,b2,b9"), "there is no broker 'b9'; there are b1 (1), b2 (2), "),
        ):
            done = await quire(cluster, *arguments)
            assert done.returncode == 1, done
            assert done.stdout == ""
            assert expected in done.stderr, done.stderr
        # A broker can be rid of what it leads all the same, and gets it back.
        done = await quire(cluster, "cluster", "drain", "b1", "--leaders")
        assert done.stdout.endswith("leads nothing any more; `quire cluster drain b1 --undo` lets it work again\n")
        await admin.undrain(1)
        assert await admin.elect_preferred(TOPIC) == 1

        async def is_led() -> bool:
            return all(each.leader == each.replicas[0] for each in (await admin.describe_topic(TOPIC)).partitions)

        await eventually(is_led, lambda: "the preferred leaders do not lead")
        assert await admin.elect_preferred() == 0


async def test_moved_partition_is_shown_on_the_command_line(tmp_path: Path) -> None:
    async with under_load(tmp_path) as (cluster, _, admin):
        before = (await admin.describe_topic(TOPIC)).partitions[0].replicas
        spare = next(each.id for each in cluster.brokers if each.id not in before)
        target = (spare, *before[1:])
        wanted = ",".join(map(str, target))
        done = await quire(cluster, "topic", "move", TOPIC, 0, "--replicas", wanted)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == f"{TOPIC}/0 is at {' '.join(map(str, target))}"
        again = await quire(cluster, "topic", "move", TOPIC, 0, "--replicas", wanted, "--json")
        last = json.loads(again.stdout.splitlines()[-1])
        assert (last["done"], last["replicas"], last["target"]) == (True, list(target), None)


# --- steps ---------------------------------------------------------------------------------------------------------


def all_but(cluster: BrokerCluster, broker: BrokerProcess) -> list[str]:
    """Where to ask while one stands still: its silence would take its time."""
    return [each.address for each in cluster.brokers if each is not broker]


async def settled(admin: aio.Admin) -> None:
    """Until no partition is on its way. On a busy machine followers may be slow enough to leave the ISR meanwhile."""

    seen = ""

    async def is_so() -> bool:
        nonlocal seen
        cluster, topic = await admin.describe_cluster(), await admin.describe_topic(TOPIC)
        seen = f"{cluster.brokers}\n{topic.partitions}"
        return not cluster.reassigning and not cluster.moving

    await eventually(is_so, lambda: f"partitions are still being moved: {seen}")


async def given_up(broker: BrokerProcess, partition: int) -> None:
    """Until its folder of the partition is marked as gone: it is removed some time later."""
    records = broker.records_directory(TOPIC, partition)
    assert records is not None

    async def is_so() -> bool:
        return (records.parent / GONE).exists() and not (records.parent / META).exists()

    await eventually(
        is_so, lambda: f"{broker.node_id} keeps partition {partition}: {sorted(records.parent.iterdir())}"
    )


def start(cluster: BrokerCluster, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [QUIRE, *map(str, arguments)],
        env={**environment(), "QUIRE_BOOTSTRAP": ",".join(cluster.addresses)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


async def quire(cluster: BrokerCluster, *arguments: object) -> subprocess.CompletedProcess[str]:
    process = start(cluster, *arguments)
    try:
        stdout, stderr = await asyncio.to_thread(process.communicate, timeout=2 * WAIT_S_MAX)
    finally:
        process.kill()
        process.wait()
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


async def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return await asyncio.to_thread(process.stdout.readline)
