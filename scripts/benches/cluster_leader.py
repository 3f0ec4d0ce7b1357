"""A leader with nothing in it, for `scripts/bench cluster`: what gRPC, the peer link and three syncs cost alone.

    python -m scripts.benches.cluster_leader FILE FOLLOWER_PORT FOLLOWER_PORT

prints its port. The stream `/bare/Replicate` appends each message to FILE, sends it to both followers, syncs, and
answers with a few bytes when all three have it on their disks. No offsets, no checks, no leases: a floor, not a peer.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Sequence
from typing import Any, Final

from quire.process import malloc

malloc.tune(
    mmap_threshold_bytes=256 * 1024 * 1024,
    trim_threshold_bytes=64 * 1024 * 1024,
    top_pad_bytes=16 * 1024 * 1024,
    arenas_max=2,
)

import grpc  # noqa: E402  # after malloc: what it imports allocates
import grpc.aio  # noqa: E402
import uvloop  # noqa: E402

from quire.errors import QuireError  # noqa: E402
from quire.link.config import LinkConfig  # noqa: E402
from quire.link.dialer import Dialer  # noqa: E402
from quire.link.frames import FIRST_USER_KIND, Frame  # noqa: E402
from quire.link.handshake import NodeIdentity  # noqa: E402
from quire.link.network import Address  # noqa: E402
from quire.link.session import Session  # noqa: E402
from quire.link.tcp import TcpNetwork  # noqa: E402

MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
ANSWER: Final = b"x" * 32


class Leader:
    def __init__(self, path: str, ports: Sequence[int]) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._sent = self._synced = 0
        self._taken: dict[str, int] = {}
        self._sessions: list[Session] = []
        self._more = asyncio.Event()
        config = LinkConfig()
        network = TcpNetwork(contexts=None, handshake_ms_max=config.handshake_ms_max)
        for number, port in enumerate(ports):
            dialer = Dialer(
                network=network,
                local=NodeIdentity("bench", f"leader-{number}"),
                peer_id="follower",
                address=Address("127.0.0.1", port),
                handler=self,
                config=config,
                randomness=random.Random(1),
            )
            dialer.start()
        self._followers = len(ports)

    async def wait_until_linked(self) -> None:
        while len(self._sessions) < self._followers:
            self._more.clear()
            await self._more.wait()

    def on_up(self, session: Session) -> None:
        self._sessions.append(session)
        self._taken[session.session_id.hex()] = 0
        self._more.set()

    def on_frame(self, session: Session, frame: Frame) -> None:
        self._taken[session.session_id.hex()] += 1
        self._more.set()

    def on_down(self, session: Session, error: QuireError) -> None:
        raise SystemExit(f"bench cluster: the bare link broke: {error.message}")

    async def replicate(self, requests: object, context: Any) -> None:
        answering = asyncio.create_task(self._answer(context, self._sent))
        try:
            while (request := await context.read()) is not grpc.aio.EOF:
                os.write(self._fd, request)
                for session in self._sessions:
                    session.send(FIRST_USER_KIND, b"x" * 64, [request])
                    session.flush()
                self._sent += 1
                os.fdatasync(self._fd)  # not aside: with few requests at a time that is quicker
                self._synced = self._sent
                self._more.set()
        finally:
            answering.cancel()

    async def _answer(self, context: Any, answered: int) -> None:
        while True:
            while answered < min(self._synced, *self._taken.values()):
                answered += 1
                await context.write(ANSWER)
            self._more.clear()
            await self._more.wait()


async def main() -> None:
    leader = Leader(sys.argv[1], [int(port) for port in sys.argv[2:]])
    await leader.wait_until_linked()
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
            ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ]
    )
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Replicate": grpc.stream_stream_rpc_method_handler(leader.replicate)
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(main())
