"""Logs and followers for tests of the replication cores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from quire_broker.replica.config import ReplicaConfig
from quire_broker.replica.effects import IsrMember
from quire_broker.replica.leader import LeaderCore, Picture
from quire_broker.replica.messages import Ack, Join, StreamCount, StreamPosition
from quire_broker.replica.streams import RECORDS, LogView
from tests.property.replica_world import Entry, SimLog

E = TypeVar("E")

CONFIG = ReplicaConfig()
ACTIVE = {1: 101, 2: 102, 3: 103}
"""Broker epochs."""
LINK = b"L" * 16


def log_of(*epochs: int, start: int = 0, synced: bool = True) -> SimLog:
    """A log with one record of each of these epochs; the value of a record names its epoch and offset."""
    log = SimLog("fsync")
    log.reset(start)
    extend(log, *epochs, synced=synced)
    return log


def extend(log: SimLog, *epochs: int, synced: bool = True) -> None:
    for epoch in epochs:
        log.append([Entry(epoch, 1000 * epoch + log.end_offset)])
    if synced:
        log.sync(log.end_offset)


def picture(**changes: Any) -> Picture:
    """Three replicas, all in sync, of which broker 1 leads in epoch 5."""
    usual = Picture((1, 2, 3), (1, 2, 3), (), leader_epoch=5, partition_epoch=10, min_isr=2, brokers=ACTIVE)
    return usual._replace(**changes)


def leader_of(
    logs: Mapping[int, LogView],
    *,
    at: Picture | None = None,
    known: Mapping[int, int] | None = None,
    config: ReplicaConfig = CONFIG,
) -> LeaderCore:
    return LeaderCore(
        me=IsrMember(1, 101),
        picture=at or picture(),
        logs=logs,
        high_watermarks=known or {},
        config=config,
        now_ms=0,
    )


def join_of(
    broker_id: int, log: SimLog, *, attempt: int = 1, stream: int = RECORDS, epoch: int = 5, damaged: bool = False
) -> Join:
    position = StreamPosition(stream, log.start_offset, log.end_offset, log.latest_epoch)
    return Join(epoch, ACTIVE[broker_id], attempt, damaged, (position,))


def ack_of(*counts: tuple[int, int], attempt: int = 1, epoch: int = 5, damaged: bool = False) -> Ack:
    """Counts are (stream, offset)."""
    return Ack(epoch, attempt, damaged, tuple(StreamCount(stream, offset) for stream, offset in counts))


def follow(core: LeaderCore, broker_id: int, log: SimLog, *, now_ms: int = 0) -> None:
    """A follower whose log is the beginning of the leader's joins, is sent the rest and counts what it had."""
    core.on_join(broker_id, LINK, join_of(broker_id, log), now_ms)
    while (offer := core.next_push(broker_id, RECORDS)) is not None:
        core.push(broker_id, RECORDS, base_offset=offer.base_offset, end_offset=offer.end_offset)
    core.on_ack(broker_id, LINK, ack_of((RECORDS, log.counted_offset)), now_ms)


def push_all(core: LeaderCore, *to: int, stream: int = RECORDS) -> None:
    for broker_id in to:
        offer = core.next_push(broker_id, stream)
        assert offer is not None
        core.push(broker_id, stream, base_offset=offer.base_offset, end_offset=offer.end_offset)


def only(effects: Iterable[object], kind: type[E]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]
