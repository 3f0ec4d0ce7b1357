"""A leader: sends each member what it lacks, counts what it has, confirms reads, and admits those without a vote."""

from __future__ import annotations

from quire.errors import MalformedFrameError, invariant
from quire.types import Buffer
from quire.v1 import raft_pb2
from quire_controller.raft import library
from quire_controller.raft.entry import NO_OP, Entry
from quire_controller.raft.following import Following
from quire_controller.raft.joining import Join
from quire_controller.raft.library import LEADER
from quire_controller.raft.member import Message
from quire_controller.raft.messages import encode_entries
from quire_controller.raft.progress import Install, Progress

Answer = raft_pb2.RaftAppendAnswer | raft_pb2.RaftInstallAnswer


class Leading(Following):
    def connected(self, peer: str) -> None:
        self._up.add(peer)
        self.set_connected(peer, True)
        if self.is_leader:
            self._progress[peer].restart(next_index=self._storage.journal.last_index + 1)
            self.set_match_index(peer, 0)

    def disconnected(self, peer: str) -> None:
        self._up.discard(peer)
        self.set_connected(peer, False)
        if self.is_leader:
            self._progress[peer].end_install()

    def _on_state_changed(self, old: int, new: int) -> None:
        if new == LEADER:
            next_index = self._storage.journal.last_index + 1
            self._progress = {peer: Progress(next_index) for peer in self._others}
            self._round = 0
        elif old == LEADER:
            self._deadline = self._now() + self._wait()
            error = self._not_leader()
            for callback in self.take_queued():
                callback(None, library.DISCARDED)
            for callback in self.take_uncommitted():
                callback(None, library.LEADER_CHANGED)
            confirms, self._confirms = self._confirms, []
            for _, confirm in confirms:
                self._later(lambda confirm=confirm: confirm(error))  # type: ignore[misc]  # mypy cannot infer it
            for one in self._progress.values():
                one.end_install()
            self._joining.forget()

    def take_over_by(self) -> str | None:
        """Ask a member that has everything to take over; None where there is none."""
        if self.is_leader:
            for peer in self._others:
                one = self._progress[peer]
                if peer in self._up and one.votes and one.match_index == self._storage.journal.last_index:
                    self._send(peer, Message(take_over=raft_pb2.RaftTakeOver(term=self.current_term)))
                    return peer
        return None

    # -- entries -----------------------------------------------------------------------------------------------------

    def _replicate(self, *, by_timer: bool) -> None:
        """Send each member what it lacks; to those that lack nothing a sign of life, when it is time for one."""
        is_heartbeat, self._is_heartbeat_due = self._is_heartbeat_due, False
        if self._wants_round:
            self._wants_round = False
            self._round += 1
        self._encoded.clear()
        for peer in self._others:
            if peer not in self._up:
                continue
            one = self._progress[peer]
            is_wanted = (
                is_heartbeat or one.sent_round < self._round or (by_timer and one.sent_commit < self.commit_index)
            )
            if one.install is None and one.next_index <= self._storage.journal[0][1]:
                one.install = self._begin_install()
            if one.install is not None:
                if is_wanted or not one.install.is_sent:
                    self._send_part(peer, one, one.install)
            elif one.is_probing:
                if is_wanted or one.is_probe_due:
                    one.is_probe_due = False
                    self._send_entries(peer, one, [])
            else:
                self._send_all(peer, one, is_wanted=is_wanted)

    def _send_all(self, peer: str, one: Progress, *, is_wanted: bool) -> None:
        journal = self._storage.journal
        start = journal[0][1]
        while (
            one.next_index <= journal.last_index
            and one.next_index - one.match_index <= self._limits.window_entries_max
        ):
            position = one.next_index - start
            entries = journal[position : position + self._limits.append_entries_max]
            total = 0
            for count, entry in enumerate(entries):
                total += len(entry[0])
                if total > self._limits.append_bytes_max and count > 0:
                    entries = entries[:count]
                    break
            self._send_entries(peer, one, entries)
            one.next_index += len(entries)
            is_wanted = False
        if is_wanted:
            self._send_entries(peer, one, [])

    def _send_entries(self, peer: str, one: Progress, entries: list[Entry]) -> None:
        message, body = self._encode(one.next_index, entries)
        one.sent_round = self._round
        one.sent_commit = self.commit_index
        self._send(peer, message, body)

    def _encode(self, next_index: int, entries: list[Entry]) -> tuple[Message, list[Buffer]]:
        """Made once for all members that lack the same."""
        made = self._encoded.get((next_index, len(entries)))
        if made is None:
            journal = self._storage.journal
            append = raft_pb2.RaftAppend(
                term=self.current_term,
                previous_index=next_index - 1,
                previous_term=journal[next_index - 1 - journal[0][1]][2],
                commit_index=self.commit_index,
                round=self._round,
            )
            body = encode_entries(append, entries)
            made = self._encoded[next_index, len(entries)] = Message(append=append), body
        return made

    def _answered(self, peer: str, answer: Answer) -> Progress | None:
        """What is known of the member that answered; None if the answer does not count."""
        if answer.term > self.current_term:
            self._adopt(answer.term)
            return None
        if not self.is_leader or answer.term != self.current_term:
            return None
        self._check_answer(peer, answer)
        one = self._progress[peer]
        if not self._is_of_its_directory(one, answer.incarnation, answer.round):
            return None
        one.votes = answer.votes
        if one.votes:
            self.heard_from(peer, self._now())
            one.round = max(one.round, answer.round)
        self._count(peer, one)
        return one

    def _is_of_its_directory(self, one: Progress, incarnation: int, answered_round: int) -> bool:
        next_index = self._storage.journal.last_index + 1
        if one.accepts(incarnation, answered_round=answered_round, latest_round=self._round, next_index=next_index):
            return True
        # Only the one that is there can answer a round that begins now.
        self._wants_round = True
        return False

    def _check_answer(self, peer: str, answer: Answer) -> None:
        """Nobody can have what was not sent. Looked at before anything is noted: such a round confirms any read."""
        last_index = self._storage.journal.last_index
        if isinstance(answer, raft_pb2.RaftAppendAnswer) and answer.success and answer.index > last_index:
            raise MalformedFrameError(f"member '{peer}' has entry {answer.index}, the leader's last is {last_index}")
        if answer.round > self._round:
            raise MalformedFrameError(f"member '{peer}' answers round {answer.round}, the latest is {self._round}")

    def _count(self, peer: str, one: Progress) -> None:
        """Let the library count what the member has, if it votes.

        One without a vote may follow a leader that was deposed with the help of its lost directory. If that leader
        counted it, two leaders would each have a majority.
        """
        self.set_match_index(peer, one.match_index if one.votes else 0)

    def _on_append_answer(self, peer: str, answer: raft_pb2.RaftAppendAnswer) -> None:
        one = self._answered(peer, answer)
        if one is None:
            return
        if answer.success:
            one.matched(answer.index)
        else:
            one.rejected(answer.index, last_index=self._storage.journal.last_index)
        self._count(peer, one)

    # -- snapshots ---------------------------------------------------------------------------------------------------

    def _begin_install(self) -> Install:
        snapshot = self._storage.snapshot
        invariant(snapshot is not None, "entries are gone from the journal, and there is no snapshot")
        assert snapshot is not None  # for the type checker
        file = self._storage.open_snapshot()
        return Install(snapshot, file, file.size())

    def _send_part(self, peer: str, one: Progress, install: Install) -> None:
        part = install.file.read(install.position, self._limits.chunk_bytes)
        install.is_sent = True
        one.sent_round = self._round
        message = raft_pb2.RaftInstall(
            term=self.current_term,
            round=self._round,
            last_index=install.snapshot.last_index,
            last_term=install.snapshot.last_term,
            position=install.position,
            size=install.size,
        )
        self._send(peer, Message(install=message), [part])

    def _on_install_answer(self, peer: str, answer: raft_pb2.RaftInstallAnswer) -> None:
        one = self._answered(peer, answer)
        if one is None or one.install is None or one.install.snapshot.last_index != answer.last_index:
            return
        if answer.position >= one.install.size:
            one.end_install()
            one.matched(answer.last_index)
            self._count(peer, one)
        elif answer.position == 0:
            # It wants to begin anew, perhaps because what we sent is damaged: with the newest one, and not at once.
            one.end_install()
            one.install = self._begin_install()
            one.install.is_sent = True
        elif answer.position != one.install.position:
            one.install.position = answer.position
            one.install.is_sent = False

    # -- members without a vote --------------------------------------------------------------------------------------

    def _on_probe(self, peer: str, probe: raft_pb2.RaftProbe) -> None:
        answer = raft_pb2.RaftProbeAnswer(incarnation=probe.incarnation, pristine=self.is_pristine)
        self._send(peer, Message(probe_answer=answer))
        if not self.is_leader:
            return
        one = self._progress[peer]
        if not self._is_of_its_directory(one, probe.incarnation, 0):
            return  # it probes again
        self._count(peer, one)
        if self._joining.needs_entry(peer, probe.incarnation):
            index = self._storage.journal.last_index + 1
            self._storage.journal.add(NO_OP, index, self.current_term)
            self._joining.begin(peer, Join(probe.incarnation, index))

    def _admit_joining(self) -> None:
        if not self._joining.is_anyone_joining:
            return
        own = self._storage.journal.last_index
        matches = {self._me: own, **{peer: self._progress[peer].match_index for peer in self._others}}
        for peer, join in self._joining.admissible(matches, commit_index=self.commit_index):
            admit = raft_pb2.RaftAdmit(term=self.current_term, incarnation=join.incarnation, index=join.index)
            self._send(peer, Message(admit=admit))

    # -- reads -------------------------------------------------------------------------------------------------------

    def _answer_confirms(self) -> None:
        if not self._confirms or self.commit_index < self.no_op_index:
            return  # until its first entry is committed, a leader does not know what its predecessors had committed
        rounds = sorted((one.round for one in self._progress.values()), reverse=True)
        # With itself it needs so many others.
        needed = (len(self._others) + 1) // 2
        confirmed = self._round if needed == 0 else rounds[needed - 1]
        index = self.commit_index
        left = []
        for round_, callback in self._confirms:
            if round_ <= confirmed:
                self._later(lambda callback=callback: callback(index))  # type: ignore[misc]  # mypy cannot infer it
            else:
                left.append((round_, callback))
        self._confirms = left

    # -- what the library calls --------------------------------------------------------------------------------------

    def _SyncObj__onBecomeLeader(self) -> None:
        super()._SyncObj__onBecomeLeader()
        # A quorum of one counts its own entries at once.
        self._storage.journal.flush()

    def _SyncObj__sendAppendEntries(self) -> None:
        self.set_next_heartbeat(self._now() + self._limits.heartbeat_ms / 1000)
        self._is_heartbeat_due = True
