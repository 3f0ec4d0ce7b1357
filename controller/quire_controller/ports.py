"""What the parts of the controller need of each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from quire.errors import QuireError


class StateMachine(Protocol):
    """What the quorum keeps the same on every member. Pure: no clock, no randomness, no order of a set."""

    def apply(self, index: int, command: bytes) -> bytes:
        """Carry out the command that was committed at `index` and give its result.

        Every member calls this with the same commands in the same order, again after each restart from the last
        snapshot. A command that cannot be carried out is a result that says so. An exception is a bug and ends the
        process: if it were swallowed, members would differ.
        """
        ...

    def freeze(self) -> Iterator[bytes]:
        """The whole state as pieces, encoded as they are asked for, each in well below a millisecond.

        The picture is that of the moment of the call, whatever is applied while it is being read; taking it costs
        no more than copying some tables of references.
        """
        ...

    def restore(self, pieces: Iterable[bytes]) -> None:
        """Forget everything and become what `freeze` gave. Raises DamagedFileError for what it cannot read."""
        ...


@dataclass(frozen=True, slots=True)
class Applied:
    """A command was committed and carried out."""

    index: int
    result: bytes


ProposeCallback = Callable[[Applied | QuireError], None]
"""UnavailableError: nothing was done, nor will be. OutcomeUnknownError: it was carried out, or will be, or not."""

ConfirmCallback = Callable[[int | QuireError], None]
"""The index up to which a member must have applied before it reads, or why there is none."""


class Quorum(Protocol):
    """The Raft quorum as seen from one member. Callbacks come on the loop's thread, each exactly once."""

    @property
    def is_leader(self) -> bool:
        """Whether this member believes to be the leader; only `confirm` proves it."""
        ...

    @property
    def leader_id(self) -> str | None: ...

    @property
    def term(self) -> int: ...

    @property
    def applied_index(self) -> int: ...

    def propose(self, command: bytes, callback: ProposeCallback) -> None:
        """Commit a command, here or through the leader. Fails at once when no leader is known."""
        ...

    def confirm(self, callback: ConfirmCallback) -> None:
        """A quorum round that begins after this call: whoever was leader at its start is told that it still is.

        On a follower the leader is asked. What is read after the index has been applied here is linearizable.
        """
        ...

    def when_applied(self, index: int, callback: Callable[[QuireError | None], None]) -> None:
        """Called once this member has applied `index`, or with an error when it is stopped before."""
        ...
