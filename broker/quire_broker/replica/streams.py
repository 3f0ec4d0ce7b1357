"""The streams of a partition, and what a core can see of their logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from quire.types import NO_EPOCH
from quire_broker.log.epochs import EpochStart
from quire_broker.log.ranges import OffsetRange

RECORDS: Final = 1
DELIVERIES: Final = 2
TIMERS: Final = 3

STREAMS_MAX: Final = 16
"""Of one partition."""


class LogView(Protocol):
    """The log of one stream, as it is at this moment."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def counted_offset(self) -> int:
        """Everything below counts as written, as the flush policy demands."""

    @property
    def latest_epoch(self) -> int:
        """The last leader epoch that is known, with or without a batch; -1 for none."""

    @property
    def epochs(self) -> Iterable[EpochStart]: ...

    @property
    def quarantined(self) -> Sequence[OffsetRange]:
        """Ranges that are damaged, in their order."""

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """(the largest known epoch ≤ `epoch`, where it ends)."""


Logs = Mapping[int, LogView]
"""By stream. The owner adds streams when they are made; one that is absent is empty."""


class _NoLog:
    """What a stream looks like that was never used."""

    start_offset = end_offset = counted_offset = 0
    latest_epoch: int = NO_EPOCH
    epochs: tuple[EpochStart, ...] = ()
    quarantined: tuple[OffsetRange, ...] = ()

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        return NO_EPOCH, 0


NO_LOG: Final = _NoLog()


def view_of(logs: Logs, stream: int) -> LogView:
    return logs.get(stream, NO_LOG)


def is_damaged(logs: Logs) -> bool:
    return any(log.quarantined for log in logs.values())
