"""What a feature keeps beside a segment: a fold over the headers of its batches.

Since it can be made again from the segment, it is never trusted further than its checksum, and never a reason to
refuse a segment.
"""

from __future__ import annotations

from typing import Protocol

from quire.records.header import BatchHeader


class Sidecar(Protocol):
    """The state for one segment."""

    def observe(self, header: BatchHeader, position: int) -> None:
        """Take note of a batch, in the order of the log."""

    def to_bytes(self) -> bytes: ...


class SidecarKind(Protocol):
    """A sort of sidecar. `name` is the suffix of its files: lower-case letters and dashes."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int: ...

    def new(self) -> Sidecar: ...

    def from_bytes(self, data: bytes) -> Sidecar:
        """The state that `to_bytes` gave; ValueError where it is not that of this version."""
