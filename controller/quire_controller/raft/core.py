"""A member of the quorum: PySyncObj with its weak places replaced. Messages in, messages out; no sockets, no tasks.

Whoever drives it keeps to this order, and everything else is safe:

    receive, propose, confirm …    at any time; they may leave the journal dirty
    turn                           soon after: flushes the journal, lets go of the answers that waited for it, then
                                   lets the library elect, commit and apply, and sends entries to the others
    take_outbox                    send these
    run_callbacks                  tell whoever asked

Invariants (docs/RAFT.md says why each is needed):
- term and vote are on the disk before anyone hears of them;
- what this member says it has is on its disk;
- the library never counts, commits or applies an entry of ours that is not on our disk;
- entries are removed only where they differ from the leader's, and never committed ones;
- a voter is counted once, an acknowledgement only in the term and for the directory that it was given for;
- a member without a vote neither gives one nor stands.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Final

from quire.errors import (
    DiskFullError,
    InvalidArgumentError,
    LogBusyError,
    MalformedFrameError,
    OutcomeUnknownError,
    QuireError,
    UnavailableError,
    invariant,
)
from quire.types import Buffer
from quire.v1 import raft_pb2
from quire_controller.ports import Applied, ConfirmCallback, ProposeCallback
from quire_controller.raft import library
from quire_controller.raft.entry import FIRST_INDEX, NO_OP, REGULAR
from quire_controller.raft.leading import Leading
from quire_controller.raft.library import FOLLOWER, NEVER
from quire_controller.raft.member import Message
from quire_controller.raft.messages import TERM_STEP_MAX, Outgoing
from quire_controller.raft.snapshot import SnapshotId, SnapshotWriter

APPLY_ENTRIES: Final = 8
"""How many are applied between two looks at the clock."""


class Core(Leading):
    # -- what others ask ---------------------------------------------------------------------------------------------

    def propose(self, command: bytes, callback: ProposeCallback) -> None:
        if len(command) > self._limits.command_bytes_max:
            error: QuireError = InvalidArgumentError(
                f"a command has {len(command)} bytes; {self._limits.command_bytes_max} are allowed"
            )
        elif not self.is_leader:
            error = self._not_leader()
        elif (
            self._commands >= self._limits.commands_max
            or self._command_bytes + len(command) > self._limits.commands_bytes_max
        ):
            error = LogBusyError(f"{self._commands} commands wait to be committed, as many as may")
        else:
            self._commands += 1
            self._command_bytes += len(command)
            self._applyCommand(
                REGULAR + command,
                lambda result, reason: self._on_command_done(callback, len(command), result, reason),
            )
            return
        self._later(lambda: callback(error))

    def confirm(self, callback: ConfirmCallback) -> None:
        if not self.is_leader:
            error = self._not_leader()
            self._later(lambda: callback(error))
            return
        # A round that begins from now on: one that is under way may have been answered before this call.
        self._wants_round = True
        self._confirms.append((self._round + 1, callback))

    def when_applied(self, index: int, callback: Callable[[QuireError | None], None]) -> None:
        if index <= self.applied_index:
            self._later(lambda: callback(None))
        elif self.is_blocked:
            self._later(lambda: callback(self._no_room()))
        else:
            heapq.heappush(self._applied_waiters, (index, next(self._numbers), callback))

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for an entry to be applied here."""
        return bool(self._applied_waiters)

    def take_outbox(self) -> list[Outgoing]:
        outbox, self._outbox = self._outbox, []
        # The library sends in the order of a set. What goes to one member stays in order.
        return sorted(outbox, key=lambda outgoing: outgoing.to)

    def run_callbacks(self) -> None:
        while self._due:
            due, self._due = self._due, []
            for callback in due:
                callback()

    def stop(self) -> None:
        """Tell everyone who waits that nothing comes any more."""
        if self.is_leader:
            self._leave_leader()
        self._fail_applied(UnavailableError(f"member '{self._me}' is stopping"))
        if self._receiver is not None:
            self._receiver.abandon()
            self._receiver = None
        for one in self._progress.values():
            one.end_install()

    # -- the turn ----------------------------------------------------------------------------------------------------

    def turn(self, *, by_timer: bool = False) -> None:
        library.use_clock(self._now)
        now = self._now()
        if not self._flush(now):
            return
        if by_timer:
            self._look_at_clock(now)
        invariant(not self._storage.journal.is_dirty, "the library counts entries that are not on the disk")
        try:
            self._onTick(0.0)
        except DiskFullError:
            # It wanted to vote for itself, and could not write that down: then it does not stand.
            self._block(now)
        self.set_election_deadline(NEVER)
        self._is_taking_over = False
        if self.is_leader:
            self._admit_joining()
            self._replicate(by_timer=by_timer)
            self._answer_confirms()
        self._answer_applied()

    def flush(self) -> None:
        """The first half of a turn alone: what was received is on the disk, and its answers are in the outbox."""
        library.use_clock(self._now)
        self._flush(self._now())

    def _flush(self, now: float) -> bool:
        if self._blocked_until is not None and now < self._blocked_until:
            return False
        try:
            self._storage.journal.flush()
        except DiskFullError:
            self._block(now)
            return False
        self._blocked_until = None
        self._outbox += self._answers
        self._answers.clear()
        return True

    def _block(self, now: float) -> None:
        """The disk is full. Others may have room: this member neither leads nor answers until it has, too."""
        self._blocked_until = now + self._limits.disk_retry_ms / 1000
        if self.raft_state != FOLLOWER:
            self._leave_leader()
        self._fail_applied(self._no_room())

    def _look_at_clock(self, now: float) -> None:
        if now >= self._mark_after:
            try:
                self._storage.journal.mark()
            except DiskFullError:
                # Only a precaution; what matters is noticed by the next flush.
                self._mark_after = now + self._limits.disk_retry_ms / 1000
        if self.votes:
            if not self.is_leader and now >= self._deadline:
                self._ask_around(now)
        elif self._joining.is_due(now):
            probe = raft_pb2.RaftProbe(incarnation=self._storage.hard.incarnation)
            for peer in self._others:
                self._send(peer, Message(probe=probe))

    # -- messages ----------------------------------------------------------------------------------------------------

    def receive(self, peer: str, message: Message, body: Buffer) -> None:
        """A message came. Raises MalformedFrameError for one that no member of this version sends."""
        library.use_clock(self._now)
        name = message.WhichOneof("message")
        term = getattr(getattr(message, name), "term", 0) if name is not None else 0
        if self.votes and term > self.current_term + TERM_STEP_MAX:
            raise MalformedFrameError(f"member '{peer}' speaks of term {term}, and this is term {self.current_term}")
        try:
            match name:
                case "pre_vote":
                    self._on_pre_vote(peer, message.pre_vote)
                case "pre_vote_answer":
                    self._on_pre_vote_answer(peer, message.pre_vote_answer)
                case "vote":
                    self._on_vote(peer, message.vote)
                case "vote_answer":
                    self._on_vote_answer(peer, message.vote_answer)
                case "append":
                    self._on_append(peer, message.append, body)
                case "append_answer":
                    self._on_append_answer(peer, message.append_answer)
                case "install":
                    self._on_install(peer, message.install, body)
                case "install_answer":
                    self._on_install_answer(peer, message.install_answer)
                case "probe":
                    self._on_probe(peer, message.probe)
                case "probe_answer":
                    self._on_probe_answer(peer, message.probe_answer)
                case "admit":
                    self._on_admit(peer, message.admit)
                case "take_over":
                    self._on_take_over(peer, message.take_over)
                case other:
                    raise MalformedFrameError(f"a message '{other}' is not for the core of a member")
        except DiskFullError:
            # Nothing was written down, so nothing is answered: to the others this message was lost.
            self._block(self._now())

    # -- snapshots ---------------------------------------------------------------------------------------------------

    @property
    def snapshot_is_due(self) -> bool:
        snapshot = self._storage.snapshot
        taken, applied = FIRST_INDEX if snapshot is None else snapshot.last_index, self.applied_index
        if applied == taken or self.is_blocked:
            return False
        every, offset = self._limits.snapshot_entries, self._snapshot_offset
        is_time = (applied - offset) // every > (taken - offset) // every
        return is_time or self._storage.journal.size_bytes >= self._limits.snapshot_bytes

    def begin_snapshot(self) -> tuple[SnapshotWriter, Iterator[bytes]]:
        """A picture of the state as it is now, and the file to write it to."""
        journal = self._storage.journal
        contains = SnapshotId(self.applied_index, journal[self.applied_index - journal[0][1]][2])
        return self._storage.begin_snapshot(contains), self._state_machine.freeze()

    def finish_snapshot(self, writer: SnapshotWriter) -> None:
        """The picture is written and synced."""
        newest = self._storage.snapshot
        if newest is not None and newest.last_index >= writer.snapshot.last_index:
            writer.abandon()  # the leader has sent a newer one meanwhile
        else:
            self._storage.publish_snapshot(writer)

    # -- answers -----------------------------------------------------------------------------------------------------

    def _on_command_done(self, callback: ProposeCallback, size: int, result: Applied | None, reason: int) -> None:
        self._commands -= 1
        self._command_bytes -= size
        outcome: Applied | QuireError
        if reason == library.SUCCESS:
            invariant(result is not None, "a command was applied without a result")
            assert result is not None  # for the type checker
            outcome = result
        elif reason == library.LEADER_CHANGED:
            outcome = OutcomeUnknownError(
                f"member '{self._me}' lost its leadership before it knew whether the command was committed; "
                "ask again under the same client id and sequence"
            )
        else:
            outcome = self._not_leader()
        self._later(lambda: callback(outcome))

    def _fail_applied(self, error: QuireError) -> None:
        for _, _, callback in sorted(self._applied_waiters):
            self._later(lambda callback=callback: callback(error))  # type: ignore[misc]  # mypy cannot infer it
        self._applied_waiters.clear()

    def _no_room(self) -> UnavailableError:
        return UnavailableError(
            f"the disk of member '{self._me}' is full; ask another one", retry_after_ms=self._limits.disk_retry_ms
        )

    def _answer_applied(self) -> None:
        waiters = self._applied_waiters
        while waiters and waiters[0][0] <= self.applied_index:
            _, _, callback = heapq.heappop(waiters)
            self._later(lambda callback=callback: callback(None))  # type: ignore[misc]  # mypy cannot infer it

    # -- what the library calls --------------------------------------------------------------------------------------

    def _SyncObj__applyLogEntries(self) -> bool:
        # A slice at a time: a member that has much to catch up on must go on answering meanwhile.
        end = self._now() + self._limits.heartbeat_ms / 2000
        committed = self.commit_index
        try:
            while self.applied_index < committed:
                self.set_commit_index(min(committed, self.applied_index + APPLY_ENTRIES))
                super()._SyncObj__applyLogEntries()
                if self._now() >= end:
                    break
        finally:
            self.set_commit_index(committed)
        return False

    def _SyncObj__doApplyCommand(self, data: bytes) -> Applied | None:
        if data[:1] == NO_OP:
            return None
        invariant(data[:1] == REGULAR, f"entry {self.applied_index + 1} is of no kind that this version knows")
        index = self.applied_index + 1
        return Applied(index, self._state_machine.apply(index, data[1:]))

    def _SyncObj__tryLogCompaction(self) -> None:
        """Snapshots are taken by `SnapshotJob`."""

    def _checkCommandsToApply(self) -> None:
        if self.is_leader:
            super()._checkCommandsToApply()
        else:
            for callback in self.take_queued():
                callback(None, library.DISCARDED)
