"""Kafka v2 record batches: what Quire stores, replicates and fetches."""

from quire.records.assemble import BatchOptions
from quire.records.builder import BatchBuilder
from quire.records.columns import encode_columns
from quire.records.decoder import decode
from quire.records.header import (
    BATCH_BYTES_MAX,
    HEADER_BYTES,
    Attributes,
    BatchHeader,
    Codec,
    Lane,
    check_crc,
    iter_batches,
    make_prefix,
    pack_batch,
    parse_batch,
    parse_header,
    patch,
)
from quire.records.limits import DEFAULT_LIMITS, PLAIN_BYTES_MAX, RECORD_COUNT_MAX, Limits
from quire.records.produced import PRODUCIBLE_ATTRIBUTES, check_produced
from quire.records.record import Header, Record

__all__ = [
    "BATCH_BYTES_MAX",
    "DEFAULT_LIMITS",
    "HEADER_BYTES",
    "PLAIN_BYTES_MAX",
    "PRODUCIBLE_ATTRIBUTES",
    "RECORD_COUNT_MAX",
    "Attributes",
    "BatchBuilder",
    "BatchHeader",
    "BatchOptions",
    "Codec",
    "Header",
    "Lane",
    "Limits",
    "Record",
    "check_crc",
    "check_produced",
    "decode",
    "encode_columns",
    "iter_batches",
    "make_prefix",
    "pack_batch",
    "parse_batch",
    "parse_header",
    "patch",
]
