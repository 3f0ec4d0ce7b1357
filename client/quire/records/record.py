"""What decoding a batch gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

Header = tuple[str, bytes | None]
"""A record header: its key and its value."""


class Record(Protocol):
    """One record, read only.

    A protocol, not a class: the objects come from the Cython decoder as they are, because copying them into a type of
    our own would more than halve the rate (docs/adr/0001-record-codec.md). They compare by identity.
    """

    @property
    def offset(self) -> int:
        """The record's place in its partition."""

    @property
    def timestamp(self) -> int:
        """Milliseconds since the epoch: when it was created, or appended if the batch says so."""

    @property
    def key(self) -> bytes | None: ...

    @property
    def value(self) -> bytes | None: ...

    @property
    def headers(self) -> Sequence[Header]: ...
