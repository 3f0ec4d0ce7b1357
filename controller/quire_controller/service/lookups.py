"""What a request means in the state as it is now, and the checks that need no quorum."""

from __future__ import annotations

import random
from typing import Final

from quire.errors import InvalidArgumentError, PeerRefusedError, UnknownTopicError
from quire.process.rpc.context import current
from quire.v1 import commands_pb2, controller_pb2, topics_pb2
from quire_controller.state import limits, placement
from quire_controller.state.checks import TOPIC_NAME, check_limit, check_range, check_uuid
from quire_controller.state.machine import ControllerState
from quire_controller.state.model import PartitionKey, Topic

REPLICATION_FACTOR: Final = 3
"""Of topics whose maker does not say, where there are so many brokers."""


def topic_of(state: ControllerState, ref: topics_pb2.TopicRef) -> Topic:
    """The topic that is meant, if it is of the caller's tenant."""
    tenant = current().tenant
    match ref.WhichOneof("ref"):
        case "name":
            found = state.topic_named(tenant, ref.name) if TOPIC_NAME.fullmatch(ref.name) else None
            if found is None:
                raise UnknownTopicError(f"there is no topic {ref.name[:80]!a}", topic=ascii(ref.name[:80])[1:-1])
        case "topic_id":
            found = state.topics.get(check_uuid("topic id", ref.topic_id))
            if found is None or found.tenant != tenant:
                raise UnknownTopicError(
                    f"there is no topic with the id {ref.topic_id.hex()}; it may have been deleted",
                    topic_id=ref.topic_id.hex(),
                )
        case None:
            raise InvalidArgumentError("say which topic is meant, by its name or its id")
    return found


def users_topic_of(state: ControllerState, ref: topics_pb2.TopicRef) -> Topic:
    """The same, unless it is one of Quire's own, which are not for people to change."""
    topic = topic_of(state, ref)
    if topic.internal:
        raise InvalidArgumentError(f"'{topic.name}' is a topic of Quire's own and is kept as it is", topic=topic.name)
    return topic


def partition_of(state: ControllerState, ref: controller_pb2.PartitionRef) -> commands_pb2.PartitionAt:
    """The partition at the epoch that the caller names, or else has now."""
    topic = topic_of(state, ref.topic)
    partition = state.tables.partition(PartitionKey(topic.topic_id, ref.partition))
    return commands_pb2.PartitionAt(
        topic_id=topic.topic_id,
        partition=ref.partition,
        partition_epoch=ref.partition_epoch if ref.HasField("partition_epoch") else partition.partition_epoch,
    )


def default_replication_factor(state: ControllerState) -> int:
    return max(1, min(REPLICATION_FACTOR, len(placement.candidates(state.tables))))


def new_topic_id(randomness: random.Random) -> bytes:
    """A random UUID (version 4)."""
    data = bytearray(randomness.randbytes(limits.UUID_BYTES))
    data[6] = data[6] & 0x0F | 0x40
    data[8] = data[8] & 0x3F | 0x80
    return bytes(data)


# --- checks --------------------------------------------------------------------------------------------------------


def check_partition_count(count: int, *, least: int) -> None:
    check_range("partition_count", count, least, limits.PARTITIONS_PER_TOPIC_MAX)


def check_replication_factor(count: int) -> None:
    check_range("replication_factor", count, 0, limits.REPLICATION_FACTOR_MAX)


def check_broker_id(broker_id: int) -> None:
    check_range("broker_id", broker_id, 1, limits.BROKER_ID_MAX)


def check_some(what: str, count: int, count_max: int) -> None:
    """There is something to do, and not more than can be done at once."""
    if not count:
        raise InvalidArgumentError(f"there are no {what} in the request")
    check_limit(f"{what} in one request", count, count_max)


def check_speaks_for(state: ControllerState, broker_id: int) -> None:
    """A node whose certificate is known speaks for its own broker and for no other.

    This member's state may be old; then it does not know the broker, or knows it by the same name.
    """
    check_broker_id(broker_id)
    node_id, broker = current().node_id, state.brokers.get(broker_id)
    if node_id is not None and broker is not None and broker.node_id != node_id:
        raise PeerRefusedError(
            f"broker {broker_id} is node '{broker.node_id}', and the certificate is of node '{node_id}'",
            refusal="CERTIFICATE",
        )
