"""What a member counts and measures. docs/OPERATING.md lists all of it, with what to look out for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from quire.errors import OutcomeUnknownError, QuireError
from quire.process.rpc.metrics import CallMetrics
from quire_controller.ports import Applied, ConfirmCallback, ProposeCallback, Quorum, StateMachine

ROLES: Final = ("leader", "follower", "candidate", "learner")
Clock = Callable[[], float]
Done = Callable[[BaseException | None], None]
Background = Callable[[Callable[[], None], Done], None]

_COMMIT_SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_SNAPSHOT_SECONDS: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0)


class MemberStatus(Protocol):
    """What is told of a member at every scrape."""

    @property
    def role(self) -> str: ...
    @property
    def leader_id(self) -> str | None: ...
    @property
    def term(self) -> int: ...
    @property
    def commit_index(self) -> int: ...
    @property
    def applied_index(self) -> int: ...
    @property
    def snapshot_index(self) -> int: ...
    @property
    def journal_bytes(self) -> int: ...
    @property
    def is_blocked(self) -> bool: ...
    @property
    def connected(self) -> frozenset[str]: ...


class Metrics:
    """All metrics of a controller, in a registry of their own."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.registry = CollectorRegistry()
        self._leader: tuple[str, int] | None = None
        self._leader_changes = Counter(
            "quire_controller_leader_changes",
            "Leaders that this member has followed or been.",
            registry=self.registry,
        )
        self._proposals = Counter(
            "quire_controller_proposals",
            "Commands proposed through this member: committed, refused before anything was done, or unknown.",
            ["outcome"],
            registry=self.registry,
        )
        self._commit_seconds = Histogram(
            "quire_controller_commit_seconds",
            "From proposing a command to its result, of those that were committed.",
            buckets=_COMMIT_SECONDS,
            registry=self.registry,
        )
        self._snapshot_seconds = Histogram(
            "quire_controller_snapshot_seconds",
            "From the picture of the state to the synced file.",
            buckets=_SNAPSHOT_SECONDS,
            registry=self.registry,
        )
        self.call_ended = CallMetrics(self.registry).call_ended
        for outcome in ("ok", "failed", "unknown"):
            self._proposals.labels(outcome)
        self._snapshot_began = 0.0

    def collect_from(
        self, status: Callable[[], MemberStatus], gauges: Callable[[], Iterable[tuple[str, str, float]]]
    ) -> None:
        """At every scrape tell this status, and these gauges: (name, what it is, value)."""
        self.registry.register(_StatusCollector(status, gauges))

    # -- what is counted when it happens ---------------------------------------------------------------------------

    def look_at_leader(self, leader_id: str | None, term: int) -> bool:
        """Note who leads. True if that is news."""
        if leader_id is None or self._leader == (leader_id, term):
            return False
        self._leader = (leader_id, term)
        self._leader_changes.inc()
        return True

    def proposal_ended(self, outcome: Applied | QuireError, seconds: float) -> None:
        if isinstance(outcome, Applied):
            self._proposals.labels("ok").inc()
            self._commit_seconds.observe(seconds)
        else:
            self._proposals.labels("unknown" if isinstance(outcome, OutcomeUnknownError) else "failed").inc()

    # -- what is measured by standing between two parts ------------------------------------------------------------

    def quorum(self, quorum: Quorum) -> Quorum:
        return _MeteredQuorum(quorum, self, self._clock)

    def state_machine(self, machine: StateMachine) -> StateMachine:
        return _MeteredState(machine, self._snapshot_begins)

    def background(self, background: Background) -> Background:
        """Snapshots are all that a member does in the background: with the sync of its file one is over."""

        def run(work: Callable[[], None], done: Done, /) -> None:
            def ended(error: BaseException | None) -> None:
                if error is None:
                    self._snapshot_seconds.observe(self._clock() - self._snapshot_began)
                done(error)

            background(work, ended)

        return run

    def _snapshot_begins(self) -> None:
        self._snapshot_began = self._clock()


class _MeteredQuorum:
    def __init__(self, quorum: Quorum, metrics: Metrics, clock: Clock) -> None:
        self._quorum = quorum
        self._metrics = metrics
        self._clock = clock

    @property
    def is_leader(self) -> bool:
        return self._quorum.is_leader

    @property
    def leader_id(self) -> str | None:
        return self._quorum.leader_id

    @property
    def term(self) -> int:
        return self._quorum.term

    @property
    def applied_index(self) -> int:
        return self._quorum.applied_index

    def propose(self, command: bytes, callback: ProposeCallback) -> None:
        began = self._clock()

        def ended(outcome: Applied | QuireError) -> None:
            self._metrics.proposal_ended(outcome, self._clock() - began)
            callback(outcome)

        self._quorum.propose(command, ended)

    def confirm(self, callback: ConfirmCallback) -> None:
        self._quorum.confirm(callback)

    def when_applied(self, index: int, callback: Callable[[QuireError | None], None]) -> None:
        self._quorum.when_applied(index, callback)


class _MeteredState:
    def __init__(self, machine: StateMachine, snapshot_begins: Callable[[], None]) -> None:
        self._machine = machine
        self._snapshot_begins = snapshot_begins
        self.apply = machine.apply
        self.restore = machine.restore

    def freeze(self) -> Iterator[bytes]:
        self._snapshot_begins()
        return self._machine.freeze()


class _StatusCollector(Collector):
    def __init__(
        self, status: Callable[[], MemberStatus], gauges: Callable[[], Iterable[tuple[str, str, float]]]
    ) -> None:
        self._status = status
        self._gauges = gauges

    def collect(self) -> Iterable[Metric]:
        status = self._status()
        role = GaugeMetricFamily("quire_controller_role", "1 for the role that this member has.", labels=["role"])
        for each in ROLES:
            role.add_metric([each], float(each == status.role))
        yield role
        for name, what, value in (
            ("term", "Its Raft term.", status.term),
            ("commit_index", "Up to where it knows entries to be committed.", status.commit_index),
            ("applied_index", "Up to where it has applied them.", status.applied_index),
            ("snapshot_index", "The last entry in its newest snapshot.", status.snapshot_index),
            ("journal_bytes", "The size of its journal.", status.journal_bytes),
            ("peers_connected", "Other members with which there is a session.", len(status.connected)),
            ("has_leader", "1 if it knows a leader.", status.leader_id is not None),
            ("disk_full", "1 if its disk is full: it neither leads nor votes.", status.is_blocked),
        ):
            yield GaugeMetricFamily(f"quire_controller_{name}", what, value=float(value))
        for name, what, gauge in self._gauges():
            yield GaugeMetricFamily(name, what, value=gauge)
