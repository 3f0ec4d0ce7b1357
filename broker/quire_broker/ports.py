"""What the parts of the broker need of the world. `adapters/` implement it, and a simulation does."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from quire.v1 import controller_pb2

CallMetadata = Sequence[tuple[str, str | bytes]]
"""What travels beside a request: the caller's name for itself, a trace."""


class ControllerMember(Protocol):
    """One controller: calls to it, as bytes. What tries one after the other is built on this."""

    @property
    def address(self) -> str:
        """HOST:PORT, as the controllers name each other."""
        ...

    async def call(self, method: str, request: bytes, *, timeout_s: float, metadata: CallMetadata = ()) -> bytes:
        """The answer to one request. `method` is a path: `/quire.v1.ControllerService/Heartbeat`.

        Raises the QuireError that the controller answered; UnavailableError if it was not asked; OutcomeUnknownError
        if nobody knows what became of the request.
        """
        ...

    def stream(self, method: str, request: bytes) -> AsyncGenerator[bytes, None]:
        """Answers until the stream ends. Raises as `call` does. To be closed by whoever stops reading."""
        ...

    async def close(self) -> None:
        """Calls that are under way end with an error."""
        ...


class Controllers(Protocol):
    """The quorum of controllers, whichever of them answers.

    What changes something is carried out once, however often it had to be sent within `timeout_s`. Errors are those
    of the controllers; UnavailableError if none answered and nothing was done; OutcomeUnknownError if one may have
    done it.
    """

    async def register(
        self, request: controller_pb2.RegisterBrokerRequest, *, timeout_s: float
    ) -> controller_pb2.RegisterBrokerResponse: ...

    async def unfence(
        self, request: controller_pb2.UnfenceBrokerRequest, *, timeout_s: float
    ) -> controller_pb2.UnfenceBrokerResponse: ...

    async def heartbeat(
        self, request: controller_pb2.HeartbeatRequest, *, timeout_s: float
    ) -> controller_pb2.HeartbeatResponse:
        """Goes to the controller that leads; the others say which one that is."""
        ...

    async def fence(
        self, request: controller_pb2.FenceBrokerRequest, *, timeout_s: float
    ) -> controller_pb2.FenceBrokerResponse: ...

    async def alter_partitions(
        self, request: controller_pb2.AlterPartitionsRequest, *, timeout_s: float
    ) -> controller_pb2.AlterPartitionsResponse: ...

    async def allocate_producer_ids(
        self, request: controller_pb2.AllocateProducerIdsRequest, *, timeout_s: float
    ) -> controller_pb2.AllocateProducerIdsResponse: ...

    async def confirm_deletions(
        self, request: controller_pb2.ConfirmDeletionsRequest, *, timeout_s: float
    ) -> controller_pb2.ConfirmDeletionsResponse: ...

    async def ensure_internal_topic(
        self, request: controller_pb2.EnsureInternalTopicRequest, *, timeout_s: float
    ) -> controller_pb2.EnsureInternalTopicResponse: ...

    def watch(
        self, request: controller_pb2.WatchMetadataRequest, *, silence_s_max: float
    ) -> AsyncGenerator[controller_pb2.WatchMetadataResponse, None]:
        """What one controller publishes, until it ends with an error; then watch again, from what has been applied.

        A controller that says nothing for `silence_s_max` is given up, too. To be closed by whoever stops reading.
        Whatever ended a watch, the next one goes to another controller.
        """
        ...

    async def forward(self, method: str, request: bytes, *, timeout_s: float, metadata: CallMetadata = ()) -> bytes:
        """Pass on a call of ControllerAdminService, by the name of its method: `CreateTopic`.

        Nothing is lost of what this version does not know. A change that has no name gets one, so that it is safe to
        ask another controller when one does not answer.
        """
        ...
