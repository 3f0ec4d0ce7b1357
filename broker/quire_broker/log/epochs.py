"""Which leader epoch wrote which offsets.

The cache is the second witness to a batch's epoch, which the CRC does not cover, and what a follower and its
leader compare to find where their logs part (KIP-101).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from quire.errors import StaleEpochError, invariant
from quire.types import NO_EPOCH

_NEVER: Final = 1 << 63


class EpochStart(NamedTuple):
    epoch: int
    start_offset: int


class LeaderEpochs:
    """Entries with rising epochs and rising start offsets."""

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._entries = [EpochStart(epoch, start) for epoch, start in entries]
        for before, after in zip(self._entries, self._entries[1:], strict=False):
            invariant(
                before.epoch < after.epoch and before.start_offset < after.start_offset, "leader epochs out of order"
            )

    def __iter__(self) -> Iterator[EpochStart]:
        return iter(self._entries)

    @property
    def latest(self) -> int:
        return self._entries[-1].epoch if self._entries else NO_EPOCH

    def at(self, offset: int) -> int:
        """The epoch that wrote, or would write, `offset`; -1 before the first entry."""
        return self.span(offset)[0]

    def span(self, offset: int) -> tuple[int, int]:
        """(the epoch that wrote `offset`, where the next one begins): one look-up for many batches."""
        after = bisect_right(self._entries, offset, key=lambda entry: entry.start_offset)
        end = self._entries[after].start_offset if after < len(self._entries) else _NEVER
        return (self._entries[after - 1].epoch if after else NO_EPOCH), end

    def begin(self, epoch: int, start_offset: int) -> bool:
        """Record that `epoch` writes from `start_offset` on. False if that was known already."""
        if epoch == self.latest:
            return False
        if epoch < self.latest:
            raise StaleEpochError(f"leader epoch {epoch} has ended; the log is at epoch {self.latest}", epoch=epoch)
        # An epoch that wrote nothing leaves no trace: no offset belongs to it.
        while self._entries and self._entries[-1].start_offset >= start_offset:
            self._entries.pop()
        self._entries.append(EpochStart(epoch, start_offset))
        return True

    def end_of(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(the largest known epoch ≤ `epoch`, where it ends): the answer to a follower that is at `epoch`."""
        at = bisect_right(self._entries, epoch, key=lambda entry: entry.epoch) - 1
        if at < 0:
            return NO_EPOCH, self._entries[0].start_offset if self._entries else log_end_offset
        end = self._entries[at + 1].start_offset if at + 1 < len(self._entries) else log_end_offset
        return self._entries[at].epoch, end

    def truncate(self, end_offset: int) -> bool:
        """Forget epochs that begin at or after `end_offset`, where batches are being removed. True if any did."""
        count = len(self._entries)
        while self._entries and self._entries[-1].start_offset >= end_offset:
            self._entries.pop()
        return len(self._entries) < count

    def forget_below(self, offset: int) -> None:
        """Forget epochs that ended at or before `offset`."""
        keep = max(0, bisect_right(self._entries, offset, key=lambda entry: entry.start_offset) - 1)
        self._entries = self._entries[keep:]
