"""What one partition is to get, and what it may have got: sequences, retries, and when to begin anew. Pure.

    open ──full, or due──► waiting ──sent──► flying ──answered──► settled
                              ▲                │ ▲
                              │       no answer│ │sent again, under the same sequence
                              │      or "later"▼ │
                           renumbered ◄─────── again

Batches get sequences in the order of their records, and are sent in that order, at most five that are not settled: as
many as a broker remembers. So a retry is found to be one, and a batch that would overtake another is refused by the
broker: a *gap*.

When a batch is given up, or its outcome stays unknown, there may be a gap for ever. Then the epoch *ends*: nothing
new is sent under it; what was sent under it is sent again until it is answered. What a broker refuses for the gap is
provably not stored, unless an earlier attempt may still be carried out; the former gets a new sequence under the next
epoch, the latter is told as unknown. The first batch of the next epoch shuts out all that may still be on its way
under this one.

An attempt is addressed to one leader epoch, and no other one carries it out. An attempt without an answer is *loose*:
it may be carried out as long as its leadership lasts.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from quire._client.batch import NOTHING_LOOSE, Batch
from quire._client.stored import OFFSET_UNKNOWN, Durability, Placed, TopicPartition
from quire._client.verdicts import Verdict, verdict_on
from quire.errors import OutcomeUnknownError, QuireError, UnavailableError
from quire.link.backoff import Backoff
from quire.records import Codec

if TYPE_CHECKING:
    from quire._client.accumulator import TopicOutboxes

IN_FLIGHT_MAX: Final = 5
"""As many as a broker remembers of a producer (docs/STORAGE.md)."""
EPOCH_MAX: Final = 2**15 - 1
SEQUENCES: Final = 2**31

_NOT_KNOWN: Final = Placed(OFFSET_UNKNOWN, True, Durability(0, False))


class Outbox:
    __slots__ = (
        "_attempts",
        "_backoff",
        "_codec",
        "_idempotent",
        "_next_order",
        "_renumbered",
        "again",
        "ending",
        "epoch",
        "fenced",
        "flying",
        "leader_epoch",
        "next_sequence",
        "open",
        "partition",
        "producer_id",
        "resume_ms",
        "topic",
        "waiting",
    )

    def __init__(
        self, topic: TopicOutboxes, partition: int, *, idempotent: bool, codec: Codec, backoff: Backoff
    ) -> None:
        self.topic = topic
        self.partition = partition
        self._idempotent = idempotent
        self._codec = codec
        self._backoff = backoff
        self.open: Batch | None = None
        """Where records are added."""
        self.waiting: deque[Batch] = deque()
        self.flying: dict[int, Batch] = {}
        """By their order."""
        self.again: list[Batch] = []
        """Ascending."""
        self._renumbered: list[Batch] = []
        self.producer_id = -1
        self.epoch = -1
        self.next_sequence = 0
        self._next_order = 0
        self._attempts = 0
        self.ending = False
        self.resume_ms = 0.0
        """Nothing is sent before."""
        self.leader_epoch = NOTHING_LOOSE
        """The newest one that was heard of."""
        self.fenced: QuireError | None = None

    def __repr__(self) -> str:
        return f"<Outbox {self.place}>"

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic.name, self.partition)

    @property
    def is_idle(self) -> bool:
        return not (self.open or self.waiting or self.flying or self.again or self._renumbered)

    # -- sending -----------------------------------------------------------------------------------------------------

    def may_begin(self, identity: int | None) -> bool:
        """Whether a batch that has no sequence yet may get one now, as far as this partition is concerned."""
        # Counted from the oldest that is not settled: younger ones that are would else push it out of the memory of
        # the broker, which could no longer say where it is.
        oldest = min(self.flying, default=self._next_order)
        if self.again or self._next_order - oldest >= (IN_FLIGHT_MAX if self._idempotent else 1):
            return False
        if not self._idempotent:
            return True
        if self.producer_id >= 0 and not self.ending:
            return True
        return identity is not None and not self.flying and not self._is_worn_out(identity)

    def is_worn_out(self, identity: int | None) -> bool:
        """Whether another producer id is needed, since this one has no epochs left."""
        return identity is not None and self.ending and self._is_worn_out(identity)

    def begin(self, batch: Batch, identity: int | None) -> None:
        """Give a batch that was waiting its sequence. Raises QuireError if it cannot be encoded at all."""
        if self._idempotent and identity is not None and (self.producer_id < 0 or self.ending):
            self._begin_epoch(identity)
        batch.encode(
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.next_sequence if self._idempotent else -1,
            codec=self._codec,
        )
        batch.order = self._next_order
        self._next_order += 1
        self.next_sequence = (self.next_sequence + batch.count) % SEQUENCES

    def depart(self, batch: Batch, *, leader_epoch: int) -> int:
        """The batch goes to the wire now, for a leader of this epoch. Gives the number of the attempt."""
        self._attempts += 1
        batch.attempt = self._attempts
        batch.sent_epoch = leader_epoch
        self.flying[batch.order] = batch
        return batch.attempt

    def _begin_epoch(self, identity: int) -> None:
        if identity == self.producer_id:
            self.epoch += 1
        else:
            self.producer_id, self.epoch = identity, 0
        self.ending = False
        self.next_sequence = 0

    def _is_worn_out(self, identity: int) -> bool:
        return identity == self.producer_id and self.epoch >= EPOCH_MAX

    # -- answers -----------------------------------------------------------------------------------------------------

    def answered(
        self, batch: Batch, attempt: int, outcome: Placed | QuireError, *, leader_epoch: int, now_ms: float
    ) -> None:
        """What became of an attempt, as a leader of that epoch says, or as its end lets us know."""
        if batch.attempt != attempt:
            return  # given up meanwhile, or sent again: that attempt counts as one without an answer
        self._land(batch)
        if isinstance(outcome, Placed):
            self._backoff.reset()
            batch.settle(outcome)
            return
        batch.problem = outcome
        verdict = verdict_on(outcome)
        if verdict is Verdict.STORED:
            batch.settle(_NOT_KNOWN)
        elif verdict is Verdict.LATER:
            self._pause(now_ms, outcome.retry_after_ms)
            self._send_again(batch)
        elif verdict is Verdict.GAP and self._idempotent:
            self._mind_gap(batch, outcome, leader_epoch=leader_epoch)
        elif verdict is Verdict.UNKNOWN:
            batch.loose_epoch = max(batch.loose_epoch, batch.sent_epoch)
            if self._idempotent:
                self._pause(now_ms, outcome.retry_after_ms)
                self._send_again(batch)
            else:
                self._fail(batch, outcome)
        else:
            self._fail(batch, outcome)
            if verdict is Verdict.FENCED:
                self.fenced = outcome
        self._put_renumbered_back()

    def leader_moved(self, leader_epoch: int, *, now_ms: float) -> None:
        """If there is a newer leadership, attempts for older ones need not be waited for, where retries are safe."""
        if leader_epoch <= self.leader_epoch:
            return
        self.leader_epoch = leader_epoch
        self.resume_ms = min(self.resume_ms, now_ms)
        if not self._idempotent:
            return
        for batch in [each for each in self.flying.values() if each.sent_epoch < leader_epoch]:
            self._land(batch)
            batch.loose_epoch = max(batch.loose_epoch, batch.sent_epoch)
            self._send_again(batch)

    def _land(self, batch: Batch) -> None:
        batch.attempt = 0
        del self.flying[batch.order]

    def _pause(self, now_ms: float, retry_after_ms: int | None) -> None:
        self.resume_ms = now_ms + max(self._backoff.next_ms(), retry_after_ms or 0)

    def _send_again(self, batch: Batch) -> None:
        _insert(self.again, batch)

    def _mind_gap(self, batch: Batch, error: QuireError, *, leader_epoch: int) -> None:
        if any(each.order < batch.order for each in (*self.flying.values(), *self.again)):
            self._send_again(batch)  # behind the one that is missing
            return
        self.ending = True
        if _is_proof(error, batch, leader_epoch=leader_epoch):
            batch.loose_epoch = NOTHING_LOOSE
            _insert(self._renumbered, batch)
        else:
            self._fail(batch, error)

    def _put_renumbered_back(self) -> None:
        """Those that wait for the next epoch come before all others, once none of this epoch is left."""
        if self._renumbered and not self.flying and not self.again:
            self.waiting.extendleft(reversed(self._renumbered))
            self._renumbered = []

    # -- giving up ---------------------------------------------------------------------------------------------------

    def _fail(self, batch: Batch, error: QuireError) -> None:
        """Settle a batch that has a sequence and is in none of the queues any more."""
        self.ending = self._idempotent
        batch.settle(_loose_end(batch, error) if batch.loose_epoch != NOTHING_LOOSE else error)
        self._put_renumbered_back()

    def expire(self, now_ms: float, *, obstacle: QuireError | None) -> None:
        """Give up what has waited too long. `obstacle` is why nothing can be sent, where that is known."""
        for batch in [each for each in self.flying.values() if each.deadline_ms <= now_ms]:
            self._land(batch)
            batch.loose_epoch = max(batch.loose_epoch, batch.sent_epoch)
            self._fail(batch, batch.problem or OutcomeUnknownError("the broker did not answer"))
        for batch in [each for each in self.again if each.deadline_ms <= now_ms]:
            self.again.remove(batch)
            self._fail(batch, self._too_late(batch, obstacle))
        for batch in [each for each in self._renumbered if each.deadline_ms <= now_ms]:
            self._renumbered.remove(batch)
            self._fail(batch, self._too_late(batch, obstacle))
        while self.waiting and self.waiting[0].deadline_ms <= now_ms:
            batch = self.waiting.popleft()
            batch.settle(self._too_late(batch, obstacle))

    def fail_all(self, error: QuireError) -> None:
        """The end of it: whatever is not settled gets this error, or is unknown."""
        for batch in list(self.flying.values()):
            self._land(batch)
            batch.loose_epoch = max(batch.loose_epoch, batch.sent_epoch)
            self._fail(batch, error)
        self.fail_unsent(error)

    def fail_unsent(self, error: QuireError) -> None:
        """The same, but for what may be answered yet."""
        for batches in (self.again, self._renumbered):
            while batches:
                self._fail(batches.pop(0), error)
        while self.waiting:
            self.waiting.popleft().settle(error)

    def _too_late(self, batch: Batch, obstacle: QuireError | None) -> QuireError:
        cause = batch.problem or obstacle
        waited_ms = batch.deadline_ms - batch.opened_ms
        text = f"records for {self.place} could not be delivered within {waited_ms:.0f} ms"
        if cause is None:
            return UnavailableError(f"{text}; nothing of them is stored. Send them again, or allow more time")
        return retold(cause, f"{text}; nothing of them is stored. The last problem was: {cause.message}")

    # -- time --------------------------------------------------------------------------------------------------------

    def deadline_ms(self) -> float:
        """When `expire` has something to do at the earliest; the open batch is not looked at."""
        heads = [*self.flying.values(), *self.again, *self._renumbered]
        if self.waiting:
            heads.append(self.waiting[0])  # it is the oldest, and there may be many
        return min((each.deadline_ms for each in heads), default=float("inf"))


def retold(error: QuireError, message: str) -> QuireError:
    """The same error in other words."""
    try:
        return error.from_wire(message, error.details, retry_after_ms=None)
    except (KeyError, ValueError):
        return UnavailableError(message)


def _insert(batches: list[Batch], batch: Batch) -> None:
    batches.append(batch)
    batches.sort(key=lambda each: each.order)


def _loose_end(batch: Batch, error: QuireError) -> OutcomeUnknownError:
    if isinstance(error, OutcomeUnknownError):
        why = error.message
    else:
        why = f"an attempt had no answer, and the newest one ended so: {error.message}"
    return OutcomeUnknownError(
        f"nobody knows whether the records for {batch.outbox.place} are stored: {why}. "
        "Look before you send them again",
        topic=batch.outbox.topic.name,
        partition=batch.outbox.partition,
        records=batch.count,
    )


def _is_proof(error: QuireError, batch: Batch, *, leader_epoch: int) -> bool:
    """Whether a refusal for a gap shows that the batch is not stored and never will be.

    Without loose attempts: yes. Else their leadership must have ended, and the log must remember this producer: it
    expects what lies before the batch, so the batch is not there. One that expects 0 may have forgotten all.
    """
    if batch.loose_epoch == NOTHING_LOOSE:
        return True
    try:
        expected = int(error.details["expected"])
    except (KeyError, ValueError):
        return False
    behind = (batch.base_sequence - expected) % SEQUENCES
    return leader_epoch > batch.loose_epoch and expected != 0 and behind < SEQUENCES // 2
