"""The toy as the quorum's state machine: commands, results and snapshots are bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Final

from quire.errors import DamagedFileError
from tests.raftkill.toy import Toy

PIECE_VALUES: Final = 64
"""How many values a snapshot's piece has: some 64 KiB when each has 1,000 bytes."""


def encode_command(client: str, seq: int, value: str) -> bytes:
    return json.dumps([client, seq, value]).encode()


def decode_result(result: bytes) -> int:
    return int(result)


class ToyMachine:
    """A `quire_controller.ports.StateMachine`. The result of a command is the index at which it was applied first."""

    def __init__(self) -> None:
        self._toy = Toy()

    @property
    def values(self) -> tuple[str, ...]:
        return tuple(self._toy.values)

    def apply(self, index: int, command: bytes) -> bytes:
        client, seq, value = json.loads(command)
        return b"%d" % self._toy.apply(index=index, client=client, seq=seq, value=value)

    def freeze(self) -> Iterator[bytes]:
        # Copied now: a generator would look at the state when it is first asked.
        return _encode(dict(self._toy.last), tuple(self._toy.values))

    def restore(self, pieces: Iterable[bytes]) -> None:
        toy = Toy()
        try:
            first, *rest = (json.loads(piece) for piece in pieces)
            toy.last = {client: (seq, index) for client, (seq, index) in first.items()}
            toy.values = [value for values in rest for value in values]
        except (ValueError, AttributeError, TypeError) as error:
            raise DamagedFileError(f"this is no snapshot of the toy: {error}") from error
        self._toy = toy


def _encode(last: dict[str, tuple[int, int]], values: tuple[str, ...]) -> Iterator[bytes]:
    yield json.dumps(last).encode()
    for start in range(0, len(values), PIECE_VALUES):
        yield json.dumps(values[start : start + PIECE_VALUES]).encode()
