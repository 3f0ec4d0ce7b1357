"""The controller's services on a quorum of one without disk or network, for tests of what is translated."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, TypeVar

from quire.errors import OutcomeUnknownError, QuireError, UnavailableError
from quire.process.rpc.context import RequestContext, enter
from quire.v1 import controller_pb2, metadata_pb2
from quire_controller.ports import Applied, ConfirmCallback, ProposeCallback
from quire_controller.runtime.controller import ControllerRuntime, RuntimeConfig
from quire_controller.service.brokers import ControllerServicer
from quire_controller.service.cluster import ControllerAdminServicer
from quire_controller.service.watching import Watches
from quire_controller.state.machine import ControllerState

FEATURES = metadata_pb2.FeatureRange(level_min=1, level_max=1)
E = TypeVar("E", bound=QuireError)


class LocalQuorum:
    """Implements `quire_controller.ports.Quorum`: commits at once, or as `fate` says."""

    is_leader = True
    leader_id: str | None = "c1"
    term = 1

    def __init__(self, state: ControllerState) -> None:
        self._state = state
        self.applied_index = 1
        self.proposed: list[bytes] = []
        self.fate: str = "committed"
        """Or `unavailable`, `unknown`: committed and nobody is told, `silent`: the same, without a word."""
        self.observer: Callable[[], None] = lambda: None

    def propose(self, command: bytes, callback: ProposeCallback) -> None:
        self.proposed.append(command)
        if self.fate == "unavailable":
            callback(UnavailableError("no leader"))
            return
        self.applied_index += 1
        applied = Applied(self.applied_index, self._state.apply(self.applied_index, command))
        self.observer()
        if self.fate == "committed":
            asyncio.get_running_loop().call_soon(callback, applied)
        elif self.fate == "unknown":
            callback(OutcomeUnknownError("the leader was lost"))

    def confirm(self, callback: ConfirmCallback) -> None:
        if self.fate == "unavailable":
            callback(UnavailableError("no leader"))
        elif self.fate != "silent":
            asyncio.get_running_loop().call_soon(callback, self.applied_index)

    def when_applied(self, index: int, callback: Callable[[QuireError | None], None]) -> None:
        callback(None)


class Services:
    """To be made on the running loop."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        randomness = random.Random(7)
        self.state = ControllerState()
        self.quorum = LocalQuorum(self.state)
        self.runtime = ControllerRuntime(
            quorum=self.quorum,
            state=self.state,
            scheduler=loop,
            randomness=randomness,
            config=RuntimeConfig(cluster_id="c", member_id="c1"),
        )
        self.quorum.observer = self.runtime.on_turn
        self.is_current = True
        self.level_max = 1
        self.watches = Watches(self.runtime, self.state, is_current=lambda: self.is_current, alive_ms=20)
        self.brokers = ControllerServicer(
            self.runtime, self.state, self.watches, randomness=randomness, addresses={"c2": "10.0.0.2:7401"}
        )
        self.admin = ControllerAdminServicer(
            self.runtime,
            self.state,
            randomness=randomness,
            describe_quorum=lambda: controller_pb2.DescribeQuorumResponse(member_id="c1"),
            feature_level_max=self._feature_level_max,
        )
        self.runtime.start()
        called_by()

    async def _feature_level_max(self) -> int:
        return self.level_max

    async def register(self, broker_id: int, **settings: Any) -> int:
        """A broker that takes part; its epoch."""
        request = controller_pb2.RegisterBrokerRequest(
            cluster_id="c", broker_id=broker_id, incarnation_id=bytes([broker_id]) * 16, features=FEATURES, **settings
        )
        epoch = (await self.brokers.RegisterBroker(request, None)).broker_epoch
        ready = controller_pb2.UnfenceBrokerRequest(broker_id=broker_id, broker_epoch=epoch)
        await self.brokers.UnfenceBroker(ready, None)
        return epoch

    async def create(self, name: str, **settings: Any) -> bytes:
        request = controller_pb2.CreateTopicRequest(name=name, **settings)
        return (await self.admin.CreateTopic(request, None)).topic_id


def called_by(node_id: str | None = None, *, tenant: str = "default", within_s: float = 10.0) -> None:
    """From now on the test is a call of this caller."""
    enter(
        RequestContext(
            principal="default" if node_id is None else f"node:{node_id}",
            node_id=node_id,
            tenant=tenant,
            client_id="test",
            listener="inside",
            deadline=asyncio.get_running_loop().time() + within_s,
            trace=None,
        )
    )
