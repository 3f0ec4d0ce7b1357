"""What a command is answered, as bytes that every member makes alike."""

from __future__ import annotations

from dataclasses import dataclass

from quire.errors import ERRORS_BY_REASON, QuireError
from quire.v1 import commands_pb2
from quire_controller.state import limits
from quire_controller.state.model import Record

_CUT = "…"


@dataclass(frozen=True, slots=True)
class Decision:
    """What a handler gives: the changes, and what to answer. Nothing has happened yet."""

    records: list[Record]
    result: commands_pb2.CommandResult


def done(records: list[Record]) -> Decision:
    return Decision(records, commands_pb2.CommandResult(done=commands_pb2.Done()))


def encode(result: commands_pb2.CommandResult, *, index: int) -> bytes:
    result.index = index
    return result.SerializeToString(deterministic=True)


def refusal(error: QuireError) -> commands_pb2.CommandResult:
    """An error as a result. Texts are cut: each is remembered for the sake of retries."""
    details = [
        commands_pb2.ErrorDetail(key=key, value=_cut(value, limits.DETAIL_BYTES_MAX))
        for key, value in sorted(error.details.items())
    ]
    return commands_pb2.CommandResult(
        error=commands_pb2.CommandError(
            reason=error.reason, message=_cut(error.message, limits.MESSAGE_BYTES_MAX), details=details
        )
    )


def error_of(result: commands_pb2.CommandResult) -> QuireError | None:
    """The error that a result stands for; None if the command was carried out."""
    if result.WhichOneof("outcome") != "error":
        return None
    details = {detail.key: detail.value for detail in result.error.details}
    known = ERRORS_BY_REASON.get(result.error.reason, QuireError)
    try:
        return known.from_wire(result.error.message, details, retry_after_ms=None)
    except (KeyError, ValueError):  # the details lack what the class promises
        return QuireError.from_wire(result.error.message, details, retry_after_ms=None)


def _cut(text: str, bytes_max: int) -> str:
    """At most so many bytes, ending in '…' if some are missing."""
    data = text.encode("utf-8", "replace")
    if len(data) <= bytes_max:
        return data.decode()
    return data[: bytes_max - len(_CUT.encode())].decode("utf-8", "ignore") + _CUT
