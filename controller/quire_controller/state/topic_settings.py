"""Which settings a topic may have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Final

from quire.errors import InvalidArgumentError
from quire.v1 import metadata_pb2
from quire_controller.state import limits
from quire_controller.state.checks import check_range
from quire_controller.state.codec import read_config
from quire_controller.state.model import UNLIMITED, Flush, FlushMode, Partitioner, TopicConfig

NAMES: Final = tuple(field.name for field in fields(TopicConfig))
DEFAULTS: Final = TopicConfig()

_RANGES: Final = (
    ("segment_bytes", limits.SEGMENT_BYTES_MIN, limits.SEGMENT_BYTES_MAX),
    ("message_bytes_max", limits.MESSAGE_BYTES_MAX_MIN, limits.MESSAGE_BYTES_MAX_MAX),
)
_RETENTIONS: Final = (
    ("retention_ms", limits.RETENTION_MS_MAX),
    ("retention_bytes", limits.RETENTION_BYTES_MAX),
    ("retention_segments", limits.RETENTION_SEGMENTS_MAX),
)


def checked(message: metadata_pb2.TopicConfig, *, replication_factor: int) -> TopicConfig:
    """The settings that a command names, if a topic may have them."""
    try:
        config = read_config(message)
    except ValueError as error:
        raise InvalidArgumentError("partitioner, flush mode or cleanup has a value that does not exist") from error
    if config.min_isr is not None:
        check_range("min_isr", config.min_isr, 1, replication_factor)
    for name, least, most in _RANGES:
        if (value := getattr(config, name)) is not None:
            check_range(name, value, least, most)
    for name, most in _RETENTIONS:
        value = getattr(config, name)
        if value is not None and value != UNLIMITED and not 1 <= value <= most:
            raise InvalidArgumentError(
                f"{name} must lie between 1 and {most}, or be {UNLIMITED} for no limit, not {value}"
            )
    if config.flush is not None:
        _check_flush(config.flush)
    return config


def merged(config: TopicConfig, change: TopicConfig, unset: Iterable[str]) -> TopicConfig:
    """The settings after a change. What is both set and unset is refused."""
    names = tuple(unset)
    for name in names:
        if name not in NAMES:
            raise InvalidArgumentError(f"there is no setting {name[:80]!a}; there are {', '.join(NAMES)}")
        if getattr(change, name) != getattr(DEFAULTS, name):
            raise InvalidArgumentError(f"{name} cannot be set and unset at once")
    given = {name: getattr(change, name) for name in NAMES if getattr(change, name) != getattr(DEFAULTS, name)}
    after = replace(config, **given, **{name: getattr(DEFAULTS, name) for name in names})
    if _partitioner(after) is not _partitioner(config):
        raise InvalidArgumentError("a topic's partitioner cannot be changed: its keys would change partitions")
    return after


def _check_flush(flush: Flush) -> None:
    if flush.mode is FlushMode.INTERVAL:
        check_range("flush.interval_ms", flush.interval_ms or 0, 1, limits.FLUSH_INTERVAL_MS_MAX)
    elif flush.interval_ms is not None:
        raise InvalidArgumentError("flush.interval_ms belongs to the mode 'interval' alone")


def _partitioner(config: TopicConfig) -> Partitioner:
    return config.partitioner or Partitioner.MURMUR3
