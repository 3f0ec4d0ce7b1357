"""FollowTopics: what the cluster knows of some topics, as told to clients: only what changed, by their own listener.

Like the controller's streams, one keeps nothing but what it has sent, and makes the next message when it is taken.
What has changed is noted meanwhile: to look at all partitions for each change would take a broker with many clients
all of its time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from quire.errors import InvalidArgumentError, InvalidTopicNameError, QuireError, UnavailableError
from quire.process.rpc.context import current
from quire.v1 import broker_pb2, metadata_pb2, topics_pb2
from quire_broker.runtime.budget import Charge
from quire_broker.runtime.partitions import Partitions
from quire_broker.service.answers import Answers, CallContext
from quire_broker.state.image import Changes, MetadataImage

TOPICS_MAX: Final = 1_000
NAME_CHARACTERS_MAX: Final = 249
ALIVE_S: Final = 1.0
CATCH_UP_S_MAX: Final = 5.0
"""How long a client that has heard of a newer version elsewhere waits for this broker to hear of it."""
PARTITIONS_A_MESSAGE: Final = 2_000
TOPIC_BYTES: Final = 512
"""What a topic that is followed takes here, beside its partitions."""
CHANGES_MAX: Final = 10_000
"""Partitions that have changed since the last message. With more, all are looked at."""


class Following:
    """All FollowTopics streams."""

    def __init__(
        self,
        image: MetadataImage,
        partitions: Partitions,
        answers: Answers,
        *,
        limits: broker_pb2.BrokerLimits,
        has_lease: Callable[[], bool],
    ) -> None:
        self._image = image
        self._partitions = partitions
        self._answers = answers
        self._limits = limits
        self._has_lease = has_lease
        self._wakers: dict[asyncio.Event, None] = {}
        self._stopping = False

    def stop(self) -> None:
        """End all streams: whoever follows goes to another broker."""
        self._stopping = True
        for changed in self._wakers:
            changed.set()

    async def serve(self, request: broker_pb2.FollowTopicsRequest, context: CallContext) -> None:
        refs = _checked(request)
        caller = self._answers.caller(context)
        mine = current()
        changed = asyncio.Event()
        told = _Told(self._image, self._partitions, refs, tenant=mine.tenant, listener=mine.listener)

        def on_changes(changes: Changes) -> None:
            told.note(changes)
            changed.set()

        charge = Charge(caller.connection)
        charge.take(TOPIC_BYTES * len(refs))
        unfollow = self._partitions.follow(on_changes)
        self._wakers[changed] = None
        try:
            await self._catch_up(request.from_version, changed)
            limits: broker_pb2.BrokerLimits | None = self._limits
            while True:
                changed.clear()
                if self._stopping:
                    raise UnavailableError("this broker is stopping; follow another one")
                for message in told.messages():
                    if limits is not None:
                        message.limits.CopyFrom(limits)
                        limits = None
                    await self._answers.room(caller)
                    await self._answers.write(caller, message)
                try:
                    async with asyncio.timeout(ALIVE_S):
                        await changed.wait()
                except TimeoutError:
                    # Without a lease nothing says that what it knows is still so. A client that reaches it, while the
                    # controllers do not, would wait with it for as long as that lasts, and hear of no new leader.
                    if not self._has_lease():
                        raise UnavailableError(
                            "this broker is out of touch with the controllers, and what it knows may be out of date; "
                            "follow another one"
                        ) from None
                    alive = broker_pb2.FollowTopicsResponse(
                        version=self._image.version, cluster_id=self._image.cluster_id
                    )
                    await self._answers.write(caller, alive)
        finally:
            unfollow()
            del self._wakers[changed]
            charge.let_go()

    async def _catch_up(self, version: int, changed: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(CATCH_UP_S_MAX):
                while self._image.version < version or not self._image.version:
                    changed.clear()
                    if self._stopping:
                        return
                    await changed.wait()
        except TimeoutError as error:
            raise UnavailableError(
                f"this broker has heard of the metadata up to version {self._image.version}, not {version}; follow "
                "another one",
                retry_after_ms=500,
            ) from error


def _checked(request: broker_pb2.FollowTopicsRequest) -> list[topics_pb2.TopicRef]:
    """What is to be followed, without anything else that the request may hold."""
    if len(request.topics) > TOPICS_MAX:
        raise InvalidArgumentError(f"at most {TOPICS_MAX} topics can be followed at once, not {len(request.topics)}")
    refs: dict[bytes, topics_pb2.TopicRef] = {}
    for each in request.topics:
        match each.WhichOneof("ref"):
            case "name":
                if len(each.name) > NAME_CHARACTERS_MAX:
                    raise InvalidTopicNameError(f"no topic has a name of {len(each.name)} characters")
                ref = topics_pb2.TopicRef(name=each.name)
            case "topic_id":
                ref = topics_pb2.TopicRef(topic_id=each.topic_id[:16])
            case _:
                raise InvalidArgumentError("say which topic is meant, by its name or its id")
        refs[ref.SerializeToString(deterministic=True)] = ref
    return list(refs.values())


class _Told:
    """What one client has been told, and what it has not."""

    def __init__(
        self,
        image: MetadataImage,
        partitions: Partitions,
        refs: list[topics_pb2.TopicRef],
        *,
        tenant: str,
        listener: str,
    ) -> None:
        self._image = image
        self._all = partitions
        self._refs = refs
        self._tenant = tenant
        self._listener = listener
        self._version = -1
        self._brokers: dict[int, broker_pb2.BrokerAddress] = {}
        self._topics: dict[bytes, metadata_pb2.Topic] = {}
        self._partitions: dict[bytes, list[metadata_pb2.Partition | None]] = {}
        self._missing: dict[int, None] = {}
        """Which of the refs."""
        self._brokers_changed = self._topics_changed = self._all_changed = True
        self._changed: dict[tuple[bytes, int], None] = {}

    def note(self, changes: Changes) -> None:
        self._brokers_changed |= bool(changes.brokers) or changes.everything
        self._topics_changed |= bool(changes.topics or changes.deleted_topics) or changes.everything
        self._all_changed |= changes.everything
        if not self._all_changed:
            self._changed |= dict.fromkeys(key for key in changes.partitions if key[0] in self._partitions)
            if len(self._changed) > CHANGES_MAX:
                self._all_changed = True
        if self._all_changed:
            self._changed.clear()

    def messages(self) -> Iterator[broker_pb2.FollowTopicsResponse]:
        """What the client does not know yet; the first time at least the version. All of it is of one version."""
        image = self._image
        if image.version == self._version:
            return
        version = self._version = image.version
        message = broker_pb2.FollowTopicsResponse(version=version, cluster_id=image.cluster_id)
        if self._brokers_changed:
            self._add_brokers(message)
        news = self._look_at_topics(message) if self._topics_changed else {}
        news |= self._look_at_partitions()
        self._brokers_changed = self._topics_changed = self._all_changed = False
        self._changed.clear()
        left = iter(list(news.values()))
        count = len(news)
        while count > PARTITIONS_A_MESSAGE:
            # The version comes with the last one: before it the picture is not whole.
            message.version = 0
            message.partitions.extend(_leader(next(left)) for _ in range(PARTITIONS_A_MESSAGE))
            count -= PARTITIONS_A_MESSAGE
            yield message
            message = broker_pb2.FollowTopicsResponse(version=version, cluster_id=image.cluster_id)
        message.partitions.extend(map(_leader, left))
        yield message

    def _add_brokers(self, message: broker_pb2.FollowTopicsResponse) -> None:
        now = {broker_id: _address(broker, self._listener) for broker_id, broker in self._image.brokers.items()}
        for broker_id in sorted(now):
            if self._brokers.get(broker_id) != now[broker_id]:
                message.brokers.append(now[broker_id])
        message.brokers_removed.extend(sorted(self._brokers.keys() - now.keys()))
        self._brokers = now

    def _look_at_topics(
        self, message: broker_pb2.FollowTopicsResponse
    ) -> dict[tuple[bytes, int], metadata_pb2.Partition]:
        """Tell of topics. Answers the partitions of those that the client has not followed before."""
        missing: dict[int, None] = {}
        topics: dict[bytes, metadata_pb2.Topic] = {}
        for number, ref in enumerate(self._refs):
            try:
                topic = self._all.topic(self._tenant, ref)
            except QuireError:
                missing[number] = None
                if number not in self._missing:
                    message.missing.append(ref)
                continue
            if topic.topic_id not in topics and self._topics.get(topic.topic_id) is not topic:
                message.topics.append(topic)
            topics[topic.topic_id] = topic
        news: dict[tuple[bytes, int], metadata_pb2.Partition] = {}
        before, self._partitions = self._partitions, {}
        for topic_id, topic in topics.items():
            known = self._partitions[topic_id] = before.get(topic_id, [])
            if self._topics.get(topic_id) is not topic:
                known += [None] * (topic.partition_count - len(known))
                for index in range(topic.partition_count):
                    self._look_at(topic_id, index, news)
        self._topics, self._missing = topics, missing
        return news

    def _look_at_partitions(self) -> dict[tuple[bytes, int], metadata_pb2.Partition]:
        news: dict[tuple[bytes, int], metadata_pb2.Partition] = {}
        if self._all_changed:
            for topic_id, known in self._partitions.items():
                for index in range(len(known)):
                    self._look_at(topic_id, index, news)
        else:
            for topic_id, index in self._changed:
                if index < len(self._partitions.get(topic_id, ())):
                    self._look_at(topic_id, index, news)
        return news

    def _look_at(self, topic_id: bytes, index: int, news: dict[tuple[bytes, int], metadata_pb2.Partition]) -> None:
        partition = self._image.partition(topic_id, index)
        if partition is not None and self._partitions[topic_id][index] is not partition:
            self._partitions[topic_id][index] = news[topic_id, index] = partition


def _address(broker: metadata_pb2.Broker, listener: str) -> broker_pb2.BrokerAddress:
    address = broker_pb2.BrokerAddress(broker_id=broker.broker_id, rack=broker.rack, active=not broker.fenced)
    for each in broker.listeners:
        if each.name == listener:
            address.host, address.port, address.tls = each.host, each.port, each.tls
    return address


def _leader(partition: metadata_pb2.Partition) -> broker_pb2.PartitionLeader:
    return broker_pb2.PartitionLeader(
        topic_id=partition.topic_id,
        partition=partition.partition,
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        replicas=partition.replicas,
        isr=partition.isr,
    )
