"""A producer's core against brokers that lose, delay, refuse and come back: no sockets, one seed, one thread.

The brokers keep what the real one keeps of producers (`quire_broker.log.producers`). Requests of a connection that
was cut may still be carried out later, as long as the leadership lasts that they are addressed to.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Final

from quire._client.accumulator import Accumulator, Clocks, Settings, TopicOutboxes
from quire._client.batch import Batch
from quire._client.dispatch import Dispatch, Entry, Leader, Load
from quire._client.outbox import Outbox
from quire._client.partitioners import murmur3
from quire._client.stored import Durability, Placed
from quire.errors import (
    BatchTooLargeError,
    LogBusyError,
    NotLeaderError,
    OutcomeUnknownError,
    QuireError,
    UnavailableError,
)
from quire.link.backoff import Backoff
from quire.records import Codec, decode, parse_batch
from quire_broker.log.producers import Producers

PARTITIONS: Final = 2
TOPIC: Final = "orders"
DELIVERY_MS_MAX: Final = 3_000


@dataclass
class Request:
    """What is on the wire: encoded batches, and the leader epoch that each is addressed to."""

    entries: list[tuple[Entry, bytes, int]]


@dataclass
class Partition:
    """The log of one partition, and its leadership."""

    leader: int = 1
    epoch: int = 1
    log: list[bytes] = field(default_factory=list)
    producers: Producers = field(default_factory=lambda: Producers(producers_max=1000, expiry_ms=10**12))


Answer = tuple[Entry, "Placed | QuireError", int]


class World:
    def __init__(
        self,
        seed: int,
        *,
        idempotent: bool = True,
        brokers: int = 2,
        batch_bytes: int = 200,
        clean_cuts: bool = False,
    ) -> None:
        self.random = random.Random(seed)
        self.idempotent = idempotent
        self.now_ms = 0.0
        self.partitions = [Partition(leader=1 + n % brokers) for n in range(PARTITIONS)]
        self.brokers = range(1, brokers + 1)
        self.clean_cuts = clean_cuts
        self.wire: dict[int, deque[Request]] = {broker: deque() for broker in self.brokers}
        self.answers: dict[int, list[Answer]] = {broker: [] for broker in self.brokers}
        self.ghosts: list[Request] = []
        self.sent: dict[int, list[tuple[Batch, int, bytes]]] = {n: [] for n in range(PARTITIONS)}
        settings = Settings(
            batch_bytes=batch_bytes,
            buffer_bytes=1 << 20,
            delivery_ms_max=DELIVERY_MS_MAX,
            idempotent=idempotent,
            codec=Codec.NONE,
        )
        self.accumulator: Accumulator[tuple[Batch, int]] = Accumulator(
            settings,
            clocks=Clocks(now_ms=lambda: self.now_ms, wall_ms=lambda: int(self.now_ms)),
            lock=nullcontext(),
            backoff=lambda: Backoff(ms_min=10, ms_max=200, uniform=self.random.uniform),
            delivery=lambda batch, index: (batch, index),
            wake=lambda: None,
        )
        topic = TopicOutboxes(
            TOPIC,
            bytes(16),
            by_key=murmur3,
            choose=None,
            batch_bytes=batch_bytes,
            record_bytes_max=1000,
            first_sticky=0,
        )
        self.accumulator.set_topic(topic, PARTITIONS)
        self.dispatch = Dispatch(
            self.accumulator,
            idempotent=idempotent,
            linger_ms=0,
            leader_of=self._leader_of,
            has_room=lambda broker, collected: True,
            request_bytes_max=lambda broker: 600,
        )
        self.dispatch.identity = 7 if idempotent else None
        self._leaders = [(each.leader, each.epoch) for each in self.partitions]
        self.connected = dict.fromkeys(self.brokers, True)
        self._count = 0

    def _leader_of(self, outbox: Outbox) -> Leader | QuireError:
        broker, epoch = self._leaders[outbox.partition]
        return Leader(broker, epoch) if self.connected[broker] else UnavailableError("no connection")

    # -- what may happen ---------------------------------------------------------------------------------------------

    def send(self) -> None:
        partition = self.random.randrange(PARTITIONS)
        value = b"%08d" % self._count + bytes(self.random.choice((0, 50)))
        self._count += 1
        taken = self.accumulator.append(TOPIC, value, None, (), partition, None)
        assert taken is not None
        self.sent[partition].append((*taken, value))

    def pump(self) -> None:
        loads, _ = self.dispatch.collect(self.now_ms)
        for load in loads:
            self._put(load)

    def _put(self, load: Load) -> None:
        request = Request([(entry, entry.batch.encoded, entry.batch.sent_epoch) for entry in load.entries])
        self.wire[load.broker_id].append(request)

    def deliver(self) -> None:
        broker = self.random.choice(self.brokers)
        if self.wire[broker]:
            request = self.wire[broker].popleft()
            self.answers[broker] += self._carry_out(broker, request)

    def haunt(self) -> None:
        if self.ghosts:
            self._carry_out(None, self.ghosts.pop(self.random.randrange(len(self.ghosts))))

    def answer(self) -> None:
        broker = self.random.choice(self.brokers)
        answers = self.answers[broker]
        if answers and self.connected[broker]:
            entry, outcome, epoch = answers.pop(self.random.randrange(len(answers)))
            self.dispatch.answered(entry, outcome, leader_epoch=epoch, now_ms=self.now_ms)

    def cut(self) -> None:
        """A connection breaks: what is on it is lost, or will be carried out though nobody hears of it."""
        broker = self.random.choice(self.brokers)
        lost = [entry for entry, _, _ in self.answers[broker]]
        self.answers[broker] = []
        for request in self.wire[broker]:
            lost += [entry for entry, _, _ in request.entries]
            if not self.clean_cuts and self.random.random() < 0.7:
                self.ghosts.append(request)
        self.wire[broker].clear()
        self.connected[broker] = False
        for entry in lost:
            self.dispatch.answered(entry, OutcomeUnknownError("cut"), leader_epoch=None, now_ms=self.now_ms)

    def connect(self) -> None:
        self.connected = dict.fromkeys(self.brokers, True)

    def elect(self) -> None:
        partition = self.random.choice(self.partitions)
        partition.leader = self.random.choice(self.brokers)
        partition.epoch += 1

    def learn(self) -> None:
        self._leaders = [(each.leader, each.epoch) for each in self.partitions]

    def pass_time(self) -> None:
        self.now_ms += self.random.choice((1, 5, 30, 120))

    def hang(self) -> None:
        self.now_ms += DELIVERY_MS_MAX / 2

    # -- the broker --------------------------------------------------------------------------------------------------

    refuse: Callable[[World], QuireError | None] = staticmethod(lambda world: None)

    def _carry_out(self, broker: int | None, request: Request) -> list[Answer]:
        return [
            (entry, self._store(broker, entry.batch.outbox.partition, encoded, epoch), self._epoch_of(entry))
            for entry, encoded, epoch in request.entries
        ]

    def _epoch_of(self, entry: Entry) -> int:
        return self.partitions[entry.batch.outbox.partition].epoch

    def _store(self, broker: int | None, index: int, encoded: bytes, epoch: int) -> Placed | QuireError:
        partition = self.partitions[index]
        if epoch != partition.epoch or (broker is not None and broker != partition.leader):
            return NotLeaderError("another one leads")
        if (refusal := self.refuse(self)) is not None:
            return refusal
        header = parse_batch(encoded)
        plan = partition.producers.plan()
        base_offset = len(partition.log)
        try:
            duplicate_of = plan.admit(header, base_offset, now_ms=0)
        except QuireError as error:
            return error
        if duplicate_of is not None:
            return Placed(duplicate_of, True, Durability(1, True))
        plan.commit()
        partition.log += [record.value or b"" for record in decode(encoded)]
        return Placed(base_offset, False, Durability(1, True))

    # -- what must hold ----------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """No more faults, until nothing is left to do."""
        self.refuse = lambda world: None
        self.connect()
        for _ in range(100_000):
            self.learn()
            self.pump()
            if not self.accumulator.unsettled and not self.ghosts:
                return
            for step in (self.deliver, self.deliver, self.answer, self.answer, self.answer, self.haunt):
                step()
            self.now_ms += 1
        raise AssertionError("it does not come to an end")

    def check(self) -> dict[str, int]:
        """Every invariant of the producer; how many records had which outcome."""
        tally = {"stored": 0, "failed": 0, "unknown": 0}
        for index, partition in enumerate(self.partitions):
            log = partition.log
            assert len(set(log)) == len(log), "a record is stored twice"
            # Without idempotence, what nobody knows of may still be stored, after what was sent later.
            known = set(log) if self.idempotent else self._known_stored(index)
            told = [value for value in log if value in known]
            assert told == sorted(told), "records are stored in another order than they were sent in"
            for batch, position, value in self.sent[index]:
                outcome = batch.outcome
                if isinstance(outcome, Placed):
                    tally["stored"] += 1
                    # The broker remembers as many batches as may be in flight, so it always knows where they are.
                    assert outcome.base_offset >= 0
                    assert log[outcome.base_offset + position] == value, "it is not where it is said to be"
                elif isinstance(outcome, OutcomeUnknownError):
                    tally["unknown"] += 1
                else:
                    assert isinstance(outcome, QuireError)
                    tally["failed"] += 1
                    assert value not in log, f"said to have failed, and is stored: {outcome}"
        assert not self.accumulator.active
        return tally

    def _known_stored(self, index: int) -> set[bytes]:
        return {value for batch, _, value in self.sent[index] if isinstance(batch.outcome, Placed)}


def refuse_sometimes(world: World) -> QuireError | None:
    dice = world.random.random()
    if dice < 0.1:
        return LogBusyError("later", retry_after_ms=20)
    if dice < 0.13:
        return BatchTooLargeError("too large")
    if dice < 0.16:
        return UnavailableError("not now")
    return None
