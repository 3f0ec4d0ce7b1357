"""A follower: takes the leader's entries and snapshots, and says what it has once that is on its disk."""

from __future__ import annotations

from quire.errors import DamagedFileError, DiskFullError, MalformedFrameError, invariant
from quire.types import Buffer
from quire.v1 import raft_pb2
from quire_controller.raft.elections import Elections
from quire_controller.raft.entry import Entry
from quire_controller.raft.member import Message
from quire_controller.raft.messages import Outgoing, decode_entries
from quire_controller.raft.snapshot import SnapshotId, SnapshotReceiver


class Following(Elections):
    # -- entries -----------------------------------------------------------------------------------------------------

    def _on_append(self, peer: str, append: raft_pb2.RaftAppend, body: Buffer) -> None:
        entries = decode_entries(append, body)
        is_leaders = self._follow(peer, append.term)
        if self.is_blocked:
            return  # what cannot be written is not taken, and answers could not be sent
        if not is_leaders:
            # In a term that is over: of which round does not matter, and whoever sent it may count others by now.
            self._answer_append(peer, 0, success=False, index=self._storage.journal.last_index + 1)
            return
        journal = self._storage.journal
        previous_index, previous_term = append.previous_index, append.previous_term
        start = journal[0][1]
        if previous_index < start:
            # What lies before the journal is in a snapshot, so committed, so the leader's as well.
            entries = entries[start - previous_index :]
            previous_index, previous_term = start, journal[0][2]
        if previous_index > journal.last_index:
            self._answer_append(peer, append.round, success=False, index=journal.last_index + 1)
            return
        if journal[previous_index - start][2] != previous_term:
            self._answer_append(peer, append.round, success=False, index=self._where_term_begins(previous_index))
            return
        self._take_entries(entries)
        matched = previous_index + len(entries)
        if min(append.commit_index, matched) > self.commit_index:
            self.set_commit_index(min(append.commit_index, matched))
        self._answer_append(peer, append.round, success=True, index=matched)

    def _take_entries(self, entries: list[Entry]) -> None:
        journal = self._storage.journal
        start = journal[0][1]
        for number, (_, index, term) in enumerate(entries):
            if index <= journal.last_index:
                if journal[index - start][2] == term:
                    continue  # already there: a message that came late must not remove what followed it
                invariant(
                    index > self.commit_index, f"the leader has another entry {index}, which was committed here"
                )
                journal.deleteEntriesFrom(index - start)
            for entry in entries[number:]:
                journal.add(*entry)
            return

    def _where_term_begins(self, index: int) -> int:
        """Where the leader is to try next: whatever it has of that term is before, or it has nothing of it."""
        journal = self._storage.journal
        invariant(index > self.commit_index, f"the leader has another entry {index}, which was committed here")
        start = journal[0][1]
        term = journal[index - start][2]
        while index - 1 > max(self.commit_index, start) and journal[index - 1 - start][2] == term:
            index -= 1
        return index

    def _answer_append(self, peer: str, round_: int, *, success: bool, index: int) -> None:
        answer = raft_pb2.RaftAppendAnswer(
            term=self.current_term,
            round=round_,
            incarnation=self._storage.hard.incarnation,
            success=success,
            index=index,
            votes=self.votes,
        )
        self._answers.append(Outgoing(peer, Message(append_answer=answer)))

    # -- snapshots ---------------------------------------------------------------------------------------------------

    def _on_install(self, peer: str, install: raft_pb2.RaftInstall, body: Buffer) -> None:
        if install.position + len(body) > install.size:
            raise MalformedFrameError(f"a part of a snapshot reaches beyond its {install.size} bytes")
        if self._blocked_until is not None:
            return
        if not self._follow(peer, install.term):
            install.round = 0  # see `_on_append`
            self._answer_install(peer, install, 0)
            return
        contains = SnapshotId(install.last_index, install.last_term)
        if self._has(contains):
            self._answer_install(peer, install, install.size)
            return
        receiver = self._receiver
        if receiver is None or receiver.snapshot != contains or receiver.size != install.size:
            if receiver is not None:
                receiver.abandon()
                self._receiver = None
            if install.position != 0:
                self._answer_install(peer, install, 0)
                return
            receiver = self._receiver = self._storage.begin_install(contains, size=install.size)
        if install.position == receiver.position:
            try:
                receiver.write(bytes(body))
            except DiskFullError:
                receiver.abandon()
                self._receiver = None
                raise
        if receiver.is_complete:
            self._receiver = None
            try:
                self._install(receiver)
            except DamagedFileError:
                # Damaged on its way, or by whoever keeps it: to begin again may help, to believe it never does.
                receiver.abandon()
                self._answer_install(peer, install, 0)
                return
            except DiskFullError:
                receiver.abandon()
                raise
        self._answer_install(peer, install, receiver.position)

    def _has(self, contains: SnapshotId) -> bool:
        """Whether nothing of a snapshot is missing here."""
        if contains.last_index <= self.commit_index:
            return True
        journal = self._storage.journal
        if contains.last_index > journal.last_index:
            return False
        if journal[contains.last_index - journal[0][1]][2] != contains.last_term:
            return False
        # The journal has all of it and perhaps more, so it stays; that this much is committed is news.
        self.set_commit_index(contains.last_index)
        return True

    def _install(self, receiver: SnapshotReceiver) -> None:
        self._storage.install(receiver, self._state_machine)
        self.set_positions(applied=receiver.snapshot.last_index)

    def _answer_install(self, peer: str, install: raft_pb2.RaftInstall, position: int) -> None:
        answer = raft_pb2.RaftInstallAnswer(
            term=self.current_term,
            round=install.round,
            incarnation=self._storage.hard.incarnation,
            last_index=install.last_index,
            position=position,
            votes=self.votes,
        )
        self._answers.append(Outgoing(peer, Message(install_answer=answer)))

    # -- without a vote ----------------------------------------------------------------------------------------------

    def _on_probe_answer(self, peer: str, answer: raft_pb2.RaftProbeAnswer) -> None:
        if self.votes or answer.incarnation != self._storage.hard.incarnation:
            return
        if self._joining.heard(peer, is_pristine=answer.pristine) and self.is_pristine:
            self._begin_quorum()

    def _on_admit(self, peer: str, admit: raft_pb2.RaftAdmit) -> None:
        if (
            not self.votes
            and admit.incarnation == self._storage.hard.incarnation
            and admit.term == self.current_term
            and self.leader == peer
            and self._storage.journal.last_index >= admit.index
            and not self._storage.journal.is_dirty
        ):
            # As if it had voted for this leader: whom its old directory voted for, nobody knows.
            self._storage.admit(self.current_term, peer)
            self._SyncObj__setCurrentTerm(self.current_term, peer)
            self._deadline = self._now() + self._wait()
