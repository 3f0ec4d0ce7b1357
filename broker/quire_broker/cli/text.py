"""What people read about logs, beyond `quire.cli.text`."""

from __future__ import annotations

from quire.cli import text
from quire_broker.log.index import TIMESTAMP_NONE


def span(first_offset: int, end_offset: int | None) -> str:
    """The offsets from one up to, and not with, another."""
    if end_offset is None:
        return f"{first_offset} and on"
    return str(first_offset) if end_offset <= first_offset + 1 else f"{first_offset}–{end_offset - 1}"


def iso_time(timestamp_ms: int) -> str | None:
    """`2026-01-31T12:00:00.000Z`; None for a stretch without records."""
    return None if timestamp_ms == TIMESTAMP_NONE else text.iso_time(timestamp_ms)
