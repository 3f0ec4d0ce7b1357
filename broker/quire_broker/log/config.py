"""The settings of one log. Defaults are those of a topic that sets nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, Literal

from quire.errors import InvalidArgumentError
from quire.records.header import BATCH_BYTES_MAX

INDEX_NUMBER_MAX: Final = 2**32 - 1
"""Positions and relative offsets have four bytes in an index."""


@dataclass(frozen=True, slots=True)
class FlushPolicy:
    """When an append counts as done: after `fdatasync`, or when written with a sync soon or never."""

    kind: Literal["fsync", "interval", "os"] = "fsync"
    interval_ms: int = 0

    @classmethod
    def parse(cls, text: str) -> FlushPolicy:
        """`fsync`, `os` or `interval(<milliseconds>)`."""
        if text == "fsync":
            return cls("fsync")
        if text == "os":
            return cls("os")
        match = re.fullmatch(r"interval\(([1-9]\d{0,8})\)", text)
        if match:
            return cls("interval", int(match[1]))
        raise InvalidArgumentError(f"no flush policy {text!r}; say fsync, os or interval(<ms>), e.g. interval(100)")

    def __str__(self) -> str:
        return f"interval({self.interval_ms})" if self.kind == "interval" else self.kind


@dataclass(frozen=True, slots=True)
class LogConfig:
    segment_bytes: int = 64 * 1024 * 1024
    """A segment is rolled before it grows past this; a single larger batch gets a segment of its own."""
    segment_ms: int = 7 * 24 * 3600 * 1000
    """A segment is rolled when its first append is this long ago."""
    index_interval_bytes: int = 4096
    """At most this much is walked over, header by header, to find a batch."""
    checkpoint_bytes: int = 4 * 1024 * 1024
    """The recovery point follows after this much was synced: what a crash leaves to be scanned."""
    batch_bytes_max: int = 1024 * 1024 + 4096
    """The largest batch that is taken."""
    retention_ms: int | None = 7 * 24 * 3600 * 1000
    retention_bytes: int | None = None
    retention_segments: int | None = None
    producers_max: int = 100_000
    """Idempotent producers remembered at once; the one that was silent longest is forgotten first."""
    producer_expiry_ms: int = 24 * 3600 * 1000
    """An idempotent producer that was silent for this long is forgotten."""
    open_files_max: int = 8
    """Sealed segments kept open at once."""
    flush: FlushPolicy = field(default_factory=FlushPolicy)

    def __post_init__(self) -> None:
        for name in (
            *("segment_bytes", "segment_ms", "index_interval_bytes", "checkpoint_bytes"),
            *("producers_max", "producer_expiry_ms", "open_files_max"),
        ):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.segment_bytes > INDEX_NUMBER_MAX - BATCH_BYTES_MAX:
            raise InvalidArgumentError(f"segment_bytes can be at most {INDEX_NUMBER_MAX - BATCH_BYTES_MAX}")
        if not 61 < self.batch_bytes_max <= BATCH_BYTES_MAX:
            raise InvalidArgumentError(f"batch_bytes_max must lie between 62 and {BATCH_BYTES_MAX}")
        for name in ("retention_ms", "retention_bytes", "retention_segments"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InvalidArgumentError(f"{name} must not be negative; leave it out for no limit")
