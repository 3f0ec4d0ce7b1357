"""WatchMetadata: what one who follows is sent next.

A stream keeps nothing but the version that it has sent. When its reader takes the next message, that message is made
from what the state knows then: a reader that is slow gets many changes at once, one that is too slow everything anew,
and one that never reads costs no memory. Of those who are sent everything, which holds a picture of the state, there
are only so many at a time; the gate ends a stream whose reader takes nothing for too long.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from typing import Final

from quire.errors import ClusterIdMismatchError, InvalidArgumentError, UnavailableError
from quire.v1 import controller_pb2, metadata_pb2
from quire_controller.runtime.controller import ControllerRuntime
from quire_controller.service import calls
from quire_controller.state.machine import ControllerState

MESSAGE_BYTES: Final = 64 * 1024
"""A message is ended when it has so many bytes: to make one must not keep Raft from its heartbeats."""
DELTA_BYTES_MAX: Final = 2 * 1024 * 1024
"""A change that is larger, say of all partitions, is sent as a snapshot in parts. Clients take up to 4 MiB."""
SNAPSHOTS_MAX: Final = 8
ALIVE_MS: Final = 1_000


class Watches:
    """All streams of this member."""

    def __init__(
        self,
        runtime: ControllerRuntime,
        state: ControllerState,
        *,
        is_current: Callable[[], bool],
        alive_ms: int = ALIVE_MS,
    ) -> None:
        """`is_current` says whether this member has lately heard from a leader."""
        self._runtime = runtime
        self._state = state
        self._is_current = is_current
        self._alive_s = alive_ms / 1000
        self._snapshots = asyncio.Semaphore(SNAPSHOTS_MAX)
        self._wakers: dict[asyncio.Event, None] = {}
        self._stopping = False

    def stop(self) -> None:
        """End all streams: whoever follows goes to another member."""
        self._stopping = True
        for changed in self._wakers:
            changed.set()

    async def watch(
        self, request: controller_pb2.WatchMetadataRequest
    ) -> AsyncIterator[controller_pb2.WatchMetadataResponse]:
        version = await self._begin(request)
        changed = asyncio.Event()
        changed.set()
        self._wakers[changed] = None
        unsubscribe = self._runtime.watch(changed.set)
        try:
            while True:
                await self._wait(changed)
                changed.clear()
                self._check_serving()
                if version == self._state.version:
                    yield _alive(version)
                    continue
                deltas = self._state.changes_since(version)
                if deltas is None or any(delta.ByteSize() > DELTA_BYTES_MAX for delta in deltas):
                    async with self._snapshots:
                        version = self._state.version
                        for part in snapshot_parts(self._state.snapshot_records(), version):
                            yield controller_pb2.WatchMetadataResponse(snapshot=part)
                else:
                    for message in delta_messages(deltas):
                        version = message.deltas.deltas[-1].version
                        yield message
        finally:
            unsubscribe()
            del self._wakers[changed]

    async def _begin(self, request: controller_pb2.WatchMetadataRequest) -> int:
        version = request.from_version
        if version > self._state.version or self._state.cluster is None:
            # The caller was ahead with another member, and what it has applied is committed. To begin from what this
            # member has would send it back in time.
            await calls.read(self._runtime)
        cluster = self._state.cluster
        if cluster is None:
            raise UnavailableError("the cluster has no id yet; it is being made", retry_after_ms=200)
        if request.cluster_id and request.cluster_id != cluster.cluster_id:
            raise ClusterIdMismatchError(
                f"this is cluster '{cluster.cluster_id}', not {request.cluster_id[:80]!a}",
                cluster_id=cluster.cluster_id,
            )
        if version > self._state.version:
            raise InvalidArgumentError(
                f"version {version} is of the future, the newest is {self._state.version}: this cluster has lost "
                "some of its past, or is another one. Watch from version 0 to begin anew",
                version=self._state.version,
            )
        return version

    def _check_serving(self) -> None:
        if self._stopping:
            raise UnavailableError("this controller is stopping; watch another one")
        if not self._is_current():
            raise UnavailableError("this controller hears of no leader; watch another one", retry_after_ms=500)

    async def _wait(self, changed: asyncio.Event) -> None:
        """Until there is something new, or it is time for a sign of life."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._alive_s):
                await changed.wait()


def delta_messages(deltas: Iterable[metadata_pb2.MetadataDelta]) -> Iterator[controller_pb2.WatchMetadataResponse]:
    """The deltas, as few messages as the limit of bytes allows."""
    message, size = controller_pb2.MetadataDeltas(), 0
    for delta in deltas:
        added = delta.ByteSize()
        if message.deltas and size + added > MESSAGE_BYTES:
            yield controller_pb2.WatchMetadataResponse(deltas=message)
            message, size = controller_pb2.MetadataDeltas(), 0
        message.deltas.append(delta)
        size += added
    if message.deltas:
        yield controller_pb2.WatchMetadataResponse(deltas=message)


def snapshot_parts(
    records: Iterable[metadata_pb2.MetadataRecord], version: int
) -> Iterator[metadata_pb2.MetadataSnapshot]:
    """The records in parts, of which there is at least one."""
    part, size = metadata_pb2.MetadataSnapshot(version=version, first=True), 0
    for record in records:
        added = record.ByteSize()
        if part.records and size + added > MESSAGE_BYTES:
            yield part
            part, size = metadata_pb2.MetadataSnapshot(version=version), 0
        part.records.append(record)
        size += added
    part.last = True
    yield part


def _alive(version: int) -> controller_pb2.WatchMetadataResponse:
    return controller_pb2.WatchMetadataResponse(alive=controller_pb2.WatchAlive(version=version))
