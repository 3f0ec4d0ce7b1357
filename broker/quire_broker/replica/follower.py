"""A partition's replica that follows a leader.

    WAITING ──Join──► COMPARING ──logs differ──► TRIMMING ──► WAITING …
                          └──────logs agree────► FOLLOWING

It acknowledges only while it follows: before, what it has may be another than what the leader has. In another
leader epoch, in another session of the link, and after anything unexpected it begins from the start with another
attempt.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from quire.errors import invariant
from quire_broker.replica import divergence, streams
from quire_broker.replica.config import ReplicaConfig
from quire_broker.replica.effects import (
    AdvanceStart,
    Append,
    FollowerEffect,
    HighWatermark,
    Reset,
    Send,
    Stop,
    Trim,
    Truncate,
)
from quire_broker.replica.messages import Ack, Join, JoinAnswer, Push, Rejoin, StreamComparison, StreamCount
from quire_broker.replica.streams import Logs


class State(enum.Enum):
    WAITING = enum.auto()
    """For a leader, the way to it, writes under way, or the time to try again."""
    COMPARING = enum.auto()
    TRIMMING = enum.auto()
    FOLLOWING = enum.auto()
    STOPPED = enum.auto()
    """Until there is another leader, or the topic allows the loss."""


class FollowerCore:
    def __init__(
        self,
        *,
        broker_epoch: int,
        logs: Logs,
        high_watermarks: Mapping[int, int],
        config: ReplicaConfig,
        attempts: int = 0,
    ) -> None:
        """`attempts` is how many this process has begun for this partition before: none of them must come again.

        `high_watermarks` are what this process knew before, as a leader perhaps.
        """
        self._broker_epoch = broker_epoch
        self._logs = logs
        self._config = config
        self._high_watermarks = {s: max(high_watermarks.get(s, 0), log.start_offset) for s, log in logs.items()}
        self._leader: int | None = None
        self._leader_epoch = -1
        self._may_lose = False
        self._link: bytes | None = None
        self._state = State.WAITING
        self._is_trimming = False
        """Also while the state has moved on: a trim that has begun is finished first."""
        self._received: dict[int, int] = {}
        """Up to where batches were accepted. What is not written yet is on its way to the log."""
        self._leader_high_watermarks: dict[int, int] = {}
        self._acked: dict[int, int] = {}
        self._acked_damaged: bool | None = None
        self._starts_asked: dict[int, int] = {}
        self.attempt = attempts
        """The latest."""
        self._tried_ms: int | None = None
        """When it last tried; None if it is to try as soon as it can."""
        self._wait_ms = config.join_ms_min

    # -- what it knows ---------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self._state

    @property
    def leader_epoch(self) -> int:
        return self._leader_epoch

    @property
    def is_idle(self) -> bool:
        """Nothing is being written or removed: another core can take over."""
        return not self._is_trimming and all(
            streams.view_of(self._logs, stream).end_offset == end for stream, end in self._received.items()
        )

    def high_watermark(self, stream: int) -> int:
        return self._high_watermarks.get(stream, 0)

    def high_watermarks(self) -> dict[int, int]:
        return dict(self._high_watermarks)

    # -- events ----------------------------------------------------------------------------------------------------

    def on_metadata(
        self, *, leader: int | None, leader_epoch: int, may_lose: bool, now_ms: int
    ) -> list[FollowerEffect]:
        """Who leads. `may_lose`: the topic allows elections, or a flush policy, that can lose what was committed."""
        if leader_epoch < self._leader_epoch:
            return []
        allowed_now = may_lose and not self._may_lose
        self._may_lose = may_lose
        if leader_epoch > self._leader_epoch or leader != self._leader:
            self._leader, self._leader_epoch, self._link = leader, leader_epoch, None
            return self._begin_anew(now_ms)
        if allowed_now and self._state is State.STOPPED:
            return self._begin_anew(now_ms)
        return []

    def on_link(self, link: bytes | None, now_ms: int) -> list[FollowerEffect]:
        """The id of the link's session to the leader that there is now; None for none. To be said anew after each
        change of the leader."""
        if link == self._link:
            return []
        self._link = link
        return [] if self._state is State.STOPPED else self._begin_anew(now_ms)

    def on_join_answer(self, answer: JoinAnswer, now_ms: int) -> list[FollowerEffect]:
        if self._state is not State.COMPARING or not self._is_present(answer.leader_epoch, answer.attempt):
            return []
        leader = {comparison.stream: comparison for comparison in answer.streams}
        trims: list[Truncate | Reset] = []
        for stream in sorted({*leader, *self._logs}):
            log = streams.view_of(self._logs, stream)
            at = divergence.position(stream, log)
            step = divergence.next_step(log, at, leader.get(stream) or StreamComparison(stream, 0, 0, -1, 0))
            if step is None:
                continue
            known = self.high_watermark(stream)
            if step.keeps_below < known and not self._may_lose:
                return self._stop(
                    f"the leader of epoch {self._leader_epoch} (broker {self._leader}) lacks what was committed: of "
                    f"stream {stream} everything below {known} is, and it agrees only up to {step.keeps_below}"
                )
            trims.append(step.trim)
        if trims:
            self._state, self._is_trimming = State.TRIMMING, True
            return [Trim(tuple(trims))]
        if not answer.is_settled:
            return []  # the two sides do not see the same: ask again when it is time
        self._state = State.FOLLOWING
        self._received = {stream: log.end_offset for stream, log in self._logs.items()}
        return self._ack(is_first=True)

    def on_trimmed(self, now_ms: int) -> list[FollowerEffect]:
        """Everything that `Trim` named is done."""
        self._end_trim()
        return self._begin_anew(now_ms) if self._state is State.TRIMMING else self._try_to_join(now_ms)

    def on_trim_failed(self, now_ms: int) -> list[FollowerEffect]:
        """Not everything is done, and nothing is under way: what is left is found out anew, some time later."""
        self._end_trim()
        return self._try_later(now_ms) if self._state is State.TRIMMING else self._try_to_join(now_ms)

    def _end_trim(self) -> None:
        invariant(self._is_trimming, "nothing was to be trimmed")
        self._is_trimming = False
        for stream, log in self._logs.items():
            # With `may_lose` committed records may be gone. Below the start they were removed everywhere.
            known = self._high_watermarks.get(stream, 0)
            self._high_watermarks[stream] = max(log.start_offset, min(known, log.end_offset))

    def on_rejoin(self, rejoin: Rejoin, now_ms: int) -> list[FollowerEffect]:
        if not self._is_present(rejoin.leader_epoch, rejoin.attempt):
            return []
        return self._try_later(now_ms)

    def on_push(self, push: Push, now_ms: int) -> list[FollowerEffect]:
        if self._state is not State.FOLLOWING or not self._is_present(push.leader_epoch, push.attempt):
            return []
        stream = push.stream
        if push.base_offset != self._received.get(stream, 0):
            return self._try_later(now_ms)  # to write it would leave a gap, or write something twice
        effects: list[FollowerEffect] = []
        if push.end_offset > push.base_offset:
            self._received[stream] = push.end_offset
            effects.append(Append(stream, push.base_offset, push.end_offset))
        log = streams.view_of(self._logs, stream)
        if max(log.start_offset, self._starts_asked.get(stream, 0)) < push.log_start_offset <= log.end_offset:
            self._starts_asked[stream] = push.log_start_offset
            effects.append(AdvanceStart(stream, push.log_start_offset))
        self._leader_high_watermarks[stream] = push.high_watermark
        return [*effects, *self._learn(stream)]

    def on_local(self, now_ms: int) -> list[FollowerEffect]:
        """This broker's own logs have changed."""
        if self._state is State.WAITING:
            return self._try_to_join(now_ms)
        if self._state is not State.FOLLOWING:
            return []
        effects = self._ack()
        for stream in self._leader_high_watermarks:
            effects += self._learn(stream)
        return effects

    def on_append_failed(self, now_ms: int) -> list[FollowerEffect]:
        """Batches that were accepted are not written, and neither are those behind them."""
        self._received.clear()
        return self._try_later(now_ms) if self._state is State.FOLLOWING else self._try_to_join(now_ms)

    def on_tick(self, now_ms: int) -> list[FollowerEffect]:
        """Time has passed. To be called every `join_ms_min` or so."""
        if self._state is State.COMPARING and self._is_due(now_ms):
            self._try_later(now_ms)
            self._tried_ms = None
        return self._try_to_join(now_ms)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _is_present(self, leader_epoch: int, attempt: int) -> bool:
        """Whether something was said by the present leader in the present attempt. Else it is about other logs."""
        return leader_epoch == self._leader_epoch and attempt == self.attempt

    def _begin_anew(self, now_ms: int) -> list[FollowerEffect]:
        self._state, self._tried_ms, self._wait_ms = State.WAITING, None, self._config.join_ms_min
        return self._try_to_join(now_ms)

    def _try_later(self, now_ms: int) -> list[FollowerEffect]:
        """What went wrong may go wrong again, and an attempt can cost a window of batches."""
        self._state, self._tried_ms = State.WAITING, now_ms
        self._wait_ms = min(2 * self._wait_ms, self._config.join_ms_max)
        return []

    def _is_due(self, now_ms: int) -> bool:
        return self._tried_ms is None or now_ms - self._tried_ms >= self._wait_ms

    def _try_to_join(self, now_ms: int) -> list[FollowerEffect]:
        ready = self._state is State.WAITING and self.is_idle and self._is_due(now_ms)
        if not ready or self._leader is None or self._link is None:
            return []
        self._state, self._tried_ms = State.COMPARING, now_ms
        self.attempt += 1
        self._received.clear()
        # Of the logs as they were: what the old leader had committed says nothing about what is to be compared now.
        self._leader_high_watermarks.clear()
        self._acked.clear()
        self._starts_asked.clear()
        positions = tuple(divergence.position(stream, log) for stream, log in sorted(self._logs.items()))
        join = Join(self._leader_epoch, self._broker_epoch, self.attempt, streams.is_damaged(self._logs), positions)
        return [Send(self._leader, join)]

    def _stop(self, reason: str) -> list[FollowerEffect]:
        self._state = State.STOPPED
        return [Stop(reason)]

    def _ack(self, *, is_first: bool = False) -> list[FollowerEffect]:
        damaged = streams.is_damaged(self._logs)
        counts = tuple(
            StreamCount(stream, log.counted_offset)
            for stream, log in self._logs.items()
            if is_first or log.counted_offset > self._acked.get(stream, 0)
        )
        if not is_first and not counts and damaged == self._acked_damaged:
            return []
        if counts and not is_first:
            self._wait_ms = self._config.join_ms_min
        self._acked.update(counts)
        self._acked_damaged = damaged
        if self._leader is None:
            return []
        return [Send(self._leader, Ack(self._leader_epoch, self.attempt, damaged, counts))]

    def _learn(self, stream: int) -> list[FollowerEffect]:
        """The leader's high watermark counts as far as this log goes: nobody can vouch here for what is beyond."""
        end = streams.view_of(self._logs, stream).end_offset
        offset = min(self._leader_high_watermarks[stream], end)
        if offset <= self.high_watermark(stream):
            return []
        self._high_watermarks[stream] = offset
        return [HighWatermark(stream, offset)]
