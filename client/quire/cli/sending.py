"""Keeps count of what became of messages that were sent."""

from __future__ import annotations

import json
import sys
import threading
from typing import TYPE_CHECKING

from quire.cli.text import count, one_line
from quire.errors import OutcomeUnknownError, QuireError

if TYPE_CHECKING:
    from quire import Delivery, Durability


class Tally:
    """Told of outcomes on the client's thread, asked on the verb's."""

    def __init__(self, topic: str, *, report: bool) -> None:
        self._topic = topic
        self._report = report
        self._lock = threading.Lock()
        self._offsets: dict[int, tuple[int, int]] = {}
        """The first and the last offset in each partition."""
        self._durability: Durability | None = None
        """The least of all."""
        self._error: QuireError | None = None
        self.stored = 0
        self.not_stored = 0
        self.unknown = 0

    @property
    def failed(self) -> bool:
        return self._error is not None

    def add(self, delivery: Delivery) -> None:
        delivery.add_done_callback(self._on_done)

    def refuse(self, error: QuireError) -> None:
        """A message that could not even be sent."""
        with self._lock:
            self._error = self._error or error

    def _on_done(self, delivery: Delivery) -> None:
        error = delivery.exception()
        with self._lock:
            if error is None:
                self._add_stored(delivery)
            else:
                self._error = self._error or error
                if isinstance(error, OutcomeUnknownError):
                    self.unknown += 1
                else:
                    self.not_stored += 1
                if self._report:
                    self._print({"error": error.reason, "message": error.message})

    def _add_stored(self, delivery: Delivery) -> None:
        stored = delivery.result()
        self.stored += 1
        first, last = self._offsets.get(stored.partition, (stored.offset, stored.offset))
        self._offsets[stored.partition] = min(first, stored.offset), max(last, stored.offset)
        least = self._durability
        if least is None or (stored.durability.replicas, stored.durability.fsynced) < (least.replicas, least.fsynced):
            self._durability = stored.durability
        if self._report:
            self._print(
                {
                    "topic": stored.topic,
                    "partition": stored.partition,
                    "offset": stored.offset,
                    "timestamp_ms": stored.timestamp_ms,
                    "duplicate": stored.duplicate,
                    "replicas": stored.durability.replicas,
                    "fsynced": stored.durability.fsynced,
                }
            )

    def _print(self, document: dict[str, object]) -> None:
        print(json.dumps(document))

    def finish(self, *, quiet: bool) -> None:
        """Say what became of all. To be called once nothing is on its way any more."""
        if self.stored if self.failed else not quiet:
            print(f"{count(self.stored, 'message')} stored in {self._topic}{self._where()}", file=sys.stderr)
        if self.not_stored:
            print(f"{count(self.not_stored, 'message')} not stored", file=sys.stderr)
        if self.unknown:
            print(f"{count(self.unknown, 'message')} may be stored, or not", file=sys.stderr)
        if self._error is not None:
            print(f"quire produce: {one_line(self._error.message)} ({self._error.reason})", file=sys.stderr)

    def _where(self) -> str:
        if self._durability is None:
            return ""
        if self._durability.replicas == 0:
            return ", as far as anybody knows: --acks none waits for nothing"
        if len(self._offsets) == 1:
            [(partition, (first, last))] = self._offsets.items()
            offsets = f"offset {first}" if first == last else f"offsets {first} to {last}"
            place = f"partition {partition}, {offsets}"
        else:
            place = count(len(self._offsets), "partition")
        safe = "fsynced" if self._durability.fsynced else "not fsynced"
        return f": {place}; on {count(self._durability.replicas, 'replica')}, {safe}"
