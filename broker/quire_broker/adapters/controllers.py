"""One controller, over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from quire.errors import InvalidArgumentError, OutcomeUnknownError, UnavailableError
from quire.link.network import Address
from quire.link.tls import TlsFiles, check_plain_text_is_local
from quire.rpc_errors import from_rpc_error
from quire_broker.ports import CallMetadata

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""As much as controllers send."""

_OPTIONS: Final = [
    ("grpc.max_receive_message_length", ANSWER_BYTES_MAX),
    # Not the default backoff of a second and more: members come back within tenths, and leases are short.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 500),
    # A member that is gone without a word is noticed though a stream from it is silent.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Two brokers in one process are two callers.
    ("grpc.use_local_subchannel_pool", 1),
]


class GrpcMember:
    """Implements `quire_broker.ports.ControllerMember`. To be made on the running loop; connects when called."""

    def __init__(self, address: Address, *, tls: TlsFiles | None) -> None:
        """mTLS with `tls`, else plain text, on loopback only. Raises InvalidArgumentError for what cannot be used."""
        self.address = str(address)
        self._closed = False
        if tls is None:
            check_plain_text_is_local(address.host)
            self._channel = grpc.aio.insecure_channel(self.address, options=_OPTIONS)
            return
        node = _read(tls.node)  # key and certificate in one file: each reader takes what it looks for
        credentials = grpc.ssl_channel_credentials(_read(tls.ca), node, node)
        self._channel = grpc.aio.secure_channel(self.address, credentials, options=_OPTIONS)

    async def call(self, method: str, request: bytes, *, timeout_s: float, metadata: CallMetadata = ()) -> bytes:
        self._check_open()
        ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(method)
        try:
            return await ask(request, timeout=timeout_s, metadata=tuple(metadata))
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        except asyncio.CancelledError:
            self._check_is_ours()
            raise

    async def stream(self, method: str, request: bytes) -> AsyncGenerator[bytes, None]:
        self._check_open()
        ask: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = self._channel.unary_stream(method)
        answers = ask(request)
        try:
            async for answer in answers:
                yield answer
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        except asyncio.CancelledError:
            self._check_is_ours()
            raise
        finally:
            answers.cancel()

    async def close(self) -> None:
        self._closed = True
        await self._channel.close()

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError("this broker is stopping and calls no controller any more")

    def _check_is_ours(self) -> None:
        """A call that is cancelled by its channel looks as if its task were; nobody asked the task to end, though."""
        task = asyncio.current_task()
        if self._closed and not (task is not None and task.cancelling()):
            raise OutcomeUnknownError("this broker stopped before the controller answered") from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidArgumentError(f"{path} cannot be read: {error.strerror}", path=path) from error
