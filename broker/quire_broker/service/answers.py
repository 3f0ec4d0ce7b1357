"""What callers are given: within the budgets, and only as long as they take it.

room ──► read ──► lent to the caller ──► taken: given back
                          └──► nobody takes it: hung up on, after a while, or as soon as others wait for the room
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol, TypeVar

import grpc.aio
from google.protobuf.message import Message

from quire.errors import LogBusyError
from quire.process import logs
from quire_broker.runtime.budget import Budget, Charge, Memory
from quire_broker.service.hangup import hang_up
from quire_broker.service.splice import Spliced
from quire_broker.service.turns import Turns

STALL_S_MAX: Final = 15.0
"""A caller that does not take a message for so long has gone, or does not read."""
PATIENCE_S: Final = 1.0
"""How long somebody waits for room before the slowest caller is hung up on."""
SLOW_S: Final = 0.5
"""Who takes a message within that is not slow, however little room there is."""
LITTLE_BYTES: Final = 1024 * 1024
"""Half of the room is for whoever comes first, the other half for connections that have no more than this."""
TURNS: Final = 4
"""How many of those who wait may look when something is given back: each of them passes it on."""
COPIES: Final = 2
"""A message is in memory as itself and as bytes."""
MESSAGE_BYTES: Final = 1_024
"""What a message takes beside its content."""
RETRY_AFTER_MS: Final = 100

M = TypeVar("M")

_problems = logs.Throttled(logs.get("answers"))


class CallContext(Protocol):
    """What is used of gRPC's context of a call."""

    def peer(self) -> str: ...

    def time_remaining(self) -> float | None: ...

    async def read(self) -> object: ...

    async def write(self, message: Any, /) -> None: ...


class Caller:
    """Who is at the other end of a call. To be made by the task that gRPC serves the call with."""

    __slots__ = ("connection", "context", "task")

    def __init__(self, context: CallContext, memory: Memory) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a call is served by a task")
        self.context = context
        self.task = task
        self.connection: Budget = memory.connection(context.peer())

    async def read(self, kind: type[M]) -> M | None:
        """The next message of a stream; None at its end."""
        try:
            message = await self.context.read()
        except grpc.aio.BaseError:
            return None  # the call is over, which gRPC says in its own way
        return message if isinstance(message, kind) else None


class Loan:
    """Memory that an answer takes until its caller has it."""

    __slots__ = ("_answers", "_caller", "_charge", "_timer", "since")

    def __init__(self, answers: Answers, caller: Caller, charge: Charge) -> None:
        self._answers = answers
        self._caller = caller
        self._charge = charge
        self._timer: asyncio.TimerHandle | None = None
        self.since = 0.0

    def add(self, size_bytes: int) -> None:
        self._charge.add(size_bytes)

    def hand_over(self) -> None:
        """From now on it is for the caller to take."""
        loop = asyncio.get_running_loop()
        self.since = loop.time()
        self._timer = loop.call_later(STALL_S_MAX, self.hang_up)
        self._answers.handing_over[self] = None

    def hang_up(self) -> None:
        _problems.info(
            "hung up on a caller that took nothing", key=None, peer=self._caller.context.peer(), bytes=self.size_bytes
        )
        self._answers.handing_over.pop(self, None)
        hang_up(self._caller.task)

    def release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._answers.handing_over.pop(self, None)
        self._charge.let_go()
        self._answers.pass_on()

    @property
    def size_bytes(self) -> int:
        return self._charge.size_bytes


class Answers:
    """All answers that are being made, or wait to be taken."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.turns = Turns()
        self.handing_over: dict[Loan, None] = {}
        """The one that waits longest first."""
        self._turns: dict[asyncio.Future[None], Budget] = {}

    def caller(self, context: CallContext) -> Caller:
        return Caller(context, self.memory)

    def has_room(self, caller: Caller) -> bool:
        return self._has_room(caller.connection)

    def _has_room(self, connection: Budget) -> bool:
        answers = self.memory.answers
        is_half_empty = answers.used_bytes < answers.bytes_max // 2
        return connection.has_room and (is_half_empty or (answers.has_room and connection.used_bytes <= LITTLE_BYTES))

    async def room(self, caller: Caller, *, deadline: float | None = None) -> None:
        """Return when there is room for another answer. Raises LogBusyError if there is none until the deadline."""
        loop = asyncio.get_running_loop()
        while not self.has_room(caller):
            now = loop.time()
            if deadline is not None and now >= deadline:
                raise LogBusyError(
                    "too much waits to be read; take what is there, or try again", retry_after_ms=RETRY_AFTER_MS
                )
            turn: asyncio.Future[None] = loop.create_future()
            self._turns[turn] = caller.connection
            until = now + PATIENCE_S
            try:
                async with asyncio.timeout_at(until if deadline is None else min(until, deadline)):
                    await turn
            except TimeoutError:
                self._hang_up_on_the_slowest(loop.time())
            finally:
                if self._turns.pop(turn, None) is None:
                    self.pass_on()  # in case this one does not use it

    def lend(self, caller: Caller, size_bytes: int) -> Loan:
        """Memory that is taken already: `room` comes before."""
        charge = Charge(self.memory.answers, caller.connection)
        charge.add(size_bytes)
        return Loan(self, caller, charge)

    async def write(self, caller: Caller, message: Message) -> None:
        """Send a message of a stream. Whoever does not take it is hung up on: the task is cancelled."""
        loan = self.lend(caller, COPIES * message.ByteSize() + MESSAGE_BYTES)
        await self.hand_over(caller, message, loan)

    async def hand_over(self, caller: Caller, message: Message | Spliced, loan: Loan) -> None:
        """The same, of what was lent before."""
        loan.hand_over()
        try:
            await caller.context.write(message)
        except grpc.aio.BaseError as error:
            # There is nobody any more; gRPC is about to say so in its own way.
            caller.task.cancel()
            raise asyncio.CancelledError from error
        finally:
            loan.release()

    def keep(self, caller: Caller, loan: Loan) -> None:
        """For the answer of a call that is sent when its handler has returned it, by the same task."""
        loan.hand_over()
        # Not a callback of the context, which would hold itself: what is hung up on must be gone at once.
        caller.task.add_done_callback(lambda _: loan.release())

    def pass_on(self) -> None:
        """There is more room than before."""
        if not self._turns:
            return
        # Whose connection has least, so that nobody comes first by asking often.
        able = [(turn, connection) for turn, connection in self._turns.items() if self._has_room(connection)]
        for turn, _ in sorted(able, key=lambda each: each[1].used_bytes)[:TURNS]:
            del self._turns[turn]
            if not turn.done():
                turn.set_result(None)

    def _hang_up_on_the_slowest(self, now: float) -> None:
        if self.memory.answers.has_room:
            return  # it is the connection's own limit, or there is room for others
        slowest = next(iter(self.handing_over), None)
        if slowest is not None and now - slowest.since >= SLOW_S:
            slowest.hang_up()
