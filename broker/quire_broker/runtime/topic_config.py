"""From a topic's settings to those of its logs."""

from __future__ import annotations

from typing import Final

from quire.records.header import BATCH_BYTES_MAX
from quire.v1 import durability_pb2, metadata_pb2
from quire_broker.log.config import FlushPolicy, LogConfig

DEFAULTS: Final = LogConfig()
BATCH_OVERHEAD_BYTES: Final = 4096
"""What a batch of one message of the largest size may have beside it: header, key, headers."""
MESSAGE_BYTES_MAX: Final = DEFAULTS.batch_bytes_max - BATCH_OVERHEAD_BYTES
UNLIMITED: Final = -1


def message_bytes_max(config: metadata_pb2.TopicConfig) -> int:
    return config.message_bytes_max if config.HasField("message_bytes_max") else MESSAGE_BYTES_MAX


def min_isr(topic: metadata_pb2.Topic) -> int:
    """How many replicas are to be in sync for records to be committed."""
    return topic.config.min_isr if topic.config.HasField("min_isr") else topic.replication_factor // 2 + 1


def may_lose(config: metadata_pb2.TopicConfig) -> bool:
    """Whether committed records can be lost, as the topic's owner has chosen."""
    return config.unclean_election or _flush(config.flush).kind != "fsync"


def log_config(config: metadata_pb2.TopicConfig) -> LogConfig:
    """Settings that are absent have the log's defaults, which are those that the contract names."""
    return LogConfig(
        segment_bytes=config.segment_bytes if config.HasField("segment_bytes") else DEFAULTS.segment_bytes,
        batch_bytes_max=min(message_bytes_max(config) + BATCH_OVERHEAD_BYTES, BATCH_BYTES_MAX),
        retention_ms=_limit(config, "retention_ms", DEFAULTS.retention_ms),
        retention_bytes=_limit(config, "retention_bytes", DEFAULTS.retention_bytes),
        retention_segments=_limit(config, "retention_segments", DEFAULTS.retention_segments),
        flush=_flush(config.flush),
    )


def _limit(config: metadata_pb2.TopicConfig, name: str, default: int | None) -> int | None:
    if not config.HasField(name):  # type: ignore[arg-type]  # one of three names that are spelled above
        return default
    value: int = getattr(config, name)
    return None if value == UNLIMITED else value


def _flush(flush: durability_pb2.FlushPolicy) -> FlushPolicy:
    if flush.mode == durability_pb2.FLUSH_MODE_INTERVAL:
        return FlushPolicy("interval", flush.interval_ms)
    return FlushPolicy("os" if flush.mode == durability_pb2.FLUSH_MODE_OS else "fsync")
