"""A member at work: the core on a scheduler, a disk and the way to its peers. Everything is callbacks on one thread.

    on_message, propose, confirm ──► core ──(a turn, soon)──► flush, elect, commit, apply ──► peers, callbacks

Entries go out before they are flushed here, so the others write while we do.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from quire.disk.port import Disk
from quire.errors import MalformedFrameError, QuireError, UnavailableError
from quire.link.network import Scheduler, Timer
from quire.types import Buffer
from quire.v1 import raft_pb2
from quire_controller.ports import ConfirmCallback, ProposeCallback, StateMachine
from quire_controller.raft.config import RaftConfig
from quire_controller.raft.core import Core
from quire_controller.raft.forwarding import Forwarding
from quire_controller.raft.journal import AHEAD_BYTES, SEGMENT_BYTES
from quire_controller.raft.member import Status
from quire_controller.raft.peers import Peers
from quire_controller.raft.snapshot_job import Background, SnapshotJob
from quire_controller.raft.storage import Storage

Fatal = Callable[[BaseException], None]
"""Called once when the member cannot go on: its disk failed, or there is a bug. The process is to end."""


class RaftNode:
    """Implements the port `Quorum`."""

    def __init__(
        self,
        *,
        cluster_id: str,
        member_id: str,
        others: list[str],
        disk: Disk,
        directory: str,
        state_machine: StateMachine,
        peers: Peers,
        scheduler: Scheduler,
        background: Background,
        randomness: random.Random,
        on_fatal: Fatal,
        config: RaftConfig | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        ahead_bytes: int = AHEAD_BYTES,
    ) -> None:
        """Opens the directory and restores the state machine. Raises DamagedFileError and InvalidArgumentError."""
        config = config or RaftConfig()
        self._config = config
        self._scheduler = scheduler
        self._peers = peers
        self._has_others = bool(others)
        self._on_fatal = on_fatal
        self._storage = Storage.open(
            disk,
            directory,
            state_machine,
            randomness,
            cluster_id=cluster_id,
            member_id=member_id,
            segment_bytes=segment_bytes,
            ahead_bytes=ahead_bytes,
        )
        self._core = Core(
            member_id=member_id,
            others=others,
            storage=self._storage,
            state_machine=state_machine,
            config=config,
            clock=scheduler.time,
            randomness=randomness,
        )
        self._job = SnapshotJob(self._core, scheduler, background, retry_ms=20 * config.disk_retry_ms)
        self._forwarding = Forwarding(
            scheduler,
            self._send,
            answer_ms_max=4 * config.election_ms_max,
            pending_max=config.commands_max,
            first_id=randomness.getrandbits(62),
        )
        self._timer: Timer | None = None
        self._turn_timer: Timer | None = None
        self._is_running = False
        self._observers: list[Callable[[], None]] = []

    # -- life ------------------------------------------------------------------------------------------------------

    @property
    def torn(self) -> list[str]:
        """What of the journal was cut when it was opened: writes that a crash had torn."""
        return self._storage.journal.torn

    def start(self) -> None:
        self._is_running = True
        self._peers.start(self)
        self._guarded(self._on_timer)()

    def stop(self) -> None:
        """Send what is decided, tell everyone who waits, and close the files."""
        if not self._is_running:
            return
        self._is_running = False
        for timer in (self._timer, self._turn_timer):
            if timer is not None:
                timer.cancel()
        self._job.stop()
        self._forwarding.stop()
        self._core.stop()
        self._core.run_callbacks()
        self._peers.close()
        self._storage.close()

    def hand_over(self) -> str | None:
        """If this member leads, ask another one to take over, and say which."""
        successor = self._core.take_over_by()
        self._send_outbox()
        return successor

    def observe(self, observer: Callable[[], None]) -> None:
        """Call this after each turn, in which leadership or the applied index may have changed."""
        self._observers.append(observer)

    # -- the port --------------------------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        return self._core.is_leader

    @property
    def leader_id(self) -> str | None:
        return self._core.leader

    @property
    def term(self) -> int:
        return self._core.current_term

    @property
    def applied_index(self) -> int:
        return self._core.applied_index

    def status(self) -> Status:
        return self._core.status()

    def propose(self, command: bytes, callback: ProposeCallback) -> None:
        leader = self._leader_elsewhere()
        if not self._is_running:
            callback(UnavailableError("this member is not running"))
        elif leader is not None and len(command) <= self._config.command_bytes_max:
            self._forwarding.propose(leader, command, callback)
        else:
            self._core.propose(command, callback)
            self._wake()

    def confirm(self, callback: ConfirmCallback) -> None:
        leader = self._leader_elsewhere()
        if not self._is_running:
            callback(UnavailableError("this member is not running"))
        elif leader is not None:
            self._forwarding.confirm(leader, callback)
        else:
            self._core.confirm(callback)
            self._wake()

    def when_applied(self, index: int, callback: Callable[[QuireError | None], None]) -> None:
        if not self._is_running:
            callback(UnavailableError("this member is not running"))
            return
        self._core.when_applied(index, callback)
        self._wake()

    # -- what the peers call ---------------------------------------------------------------------------------------

    def on_connected(self, peer: str) -> None:
        self._guarded(lambda: self._core.connected(peer))()
        self._wake()

    def on_disconnected(self, peer: str) -> None:
        self._guarded(lambda: self._core.disconnected(peer))()
        self._forwarding.on_disconnected(peer)

    def on_message(self, peer: str, message: raft_pb2.RaftMessage, body: Buffer) -> None:
        if not self._is_running:
            return
        match message.WhichOneof("message"):
            case "forward":
                request_id = message.forward.request_id
                self._core.propose(bytes(body), lambda outcome: self._forwarding.answer(peer, request_id, outcome))
            case "confirm":
                request_id = message.confirm.request_id
                self._core.confirm(lambda outcome: self._forwarding.answer(peer, request_id, outcome))
            case "forward_answer":
                self._forwarding.on_answer(peer, message.forward_answer, body)
                return
            case _:
                self._receive(peer, message, body)
        self._wake()

    def _receive(self, peer: str, message: raft_pb2.RaftMessage, body: Buffer) -> None:
        try:
            self._core.receive(peer, message, body)
        except MalformedFrameError:
            raise  # the peer's fault, not ours
        except BaseException as error:
            self._die(error)

    # -- turns -----------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if self._turn_timer is None and self._is_running:
            self._turn_timer = self._scheduler.call_soon(self._guarded(self._turn))

    def _on_timer(self) -> None:
        self._timer = self._scheduler.call_later(self._config.tick_ms / 1000, self._guarded(self._on_timer))
        self._take_turn(by_timer=True)

    def _turn(self) -> None:
        self._turn_timer = None
        if self._storage.journal.is_dirty and not self._core.is_leader:
            # The leader waits for our answer. What came with the entries is that earlier ones are committed: unless
            # somebody here waits for one of them, they are applied with the next tick, many at a time.
            self._core.flush()
            self._send_outbox()
            if not self._core.is_awaited and not self._core.is_blocked:
                return
        self._take_turn(by_timer=False)

    def _take_turn(self, *, by_timer: bool) -> None:
        if not self._is_running:
            return
        self._core.turn(by_timer=by_timer)
        self._send_outbox()
        if self._storage.journal.is_dirty and self._core.is_leader:
            # The entries are on their way, so the others write while we do. Theirs are the answers that are waited
            # for; where there are no others, ours is.
            self._core.flush()
            if not self._has_others:
                self._wake()
        self._core.run_callbacks()
        for observer in self._observers:
            observer()
        if not self._is_running:
            return
        self._job.begin_if_due(self._guarded)
        if self._core.is_blocked:
            return  # the timer tries again
        if self._core.applied_index < self._core.commit_index or self._storage.journal.is_dirty:
            self._wake()

    def _send_outbox(self) -> None:
        outbox = self._core.take_outbox()
        if outbox:
            for outgoing in outbox:
                self._peers.send(outgoing.to, outgoing.header, outgoing.body)
            self._peers.flush()

    def _send(self, peer: str, message: raft_pb2.RaftMessage, body: list[Buffer]) -> None:
        self._peers.send(peer, message, body)

    def _leader_elsewhere(self) -> str | None:
        """The leader, if it is another member and can be reached: else the core says that there is none."""
        leader = self._core.leader
        return leader if not self._core.is_leader and self._core.is_up(leader) else None

    def _guarded(self, callback: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                callback()
            except BaseException as error:
                # An event loop would log it and go on, with a member that has forgotten something.
                self._die(error)

        return run

    def _die(self, error: BaseException) -> None:
        if self._is_running:
            self._is_running = False
            self._on_fatal(error)
