"""What a broker checks of a batch that a client sent: the header, and nothing behind it."""

from __future__ import annotations

from typing import Final

from quire.errors import BatchTooLargeError, MalformedBatchError, UnsupportedBatchError
from quire.records.header import HEADER_BYTES, RECORD_BYTES_MIN, Attributes, BatchHeader, Codec
from quire.records.limits import RECORD_COUNT_MAX

PRODUCIBLE_ATTRIBUTES: Final = (
    Attributes.CODEC_MASK
    | Attributes.TRANSACTIONAL
    | Attributes.LANE_MASK
    | Attributes.DELAYED
    | Attributes.HAS_TTL
    | Attributes.TRACED
)
"""The bits that a client may set. Append time, control and delete horizon are the broker's to say."""

_CODEC_MAX: Final = max(Codec)
_LANE_RESERVED: Final = Attributes.LANE_MASK


def check_produced(
    header: BatchHeader,
    *,
    attributes_allowed: int = PRODUCIBLE_ATTRIBUTES,
    record_count_max: int = RECORD_COUNT_MAX,
) -> None:
    """Refuse a batch that no client may send. A topic or cluster without some feature passes fewer attribute bits.

    Whatever passes can be stored as it is. Records are not looked at, so they may still not decode.
    """
    attributes = header.attributes
    if (
        attributes & ~attributes_allowed
        or attributes & Attributes.CODEC_MASK > _CODEC_MAX
        or attributes & _LANE_RESERVED == _LANE_RESERVED
    ):
        _refuse_attributes(attributes, attributes_allowed)
    count = header.record_count
    # The broker gives out last_offset_delta + 1 offsets: with fewer records behind them there would be holes, with
    # none a batch that takes room and offsets and holds nothing.
    if count < 1 or count != header.last_offset_delta + 1:
        raise MalformedBatchError(
            f"batch of {count} records has last offset delta {header.last_offset_delta}; it must have at least one"
            " record and be contiguous",
            record_count=count,
        )
    if count > record_count_max:
        raise BatchTooLargeError(
            f"batch of {count} records is over the limit of {record_count_max}; send smaller batches",
            record_count=count,
            limit=record_count_max,
        )
    if not attributes & Attributes.CODEC_MASK and count * RECORD_BYTES_MIN > header.size_bytes - HEADER_BYTES:
        raise MalformedBatchError(f"batch claims {count} records in {header.size_bytes - HEADER_BYTES} bytes")
    if header.producer_id >= 0:
        if header.producer_epoch < 0 or header.base_sequence < 0:
            raise MalformedBatchError(
                f"batch of producer {header.producer_id} lacks an epoch or a sequence",
                producer_id=header.producer_id,
            )
    elif attributes & Attributes.TRANSACTIONAL:
        raise MalformedBatchError("a transactional batch must name its producer")


def _refuse_attributes(attributes: int, allowed: int) -> None:
    """Say which bit it was; only reached when one is wrong."""
    if attributes & ~Attributes.KNOWN:
        what = f"sets reserved attribute bits {attributes & ~Attributes.KNOWN & 0xFFFF:#06x}"
    elif attributes & Attributes.CONTROL:
        what = "is a control batch, which only a broker may write"
    elif attributes & ~allowed:
        what = f"sets attribute bits {attributes & ~allowed:#06x}, which this log does not take from clients"
    elif attributes & _LANE_RESERVED == _LANE_RESERVED:
        what = "is on lane 3, which is reserved"
    else:
        what = f"is compressed with codec {attributes & Attributes.CODEC_MASK}, which nothing here knows"
    raise UnsupportedBatchError(f"batch {what}", attributes=f"{attributes & 0xFFFF:#06x}")
