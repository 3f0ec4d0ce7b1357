"""Fetches damaged ranges again, from whichever replica has them.

The batch at an offset in an epoch is the same on every replica, whoever it is and however far behind: so a batch is
taken from anybody if its epoch is the one that this log knows for the offset, and from nobody else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from quire_broker.log.epochs import LeaderEpochs
from quire_broker.replica import streams
from quire_broker.replica.config import ReplicaConfig
from quire_broker.replica.effects import Mend, MenderEffect, Send
from quire_broker.replica.messages import Want
from quire_broker.replica.streams import Logs, LogView


class Batch(NamedTuple):
    """What the header of a checked batch says."""

    base_offset: int
    end_offset: int
    epoch: int


class Mender:
    """One request is under way at a time: damage is rare, and the link has better things to do."""

    def __init__(self, *, logs: Logs, config: ReplicaConfig, requests: int = 0) -> None:
        """`requests` is how many this process has sent for this partition before."""
        self._logs = logs
        self._config = config
        self._request_id = requests
        self._wanted: Want | None = None
        self._asked_ms = -config.want_ms_max
        self._turn = 0
        """Whom to ask for which range: all of them in turn."""
        self._fruitless = 0
        """Requests in a row that brought nothing."""

    @property
    def wanted(self) -> Want | None:
        """What is waited for."""
        return self._wanted

    @property
    def fruitless(self) -> int:
        """How many requests in a row brought nothing."""
        return self._fruitless

    def on_tick(self, sources: Sequence[int], now_ms: int) -> list[MenderEffect]:
        """`sources` are the other replicas to which there is a link."""
        damage = self._damage()
        all_were_asked = self._fruitless >= len(damage) * len(sources)
        if (self._wanted is not None or all_were_asked) and now_ms - self._asked_ms < self._config.want_ms_max:
            return []
        self._wanted = None
        if not damage or not sources:
            return []
        # Another range each time, too: one that nobody has is not to keep the others waiting.
        stream, base, end = damage[self._turn // len(sources) % len(damage)]
        source = sorted(sources)[self._turn % len(sources)]
        self._turn += 1
        self._fruitless += 1
        self._request_id += 1
        self._wanted, self._asked_ms = Want(self._request_id, stream, base, end), now_ms
        return [Send(source, self._wanted)]

    def on_piece(self, request_id: int, batches: Iterable[Batch], now_ms: int) -> list[MenderEffect]:
        """An answer, whose batches are whole and pass their checks. Those that fit are written over the damage."""
        wanted = self._wanted
        if wanted is None or wanted.request_id != request_id:
            return []
        self._wanted = None
        log = streams.view_of(self._logs, wanted.stream)
        if not _is_still_damaged(log, wanted):
            return []
        epochs, offset = LeaderEpochs(log.epochs), wanted.base_offset
        for batch in batches:
            fits = batch.base_offset == offset and batch.end_offset <= wanted.end_offset
            if not fits or batch.epoch != epochs.at(offset):
                break
            offset = batch.end_offset
        if offset == wanted.base_offset:
            return []
        self._fruitless = 0
        return [Mend(wanted.stream, wanted.base_offset, offset)]

    def _damage(self) -> list[tuple[int, int, int]]:
        return [
            (stream, damaged.first_offset, damaged.end_offset)
            for stream, log in sorted(self._logs.items())
            for damaged in log.quarantined
        ]


def _is_still_damaged(log: LogView, wanted: Want) -> bool:
    """Not truncated or mended meanwhile."""
    return any(
        damaged.first_offset <= wanted.base_offset and wanted.end_offset <= damaged.end_offset
        for damaged in log.quarantined
    )
