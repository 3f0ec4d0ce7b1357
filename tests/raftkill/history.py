"""What clients asked for and what they were told, in the order in which it happened."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Each attempt is an invocation and at most one of the others after it."""

    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"
    """It was not done and will not be."""
    INFO = "info"
    """It was done, or will be, or not."""


@dataclass(frozen=True, slots=True)
class Event:
    kind: Kind
    client: str
    seq: int
    value: str
    member: str
    """To whom the attempt went."""
    time_ms: int
    index: int | None = None
    """With OK: where in the replicated log the value stands."""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Write:
    """All attempts to append one value."""

    client: str
    seq: int
    value: str
    invoked_at: int
    """The first invocation's place in the history."""
    acked_at: int | None
    """The acknowledgement's place in the history."""
    index: int | None
    is_refused: bool
    """Each attempt was said to have failed: the value must be nowhere."""


class History:
    """Only one thread writes: the order of events is the order of calls."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._acks = 0
        self._last_ack: Event | None = None

    def add(self, event: Event) -> None:
        self._events.append(event)
        if event.kind is Kind.OK:
            self._acks += 1
            self._last_ack = event

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)

    def __len__(self) -> int:
        return len(self._events)

    @property
    def acks(self) -> int:
        return self._acks

    @property
    def last_ack(self) -> Event | None:
        return self._last_ack

    def writes(self) -> dict[str, Write]:
        """By value, in the order of their first invocations."""
        attempts: dict[str, list[tuple[int, Event]]] = {}
        for at, event in enumerate(self._events):
            attempts.setdefault(event.value, []).append((at, event))
        return {value: _write(events) for value, events in attempts.items()}

    def lines(self) -> Iterator[str]:
        """One JSON object an event, for whoever looks into a failed run."""
        for event in self._events:
            yield json.dumps({key: value for key, value in asdict(event).items() if value is not None})


def _write(events: list[tuple[int, Event]]) -> Write:
    invoked_at, first = events[0]
    if first.kind is not Kind.INVOKE:
        raise ValueError(f"{first.value} was answered before it was asked for")
    acked = next(((at, event) for at, event in events if event.kind is Kind.OK), None)
    invocations = sum(event.kind is Kind.INVOKE for _, event in events)
    failures = sum(event.kind is Kind.FAIL for _, event in events)
    return Write(
        client=first.client,
        seq=first.seq,
        value=first.value,
        invoked_at=invoked_at,
        acked_at=acked[0] if acked else None,
        index=acked[1].index if acked else None,
        is_refused=failures == invocations,
    )
