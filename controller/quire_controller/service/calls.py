"""The runtime's callbacks as coroutines that end when the caller's deadline does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from quire.errors import OutcomeUnknownError, QuireError, UnavailableError
from quire.process.rpc.context import current
from quire.v1 import commands_pb2
from quire_controller.runtime.controller import ControllerRuntime, Heartbeat

T = TypeVar("T")


async def submit(runtime: ControllerRuntime, command: commands_pb2.Command) -> commands_pb2.CommandResult:
    """What became of the command; whether it was carried out is in the result. Raises OutcomeUnknownError, too."""
    if asyncio.get_running_loop().time() >= current().deadline:
        raise UnavailableError("the call's deadline passed before anything was done")
    try:
        return await _answer(lambda callback: runtime.submit(command, callback))
    except TimeoutError as error:
        raise OutcomeUnknownError(
            "the call's deadline passed before the quorum answered; ask again with the same change id, or look at "
            "what it was to change"
        ) from error


async def read(runtime: ControllerRuntime) -> None:
    """What is read of the state after this is no older than the call."""
    try:
        await _answer(runtime.read)
    except TimeoutError as error:
        raise UnavailableError("the quorum did not confirm the read before the call's deadline") from error


async def heartbeat(
    runtime: ControllerRuntime, *, broker_id: int, broker_epoch: int, applied_version: int
) -> Heartbeat:
    try:
        return await _answer(
            lambda callback: runtime.heartbeat(
                broker_id=broker_id, broker_epoch=broker_epoch, applied_version=applied_version, callback=callback
            )
        )
    except TimeoutError as error:
        raise UnavailableError("the quorum did not confirm the heartbeat before the call's deadline") from error


async def _answer(ask: Callable[[Callable[[T | QuireError], None]], None]) -> T:
    answered: asyncio.Future[T | QuireError] = asyncio.get_running_loop().create_future()

    def tell(outcome: T | QuireError) -> None:
        if not answered.done():  # the caller may have hung up
            answered.set_result(outcome)

    ask(tell)
    async with asyncio.timeout_at(current().deadline):
        outcome = await answered
    if isinstance(outcome, QuireError):
        raise outcome
    return outcome
