"""Errors across the wire: a `QuireError` as a `google.rpc.Status` and back. Nothing else imports google.rpc.

A server calls `abort`. A client catches `grpc.aio.AioRpcError` and raises `from_rpc_error(error)` from it.

An error that concerns a part of an answer travels in it, as `quire.v1.Refusal`: see `quire.refusals`.

A call that ends without a server's word about it is an `OutcomeUnknownError`, whatever status the transport made up,
unless it is certain that no server began to carry it out: to take a cut call for a failed one is how a message is
sent twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from quire.errors import OutcomeUnknownError, QuireError, Status, UnavailableError
from quire.refusals import MESSAGE_BYTES_MAX, bounded, bounded_retry_after_ms, cut, described

DOMAIN: Final = "quire"
"""The ErrorInfo domain: a reason of another domain, say a proxy's, is none of ours."""
TRAILER: Final = "grpc-status-details-bin"
"""Where gRPC carries a serialized google.rpc.Status."""

RECEIVED_BYTES_MAX: Final = 16 * 1024
"""No more is parsed of what a peer sends. Over what we send, for peers that will send more."""

_REFUSALS: Final = frozenset(
    {
        Status.INVALID_ARGUMENT,
        Status.PERMISSION_DENIED,
        Status.UNAUTHENTICATED,
        Status.UNIMPLEMENTED,
    }
)
"""The statuses that, from whoever stands between us and the handler, mean that the handler never ran. The others do
not: RESOURCE_EXHAUSTED, say, is also what a client's own transport makes of an answer that is too long."""

_NEVER_SENT: Final = ("failed to connect to all addresses", "errors resolving ")
"""How grpcio words that no connection came about. Should it change its words, calls become unknown, which is safe."""


def to_status(error: QuireError) -> status_pb2.Status:
    """The error as it travels. Long texts are cut, and of too many details the last ones are left out."""
    status = status_pb2.Status(code=int(error.status), message=cut(error.message, MESSAGE_BYTES_MAX))
    status.details.add().Pack(
        error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=bounded(error.details.items()))
    )
    if error.retry_after_ms is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(bounded_retry_after_ms(error.retry_after_ms))
        status.details.add().Pack(retry)
    return status


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: QuireError) -> NoReturn:
    """End the call that `context` belongs to with this error."""
    status = to_status(error)
    await context.abort(_CODES[error.status], status.message, ((TRAILER, status.SerializeToString()),))


def from_status(status: status_pb2.Status) -> QuireError | None:
    """The error that a peer described, or None where the status holds none of ours. Trusts no part of it."""
    try:
        code = Status(status.code)
        info, retry_after_ms = _unpack(status)
    except (ValueError, DecodeError):
        return None
    if info is None:
        return None
    return described(info.reason, code, status.message, info.metadata, retry_after_ms)


def from_rpc_error(error: grpc.aio.AioRpcError) -> QuireError:
    """The error behind a failed call: the server's where it sent one, else what the end of the call lets us know."""
    status = Status(error.code().value[0])
    for key, value in error.trailing_metadata() or ():
        if key == TRAILER and isinstance(value, bytes) and len(value) <= RECEIVED_BYTES_MAX:
            received = _parse(value)
            # Another code than the call's own: the transport overruled the server, so nobody knows what it answered.
            if received is not None and received.code == status and (sent := from_status(received)) is not None:
                return sent
    return _without_details(status, cut(error.details() or "", MESSAGE_BYTES_MAX))


def never_left(error: grpc.aio.AioRpcError) -> bool:
    """Whether no connection came about for the call, so that nothing of it, nor of its stream, reached anybody."""
    return error.code() == grpc.StatusCode.UNAVAILABLE and (error.details() or "").startswith(_NEVER_SENT)


def _without_details(status: Status, text: str) -> QuireError:
    """What to make of a call that ended with no more than a status and somebody's words."""
    if status in _REFUSALS:
        refused = QuireError(f"the call was refused: {text or status.name}")
        refused.status = status
        return refused
    if status == Status.UNAVAILABLE and text.startswith(_NEVER_SENT):
        return UnavailableError(f"no connection: {text}")
    return OutcomeUnknownError(
        f"the call ended without an answer ({status.name}: {text or 'no message'}); it may have been carried out",
        grpc_status=status.name,
    )


def _unpack(status: status_pb2.Status) -> tuple[error_details_pb2.ErrorInfo | None, int | None]:
    """Our ErrorInfo and the milliseconds of the RetryInfo, from a status that anyone may have made."""
    info: error_details_pb2.ErrorInfo | None = None
    retry_after_ms: int | None = None
    for detail in status.details:
        if info is None and detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            candidate = error_details_pb2.ErrorInfo.FromString(detail.value)
            info = candidate if candidate.domain == DOMAIN else None
        elif retry_after_ms is None and detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            delay = error_details_pb2.RetryInfo.FromString(detail.value).retry_delay
            retry_after_ms = bounded_retry_after_ms(delay.seconds * 1000 + delay.nanos // 1_000_000)
    return info, retry_after_ms


def _parse(value: bytes) -> status_pb2.Status | None:
    try:
        return status_pb2.Status.FromString(value)
    except DecodeError:
        return None


_CODES: Final[Mapping[Status, grpc.StatusCode]] = {
    Status(code.value[0]): code for code in grpc.StatusCode if code is not grpc.StatusCode.OK
}
