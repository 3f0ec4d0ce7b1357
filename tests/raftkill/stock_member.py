"""A member that runs PySyncObj as it comes: what our own Raft member is measured against.

Journal, dump file and forked snapshots are those of the library; only timeouts are tuned. It loses what it
acknowledged: see `tests/integration/test_raft_kill_stock.py`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf, SyncObjConsumer, replicated

from tests.raftkill.checker import Replica
from tests.raftkill.control import Acked, Answer, ControlServer, Refused, Status, Unknown
from tests.raftkill.processes import MemberArguments, begin_member
from tests.raftkill.toy import Toy

APPEND_S_MAX: Final = 2.0
"""PySyncObj forgets callbacks: after this long the outcome is unknown."""

NOT_DONE: Final = {
    FAIL_REASON.QUEUE_FULL,
    FAIL_REASON.MISSING_LEADER,
    FAIL_REASON.NOT_LEADER,
    FAIL_REASON.REQUEST_DENIED,
}

DUMP_NAME: Final = "dump"
DUMP_UNDER_WAY_NAME: Final = "dump.tmp"
"""What PySyncObj's forked child writes, until it renames it."""


def configuration(arguments: MemberArguments) -> SyncObjConf:
    host, port = arguments.peers[arguments.member_id]
    return SyncObjConf(
        journalFile=str(arguments.directory / "journal"),
        fullDumpFile=str(arguments.directory / DUMP_NAME),
        useFork=True,
        logCompactionMinEntries=arguments.snapshot_every,
        logCompactionMinTime=3600,
        bindAddress=f"{host}:{port}",
        bindRetryTime=0.02,
        connectionRetryTime=0.05,
        raftMinTimeout=0.15,
        raftMaxTimeout=0.30,
        appendEntriesPeriod=0.04,
        appendEntriesUseBatch=False,
        commandsWaitLeader=False,
        autoTick=True,
        autoTickPeriod=0.01,
    )


class ReplicatedToy(SyncObjConsumer):  # type: ignore[misc] # PySyncObj has no types
    """A consumer has its state before PySyncObj's thread begins, which might load a dump into it at once."""

    def __init__(self) -> None:
        super().__init__()
        self.toy = Toy()

    @replicated  # type: ignore[untyped-decorator] # PySyncObj has no types
    def append(self, client: str, seq: int, value: str) -> int:
        # PySyncObj counts a command as applied only afterwards.
        index = int(self._syncObj.raftLastApplied) + 1
        return self.toy.apply(index=index, client=client, seq=seq, value=value)


class StockMember:
    """Answers the control port; PySyncObj ticks on a thread of its own."""

    def __init__(self, arguments: MemberArguments) -> None:
        self._member_of = {f"{host}:{port}": member for member, (host, port) in arguments.peers.items()}
        addresses = {member: f"{host}:{port}" for member, (host, port) in arguments.peers.items()}
        own = addresses.pop(arguments.member_id)
        self._replicated = ReplicatedToy()
        self._raft = SyncObj(own, list(addresses.values()), configuration(arguments), [self._replicated])

    async def append(self, client: str, seq: int, value: str) -> Answer:
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Answer] = loop.create_future()

        def on_result(result: int | None, reason: int) -> None:
            loop.call_soon_threadsafe(_settle, answered, _answer(result, reason))

        self._replicated.append(client, seq, value, callback=on_result)
        try:
            return await asyncio.wait_for(answered, APPEND_S_MAX)
        except TimeoutError:
            return Unknown("no callback came")

    def dump(self) -> Replica:
        while True:
            before = self._raft.raftLastApplied
            values = tuple(self._replicated.toy.values)
            if self._raft.raftLastApplied == before:
                return Replica(applied_index=before, values=values)

    def status(self) -> Status:
        leader = self._raft._getLeader()
        applied = self._raft.raftLastApplied
        return Status(
            leader=None if leader is None else self._member_of[leader.address],
            term=self._raft.raftCurrentTerm,
            applied=applied,
            commit=self._raft.raftCommitIndex,
            snapshot=max(0, applied - self._raft._getRaftLogSize()),
        )


def _answer(result: int | None, reason: int) -> Answer:
    if reason == FAIL_REASON.SUCCESS and result is not None:
        return Acked(result)
    return Refused(f"reason {reason}") if reason in NOT_DONE else Unknown(f"reason {reason}")


def _settle(answered: asyncio.Future[Answer], answer: Answer) -> None:
    if not answered.done():
        answered.set_result(answer)


def _close_all(filenos: Callable[[], list[int]]) -> None:
    for fileno in filenos():
        with suppress(OSError):
            os.close(fileno)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    arguments = begin_member()
    server = ControlServer(StockMember(arguments))
    # A snapshot's child outlives its killed parent. What it inherits from PySyncObj it is to keep, as it would
    # anywhere; what it inherits from us would only confuse the harness.
    os.register_at_fork(after_in_child=partial(_close_all, server.filenos))
    asyncio.run(server.serve_forever(arguments.control_port))


if __name__ == "__main__":
    main()
