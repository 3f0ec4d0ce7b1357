"""PySyncObj, with its clock, log, transport and private parts within reach. Nothing else imports it.

What is used of the library: its state (term, vote, log, commit and apply positions, match indexes), elections once
they are decided upon, the rule by which entries are committed, check-quorum, the apply loop, the queue of commands.
What is replaced, and why, says docs/adr/0004-hardened-raft.md; `core` has the replacements.

The library's private names are spelled out here alone. It is pinned to one version, and
`tests/unit/test_raft_library.py` fails if that version has other ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from pysyncobj import syncobj
from pysyncobj.config import FAIL_REASON, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.syncobj import SyncObj

from quire_controller.raft.config import RaftConfig
from quire_controller.raft.storage import Storage

VERSION: Final = "0.3.17"
NEVER: Final = float("inf")

SUCCESS: Final = FAIL_REASON.SUCCESS
DISCARDED: Final = FAIL_REASON.DISCARDED
LEADER_CHANGED: Final = FAIL_REASON.LEADER_CHANGED

FOLLOWER: Final = syncobj._RAFT_STATE.FOLLOWER
CANDIDATE: Final = syncobj._RAFT_STATE.CANDIDATE
LEADER: Final = syncobj._RAFT_STATE.LEADER

Clock = Callable[[], float]

_clock: Clock = lambda: 0.0  # noqa: E731 -- replaced before each use


def use_clock(clock: Clock) -> None:
    """From now on the library reads this clock: several members with clocks of their own may share a process."""
    global _clock
    _clock = clock


class _Log:
    """The journal and the hard state in the shape that the library wants."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def add(self, command: bytes, index: int, term: int) -> None:
        self._storage.journal.add(command, index, term)

    def deleteEntriesFrom(self, position: int) -> None:
        self._storage.journal.deleteEntriesFrom(position)

    def __getitem__(self, item: Any) -> Any:
        return self._storage.journal[item]

    def __len__(self) -> int:
        return len(self._storage.journal)

    def getCurrentTerm(self) -> int:
        return self._storage.hard.term

    def setCurrentTerm(self, term: int, voted_for: str | None) -> None:
        self._storage.set_vote(term, voted_for or "")

    def getVotedForNodeId(self) -> str | None:
        return self._storage.hard.voted_for or None

    def getRaftCommitIndex(self) -> int:
        snapshot = self._storage.snapshot
        return 1 if snapshot is None else snapshot.last_index

    def setRaftCommitIndex(self, index: int) -> None:
        """It is learned from the leader anew, so it is not kept."""

    def onOneSecondTimer(self) -> None:
        """Everything is written when it must be, not once a second."""

    def _destroy(self) -> None:
        """Whoever opened the storage closes it."""


class _NoPoller:
    """There are no sockets to poll: the peer link has them."""

    def poll(self, timeout: float) -> None:
        pass


class _Outbox:
    """The library's transport: what it sends goes to a function."""

    ready = True

    def __init__(self, send: Callable[[str, dict[str, Any]], None]) -> None:
        self._send = send

    def send(self, node: Any, message: dict[str, Any]) -> bool:
        self._send(node.id, message)
        return True

    def tryGetReady(self) -> None:
        pass

    def destroy(self) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("setOn"):
            return lambda *_: None  # messages come through `Core.receive`
        raise AttributeError(name)


@contextmanager
def _injected(log: _Log) -> Iterator[None]:
    """The library makes its log and its poller itself; while one of ours is being made, it gets these."""
    create_journal, create_poller = syncobj.createJournal, syncobj.createPoller
    syncobj.createJournal = lambda _: log
    syncobj.createPoller = lambda _: _NoPoller()
    try:
        yield
    finally:
        syncobj.createJournal, syncobj.createPoller = create_journal, create_poller


class Library(SyncObj):  # type: ignore[misc]  # PySyncObj has no types
    """The private names of PySyncObj that the core reads, writes or calls, under names of ours."""

    def __init__(
        self,
        *,
        member_id: str,
        others: list[str],
        storage: Storage,
        config: RaftConfig,
        clock: Clock,
        send: Callable[[str, dict[str, Any]], None],
        on_state_changed: Callable[[int, int], None],
    ) -> None:
        use_clock(clock)
        conf = SyncObjConf(
            autoTick=False,
            dynamicMembershipChange=False,
            raftMinTimeout=config.election_ms_min / 1000,
            raftMaxTimeout=config.election_ms_max / 1000,
            connectionTimeout=config.election_ms_max / 1000,
            appendEntriesPeriod=config.heartbeat_ms / 1000,
            # Check-quorum: a leader that hears of no majority for so long is one no more.
            leaderFallbackTimeout=2 * config.election_ms_max / 1000,
            # Entries are sent once a turn for all commands of it, see `Core._replicate`.
            appendEntriesUseBatch=True,
            commandsWaitLeader=False,
            commandsQueueSize=config.commands_max,
            onStateChanged=on_state_changed,
        )
        nodes = [Node(other) for other in others]
        with _injected(_Log(storage)):
            super().__init__(Node(member_id), nodes, conf=conf, transport=_Outbox(send))
        self.nodes = {node.id: node for node in nodes}
        applied = 1 if storage.snapshot is None else storage.snapshot.last_index
        self.set_positions(applied=applied)
        self.set_election_deadline(NEVER)

    # -- what it is ------------------------------------------------------------------------------------------------

    @property
    def raft_state(self) -> int:
        return int(self._SyncObj__raftState)

    def set_raft_state(self, state: int) -> None:
        self._SyncObj__setState(state)

    @property
    def current_term(self) -> int:
        return int(self._SyncObj__raftCurrentTerm)

    @property
    def voted_for(self) -> str | None:
        vote: str | None = self._SyncObj__votedForNodeId
        return vote

    @property
    def leader(self) -> str | None:
        node = self._SyncObj__raftLeader
        return None if node is None else str(node.id)

    def set_leader(self, member_id: str | None) -> None:
        self._SyncObj__raftLeader = None if member_id is None else self.nodes[member_id]

    @property
    def no_op_index(self) -> int:
        """The entry with which this leadership began."""
        return int(self._SyncObj__noopIDx or 0)

    # -- the log ---------------------------------------------------------------------------------------------------

    @property
    def commit_index(self) -> int:
        return int(self._SyncObj__raftCommitIndex)

    def set_commit_index(self, index: int) -> None:
        self._SyncObj__raftCommitIndex = index

    @property
    def applied_index(self) -> int:
        return int(self._SyncObj__raftLastApplied)

    def set_positions(self, *, applied: int) -> None:
        """All up to here is applied, by a snapshot."""
        self._SyncObj__raftLastApplied = applied
        self._SyncObj__raftCommitIndex = applied

    def set_match_index(self, member_id: str, index: int) -> None:
        self._SyncObj__raftMatchIndex[self.nodes[member_id]] = index

    def match_index(self, member_id: str) -> int:
        return int(self._SyncObj__raftMatchIndex.get(self.nodes[member_id], 0))

    # -- elections -------------------------------------------------------------------------------------------------

    def set_election_deadline(self, at: float) -> None:
        self._SyncObj__raftElectionDeadline = at

    def set_connected(self, member_id: str, connected: bool) -> None:
        if connected:
            self._SyncObj__onNodeConnected(self.nodes[member_id])
        else:
            self._SyncObj__onNodeDisconnected(self.nodes[member_id])

    def become_leader(self) -> None:
        self._SyncObj__onBecomeLeader()

    def heard_from(self, member_id: str, now: float) -> None:
        self._SyncObj__lastResponseTime[self.nodes[member_id]] = now

    def set_next_heartbeat(self, at: float) -> None:
        self._SyncObj__newAppendEntriesTime = at

    # -- commands --------------------------------------------------------------------------------------------------

    def take_queued(self) -> list[Callable[[bytes | None, int], None]]:
        """The callbacks of commands that were not added to the log, which now never will be."""
        taken: list[Callable[[bytes | None, int], None]] = []
        queue = self._SyncObj__commandsQueue
        while True:
            try:
                _, callback = queue.get_nowait()
            except syncobj.Queue.Empty:
                return taken
            taken.append(callback)

    def take_uncommitted(self) -> list[Callable[[bytes | None, int], None]]:
        """The callbacks of commands in the log of which nobody knows whether they will be committed."""
        waiting = self._SyncObj__commandsWaitingCommit
        taken = [callback for index in sorted(waiting) for _, callback in waiting[index]]
        waiting.clear()
        return taken


syncobj.monotonicTime = lambda: _clock()
# It would open a pipe for each member to wake up a poller that there is not.
syncobj.PIPE_NOTIFIER_ENABLED = False
