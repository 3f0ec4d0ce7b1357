"""Connections to brokers: one for each address, made when it is first wanted."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

import grpc
import grpc.aio

from quire._client.options import Connection
from quire._client.picture import BrokerPlace
from quire.errors import InvalidArgumentError
from quire.link.network import Address

MESSAGE_BYTES_MAX: Final = 256 * 1024 * 1024
"""Answers may be as large as brokers like; requests are as large as the broker said it takes."""
CLOSE_S_MAX: Final = 1.0
CLIENT_ID_KEY: Final = "quire-client-id"

_OPTIONS: Final = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    # Not the default backoff of a second and more: a broker is back within tenths.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 500),
    # A broker that is gone without a word is noticed though its streams are silent.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Two clients in one process are two connections, each with limits of its own at the broker.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
]


class Channels:
    """To be used on one event loop."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._open: dict[tuple[Address, bool], grpc.aio.Channel] = {}

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What every call says of its caller."""
        client_id = self._connection.client_id
        return ((CLIENT_ID_KEY, client_id),) if client_id else ()

    def bootstrap(self, address: Address) -> grpc.aio.Channel:
        """To an address that the user named."""
        return self._get(address, tls=self._connection.tls)

    def broker(self, place: BrokerPlace) -> grpc.aio.Channel:
        """To a broker, at the address that it is told to have.

        A client that was given certificates never does without TLS, whatever it is told.
        """
        return self._get(Address(place.host, place.port), tls=self._connection.tls or place.tls)

    def _get(self, address: Address, *, tls: bool) -> grpc.aio.Channel:
        channel = self._open.get((address, tls))
        if channel is None:
            channel = self._open[address, tls] = self._connect(address, tls=tls)
        return channel

    def _connect(self, address: Address, *, tls: bool) -> grpc.aio.Channel:
        if not tls:
            return grpc.aio.insecure_channel(str(address), options=_OPTIONS)
        own = self._connection.certificate
        try:
            # Key and certificate are in one file: each reader takes what it looks for.
            credentials: Any = grpc.ssl_channel_credentials(self._connection.ca, own, own)
        except ValueError as error:
            raise InvalidArgumentError(f"tls_ca or tls_cert cannot be used: {error}") from error
        return grpc.aio.secure_channel(str(address), credentials, options=_OPTIONS)

    async def close(self) -> None:
        channels, self._open = list(self._open.values()), {}
        for channel in channels:
            # gRPC tells of what happens in its order: once it has told of this, nothing is left to tell of calls that
            # have ended. Else whoever runs the next event loop of this process would hear complaints of them.
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S_MAX):
                    await channel.wait_for_state_change(grpc.ChannelConnectivity.SHUTDOWN)
            await channel.close()
