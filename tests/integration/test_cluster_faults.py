"""Three brokers and three controllers under load, acks=all, idempotent, min_isr 2: each fault, and nothing is lost.

After each: no acknowledged record lost, doubled or out of order, replicas byte for byte the same, and nobody had to
do anything by hand.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import count
from pathlib import Path

from quire import aio
from quire.errors import NotEnoughReplicasError, OutcomeUnknownError, QuireError
from quire.verify import Type
from tests.faults.load import TOPIC, Load, check, load
from tests.integration.broker_cluster import BrokerCluster, BrokerProcess, broker_cluster
from tests.integration.controller_cluster import eventually

PARTITIONS = 3
LEASE_MS = 1_600


@asynccontextmanager
async def under_load(
    folder: Path, *, controllers: int = 1, min_isr: int = 2
) -> AsyncIterator[tuple[BrokerCluster, Load]]:
    async with broker_cluster(
        folder, brokers=3, controllers=controllers, lease_ms=LEASE_MS, broker_heartbeat_ms=200
    ) as cluster:
        await cluster.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3, min_isr=min_isr)
        async with load(cluster.addresses, partitions=PARTITIONS) as found:
            await found.more()
            yield cluster, found
            await found.more()
        await check(cluster, found, partitions=PARTITIONS)


async def test_leader_killed(tmp_path: Path) -> None:
    async with under_load(tmp_path) as (cluster, found):
        for _ in range(2):
            leader = await cluster.leader_of(TOPIC)
            leader.die()
            await found.more()
            await cluster.restart(leader)


async def test_follower_killed(tmp_path: Path) -> None:
    async with under_load(tmp_path) as (cluster, found):
        leader = await cluster.leader_of(TOPIC)
        follower = next(each for each in cluster.brokers if each is not leader)
        follower.die()
        await found.more()
        await cluster.restart(follower)


async def test_all_brokers_killed(tmp_path: Path) -> None:
    async with under_load(tmp_path) as (cluster, found):
        for broker in cluster.brokers:
            broker.kill()
        for broker in cluster.brokers:
            broker.ended()
        for broker in cluster.brokers:
            await broker.hang_up()
            broker.start()
        await found.more()


async def test_leader_stopped_past_its_lease_and_resumed(tmp_path: Path) -> None:
    async with under_load(tmp_path) as (cluster, found):
        leader = await cluster.leader_of(TOPIC)
        leader.kill(signal.SIGSTOP)
        others = [each for each in cluster.brokers if each is not leader]
        await led_by(cluster, others)
        await found.more()
        leader.kill(signal.SIGCONT)
        await found.more()
        await leader.ready()


async def test_majority_of_controllers_lost_and_regained(tmp_path: Path) -> None:
    async with under_load(tmp_path, controllers=3) as (cluster, found):
        members = list(cluster.controllers)
        for member in members[:2]:
            member.die()
        await nobody_serves(cluster)
        before = found.count
        for member in members[:2]:
            await member.hang_up()
            member.start()
        await found.more()
        assert found.count > before


async def test_disk_of_a_broker_wiped(tmp_path: Path) -> None:
    async with under_load(tmp_path) as (cluster, found):
        await equal_isr(cluster)
        leader = await cluster.leader_of(TOPIC)
        leader.die()
        shutil.rmtree(leader.data_dir)
        await found.more()
        await cluster.restart(leader)
        await equal_isr(cluster)


async def test_disk_of_one_broker_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "b1"):
        async with under_load(tmp_path) as (cluster, found):
            ballast = cluster.brokers[0].data_dir / "ballast"
            fill(ballast)
            await found.more(20)  # to the partitions that others lead, at least
            ballast.unlink()
            await found.more()
            await equal_isr(cluster)


async def test_tail_truncated(tmp_path: Path) -> None:
    async with under_load(tmp_path) as (cluster, found):
        leader = await cluster.leader_of(TOPIC)
        leader.die()
        directory = leader.records_directory(TOPIC, 0)
        assert directory is not None
        newest = sorted(directory.glob("*.log"))[-1]
        with newest.open("r+b") as file:
            file.truncate(max(0, newest.stat().st_size - 150))
        await found.more()
        await cluster.restart(leader)


async def test_a_byte_flipped_and_that_broker_made_leader(tmp_path: Path) -> None:
    async with under_load(tmp_path) as (cluster, found):
        leader = await cluster.leader_of(TOPIC)
        other = next(each for each in cluster.brokers if each is not leader)
        await equal_isr(cluster)
        directory = other.records_directory(TOPIC, 0)
        assert directory is not None

        async def is_written() -> bool:
            return sorted(directory.glob("*.log"))[0].stat().st_size > 200

        await eventually(is_written, lambda: "no record for the partition that is to be damaged")
        other.die()
        with sorted(directory.glob("*.log"))[0].open("r+b") as file:
            file.seek(100)
            byte = file.read(1)
            file.seek(100)
            file.write(bytes([byte[0] ^ 0x10]))
        await cluster.restart(other)
        await equal_isr(cluster)
        await move_leader(cluster, other)
        async with aio.Consumer(cluster.addresses, TOPIC, start="earliest") as consumer:
            seen = {(message.partition, message.offset) for message in await consumer.poll(timeout_s=10)}
            assert seen
        await found.more()


async def test_rolling_restarts(tmp_path: Path) -> None:
    async with under_load(tmp_path) as (cluster, found):
        for number in range(5):
            broker = cluster.brokers[number % 3]
            broker.kill(signal.SIGTERM)
            assert broker.ended() == 0
            await cluster.restart(broker)
            await equal_isr(cluster)
            await found.more(20)


async def test_isr_below_its_minimum_is_refused_and_what_was_acknowledged_stays(tmp_path: Path) -> None:
    async with under_load(tmp_path) as (cluster, found):
        leader = await cluster.leader_of(TOPIC)
        others = [each for each in cluster.brokers if each is not leader]
        for each in others:
            each.die()
        refusal = await refused(leader, found)
        assert isinstance(refusal, NotEnoughReplicasError), refusal
        assert "in sync" in refusal.message
        leader.die()  # the last member: nobody leads, and nothing is lost
        for each in cluster.brokers:
            await each.hang_up()
            each.start()
        await found.more()


async def test_without_its_last_member_in_sync_a_partition_is_offline_and_not_lost(tmp_path: Path) -> None:
    async with under_load(tmp_path, min_isr=1) as (cluster, found):
        last = await cluster.leader_of(TOPIC)
        others = [each for each in cluster.brokers if each is not last]
        for each in others:
            each.die()
        await found.more()  # what only the last one has
        last.die()
        for each in others:
            await each.hang_up()
            each.start()
        for each in others:
            await each.ready()
        async with aio.Admin([each.address for each in others]) as admin:
            # They are let in, which is when they would be elected, and lack records.
            async def nobody_leads() -> bool:
                described = await admin.describe_cluster()
                assert [each.fenced for each in described.brokers if each.broker_id != last.id] == [False, False]
                return described.leaderless == PARTITIONS

            await eventually(nobody_leads, lambda: "the lease of the one that died has not ended")
            topic = await admin.describe_topic(TOPIC)
            assert [(each.leader, each.isr) for each in topic.partitions] == [(None, (last.id,))] * PARTITIONS
        before = found.count
        await cluster.restart(last)
        await found.more()
        assert found.count > before


# --- small disks ---------------------------------------------------------------------------------------------------


@contextmanager
def small_disk(directory: Path) -> Iterator[None]:
    """A file system of its own, of 48 MiB: to make one takes root."""
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", directory], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", directory], check=True)


def fill(path: Path) -> None:
    """Take all the room that there is."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))


# --- steps ---------------------------------------------------------------------------------------------------------


async def refused(broker: BrokerProcess, found: Load) -> QuireError:
    """What a producer is told that gives up soon."""
    deadline = time.monotonic() + 30
    async with aio.Producer(broker.address, delivery_ms_max=1_000) as producer:
        for number in count():
            value = f"refused-{number}"
            found.history.add("refused", Type.INVOKE, "send", topic=TOPIC, partition=0, values=[value])
            try:
                delivery = await producer.send(TOPIC, value.encode(), partition=0)
                await delivery
            except OutcomeUnknownError as error:
                cause = error.__cause__
                if isinstance(cause, NotEnoughReplicasError):
                    return cause
            except QuireError as error:
                return error
            assert time.monotonic() < deadline, "it is not refused"
    raise AssertionError  # not reached: it counts for ever


async def led_by(cluster: BrokerCluster, brokers: list[BrokerProcess]) -> None:
    """Until all partitions are led by these."""

    async def is_so() -> bool:
        async with aio.Admin(brokers[0].address) as admin:
            topic = await admin.describe_topic(TOPIC)
        return all(each.leader in {broker.id for broker in brokers} for each in topic.partitions)

    await eventually(is_so, lambda: "others lead")


async def nobody_serves(cluster: BrokerCluster) -> None:
    async def is_so() -> bool:
        return not any([await broker.is_healthy() for broker in cluster.brokers])

    await eventually(is_so, lambda: "some broker still believes to hold a lease")


async def equal_isr(cluster: BrokerCluster) -> None:
    async def is_so() -> bool:
        return all([len(await cluster.isr(TOPIC, each)) == 3 for each in range(PARTITIONS)])

    await eventually(is_so, lambda: "not everybody is in sync")


async def move_leader(cluster: BrokerCluster, broker: BrokerProcess) -> None:
    from quire.v1 import controller_pb2

    async def is_led() -> bool:
        request = controller_pb2.MoveLeadersRequest()
        move = request.moves.add(to_broker=broker.id)
        move.partition.topic.name = TOPIC
        await broker.admin.MoveLeaders(request, timeout=10)
        return await cluster.leader_of(TOPIC) is broker

    await eventually(is_led, lambda: f"{broker.node_id} does not lead")
