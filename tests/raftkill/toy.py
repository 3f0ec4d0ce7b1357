"""The replicated state machine of these tests: a list to which each (client, seq) appends once."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Toy:
    """Pure: members that apply the same commands at the same indexes are equal."""

    values: list[str] = field(default_factory=list)
    last: dict[str, tuple[int, int]] = field(default_factory=dict)
    """For each client the last seq that was applied, and the index at which it first was."""

    def apply(self, *, index: int, client: str, seq: int, value: str) -> int:
        """The index at which this (client, seq) was applied first; 0 when that is no longer known."""
        seq_last, index_last = self.last.get(client, (0, 0))
        if seq > seq_last:
            self.values.append(value)
            self.last[client] = (seq, index)
            return index
        return index_last if seq == seq_last else 0
