"""Numbers, times and bytes as people read them, without what could move a terminal's cursor."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Final

from quire_broker.log.index import TIMESTAMP_NONE

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def number(n: int) -> str:
    return f"{n:,}"


def size(n_bytes: int) -> str:
    """`1.4 MiB`; exact below a KiB."""
    amount, unit = float(n_bytes), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{n_bytes:,} bytes" if unit == "bytes" else f"{amount:,.1f} {unit}"


def count(n: int, noun: str, plural: str | None = None) -> str:
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def span(first_offset: int, end_offset: int | None) -> str:
    """The offsets from one up to, and not with, another."""
    if end_offset is None:
        return f"{first_offset} and on"
    return str(first_offset) if end_offset <= first_offset + 1 else f"{first_offset}–{end_offset - 1}"


def iso_time(timestamp_ms: int) -> str | None:
    """`2026-01-31T12:00:00.000Z`; None for a stretch without records; a time that no calendar has as it is."""
    if timestamp_ms == TIMESTAMP_NONE:
        return None
    try:
        # Not fromtimestamp: the C library's year and a float's precision are both too small.
        time = _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return f"{timestamp_ms} ms"
    return time.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time.microsecond // 1000:03d}Z"


def quoted(data: bytes | None) -> str:
    """Bytes on one line: text in quotes with escapes where it is text, and otherwise `0x` and hex digits."""
    if data is None:
        return "null"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}"
    escaped = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in escaped)


def one_line(text: str) -> str:
    """The text without control characters: a path may hold some."""
    return "".join(c if c.isprintable() or 0xDC80 <= ord(c) <= 0xDCFF else "?" for c in text)
