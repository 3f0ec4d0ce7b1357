"""Places in a partition as people type them: `earliest`, `42`, `-10`, `2026-01-31T12:00`, `15m`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from quire.errors import InvalidArgumentError

HELP: Final = (
    "earliest, latest, an offset, -N for the last N of each partition, a time (2026-01-31T12:00), or 15m, 2h, 3d ago"
)

_AGO: Final = re.compile(r"(\d{1,9})(ms|s|m|min|h|d)(?: ago)?", re.ASCII)
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_OFFSET: Final = re.compile(r"-?\d{1,19}", re.ASCII)
_EXACT: Final = re.compile(r"@(\d{1,15})", re.ASCII)
OFFSET_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Earliest:
    pass


@dataclass(frozen=True, slots=True)
class Latest:
    pass


@dataclass(frozen=True, slots=True)
class At:
    """This offset in each partition."""

    offset: int


@dataclass(frozen=True, slots=True)
class Last:
    """So many offsets before the end of each partition."""

    records: int


@dataclass(frozen=True, slots=True)
class Since:
    """The first record of this moment or a later one."""

    timestamp_ms: int


Place = Earliest | Latest | At | Last | Since


def place(text: str, *, now: datetime) -> Place:
    """Raises InvalidArgumentError for what is none."""
    match text:
        case "earliest" | "beginning":
            return Earliest()
        case "latest" | "end":
            return Latest()
        case _ if _OFFSET.fullmatch(text):
            offset = int(text)
            if abs(offset) > OFFSET_MAX:
                raise InvalidArgumentError(f"{text} is too large for an offset")
            return Last(-offset) if text.startswith("-") else At(offset)
        case _:
            return Since(moment(text, now=now))


def moment(text: str, *, now: datetime) -> int:
    """Milliseconds since 1970 of a time that somebody typed; without a time zone it is local."""
    if match := _EXACT.fullmatch(text):
        return int(match[1])
    if match := _AGO.fullmatch(text):
        return _in_ms(now) - int(match[1]) * _UNITS_MS[match[2]]
    try:
        return _in_ms(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        raise InvalidArgumentError(
            f"{text[:80]!r} is no place: there are {HELP}, or @1767225600000 in milliseconds since 1970"
        ) from None


def _in_ms(time: datetime) -> int:
    # Not timestamp(): a float loses milliseconds of late years.
    return (time.astimezone() - datetime.fromisoformat("1970-01-01T00:00:00+00:00")) // timedelta(milliseconds=1)
