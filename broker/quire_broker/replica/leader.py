"""A partition's leader, in one leader epoch.

    on_metadata · on_join · on_link_lost · on_ack · on_local · on_answered · on_tick  ──►  effects
    next_push, push  ──►  what to send to a follower next

A new leader epoch is a new core, made after every log has begun that epoch. When the partition is led in another
epoch, or by another broker, the core is dropped: it commits nothing any more.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from quire.errors import NotEnoughReplicasError, invariant
from quire_broker.replica import divergence, streams
from quire_broker.replica.config import ReplicaConfig
from quire_broker.replica.effects import (
    Counted,
    HandOver,
    HighWatermark,
    IsrMember,
    LeaderEffect,
    NotFollowing,
    Proposal,
    Propose,
    PushReady,
    Send,
)
from quire_broker.replica.messages import Ack, Join, JoinAnswer, Push, Rejoin, Session
from quire_broker.replica.progress import Progress
from quire_broker.replica.streams import Logs


class Picture(NamedTuple):
    """A partition at one metadata version, as far as its leader needs it. With `min_isr` of another version than the
    ISR, the high watermark could move when it must not."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    """The committed one."""
    eligible: tuple[int, ...]
    leader_epoch: int
    partition_epoch: int
    min_isr: int
    brokers: Mapping[int, int]
    """The brokers that are not fenced, with their broker epochs."""


class Answer(enum.Enum):
    """What became of a proposal. Where nothing is known there is no answer yet."""

    COMMITTED = enum.auto()
    STALE = enum.auto()
    """The partition or its leadership has changed: metadata that says how is on its way."""
    REFUSED = enum.auto()
    """It was not carried out and will not be."""


class Offer(NamedTuple):
    """What a follower needs next."""

    base_offset: int
    end_offset: int
    is_catch_up: bool


class LeaderCore:
    def __init__(
        self,
        *,
        me: IsrMember,
        picture: Picture,
        logs: Logs,
        high_watermarks: Mapping[int, int],
        config: ReplicaConfig,
        now_ms: int,
    ) -> None:
        """`high_watermarks` are what this broker knew as a follower, or as the leader before."""
        invariant(me.broker_id in picture.isr, "a leader is in its ISR")
        self.broker_id = me.broker_id
        self.leader_epoch = picture.leader_epoch
        self._me = me
        self._picture = picture
        self._logs = logs
        self._config = config
        self._epoch_starts = {stream: log.end_offset for stream, log in logs.items()}
        self._high_watermarks: dict[int, int] = {}
        for stream, log in logs.items():
            known = max(high_watermarks.get(stream, 0), log.start_offset)
            invariant(known <= log.end_offset, f"the log of stream {stream} ends below its high watermark")
            self._high_watermarks[stream] = known
        self._followers: dict[int, Progress] = {}
        self._proposal: Proposal | None = None
        self._propose_after_ms = self._hand_over_after_ms = now_ms
        self._add_followers(now_ms)

    # -- what it knows ---------------------------------------------------------------------------------------------

    @property
    def picture(self) -> Picture:
        return self._picture

    @property
    def proposal(self) -> Proposal | None:
        """The change of the ISR whose fate is not known."""
        return self._proposal

    def high_watermark(self, stream: int) -> int:
        return self._high_watermarks.get(stream, 0)

    def high_watermarks(self) -> dict[int, int]:
        return dict(self._high_watermarks)

    def is_latest_known(self, stream: int) -> bool:
        """Whether the high watermark is not below what an earlier leader may have answered: else *retry*."""
        return self.high_watermark(stream) >= self._epoch_starts.get(stream, 0)

    def waited_for(self) -> list[int]:
        """Whose end offsets the high watermark takes into account: the committed and the proposed ISR."""
        members = set(self._picture.isr)
        if self._proposal is not None:
            members.update(member.broker_id for member in self._proposal.isr)
        return sorted(members)

    def replicas_counting(self, stream: int, end_offset: int) -> int:
        """How many replicas count everything below as written, this one among them."""
        own = streams.view_of(self._logs, stream).counted_offset >= end_offset
        return own + sum(
            follower.is_settled and follower.counted.get(stream, 0) >= end_offset
            for follower in self._followers.values()
        )

    def lag(self) -> dict[int, dict[int, int] | None]:
        """By follower and stream, how many offsets it has not counted; None for one that does not follow."""
        return {
            broker_id: {s: log.end_offset - follower.counted.get(s, 0) for s, log in sorted(self._logs.items())}
            if follower.is_settled
            else None
            for broker_id, follower in sorted(self._followers.items())
        }

    def require_enough_replicas(self) -> None:
        """Raise unless what is written with acks=all now can be committed."""
        if not self._is_isr_large_enough():
            isr = ", ".join(map(str, self._picture.isr))
            raise NotEnoughReplicasError(
                f"only {isr} in sync, and {self._picture.min_isr} replicas are to be; nothing was written",
                isr=isr,
                min_isr=self._picture.min_isr,
            )

    # -- events ----------------------------------------------------------------------------------------------------

    def on_metadata(self, picture: Picture, now_ms: int) -> list[LeaderEffect]:
        """The partition, its topic's `min_isr` or the brokers are now so."""
        invariant(picture.leader_epoch == self.leader_epoch, "a leader outlived its epoch")
        invariant(picture.partition_epoch >= self._picture.partition_epoch, "metadata went back")
        before, self._picture = self._picture, picture
        if self._proposal is not None and self._proposal.partition_epoch < picture.partition_epoch:
            # It was carried out, and the picture shows it, or it never can be.
            self._proposal = None
        effects: list[LeaderEffect] = []
        for broker_id, follower in self._followers.items():
            if follower.session is not None and follower.broker_epoch < picture.brokers.get(broker_id, 0):
                effects += self._end(broker_id, follower)  # that process is gone
            if broker_id in picture.isr and broker_id not in before.isr:
                follower.is_penalized = False
        effects += self._add_followers(now_ms)
        return [*effects, *self._go_on(now_ms)]

    def on_join(self, broker_id: int, link: bytes, join: Join, now_ms: int) -> list[LeaderEffect]:
        """A follower wants to follow. What cannot be answered now is asked again."""
        follower = self._followers.get(broker_id)
        if follower is None or join.leader_epoch != self.leader_epoch:
            return []
        if join.broker_epoch < self._picture.brokers.get(broker_id, 0):
            return []
        now = follower.session
        if now is not None and now.link == link and now.attempt >= join.attempt:
            return []
        effects = self._end(broker_id, follower)
        follower.begin(Session(link, join.attempt), join)
        asked = {at.stream: at for at in join.streams}
        for stream in self._logs:
            asked.setdefault(stream, divergence.position(stream, streams.NO_LOG))
        comparisons = [divergence.compare(streams.view_of(self._logs, s), at) for s, at in sorted(asked.items())]
        settled = all(divergence.agrees(asked[comparison.stream], comparison) for comparison in comparisons)
        if settled:
            follower.settle({at.stream: at.end_offset for at in asked.values()})
        answer = JoinAnswer(self.leader_epoch, join.attempt, settled, tuple(comparisons))
        effects.append(Send(broker_id, answer))
        return [*effects, *self._offers(broker_id, follower), *self._go_on(now_ms)]

    def on_link_lost(self, broker_id: int, link: bytes, now_ms: int) -> list[LeaderEffect]:
        """The link's session to a follower is over."""
        follower = self._followers.get(broker_id)
        if follower is not None and follower.session is not None and follower.session.link == link:
            return [*self._end(broker_id, follower), *self._go_on(now_ms)]
        return []

    def on_ack(self, broker_id: int, link: bytes, ack: Ack, now_ms: int) -> list[LeaderEffect]:
        follower = self._followers.get(broker_id)
        if follower is None or ack.leader_epoch != self.leader_epoch:
            return []
        if not follower.is_settled or follower.session != Session(link, ack.attempt):
            return []  # of an earlier process, or of before it was truncated
        if not follower.count(ack):
            return self._rejoin(broker_id, follower)
        follower.observe(self._ends(), self._config, now_ms)
        effects: list[LeaderEffect] = [Counted(broker_id, stream, offset) for stream, offset in ack.streams]
        effects += self._advance()
        if follower.is_damaged or broker_id not in self._picture.isr:
            effects += self._improve(now_ms)
        return effects

    def on_local(self, now_ms: int) -> list[LeaderEffect]:
        """This broker's own logs have changed: written, synced, damaged, mended, shortened at the front, or new."""
        effects: list[LeaderEffect] = []
        for stream, log in self._logs.items():
            if stream not in self._high_watermarks:
                self._high_watermarks[stream] = log.start_offset
                self._epoch_starts[stream] = log.start_offset
        ends = self._ends()
        for broker_id, follower in self._followers.items():
            if follower.is_settled:
                if any(follower.sent.get(s, 0) < log.start_offset for s, log in self._logs.items()):
                    effects += self._rejoin(broker_id, follower)
                else:
                    effects += self._offers(broker_id, follower)
                    follower.observe(ends, self._config, now_ms)
        effects += self._advance()
        if streams.is_damaged(self._logs):
            effects += self._improve(now_ms)
        return effects

    def on_answered(self, proposal: Proposal, answer: Answer, now_ms: int) -> list[LeaderEffect]:
        """The controller has answered a proposal."""
        if proposal != self._proposal or answer is not Answer.REFUSED:
            # Carried out or overtaken, it is so only once metadata shows it: it may come with another `min_isr`.
            return []
        self._proposal = None
        self._propose_after_ms = now_ms + self._config.proposal_ms_min
        return self._go_on(now_ms)

    def on_tick(self, now_ms: int) -> list[LeaderEffect]:
        """Time has passed. To be called several times in `ack_ms_max`."""
        effects: list[LeaderEffect] = []
        for broker_id, follower in self._followers.items():
            if follower.is_stuck(self._config, now_ms):
                # Its log may have failed. What is on its way to it is to leave room for what goes to others there.
                effects += self._rejoin(broker_id, follower)
            else:
                effects += self._news(broker_id, follower)
                effects += self._offers(broker_id, follower)  # what could not be read may be readable now
        return [*effects, *self._go_on(now_ms)]

    # -- pushing ---------------------------------------------------------------------------------------------------

    def next_push(self, broker_id: int, stream: int) -> Offer | None:
        """What of a stream is to be pushed to a follower next; None if nothing."""
        follower = self._followers.get(broker_id)
        log = self._logs.get(stream)
        if follower is None or log is None or not follower.is_settled:
            return None
        base = follower.sent.get(stream, 0)
        if not log.start_offset <= base < log.end_offset:
            return None
        return Offer(base, log.end_offset, is_catch_up=self._is_catch_up(broker_id))

    def push(self, broker_id: int, stream: int, *, base_offset: int, end_offset: int) -> Push:
        """Batches from an offer's base up to `end_offset` leave now, as the body of this."""
        follower = self._followers[broker_id]
        session = follower.session
        invariant(session is not None and follower.is_settled, f"nothing can be pushed to broker {broker_id}")
        invariant(follower.sent.get(stream, 0) == base_offset, "a push does not begin where the last one ended")
        log_start, high_watermark = self._to_tell(stream)
        follower.sent[stream] = end_offset
        follower.told[stream] = (log_start, high_watermark)
        attempt = 0 if session is None else session.attempt
        return Push(self.leader_epoch, attempt, stream, base_offset, end_offset, log_start, high_watermark)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _ends(self) -> dict[int, int]:
        return {stream: log.end_offset for stream, log in self._logs.items()}

    def _add_followers(self, now_ms: int) -> list[LeaderEffect]:
        effects: list[LeaderEffect] = []
        others = [broker_id for broker_id in self._picture.replicas if broker_id != self._me.broker_id]
        for broker_id in [known for known in self._followers if known not in others]:
            effects += self._end(broker_id, self._followers.pop(broker_id))
        for broker_id in others:
            if broker_id not in self._followers:
                # Members get time to find their leader.
                self._followers[broker_id] = Progress(now_ms if broker_id in self._picture.isr else None)
        return effects

    def _is_isr_large_enough(self) -> bool:
        return len(self._picture.isr) >= self._picture.min_isr

    def _is_catch_up(self, broker_id: int) -> bool:
        return broker_id not in self.waited_for()

    def _offers(self, broker_id: int, follower: Progress) -> Iterable[LeaderEffect]:
        if follower.is_settled:
            for stream, log in self._logs.items():
                if follower.sent.get(stream, 0) < log.end_offset:
                    yield PushReady(broker_id, stream, self._is_catch_up(broker_id))

    def _to_tell(self, stream: int) -> tuple[int, int]:
        return streams.view_of(self._logs, stream).start_offset, self.high_watermark(stream)

    def _news(self, broker_id: int, follower: Progress) -> Iterable[LeaderEffect]:
        """High watermark and log start for those who have had no push since they moved."""
        if follower.is_settled:
            for stream in self._logs:
                if follower.told.get(stream) != self._to_tell(stream):
                    sent = follower.sent.get(stream, 0)
                    yield Send(broker_id, self.push(broker_id, stream, base_offset=sent, end_offset=sent))

    def _rejoin(self, broker_id: int, follower: Progress) -> list[LeaderEffect]:
        session = follower.session
        effects = self._end(broker_id, follower)
        if session is not None:
            effects.append(Send(broker_id, Rejoin(self.leader_epoch, session.attempt)))
        return effects

    def _end(self, broker_id: int, follower: Progress) -> list[LeaderEffect]:
        was_settled = follower.is_settled
        follower.end()
        return [NotFollowing(broker_id)] if was_settled else []

    def _go_on(self, now_ms: int) -> list[LeaderEffect]:
        ends = self._ends()
        for follower in self._followers.values():
            follower.observe(ends, self._config, now_ms)
        return [*self._advance(), *self._improve(now_ms)]

    def _counted(self, broker_id: int, stream: int) -> int:
        if broker_id == self._me.broker_id:
            return streams.view_of(self._logs, stream).counted_offset
        follower = self._followers.get(broker_id)
        return 0 if follower is None or not follower.is_settled else follower.counted.get(stream, 0)

    def _advance(self) -> list[LeaderEffect]:
        """Move high watermarks as far as everybody counts who may be asked to lead."""
        if not self._is_isr_large_enough():
            # Members that left are eligible now: they have everything only because this does not move.
            return []
        members = self.waited_for()
        effects: list[LeaderEffect] = []
        for stream, before in self._high_watermarks.items():
            offset = min(self._counted(broker_id, stream) for broker_id in members)
            if offset > before:
                self._high_watermarks[stream] = offset
                effects.append(HighWatermark(stream, offset))
        return effects

    def _improve(self, now_ms: int) -> list[LeaderEffect]:
        """Propose another ISR, or hand over, where that is called for."""
        effects: list[LeaderEffect] = []
        if self._proposal is None and now_ms >= self._propose_after_ms:
            self._proposal = self._wanted(now_ms)
            if self._proposal is not None:
                effects.append(Propose(self._proposal))
        if streams.is_damaged(self._logs) and now_ms >= self._hand_over_after_ms:
            to = self._successor()
            if to is not None:
                self._hand_over_after_ms = now_ms + self._config.hand_over_ms_min
                effects.append(HandOver(to))
        return effects

    def _wanted(self, now_ms: int) -> Proposal | None:
        isr, eligible = self._picture.isr, self._picture.eligible
        members = [member for member in isr if member == self._me.broker_id or self._may_stay(member, now_ms)]
        for member in self._slowest_first(members, now_ms):
            if len(members) <= self._picture.min_isr:
                break
            members.remove(member)
            self._followers[member].is_penalized = True
        members += [
            broker_id for broker_id in self._followers if broker_id not in isr and self._may_join(broker_id, now_ms)
        ]
        damaged = [b for b in (*isr, *eligible) if b in self._followers and self._followers[b].is_damaged]
        if set(members) == set(isr) and not set(damaged) & set(eligible):
            return None
        epochs = {**self._picture.brokers, self._me.broker_id: self._me.broker_epoch}
        if not set(members) <= set(epochs):
            return None  # one of them is fenced by now: it is about to leave
        return Proposal(
            self.leader_epoch,
            self._picture.partition_epoch,
            tuple(IsrMember(broker_id, epochs[broker_id]) for broker_id in sorted(members)),
            tuple(sorted(damaged)),
        )

    def _may_stay(self, broker_id: int, now_ms: int) -> bool:
        follower = self._followers[broker_id]
        return not follower.is_damaged and follower.is_caught_up(self._config, now_ms)

    def _slowest_first(self, members: Iterable[int], now_ms: int) -> list[int]:
        slow = [
            (follower.slow_ms or 0, broker_id)
            for broker_id in members
            if (follower := self._followers.get(broker_id)) is not None and follower.is_slow(self._config, now_ms)
        ]
        return [broker_id for _, broker_id in sorted(slow)]

    def _may_join(self, broker_id: int, now_ms: int) -> bool:
        """Whether a replica has everything that was ever committed, under its present broker epoch, and keeps up."""
        follower = self._followers[broker_id]
        if (
            not follower.is_settled
            or follower.is_damaged
            or follower.broker_epoch != self._picture.brokers.get(broker_id)
        ):
            return False
        # What an earlier leader acknowledged lies below the epoch's start; this one's high watermark may not know.
        needed = {s: max(self._epoch_starts.get(s, 0), offset) for s, offset in self._high_watermarks.items()}
        if not follower.has(needed) or not follower.is_caught_up(self._config, now_ms):
            return False
        return follower.slow_ms is None and follower.has_recovered(self._config, now_ms)

    def _successor(self) -> int | None:
        """Who is to lead in place of this broker: of the committed ISR, the one that has most."""
        fit = [
            (-sum(follower.counted.values()), broker_id)
            for broker_id in self._picture.isr
            if (follower := self._followers.get(broker_id)) is not None
            and follower.is_settled
            and not follower.is_damaged
            and broker_id in self._picture.brokers
        ]
        return min(fit)[1] if fit else None
