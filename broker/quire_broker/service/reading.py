"""Reading a partition into an answer, for Fetch and Subscribe."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Protocol

from quire.errors import InvalidArgumentError, QuireError
from quire.records.header import HEADER_BYTES
from quire.v1 import broker_pb2
from quire_broker.runtime.partition import Partition
from quire_broker.runtime.partitions import Partitions
from quire_broker.service.answers import COPIES, Loan
from quire_broker.service.encode import decode_records, is_quick
from quire_broker.service.turns import Turns

PARTITION_BYTES: Final = 1024 * 1024
STEP_BYTES: Final = 1024 * 1024
"""What is read in one turn of the loop: small batches take their time, one by one."""
FORMS: Final = tuple(broker_pb2.RecordForm.values())
RAW: Final = broker_pb2.RECORD_FORM_RAW
_ISOLATIONS: Final = tuple(broker_pb2.Isolation.values())


class Observer(Protocol):
    def fetched(self, size_bytes: int, /) -> None: ...


class Reading:
    """What all who read share."""

    def __init__(
        self, partitions: Partitions, turns: Turns, *, observer: Observer, pool: ThreadPoolExecutor | None = None
    ) -> None:
        """`pool` is where batches are decoded that take long. One thread will do: all share one interpreter."""
        self.partitions = partitions
        self.observer = observer
        self._turns = turns
        self._pool = pool or ThreadPoolExecutor(1, "decode")

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def read(
        self,
        answer: broker_pb2.PartitionFetched,
        partition: Partition,
        offset: int,
        *,
        epoch: int | None,
        form: int,
        bytes_max: int,
        is_first: bool,
        loan: Loan,
    ) -> tuple[int, bytes | None]:
        """Put committed records from `offset` on into the answer, or give them as raw batches that belong there.

        The number is how many bytes their batches are, as stored.

        No more than `bytes_max`, but for one batch if this `is_first`: it could never be read otherwise. Raises the
        QuireError for what cannot be read, unless there is something before it.
        """
        self.partitions.check_led(partition, epoch)
        tell(answer, partition, offset)
        data, end = await self._stored(partition, offset, epoch, bytes_max, is_first, loan)
        if not data:
            return 0, None
        if form == RAW:
            answer.next_offset = end
            loan.add((COPIES - 1) * len(data) + COPIES * answer.ByteSize())
            return len(data), data
        into = answer.records.decoded
        decode = partial(decode_records, data, into, from_offset=offset, bytes_max=bytes_max)
        loop = asyncio.get_running_loop()
        quick = is_quick(data)
        taken, answer.next_offset = decode() if quick else await loop.run_in_executor(self._pool, decode)
        loan.add(COPIES * answer.ByteSize() - len(data))
        return taken, None

    async def _stored(
        self, partition: Partition, offset: int, epoch: int | None, bytes_max: int, is_first: bool, loan: Loan
    ) -> tuple[bytes, int]:
        """Whole batches, and where they end."""
        parts: list[memoryview] = []
        size, at = 0, offset
        while size < bytes_max or not parts:
            began = asyncio.get_running_loop().time()
            try:
                if parts:
                    self.partitions.check_led(partition, epoch)
                batches = partition.read(at, bytes_max=max(min(bytes_max - size, STEP_BYTES), HEADER_BYTES))
            except QuireError:
                if parts:
                    break  # whoever goes on reading will meet it first
                raise
            found = len(batches.data)
            if not found or (size + found > bytes_max and (parts or not is_first)):
                break
            parts.append(batches.data)
            size, at = size + found, batches.end_offset
            loan.add(found)
            await self._turns.next_after(began)
            if at >= partition.high_watermark:
                break
        return _joined(parts), at


def tell(answer: broker_pb2.PartitionFetched, partition: Partition, offset: int) -> None:
    """What the partition is at."""
    answer.leader_epoch = partition.leader_epoch
    answer.high_watermark = partition.high_watermark
    answer.last_stable_offset = partition.last_stable_offset
    answer.log_start_offset = partition.start_offset
    answer.next_offset = offset


def check_isolation(isolation: int) -> None:
    if isolation not in _ISOLATIONS:
        raise InvalidArgumentError(f"there is no isolation {isolation}")


def _joined(parts: list[memoryview]) -> bytes:
    if len(parts) == 1:
        # The reader has made these bytes for this call: where they are all wanted they need no copy.
        whole = parts[0].obj
        if isinstance(whole, bytes) and len(whole) == len(parts[0]):
            return whole
    return b"".join(parts)
