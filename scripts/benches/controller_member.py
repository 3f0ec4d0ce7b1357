"""A controller without its services, told by lines of JSON on standard input what to measure. For `scripts/bench`."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import uvloop

from quire.disk.os_disk import OsDisk
from quire.errors import QuireError
from quire.link.config import LinkConfig
from quire.link.handshake import NodeIdentity
from quire.link.network import Address
from quire.link.tcp import TcpNetwork
from quire.v1 import commands_pb2, metadata_pb2
from quire_controller.ports import Applied
from quire_controller.raft.config import RaftConfig
from quire_controller.raft.node import RaftNode
from quire_controller.raft.peers import LinkPeers
from quire_controller.state.machine import ControllerState

CLUSTER = "bench"
PARTITIONS_A_TOPIC = 1_000


class Subject:
    def __init__(self, member_id: str, members: dict[str, int], directory: str, config: RaftConfig) -> None:
        link = LinkConfig(backoff_ms_min=20, backoff_ms_max=200)
        network = TcpNetwork(contexts=None, handshake_ms_max=link.handshake_ms_max)
        self._member_id = member_id
        # Of this process: a restarted member that counts from 1 again would be refused as one that repeats itself.
        self._incarnation = os.urandom(16)
        self._sequence = 0
        self.state = ControllerState()
        self.node = RaftNode(
            cluster_id=CLUSTER,
            member_id=member_id,
            others=[other for other in members if other != member_id],
            disk=OsDisk(),
            directory=directory,
            state_machine=self.state,
            peers=LinkPeers(
                network=network,
                local=NodeIdentity(CLUSTER, member_id),
                listen=Address("127.0.0.1", members[member_id]),
                members={other: Address("127.0.0.1", port) for other, port in members.items() if other != member_id},
                randomness=random.Random(),
                config=link,
            ),
            scheduler=network.scheduler,
            background=_in_background,
            randomness=random.Random(),
            on_fatal=_die,
            config=config,
        )
        self.node.start()

    # -- what can be asked -----------------------------------------------------------------------------------------

    async def status(self) -> dict[str, Any]:
        status = self.node.status()
        return {"role": status.role, "applied": status.applied_index, "snapshot": status.snapshot_index}

    async def latency(self, count: int) -> list[float]:
        """Seconds from proposing a command to being told that it was committed and applied here, one at a time."""
        taken = []
        for _ in range(count):
            _, seconds = await self._timed_commit(self._command())
            taken.append(seconds)
        return taken

    async def commits(self) -> bool:
        """Whether a command can be committed from here."""
        try:
            await self._commit(self._command())
        except QuireError:
            return False
        return True

    async def throughput(self, count: int, in_flight: int) -> float:
        """Commits a second with so many under way."""
        left = count

        async def work() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await self._commit(self._command())

        start = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(in_flight)))
        return count / (time.perf_counter() - start)

    async def until_committed(self) -> float:
        """The time, by the clock that all processes share, at which a command was committed from here."""
        while True:
            if self.node.is_leader and await self.commits():
                return time.monotonic()
            await asyncio.sleep(0.001)

    async def fill(self, partitions: int) -> int:
        """Give the state so many partitions."""
        await self._commit(self._command())
        for broker_id in range(1, 4):
            command = self._command()
            register = command.register_broker
            register.cluster_id, register.broker_id, register.incarnation_id = CLUSTER, broker_id, b"d" * 16
            register.features.level_min = register.features.level_max = 1
            register.listeners.add(
                name="clients", protocol=metadata_pb2.LISTENER_PROTOCOL_GRPC, host="127.0.0.1", port=7400
            )
            result = commands_pb2.CommandResult.FromString((await self._commit(command)).result)
            command = self._command()
            command.unfence_broker.broker_id = broker_id
            command.unfence_broker.broker_epoch = result.broker_registered.broker_epoch
            command.unfence_broker.lease_ms = 3_000
            await self._commit(command)
        for number in range(partitions // PARTITIONS_A_TOPIC):
            command = self._command()
            create = command.create_topic
            create.topic_id, create.tenant, create.name = (number + 1).to_bytes(16), "default", f"topic-{number}"
            create.partition_count, create.replication_factor = PARTITIONS_A_TOPIC, 3
            create.placement_seed = number
            await self._commit(command)
        return len(self.state.partitions)

    async def snapshot(self) -> dict[str, Any]:
        """Commits one at a time while a snapshot is taken: their latencies, and how long the snapshot took."""
        before = self.node.status().snapshot_index
        job = self.node._job
        while not job.is_running:
            await self._commit(self._command())
        start = time.perf_counter()
        taken = []
        while job.is_running:
            _, seconds = await self._timed_commit(self._command())
            taken.append(seconds)
        return {
            "taken": taken,
            "seconds": time.perf_counter() - start,
            "entries": self.node.status().snapshot_index - before,
        }

    # -- inside ----------------------------------------------------------------------------------------------------

    def _command(self) -> commands_pb2.Command:
        """A command that is remembered for its client and changes nothing else, unless it is given another body."""
        self._sequence += 1
        command = commands_pb2.Command(
            client_id=self._member_id, client_incarnation=self._incarnation, sequence=self._sequence
        )
        command.initialize_cluster.cluster_id = CLUSTER
        command.initialize_cluster.feature_level = command.initialize_cluster.controller_level_max = 1
        return command

    async def _commit(self, command: commands_pb2.Command) -> Applied:
        applied, _ = await self._timed_commit(command)
        return applied

    async def _timed_commit(self, command: commands_pb2.Command) -> tuple[Applied, float]:
        told: asyncio.Future[tuple[Applied | QuireError, float]] = asyncio.get_running_loop().create_future()
        data = command.SerializeToString()
        start = time.perf_counter()
        self.node.propose(data, lambda outcome: told.set_result((outcome, time.perf_counter() - start)))
        outcome, seconds = await told
        if isinstance(outcome, QuireError):
            raise outcome
        result = commands_pb2.CommandResult.FromString(outcome.result)
        if result.WhichOneof("outcome") == "error":
            raise SystemExit(f"a command was refused: {result.error.message}")
        return outcome, seconds


def _in_background(work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
    running = asyncio.get_running_loop().run_in_executor(None, work)
    running.add_done_callback(lambda ended: done(ended.exception()))


def _die(error: BaseException) -> None:
    traceback.print_exception(error)
    os._exit(1)


async def serve() -> None:
    settings = json.loads(sys.argv[1])
    subject = Subject(
        settings["member"], settings["members"], settings["directory"], RaftConfig(**settings["config"])
    )
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print(json.dumps("ready"), flush=True)
    while line := await reader.readline():
        request = json.loads(line)
        answer = await getattr(subject, request.pop("ask"))(**request)
        print(json.dumps(answer), flush=True)
    subject.node.stop()


if __name__ == "__main__":
    uvloop.run(serve())
