"""How a member without a vote gets one. Pure.

A member whose directory is new has no vote: it may have had one before, and given it. It probes all others.

- If every one of them says that it is new as well, there never was a quorum, and each takes its vote by itself.
- Otherwise the leader catches it up like any follower. When the first probe comes it makes an entry; once a majority
  *of the other members* has that entry, and it is committed, and the prober has it, the leader admits the prober.

Why that entry, and why the others: whoever holds a vote that the lost directory gave needs the votes of others
too, and a majority of those have an entry that it lacks, so they refuse. And whatever the lost directory had
acknowledged is on enough of the others that the leader must have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(slots=True)
class Join:
    incarnation: int
    """The prober's directory."""
    index: int
    """The entry that was made for it."""
    is_told: bool = False


class Joining:
    def __init__(self, others: list[str], *, pause: float) -> None:
        self._others = others
        self._pause = pause
        self._next_probe = 0.0
        self._pristine: set[str] = set()
        self._joins: dict[str, Join] = {}

    # -- the member without a vote ---------------------------------------------------------------------------------

    def is_due(self, now: float) -> bool:
        """Whether to probe now; once in a while."""
        if now < self._next_probe:
            return False
        self._next_probe = now + self._pause
        return True

    def heard(self, peer: str, *, is_pristine: bool) -> bool:
        """Note an answer; true if all others are as new as we."""
        if is_pristine:
            self._pristine.add(peer)
        else:
            self._pristine.discard(peer)
        return len(self._pristine) == len(self._others)

    # -- the leader ------------------------------------------------------------------------------------------------

    def needs_entry(self, peer: str, incarnation: int) -> bool:
        """Whether this probe is the first of its directory. If not, the prober may have missed its admission."""
        join = self._joins.get(peer)
        if join is None or join.incarnation != incarnation:
            return True
        join.is_told = False
        return False

    def begin(self, peer: str, join: Join) -> None:
        self._joins[peer] = join

    @property
    def is_anyone_joining(self) -> bool:
        """Whether anyone is still to be told that it votes."""
        return any(not join.is_told for join in self._joins.values())

    def forget(self) -> None:
        """The leadership is over; the next leader is probed too."""
        self._joins.clear()

    def admissible(self, matches: Mapping[str, int], *, commit_index: int) -> Iterator[tuple[str, Join]]:
        """Who is to be told that it votes, given up to where each member has the leader's entries."""
        for peer, join in sorted(self._joins.items()):
            if join.is_told or commit_index < join.index or matches[peer] < join.index:
                continue
            have = sum(1 for member, match in matches.items() if member != peer and match >= join.index)
            if 2 * have > len(matches) - 1:
                join.is_told = True
                yield peer, join
