"""Bugs to plant in the Raft package, each one that people have really made. A check that misses them is no check."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock

from quire_controller.raft.core import Core
from quire_controller.raft.journal import Journal
from quire_controller.raft.node import RaftNode
from quire_controller.raft.storage import Storage


def vote_not_persisted() -> AbstractContextManager[Any]:
    """A member that restarts has forgotten whom it voted for, and votes again in the same term."""

    def set_vote(self: Storage, term: int, voted_for: str) -> None:
        self.hard = replace(self.hard, term=term, voted_for=voted_for)

    return mock.patch.object(Storage, "set_vote", set_vote)


def blind_truncation() -> AbstractContextManager[Any]:
    """A follower removes whatever follows the previous entry: a late message takes acknowledged entries."""

    def take(self: Core, entries: list[tuple[bytes, int, int]]) -> None:
        journal = self._storage.journal
        if entries:
            journal.deleteEntriesFrom(entries[0][1] - journal[0][1])
            for entry in entries:
                journal.add(*entry)

    return mock.patch.object(Core, "_take_entries", take)


def acks_before_sync() -> AbstractContextManager[Any]:
    """What a member says it has is only in its memory."""

    def receive(self: RaftNode, peer: str, message: Any, body: Any) -> None:
        original(self, peer, message, body)
        self._core._outbox += self._core._answers
        self._core._answers.clear()
        self._send_outbox()

    original: Callable[..., None] = RaftNode._receive
    return mock.patch.object(RaftNode, "_receive", receive)


def no_sync() -> AbstractContextManager[Any]:
    """The journal is written and never synced: only a power cut tells."""

    def flush(self: Journal) -> None:
        with mock.patch("quire.disk.sim_disk.SimFile.sync", return_value=None):
            original(self)

    original = Journal.flush
    return mock.patch.object(Journal, "flush", flush)


def wiped_member_votes() -> AbstractContextManager[Any]:
    """A member whose directory is new votes at once, as if it had never voted or acknowledged before."""

    def open_(*arguments: Any, **keywords: Any) -> Storage:
        storage = original(*arguments, **keywords)
        if not storage.hard.votes:
            storage.admit(storage.hard.term, storage.hard.voted_for)
        return storage

    original = Storage.open
    return mock.patch.object(Storage, "open", staticmethod(open_))


def read_without_a_round() -> AbstractContextManager[Any]:
    """Whoever believes to lead answers reads at once."""

    def confirm(self: Core, callback: Any) -> None:
        if self.is_leader and self.commit_index >= self.no_op_index:
            index = self.commit_index
            self._later(lambda: callback(index))
        else:
            original(self, callback)

    original: Callable[..., None] = Core.confirm
    return mock.patch.object(Core, "confirm", confirm)


PLANTED: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    one.__name__: one
    for one in (
        vote_not_persisted,
        blind_truncation,
        acks_before_sync,
        no_sync,
        wiped_member_votes,
        read_without_a_round,
    )
}
