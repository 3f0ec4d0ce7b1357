"""How a member is spoken to: a JSON object a line over loopback TCP, one request of a connection at a time.

| request | answer |
|---|---|
| `{"op":"append","client":"c1","seq":17,"value":"c1-17"}` | `{"ok":true,"index":210}` once it is committed and applied; `{"ok":false,"error":…}`: it was not done and will not be; `{"unknown":true,"error":…}` |
| `{"op":"dump"}` | `{"applied":210,"values":[…]}` |
| `{"op":"status"}` | `{"leader":"n2","term":4,"applied":210,"commit":210,"snapshot":200}` |
"""  # noqa: E501 - a table's row is one line

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tests.raftkill.checker import Replica

LOOPBACK: Final = "127.0.0.1"
LINE_BYTES_MAX: Final = 256 * 1024 * 1024
"""A dump is one line."""


@dataclass(frozen=True, slots=True)
class Acked:
    index: int


@dataclass(frozen=True, slots=True)
class Refused:
    error: str


@dataclass(frozen=True, slots=True)
class Unknown:
    error: str


Answer = Acked | Refused | Unknown


@dataclass(frozen=True, slots=True)
class Status:
    leader: str | None
    term: int
    applied: int
    commit: int
    snapshot: int
    """How far the log begins behind a snapshot; small numbers mean that there was none."""


class Member(Protocol):
    """What a member process does for those who ask on its control port."""

    async def append(self, client: str, seq: int, value: str) -> Answer: ...

    def dump(self) -> Replica: ...

    def status(self) -> Status: ...


class ControlServer:
    """Serves one member's control port."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def serve_forever(self, port: int) -> None:
        self._server = await asyncio.start_server(self._serve_one, LOOPBACK, port, limit=LINE_BYTES_MAX)
        async with self._server:
            await self._server.serve_forever()

    def filenos(self) -> list[int]:
        """The sockets, for a forked child to close: it would keep the port taken and clients waiting."""
        found = [writer.get_extra_info("socket").fileno() for writer in self._writers]
        return found + [socket.fileno() for socket in (self._server.sockets if self._server else ())]

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while line := await reader.readline():
                answer = await self._answer(json.loads(line))
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["op"]:
            case "append":
                match await self._member.append(request["client"], request["seq"], request["value"]):
                    case Acked(index):
                        return {"ok": True, "index": index}
                    case Refused(error):
                        return {"ok": False, "error": error}
                    case Unknown(error):
                        return {"unknown": True, "error": error}
            case "dump":
                replica = self._member.dump()
                return {"applied": replica.applied_index, "values": replica.values}
            case "status":
                status = self._member.status()
                return {name: getattr(status, name) for name in Status.__slots__}
        return {"unknown": True, "error": f"no such request: {request['op']}"}


class ControlClient:
    """One connection to a member, made anew after each failure."""

    def __init__(self, port: int, *, timeout_s: float) -> None:
        self._port = port
        self._timeout_s = timeout_s
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def append(self, client: str, seq: int, value: str) -> Answer:
        try:
            await self._connect()
        except (OSError, TimeoutError) as error:
            return Refused(f"not connected: {error!r}")
        try:
            answer = await self._ask({"op": "append", "client": client, "seq": seq, "value": value})
        except (OSError, EOFError, TimeoutError) as error:
            return Unknown(repr(error))
        if answer.get("unknown"):
            return Unknown(answer["error"])
        return Acked(answer["index"]) if answer["ok"] else Refused(answer["error"])

    async def dump(self) -> Replica:
        """Raises OSError, EOFError or TimeoutError, as `status` does."""
        await self._connect()
        answer = await self._ask({"op": "dump"})
        return Replica(applied_index=answer["applied"], values=tuple(answer["values"]))

    async def status(self) -> Status:
        await self._connect()
        return Status(**await self._ask({"op": "status"}))

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def aclose(self) -> None:
        """Close, and wait until the socket is gone."""
        streams = self._streams
        self.close()
        if streams is not None:
            with suppress(OSError):
                await streams[1].wait_closed()

    async def _connect(self) -> None:
        if self._streams is None:
            async with asyncio.timeout(self._timeout_s):
                self._streams = await asyncio.open_connection(LOOPBACK, self._port, limit=LINE_BYTES_MAX)

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._streams is not None
        reader, writer = self._streams
        try:
            async with asyncio.timeout(self._timeout_s):
                writer.write(json.dumps(request).encode() + b"\n")
                await writer.drain()
                line = await reader.readline()
            if not line.endswith(b"\n"):
                raise EOFError("the member went away before it answered")
            answer: dict[str, Any] = json.loads(line)
        except BaseException:
            # What is still under way on this connection would be taken for the answer to the next request.
            self.close()
            raise
        return answer
