"""Commands and confirmations that a follower passes on to the leader, and the leader's answers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from quire.errors import ERRORS_BY_REASON, LogBusyError, OutcomeUnknownError, QuireError, UnavailableError
from quire.link.network import Scheduler, Timer
from quire.types import Buffer
from quire.v1 import raft_pb2
from quire_controller.ports import Applied, ConfirmCallback, ProposeCallback

Message = raft_pb2.RaftMessage
MESSAGE_BYTES_MAX: Final = 1024

Answered = Callable[[Applied | QuireError], None]


@dataclass(slots=True)
class _Pending:
    leader: str
    callback: Answered
    timer: Timer


class Forwarding:
    def __init__(
        self,
        scheduler: Scheduler,
        send: Callable[[str, Message, list[Buffer]], None],
        *,
        answer_ms_max: int,
        pending_max: int,
        first_id: int,
    ) -> None:
        """`first_id` is random: an answer to what this member asked before it was restarted is for nobody."""
        self._scheduler = scheduler
        self._send = send
        self._answer_ms_max = answer_ms_max
        self._pending_max = pending_max
        self._pending: dict[int, _Pending] = {}
        self._numbers = itertools.count(first_id)

    # -- the follower ----------------------------------------------------------------------------------------------

    def propose(self, leader: str, command: bytes, callback: ProposeCallback) -> None:
        request_id = self._ask(leader, callback)
        if request_id is not None:
            self._send(leader, Message(forward=raft_pb2.RaftForward(request_id=request_id)), [command])

    def confirm(self, leader: str, callback: ConfirmCallback) -> None:
        def on_answer(outcome: Applied | QuireError) -> None:
            if isinstance(outcome, Applied):
                callback(outcome.index)
            elif isinstance(outcome, OutcomeUnknownError):
                callback(UnavailableError(outcome.message))  # a read changes nothing: it can be asked again
            else:
                callback(outcome)

        request_id = self._ask(leader, on_answer)
        if request_id is not None:
            self._send(leader, Message(confirm=raft_pb2.RaftConfirm(request_id=request_id)), [])

    def on_answer(self, peer: str, answer: raft_pb2.RaftForwardAnswer, body: Buffer) -> None:
        pending = self._pending.get(answer.request_id)
        if pending is None or pending.leader != peer:
            return
        outcome: Applied | QuireError = Applied(answer.index, bytes(body))
        if answer.error_reason:
            kind = ERRORS_BY_REASON.get(answer.error_reason, OutcomeUnknownError)
            try:
                outcome = kind.from_wire(answer.error_message, {}, retry_after_ms=None)
            except (KeyError, ValueError):
                outcome = OutcomeUnknownError(answer.error_message)
        self._finish(answer.request_id, outcome)

    def on_disconnected(self, peer: str) -> None:
        self._fail([number for number, pending in self._pending.items() if pending.leader == peer])

    def stop(self) -> None:
        self._fail(list(self._pending))

    # -- the leader ------------------------------------------------------------------------------------------------

    def answer(self, peer: str, request_id: int, outcome: Applied | int | QuireError) -> None:
        answer = raft_pb2.RaftForwardAnswer(request_id=request_id)
        body: list[Buffer] = []
        if isinstance(outcome, QuireError):
            answer.error_reason = outcome.reason
            answer.error_message = outcome.message[:MESSAGE_BYTES_MAX]
        elif isinstance(outcome, Applied):
            answer.index = outcome.index
            body.append(outcome.result)
        else:
            answer.index = outcome
        self._send(peer, Message(forward_answer=answer), body)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _ask(self, leader: str, callback: Answered) -> int | None:
        if len(self._pending) >= self._pending_max:
            callback(LogBusyError(f"{len(self._pending)} requests wait for the leader '{leader}', as many as may"))
            return None
        request_id = next(self._numbers)
        timer = self._scheduler.call_later(self._answer_ms_max / 1000, lambda: self._fail([request_id]))
        self._pending[request_id] = _Pending(leader, callback, timer)
        return request_id

    def _fail(self, request_ids: list[int]) -> None:
        for request_id in request_ids:
            pending = self._pending.get(request_id)
            if pending is not None:
                unknown = OutcomeUnknownError(
                    f"the leader '{pending.leader}' did not answer; ask again under the same client id and sequence"
                )
                self._finish(request_id, unknown)

    def _finish(self, request_id: int, outcome: Applied | QuireError) -> None:
        pending = self._pending.pop(request_id)
        pending.timer.cancel()
        pending.callback(outcome)
