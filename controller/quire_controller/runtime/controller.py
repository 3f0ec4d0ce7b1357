"""A controller at work: commands, reads, heartbeats, and what the leader does by itself.

    became leader ──► BeginTerm committed ──► LeaseKeeper and Duties of this term ──► … ──► leader no more

- A heartbeat is answered after a quorum round that began after its receipt: whoever has been deposed meanwhile gives
  no lease. The lease counts from the receipt, on this side's clock.
- Until its own `BeginTerm` is applied a leader has no keeper: what its predecessor decided is applied first.
- What leads to a decision (leases, waits) is in memory and of one term; what was decided is in the state.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from google.protobuf.message import DecodeError

from quire.errors import OutcomeUnknownError, QuireError, UnavailableError
from quire.link.network import Scheduler, Timer
from quire.v1 import commands_pb2
from quire_controller.ports import Applied, Quorum
from quire_controller.state.duties import Duties, DutyConfig
from quire_controller.state.leases import LeaseKeeper
from quire_controller.state.limits import FEATURE_LEVEL_MIN
from quire_controller.state.machine import ControllerState

FEATURE_LEVEL: Final = FEATURE_LEVEL_MIN
"""What a new cluster begins with."""

SubmitCallback = Callable[[commands_pb2.CommandResult | QuireError], None]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The answer to a broker's heartbeat."""

    lease_ms: int
    """How long the broker may go on, from when it sent the heartbeat; 0 for not at all."""
    metadata_version: int
    """The lease begins when the broker has applied this."""


HeartbeatCallback = Callable[[Heartbeat | QuireError], None]


@dataclass(frozen=True, kw_only=True)
class RuntimeConfig:
    cluster_id: str
    member_id: str
    lease_ms: int = 3_000
    """What brokers get."""
    tick_ms: int = 50
    """How often the leader looks for something to do."""
    begin_retry_ms: int = 500
    """After how long a leader announces itself again, if it has not heard of its announcement."""
    duties: DutyConfig = field(default_factory=DutyConfig)


@dataclass(slots=True)
class _Term:
    """A leadership of this member."""

    term: int
    announced_at: float
    keeper: LeaseKeeper | None = None
    duties: Duties | None = None


class ControllerRuntime:
    def __init__(
        self,
        *,
        quorum: Quorum,
        state: ControllerState,
        scheduler: Scheduler,
        randomness: random.Random,
        config: RuntimeConfig,
    ) -> None:
        self._quorum = quorum
        self._state = state
        self._scheduler = scheduler
        self._config = config
        self._incarnation = randomness.randbytes(16)
        self._sequence = 0
        self._term: _Term | None = None
        self._timer: Timer | None = None
        self._is_running = False
        self._watchers: dict[int, Callable[[], None]] = {}
        self._watcher_number = 0
        self._seen_version = state.version

    @property
    def lease_ms(self) -> int:
        return self._config.lease_ms

    @property
    def is_in_charge(self) -> bool:
        """Whether this member leads and everything that its predecessors decided is applied here."""
        return self._keeper() is not None

    def start(self) -> None:
        self._is_running = True
        self._on_timer()

    def stop(self) -> None:
        self._is_running = False
        self._term = None
        if self._timer is not None:
            self._timer.cancel()

    # -- for services ----------------------------------------------------------------------------------------------

    def internal_command(self) -> commands_pb2.Command:
        """A command of this process's own: carried out once, however often it is sent."""
        self._sequence += 1
        return commands_pb2.Command(
            client_id=f"controller-{self._config.member_id}",
            client_incarnation=self._incarnation,
            sequence=self._sequence,
        )

    def submit(self, command: commands_pb2.Command, callback: SubmitCallback) -> None:
        """Carry out a command, wherever the leader is. What the state machine says of it is in the result."""

        def answered(outcome: Applied | QuireError) -> None:
            if isinstance(outcome, QuireError):
                callback(outcome)
                return
            try:
                result = commands_pb2.CommandResult.FromString(outcome.result)
            except DecodeError:
                callback(OutcomeUnknownError("the leader's answer does not decode; is it of another version?"))
                return
            callback(result)

        self._quorum.propose(command.SerializeToString(deterministic=True), answered)

    def read(self, callback: Callable[[QuireError | None], None]) -> None:
        """What is read of the state after this is no older than this call."""

        def confirmed(outcome: int | QuireError) -> None:
            if isinstance(outcome, QuireError):
                callback(outcome)
            else:
                self._quorum.when_applied(outcome, callback)

        self._quorum.confirm(confirmed)

    def heartbeat(
        self, *, broker_id: int, broker_epoch: int, applied_version: int, callback: HeartbeatCallback
    ) -> None:
        received_ms = self._now_ms()
        if not self._quorum.is_leader:
            callback(self._not_leader())
            return
        term = self._quorum.term

        def confirmed(outcome: int | QuireError) -> None:
            if isinstance(outcome, QuireError):
                callback(outcome)
                return
            keeper = self._keeper()
            if keeper is None or keeper.term != term:
                callback(self._not_leader())
                return
            # What was committed by now decides whether the broker is active at all.
            keeper.observe(self._state.brokers, self._now_ms())
            lease_ms = keeper.on_heartbeat_confirmed(
                broker_id=broker_id,
                broker_epoch=broker_epoch,
                received_ms=received_ms,
                applied_version=applied_version,
            )
            callback(Heartbeat(lease_ms, self._state.version))

        self._quorum.confirm(confirmed)

    def watch(self, observer: Callable[[], None]) -> Callable[[], None]:
        """Call `observer` whenever the state has a new version, until the function that this gives is called."""
        self._watcher_number += 1
        number = self._watcher_number
        self._watchers[number] = observer
        return lambda: void(self._watchers.pop(number, None))

    # -- the leader's own work -------------------------------------------------------------------------------------

    def on_turn(self) -> None:
        """Call after each turn of the quorum's member."""
        if not self._is_running:
            return
        self._look_at_term()
        if self._state.version != self._seen_version:
            self._seen_version = self._state.version
            for observer in list(self._watchers.values()):
                observer()

    def _look_at_term(self) -> None:
        if not self._quorum.is_leader:
            self._term = None
            return
        now = self._scheduler.time()
        if self._term is None or self._term.term != self._quorum.term:
            self._term = _Term(self._quorum.term, now)
            self._announce(self._term)
        term, controller = self._term, self._state.controller
        if term.keeper is None and controller is not None and controller.term == term.term:
            term.keeper = LeaseKeeper(term=term.term, now_ms=self._now_ms(), brokers=self._state.brokers)
            term.duties = Duties(term.keeper, self._config.duties)

    def _announce(self, term: _Term) -> None:
        term.announced_at = self._scheduler.time()
        command = commands_pb2.Command()
        command.begin_term.term = term.term
        command.begin_term.controller_id = self._config.member_id
        self._propose(command)
        if self._state.cluster is None:
            command = commands_pb2.Command()
            command.initialize_cluster.cluster_id = self._config.cluster_id
            command.initialize_cluster.feature_level = FEATURE_LEVEL
            command.initialize_cluster.controller_level_max = FEATURE_LEVEL  # the lowest that there is
            self._propose(command)

    def _on_timer(self) -> None:
        if not self._is_running:
            return
        self._timer = self._scheduler.call_later(self._config.tick_ms / 1000, self._on_timer)
        self._look_at_term()
        term = self._term
        if term is None:
            return
        if term.duties is not None:
            for command in term.duties.due(self._state.tables, self._now_ms()):
                self._propose(command)
        is_known = term.duties is not None and self._state.cluster is not None
        if not is_known and self._scheduler.time() - term.announced_at >= self._config.begin_retry_ms / 1000:
            self._announce(term)

    def _propose(self, command: commands_pb2.Command) -> None:
        # Its fate is seen in the state: what did not happen is due again.
        self._quorum.propose(command.SerializeToString(deterministic=True), lambda _: None)

    def _keeper(self) -> LeaseKeeper | None:
        term = self._term
        if term is None or not self._quorum.is_leader or self._quorum.term != term.term:
            return None
        return term.keeper

    def _now_ms(self) -> int:
        return int(self._scheduler.time() * 1000)

    def _not_leader(self) -> UnavailableError:
        leader = self._quorum.leader_id
        if leader is None or leader == self._config.member_id:
            return UnavailableError("no controller leads at the moment; ask again soon", retry_after_ms=100)
        return UnavailableError(f"controller '{leader}' leads, ask there", leader=leader)


def void(_: object) -> None:
    """For the sake of the type checker: a function's result is not wanted."""
