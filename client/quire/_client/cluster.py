"""The cluster as one client sees it: who leads what, and a way to ask whom it concerns.

One FollowTopics stream keeps the picture. When the broker that tells falls silent or goes, another one is asked, from
the version on that is known. Users see none of it, but for the one case that waiting does not mend: nobody ever
answered.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import grpc
import grpc.aio

from quire._client import tasks
from quire._client.channels import Channels
from quire._client.options import Connection
from quire._client.picture import BrokerPlace, Changes, Leadership, Picture
from quire._client.signals import Signal
from quire.errors import (
    InvalidArgumentError,
    LimitExceededError,
    LogBusyError,
    NotControllerError,
    OutcomeUnknownError,
    QuireError,
    UnavailableError,
    UnknownTopicError,
)
from quire.link.backoff import Backoff
from quire.rpc_errors import from_rpc_error, never_left
from quire.v1 import broker_pb2, broker_pb2_grpc, metadata_pb2, topics_pb2

TOPICS_MAX: Final = 1_000
SILENCE_S_MAX: Final = 4.0
"""A broker that is followed says something every second."""
FIRST_WORD_S_MAX: Final = 8.0
"""It may catch up before its first word."""
MISSING_S: Final = 2.0
"""A topic that was made a moment ago may not have reached the broker that we follow."""
CALL_S_MAX: Final = 30.0
SILENT_MAX: Final = 3
"""What may be repeated is asked of so many brokers in the time for it, though all of them keep silent."""
RETRY_MS: Final = (50, 1_000)

_REASONS: Final = {
    "Connection refused": "connection refused",
    "errors resolving": "its name cannot be resolved",
    "Socket closed": "it hangs up at once; does it want TLS? See tls_ca and tls_cert",
    "andshake": "TLS failed; see tls_ca and tls_cert, and whether TLS is spoken there",
    "SSL": "TLS failed; see tls_ca and tls_cert, and whether TLS is spoken there",
}

_ASK_AGAIN: Final = (UnavailableError, NotControllerError, LogBusyError, OutcomeUnknownError)
"""What another broker, or the same one in a moment, may answer otherwise. A refusal of the change itself is the same
wherever it is asked for."""

T = TypeVar("T")


class Cluster:
    """To be used on one event loop."""

    def __init__(self, connection: Connection) -> None:
        self.picture = Picture()
        self.changed = Signal()
        self.problem: QuireError | None = None
        """Why nothing is heard at the moment."""
        self._connection = connection
        self._channels = Channels(connection)
        self._listeners: list[Callable[[Changes], object]] = []
        self._names: dict[str, None] = {}
        self._following: asyncio.Task[None] | None = None
        self._stream: asyncio.Task[None] | None = None
        self._turn = random.randrange(len(connection.addresses))
        self._met = False
        """Whether any broker ever told us of the cluster."""
        self._began = 0.0
        self._closed = False

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to follow; once."""
        if self._following is None and not self._closed:
            self._began = asyncio.get_running_loop().time()
            self._following = tasks.start(self._follow_for_ever(), name="quire-follow-topics")

    async def close(self) -> None:
        self._closed = True
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        self.changed.notify()
        await self._channels.close()

    def on_changes(self, listener: Callable[[Changes], object]) -> None:
        self._listeners.append(listener)

    # -- topics and leaders ------------------------------------------------------------------------------------------

    def follow(self, names: Iterable[str]) -> None:
        """Keep an eye on these topics, too."""
        new = [name for name in names if name not in self._names]
        if len(self._names) + len(new) > TOPICS_MAX:
            raise LimitExceededError(
                f"one client uses at most {TOPICS_MAX} topics; make another one for the rest", limit=TOPICS_MAX
            )
        if new:
            self._names.update(dict.fromkeys(new))
            self._follow_anew()

    async def topic(self, name: str, *, timeout_s: float) -> metadata_pb2.Topic:
        """What is known of a topic, once something is. Raises UnknownTopicError, UnavailableError."""
        self.start()
        self.follow([name])
        loop = asyncio.get_running_loop()
        began = loop.time()
        deadline = began + timeout_s
        while True:
            now = loop.time()
            if (topic := self.picture.topic(name)) is not None:
                return topic
            if self.picture.is_missing(name) and now >= min(began + MISSING_S, deadline):
                raise unknown_topic(name)
            self.check_met(now)
            if now >= deadline:
                raise self.problem or UnavailableError(f"nothing was heard of topic '{name}' in {timeout_s:g} s")
            await self.changed.wait(min(deadline - now, 0.1))

    async def meet_brokers(self, *, timeout_s: float) -> None:
        """Return once it is known where brokers are, whatever topics are followed. Raises UnavailableError."""
        self.start()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while not self.picture.brokers:
            now = loop.time()
            self.check_met(now)
            if now >= deadline:
                raise self.problem or UnavailableError(f"nothing was heard of brokers in {timeout_s:g} s")
            await self.changed.wait(min(deadline - now, 0.1))

    def check_met(self, now: float, error: QuireError | None = None) -> None:
        """Raise once a new client has looked for a broker for long enough."""
        if self._closed:
            raise UnavailableError("this client is closed")
        if not self._met and now >= self._began + self._connection.connect_ms_max / 1000:
            raise error or self.problem or self.nobody_answers("no answer")

    def leader(self, topic_id: bytes, partition: int) -> Leadership:
        return self.picture.leader(topic_id, partition)

    def place(self, broker_id: int) -> BrokerPlace | QuireError:
        """Where a broker is, or why it cannot be called."""
        place = self.picture.brokers.get(broker_id)
        if place is None:
            return UnavailableError(f"broker {broker_id} is not known to the cluster any more")
        if not place.is_reachable:
            return UnavailableError(
                f"broker {broker_id} has no address for clients that come by {_names(self._connection.addresses)}: "
                "it lacks a listener of that name; see broker.listeners in its configuration",
                broker_id=broker_id,
            )
        return place

    def nobody_answers(self, why: str) -> UnavailableError:
        where = _names(self._connection.addresses)
        return UnavailableError(
            f"no broker answers at {where} ({why}). Is one running? 'quire up' starts one on this machine",
            addresses=where,
        )

    # -- calls -------------------------------------------------------------------------------------------------------

    def channel(self, place: BrokerPlace) -> grpc.aio.Channel:
        return self._channels.broker(place)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return self._channels.metadata

    async def ask_anyone(
        self, ask: Callable[[grpc.aio.Channel, float], Awaitable[T]], *, timeout_s: float, may_repeat: bool
    ) -> T:
        """Ask one broker after the other until one answers. `ask` is given a channel and how long it may take.

        What may not happen twice is not asked again once it may have been carried out.
        """
        loop = asyncio.get_running_loop()
        self._began = self._began or loop.time()
        deadline = loop.time() + timeout_s
        attempt_s_max = min(CALL_S_MAX, timeout_s / SILENT_MAX if may_repeat else timeout_s)
        backoff = self._new_backoff()
        error: QuireError | None = None
        while True:
            for _ in self._sources():
                left = deadline - loop.time()
                if left <= 0:
                    break
                try:
                    answer = await self._ask(ask, self._source(), min(left, attempt_s_max))
                    self._met = True
                    return answer
                except QuireError as failed:
                    error = failed
                    if not isinstance(failed, _ASK_AGAIN) or (
                        isinstance(failed, OutcomeUnknownError) and not may_repeat
                    ):
                        self._met = True
                        raise
                    self._turn += 1
            self.check_met(loop.time(), error)
            wait_s = max(backoff.next_ms(), (error and error.retry_after_ms) or 0) / 1000
            if loop.time() + wait_s >= deadline:
                raise error or self.nobody_answers("no answer")
            await asyncio.sleep(wait_s)

    async def _ask(
        self, ask: Callable[[grpc.aio.Channel, float], Awaitable[T]], source: _Source, timeout_s: float
    ) -> T:
        try:
            return await ask(source.channel(self._channels), timeout_s)
        except grpc.aio.AioRpcError as error:
            raise self._understood(source, error) from error

    # -- following ---------------------------------------------------------------------------------------------------

    def _follow_anew(self) -> None:
        if self._stream is not None:
            self._stream.cancel()

    async def _follow_for_ever(self) -> None:
        backoff = self._new_backoff()
        while True:
            source = self._source()
            self._stream = asyncio.create_task(self._follow(source, backoff), name="quire-follow-topics-stream")
            try:
                await self._stream
            except asyncio.CancelledError:
                current = asyncio.current_task()
                if current is not None and current.cancelling():
                    self._stream.cancel()
                    await asyncio.wait([self._stream])
                    raise
                continue  # other topics are to be followed
            except QuireError as error:
                self.problem = error
            self._turn += 1
            self.changed.notify()
            # All that are known are tried before anybody is asked again.
            if self._turn % len(self._sources()) == 0:
                self._stream = asyncio.create_task(asyncio.sleep(backoff.next_ms() / 1000))
                await asyncio.wait([self._stream])

    async def _follow(self, source: _Source, backoff: Backoff) -> None:
        names = tuple(self._names)
        request = broker_pb2.FollowTopicsRequest(
            topics=[topics_pb2.TopicRef(name=name) for name in names], from_version=self.picture.version
        )
        stub = broker_pb2_grpc.BrokerServiceStub(source.channel(self._channels))
        call = stub.FollowTopics(request, metadata=self.metadata)
        silence_s = FIRST_WORD_S_MAX
        try:
            while True:
                try:
                    async with asyncio.timeout(silence_s):
                        message = await call.read()
                except TimeoutError:
                    raise UnavailableError(f"{source} said nothing for {silence_s:g} s") from None
                if not isinstance(message, broker_pb2.FollowTopicsResponse):
                    raise UnavailableError(f"{source} ended the stream of metadata")
                silence_s = SILENCE_S_MAX
                backoff.reset()
                self._take(message, names)
        except grpc.aio.AioRpcError as error:
            raise self._understood(source, error) from error
        finally:
            call.cancel()

    def _take(self, message: broker_pb2.FollowTopicsResponse, names: Sequence[str]) -> None:
        if self.picture.cluster_id and message.cluster_id and message.cluster_id != self.picture.cluster_id:
            raise InvalidArgumentError(
                f"the addresses lead to two clusters, '{self.picture.cluster_id}' and '{message.cluster_id}'; name "
                "brokers of one"
            )
        changes = self.picture.apply(message, asked=names)
        self._met = True
        self.problem = None
        for listener in self._listeners:
            listener(changes)
        self.changed.notify()

    # -- whom to ask -------------------------------------------------------------------------------------------------

    def _sources(self) -> list[_Source]:
        """Brokers that are known to be there, then the addresses that the user named."""
        brokers = [_Source(place=place) for _, place in sorted(self.picture.brokers.items())]
        active = [each for each in brokers if each.place and each.place.active and each.place.is_reachable]
        return active + [_Source(address=address) for address in self._connection.addresses]

    def _source(self) -> _Source:
        sources = self._sources()
        return sources[self._turn % len(sources)]

    def _understood(self, source: _Source, error: grpc.aio.AioRpcError) -> QuireError:
        if not never_left(error):
            return from_rpc_error(error)
        if not self._met:
            return self.nobody_answers(no_connection(error))
        return UnavailableError(f"{source} cannot be reached: {no_connection(error)}")

    def _new_backoff(self) -> Backoff:
        return new_backoff()


class _Source:
    """Somebody who may know: a broker, or an address."""

    def __init__(self, *, place: BrokerPlace | None = None, address: Any = None) -> None:
        self.place = place
        self.address = address

    def channel(self, channels: Channels) -> grpc.aio.Channel:
        return channels.bootstrap(self.address) if self.place is None else channels.broker(self.place)

    def __str__(self) -> str:
        if self.place is None:
            return f"the broker at {self.address}"
        return f"broker {self.place.broker_id} at {self.place.host}:{self.place.port}"


def new_backoff() -> Backoff:
    return Backoff(ms_min=RETRY_MS[0], ms_max=RETRY_MS[1], uniform=random.uniform)


def unknown_topic(name: str) -> UnknownTopicError:
    return UnknownTopicError(
        f"there is no topic '{name}'; make it with 'quire topic create {name}' or Admin.create_topic, or check the "
        "name",
        topic=name,
    )


def no_connection(error: grpc.aio.AioRpcError) -> str:
    """Why a connection did not come about, in fewer words than gRPC's."""
    text = error.details() or "no answer"
    for said, short in _REASONS.items():
        if said in text:
            return short
    return text


def _names(addresses: Iterable[object]) -> str:
    return ", ".join(map(str, addresses))
