"""Tells the controllers that a broker's process is dead, so that nobody has to wait for the end of its lease."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from quire.errors import QuireError
from quire.link.network import Address
from quire.link.tls import TlsFiles
from quire.process import logs

if TYPE_CHECKING:
    import grpc.aio

REPORT_MS_MAX: Final = 2_000
"""Less than a lease by default. After that there is no hurry any more."""
PAUSE_MS: Final = 50

_log = logs.get("supervisor")


class CrashReport:
    """For one broker. To be called when its process has ended, and awaited before the next one is started.

    Else the report could meet the next one's registration, and fence a broker that is well.
    """

    def __init__(self, node_id: str, controllers: Sequence[Address], *, tls: TlsFiles | None) -> None:
        self._node_id = node_id
        self._controllers = tuple(controllers)
        self._tls = tls

    async def __call__(self) -> None:
        """Never raises for what goes wrong: then the lease ends by itself."""
        problems: dict[str, str] = {}
        try:
            async with asyncio.timeout(REPORT_MS_MAX / 1000):
                while True:
                    if await self._anybody_heard(problems):
                        break
                    # They may be electing a leader, who was perhaps of the same node.
                    await asyncio.sleep(PAUSE_MS / 1000)
        except TimeoutError:
            _log.warning("no controller heard that the broker died", broker=self._node_id, problems=problems)

    async def _anybody_heard(self, problems: dict[str, str]) -> bool:
        for address in self._controllers:
            try:
                async with asyncio.timeout(REPORT_MS_MAX / 1000 / len(self._controllers)):
                    await self._fence(address)
            except TimeoutError:
                problems[str(address)] = "no answer in time"
            except QuireError as error:
                problems[str(address)] = error.message
            else:
                _log.info("a controller heard that the broker died", broker=self._node_id, controller=str(address))
                return True
        return False

    async def _fence(self, address: Address) -> None:
        # Not at the top of the file: most supervisors never need gRPC and its 25 MB.
        import grpc.aio

        from quire.rpc_errors import from_rpc_error
        from quire.v1 import commands_pb2, controller_pb2, controller_pb2_grpc

        async with self._channel(address) as channel:
            try:
                admin = controller_pb2_grpc.ControllerAdminServiceStub(channel)
                cluster = await admin.DescribeCluster(controller_pb2.DescribeClusterRequest())
                dead = [each.broker for each in cluster.brokers if each.broker.node_id == self._node_id]
                for broker in dead:
                    if broker.fenced:
                        continue
                    await controller_pb2_grpc.ControllerServiceStub(channel).FenceBroker(
                        controller_pb2.FenceBrokerRequest(
                            broker_id=broker.broker_id,
                            broker_epoch=broker.broker_epoch,
                            cause=commands_pb2.FENCE_CAUSE_CRASHED,
                        )
                    )
            except grpc.aio.AioRpcError as error:
                raise from_rpc_error(error) from error

    def _channel(self, address: Address) -> grpc.aio.Channel:
        import grpc.aio

        if self._tls is None:
            return grpc.aio.insecure_channel(str(address))
        node = self._tls.node.read_bytes()
        return grpc.aio.secure_channel(
            str(address), grpc.ssl_channel_credentials(self._tls.ca.read_bytes(), node, node)
        )
