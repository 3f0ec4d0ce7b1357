"""Asks the other controllers what they can do."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import grpc
import grpc.aio

from quire.errors import QuireError, UnavailableError
from quire.link.network import Address
from quire.link.tls import TlsFiles
from quire.rpc_errors import from_rpc_error
from quire.v1 import controller_pb2, controller_pb2_grpc

ANSWER_MS_MAX: Final = 3_000


class OtherMembers:
    def __init__(self, addresses: Mapping[str, Address], *, tls: TlsFiles | None) -> None:
        """`addresses` are those of gRPC of the others, by id."""
        self._addresses = addresses
        self._tls = tls

    async def feature_level_max(self, own: int) -> int:
        """The highest feature level that all controllers can work at. Raises UnavailableError unless all answer."""
        answers = await asyncio.gather(*(self._ask(member, self._addresses[member]) for member in self._addresses))
        return min([own, *(answer.features.level_max for answer in answers)])

    async def _ask(self, member_id: str, address: Address) -> controller_pb2.DescribeQuorumResponse:
        try:
            async with self._channel(address) as channel:
                stub = controller_pb2_grpc.ControllerAdminServiceStub(channel)
                answer = await stub.DescribeQuorum(
                    controller_pb2.DescribeQuorumRequest(), timeout=ANSWER_MS_MAX / 1000
                )
        except grpc.aio.AioRpcError as error:
            why: QuireError = from_rpc_error(error)
            raise UnavailableError(
                f"controller '{member_id}' at {address} did not say which feature levels it can work at: "
                f"{why.message}; all controllers must be up for this",
                member=member_id,
            ) from error
        if answer.member_id != member_id:
            raise UnavailableError(f"at {address} is controller '{answer.member_id}', not '{member_id}'")
        return answer

    def _channel(self, address: Address) -> grpc.aio.Channel:
        if self._tls is None:
            return grpc.aio.insecure_channel(str(address))
        node = self._tls.node.read_bytes()
        return grpc.aio.secure_channel(
            str(address), grpc.ssl_channel_credentials(self._tls.ca.read_bytes(), node, node)
        )
