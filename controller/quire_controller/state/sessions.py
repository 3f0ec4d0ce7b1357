"""Commands that come twice, and are carried out once.

A proposer numbers its commands from 1, under an id and the incarnation of its process. Of its newest sequences the
results are remembered, so commands may overtake each other as long as no more than RESULTS_PER_CLIENT_MAX are under
way. A sequence that is older than those is refused: whether it was carried out is not known any more.
"""

from __future__ import annotations

from quire.errors import DuplicateCommandError, InvalidArgumentError
from quire.v1 import commands_pb2
from quire_controller.state import limits
from quire_controller.state.model import ClientKey, Session


def client_of(command: commands_pb2.Command) -> ClientKey | None:
    """Who proposes; None for a command that may be carried out twice. Raises InvalidArgumentError for half a name."""
    if not (command.client_id or command.client_incarnation or command.sequence):
        return None
    if (
        not 0 < len(command.client_id) <= limits.CLIENT_ID_CHARACTERS_MAX
        or len(command.client_incarnation) != limits.UUID_BYTES
        or not command.sequence
    ):
        raise InvalidArgumentError(
            f"a command that is to be carried out once needs a client id of 1 to {limits.CLIENT_ID_CHARACTERS_MAX} "
            f"letters, an incarnation of {limits.UUID_BYTES} bytes and a sequence from 1 on"
        )
    return ClientKey(command.client_id, command.client_incarnation)


def earlier_result(session: Session | None, sequence: int) -> bytes | None:
    """What the command was answered when it came first; None if it never came."""
    if session is None:
        return None
    for remembered, result in session.results:
        if remembered == sequence:
            return result
    newest = session.results[-1][0]
    if sequence <= newest - limits.RESULTS_PER_CLIENT_MAX:
        raise DuplicateCommandError(
            f"command {sequence} of {session.key.client_id!a} is {limits.RESULTS_PER_CLIENT_MAX} or more behind "
            f"its newest, {newest}: it may have been carried out before; look at what it was to change",
            sequence=sequence,
            newest=newest,
        )
    return None


def with_result(session: Session | None, key: ClientKey, *, sequence: int, result: bytes, index: int) -> Session:
    """The session after one more command."""
    results = () if session is None else session.results
    if results and sequence < results[-1][0]:
        results = tuple(sorted((*results, (sequence, result))))
    else:
        results = (*results, (sequence, result))
    oldest = results[-1][0] - limits.RESULTS_PER_CLIENT_MAX
    kept = 0
    while results[kept][0] <= oldest:
        kept += 1
    return Session(key=key, index=index, results=results[kept:])
