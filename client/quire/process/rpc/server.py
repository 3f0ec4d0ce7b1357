"""A grpc.aio server with the limits that all of ours have."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from quire.errors import InvalidArgumentError, UnavailableError
from quire.link.network import Address
from quire.link.tls import TlsFiles, check_plain_text_is_local
from quire.process.rpc.gate import Gate

STREAMS_A_CONNECTION_MAX: Final = 256
METADATA_BYTES_MAX: Final = 16 * 1024
RESPONSE_BYTES_MAX: Final = 64 * 1024 * 1024


def build(gate: Gate, *, request_bytes_max: int) -> grpc.aio.Server:
    """A server that serves nothing yet."""
    return grpc.aio.server(
        interceptors=[gate],
        options=[
            # Else a second process on the same port would get half of the calls, and nobody would notice.
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", request_bytes_max),
            ("grpc.max_send_message_length", RESPONSE_BYTES_MAX),
            ("grpc.max_concurrent_streams", STREAMS_A_CONNECTION_MAX),
            ("grpc.max_metadata_size", METADATA_BYTES_MAX),
            # A peer that is gone without a word is noticed after 15 s; peers may ask as often about us.
            ("grpc.keepalive_time_ms", 10_000),
            ("grpc.keepalive_timeout_ms", 5_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ],
    )


def listen(server: grpc.aio.Server, address: Address, *, tls: TlsFiles | None, plain_is_meant: bool = False) -> int:
    """Open the port: mTLS with `tls`, plain text else. Gives the port, which 0 leaves open.

    Plain text is for loopback only, unless `plain_is_meant`.

    Raises UnavailableError when it cannot be had, InvalidArgumentError for certificates that cannot be used.
    """
    try:
        if tls is not None:
            return server.add_secure_port(str(address), credentials(tls))
        if not plain_is_meant:
            check_plain_text_is_local(address.host)
        return server.add_insecure_port(str(address))
    except RuntimeError as error:
        raise UnavailableError(
            f"cannot listen on {address} for gRPC; is another process there? ({error})", address=address
        ) from error


def credentials(tls: TlsFiles) -> grpc.ServerCredentials:
    """Both sides prove who they are, by certificates of the cluster's own node CA."""
    node = _read(tls.node)  # key and certificate in one file: each reader takes what it looks for
    return grpc.ssl_server_credentials([(node, node)], root_certificates=_read(tls.ca), require_client_auth=True)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidArgumentError(f"{path} cannot be read: {error.strerror}", path=path) from error
