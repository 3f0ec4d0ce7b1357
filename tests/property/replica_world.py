"""A partition on several brokers, played by the replication cores on logs that are lists, under a seeded schedule.

Everything that takes time takes it here: messages wait in the link, writes and truncations in a broker, commands on
their way to the controller and back, metadata on its way to each broker. The controller is the rules of
`quire_controller.state.elections` and nothing else. `Oracle` checks after every step; it knows nothing of how the
cores decide.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

from quire.errors import NotEnoughReplicasError
from quire_broker.log.epochs import EpochStart, LeaderEpochs
from quire_broker.log.ranges import OffsetRange
from quire_broker.replica import effects, messages
from quire_broker.replica.config import ReplicaConfig
from quire_broker.replica.effects import FollowerEffect, IsrMember, LeaderEffect, Proposal
from quire_broker.replica.follower import FollowerCore
from quire_broker.replica.leader import Answer, LeaderCore, Picture
from quire_broker.replica.messages import Message
from quire_broker.replica.streams import RECORDS, LogView
from quire_broker.replica.window import Window, WindowConfig
from quire_controller.state import elections
from quire_controller.state.elections import Departure, Roster
from quire_controller.state.model import Broker as KnownBroker
from quire_controller.state.model import LastIsrReport, Partition, PartitionKey

OTHER: Final = 77
"""A stream that no feature uses: the rules hold for whatever comes."""
STREAMS: Final = (RECORDS, OTHER)

CONFIG: Final = ReplicaConfig(
    lag_ms_max=2_000,
    ack_ms_max=400,
    slow_ms_min=400,
    recovery_ms=800,
    proposal_ms_min=100,
    join_ms_min=50,
    join_ms_max=200,
)
WINDOW: Final = WindowConfig(hot_bytes_max=4, hot_turn_bytes=3, catch_up_bytes_max=2, catch_up_turn_bytes=1)
"""Entries have one byte."""

Flush = Literal["fsync", "os"]


class Entry(NamedTuple):
    epoch: int
    value: int


class SimLog:
    """One stream's log. Truncations and new epochs are durable at once, entries when they are synced."""

    def __init__(self, flush: Flush) -> None:
        self.flush = flush
        self.start_offset = 0
        self.entries: list[Entry] = []
        self.synced_offset = 0
        self.known_epochs = LeaderEpochs()
        self.quarantined: list[OffsetRange] = []

    @property
    def end_offset(self) -> int:
        return self.start_offset + len(self.entries)

    @property
    def counted_offset(self) -> int:
        return self.synced_offset if self.flush == "fsync" else self.end_offset

    @property
    def latest_epoch(self) -> int:
        return self.known_epochs.latest

    @property
    def epochs(self) -> list[EpochStart]:
        return list(self.known_epochs)

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        return self.known_epochs.end_of(epoch, self.end_offset)

    def read(self, first: int, end: int) -> list[Entry]:
        assert self.start_offset <= first <= end <= self.end_offset
        return self.entries[first - self.start_offset : end - self.start_offset]

    def append(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self.known_epochs.begin(entry.epoch, self.end_offset)
            self.entries.append(entry)

    def sync(self, end: int) -> None:
        self.synced_offset = max(self.synced_offset, min(end, self.end_offset))

    def truncate(self, end: int) -> None:
        assert end >= self.start_offset
        del self.entries[end - self.start_offset :]
        self.synced_offset = min(self.synced_offset, self.end_offset)
        self.known_epochs.truncate(self.end_offset)

    def reset(self, start: int) -> None:
        self.start_offset = self.synced_offset = start
        self.entries.clear()
        self.known_epochs = LeaderEpochs()

    def advance_start(self, start: int) -> None:
        del self.entries[: start - self.start_offset]
        self.start_offset, self.synced_offset = start, max(start, self.synced_offset)
        self.known_epochs.forget_below(start)

    def crash(self, chance: random.Random) -> None:
        """What was not synced survives as far as it likes; an epoch without a batch does so too."""
        end = chance.randint(self.synced_offset, self.end_offset)
        del self.entries[end - self.start_offset :]
        self.synced_offset = end
        self.known_epochs.truncate(end + 1)


class Link:
    """Between two brokers. What is on its way when it breaks is lost; else nothing is, and nothing overtakes."""

    def __init__(self) -> None:
        self.session: bytes | None = None
        self.queues: dict[int, deque[tuple[Message, list[Entry]]]] = {}
        """By receiver."""


class Shot(NamedTuple):
    """The metadata at one version."""

    version: int
    partition: Partition
    brokers: dict[int, KnownBroker]
    min_isr: int


class Controller:
    """One partition, by the rules of elections. The faults of the quorum are not looked at here."""

    def __init__(self, broker_ids: Sequence[int], min_isr: int) -> None:
        self.partition = Partition(PartitionKey(b"t" * 16, 0), tuple(broker_ids), tuple(broker_ids))
        self.brokers: dict[int, KnownBroker] = {}
        self.min_isr = min_isr
        self.shots: list[Shot] = []

    @property
    def version(self) -> int:
        return len(self.shots)

    @property
    def roster(self) -> Roster:
        return Roster(self.brokers)

    def can_lead(self, broker_id: int) -> bool:
        return elections.can_lead(self.partition, broker_id, self.roster)

    def _publish(self, after: Partition) -> None:
        self.partition = elections.changed(self.partition, after) or self.partition
        self.shots.append(Shot(self.version + 1, self.partition, dict(self.brokers), self.min_isr))

    def create_partition(self) -> None:
        self.brokers = {broker_id: replace(broker, fenced=False) for broker_id, broker in self.brokers.items()}
        self._publish(elections.elect(self.partition, self.roster, min_isr=self.min_isr))

    def register(self, broker_id: int, *, is_first: bool, is_wiped: bool, last_epoch: int, end: int) -> int:
        epoch = self.version + 1
        self.brokers[broker_id] = KnownBroker(broker_id, epoch, bytes(16), str(broker_id), "", (), 1, 1)
        after = self.partition
        if not is_first:
            how = Departure.WIPED if is_wiped else Departure.RESTARTED
            report = LastIsrReport(broker_id, epoch, last_epoch, end)
            after = elections.on_departure(after, broker_id, how, self.roster, min_isr=self.min_isr, report=report)
        self._publish(after)
        return epoch

    def fence(self, broker_id: int) -> None:
        if not self.brokers[broker_id].fenced:
            self.brokers[broker_id] = replace(self.brokers[broker_id], fenced=True)
            report = LastIsrReport(broker_id, 0, -1, -1)
            self._publish(
                elections.on_departure(
                    self.partition, broker_id, Departure.FENCED, self.roster, min_isr=self.min_isr, report=report
                )
            )

    def unfence(self, broker_id: int) -> None:
        if self.brokers[broker_id].fenced:
            self.brokers[broker_id] = replace(self.brokers[broker_id], fenced=False)
            self._publish(elections.elect(self.partition, self.roster, min_isr=self.min_isr))

    def set_min_isr(self, min_isr: int) -> None:
        self.min_isr = min_isr
        partition = self.partition
        if partition.leader is not None and len(partition.isr) >= min_isr:
            partition = replace(partition, eligible=())
        self._publish(partition)

    def begin_move(self, to: int) -> None:
        partition = self.partition
        if partition.leader not in (None, to) and to in partition.isr and self.can_lead(to):
            self._publish(elections.begin_move(partition, to, self.roster, version=self.version + 1))

    def complete_move(self, applied: dict[int, int]) -> None:
        move = self.partition.move
        if move is not None and applied.get(move.from_broker, 0) >= move.version:
            self._publish(elections.complete_move(self.partition, self.roster, min_isr=self.min_isr))

    def elect_last_isr(self) -> None:
        partition = self.partition
        if partition.leader is None and partition.move is None and elections.best_report(partition, self.roster):
            self._publish(elections.elect_last_isr(partition, self.roster, min_isr=self.min_isr))

    def alter(self, broker_id: int, broker_epoch: int, proposal: Proposal) -> Answer:
        me = self.brokers[broker_id]
        if me.broker_epoch != broker_epoch or me.fenced:
            return Answer.REFUSED
        partition = self.partition
        if (partition.leader, partition.leader_epoch) != (broker_id, proposal.leader_epoch):
            return Answer.STALE
        if partition.partition_epoch != proposal.partition_epoch:
            return Answer.STALE
        for member in proposal.isr:
            known = self.brokers[member.broker_id]
            if known.broker_epoch != member.broker_epoch or known.fenced:
                return Answer.REFUSED
        members = [member.broker_id for member in proposal.isr]
        self._publish(elections.with_isr(partition, members, min_isr=self.min_isr, damaged=proposal.damaged))
        return Answer.COMMITTED


@dataclass
class Writing:
    push: effects.Append
    entries: list[Entry]


@dataclass
class Command:
    broker_epoch: int
    proposal: Proposal
    answer: Answer | None = None


@dataclass
class SimBroker:
    broker_id: int
    epoch: int = 0
    is_alive: bool = False
    is_first: bool = True
    logs: dict[int, SimLog] = field(default_factory=dict)
    version: int = 0
    role: LeaderCore | FollowerCore | None = None
    attempts: int = 0
    work: deque[Writing | effects.Trim | effects.AdvanceStart] = field(default_factory=deque)
    lost: deque[tuple[int, bytes]] = field(default_factory=deque)
    """Sessions of links that are over, and to whom they were: it does not know yet."""
    windows: dict[int, Window[int]] = field(default_factory=dict)
    commands: deque[Command] = field(default_factory=deque)

    @property
    def views(self) -> dict[int, LogView]:
        return self.logs  # type: ignore[return-value]  # a dict is invariant; the cores only read it


class Oracle:
    """What was committed, and that it stays."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.committed: dict[int, list[Entry]] = {stream: [] for stream in STREAMS}
        self.leaders: dict[int, int] = {}
        self.high_watermarks: dict[tuple[int, int, int], int] = {}
        """By broker, broker epoch and stream."""

    def on_leader(self, broker: SimBroker, epoch: int) -> None:
        assert self.leaders.setdefault(epoch, broker.broker_id) == broker.broker_id, f"two leaders in epoch {epoch}"

    def on_committed(self, broker: SimBroker, stream: int, offset: int) -> None:
        committed, log = self.committed[stream], broker.logs[stream]
        assert log.start_offset <= len(committed), "what nobody committed was deleted"
        committed += log.read(len(committed), max(offset, len(committed)))

    def on_high_watermark(self, broker: SimBroker, stream: int, offset: int) -> None:
        key = broker.broker_id, broker.epoch, stream
        assert offset > self.high_watermarks.get(key, -1), f"the high watermark of {key} went back to {offset}"
        self.high_watermarks[key] = offset

    def check(self) -> None:
        controller = self._world.controller
        assert not self._world.stopped, self._world.stopped
        for broker in self._world.brokers.values():
            if broker.is_alive and broker.role is not None:
                for stream in broker.logs:
                    known = broker.role.high_watermark(stream)
                    self._check_log(broker, stream, known, "below its high watermark")
        for broker_id in (*controller.partition.isr, *controller.partition.eligible):
            broker = self._world.brokers[broker_id]
            known_epoch = controller.brokers[broker_id].broker_epoch
            if controller.can_lead(broker_id) and broker.epoch == known_epoch:
                for stream in STREAMS:
                    self._check_log(broker, stream, len(self.committed[stream]), "and can be elected")

    def _check_log(self, broker: SimBroker, stream: int, end: int, why: str) -> None:
        log, committed = broker.logs.get(stream) or SimLog("fsync"), self.committed[stream]
        what = f"broker {broker.broker_id}, stream {stream}: "
        assert end <= len(committed), what + f"{end} is its high watermark, and {len(committed)} are committed"
        held = log.counted_offset if why == "and can be elected" else log.end_offset
        assert held >= end, what + f"{held} of {end} committed, {why}"
        first = min(log.start_offset, end)
        assert log.read(log.start_offset, max(end, log.start_offset)) == committed[first:end], what + f"others, {why}"


class World:
    def __init__(
        self,
        seed: int,
        *,
        flush: Flush = "fsync",
        brokers: int = 3,
        leader: type[LeaderCore] = LeaderCore,
        follower: type[FollowerCore] = FollowerCore,
    ) -> None:
        self.chance = random.Random(seed)
        self.flush: Flush = flush
        self.now_ms = 0
        self.leader_type, self.follower_type = leader, follower
        ids = range(1, brokers + 1)
        self.brokers = {broker_id: SimBroker(broker_id) for broker_id in ids}
        self.links = {frozenset((a, b)): Link() for a in ids for b in ids if a < b}
        self.controller = Controller(ids, brokers // 2 + 1)
        self.sessions = self.values = 0
        self.truncations = 0
        # Each run has faults of its own: where all are equally frequent, they keep each other from doing harm.
        faults = {what: weight * self.chance.choice((0, 0, 0.3, 1, 3)) for what, weight in _FAULTS.items()}
        self.weights = {**_USUAL, **faults}
        self.oracle = Oracle(self)
        self.trace: list[str] = []
        self.stopped: list[str] = []
        for broker in self.brokers.values():
            self.start(broker)
        self.controller.create_partition()
        for pair in self.links:
            self.connect(*sorted(pair))

    # -- brokers ---------------------------------------------------------------------------------------------------

    def start(self, broker: SimBroker, *, is_wiped: bool = False) -> None:
        """A process starts and registers."""
        records = broker.logs.get(RECORDS) or SimLog(self.flush)
        broker.epoch = self.controller.register(
            broker.broker_id,
            is_first=broker.is_first,
            is_wiped=is_wiped,
            last_epoch=records.latest_epoch,
            end=records.end_offset,
        )
        broker.is_alive, broker.is_first = True, False
        self.apply(broker, self.controller.version)

    def crash(self, broker: SimBroker) -> None:
        for other in self.brokers:
            if other != broker.broker_id:
                self.disconnect(broker.broker_id, other)
        broker.is_alive, broker.role = False, None
        broker.lost.clear()
        broker.work.clear()
        broker.windows.clear()
        broker.commands.clear()
        for log in broker.logs.values():
            log.crash(self.chance)

    def is_intact(self, broker: SimBroker) -> bool:
        """Whether it holds, in the controller's eyes and truly, everything that was committed."""
        known = self.controller.brokers[broker.broker_id].broker_epoch
        return broker.is_alive and broker.epoch == known and self.controller.can_lead(broker.broker_id)

    def others_are_intact(self, broker: SimBroker) -> bool:
        return any(self.is_intact(other) for other in self.brokers.values() if other is not broker)

    def apply(self, broker: SimBroker, version: int) -> None:
        """Metadata comes to a broker."""
        shot = self.controller.shots[version - 1]
        broker.version = version
        partition, role = shot.partition, broker.role
        if partition.leader == broker.broker_id:
            active = {b.broker_id: b.broker_epoch for b in shot.brokers.values() if not b.fenced}
            picture = Picture(
                partition.replicas,
                partition.isr,
                partition.eligible,
                partition.leader_epoch,
                partition.partition_epoch,
                shot.min_isr,
                active,
            )
            if isinstance(role, LeaderCore) and role.leader_epoch == partition.leader_epoch:
                self.perform(broker, role.on_metadata(picture, self.now_ms))
            else:
                self.lead(broker, picture)
            return
        if not isinstance(role, FollowerCore):
            role = self.follower_type(
                broker_epoch=broker.epoch,
                logs=broker.views,
                high_watermarks={} if role is None else role.high_watermarks(),
                config=CONFIG,
                attempts=broker.attempts,
            )
            broker.role = role
            broker.windows.clear()
        self.perform(
            broker,
            role.on_metadata(
                leader=partition.leader,
                leader_epoch=partition.leader_epoch,
                may_lose=False,
                now_ms=self.now_ms,
            ),
        )
        if partition.leader is not None:
            self.notice(broker)
            session = self.links[frozenset((broker.broker_id, partition.leader))].session
            self.perform(broker, role.on_link(session, self.now_ms))

    def lead(self, broker: SimBroker, picture: Picture) -> None:
        while broker.work:
            self.do_work(broker)
        role = broker.role
        if isinstance(role, FollowerCore):
            assert role.is_idle
            broker.attempts = role.attempt
        for log in broker.logs.values():
            log.known_epochs.begin(picture.leader_epoch, log.end_offset)
        self.oracle.on_leader(broker, picture.leader_epoch)
        broker.windows.clear()
        core = self.leader_type(
            me=IsrMember(broker.broker_id, broker.epoch),
            picture=picture,
            logs=broker.views,
            high_watermarks={} if role is None else role.high_watermarks(),
            config=CONFIG,
            now_ms=self.now_ms,
        )
        broker.role = core
        self.perform(broker, core.on_tick(self.now_ms))

    def perform(
        self, broker: SimBroker, todo: Sequence[LeaderEffect | FollowerEffect], entries: Sequence[Entry] = ()
    ) -> None:
        for effect in todo:
            match effect:
                case effects.Send(to, message):
                    self.send(broker.broker_id, to, message)
                case effects.HighWatermark(stream, offset):
                    if isinstance(broker.role, LeaderCore):
                        self.oracle.on_committed(broker, stream, offset)
                    self.oracle.on_high_watermark(broker, stream, offset)
                case effects.PushReady(to, stream, is_catch_up):
                    self.window(broker, to).ready(stream, is_catch_up=is_catch_up)
                case effects.Counted(to, stream, offset):
                    self.window(broker, to).counted(stream, offset)
                case effects.NotFollowing(to):
                    for stream in STREAMS:
                        self.window(broker, to).drop(stream)
                case effects.Propose(proposal):
                    broker.commands.append(Command(broker.epoch, proposal))
                case effects.HandOver(to):
                    self.controller.begin_move(to)
                case effects.Trim() | effects.AdvanceStart():
                    broker.work.append(effect)
                case effects.Append():
                    broker.work.append(Writing(effect, list(entries)))
                case effects.Stop(reason):
                    self.stopped.append(reason)
                case _:
                    raise AssertionError(f"nobody asked for {effect}")

    def do_work(self, broker: SimBroker) -> None:
        job, role = broker.work.popleft(), broker.role
        assert isinstance(role, FollowerCore)
        if isinstance(job, Writing):
            if self.chance.random() < 0.02:
                broker.work = deque(other for other in broker.work if not isinstance(other, Writing))
                self.perform(broker, role.on_append_failed(self.now_ms))
                return
            log = broker.logs.setdefault(job.push.stream, SimLog(self.flush))
            assert log.end_offset == job.push.base_offset
            log.append(job.entries)
            assert log.end_offset == job.push.end_offset
            self.perform(broker, role.on_local(self.now_ms))
        elif isinstance(job, effects.AdvanceStart):
            log = broker.logs[job.stream]
            if log.start_offset < job.start_offset <= log.end_offset:
                log.advance_start(job.start_offset)
                self.perform(broker, role.on_local(self.now_ms))
        else:
            for step in job.steps:
                log = broker.logs.setdefault(step.stream, SimLog(self.flush))
                self.truncations += step != effects.Reset(step.stream, log.start_offset)
                if isinstance(step, effects.Truncate):
                    log.truncate(step.end_offset)
                else:
                    log.reset(step.start_offset)
            self.perform(broker, role.on_trimmed(self.now_ms))

    # -- the link --------------------------------------------------------------------------------------------------

    def connect(self, a: int, b: int) -> None:
        link = self.links[frozenset((a, b))]
        if link.session is None and self.brokers[a].is_alive and self.brokers[b].is_alive:
            self.sessions += 1
            link.session = self.sessions.to_bytes(16, "big")
            link.queues = {a: deque(), b: deque()}
            for broker, other in ((self.brokers[a], b), (self.brokers[b], a)):
                self.notice(broker)
                if isinstance(broker.role, FollowerCore) and self.leader_of(broker) == other:
                    self.perform(broker, broker.role.on_link(link.session, self.now_ms))

    def disconnect(self, a: int, b: int) -> None:
        link = self.links[frozenset((a, b))]
        if link.session is not None:
            lost, link.session = link.session, None
            link.queues = {}
            self.brokers[a].lost.append((b, lost))
            self.brokers[b].lost.append((a, lost))

    def notice(self, broker: SimBroker) -> None:
        """A broker finds out what has become of its links."""
        while broker.lost:
            other, lost = broker.lost.popleft()
            if isinstance(broker.role, LeaderCore):
                self.perform(broker, broker.role.on_link_lost(other, lost, self.now_ms))
            elif broker.role is not None and self.leader_of(broker) == other:
                self.perform(broker, broker.role.on_link(None, self.now_ms))

    def leader_of(self, broker: SimBroker) -> int | None:
        return self.controller.shots[broker.version - 1].partition.leader

    def send(self, a: int, b: int, message: Message, entries: Sequence[Entry] = ()) -> None:
        link = self.links[frozenset((a, b))]
        if link.session is not None:
            link.queues[b].append((message, list(entries)))

    def waiting(self, a: int, b: int) -> int:
        """Messages from a to b that are on their way."""
        return len(self.links[frozenset((a, b))].queues.get(b, ()))

    def deliver(self, a: int, b: int) -> bool:
        """One message from a to b."""
        link = self.links[frozenset((a, b))]
        if link.session is None or not link.queues[b]:
            return False
        message, entries = link.queues[b].popleft()
        broker, now = self.brokers[b], self.now_ms
        core = broker.role
        if isinstance(core, LeaderCore):
            match message:
                case messages.Join():
                    self.perform(broker, core.on_join(a, link.session, message, now))
                case messages.Ack():
                    self.perform(broker, core.on_ack(a, link.session, message, now))
                case _:
                    pass
        elif core is not None:
            match message:
                case messages.JoinAnswer():
                    self.perform(broker, core.on_join_answer(message, now))
                case messages.Rejoin():
                    self.perform(broker, core.on_rejoin(message, now))
                case messages.Push():
                    self.perform(broker, core.on_push(message, now), entries)
                case _:
                    pass
        return True

    # -- a leader's pushes -----------------------------------------------------------------------------------------

    def window(self, broker: SimBroker, to: int) -> Window[int]:
        """Its lanes are the streams of the one partition that there is."""
        return broker.windows.setdefault(to, Window(WINDOW))

    def pump(self, broker: SimBroker, to: int) -> bool:
        """One turn of a window."""
        core = broker.role
        if not isinstance(core, LeaderCore) or to not in broker.windows:
            return False
        window = broker.windows[to]
        turn = window.next()
        if turn is None:
            return False
        stream = turn.lane
        offer = core.next_push(to, stream)
        if offer is None:
            window.idle(stream)
            return True
        end = min(offer.end_offset, offer.base_offset + self.chance.randint(1, turn.bytes_max))
        entries = broker.logs[stream].read(offer.base_offset, end)
        push = core.push(to, stream, base_offset=offer.base_offset, end_offset=end)
        window.sent(stream, end_offset=end, size_bytes=len(entries))
        if end == offer.end_offset:
            window.idle(stream)
        self.send(broker.broker_id, to, push, entries)
        return True

    # -- what happens ----------------------------------------------------------------------------------------------

    def produce(self, broker: SimBroker) -> None:
        core = broker.role
        if not isinstance(core, LeaderCore):
            return
        try:
            core.require_enough_replicas()
        except NotEnoughReplicasError:
            if self.chance.random() < 0.5:
                return  # the others ask for acks of the leader alone
        stream = self.chance.choice(STREAMS)
        log = broker.logs.get(stream)
        if log is None:
            log = broker.logs[stream] = SimLog(self.flush)
            log.known_epochs.begin(core.leader_epoch, 0)
        for _ in range(self.chance.randint(1, 3)):
            self.values += 1
            log.append([Entry(core.leader_epoch, self.values)])
        self.perform(broker, core.on_local(self.now_ms))

    def sync(self, broker: SimBroker, *, whole: bool = False) -> None:
        """A sync ends, that began when the log may have been shorter."""
        for log in broker.logs.values():
            log.sync(log.end_offset if whole else self.chance.randint(log.synced_offset, log.end_offset))
        self.look(broker)

    def mend(self, broker: SimBroker) -> None:
        for log in broker.logs.values():
            log.quarantined = []
        self.look(broker)

    def look(self, broker: SimBroker) -> None:
        if broker.role is not None:
            self.perform(broker, broker.role.on_local(self.now_ms))

    def retain(self, broker: SimBroker) -> None:
        core = broker.role
        if isinstance(core, LeaderCore) and broker.logs:
            stream = self.chance.choice(sorted(broker.logs))
            log = broker.logs[stream]
            log.advance_start(self.chance.randint(log.start_offset, core.high_watermark(stream)))
            self.perform(broker, core.on_local(self.now_ms))

    def tick(self, broker: SimBroker) -> None:
        if broker.role is not None:
            self.perform(broker, broker.role.on_tick(self.now_ms))

    def carry_command(self, broker: SimBroker, *, lossy: bool = True) -> None:
        """A proposal gets to the controller, or its answer back. Either may be lost: then the broker asks again, and
        is answered as the first time."""
        if not broker.commands or (lossy and self.chance.random() < 0.3):
            return
        command = broker.commands[0]
        if command.answer is None:
            command.answer = self.controller.alter(broker.broker_id, command.broker_epoch, command.proposal)
            return
        broker.commands.popleft()
        if isinstance(broker.role, LeaderCore):
            self.perform(broker, broker.role.on_answered(command.proposal, command.answer, self.now_ms))

    def applied(self) -> dict[int, int]:
        return {broker.broker_id: broker.version for broker in self.brokers.values() if broker.is_alive}

    def step(self) -> None:
        """Something happens."""
        alive = [broker for broker in self.brokers.values() if broker.is_alive]
        chosen = self.chance.choice(list(self.brokers.values()))
        broker = self.chance.choice(alive) if alive else chosen
        a, b = self.chance.sample(sorted(self.brokers), 2)
        busy = [(x, y) for x in self.brokers for y in self.brokers if x != y and self.waiting(x, y)]
        what = self.chance.choices(list(self.weights), list(self.weights.values()))[0]
        self.now_ms += self.chance.randint(0, 3)
        self.trace.append(f"{self.now_ms:6} {what} {broker.broker_id} ({a} {b} {chosen.broker_id})")
        match what:
            case "deliver":
                for x, y in busy:
                    for _ in range(self.chance.choice((0, 1, 1, 5))):
                        self.deliver(x, y)
            case "pump":
                for leading in alive:
                    for other in self.brokers:
                        if self.chance.random() < 0.7:
                            self.pump(leading, other)
            case "work":
                for working in alive:
                    for _ in range(self.chance.choice((0, 1, 1, 5))):
                        if working.work:
                            self.do_work(working)
            case "produce":
                for leading in alive:
                    self.produce(leading)
            case "sync":
                for syncing in alive:
                    if self.chance.random() < 0.5:
                        self.sync(syncing)
            case "tick":
                self.now_ms += self.chance.randint(0, 60)
                for ticking in alive:
                    self.tick(ticking)
            case "wait":
                self.now_ms += self.chance.randint(0, 1_500)
            case "apply":
                for behind in alive:
                    if behind.version < self.controller.version and self.chance.random() < 0.5:
                        self.apply(behind, self.chance.randint(behind.version + 1, self.controller.version))
            case "command":
                for leading in alive:
                    self.carry_command(leading)
            case "retain":
                for leading in alive:
                    self.retain(leading)
            case "disconnect":
                self.disconnect(a, b)
            case "connect":
                for pair in self.links:
                    if self.chance.random() < 0.5:
                        self.connect(*sorted(pair))
            case "notice":
                self.notice(broker)
            case "fence":
                self.controller.fence(chosen.broker_id)
            case "unfence":
                for fenced in alive:
                    if self.chance.random() < 0.5:
                        self.controller.unfence(fenced.broker_id)
            case "crash":
                if chosen.is_alive and self.flush == "fsync":
                    self.crash(chosen)
                elif chosen.is_alive and self.others_are_intact(chosen):
                    # The controller is to know at once, or it may part with the others and take this one for whole.
                    self.crash(chosen)
                    self.start(chosen)
            case "power_cut":
                if self.flush == "fsync":
                    for each in alive:
                        self.crash(each)
            case "wipe":
                if self.others_are_intact(chosen):
                    self.crash(chosen)
                    chosen.logs = {}
                    self.start(chosen, is_wiped=True)
            case "start":
                for dead in self.brokers.values():
                    if not dead.is_alive and self.chance.random() < 0.5:
                        self.start(dead)
            case "damage":
                if broker.logs and self.others_are_intact(broker):
                    log = self.chance.choice(list(broker.logs.values()))
                    log.quarantined = [OffsetRange(log.start_offset, log.end_offset)]
                    self.look(broker)
            case "mend":
                self.mend(broker)
            case "move":
                self.controller.begin_move(chosen.broker_id)
            case "complete":
                self.controller.complete_move(self.applied())
            case "last_isr":
                self.controller.elect_last_isr()
            case "min_isr":
                self.controller.set_min_isr(self.chance.randint(1, len(self.brokers)))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
            self.oracle.check()
        self.heal()

    def heal(self) -> None:
        """Nothing fails any more: within so many rounds everybody has everything, and it is committed."""
        self.trace.append("heal")
        self.controller.set_min_isr(len(self.brokers) // 2 + 1)
        for _ in range(200):
            for broker in self.brokers.values():
                if not broker.is_alive:
                    self.start(broker)
                self.controller.unfence(broker.broker_id)
            self.controller.complete_move(self.applied())
            self.controller.elect_last_isr()
            for broker in self.brokers.values():
                if broker.version < self.controller.version:
                    self.apply(broker, self.controller.version)
            for pair in self.links:
                self.connect(*sorted(pair))
            for broker in self.brokers.values():
                self.notice(broker)
                self.mend(broker)
            self.now_ms += 50
            for broker in self.brokers.values():
                self.tick(broker)
            for broker in self.brokers.values():
                self._settle(broker)
                self.oracle.check()
            if self.is_healed():
                return
        raise AssertionError(f"no progress: {self.picture()}")

    def _settle(self, broker: SimBroker) -> None:
        for _ in range(2):
            self.carry_command(broker, lossy=False)
        for other in self.brokers:
            if other != broker.broker_id:
                while self.pump(broker, other):
                    pass
                while self.deliver(other, broker.broker_id):
                    pass
        while broker.work:
            self.do_work(broker)
        self.sync(broker, whole=True)

    def is_healed(self) -> bool:
        """Replicas are equal, all are in sync, and everything is committed."""
        roles = [broker.role for broker in self.brokers.values()]
        leader = next((role for role in roles if isinstance(role, LeaderCore)), None)
        if leader is None or len(leader.picture.isr) < len(self.brokers) or leader.proposal is not None:
            return False
        if any(broker.version < self.controller.version for broker in self.brokers.values()):
            return False
        for stream in STREAMS:
            logs = [broker.logs.get(stream) or SimLog(self.flush) for broker in self.brokers.values()]
            ends = {log.end_offset for log in logs} | {log.counted_offset for log in logs}
            if len(ends) > 1 or ends != {role.high_watermark(stream) for role in roles if role is not None}:
                return False
            # Where an earlier leader had deleted more than this one has, the beginnings differ.
            first = max(log.start_offset for log in logs)
            if len({tuple(log.read(first, log.end_offset)) for log in logs}) > 1:
                return False
            leading = self.brokers[leader.broker_id].logs.get(stream)
            if leading is not None and any(log.start_offset < leading.start_offset for log in logs):
                return False
        return True

    def picture(self) -> str:
        lines = [f"{self.controller.partition}", *self.stopped]
        for broker in self.brokers.values():
            role = broker.role
            state = role.state if isinstance(role, FollowerCore) else type(role).__name__
            marks = {} if role is None else role.high_watermarks()
            logs = {s: (log.start_offset, log.end_offset, log.counted_offset) for s, log in broker.logs.items()}
            lines.append(f"{broker.broker_id} epoch {broker.epoch} {state} high watermarks {marks} logs {logs}")
        return "\n".join(lines)


_USUAL: Final[dict[str, float]] = {
    "deliver": 200,
    "pump": 100,
    "work": 100,
    "produce": 30,
    "sync": 60,
    "tick": 40,
    "apply": 60,
    "command": 20,
    "connect": 40,
    "unfence": 40,
    "start": 40,
    "complete": 40,
    "notice": 40,
    "last_isr": 20,
    "mend": 20,
}
_FAULTS: Final[dict[str, float]] = {
    "wait": 2,
    "retain": 2,
    "disconnect": 5,
    "fence": 4,
    "crash": 4,
    "power_cut": 1,
    "wipe": 1,
    "damage": 1,
    "move": 4,
    "min_isr": 2,
}
