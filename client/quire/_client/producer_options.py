"""What a producer may be told, and what it does unless told otherwise."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, Literal

from quire._client.arguments import check_choice, check_whole
from quire._client.options import MS_MAX
from quire._client.partitioners import Chooser, RoundRobin, checked
from quire._client.produce_link import ACKS
from quire._client.producing import ProducerOptions
from quire.errors import InvalidArgumentError
from quire.records import Codec

AcksArgument = Literal["all", "leader", "none"]
CompressionArgument = Literal["none", "gzip", "snappy", "lz4", "zstd"]
PartitionerArgument = Literal["key", "sticky", "round-robin"] | Callable[[bytes | None, int], int]

LINGER_MS: Final = 0.0
LINGER_MS_MAX: Final = 60_000
BATCH_BYTES: Final = 256 * 1024
BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
"""A batch's records are counted with 32 bytes more than they hold, so that is as many as a batch may have."""
BUFFER_BYTES: Final = 64 * 1024 * 1024
BUFFER_WAIT_MS_MAX: Final = 60_000
DELIVERY_MS_MAX: Final = 120_000


def producer_options(
    *,
    acks: str,
    compression: str,
    linger_ms: float,
    batch_bytes: int,
    buffer_bytes: int,
    buffer_wait_ms_max: int,
    delivery_ms_max: int,
    idempotent: bool,
    partitioner: PartitionerArgument | None,
) -> ProducerOptions:
    """Raises InvalidArgumentError for what makes no sense."""
    if isinstance(linger_ms, bool) or not isinstance(linger_ms, int | float) or not 0 <= linger_ms <= LINGER_MS_MAX:
        raise InvalidArgumentError(f"linger_ms is to be a number from 0 to {LINGER_MS_MAX}, not {linger_ms!r}")
    by_key, choose = _partitioner(partitioner)
    return ProducerOptions(
        acks=ACKS[check_choice("acks", acks, ACKS)],
        codec=Codec[check_choice("compression", compression, [codec.name.lower() for codec in Codec]).upper()],
        linger_ms=linger_ms,
        batch_bytes=check_whole("batch_bytes", batch_bytes, 1, BATCH_BYTES_MAX),
        buffer_bytes=check_whole("buffer_bytes", buffer_bytes, 1, 1 << 40),
        buffer_wait_ms_max=check_whole("buffer_wait_ms_max", buffer_wait_ms_max, 0, MS_MAX),
        delivery_ms_max=check_whole("delivery_ms_max", delivery_ms_max, 100, MS_MAX),
        idempotent=bool(idempotent),
        by_key=by_key,
        choose=choose,
    )


def _partitioner(partitioner: PartitionerArgument | None) -> tuple[bool, Callable[[], Chooser] | None]:
    """Whether the topic decides for records with keys, and what decides for all others."""
    if callable(partitioner):
        chosen = checked(partitioner)
        return False, lambda: chosen
    match check_choice("partitioner", partitioner or "key", ("key", "sticky", "round-robin")):
        case "key":
            return True, None
        case "sticky":
            return False, None
        case _:
            return False, lambda: RoundRobin(random.randrange(1 << 16))
