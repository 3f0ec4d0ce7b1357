"""What `send` gives: a record on its way. No more than a batch and an index, since there is one for every record."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from quire._client.accumulator import Span
from quire._client.batch import Batch
from quire._client.stored import Placed, Stored, StoredRange
from quire.errors import InvalidArgumentError, OutcomeUnknownError, QuireError

_log = logging.getLogger("quire")


class _Handle:
    """What both kinds of delivery have in common."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch = batch
        self._index = index

    def done(self) -> bool:
        """Whether the outcome is there."""
        return self._batch.outcome is not None

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call it with this delivery once the outcome is there, on the client's event loop: let it be short."""
        batch = self._batch
        batch.observed = True
        batch.on_settled(lambda: _run(callback, self))

    def __repr__(self) -> str:
        outbox = self._batch.outbox
        state = "stored" if isinstance(self._batch.outcome, Placed) else "failed" if self.done() else "on its way"
        return f"<{type(self).__name__} to {outbox.place}: {state}>"


class Delivery(_Handle):
    """A record that was handed over. `result` waits for where it is stored."""

    __slots__ = ()

    def result(self, timeout_s: float | None = None) -> Stored:
        """Where the record is, and how safe. Raises what became of it if it is not stored, or if nobody knows.

        After `timeout_s` it is an OutcomeUnknownError, too: the record is still on its way, and one may ask again.
        """
        self._wait(timeout_s)
        return self._batch.stored(self._index)

    def exception(self, timeout_s: float | None = None) -> QuireError | None:
        """The error that `result` would raise; None if the record is stored."""
        self._wait(timeout_s)
        outcome = self._batch.outcome
        return outcome if isinstance(outcome, QuireError) else None

    def _wait(self, timeout_s: float | None) -> None:
        self._batch.observed = True
        wait_for([self._batch], timeout_s)


class AioDelivery(_Handle):
    """A record that was handed over. `await` it for where it is stored."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, Stored]:
        return self.result().__await__()

    async def result(self, timeout_s: float | None = None) -> Stored:
        """As `await` does, with an end: after `timeout_s` it is an OutcomeUnknownError, and one may ask again."""
        await self._wait(timeout_s)
        return self._batch.stored(self._index)

    async def exception(self, timeout_s: float | None = None) -> QuireError | None:
        """The error that `result` would raise; None if the record is stored."""
        await self._wait(timeout_s)
        outcome = self._batch.outcome
        return outcome if isinstance(outcome, QuireError) else None

    async def _wait(self, timeout_s: float | None) -> None:
        self._batch.observed = True
        if self._batch.outcome is None:
            await wait_for_async([self._batch], timeout_s)


class _Handles:
    """Records of one `send_many`."""

    __slots__ = ("_spans",)

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = spans

    def __len__(self) -> int:
        """How many records."""
        return sum(span.count for span in self._spans)

    def done(self) -> bool:
        """Whether all outcomes are there."""
        return all(batch.outcome is not None for batch in self._batches())

    def _batches(self) -> list[Batch]:
        return list(dict.fromkeys(span.batch for span in self._spans))

    def _observe(self) -> list[Batch]:
        batches = self._batches()
        for batch in batches:
            batch.observed = True
        return batches

    def _ranges(self) -> list[StoredRange]:
        return [span.batch.stored_range(span.first, span.count) for span in self._spans]

    def _errors(self) -> Iterator[QuireError]:
        return (batch.outcome for batch in self._batches() if isinstance(batch.outcome, QuireError))


class Deliveries(_Handles):
    """Records that were handed over together."""

    __slots__ = ()

    def result(self, timeout_s: float | None = None) -> list[StoredRange]:
        """Where they are: each range lies together, and ranges of a partition are in the order of its records.

        Raises the first error if some are not stored, or if nobody knows; others may be stored all the same.
        """
        wait_for(self._observe(), timeout_s)
        return self._ranges()

    def exception(self, timeout_s: float | None = None) -> QuireError | None:
        """The error that `result` would raise; None if all are stored."""
        wait_for(self._observe(), timeout_s)
        return next(self._errors(), None)


class AioDeliveries(_Handles):
    """Records that were handed over together. `await` them for where they are stored."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, list[StoredRange]]:
        return self.result().__await__()

    async def result(self, timeout_s: float | None = None) -> list[StoredRange]:
        """Where they are: each range lies together, and ranges of a partition are in the order of its records.

        Raises the first error if some are not stored, or if nobody knows; others may be stored all the same.
        """
        await wait_for_async(self._observe(), timeout_s)
        return self._ranges()

    async def exception(self, timeout_s: float | None = None) -> QuireError | None:
        """The error that `result` would raise; None if all are stored."""
        await wait_for_async(self._observe(), timeout_s)
        return next(self._errors(), None)


# --- waiting -------------------------------------------------------------------------------------------------------


def wait_for(batches: Sequence[Batch], timeout_s: float | None) -> None:
    """Until all of them have an outcome; raises OutcomeUnknownError where it takes longer."""
    left = [batch for batch in batches if batch.outcome is None]
    if not left:
        return
    if threading.current_thread().name == LOOP_THREAD:
        raise InvalidArgumentError(
            "a callback of a delivery cannot wait for another one: what it waits for would run after it"
        )
    all_settled = threading.Event()
    _count_down(left, all_settled.set)
    if not all_settled.wait(timeout_s):
        raise _not_yet(left, timeout_s)


async def wait_for_async(batches: Sequence[Batch], timeout_s: float | None) -> None:
    left = [batch for batch in batches if batch.outcome is None]
    if not left:
        return
    all_settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settled() -> None:
        if not all_settled.done():
            all_settled.set_result(None)

    _count_down(left, settled)
    try:
        async with asyncio.timeout(timeout_s):
            await all_settled
    except TimeoutError:
        raise _not_yet(left, timeout_s) from None


def _count_down(batches: Sequence[Batch], at_zero: Callable[[], object]) -> None:
    # Popped by whichever thread settles: taking from a list is atomic, and the last one finds it empty.
    tickets = [None] * (len(batches) - 1)

    def settled() -> None:
        try:
            tickets.pop()
        except IndexError:
            at_zero()

    for batch in batches:
        batch.on_settled(settled)


def _not_yet(batches: Sequence[Batch], timeout_s: float | None) -> OutcomeUnknownError:
    late = next((batch for batch in batches if batch.outcome is None), batches[0])
    return OutcomeUnknownError(
        f"records for {late.outbox.place} were not acknowledged within {timeout_s:g} s. They are still on their way: "
        "ask again",
        on_its_way=True,
    )


def _run(callback: Callable[[Any], object], delivery: _Handle) -> None:
    try:
        callback(delivery)
    except Exception:
        _log.exception("a callback of a delivery failed")


LOOP_THREAD = "quire-client"
"""The name of the thread on which synchronous clients run their event loop."""
