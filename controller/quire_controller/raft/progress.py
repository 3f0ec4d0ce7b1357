"""What a leader knows of one other member. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from quire.disk.port import DiskFile
from quire_controller.raft.entry import FIRST_INDEX
from quire_controller.raft.snapshot import SnapshotId


@dataclass(slots=True)
class Install:
    """A snapshot on its way to a member, one part after the other."""

    snapshot: SnapshotId
    file: DiskFile
    size: int
    position: int = 0
    """How much of it the member has."""
    is_sent: bool = False
    """Whether the part from there on was sent and not answered yet."""


@dataclass(slots=True)
class Progress:
    next_index: int
    """The entry to send next."""
    match_index: int = 0
    """Up to here the member has what the leader has, on its disk."""
    is_probing: bool = True
    """Where the logs part is not known: one message at a time, without entries."""
    is_probe_due: bool = True
    round: int = 0
    """The latest round that the member has answered."""
    sent_round: int = 0
    sent_commit: int = 0
    votes: bool = False
    """Whether the member votes. Only then does it count for commits, rounds and the quorum."""
    incarnation: int | None = None
    known_since_round: int = 0
    """The latest round when the member was first heard of with this directory."""
    install: Install | None = None

    def restart(self, *, next_index: int) -> None:
        """The connection is new: nothing of what was sent before may have come, and less may be there than was."""
        self.next_index = next_index
        self.match_index = 0
        self.is_probing = self.is_probe_due = True
        self.sent_round = self.sent_commit = 0
        self.end_install()

    def accepts(self, incarnation: int, *, answered_round: int, latest_round: int, next_index: int) -> bool:
        """Whether an answer is from the directory that the member has now, as far as is known.

        Another one than was known is believed only if it answers a round that began since: then it was there later.
        What a lost one acknowledged is gone, whenever the word of it comes. Whoever gets False begins a round.
        """
        if incarnation == self.incarnation:
            return True
        if self.incarnation is not None:
            if answered_round <= self.known_since_round:
                return False
            self.restart(next_index=next_index)
        self.incarnation = incarnation
        self.known_since_round = latest_round
        return True

    def matched(self, index: int) -> None:
        """The member has everything up to `index`."""
        self.match_index = max(self.match_index, index)
        self.next_index = max(self.next_index, self.match_index + 1)
        self.is_probing = False

    def rejected(self, hint: int, *, last_index: int) -> None:
        """The member lacks the entry before the one that was sent, and says where to try next."""
        if hint <= self.match_index:
            return  # an answer from before it had what it has
        next_index = max(self.match_index + 1, FIRST_INDEX + 1, min(hint, last_index + 1))
        # Of many that were sent in a row each is rejected; only the first such answer tells something new.
        self.is_probe_due = self.is_probe_due or not self.is_probing or next_index != self.next_index
        self.next_index = next_index
        self.is_probing = True

    def end_install(self) -> None:
        if self.install is not None:
            self.install.file.close()
            self.install = None
