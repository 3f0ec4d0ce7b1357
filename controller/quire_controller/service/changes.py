"""From a request that changes something to a command that is carried out once, and from its result to an answer."""

from __future__ import annotations

from typing import Literal, Protocol

from google.protobuf.message import DecodeError

from quire.errors import InvalidArgumentError, OutcomeUnknownError, QuireError
from quire.v1 import commands_pb2, controller_pb2
from quire_controller.runtime.controller import ControllerRuntime
from quire_controller.service import calls
from quire_controller.state.machine import ControllerState
from quire_controller.state.results import error_of
from quire_controller.state.sessions import client_of, earlier_result


class ChangeRequest(Protocol):
    """What all requests that change something have."""

    @property
    def change_id(self) -> controller_pb2.ChangeId: ...

    def HasField(self, field_name: Literal["change_id"], /) -> bool: ...


class Change:
    """One request's change. Without a change id it goes under this process's own name, once."""

    def __init__(self, runtime: ControllerRuntime, state: ControllerState, request: ChangeRequest | None) -> None:
        """Raises InvalidArgumentError for half a change id."""
        self._runtime = runtime
        self._state = state
        self._is_callers = request is not None and request.HasField("change_id")
        if request is None or not self._is_callers:
            self.command = runtime.internal_command()
            return
        change_id = request.change_id
        self.command = commands_pb2.Command(
            client_id=change_id.client_id,
            client_incarnation=change_id.client_incarnation,
            sequence=change_id.sequence,
        )
        if client_of(self.command) is None:
            raise InvalidArgumentError("the change id is empty; leave it out, or fill in all of it")

    async def look(self) -> commands_pb2.CommandResult | None:
        """Bring this member's state up to date, and give what the change was answered when it came first.

        To be called where a request means what the state says now, say a topic by its name: asked again, it may mean
        nothing any more, and must be answered as it was.
        """
        await calls.read(self._runtime)
        if not self._is_callers:
            return None
        key = client_of(self.command)
        session = None if key is None else self._state.tables.sessions.get(key)
        remembered = earlier_result(session, self.command.sequence)
        if remembered is None:
            return None
        try:
            return commands_pb2.CommandResult.FromString(remembered)
        except DecodeError as error:
            raise OutcomeUnknownError("the remembered result does not decode") from error

    async def submit(self, expected: str) -> commands_pb2.CommandResult:
        """Carry out `command`. `expected` is the outcome that such commands have; an error is raised."""
        # A field of a newer client would make every member refuse the command, whatever it means.
        self.command.DiscardUnknownFields()
        try:
            result = await calls.submit(self._runtime, self.command)
        except OutcomeUnknownError as error:
            if self._is_callers:
                raise
            raise OutcomeUnknownError(
                f"{error.message}; this call had no change id, so look at what it was to change before you repeat it"
            ) from error
        return checked(result, expected)


def checked(result: commands_pb2.CommandResult, expected: str) -> commands_pb2.CommandResult:
    """The result, if the command was carried out and was what the caller believes. Raises its error else."""
    error: QuireError | None = error_of(result)
    if error is not None:
        raise error
    if result.WhichOneof("outcome") != expected:
        raise InvalidArgumentError("this change id was used for a change of another kind; count on from there")
    return result
