"""The quorum as one: asks a controller, and the next one if that one does not answer.

    call ──► the one that answered last ──► it does not ──► the next ──► … none does ──► wait ──► again, in time

- A change is named before it is sent, and keeps its name. So it is carried out once, wherever it is sent again.
- Once an attempt's outcome is unknown the whole call's is, unless a later attempt is answered: what is unavailable
  then says nothing about the first one.
- Heartbeats go to the controller that leads: another one refuses and names it. One that has just kept silent is not
  asked again at once, though others that have not noticed yet may still name it.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from quire.errors import (
    DuplicateCommandError,
    InvalidArgumentError,
    OutcomeUnknownError,
    QuireError,
    Status,
    UnavailableError,
    invariant,
)
from quire.link.backoff import Backoff
from quire.process import logs
from quire.v1 import controller_pb2
from quire_broker.ports import CallMetadata, ControllerMember

CHANGES_UNDER_WAY_MAX: Final = 16
"""Controllers remember the newest 24 of a client: an older one that is sent again would be refused."""
INCARNATION_BYTES: Final = 16

_SERVICE: Final = "/quire.v1.ControllerService/"
_ADMIN_SERVICE: Final = "/quire.v1.ControllerAdminService/"
_ADMIN: Final = {
    method.name: GetMessageClass(method.input_type)
    for method in controller_pb2.DESCRIPTOR.services_by_name["ControllerAdminService"].methods
}
CHANGE_ID: Final = "change_id"

_log = logs.get("controllers")
_problems = logs.Throttled(_log)

R = TypeVar("R", bound=Message)


@dataclass(frozen=True, kw_only=True)
class QuorumClientConfig:
    attempt_ms_max: int = 1_500
    """How long one controller may take to answer before another one is asked."""
    backoff_ms_min: int = 50
    backoff_ms_max: int = 500
    """How long to wait when all have been asked in vain."""


class ChangeNames:
    """Names changes, each with the next number, as long as not too many are under way."""

    def __init__(self, *, client_id: str, incarnation: bytes) -> None:
        self._client_id = client_id
        self._incarnation = incarnation
        self._sequence = 0
        self._under_way: dict[int, None] = {}
        """In ascending order, since numbers are given in that order."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> controller_pb2.ChangeId:
        """A name, to be given back with `done`. Waits while the oldest one under way is too far behind."""
        while self._is_too_far():
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._wake()  # it was our turn, and is somebody else's now
                raise
        self._sequence += 1
        self._under_way[self._sequence] = None
        self._wake()
        return controller_pb2.ChangeId(
            client_id=self._client_id, client_incarnation=self._incarnation, sequence=self._sequence
        )

    def done(self, name: controller_pb2.ChangeId) -> None:
        del self._under_way[name.sequence]
        self._wake()

    def _is_too_far(self) -> bool:
        oldest = next(iter(self._under_way), None)
        return oldest is not None and self._sequence + 1 - oldest >= CHANGES_UNDER_WAY_MAX

    def _wake(self) -> None:
        """Whoever waits longest looks again; when it has its name it wakes the next."""
        while self._waiting and not self._is_too_far():
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return


class _Choice:
    """The member to ask first. One for each kind of call: one that is too slow for some may do for others."""

    def __init__(self, members: Sequence[ControllerMember], index: int) -> None:
        self._members = members
        self._index = index
        self._silent_until: dict[str, float] = {}
        """By address: who kept silent, and until when that counts."""

    @property
    def member(self) -> ControllerMember:
        return self._members[self._index]

    def on_failed(self, member: ControllerMember, *, now: float) -> None:
        """Go on to the next, unless another call has done so."""
        if self.member is not member:
            return
        count = len(self._members)
        after = [(self._index + step) % count for step in range(1, count + 1)]
        self._index = next((index for index in after if self._speaks(index, now)), after[0])

    def on_silent(self, member: ControllerMember, *, until: float) -> None:
        """It did not answer. Until then the others are asked, whomever they name."""
        self._silent_until[member.address] = until

    def prefer(self, address: str, *, now: float) -> bool:
        """Take the member at this address, if it is another one that is known and did not keep silent just now."""
        for index, member in enumerate(self._members):
            if member.address == address and index != self._index and self._speaks(index, now):
                self._index = index
                return True
        return False

    def _speaks(self, index: int, now: float) -> bool:
        return self._silent_until.get(self._members[index].address, now) <= now


class QuorumClient:
    """Implements `quire_broker.ports.Controllers`."""

    def __init__(
        self,
        members: Sequence[ControllerMember],
        *,
        client_id: str,
        randomness: random.Random,
        config: QuorumClientConfig | None = None,
    ) -> None:
        """`client_id` is what this broker's changes are named by."""
        invariant(len(members) > 0, "no controllers to call")
        self._members = tuple(members)
        self._config = config or QuorumClientConfig()
        self._randomness = randomness
        self._names = ChangeNames(client_id=client_id, incarnation=randomness.randbytes(INCARNATION_BYTES))
        begin = randomness.randrange(len(members))  # brokers spread over controllers
        self._for_calls = _Choice(self._members, begin)
        self._for_heartbeats = _Choice(self._members, begin)
        self._for_watches = _Choice(self._members, begin)

    async def close(self) -> None:
        for member in self._members:
            await member.close()

    # -- the port --------------------------------------------------------------------------------------------------

    async def register(
        self, request: controller_pb2.RegisterBrokerRequest, *, timeout_s: float
    ) -> controller_pb2.RegisterBrokerResponse:
        return await self._change(
            "RegisterBroker", request, controller_pb2.RegisterBrokerResponse, timeout_s=timeout_s
        )

    async def unfence(
        self, request: controller_pb2.UnfenceBrokerRequest, *, timeout_s: float
    ) -> controller_pb2.UnfenceBrokerResponse:
        return await self._change("UnfenceBroker", request, controller_pb2.UnfenceBrokerResponse, timeout_s=timeout_s)

    async def heartbeat(
        self, request: controller_pb2.HeartbeatRequest, *, timeout_s: float
    ) -> controller_pb2.HeartbeatResponse:
        data = await self._ask(
            self._for_heartbeats,
            f"{_SERVICE}Heartbeat",
            request.SerializeToString(),
            self._deadline(timeout_s),
            # Half of the time for one that stands still, half for finding the one that leads instead.
            attempt_s_max=timeout_s / 2,
        )
        return _parsed(controller_pb2.HeartbeatResponse, data)

    async def fence(
        self, request: controller_pb2.FenceBrokerRequest, *, timeout_s: float
    ) -> controller_pb2.FenceBrokerResponse:
        return await self._change("FenceBroker", request, controller_pb2.FenceBrokerResponse, timeout_s=timeout_s)

    async def alter_partitions(
        self, request: controller_pb2.AlterPartitionsRequest, *, timeout_s: float
    ) -> controller_pb2.AlterPartitionsResponse:
        return await self._change(
            "AlterPartitions", request, controller_pb2.AlterPartitionsResponse, timeout_s=timeout_s
        )

    async def allocate_producer_ids(
        self, request: controller_pb2.AllocateProducerIdsRequest, *, timeout_s: float
    ) -> controller_pb2.AllocateProducerIdsResponse:
        return await self._change(
            "AllocateProducerIds", request, controller_pb2.AllocateProducerIdsResponse, timeout_s=timeout_s
        )

    async def confirm_deletions(
        self, request: controller_pb2.ConfirmDeletionsRequest, *, timeout_s: float
    ) -> controller_pb2.ConfirmDeletionsResponse:
        return await self._change(
            "ConfirmDeletions", request, controller_pb2.ConfirmDeletionsResponse, timeout_s=timeout_s
        )

    async def ensure_internal_topic(
        self, request: controller_pb2.EnsureInternalTopicRequest, *, timeout_s: float
    ) -> controller_pb2.EnsureInternalTopicResponse:
        data = await self._ask(
            self._for_calls,
            f"{_SERVICE}EnsureInternalTopic",
            request.SerializeToString(),
            self._deadline(timeout_s),
        )
        return _parsed(controller_pb2.EnsureInternalTopicResponse, data)

    async def watch(
        self, request: controller_pb2.WatchMetadataRequest, *, silence_s_max: float
    ) -> AsyncGenerator[controller_pb2.WatchMetadataResponse, None]:
        member = self._for_watches.member
        try:
            async with aclosing(member.stream(f"{_SERVICE}WatchMetadata", request.SerializeToString())) as answers:
                while True:
                    try:
                        async with asyncio.timeout(silence_s_max):
                            data = await anext(answers, None)
                    except TimeoutError:
                        raise UnavailableError(
                            f"the controller at {member.address} said nothing for {silence_s_max:g} s"
                        ) from None
                    if data is None:
                        raise UnavailableError(f"the controller at {member.address} ended the stream")
                    yield _parsed(controller_pb2.WatchMetadataResponse, data)
        finally:
            self._for_watches.on_failed(member, now=asyncio.get_running_loop().time())

    async def forward(self, method: str, request: bytes, *, timeout_s: float, metadata: CallMetadata = ()) -> bytes:
        invariant(method in _ADMIN, f"ControllerAdminService has no method {method}")
        kind = _ADMIN[method]
        deadline = self._deadline(timeout_s)
        if _is_named_or_a_read(kind, request):
            return await self._ask(self._for_calls, f"{_ADMIN_SERVICE}{method}", request, deadline, metadata=metadata)
        try:
            async with self._named(deadline) as name:
                # Messages one after the other are one message: what is unknown here passes as it came.
                request += kind(change_id=name).SerializeToString()
                return await self._ask(
                    self._for_calls, f"{_ADMIN_SERVICE}{method}", request, deadline, metadata=metadata
                )
        except OutcomeUnknownError as error:
            raise OutcomeUnknownError(
                f"the controllers did not say in time what became of {method} ({error.message}); look at what it was "
                "to change before you repeat it"
            ) from error

    # -- inside ----------------------------------------------------------------------------------------------------

    def _deadline(self, timeout_s: float) -> float:
        return asyncio.get_running_loop().time() + timeout_s

    async def _change(self, method: str, request: Message, answer: type[R], *, timeout_s: float) -> R:
        """A request of ours, which is left as it is."""
        deadline = self._deadline(timeout_s)
        async with self._named(deadline) as name:
            data = request.SerializeToString() + type(request)(**{CHANGE_ID: name}).SerializeToString()
            return _parsed(answer, await self._ask(self._for_calls, f"{_SERVICE}{method}", data, deadline))

    @asynccontextmanager
    async def _named(self, deadline: float) -> AsyncIterator[controller_pb2.ChangeId]:
        try:
            async with asyncio.timeout_at(deadline):
                name = await self._names.take()
        except TimeoutError:
            raise UnavailableError(
                "earlier changes wait for an answer of the controllers, as many as may; try again later"
            ) from None
        try:
            yield name
        finally:
            self._names.done(name)

    async def _ask(
        self,
        choice: _Choice,
        path: str,
        request: bytes,
        deadline: float,
        *,
        attempt_s_max: float | None = None,
        metadata: CallMetadata = (),
    ) -> bytes:
        """Whatever is asked may be asked again: it reads, or is named, or means the same twice."""
        loop, config = asyncio.get_running_loop(), self._config
        backoff = Backoff(
            ms_min=config.backoff_ms_min, ms_max=config.backoff_ms_max, uniform=self._randomness.uniform
        )
        attempt_s_max = attempt_s_max or config.attempt_ms_max / 1000
        failed: QuireError | None = None
        attempts = 0
        while (left_s := deadline - loop.time()) > 0:
            member, asked_at = choice.member, loop.time()
            try:
                return await member.call(path, request, timeout_s=min(left_s, attempt_s_max), metadata=metadata)
            except QuireError as error:
                if not _is_worth_another(error):
                    raise _told(error, failed) from error
                _problems.info(
                    "a controller did not do it",
                    key=(member.address, path),
                    address=member.address,
                    call=path,
                    why=error.message,
                )
                now = loop.time()
                if isinstance(error, OutcomeUnknownError):
                    choice.on_silent(member, until=now + (now - asked_at))
                if not choice.prefer(error.details.get("leader_address", ""), now=now):
                    choice.on_failed(member, now=now)
                failed = failed if isinstance(failed, OutcomeUnknownError) else error
                attempts += 1
                if attempts % len(self._members) == 0:
                    wait_s = max(backoff.next_ms(), error.retry_after_ms or 0) / 1000
                    await asyncio.sleep(min(wait_s, max(0.0, deadline - loop.time())))
        raise failed or UnavailableError("the time for asking the controllers was over before one could be asked")


def _is_worth_another(error: QuireError) -> bool:
    """Whether another member, or the same one later, may do what this one did not."""
    return isinstance(error, OutcomeUnknownError) or error.status in (Status.UNAVAILABLE, Status.RESOURCE_EXHAUSTED)


def _told(error: QuireError, failed: QuireError | None) -> QuireError:
    """What to say where an attempt was refused after others had failed."""
    if isinstance(error, DuplicateCommandError) and isinstance(failed, OutcomeUnknownError):
        return failed  # an earlier attempt was carried out, or another process's change was
    return error


def _is_named_or_a_read(kind: type[Message], request: bytes) -> bool:
    if CHANGE_ID not in kind.DESCRIPTOR.fields_by_name:
        return True
    try:
        return kind.FromString(request).HasField(CHANGE_ID)
    except DecodeError as error:
        raise InvalidArgumentError("the request does not parse as the method's message") from error


def _parsed(kind: type[R], data: bytes) -> R:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise OutcomeUnknownError(
            f"a controller's {kind.DESCRIPTOR.name} does not parse; is it of another version?"
        ) from error
