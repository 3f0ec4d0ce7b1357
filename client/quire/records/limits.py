"""What a batch may cost the one who reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from quire.records.header import BATCH_BYTES_MAX

RECORD_COUNT_MAX: Final = 1 << 18
"""A record of 7 bytes becomes some 200 in memory, so bytes alone would let a small batch take gigabytes."""

PLAIN_BYTES_MAX: Final = 4 * BATCH_BYTES_MAX
"""No batch's records are larger once decompressed. All four codecs can shrink a gigabyte to a few kilobytes."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one batch. A reader with less room than the defaults lowers them."""

    batch_bytes_max: int = BATCH_BYTES_MAX
    record_count_max: int = RECORD_COUNT_MAX
    plain_bytes_max: int = PLAIN_BYTES_MAX


DEFAULT_LIMITS: Final = Limits()
