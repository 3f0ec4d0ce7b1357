"""Errors that travel as a part of an answer: there and back, and from peers that lie or know more."""

from __future__ import annotations

from typing import Any

import pytest

from quire import refusals
from quire.errors import (
    ERRORS_BY_REASON,
    DamagedRangeError,
    LogBusyError,
    MalformedBatchError,
    OutcomeUnknownError,
    QuireError,
    Status,
)
from quire.refusals import from_refusal, refusal_of
from quire.v1.errors_pb2 import Refusal


@pytest.mark.parametrize("row", ERRORS_BY_REASON.values(), ids=lambda row: row.__name__)
def test_every_error_survives(row: type[QuireError]) -> None:
    details: dict[str, Any] = {"topic": "orders", "partition": 3}
    if row is DamagedRangeError:
        details |= {"first_offset": 10, "end_offset": 20}
    sent = row("in 'orders': näher besehen 🧾", **details)
    received = from_refusal(Refusal.FromString(refusal_of(sent).SerializeToString()))
    assert type(received) is row
    assert (received.message, received.details) == (sent.message, sent.details)
    assert (received.status, received.retriable, received.stale_metadata) == (
        sent.status,
        sent.retriable,
        sent.stale_metadata,
    )
    assert received.retry_after_ms == sent.retry_after_ms


def test_pause_travels_and_is_bounded() -> None:
    assert from_refusal(refusal_of(LogBusyError("later", retry_after_ms=250))).retry_after_ms == 250
    assert not refusal_of(QuireError("no")).HasField("retry_after_ms")
    for asked, granted in ((-5, 0), (1 << 60, refusals.RETRY_AFTER_MS_MAX)):
        assert from_refusal(Refusal(reason="LOG_BUSY", status=8, retry_after_ms=asked)).retry_after_ms == granted
        assert refusal_of(LogBusyError("later", retry_after_ms=asked)).retry_after_ms == granted


def test_texts_are_bounded_both_ways() -> None:
    details: dict[str, Any] = {f"detail_{number}": "ß" * 100_000 for number in range(100)}
    refusal = refusal_of(MalformedBatchError("ß" * 100_000 + "\udcff", **details))
    assert len(refusal.SerializeToString()) < 3 * 1024
    huge = Refusal(
        reason="LOG_BUSY", status=8, message="m" * 50_000, details={f"{n}": "v" * 5000 for n in range(500)}
    )
    error = from_refusal(huge)
    assert len(error.message.encode()) <= refusals.MESSAGE_BYTES_MAX
    assert sum(len(key) + len(value.encode()) for key, value in error.details.items()) <= refusals.DETAILS_BYTES_MAX


def test_reason_of_a_newer_server_is_kept_and_acted_on_by_its_status() -> None:
    later = from_refusal(Refusal(reason="FROM_THE_FUTURE", message="m", status=int(Status.UNAVAILABLE)))
    assert (type(later), later.reason, later.retriable) == (QuireError, "FROM_THE_FUTURE", True)
    unknown = from_refusal(Refusal(reason="FROM_THE_FUTURE", message="m", status=int(Status.INTERNAL)))
    assert type(unknown) is OutcomeUnknownError


@pytest.mark.parametrize("status", [0, -1, 99])
def test_refusal_without_a_status_has_not_said_that_nothing_was_done(status: int) -> None:
    error = from_refusal(Refusal(reason="FROM_THE_FUTURE", message="m", status=status))
    assert type(error) is OutcomeUnknownError
    assert type(from_refusal(Refusal())) is OutcomeUnknownError


def test_damaged_range_without_offsets_is_not_made_up() -> None:
    error = from_refusal(Refusal(reason="DAMAGED_RANGE", status=int(Status.DATA_LOSS), details={"first_offset": "5"}))
    assert (type(error), error.reason, error.status) == (QuireError, "DAMAGED_RANGE", Status.DATA_LOSS)
