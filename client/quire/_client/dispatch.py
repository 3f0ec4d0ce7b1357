"""Which batches go where now, and when to look again. Pure.

Batches share requests by themselves: a batch that is not full waits while another one of its partition is on its way,
so what is appended meanwhile goes along. It does not wait for ever: past `PIPELINE_MS` it is sent behind the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from quire._client.accumulator import Accumulator
from quire._client.batch import Batch
from quire._client.outbox import Outbox
from quire._client.stored import Placed
from quire.errors import QuireError

PIPELINE_MS: Final = 10.0
FREEZE_MS: Final = 100.0
"""A batch that cannot be sent is closed after that, so that no record's timestamp is older by more."""
ENTRIES_MAX: Final = 1_000
"""Batches in one request: docs/PROTOCOL.md."""
ENTRY_OVERHEAD_BYTES: Final = 64
"""More than an entry of a request takes beside its records."""
NEVER: Final = float("inf")


class Leader(NamedTuple):
    broker_id: int
    epoch: int


class Gone(NamedTuple):
    """There is no such partition any more, and never will be again."""

    error: QuireError


class Entry(NamedTuple):
    """An attempt to store a batch."""

    batch: Batch
    attempt: int


@dataclass(slots=True)
class Load:
    """What one broker is to get in one request."""

    broker_id: int
    entries: list[Entry] = field(default_factory=list)
    size_bytes: int = 0

    def takes(self, size_bytes: int, *, bytes_max: int) -> bool:
        return not self.entries or (
            len(self.entries) < ENTRIES_MAX and self.size_bytes + size_bytes + ENTRY_OVERHEAD_BYTES <= bytes_max
        )


class Dispatch:
    def __init__(
        self,
        accumulator: Accumulator[Any],
        *,
        idempotent: bool,
        linger_ms: float,
        leader_of: Callable[[Outbox], Leader | Gone | QuireError],
        has_room: Callable[[int, int], bool],
        request_bytes_max: Callable[[int], int],
    ) -> None:
        """`leader_of` says who leads, or why nobody can be asked; `has_room` whether a broker may be sent more
        beside so many bytes that are collected for it already; `request_bytes_max` how many it takes at once."""
        self._accumulator = accumulator
        self._idempotent = idempotent
        self._linger_ms = linger_ms
        self._leader_of = leader_of
        self._has_room = has_room
        self._request_bytes_max = request_bytes_max
        self.identity: int | None = None
        """The producer id under which partitions begin new epochs; None as long as there is none."""
        self.hurry = 0
        """How many wait for everything to be sent: nothing lingers then."""
        self.fenced: QuireError | None = None

    @property
    def wants_identity(self) -> bool:
        return self._idempotent and self.identity is None

    def collect(self, now_ms: float) -> tuple[list[Load], float]:
        """What is to be sent now, and when to call again unless something happens before."""
        loads: dict[int, list[Load]] = {}
        wake_ms = NEVER
        with self._accumulator.lock:
            active = list(self._accumulator.active)
        for outbox in active:
            wake_ms = min(wake_ms, self._collect_from(outbox, loads, now_ms))
        return [load for several in loads.values() for load in several], wake_ms

    def answered(
        self, entry: Entry, outcome: Placed | QuireError, *, leader_epoch: int | None, now_ms: float
    ) -> None:
        """What a broker answered of a batch, under which leader epoch it says; None where nobody said."""
        batch = entry.batch
        epoch = batch.sent_epoch if leader_epoch is None else leader_epoch
        batch.outbox.answered(batch, entry.attempt, outcome, leader_epoch=epoch, now_ms=now_ms)
        if batch.outbox.fenced is not None:
            self.fenced = batch.outbox.fenced

    def fail_all(self, error: QuireError) -> None:
        for outbox in list(self._accumulator.active):
            self._accumulator.freeze(outbox, opened_ms_max=NEVER)
            outbox.fail_all(error)
            self._accumulator.retire(outbox)

    # -- one partition -----------------------------------------------------------------------------------------------

    def _collect_from(self, outbox: Outbox, loads: dict[int, list[Load]], now_ms: float) -> float:
        leader = self._leader_of(outbox)
        if isinstance(leader, Gone):
            self._accumulator.freeze(outbox, opened_ms_max=NEVER)
            outbox.fail_unsent(leader.error)
            outbox.expire(now_ms, obstacle=leader.error)
        elif isinstance(leader, QuireError):
            outbox.expire(now_ms, obstacle=leader)
        else:
            outbox.expire(now_ms, obstacle=None)
            outbox.leader_moved(leader.epoch, now_ms=now_ms)
            while outbox.resume_ms <= now_ms and self._has_room(leader.broker_id, _last(loads, leader.broker_id)):
                batch = self._next(outbox, now_ms)
                if batch is None:
                    break
                self._add(loads, leader, batch, outbox.depart(batch, leader_epoch=leader.epoch))
        self._accumulator.freeze(outbox, opened_ms_max=now_ms - FREEZE_MS)
        if outbox.is_idle:
            self._accumulator.retire(outbox)
            return NEVER
        return self._wake_ms(outbox, now_ms)

    def _next(self, outbox: Outbox, now_ms: float) -> Batch | None:
        if outbox.again:
            return outbox.again.pop(0)
        while outbox.may_begin(self.identity):
            batch = self._accumulator.next_new(outbox, opened_ms_max=now_ms - self._waits_ms(outbox))
            if batch is None:
                return None
            try:
                outbox.begin(batch, self.identity)
                return batch
            except QuireError as error:
                batch.settle(error)  # it has no sequence, so it leaves no gap
        if outbox.is_worn_out(self.identity):
            self.identity = None
        return None

    def _waits_ms(self, outbox: Outbox) -> float:
        """How long the open batch may wait for company."""
        if self.hurry:
            return 0.0
        return self._linger_ms + PIPELINE_MS if outbox.flying else self._linger_ms

    def _add(self, loads: dict[int, list[Load]], leader: Leader, batch: Batch, attempt: int) -> None:
        several = loads.setdefault(leader.broker_id, [Load(leader.broker_id)])
        size = len(batch.encoded)
        if not several[-1].takes(size, bytes_max=self._request_bytes_max(leader.broker_id)):
            several.append(Load(leader.broker_id))
        several[-1].entries.append(Entry(batch, attempt))
        several[-1].size_bytes += size + ENTRY_OVERHEAD_BYTES

    def _wake_ms(self, outbox: Outbox, now_ms: float) -> float:
        wake_ms = outbox.deadline_ms()
        if outbox.resume_ms > now_ms:
            wake_ms = min(wake_ms, outbox.resume_ms)
        batch = outbox.open
        if batch is not None:
            due_ms = batch.opened_ms + self._waits_ms(outbox)
            if due_ms <= now_ms:  # it could go but for something that is not a matter of time
                due_ms = batch.opened_ms + FREEZE_MS
            wake_ms = min(wake_ms, due_ms, batch.opened_ms + FREEZE_MS)
        return wake_ms


def _last(loads: dict[int, list[Load]], broker_id: int) -> int:
    """Bytes that are collected for a broker already."""
    several: Sequence[Load] = loads.get(broker_id, ())
    return sum(load.size_bytes for load in several)
