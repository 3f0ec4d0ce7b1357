"""Numbers, times and bytes as people read them, without what could move a terminal's cursor."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def number(n: int) -> str:
    return f"{n:,}"


def size(n_bytes: float) -> str:
    """`1.4 MiB`; exact below a KiB."""
    amount, unit = float(n_bytes), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{n_bytes:,.0f} bytes" if unit == "bytes" else f"{amount:,.1f} {unit}"


def count(n: int, noun: str, plural: str | None = None) -> str:
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def iso_time(timestamp_ms: int) -> str:
    """`2026-01-31T12:00:00.000Z`; a time that no calendar has as it is."""
    try:
        # Not fromtimestamp: the C library's year and a float's precision are both too small.
        time = _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return f"{timestamp_ms} ms"
    return time.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time.microsecond // 1000:03d}Z"


def duration(ms: int) -> str:
    """`7 days`, `36 h`, `90 s`, `1500 ms`: in the largest unit in which it is a whole number."""
    for unit, length in (("day", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if ms and ms % length == 0:
            return count(ms // length, "day") if unit == "day" else f"{ms // length:,} {unit}"
    return f"{ms:,} ms"


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


def for_terminal(data: bytes) -> str:
    """Bytes of a message as a terminal may get them: text as it is, and what would do something to it as `\\x1b`."""
    text = data.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
