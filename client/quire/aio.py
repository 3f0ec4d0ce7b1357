"""Quire's client for programs that run an event loop: the same names as in `quire`, with methods to await."""

from quire._client.aio_admin import Admin
from quire._client.aio_consumer import Consumer
from quire._client.aio_producer import Producer
from quire._client.deliveries import AioDeliveries as Deliveries
from quire._client.deliveries import AioDelivery as Delivery
from quire._client.descriptions import (
    BrokerDescription,
    ClusterDescription,
    FollowerLag,
    ListenerDescription,
    MoveDescription,
    PartitionDescription,
    PartitionOffsets,
    QuorumDescription,
    QuorumMember,
    TopicDescription,
    TopicSummary,
)
from quire._client.message import Message
from quire._client.stored import Durability, Stored, StoredRange, TopicPartition

__all__ = [
    "Admin",
    "BrokerDescription",
    "ClusterDescription",
    "Consumer",
    "Deliveries",
    "Delivery",
    "Durability",
    "FollowerLag",
    "ListenerDescription",
    "Message",
    "MoveDescription",
    "PartitionDescription",
    "PartitionOffsets",
    "Producer",
    "QuorumDescription",
    "QuorumMember",
    "Stored",
    "StoredRange",
    "TopicDescription",
    "TopicPartition",
    "TopicSummary",
]
