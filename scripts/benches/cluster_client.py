"""The client of `scripts/bench cluster`: what that of `scripts/bench broker` does, and what needs three nodes."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from typing import Any, Final

import quire.aio
from quire.errors import QuireError
from quire.link.config import LinkConfig
from quire.link.dialer import Dialer
from quire.link.frames import FIRST_USER_KIND, Frame
from quire.link.handshake import NodeIdentity
from quire.link.network import Address
from quire.link.session import Session
from quire.link.tcp import TcpNetwork
from quire.v1 import broker_pb2, durability_pb2
from scripts.benches.broker_client import PRODUCE_STREAM, Load, _Stream, main, records_for, values

BARE: Final = "/bare/Replicate"


class Acknowledged:
    """The client's end of a bare link."""

    def __init__(self) -> None:
        self.up = asyncio.Event()
        self.count = 0
        self.more = asyncio.Event()

    def on_up(self, session: Session) -> None:
        self.up.set()

    def on_frame(self, session: Session, frame: Frame) -> None:
        self.count += 1
        self.more.set()

    def on_down(self, session: Session, error: QuireError) -> None:
        raise SystemExit(f"bench cluster: the link broke: {error.message}")


class ClusterLoad(Load):
    async def _leader(self, addresses: list[str], topic: str) -> str:
        async with quire.aio.Admin(addresses) as admin:
            leader = (await admin.describe_topic(topic)).partitions[0].leader
        return addresses[(leader or 1) - 1]

    async def acks_quire(self, address: list[str], topic: str, *, count: int) -> list[float]:
        """Seconds from sending a record to knowing that all in sync have it on their disks, one at a time."""
        request = broker_pb2.ProduceStreamRequest(
            acks=durability_pb2.ACKS_ALL, partitions=records_for(topic, 0)
        ).SerializeToString()
        channel = self._channel(await self._leader(address, topic))
        call: _Stream = channel.stream_stream(PRODUCE_STREAM)()
        taken: list[float] = []
        for _ in range(count):
            began = time.perf_counter()
            await call.write(request)
            received = await call.read()
            if not isinstance(received, bytes):
                raise SystemExit(f"bench cluster: the stream ended: {call}")
            answer = broker_pb2.ProduceStreamResponse.FromString(received)
            taken.append(time.perf_counter() - began)
            (stored,) = answer.partitions
            if stored.HasField("refusal") or stored.durability.replicas < 3 or not stored.durability.fsynced:
                raise SystemExit(f"bench cluster: not stored as asked: {answer}")
        call.cancel()
        return taken

    async def acks_bare(self, address: str, topic: str, *, count: int) -> list[float]:
        """The same by the bare leader."""
        request = broker_pb2.ProduceStreamRequest(
            acks=durability_pb2.ACKS_ALL, partitions=records_for(topic, 0)
        ).SerializeToString()
        call: _Stream = self._channel(address).stream_stream(BARE)()
        taken: list[float] = []
        for _ in range(count):
            began = time.perf_counter()
            await call.write(request)
            if not isinstance(await call.read(), bytes):
                raise SystemExit(f"bench cluster: the bare stream ended: {call}")
            taken.append(time.perf_counter() - began)
        call.cancel()
        return taken

    async def stream_replicated(self, address: str, *, size_bytes: int, count: int, window: int) -> float:
        """Batches/s that the bare leader and its followers have on their disks."""
        taken_s, _ = await self._stream(address, BARE, bytes(size_bytes), count, window)
        return count / taken_s

    async def acks_sdk(self, address: list[str], topic: str, *, count: int) -> list[float]:
        (value,) = values(1)
        taken: list[float] = []
        async with quire.aio.Producer(address) as producer:
            await (await producer.send(topic, value, partition=0))
            for _ in range(count):
                began = time.perf_counter()
                await (await producer.send(topic, value, partition=0))
                taken.append(time.perf_counter() - began)
            return taken

    async def acks_nats(self, address: str, topic: str, *, count: int) -> list[float]:
        await self.send_nats(address, count=1, window=1_000, replicas=3)
        jetstream: Any = self._jetstream["S1000"]
        (value,) = values(1)
        taken: list[float] = []
        for _ in range(count):
            began = time.perf_counter()
            await jetstream.publish("S1000", value)
            taken.append(time.perf_counter() - began)
        return taken

    async def stream_led(self, address: list[str], topic: str, *, size_bytes: int, count: int, window: int) -> float:
        """Batches/s with acks=all, to the leader."""
        request = broker_pb2.ProduceStreamRequest(
            acks=durability_pb2.ACKS_ALL, partitions=records_for(topic, size_bytes)
        ).SerializeToString()
        leader = await self._leader(address, topic)
        taken_s, answers = await self._stream(leader, PRODUCE_STREAM, request, count, window)
        for answer in map(broker_pb2.ProduceStreamResponse.FromString, answers):
            if answer.HasField("refusal") or answer.partitions[0].HasField("refusal"):
                raise SystemExit(f"bench cluster: a broker refused a batch: {answer}")
        return count / taken_s

    async def stream_link(self, *, ports: list[int], size_bytes: int, count: int, window: int) -> float:
        """Frames/s of such a size that all followers have taken."""
        config = LinkConfig()
        network = TcpNetwork(contexts=None, handshake_ms_max=config.handshake_ms_max)
        ends = [Acknowledged() for _ in ports]
        dialers = [
            Dialer(
                network=network,
                local=NodeIdentity("bench", "leader"),
                peer_id="follower",
                address=Address("127.0.0.1", port),
                handler=end,
                config=config,
                randomness=random.Random(1),
            )
            for port, end in zip(ports, ends, strict=True)
        ]
        for dialer in dialers:
            dialer.start()
        for end in ends:
            await end.up.wait()
        body = bytes(size_bytes)
        began = time.perf_counter()
        for sent in range(count):
            for end in ends:
                while end.count < sent - window + 1:
                    end.more.clear()
                    await end.more.wait()
            for dialer in dialers:
                if (session := dialer.session) is not None:
                    session.send(FIRST_USER_KIND, b"x" * 64, [body])
        for end in ends:
            while end.count < count:
                end.more.clear()
                await end.more.wait()
        taken_s = time.perf_counter() - began
        for end, dialer in zip(ends, dialers, strict=True):
            end.on_down = lambda session, error: None  # type: ignore[method-assign]  # it is we who close
            dialer.close()
            await dialer.wait_closed()
        await network.close()
        return count / taken_s


if __name__ == "__main__":
    sys.exit(main(ClusterLoad))
