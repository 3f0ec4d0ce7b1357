"""ProduceStream: many requests on one stream, carried out in their order, answered as soon as they can be."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, TypeAlias

from quire.errors import QuireError, UnavailableError
from quire.refusals import refusal_of
from quire.v1 import broker_pb2
from quire_broker.service.answers import MESSAGE_BYTES, Answers, CallContext, Caller, Loan
from quire_broker.service.produce import Producing, Work
from quire_broker.service.wire import Received

UNANSWERED_MAX: Final = 1_000
"""Requests of one stream that are not answered yet. More are not read until answers are taken."""

_Request: TypeAlias = "Received[broker_pb2.ProduceStreamRequest]"


class ProduceStreams:
    """All of them."""

    def __init__(self, producing: Producing, answers: Answers) -> None:
        self.producing = producing
        self.answers = answers
        self._streams: dict[_Stream, None] = {}

    def stop(self) -> None:
        """Take nothing more. What was taken is answered, then the streams end."""
        self.producing.stop()
        for stream in list(self._streams):
            stream.stop()

    async def serve(self, context: CallContext) -> None:
        stream = _Stream(self, self.answers.caller(context))
        self._streams[stream] = None
        try:
            if self.producing.stopping:
                stream.stop()
            await stream.run()
        finally:
            del self._streams[stream]
            stream.close()


class _Stream:
    def __init__(self, owner: ProduceStreams, caller: Caller) -> None:
        self._producing = owner.producing
        self._answers = owner.answers
        self._caller = caller
        self._ready: deque[tuple[broker_pb2.ProduceStreamResponse, Loan]] = deque()
        self._something = asyncio.Event()
        self._unanswered = 0
        self._fewer = asyncio.Event()
        self._under_way: dict[Work, None] = {}
        self._group: asyncio.TaskGroup | None = None
        self._reading: asyncio.Task[None] | None = None
        self._failure: QuireError | None = None
        self._ended = False
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True
        if self._reading is not None:
            self._reading.cancel()

    def close(self) -> None:
        """Nobody is answered any more. A task may end without having begun: so what it holds is given back here."""
        # A cancelled task has this stream in its traceback: they would hold each other, and what was being sent.
        self._reading = self._group = None
        for work in self._under_way:
            work.finished()
            work.answering.let_go()
        for _, loan in self._ready:
            loan.release()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._group = group
            writing = group.create_task(self._write(), name="produce-answers")
            self._reading = group.create_task(self._read(), name="produce-requests")
            if self._stopped:
                self._reading.cancel()
            await asyncio.wait([self._reading])
            while self._unanswered:
                self._fewer.clear()
                await self._fewer.wait()
            self._ended = True
            self._something.set()
            await writing
        if self._failure is not None:
            raise self._failure
        if self._stopped:
            raise UnavailableError("this broker is stopping; find the partitions' leaders anew")

    async def _read(self) -> None:
        try:
            while True:
                request: _Request | None = await self._caller.read(Received)
                if request is None:
                    return
                while self._unanswered >= UNANSWERED_MAX:
                    self._fewer.clear()
                    await self._fewer.wait()
                await self._take(request)
        except QuireError as error:
            self._failure = error  # what came before it is answered first

    async def _take(self, request: _Request) -> None:
        """Begin to carry out a request. The next one is read after that, so they stay in their order."""
        group = self._group
        if group is None:
            raise RuntimeError("a request before the stream")
        try:
            work = self._producing.take(request, self._caller)
            self._under_way[work] = None
            try:
                await self._producing.hand_over(request, work)
            except QuireError:
                self._give_back(work)
                raise
        except QuireError as error:
            refused = broker_pb2.ProduceStreamResponse(
                correlation_id=request.message.correlation_id, refusal=refusal_of(error)
            )
            self._answer(refused, self._answers.lend(self._caller, MESSAGE_BYTES))
        else:
            group.create_task(self._finish(request.message.correlation_id, work), name="produce-request")
        self._unanswered += 1

    async def _finish(self, correlation_id: int, work: Work) -> None:
        deadline = asyncio.get_running_loop().time() + work.wait_ms_max / 1000
        stored = await self._producing.finish(work, deadline=deadline)
        answer = broker_pb2.ProduceStreamResponse(correlation_id=correlation_id, partitions=stored)
        del self._under_way[work]
        work.finished()
        self._answer(answer, self._producing.answer(work, answer, self._caller))

    def _give_back(self, work: Work) -> None:
        del self._under_way[work]
        work.finished()
        work.answering.let_go()

    def _answer(self, answer: broker_pb2.ProduceStreamResponse, loan: Loan) -> None:
        self._ready.append((answer, loan))
        self._something.set()

    async def _write(self) -> None:
        while True:
            while self._ready:
                answer, loan = self._ready.popleft()
                await self._answers.hand_over(self._caller, answer, loan)
                self._unanswered -= 1
                self._fewer.set()
            if self._ended:
                return
            self._something.clear()
            await self._something.wait()
