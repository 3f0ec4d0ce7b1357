"""Bugs to plant in a whole cluster: those of the replication cores, and some that only their owners can have."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest import mock

from quire.lease import BrokerLease
from quire.v1 import broker_pb2, durability_pb2
from quire_broker.replica.effects import IsrMember
from quire_broker.runtime.log_writer import LogWriter
from quire_broker.runtime.partition import Partition
from quire_broker.runtime.partitions import Partitions
from quire_broker.service.produce import Producing
from tests.property import replica_planted
from tests.property.replica_planted import Planted


def acks_all_like_leader() -> AbstractContextManager[Any]:
    """Records are acknowledged once the leader has them."""
    return mock.patch.object(Partition, "committed", return_value=None)


def unsynced_offsets_counted() -> AbstractContextManager[Any]:
    """What is written counts, and is answered, whether it is on the disk or not."""

    def write(self: LogWriter, requests: Any, epoch: int) -> None:
        original(self, requests, epoch)
        while self._unsynced:
            self._answer_written(self._unsynced.popleft())

    original = LogWriter._write
    patches = ExitStack()
    patches.enter_context(mock.patch.object(LogWriter, "_write", write))
    everything = property(lambda self: self.log.end_offset)
    patches.enter_context(mock.patch.object(LogWriter, "counted_offset", everything))
    return patches


def duplicates_acked_at_once() -> AbstractContextManager[Any]:
    """A repeated batch is acknowledged because it is there, committed or not."""

    async def finish_entry(self: Producing, entry: Any, acks: int) -> broker_pb2.PartitionStored:
        if entry.answer is not None and entry.error is None:
            stored = await entry.answer
            if any(getattr(each, "duplicate", False) for each in stored):
                acks = durability_pb2.ACKS_LEADER
        return await original(self, entry, acks)

    original = Producing._finish_entry
    return mock.patch.object(Producing, "_finish_entry", finish_entry)


def same_epoch_restart() -> AbstractContextManager[Any]:
    """A broker that has restarted believes metadata of its earlier registration: it leads on in the same epoch."""

    def me(self: Partitions) -> IsrMember | None:
        mine = self._image.brokers.get(self._broker_id)
        return None if mine is None else IsrMember(self._broker_id, mine.broker_epoch)

    return mock.patch.object(Partitions, "_me", me)


def lease_from_the_answer() -> AbstractContextManager[Any]:
    """A lease counts from when its heartbeat was answered."""

    def answered(self: BrokerLease, seq: int, broker_epoch: int, lease_ms: int, metadata_version: int) -> None:
        self._sent_ms[seq] = int(asyncio.get_running_loop().time() * 1000)
        original(self, seq, broker_epoch, lease_ms, metadata_version)

    original = BrokerLease.on_heartbeat_answered
    return mock.patch.object(BrokerLease, "on_heartbeat_answered", answered)


PLANTED: dict[str, Planted] = {
    **{
        name: replica_planted.PLANTED[name]
        for name in (
            "ack_before_isr",
            "high_watermark_from_leader_alone",
            "no_epoch_truncation",
            "one_truncation_round",
        )
    },
    **{
        each.__name__: each
        for each in (
            acks_all_like_leader,
            unsynced_offsets_counted,
            duplicates_acked_at_once,
            same_epoch_restart,
            lease_from_the_answer,
        )
    },
}
