"""Errors that concern a part of an answer: a `QuireError` as a `quire.v1.Refusal` and back, texts within limits.

What a peer wrote is not trusted. `quire.rpc_errors` does the same for errors that end a call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from quire.errors import ERRORS_BY_REASON, OutcomeUnknownError, QuireError, Status
from quire.v1.errors_pb2 import Refusal

# gRPC drops calls at random whose trailers are over 8 KiB. The message travels twice: as text in which a byte may
# take three, and in the status, of which base64 makes four bytes from three. With these limits the status stays under
# 3 KiB, and all together under 7. They hold for what is received too, since the sender need not be one of ours.
MESSAGE_BYTES_MAX: Final = 1024
DETAIL_BYTES_MAX: Final = 512
DETAILS_BYTES_MAX: Final = 1792
DETAIL_KEY_BYTES_MAX: Final = 64
RETRY_AFTER_MS_MAX: Final = 3_600_000

_REASON = re.compile(r"[A-Z][A-Z0-9_]{0,62}")
_CUT: Final = "…"

_UNDECIDED: Final = frozenset({Status.CANCELLED, Status.UNKNOWN, Status.DEADLINE_EXCEEDED, Status.INTERNAL})
"""The statuses that, under a reason of a newer server, do not say that nothing happened."""

_TRY_LATER: Final = frozenset({Status.UNAVAILABLE, Status.RESOURCE_EXHAUSTED})


def refusal_of(error: QuireError) -> Refusal:
    """The error as a part of an answer. Cut as in `to_status`: one answer may hold a thousand of them."""
    return Refusal(
        reason=error.reason,
        message=cut(error.message, MESSAGE_BYTES_MAX),
        details=bounded(error.details.items()),
        retry_after_ms=None if error.retry_after_ms is None else bounded_retry_after_ms(error.retry_after_ms),
        status=int(error.status),
    )


def from_refusal(refusal: Refusal) -> QuireError:
    """The error that a part of an answer describes. Trusts no part of it.

    A status that is none counts as UNKNOWN: whoever refuses without saying how has not said that nothing was done.
    """
    try:
        code = Status(refusal.status)
    except ValueError:
        code = Status.UNKNOWN
    retry_after_ms = bounded_retry_after_ms(refusal.retry_after_ms) if refusal.HasField("retry_after_ms") else None
    return described(refusal.reason, code, refusal.message, refusal.details, retry_after_ms)


def described(
    reason: str, code: Status, message: str, details: Mapping[str, str], retry_after_ms: int | None
) -> QuireError:
    """The class behind a reason, with a peer's words in it."""
    message = cut(message, MESSAGE_BYTES_MAX)
    fitting = bounded(sorted(details.items()))
    known = ERRORS_BY_REASON.get(reason)
    if known is not None:
        try:
            return known.from_wire(message, fitting, retry_after_ms=retry_after_ms)
        except (KeyError, ValueError):
            pass  # the details lack what the class promises: better no class than a wrong offset
    return _unrecognized(reason, code, message, fitting, retry_after_ms)


def bounded(details: Iterable[tuple[str, str]]) -> dict[str, str]:
    """As many of the details as fit, each cut to its limit."""
    fitting: dict[str, str] = {}
    left = DETAILS_BYTES_MAX
    for key, value in details:
        key, value = cut(key, DETAIL_KEY_BYTES_MAX), cut(value, DETAIL_BYTES_MAX)
        left -= len(key.encode()) + len(value.encode()) + 8  # 8: tags and lengths of a map entry
        if left < 0:
            break
        fitting[key] = value
    return fitting


def bounded_retry_after_ms(retry_after_ms: int) -> int:
    return min(max(retry_after_ms, 0), RETRY_AFTER_MS_MAX)


def cut(text: str, bytes_max: int) -> str:
    """The text as UTF-8 can carry it, within the limit, with a mark where something is missing."""
    encoded = text.encode(errors="replace")  # file names may hold surrogates, which protobuf refuses
    if len(encoded) > bytes_max:
        encoded = encoded[: bytes_max - len(_CUT.encode())]
        return encoded.decode(errors="ignore") + _CUT
    return encoded.decode()


def _unrecognized(
    reason: str, status: Status, message: str, details: Mapping[str, str], retry_after_ms: int | None
) -> QuireError:
    """An error whose reason this version does not know: act on its status, and hand on what it said."""
    kind = OutcomeUnknownError if status in _UNDECIDED else QuireError
    error = kind.from_wire(message, details, retry_after_ms=retry_after_ms)
    error.reason = reason if _REASON.fullmatch(reason) else QuireError.reason
    error.status = status
    error.retriable = status in _TRY_LATER
    return error
