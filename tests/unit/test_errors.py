"""The table of errors, and that each of its rows survives a real gRPC call."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import grpc
import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from quire import errors, refusals, rpc_errors
from quire.errors import (
    ERRORS_BY_REASON,
    DamagedRangeError,
    LogBusyError,
    MalformedBatchError,
    OutcomeUnknownError,
    QuireError,
    Status,
    UnavailableError,
)
from quire.v1 import errors_pb2

PROTOCOL = Path(__file__).resolve().parents[2] / "docs" / "PROTOCOL.md"


def table_rows() -> list[type[QuireError]]:
    """Every class of the table, the root first."""
    rows: list[type[QuireError]] = [QuireError]
    for row in rows:
        rows.extend(sub for sub in row.__subclasses__() if sub.__module__ == errors.__name__)
    return rows


def example(row: type[QuireError]) -> QuireError:
    details: dict[str, Any] = {"topic": "orders", "partition": 3}
    if row is DamagedRangeError:
        details |= {"first_offset": 10, "end_offset": 20}
    return row(f"{row.__name__} in 'orders', partition 3: näher besehen 🧾", **details)


ROWS = pytest.mark.parametrize("row", table_rows(), ids=lambda row: row.__name__)

# --- the table -----------------------------------------------------------------------------------------------------


def test_reasons_are_unique() -> None:
    reasons = [row.reason for row in table_rows()]
    assert sorted(reasons) == sorted(set(reasons))
    assert set(ERRORS_BY_REASON) == set(reasons)


def test_proto_enum_lists_the_reasons_and_no_others() -> None:
    listed = {value.name.removeprefix("ERROR_REASON_") for value in errors_pb2.ErrorReason.DESCRIPTOR.values}
    assert listed == set(ERRORS_BY_REASON) | {"UNSPECIFIED"}


@ROWS
def test_row_is_complete(row: type[QuireError]) -> None:
    assert re.fullmatch(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*", row.reason)
    assert len(row.reason) <= 63, "google.rpc.ErrorInfo allows no longer reason"
    assert row.__dict__.get("__doc__"), "says what happened"
    assert row is QuireError or "reason" in row.__dict__, "inherits its reason from another row"
    assert isinstance(row.status, Status)
    assert row.status.name == next(code.name for code in grpc.StatusCode if code.value[0] == row.status)


@ROWS
def test_refusal_for_lack_of_room_says_when_to_come_back(row: type[QuireError]) -> None:
    if row.status == Status.RESOURCE_EXHAUSTED:
        assert row.retriable
        assert example(row).retry_after_ms is not None
    elif example(row).retry_after_ms is not None:
        assert row.retriable


def documented() -> dict[str, tuple[str, str, str]]:
    """The error table of docs/PROTOCOL.md: reason to status, retry, stale."""
    rows = {}
    for line in PROTOCOL.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 5 and re.fullmatch(r"`[A-Z_]+`", cells[0]):
            reason, status, retry, stale, advice = cells
            assert advice, f"{reason} has no advice"
            assert reason.strip("`") not in rows, f"{reason} is documented twice"
            rows[reason.strip("`")] = (status.strip("`"), retry, stale)
    return rows


def test_documented_table_is_the_table() -> None:
    said = {True: "yes", False: "no"}
    assert documented() == {
        row.reason: (row.status.name, said[row.retriable], said[row.stale_metadata]) for row in table_rows()
    }


# --- a real call ---------------------------------------------------------------------------------------------------

Handler = Callable[[bytes, "grpc.aio.ServicerContext[bytes, bytes]"], Awaitable[bytes]]
Call = Callable[..., Awaitable[bytes]]


@asynccontextmanager
async def served(handler: Handler) -> AsyncIterator[tuple[Call, grpc.aio.Server]]:
    """A method on a loopback server, as a client calls it."""
    server = grpc.aio.server()
    method: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(handler)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("quire.test.Echo", {"Call": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel.unary_unary("/quire.test.Echo/Call"), server
    finally:
        await server.stop(None)


async def failure(call: Awaitable[bytes]) -> QuireError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return rpc_errors.from_rpc_error(caught.value)


async def over_the_wire(error: QuireError) -> QuireError:
    async def handler(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        await rpc_errors.abort(context, error)

    async with served(handler) as (call, _):
        return await failure(call(b""))


@ROWS
async def test_every_error_survives_the_wire(row: type[QuireError]) -> None:
    sent = example(row)
    received = await over_the_wire(sent)
    assert type(received) is row
    # The pause of a row may be the class's on one side and the instance's on the other.
    assert vars(received) | {"retry_after_ms": None} == vars(sent) | {"retry_after_ms": None}
    assert received.retry_after_ms == sent.retry_after_ms
    assert str(received) == str(sent)


async def test_other_clients_see_a_plain_status_and_standard_details() -> None:
    async def handler(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        await rpc_errors.abort(context, LogBusyError("later", retry_after_ms=250, partition=3))

    async with served(handler) as (call, _):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"")
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "later")
    status = status_pb2.Status.FromString(dict(caught.value.trailing_metadata())["grpc-status-details-bin"])
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    assert status.details[0].Unpack(info)
    assert status.details[1].Unpack(retry)
    assert (info.domain, info.reason, dict(info.metadata)) == ("quire", "LOG_BUSY", {"partition": "3"})
    assert retry.retry_delay == Duration(nanos=250_000_000)


async def test_largest_error_still_fits_the_trailers() -> None:
    # Random drops begin at 8 KiB, so a call that comes through once would prove nothing: the size is checked as well.
    details: dict[str, Any] = {f"detail_{n}": "ß" * 100_000 for n in range(100)}
    error = MalformedBatchError("ß" * 100_000, **details)
    status = rpc_errors.to_status(error)
    assert len(status.message.encode()) * 3 + len(status.SerializeToString()) * 4 / 3 < 7 * 1024

    received = await over_the_wire(error)
    assert type(received) is MalformedBatchError
    assert received.message.startswith("ßßß")
    assert received.message.endswith("ß…")
    assert received.details["detail_0"].endswith("ß…")


async def test_message_that_utf8_cannot_carry_still_arrives() -> None:
    received = await over_the_wire(MalformedBatchError("file '\udcff.log'", path="\udcff.log"))
    assert received.message == "file '?.log'"
    assert received.details == {"path": "?.log"}


# --- calls that nobody answered ------------------------------------------------------------------------------------


async def never(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> NoReturn:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def test_deadline_leaves_the_outcome_unknown() -> None:
    async with served(never) as (call, _):
        error = await failure(call(b"", timeout=0.05))
    assert type(error) is OutcomeUnknownError
    assert error.details == {"grpc_status": "DEADLINE_EXCEEDED"}
    assert not error.retriable


async def test_server_that_goes_away_leaves_the_outcome_unknown() -> None:
    begun = asyncio.Event()

    async def handler(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        begun.set()
        return await never(request, context)

    async with served(handler) as (call, server):
        pending = asyncio.ensure_future(failure(call(b"")))
        await begun.wait()
        await server.stop(None)
        assert type(await pending) is OutcomeUnknownError


async def test_handler_that_dies_leaves_the_outcome_unknown() -> None:
    async def handler(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        await context.abort(grpc.StatusCode.INTERNAL, "boom")

    async with served(handler) as (call, _):
        assert type(await failure(call(b""))) is OutcomeUnknownError


async def test_no_connection_means_that_nothing_was_done() -> None:
    with socket.socket() as unheard:  # bound, so that nobody else listens there; not listening itself
        unheard.bind(("127.0.0.1", 0))
        async with grpc.aio.insecure_channel(f"127.0.0.1:{unheard.getsockname()[1]}") as channel:
            call: Call = channel.unary_unary("/quire.test.Echo/Call")
            error = await failure(call(b""))
    assert type(error) is UnavailableError
    assert error.retriable


def test_name_that_does_not_resolve_means_that_nothing_was_done() -> None:
    # grpcio's words, as seen; a real look-up would leave the machine.
    text = "errors resolving no-such-host.invalid:7400: [field:hostname lookup error:Domain name not found]"
    assert type(ended(grpc.StatusCode.UNAVAILABLE, text)) is UnavailableError
    assert type(ended(grpc.StatusCode.UNAVAILABLE, "Socket closed")) is OutcomeUnknownError


async def test_unknown_method_is_a_refusal() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Call = channel.unary_unary("/quire.test.Echo/Missing")
        error = await failure(call(b""))
    await server.stop(None)
    assert (type(error), error.status, error.reason) == (QuireError, Status.UNIMPLEMENTED, "UNKNOWN")


def ended(code: grpc.StatusCode, text: str = "", trailer: bytes | None = None) -> QuireError:
    metadata = grpc.aio.Metadata() if trailer is None else grpc.aio.Metadata((rpc_errors.TRAILER, trailer))
    return rpc_errors.from_rpc_error(grpc.aio.AioRpcError(code, trailing_metadata=metadata, details=text))


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_bare_status_is_a_refusal_or_unknown_but_never_something_to_send_again(code: grpc.StatusCode) -> None:
    error = ended(code, "somebody's words")
    refusals = {"INVALID_ARGUMENT", "PERMISSION_DENIED", "UNAUTHENTICATED", "UNIMPLEMENTED"}
    assert type(error) is (QuireError if code.name in refusals else OutcomeUnknownError)
    assert not error.retriable
    assert "somebody's words" in error.message


# --- peers that lie, or know more than we do -----------------------------------------------------------------------


def status_of(
    reason: str,
    *,
    code: Status = Status.FAILED_PRECONDITION,
    domain: str = "quire",
    metadata: dict[str, str] | None = None,
    message: str = "m",
    retry: Duration | None = None,
) -> Any:
    status = status_pb2.Status(code=int(code), message=message)
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason, domain=domain, metadata=metadata or {}))
    if retry is not None:
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=retry))
    return status


def received(status: Any) -> QuireError:
    error = rpc_errors.from_status(status)
    assert error is not None
    return error


def test_reason_of_a_newer_server_is_kept() -> None:
    error = received(status_of("FROM_THE_FUTURE", code=Status.UNAVAILABLE, metadata={"a": "b"}))
    assert (type(error), error.reason, error.status) == (QuireError, "FROM_THE_FUTURE", Status.UNAVAILABLE)
    assert error.retriable
    assert error.details == {"a": "b"}
    assert QuireError.reason == "UNKNOWN", "the row itself is untouched"


@pytest.mark.parametrize("code", [Status.DEADLINE_EXCEEDED, Status.CANCELLED, Status.UNKNOWN, Status.INTERNAL])
def test_newer_reason_under_an_undecided_status_leaves_the_outcome_unknown(code: Status) -> None:
    error = received(status_of("FROM_THE_FUTURE", code=code))
    assert (type(error), error.reason, error.status) == (OutcomeUnknownError, "FROM_THE_FUTURE", code)


@pytest.mark.parametrize("reason", ["", "lower", "WITH SPACE", "X" * 64, "\x1b[31mRED"])
def test_reason_that_is_no_reason_is_dropped(reason: str) -> None:
    assert received(status_of(reason)).reason == "UNKNOWN"


def test_details_cannot_reach_the_constructor() -> None:
    details = {"message": "x", "self": "y", "retry_after_ms": "z", "cls": "w"}
    error = received(status_of("MALFORMED_BATCH", metadata=details))
    assert (type(error), error.message, error.retry_after_ms) == (MalformedBatchError, "m", None)
    assert error.details == details


def test_damaged_range_has_its_offsets() -> None:
    error = received(status_of("DAMAGED_RANGE", metadata={"first_offset": "5", "end_offset": "9", "path": "p"}))
    assert isinstance(error, DamagedRangeError)
    assert (error.first_offset, error.end_offset, error.details["path"]) == (5, 9, "p")


@pytest.mark.parametrize("end_offset", [None, "", "nine", "9" * 5000])
def test_damaged_range_without_offsets_is_not_made_up(end_offset: str | None) -> None:
    metadata = {"first_offset": "5"} | ({} if end_offset is None else {"end_offset": end_offset})
    error = received(status_of("DAMAGED_RANGE", metadata=metadata, code=Status.DATA_LOSS))
    assert (type(error), error.reason, error.status) == (QuireError, "DAMAGED_RANGE", Status.DATA_LOSS)


@pytest.mark.parametrize(
    ("delay", "retry_after_ms"),
    [
        (Duration(nanos=1_500_000), 1),
        (Duration(seconds=2), 2000),
        (Duration(seconds=-5), 0),
        (Duration(seconds=2**62), refusals.RETRY_AFTER_MS_MAX),
    ],
)
def test_pause_is_bounded(delay: Duration, retry_after_ms: int) -> None:
    assert received(status_of("LOG_BUSY", retry=delay)).retry_after_ms == retry_after_ms


def test_texts_are_bounded_on_arrival() -> None:
    metadata = {f"{n}" + "k" * 200: "v" * 5000 for n in range(500)}
    error = received(status_of("LOG_BUSY", metadata=metadata, message="m" * 50_000))
    assert len(error.message.encode()) <= refusals.MESSAGE_BYTES_MAX
    assert sum(len(key.encode()) + len(value.encode()) for key, value in error.details.items()) <= 1792


def test_status_of_another_domain_is_not_ours() -> None:
    assert rpc_errors.from_status(status_of("LOG_BUSY", domain="example.com")) is None


@pytest.mark.parametrize("code", [0, 99, -1])
def test_status_with_an_impossible_code_is_not_ours(code: int) -> None:
    status = status_of("LOG_BUSY")
    status.code = code
    assert rpc_errors.from_status(status) is None


def test_details_that_do_not_parse_are_not_ours() -> None:
    status = status_of("LOG_BUSY")
    status.details[0].value = b"\xff\xff\xff"
    assert rpc_errors.from_status(status) is None


@pytest.mark.parametrize(
    "trailer",
    [
        b"\xff not a status",
        status_of("LOG_BUSY", code=Status.RESOURCE_EXHAUSTED).SerializeToString(),
        status_of("LOG_BUSY", code=Status.INTERNAL, message="m" * 20_000).SerializeToString(),
    ],
    ids=["garbage", "contradicts the call's own code", "huge"],
)
def test_trailer_that_cannot_be_trusted_leaves_the_outcome_unknown(trailer: bytes) -> None:
    assert type(ended(grpc.StatusCode.INTERNAL, "text", trailer)) is OutcomeUnknownError
