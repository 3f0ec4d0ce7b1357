"""How this broker belongs to its cluster: it follows the metadata, registers, and keeps its lease.

    follow      a controller's stream ──► the image ──► `on_changes` ──► `on_applied`, when all that it says is done
    take part   register ──► the registration is applied and the broker ready ──► unfence ──► heartbeats ──► …
                   ▲────────────────────────── fenced, or registered anew by a call of our own ──────────────┘

- The controllers name metadata versions in their answers. If the one that is followed does not come up with them, it
  has lost touch, and another one is followed: without the metadata there is no lease.
- A lease counts from when its heartbeat was sent, by this process's own clock, and only once the metadata that its
  answer names is applied here (`quire.lease`). `may_lead` looks at the clock, whatever timers have run.
- If another process has taken this broker's id, this one stops: two that lead under one id would take each other's
  leaderships for ever.
- To stop, the broker lets go of everything first; then `leave` tells the controllers, who need not wait for a lease.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from quire.errors import (
    OutcomeUnknownError,
    QuireError,
    StaleBrokerEpochError,
    Status,
    UnavailableError,
    UnknownBrokerError,
)
from quire.link.backoff import Backoff
from quire.process import logs
from quire.types import ProducerId
from quire.v1 import commands_pb2, controller_pb2, metadata_pb2
from quire_broker.ports import Controllers
from quire_broker.runtime.membership_producer_ids import ProducerIds
from quire_broker.runtime.membership_session import Ending, Session
from quire_broker.state.image import Changes, MetadataImage

LEASE_MS: Final = 3_000
"""What is taken for the lease's length until the metadata says it."""
HEARTBEATS_UNDER_WAY_MAX: Final = 4
TOPIC_IDS_MAX: Final = 1_000
"""Deletions that are confirmed in one request; controllers take no more."""

_log = logs.get("membership")
_problems = logs.Throttled(_log)


@dataclass(frozen=True, kw_only=True)
class Registration:
    """Who this broker is, and where it is reached."""

    cluster_id: str
    broker_id: int
    node_id: str
    incarnation_id: bytes
    listeners: Sequence[metadata_pb2.Listener]
    features: metadata_pb2.FeatureRange
    rack: str = ""

    def request(self, log_ends: Iterable[commands_pb2.LogEnd]) -> controller_pb2.RegisterBrokerRequest:
        return controller_pb2.RegisterBrokerRequest(
            cluster_id=self.cluster_id,
            broker_id=self.broker_id,
            incarnation_id=self.incarnation_id,
            node_id=self.node_id,
            rack=self.rack,
            listeners=self.listeners,
            features=self.features,
            log_ends=log_ends,
        )


@dataclass(frozen=True, kw_only=True)
class MembershipConfig:
    silence_ms_max: int = 4_000
    """A controller that says nothing for so long is not followed any more."""
    register_ms_max: int = 30_000
    change_ms_max: int = 5_000
    """How long the controllers may take for a registration, and for another change, before it is tried anew."""
    backoff_ms_min: int = 100
    backoff_ms_max: int = 2_000


async def _at_once() -> None:
    """Ready as soon as the registration is applied."""


def _void(*_: object) -> None:
    """Nobody wants to be told."""


class Membership:
    """To be made on the running loop."""

    def __init__(
        self,
        controllers: Controllers,
        image: MetadataImage,
        *,
        registration: Registration,
        heartbeat_ms: int,
        randomness: random.Random,
        log_ends: Callable[[], Iterable[commands_pb2.LogEnd]],
        on_changes: Callable[[Changes], None],
        ready: Callable[[], Awaitable[None]] = _at_once,
        on_registered: Callable[[int], None] = _void,
        on_lease_gained: Callable[[], None] = _void,
        on_lease_lost: Callable[[], None] = _void,
        config: MembershipConfig | None = None,
    ) -> None:
        """What is called back is quick, but for `ready`.

        log_ends          what is in the logs now, for a registration
        on_changes        the image has changed; when everything is done that it says, `on_applied` is to be called
        ready             returns once the broker can serve; asked in each registration, and cancelled with it
        on_registered     the broker has this epoch from now on; what it led until now it leads no more
        on_lease_gained   from now on it may act as the leader of what the metadata says that it leads
        on_lease_lost     from now on it may not
        """
        self._controllers = controllers
        self._image = image
        self._registration = registration
        self._broker_id = registration.broker_id
        self._heartbeat_ms = heartbeat_ms
        self._randomness = randomness
        self._log_ends = log_ends
        self._on_changes = on_changes
        self._ready = ready
        self._on_registered = on_registered
        self._on_lease_gained = on_lease_gained
        self._on_lease_lost = on_lease_lost
        self._config = config or MembershipConfig()
        self._loop = asyncio.get_running_loop()
        self._session: Session | None = None
        self._named_version = 0
        """The newest metadata version that an answer of the controllers has named."""
        self._patience: asyncio.Timeout | None = None
        """With the controller that is followed; it ends while that one is behind."""
        self._lost_registrations = 0
        """How many may still be carried out, or have been, without our having heard of it."""
        self._applied_version = 0
        self._applied = asyncio.Event()
        self._report_version = 0
        """The next heartbeat is not to wait once this is applied: somebody waits to hear it."""
        self._beat_now = asyncio.Event()
        self._told_held = False
        self._expiry: asyncio.TimerHandle | None = None
        self._left = asyncio.Event()
        self._is_leaving = False
        self._gone: dict[bytes, None] = {}
        """Deleted topics of which there are no files here, which the controllers are to hear."""
        self._gone_changed = asyncio.Event()
        self._producer_ids = ProducerIds(self._allocate_producer_ids)

    # -- what holds now --------------------------------------------------------------------------------------------

    @property
    def broker_epoch(self) -> int:
        """Of the registration that holds; 0 without one."""
        session = self._session
        return 0 if session is None or session.is_over else session.broker_epoch

    @property
    def lease_expires(self) -> float | None:
        """When the lease ends, by the loop's clock; None without one."""
        session = self._session
        if session is None or not session.may_lead(self._past_now_ms()) or session.lease.expires_ms is None:
            return None
        return session.lease.expires_ms / 1000

    @property
    def applied_version(self) -> int:
        """The metadata version that `on_applied` was last told."""
        return self._applied_version

    def may_lead(self) -> bool:
        """Whether this broker may, at this moment, act as the leader of what the metadata says that it leads."""
        return self._session is not None and self._session.may_lead(self._past_now_ms())

    async def next_producer_id(self) -> ProducerId:
        """One that no other producer has. Raises UnavailableError if there is none to be had now."""
        return await self._producer_ids.next()

    def confirm_deletion(self, topic_id: bytes) -> None:
        """There are no files of this deleted topic here; the controllers are told as soon as they can be."""
        self._gone[topic_id] = None
        self._gone_changed.set()

    def register_anew(self, why: str) -> None:
        """What the registration said of this broker's logs is not so any more: let go of all, and say it again."""
        if self._session is not None and not self._session.is_over:
            _log.warning("registers anew", why=why)
            self._session.end(Ending.OUTDATED)
            self._look_at_lease()

    def on_applied(self, version: int) -> None:
        """Everything that the metadata says up to this version is done here: leaderships that ended have ended."""
        if version <= self._applied_version:
            return
        self._applied_version = version
        self._applied.set()
        self._applied = asyncio.Event()
        if self._session is not None and not self._session.is_over:
            self._session.lease.on_applied(version)
            self._look_at_lease()
        if self._report_version and version >= self._report_version:
            self._report_version = 0
            self._beat_now.set()

    # -- life ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Belong to the cluster until `leave` is called.

        Raises, perhaps in a group, the QuireError that it cannot go on with: another process has taken this broker's
        id, the controllers are another cluster's, or refuse this node.
        """
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._follow(), name="metadata"),
                    group.create_task(self._take_part(), name="membership"),
                    group.create_task(self._confirm_deletions(), name="deletions"),
                ]
                await self._left.wait()
                for task in tasks:
                    task.cancel()
        finally:
            if self._session is not None:
                self._session.end(Ending.LEFT)
            self._look_at_lease()

    async def leave(self, *, timeout_s: float | None = None) -> None:
        """Tell the controllers that this broker, which leads nothing any more, stops; and end `run`.

        If they cannot be told, they find out when the lease has ended.
        """
        self._is_leaving = True
        session = self._session
        try:
            if session is not None and not session.is_over:
                session.end(Ending.LEFT)
                self._look_at_lease()
                await self._controllers.fence(
                    controller_pb2.FenceBrokerRequest(
                        broker_id=self._broker_id,
                        broker_epoch=session.broker_epoch,
                        cause=commands_pb2.FENCE_CAUSE_STOPPING,
                    ),
                    timeout_s=self._config.change_ms_max / 1000 if timeout_s is None else timeout_s,
                )
                _log.info("left the cluster", broker_epoch=session.broker_epoch)
        except QuireError as error:
            _log.warning("the controllers were not told that this broker stops", why=error.message)
        finally:
            self._left.set()

    # -- the metadata ----------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        backoff = self._backoff()
        while True:
            request = controller_pb2.WatchMetadataRequest(
                from_version=self._image.version, cluster_id=self._registration.cluster_id
            )
            self._image.on_stream_begun()
            messages = self._controllers.watch(request, silence_s_max=self._config.silence_ms_max / 1000)
            try:
                async with asyncio.timeout(None) as self._patience, aclosing(messages):
                    self._look_at_patience()
                    async for message in messages:
                        self._hear(message)
                        backoff.reset()
            except TimeoutError:
                _problems.info("the controller that was followed had lost touch", version=self._image.version)
            except QuireError as error:
                _check_may_pass(error)
                _problems.info("follows the metadata anew", from_version=self._image.version, why=error.message)
            finally:
                self._patience = None
            await asyncio.sleep(backoff.next_ms() / 1000)

    def _hear(self, message: controller_pb2.WatchMetadataResponse) -> None:
        changes = self._image.apply(message)
        if changes is None:
            return
        self._look_at_patience()
        if any(self._is_waited_for(*key) for key in changes.partitions):
            self._report_version = changes.version
        self._look_at_metadata()
        self._on_changes(changes)

    def _on_version_named(self, version: int) -> None:
        self._named_version = max(self._named_version, version)
        self._look_at_patience()

    def _look_at_patience(self) -> None:
        patience = self._patience
        if patience is None or patience.expired():
            return
        if self._image.version >= self._named_version:
            patience.reschedule(None)
        elif patience.when() is None:
            patience.reschedule(self._loop.time() + self._lease_ms() / 8000)

    def _is_waited_for(self, topic_id: bytes, index: int) -> bool:
        """Whether another broker leads this partition as soon as the controllers hear that this one has let go."""
        partition = self._image.partition(topic_id, index)
        return partition is not None and partition.HasField("move") and partition.move.from_broker == self._broker_id

    def _look_at_metadata(self) -> None:
        if self._session is not None:
            self._session.look(self._me(), self._image.version)
            self._look_at_lease()

    def _me(self) -> metadata_pb2.Broker | None:
        return self._image.brokers.get(self._broker_id)

    # -- taking part -----------------------------------------------------------------------------------------------

    async def _take_part(self) -> None:
        backoff = self._backoff()
        while not self._is_leaving:
            session = await self._register()
            began = self._loop.time()
            match await self._serve(session):
                case Ending.LEFT:
                    return
                case Ending.FENCED:
                    _log.warning("was fenced, and registers anew", broker_epoch=session.broker_epoch)
                case Ending.OUTDATED:
                    pass
                case Ending.SUPERSEDED:
                    self._check_superseded_by_itself(session)
                    _log.warning("a registration that had no answer was carried out, so another one is needed")
                case Ending.UNREGISTERED:
                    raise UnknownBrokerError(
                        f"broker {self._broker_id} was unregistered; start it again if it is to be part of "
                        "the cluster",
                        broker_id=self._broker_id,
                    )
            if self._loop.time() - began > self._config.backoff_ms_max / 1000:
                backoff.reset()
            await asyncio.sleep(backoff.next_ms() / 1000)

    async def _register(self) -> Session:
        backoff = self._backoff()
        while True:
            request = self._registration.request(self._log_ends())
            try:
                answer = await self._controllers.register(request, timeout_s=self._config.register_ms_max / 1000)
                break
            except OutcomeUnknownError as error:
                self._lost_registrations += 1
                _problems.warning("nobody said what became of the registration", why=error.message)
            except QuireError as error:
                _check_may_pass(error)
                _problems.warning("cannot register yet", why=error.message)
            await asyncio.sleep(backoff.next_ms() / 1000)
        session = self._session = Session(
            broker_epoch=answer.broker_epoch, version=answer.version, applied_version=self._applied_version
        )
        _log.info("registered", broker_id=self._broker_id, broker_epoch=session.broker_epoch)
        self._on_registered(session.broker_epoch)
        self._on_version_named(session.version)
        self._look_at_metadata()  # it may be ahead of the answer
        return session

    async def _serve(self, session: Session) -> Ending:
        """Take part under this registration until it is over."""
        async with asyncio.TaskGroup() as group:
            joining = group.create_task(self._join(session), name=f"epoch-{session.broker_epoch}")
            ending = await asyncio.shield(session.over)
            joining.cancel()
        self._look_at_lease()
        return ending

    async def _join(self, session: Session) -> None:
        while self._applied_version < session.version:
            await self._applied.wait()
        await self._ready()
        await self._unfence(session)
        async with asyncio.TaskGroup() as group:
            await self._keep_beating(session, group)

    async def _unfence(self, session: Session) -> None:
        request = controller_pb2.UnfenceBrokerRequest(broker_id=self._broker_id, broker_epoch=session.broker_epoch)
        backoff = self._backoff()
        while not session.is_over:
            try:
                answer = await self._controllers.unfence(request, timeout_s=self._config.change_ms_max / 1000)
            except (StaleBrokerEpochError, UnknownBrokerError) as error:
                self._end(session, error)
            except QuireError as error:
                _check_may_pass(error)
                _problems.warning("cannot take part yet", why=error.message)
                await asyncio.sleep(backoff.next_ms() / 1000)
            else:
                session.on_unfenced(answer.version)
                self._on_version_named(answer.version)
                self._look_at_metadata()
                return

    # -- heartbeats and the lease ----------------------------------------------------------------------------------

    async def _keep_beating(self, session: Session, group: asyncio.TaskGroup) -> None:
        under_way: set[asyncio.Task[None]] = set()
        number = 0
        while not session.is_over:
            if len(under_way) < HEARTBEATS_UNDER_WAY_MAX:
                # Each in a task of its own: an answer that is late must not hold up the next question.
                number += 1
                task = group.create_task(self._beat(session, number), name=f"heartbeat-{number}")
                under_way.add(task)
                task.add_done_callback(under_way.discard)
            lease_ms = self._lease_ms()
            wait_ms = min(self._heartbeat_ms, lease_ms / 4) * self._randomness.uniform(0.9, 1)
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await self._beat_now.wait()
            except TimeoutError:
                pass
            self._beat_now.clear()

    async def _beat(self, session: Session, number: int) -> None:
        lease = session.lease
        request = controller_pb2.HeartbeatRequest(
            broker_id=self._broker_id,
            broker_epoch=session.broker_epoch,
            applied_version=lease.applied_version,
        )
        lease.on_heartbeat_sent(number, int(self._loop.time() * 1000))
        try:
            answer = await self._controllers.heartbeat(request, timeout_s=self._lease_ms() / 2000)
        except (StaleBrokerEpochError, UnknownBrokerError) as error:
            self._end(session, error)
        except QuireError as error:
            _check_may_pass(error)
            _problems.warning("a heartbeat was not answered", why=error.message)
        else:
            self._on_version_named(answer.metadata_version)
            if not session.is_over:
                lease.on_heartbeat_answered(number, session.broker_epoch, answer.lease_ms, answer.metadata_version)
                self._look_at_lease()

    def _end(self, session: Session, error: QuireError) -> None:
        is_stale = isinstance(error, StaleBrokerEpochError)
        session.end(Ending.SUPERSEDED if is_stale else Ending.UNREGISTERED)
        self._look_at_lease()

    def _look_at_lease(self) -> None:
        """Tell if it was gained or lost; called when it may have been, and when it ends."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        session = self._session
        is_held = session is not None and session.may_lead(self._past_now_ms())
        if is_held and session is not None and session.lease.expires_ms is not None:
            self._expiry = self._loop.call_at(session.lease.expires_ms / 1000, self._look_at_lease)
        if is_held == self._told_held:
            return
        self._told_held = is_held
        if is_held:
            _log.info("holds a lease", broker_epoch=self.broker_epoch)
            self._on_lease_gained()
        else:
            _log.info("holds no lease any more")
            self._on_lease_lost()

    def _lease_ms(self) -> int:
        """How long a lease is, as far as is known."""
        me = self._me()
        return LEASE_MS if me is None or not me.lease_ms else me.lease_ms

    # -- deletions -------------------------------------------------------------------------------------------------

    async def _confirm_deletions(self) -> None:
        backoff = self._backoff()
        while True:
            await self._gone_changed.wait()
            self._gone_changed.clear()
            while topic_ids := self._unconfirmed():
                request = controller_pb2.ConfirmDeletionsRequest(
                    broker_id=self._broker_id, broker_epoch=self.broker_epoch, topic_ids=topic_ids
                )
                try:
                    if not self.broker_epoch:
                        raise UnavailableError("not registered at the moment")
                    await self._controllers.confirm_deletions(request, timeout_s=self._config.change_ms_max / 1000)
                except QuireError as error:
                    # Also if the epoch is of the past: there will be another one, or this process ends.
                    _problems.info("cannot confirm deletions yet", topics=len(topic_ids), why=error.message)
                    await asyncio.sleep(backoff.next_ms() / 1000)
                else:
                    backoff.reset()
                    for topic_id in topic_ids:
                        self._gone.pop(topic_id, None)

    def _unconfirmed(self) -> list[bytes]:
        """What the controllers wait to hear, as much as fits into one request."""
        waited_for = {
            topic_id: None
            for topic_id in self._gone
            if (deleted := self._image.deleted_topics.get(topic_id)) is not None
            and self._broker_id in deleted.brokers
        }
        self._gone = waited_for
        return sorted(waited_for)[:TOPIC_IDS_MAX]

    # -- inside ----------------------------------------------------------------------------------------------------

    def _check_superseded_by_itself(self, session: Session) -> None:
        """Go on if a call of our own may have done it, and stop if nobody but another process can have."""
        if self._lost_registrations:
            self._lost_registrations -= 1
            return
        me = self._me()
        if me is None or me.broker_epoch <= session.broker_epoch:
            who = "another process"
        else:
            places = ", ".join(f"{listener.host}:{listener.port}" for listener in me.listeners)
            who = f"another process of node '{me.node_id}' ({places})"
        raise StaleBrokerEpochError(
            f"{who} has registered as broker {self._broker_id}, so this one stops: no two may have the same "
            "number (broker.id, or the one at the end of node.id)",
            broker_id=self._broker_id,
        )

    async def _allocate_producer_ids(self, count: int) -> range:
        epoch = self.broker_epoch
        if not epoch:
            raise UnavailableError("this broker is not part of the cluster at the moment; ask another one")
        request = controller_pb2.AllocateProducerIdsRequest(
            broker_id=self._broker_id, broker_epoch=epoch, count=count
        )
        try:
            block = await self._controllers.allocate_producer_ids(
                request, timeout_s=self._config.change_ms_max / 1000
            )
        except QuireError as error:
            # Whatever became of the block: the producer that asked has none of it.
            raise UnavailableError(
                f"the controllers gave this broker no producer ids ({error.message}); try again, or ask another "
                "broker",
                retry_after_ms=error.retry_after_ms,
            ) from error
        return range(block.first_producer_id, block.first_producer_id + block.count)

    def _backoff(self) -> Backoff:
        return Backoff(
            ms_min=self._config.backoff_ms_min,
            ms_max=self._config.backoff_ms_max,
            uniform=self._randomness.uniform,
        )

    def _past_now_ms(self) -> int:
        """The next millisecond: to take a lease for over a moment too early is safe, and too late is not."""
        return int(self._loop.time() * 1000) + 1


def _check_may_pass(error: QuireError) -> None:
    """Raise what waiting does not mend: another cluster, a certificate that is refused, a port that is not theirs."""
    if not isinstance(error, OutcomeUnknownError) and error.status not in (
        Status.UNAVAILABLE,
        Status.RESOURCE_EXHAUSTED,
    ):
        raise error
