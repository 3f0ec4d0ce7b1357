"""A server process that serves nothing, for tests of what all have: `process_child.py <behaviour> <stop ms>`."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from pathlib import Path

import uvloop

from quire.config import LogFormat, LogLevel
from quire.errors import InvalidArgumentError, InvariantViolation, UnavailableError, invariant
from quire.process import logs
from quire.process.lock import DirectoryLock
from quire.process.run import Stop, run


async def serve(behaviour: str, stop: Stop) -> None:
    loop = asyncio.get_running_loop()
    invariant(isinstance(loop, uvloop.Loop), "the loop is uvloop's")
    match behaviour:
        case "return":
            return
        case "fail":
            raise UnavailableError("the disk is elsewhere", disk="sda")
        case "fail-in-group":
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.Event().wait())
                group.create_task(refuse())
        case "bug":
            raise ValueError("a bug")
        case "broken-in-callback":
            loop.call_soon(invariant, False, "broken")
        case "broken-in-task":
            forgotten = loop.create_task(broken())
            await asyncio.wait([forgotten])
            del forgotten
        case "broken-in-thread":
            threading.Thread(target=invariant, args=(False, "broken")).start()
        case "error-in-callback":
            loop.call_soon(int, "x")
            loop.call_soon(stop.request, "enough")
        case "lock":
            with DirectoryLock(Path(sys.argv[3])):
                await wait(stop)
            return
        case "stuck-thread":
            threading.Thread(target=threading.Event().wait).start()
            return
        case _:
            pass
    await wait(stop)
    match behaviour:
        case "slow-stop":
            await asyncio.Event().wait()
        case "blocked-stop":
            block()
        case _:
            print("stopping because of", stop.why, flush=True)


def block() -> None:
    while True:
        time.sleep(1)


async def wait(stop: Stop) -> None:
    print("ready", os.getpid(), flush=True)
    await stop.wait()
    print("asked", flush=True)


async def broken() -> None:
    raise InvariantViolation("broken")


async def refuse() -> None:
    raise InvalidArgumentError("no such host")


if __name__ == "__main__":
    logs.configure(node="n1", role="test", level=LogLevel.INFO, format=LogFormat.JSON)
    run(lambda stop: serve(sys.argv[1], stop), stop_ms_max=int(sys.argv[2]))
