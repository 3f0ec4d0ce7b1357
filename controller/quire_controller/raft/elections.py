"""Elections: nobody stands before a majority has said that it would vote for him, and each voter counts once."""

from __future__ import annotations

from quire.v1 import raft_pb2
from quire_controller.raft.library import CANDIDATE, FOLLOWER, NEVER
from quire_controller.raft.member import Member, Message


class Elections(Member):
    def _ask_around(self, now: float) -> None:
        """Ask whether an election would be won, before one is begun."""
        self._deadline = now + self._wait()
        self.set_leader(None)
        if not self._others:
            self._stand()
            return
        self._poll = {self._me}
        poll = raft_pb2.RaftPreVote(
            term=self.current_term + 1,
            last_index=self._storage.journal.last_index,
            last_term=self._storage.journal[-1][2],
        )
        for peer in self._others:
            self._send(peer, Message(pre_vote=poll))

    def _stand(self) -> None:
        """Let the library begin an election in this turn, or the next."""
        self._poll = None
        self.set_election_deadline(-NEVER)

    def _on_pre_vote(self, peer: str, poll: raft_pb2.RaftPreVote) -> None:
        granted = (
            self.votes
            and not self._follows_living_leader()
            and poll.term > self.current_term
            and self._is_up_to_date(poll.last_index, poll.last_term)
        )
        term = poll.term if granted else self.current_term
        self._send(peer, Message(pre_vote_answer=raft_pb2.RaftPreVoteAnswer(granted=granted, term=term)))

    def _on_pre_vote_answer(self, peer: str, answer: raft_pb2.RaftPreVoteAnswer) -> None:
        if not answer.granted:
            if answer.term > self.current_term and not self.is_leader:
                self._adopt(answer.term)
        elif self._poll is not None and answer.term == self.current_term + 1 and not self.is_leader:
            self._poll.add(peer)
            if self._is_majority(len(self._poll)):
                self._stand()

    def _on_vote(self, peer: str, vote: raft_pb2.RaftVote) -> None:
        if not self.votes or (self._follows_living_leader() and not vote.take_over):
            return
        granted = (
            vote.term >= self.current_term
            and (vote.term > self.current_term or self.voted_for in (None, peer))
            and (vote.term > self.current_term or self.raft_state == FOLLOWER)
            and self._is_up_to_date(vote.last_index, vote.last_term)
        )
        if granted:
            if vote.term > self.current_term:
                self._leave_leader()
            self._SyncObj__setCurrentTerm(vote.term, peer)
            self._deadline = self._now() + self._wait()
        elif vote.term > self.current_term:
            self._adopt(vote.term)
        answer = raft_pb2.RaftVoteAnswer(granted=granted, term=self.current_term)
        self._send(peer, Message(vote_answer=answer))

    def _on_vote_answer(self, peer: str, answer: raft_pb2.RaftVoteAnswer) -> None:
        if answer.term > self.current_term:
            self._adopt(answer.term)
        elif answer.granted and answer.term == self.current_term and self.raft_state == CANDIDATE:
            self._voters.add(peer)
            if self._is_majority(len(self._voters)):
                self.become_leader()

    def _on_take_over(self, peer: str, request: raft_pb2.RaftTakeOver) -> None:
        if self.votes and request.term == self.current_term and self.leader == peer:
            self._is_taking_over = True
            self._stand()

    def _follows_living_leader(self) -> bool:
        """Whether a leader is at work as far as this member knows: then nobody needs another one."""
        return self.is_leader or self._now() - self._leader_heard_at < self._limits.election_ms_min / 1000

    def _is_up_to_date(self, last_index: int, last_term: int) -> bool:
        _, own_index, own_term = self._storage.journal[-1]
        return (last_term, last_index) >= (own_term, own_index)
