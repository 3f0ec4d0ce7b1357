"""What idempotent producers have sent to this log, so that a retry is stored once and a gap is refused.

A producer numbers its records from 0 (per log and producer epoch, modulo 2³¹). Of each producer the last five batches
are remembered, as many as a client may have in flight; a retry of one of those is answered with its first offset.

A producer that this log does not know must begin at 0. One that was forgotten (silent for too long, or too many
others) is refused like one with a gap, and takes a new epoch: guessing that the gap is harmless could reorder its
batches.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from quire.disk.framed import frame, unframe
from quire.errors import (
    DamagedFileError,
    DuplicateSequenceError,
    MalformedBatchError,
    OutOfOrderSequenceError,
    ProducerFencedError,
)
from quire.records.header import BatchHeader

BATCHES_REMEMBERED: Final = 5
_SEQUENCES: Final = 2**31
_VERSION: Final = 1
_HEAD = struct.Struct(">qI")
_PRODUCER = struct.Struct(">qhqqiB")
_BATCH = struct.Struct(">iiq")


class SentBatch(NamedTuple):
    first_sequence: int
    last_sequence: int
    base_offset: int


class Producer(NamedTuple):
    epoch: int
    batches: tuple[SentBatch, ...]
    """The newest last."""
    seen_ms: int
    transaction_first_offset: int = -1
    """Where the producer's open transaction begins; -1 without one."""
    coordinator_epoch: int = -1
    """Of the newest transaction marker: an older coordinator's marker is refused."""


class Producers:
    def __init__(self, *, producers_max: int, expiry_ms: int) -> None:
        self._producers_max = producers_max
        self._expiry_ms = expiry_ms
        self._producers: dict[int, Producer] = {}  # the one silent longest first

    def __len__(self) -> int:
        return len(self._producers)

    def items(self) -> Iterator[tuple[int, Producer]]:
        return iter(self._producers.items())

    def clear(self) -> None:
        self._producers = {}

    def copy(self) -> Producers:
        """The state as it is now; cheap, since what is known of a producer is never changed but replaced."""
        other = self.emptied()
        other._producers = dict(self._producers)
        return other

    def emptied(self) -> Producers:
        """Nobody known, and the same limits."""
        return Producers(producers_max=self._producers_max, expiry_ms=self._expiry_ms)

    def plan(self) -> ProducerPlan:
        return ProducerPlan(self)

    def get(self, producer_id: int) -> Producer | None:
        return self._producers.get(producer_id)

    def learn(self, header: BatchHeader, *, now_ms: int) -> None:
        """Take note of a batch that is in the log, without asking whether it should be."""
        if header.producer_id >= 0:
            self.put(header.producer_id, _after(self.get(header.producer_id), header, header.base_offset, now_ms))

    def learn_late(self, header: BatchHeader, *, now_ms: int) -> bool:
        """Take note of a batch that could not be read when later ones were learned. True if it was news."""
        known = self.get(header.producer_id)
        if header.producer_id < 0 or (known is not None and known.epoch > header.producer_epoch):
            return False
        if known is None or known.epoch < header.producer_epoch:
            self.learn(header, now_ms=now_ms)
            return True
        sent = SentBatch(header.base_sequence, _last_sequence(header), header.base_offset)
        if header.is_control or header.base_sequence < 0 or sent in known.batches:
            return False
        batches = tuple(sorted((*known.batches, sent), key=lambda batch: batch.base_offset)[-BATCHES_REMEMBERED:])
        # In its place among the silent ones: it was not heard of again.
        self._producers[header.producer_id] = known._replace(batches=batches)
        return batches != known.batches

    def put(self, producer_id: int, producer: Producer) -> None:
        self._producers.pop(producer_id, None)
        self._producers[producer_id] = producer
        oldest_ms = producer.seen_ms - self._expiry_ms
        while True:
            first = next(iter(self._producers))
            expired = self._producers[first].seen_ms < oldest_ms
            if first == producer_id or not (expired or len(self._producers) > self._producers_max):
                return
            del self._producers[first]

    def to_bytes(self, offset: int) -> bytes:
        """A snapshot of the state just before `offset`."""
        parts = [_HEAD.pack(offset, len(self._producers))]
        for producer_id, p in self._producers.items():
            parts.append(
                _PRODUCER.pack(
                    producer_id,
                    p.epoch,
                    p.seen_ms,
                    p.transaction_first_offset,
                    p.coordinator_epoch,
                    len(p.batches),
                )
            )
            parts.extend(_BATCH.pack(*batch) for batch in p.batches)
        return frame("producers", _VERSION, b"".join(parts))

    def load(self, data: bytes, *, path: str) -> int:
        """Replace the state by a snapshot's and return the offset it was taken at."""
        payload = unframe(data, kind="producers", version_max=_VERSION, path=path)
        try:
            offset, count = _HEAD.unpack_from(payload)
            at = _HEAD.size
            loaded: dict[int, Producer] = {}
            for _ in range(count):
                producer_id, epoch, seen_ms, first_offset, coordinator, sent = _PRODUCER.unpack_from(payload, at)
                at += _PRODUCER.size
                batches = tuple(SentBatch(*_BATCH.unpack_from(payload, at + i * _BATCH.size)) for i in range(sent))
                at += sent * _BATCH.size
                loaded[producer_id] = Producer(epoch, batches, seen_ms, first_offset, coordinator)
        except struct.error as error:
            raise DamagedFileError(f"{path} ends too early", path=path) from error
        if at != len(payload):
            raise DamagedFileError(f"{path} goes on after its {count} producers", path=path)
        self._producers = loaded
        return int(offset)


class ProducerPlan:
    """Checks of batches about to be written together: each sees those before it, none is kept if the write fails."""

    def __init__(self, producers: Producers) -> None:
        self._producers = producers
        self._changed: dict[int, Producer] = {}

    def admit(self, header: BatchHeader, base_offset: int, *, now_ms: int) -> int | None:
        """None to store the batch at `base_offset`; the first offset of the original if it is a retry of one."""
        if header.producer_id < 0:
            return None
        known = self._changed.get(header.producer_id) or self._producers.get(header.producer_id)
        duplicate_of = _check(known, header)
        if duplicate_of is None:
            # To the end: `commit` hands them over in the order in which they were last heard of.
            self._changed.pop(header.producer_id, None)
            self._changed[header.producer_id] = _after(known, header, base_offset, now_ms)
        return duplicate_of

    def commit(self) -> None:
        for producer_id, producer in self._changed.items():
            self._producers.put(producer_id, producer)
        self._changed = {}


def _check(known: Producer | None, header: BatchHeader) -> int | None:
    who = f"producer {header.producer_id} epoch {header.producer_epoch}"
    details = {"producer_id": header.producer_id, "producer_epoch": header.producer_epoch}
    if header.producer_epoch < 0:
        raise MalformedBatchError(f"{who}: a batch with a producer id needs an epoch")
    if known is not None and header.producer_epoch < known.epoch:
        raise ProducerFencedError(f"{who} was replaced by epoch {known.epoch}; close this producer", **details)
    if header.is_control:
        return None
    if header.base_sequence < 0:
        raise MalformedBatchError(f"{who}: a batch with a producer id needs a sequence")
    first, last = header.base_sequence, _last_sequence(header)
    if known is None or known.epoch != header.producer_epoch or not known.batches:
        expected = 0
    else:
        newest = known.batches[-1]
        for batch in known.batches:
            if (batch.first_sequence, batch.last_sequence) == (first, last):
                return batch.base_offset
        expected = (newest.last_sequence + 1) % _SEQUENCES
        if (newest.last_sequence - last) % _SEQUENCES < _SEQUENCES // 2:
            raise DuplicateSequenceError(
                f"{who}: sequences {first}–{last} were stored before, too long ago to say where; do not send again",
                **details,
            )
    if first != expected:
        raise OutOfOrderSequenceError(
            f"{who}: got sequence {first}, expected {expected}; a batch before it is missing, or this "
            f"producer was forgotten: begin a new epoch",
            expected=expected,
            **details,
        )
    return None


def _after(known: Producer | None, header: BatchHeader, base_offset: int, now_ms: int) -> Producer:
    same_epoch = known is not None and known.epoch == header.producer_epoch
    batches = known.batches if known is not None and same_epoch else ()
    if not header.is_control and header.base_sequence >= 0:
        sent = SentBatch(header.base_sequence, _last_sequence(header), base_offset)
        batches = (*batches[-(BATCHES_REMEMBERED - 1) :], sent)
    if known is None:
        return Producer(header.producer_epoch, batches, now_ms)
    return known._replace(epoch=header.producer_epoch, batches=batches, seen_ms=max(now_ms, known.seen_ms))


def _last_sequence(header: BatchHeader) -> int:
    return (header.base_sequence + header.last_offset_delta) % _SEQUENCES
