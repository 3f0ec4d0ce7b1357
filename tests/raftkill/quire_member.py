"""A member that runs our Raft, on a real disk and the real peer link, without TLS as it stays on loopback."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import traceback
from collections.abc import Callable
from typing import Final

import uvloop

from quire.disk.os_disk import OsDisk
from quire.errors import QuireError, UnavailableError
from quire.link.config import LinkConfig
from quire.link.handshake import NodeIdentity
from quire.link.network import Address
from quire.link.tcp import TcpNetwork
from quire_controller.ports import Applied
from quire_controller.raft.config import RaftConfig
from quire_controller.raft.node import RaftNode
from quire_controller.raft.peers import LinkPeers
from tests.raftkill.checker import Replica
from tests.raftkill.control import Acked, Answer, ControlServer, Refused, Status, Unknown
from tests.raftkill.processes import MemberArguments, begin_member
from tests.raftkill.toy_machine import ToyMachine, decode_result, encode_command

CLUSTER_ID: Final = "raftkill"
SNAPSHOT_UNDER_WAY: Final = "snapshot-*.tmp"
ANSWER_S_MAX: Final = 15.0
"""Fifty elections long: a callback that has not come by then never will, and it was promised."""
SEGMENT_BYTES: Final = 64 * 1024
"""Small: the journal is to begin new segments, and to remove old ones, many times in a run."""

LINK: Final = LinkConfig(backoff_ms_min=20, backoff_ms_max=100)


def raft_config(snapshot_every: int) -> RaftConfig:
    return RaftConfig(election_ms_min=150, election_ms_max=300, heartbeat_ms=40, snapshot_entries=snapshot_every)


class QuireMember:
    """Answers the control port. To be made on a running loop."""

    def __init__(self, arguments: MemberArguments) -> None:
        addresses = {member: Address(host, port) for member, (host, port) in arguments.peers.items()}
        listen = addresses.pop(arguments.member_id)
        network = TcpNetwork(contexts=None, handshake_ms_max=LINK.handshake_ms_max)
        self._machine = ToyMachine()
        self._node = RaftNode(
            cluster_id=CLUSTER_ID,
            member_id=arguments.member_id,
            others=sorted(addresses),
            disk=OsDisk(),
            directory=str(arguments.directory),
            state_machine=self._machine,
            peers=LinkPeers(
                network=network,
                local=NodeIdentity(CLUSTER_ID, arguments.member_id),
                listen=listen,
                members=addresses,
                randomness=random.Random(),
                config=LINK,
            ),
            scheduler=network.scheduler,
            background=_in_background,
            randomness=random.Random(),
            on_fatal=_die,
            config=raft_config(arguments.snapshot_every),
            segment_bytes=SEGMENT_BYTES,
        )
        for torn in self._node.torn:
            logging.info("cut when opened: %s", torn)
        self._node.start()

    async def append(self, client: str, seq: int, value: str) -> Answer:
        told: asyncio.Future[Applied | QuireError] = asyncio.get_running_loop().create_future()
        # A second call raises in the node, which then ends the process: once is the contract.
        self._node.propose(encode_command(client, seq, value), told.set_result)
        # Not wait_for: it would cancel the future, and a late callback would look like a second one.
        await asyncio.wait([told], timeout=ANSWER_S_MAX)
        if not told.done():
            _die(TimeoutError(f"nobody was told what became of {client}-{seq}"))
        match told.result():
            case Applied(_, result):
                return Acked(decode_result(result))
            case UnavailableError() as error:
                return Refused(str(error))
            case error:
                return Unknown(str(error))

    def dump(self) -> Replica:
        return Replica(applied_index=self._node.applied_index, values=self._machine.values)

    def status(self) -> Status:
        status = self._node.status()
        return Status(
            leader=status.leader_id,
            term=status.term,
            applied=status.applied_index,
            commit=status.commit_index,
            snapshot=status.snapshot_index,
        )


def _in_background(work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
    running = asyncio.get_running_loop().run_in_executor(None, work)
    running.add_done_callback(lambda ended: done(ended.exception()))


def _die(error: BaseException) -> None:
    traceback.print_exception(error)
    os._exit(1)


async def serve(arguments: MemberArguments) -> None:
    await ControlServer(QuireMember(arguments)).serve_forever(arguments.control_port)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    uvloop.run(serve(begin_member()))


if __name__ == "__main__":
    main()
