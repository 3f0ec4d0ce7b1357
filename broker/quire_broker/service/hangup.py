"""Hanging up on a caller: what it has not taken is forgotten, here and in gRPC.

grpc.aio has no call for that. It keeps a call, with the message that is being sent, until the other side closes it,
and the other side need not: to abort a call, or to end its handler, changes nothing as long as a message waits. What
lets go of it is the end of both tasks that serve it: the one that runs the handler, and the one that has begun that
and waits for the close. The second is not to be had from a handler, so tasks are watched as they are made.

A version of gRPC that does this differently makes `hang_up` end the handler alone; a test would notice.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Coroutine, Generator
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

HANDLING: Final = "_handle_exceptions"
"""The coroutine of gRPC's that runs a handler."""

_Task = asyncio.Task[Any]
_waiting_for: Final[WeakKeyDictionary[_Task, ref[_Task]]] = WeakKeyDictionary()
"""The task that waits for the close, by the one that runs the handler. Weak both, as the one holds the other."""


def install(loop: asyncio.AbstractEventLoop) -> None:
    """Watch the tasks of this loop, from now on."""
    loop.set_task_factory(_make_task)


def hang_up(task: _Task) -> None:
    """End the call that `task` handles, or has handled and is being answered."""
    waiting = _waiting_for.get(task)
    if waiting is not None and (other := waiting()) is not None:
        other.cancel()
    task.cancel()


async def untraced(serving: Awaitable[None]) -> None:
    """Serve a stream. If it is cancelled, nothing remembers where.

    A task group holds the exception whose traceback holds the task group's frame: both would stay, with the call and
    all that it was being sent, until Python looks for cycles. That may be long after it was hung up on.
    """
    try:
        await serving
    except asyncio.CancelledError as error:
        raise error.with_traceback(None)  # noqa: B904  # it is the same one


def _make_task(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
    *,
    context: contextvars.Context | None = None,
) -> _Task:
    task: _Task = asyncio.Task(work, loop=loop, context=context)
    if getattr(work, "__name__", "") == HANDLING and (maker := asyncio.current_task(loop)) is not None:
        _waiting_for[task] = ref(maker)
    return task
