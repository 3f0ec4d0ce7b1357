"""What handlers ask of what they are given. Commands come from our own services, and are checked all the same."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

from quire.errors import (
    BrokerFencedError,
    InvalidArgumentError,
    InvalidTopicNameError,
    LimitExceededError,
    StaleBrokerEpochError,
    StalePartitionEpochError,
)
from quire.v1 import commands_pb2
from quire_controller.state import limits
from quire_controller.state.model import Broker, Partition, PartitionKey
from quire_controller.state.tables import Tables

TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
NODE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
"""Of clusters, nodes, controllers and tenants: as the peer link has it."""
LABEL: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""Of listeners and racks."""
HOST: Final = re.compile(r"[A-Za-z0-9.:%_-]{1,255}")
"""A name, or an address of either kind."""
INTERNAL_PREFIX: Final = "__"

# Texts of others are shown with !a: what is printable depends on the version of Python, and results are state.


def check_uuid(what: str, value: bytes) -> bytes:
    if len(value) != limits.UUID_BYTES or not any(value):
        raise InvalidArgumentError(f"a {what} has {limits.UUID_BYTES} bytes, not all of them zero")
    return value


def check_name(what: str, name: str, form: re.Pattern[str] = NODE_NAME) -> str:
    if not form.fullmatch(name):
        raise InvalidArgumentError(f"{name[:80]!a} is no {what}; use letters, digits, '.', '_' and '-'")
    return name


def check_topic_name(name: str, *, internal: bool) -> str:
    if not TOPIC_NAME.fullmatch(name) or name in (".", ".."):
        raise InvalidTopicNameError(
            f"{name[:80]!a} cannot be a topic's name; use 1 to 249 letters, digits, '.', '_' and '-'"
        )
    if name.startswith(INTERNAL_PREFIX) != internal:
        raise InvalidTopicNameError(
            f"'{name[:80]}': the names of internal topics, and of no others, begin with '{INTERNAL_PREFIX}'"
        )
    return name


def check_range(what: str, value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        raise InvalidArgumentError(f"{what} must lie between {least} and {most}, not {value}")
    return value


def check_limit(what: str, count: int, count_max: int) -> None:
    if count > count_max:
        raise LimitExceededError(
            f"there would be {count} {what}, and there may be {count_max}", what=what, limit=count_max
        )


def check_distinct(what: str, values: Collection[object]) -> None:
    if len(set(values)) != len(values):
        raise InvalidArgumentError(f"the {what} are to be different from each other")


def current_broker(tables: Tables, broker_id: int, broker_epoch: int) -> Broker:
    """The broker, if the one who speaks or is meant is its newest registration."""
    broker = tables.broker(broker_id)
    if broker.broker_epoch != broker_epoch:
        raise StaleBrokerEpochError(
            f"broker {broker_id} has the epoch {broker.broker_epoch}, not {broker_epoch}: it has registered anew",
            broker_id=broker_id,
            broker_epoch=broker.broker_epoch,
        )
    return broker


def active_broker(tables: Tables, broker_id: int, broker_epoch: int) -> Broker:
    broker = current_broker(tables, broker_id, broker_epoch)
    if broker.fenced:
        raise BrokerFencedError(f"broker {broker_id} is fenced", broker_id=broker_id)
    return broker


def partition_at(tables: Tables, at: commands_pb2.PartitionAt) -> Partition:
    """The partition, if it is still as the one who asks for a change saw it."""
    partition = tables.partition(PartitionKey(at.topic_id, at.partition))
    if partition.partition_epoch != at.partition_epoch:
        raise StalePartitionEpochError(
            f"partition {partition.key} is at partition epoch {partition.partition_epoch}, not {at.partition_epoch}",
            partition_epoch=partition.partition_epoch,
        )
    return partition


def text_of(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, brokers))
