"""A server with nothing in it, for `scripts/bench broker`: what gRPC alone costs in Python, tuned as our broker is.

    python -m scripts.benches.broker_bare FILE

prints its port. Messages are bytes: no protobuf on either side.

| method | what it does |
|---|---|
| `/bare/Echo` | stream: each message goes back as it came |
| `/bare/Sink` | stream: each message is answered with a few bytes |
| `/bare/Push` | stream: the first message comes again and again |
| `/bare/Store` | unary: append to FILE, fdatasync, push to all that follow, answer |
| `/bare/Follow` | stream: what is stored from now on |
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
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

MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
ANSWER: Final = b"x" * 32
"""About what our own answer takes."""


class Bare:
    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._followers: dict[asyncio.Queue[bytes], None] = {}

    async def echo(self, requests: object, context: Any) -> None:
        while (request := await context.read()) is not grpc.aio.EOF:
            await context.write(request)

    async def sink(self, requests: object, context: Any) -> None:
        while await context.read() is not grpc.aio.EOF:
            await context.write(ANSWER)

    async def push(self, requests: object, context: Any) -> None:
        request = await context.read()
        while True:
            await context.write(request)

    async def store(self, request: bytes, context: object) -> bytes:
        os.write(self._fd, request)
        os.fdatasync(self._fd)  # not on another thread: with one request at a time that is quicker
        for queue in self._followers:
            queue.put_nowait(request)
        return ANSWER

    async def follow(self, request: bytes, context: object) -> AsyncIterator[bytes]:
        queue: asyncio.Queue[bytes] = asyncio.Queue(maxsize=1_000)
        self._followers[queue] = None
        try:
            yield b""  # it follows
            while True:
                yield await queue.get()
        finally:
            # One who left would fill its queue, and a later round would fail by it.
            del self._followers[queue]


async def main() -> None:
    bare = Bare(sys.argv[1])
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
            ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ]
    )
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Echo": grpc.stream_stream_rpc_method_handler(bare.echo),
        "Sink": grpc.stream_stream_rpc_method_handler(bare.sink),
        "Push": grpc.stream_stream_rpc_method_handler(bare.push),
        "Store": grpc.unary_unary_rpc_method_handler(bare.store),
        "Follow": grpc.unary_stream_rpc_method_handler(bare.follow),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(main())
