"""Quire: a replicated log and a work queue in one cluster.

from quire import Producer, Consumer, Admin

What stands here is imported when it is first used: `quire --help` needs none of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from quire._client.admin import Admin
    from quire._client.consumer import Consumer
    from quire._client.deliveries import Deliveries, Delivery
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
    from quire._client.producer import Producer
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

_HOMES: Final = {
    "admin": ("Admin",),
    "consumer": ("Consumer",),
    "deliveries": ("Deliveries", "Delivery"),
    "descriptions": (
        "BrokerDescription",
        "ClusterDescription",
        "FollowerLag",
        "ListenerDescription",
        "MoveDescription",
        "PartitionDescription",
        "PartitionOffsets",
        "QuorumDescription",
        "QuorumMember",
        "TopicDescription",
        "TopicSummary",
    ),
    "message": ("Message",),
    "producer": ("Producer",),
    "stored": ("Durability", "Stored", "StoredRange", "TopicPartition"),
}
_MODULES: Final = {name: f"quire._client.{module}" for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
