"""How much there may be of everything. What goes beyond is refused with LIMIT_EXCEEDED or INVALID_ARGUMENT.

These numbers decide what a command does. Another number is therefore another state machine: it changes with the
feature level only, or members of different versions would differ.
"""

from __future__ import annotations

from typing import Final

from quire.records.header import BATCH_BYTES_MAX

FEATURE_LEVEL_MIN: Final = 1
FEATURE_LEVEL_MAX: Final = 1
"""The levels that this code can work at."""

COMMAND_BYTES_MAX: Final = 2 * 1024 * 1024
PARTITIONS_PER_COMMAND_MAX: Final = 64
"""Of commands with an outcome for each partition, so that a result stays small enough to be remembered."""

CLIENTS_MAX: Final = 1_000
"""Proposers that are remembered. The one that was silent longest is forgotten first."""
RESULTS_PER_CLIENT_MAX: Final = 24
"""Commands that a proposer may have under way at once: so many of its newest sequences are remembered."""
RESULT_BYTES_MAX: Final = 2048
MESSAGE_BYTES_MAX: Final = 512
DETAIL_BYTES_MAX: Final = 128
CLIENT_ID_CHARACTERS_MAX: Final = 128

UUID_BYTES: Final = 16

BROKERS_MAX: Final = 1_000
BROKER_ID_MAX: Final = 2**31 - 1
LISTENERS_MAX: Final = 16
LOG_ENDS_MAX: Final = 50_000
LEASE_MS_MIN: Final = 100
LEASE_MS_MAX: Final = 60_000

TOPICS_MAX: Final = 20_000
PARTITIONS_PER_TOPIC_MAX: Final = 10_000
PARTITIONS_MAX: Final = 200_000
REPLICATION_FACTOR_MAX: Final = 15
DELETED_TOPICS_MAX: Final = 10_000
"""Of more, the one deleted first is forgotten: a broker that was away all the time keeps its files."""
TOPIC_IDS_PER_COMMAND_MAX: Final = 1_000

PRODUCER_IDS_PER_BLOCK_MAX: Final = 1_000_000
PRODUCER_ID_END: Final = 2**62
EPOCH_MAX: Final = 2**31 - 1
OFFSET_MAX: Final = 2**63 - 1

RETENTION_MS_MAX: Final = 100 * 365 * 24 * 3600 * 1000
RETENTION_BYTES_MAX: Final = 2**50
RETENTION_SEGMENTS_MAX: Final = 1_000_000
SEGMENT_BYTES_MIN: Final = 16 * 1024
SEGMENT_BYTES_MAX: Final = 2**31 - 1
FLUSH_INTERVAL_MS_MAX: Final = 3_600_000
MESSAGE_BYTES_MAX_MIN: Final = 1024
MESSAGE_BYTES_MAX_MAX: Final = BATCH_BYTES_MAX - 4096
"""A message travels in a batch, which has a header and may hold record headers beside it."""

RECENT_DELTAS_MAX: Final = 4_096
RECENT_RECORDS_MAX: Final = 100_000
"""What is kept in memory for those who follow. Whoever is further behind gets a snapshot."""

PIECE_BYTES_MAX: Final = 4 * 1024
"""Of a snapshot's pieces, but for a single record that is larger: a proposer's results, up to some 50 KiB."""
