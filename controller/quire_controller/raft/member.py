"""What a member is and knows, whatever it is doing: its state, its outbox, the terms it has seen."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quire.errors import QuireError, UnavailableError, invariant
from quire.types import Buffer
from quire.v1 import raft_pb2
from quire_controller.ports import ConfirmCallback, StateMachine
from quire_controller.raft.config import RaftConfig
from quire_controller.raft.entry import FIRST_INDEX
from quire_controller.raft.joining import Joining
from quire_controller.raft.library import CANDIDATE, FOLLOWER, LEADER, NEVER, Clock, Library
from quire_controller.raft.messages import Outgoing
from quire_controller.raft.progress import Progress
from quire_controller.raft.snapshot import SnapshotReceiver
from quire_controller.raft.storage import Storage

Message = raft_pb2.RaftMessage


@dataclass(frozen=True, slots=True)
class Status:
    """A member as it sees itself."""

    member_id: str
    role: str
    leader_id: str | None
    votes: bool
    term: int
    commit_index: int
    applied_index: int
    first_index: int
    last_index: int
    snapshot_index: int
    journal_bytes: int
    incarnation: int
    is_blocked: bool
    """The disk is full."""
    match_indexes: dict[str, int]
    """On a leader: up to where each other member has its entries."""
    connected: frozenset[str]


class Member(Library):
    def __init__(
        self,
        *,
        member_id: str,
        others: list[str],
        storage: Storage,
        state_machine: StateMachine,
        config: RaftConfig,
        clock: Clock,
        randomness: random.Random,
    ) -> None:
        self._me = member_id
        self._others = sorted(others)
        self._storage = storage
        self._state_machine = state_machine
        self._limits = config
        self._now = clock
        self._randomness = randomness

        self._outbox: list[Outgoing] = []
        self._answers: list[Outgoing] = []
        """To be sent when the journal is flushed."""
        self._due: list[Callable[[], None]] = []
        """Callbacks of others, run when nothing of ours is half done."""

        self._deadline = clock() + self._wait()
        self._leader_heard_at = -NEVER
        self._poll: set[str] | None = None
        """Who would vote for us, while we ask."""
        self._voters: set[str] = set()
        self._is_taking_over = False
        self._blocked_until: float | None = None

        self._progress: dict[str, Progress] = {}
        self._up: set[str] = set()
        self._joining = Joining(self._others, pause=4 * config.heartbeat_ms / 1000)
        self._receiver: SnapshotReceiver | None = None
        members = sorted([member_id, *others])
        self._snapshot_offset = config.snapshot_entries * members.index(member_id) // len(members)
        """Each member takes its snapshots after other entries, evenly apart. Were all to do so after the same one, no
        majority would have time for the commands that come meanwhile."""

        self._is_heartbeat_due = False
        self._encoded: dict[tuple[int, int], tuple[Message, list[Buffer]]] = {}
        """What this turn has made to be sent, by the entry it begins with and how many there are."""
        self._round = 0
        self._wants_round = False
        self._confirms: list[tuple[int, ConfirmCallback]] = []
        self._commands = 0
        self._command_bytes = 0
        self._mark_after = 0.0
        self._numbers = itertools.count()
        self._applied_waiters: list[tuple[int, int, Callable[[QuireError | None], None]]] = []

        super().__init__(
            member_id=member_id,
            others=self._others,
            storage=storage,
            config=config,
            clock=clock,
            send=self._send_for_library,
            on_state_changed=self._on_state_changed,
        )
        if not self._others and not self.votes:
            self._begin_quorum()

    @property
    def is_leader(self) -> bool:
        return bool(self.raft_state == LEADER)

    @property
    def votes(self) -> bool:
        return bool(self._storage.hard.votes)

    @property
    def is_blocked(self) -> bool:
        """Whether the disk is full, as far as is known."""
        return self._blocked_until is not None

    def is_up(self, peer: str | None) -> bool:
        """Whether there is a connection to a member."""
        return peer in self._up

    @property
    def is_pristine(self) -> bool:
        """Whether this member never had an entry nor gave a vote."""
        return self._storage.journal.last_index == FIRST_INDEX and self._storage.hard.term == 0

    def status(self) -> Status:
        journal, snapshot = self._storage.journal, self._storage.snapshot
        return Status(
            member_id=self._me,
            role={FOLLOWER: "follower", CANDIDATE: "candidate", LEADER: "leader"}[self.raft_state]
            if self.votes
            else "learner",
            leader_id=self.leader,
            votes=self.votes,
            term=self.current_term,
            commit_index=self.commit_index,
            applied_index=self.applied_index,
            first_index=journal.first_index,
            last_index=journal.last_index,
            snapshot_index=0 if snapshot is None else snapshot.last_index,
            journal_bytes=journal.size_bytes,
            incarnation=self._storage.hard.incarnation,
            is_blocked=self.is_blocked,
            match_indexes={peer: one.match_index for peer, one in self._progress.items()} if self.is_leader else {},
            connected=frozenset(self._up),
        )

    # -- terms -------------------------------------------------------------------------------------------------------

    def _wait(self) -> float:
        return self._randomness.uniform(self._limits.election_ms_min, self._limits.election_ms_max) / 1000

    def _adopt(self, term: int) -> None:
        """Somebody has seen a later term: whatever this member was in the old one, it is no more."""
        self._leave_leader()
        self._SyncObj__setCurrentTerm(term, None)

    def _leave_leader(self) -> None:
        self.set_raft_state(FOLLOWER)
        self.set_leader(None)

    def _follow(self, peer: str, term: int) -> bool:
        """A message of a leader: follow it, unless its term is over."""
        if term < self.current_term:
            return False
        if term > self.current_term:
            self._adopt(term)
        invariant(not self.is_leader, f"two leaders in term {term}: '{self._me}' and '{peer}'")
        self.set_raft_state(FOLLOWER)
        self.set_leader(peer)
        self._poll = None
        self._is_taking_over = False
        self.set_election_deadline(NEVER)
        self._leader_heard_at = self._now()
        self._deadline = self._leader_heard_at + self._wait()
        return True

    def _begin_quorum(self) -> None:
        """All members are new: there is nothing that this one could have forgotten."""
        self._storage.admit(0, "")

    def _is_majority(self, count: int) -> bool:
        return 2 * count > len(self._others) + 1

    def _on_state_changed(self, old: int, new: int) -> None:
        raise NotImplementedError

    # -- what goes out -----------------------------------------------------------------------------------------------

    def _not_leader(self) -> UnavailableError:
        if self.leader is None or self.leader == self._me:
            return UnavailableError(
                "the controller quorum has no leader: a majority of its members is down, cut off or electing one",
                retry_after_ms=self._limits.election_ms_max,
            )
        return UnavailableError(f"member '{self._me}' is not the leader, '{self.leader}' is", leader=self.leader)

    def _later(self, callback: Callable[[], None]) -> None:
        self._due.append(callback)

    def _send(self, peer: str, message: Message, body: list[Buffer] | None = None) -> None:
        if peer in self._up:
            self._outbox.append(Outgoing(peer, message, body or ()))

    def _send_for_library(self, peer: str, message: dict[str, Any]) -> None:
        invariant(message["type"] == "request_vote", f"the library sends '{message['type']}', which is replaced")
        vote = raft_pb2.RaftVote(
            term=message["term"],
            last_index=message["last_log_index"],
            last_term=message["last_log_term"],
            take_over=self._is_taking_over,
        )
        self._send(peer, Message(vote=vote))

    # -- what the library calls --------------------------------------------------------------------------------------

    def _SyncObj__setCurrentTerm(self, term: int, voted_for: str | None) -> None:
        # On the disk first: if that fails, nothing has changed.
        self._storage.set_vote(term, voted_for or "")
        if term != self.current_term:
            # Here and nowhere else: a vote of the old term must not be counted in the new one.
            self._voters = {self._me}
        super()._SyncObj__setCurrentTerm(term, voted_for)

    def _SyncObj__generateRaftTimeout(self) -> float:
        return self._wait()
