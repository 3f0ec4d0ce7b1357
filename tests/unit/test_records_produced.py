"""What a broker takes from a client, by the header alone."""

from __future__ import annotations

import pytest

from quire.errors import BatchTooLargeError, MalformedBatchError, QuireError, UnsupportedBatchError
from quire.records import (
    PRODUCIBLE_ATTRIBUTES,
    Attributes,
    BatchHeader,
    BatchOptions,
    Codec,
    Lane,
    check_produced,
    encode_columns,
    parse_header,
)


def header(**options: int) -> BatchHeader:
    return parse_header(encode_columns([b"v" * 50] * 3, timestamp_ms=1))._replace(**options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"codec": Codec.GZIP},
        {"codec": Codec.ZSTD, "lane": Lane.LOW, "delayed": True, "has_ttl": True, "traced": True},
        {"producer_id": 0, "producer_epoch": 0, "base_sequence": 0},
        {"producer_id": 7, "producer_epoch": 1, "base_sequence": 9, "transactional": True},
    ],
)
def test_what_our_encoder_makes_is_taken(options: BatchOptions) -> None:
    check_produced(parse_header(encode_columns([b"v" * 50] * 3, timestamp_ms=1, **options)))


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        (0x0080, "reserved"),
        (0x2000, "reserved"),
        (0x4000, "reserved"),
        (-0x8000, "reserved"),
        (Attributes.CONTROL, "control"),
        (Attributes.CONTROL | Attributes.TRANSACTIONAL, "control"),
        (Attributes.LOG_APPEND_TIME, "0x0008"),
        (Attributes.DELETE_HORIZON, "0x0040"),
        (Attributes.LANE_MASK, "lane 3"),
        (5, "codec 5"),
        (6, "codec 6"),
        (7, "codec 7"),
    ],
)
def test_attributes_that_no_client_may_set(attributes: int, why: str) -> None:
    with pytest.raises(UnsupportedBatchError, match=why):
        check_produced(header(attributes=attributes))


def test_every_attribute_value_gets_an_answer() -> None:
    taken = 0
    for attributes in range(-0x8000, 0x8000):
        try:
            check_produced(header_of_producer._replace(attributes=attributes))
        except UnsupportedBatchError:
            continue
        taken += 1
    # codecs x transactional x lanes x delayed, TTL, traced
    assert taken == 5 * 2 * 3 * 2**3


header_of_producer = header(producer_id=1, producer_epoch=0, base_sequence=0)


def test_a_topic_without_a_feature_takes_fewer_bits() -> None:
    delayed = header(attributes=Attributes.DELAYED)
    check_produced(delayed)
    with pytest.raises(UnsupportedBatchError, match="0x0400"):
        check_produced(delayed, attributes_allowed=PRODUCIBLE_ATTRIBUTES & ~Attributes.DELAYED)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"record_count": 0, "last_offset_delta": 0}, MalformedBatchError),
        ({"record_count": 0, "last_offset_delta": -1}, MalformedBatchError),
        ({"record_count": 2}, MalformedBatchError),
        ({"record_count": 4}, MalformedBatchError),
        ({"last_offset_delta": 2**31 - 1}, MalformedBatchError),
        ({"record_count": 2**31 - 1, "last_offset_delta": 2**31 - 2}, BatchTooLargeError),
        ({"record_count": 100, "last_offset_delta": 99}, MalformedBatchError),
        ({"producer_id": 5, "producer_epoch": -1, "base_sequence": 0}, MalformedBatchError),
        ({"producer_id": 5, "producer_epoch": 0, "base_sequence": -1}, MalformedBatchError),
        ({"attributes": Attributes.TRANSACTIONAL}, MalformedBatchError),
    ],
)
def test_contradictions(fields: dict[str, int], error: type[QuireError]) -> None:
    with pytest.raises(error):
        check_produced(header(**fields))


def test_count_limit_is_the_callers() -> None:
    check_produced(header(), record_count_max=3)
    with pytest.raises(BatchTooLargeError):
        check_produced(header(), record_count_max=2)
