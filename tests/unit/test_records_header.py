"""The batch header: what is read, what is refused, what a broker may patch."""

from __future__ import annotations

import pytest

from quire.errors import BatchTooLargeError, ChecksumMismatchError, MalformedBatchError
from quire.records import (
    BATCH_BYTES_MAX,
    HEADER_BYTES,
    Lane,
    check_crc,
    encode_columns,
    iter_batches,
    make_prefix,
    pack_batch,
    parse_batch,
    parse_header,
    patch,
)
from quire.records.header import pack_header

BATCH = encode_columns([b"one", b"two"], timestamp_ms=1_000, producer_id=7, producer_epoch=3, base_sequence=11)


def test_header_reads_what_was_written() -> None:
    header = parse_batch(BATCH)
    assert header.size_bytes == len(BATCH)
    assert (header.base_offset, header.end_offset, header.record_count) == (0, 2, 2)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 11)
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (1_000, 1_000)
    assert (header.codec, header.lane) == (0, Lane.NORMAL)
    assert not header.is_control
    assert not header.is_transactional
    assert pack_header(header) == BATCH[:HEADER_BYTES]
    assert pack_batch(header, BATCH[HEADER_BYTES:]) == BATCH


def test_patching_offset_and_epoch_keeps_the_crc() -> None:
    patched = bytearray(BATCH)
    patch(patched, base_offset=1 << 40, leader_epoch=9)
    header = parse_batch(patched)
    assert (header.base_offset, header.leader_epoch) == (1 << 40, 9)
    assert patched[16:] == BATCH[16:]
    assert patched[:16] == make_prefix(base_offset=1 << 40, length=header.length, leader_epoch=9)


def test_batches_end_to_end_are_walked() -> None:
    found = list(iter_batches(BATCH * 3))
    assert [position for position, _ in found] == [0, len(BATCH), 2 * len(BATCH)]
    with pytest.raises(MalformedBatchError):
        list(iter_batches(BATCH + BATCH[:-1]))


@pytest.mark.parametrize("bit", range(8 * (len(BATCH) - 21)))
def test_every_flipped_bit_under_the_crc_is_seen(bit: int) -> None:
    damaged = bytearray(BATCH)
    damaged[21 + bit // 8] ^= 1 << bit % 8
    header = parse_header(BATCH)
    with pytest.raises(ChecksumMismatchError):
        check_crc(damaged, header)


@pytest.mark.parametrize(
    ("at", "field", "error"),
    [
        (16, b"\x01", MalformedBatchError),  # an older format
        (8, (48).to_bytes(4, "big"), MalformedBatchError),  # shorter than its header
        (8, b"\xff\xff\xff\xff", MalformedBatchError),
        (8, (BATCH_BYTES_MAX).to_bytes(4, "big"), BatchTooLargeError),
        (8, (len(BATCH) - 11).to_bytes(4, "big"), MalformedBatchError),  # longer than the buffer
        (23, b"\xff\xff\xff\xff", MalformedBatchError),
        (57, b"\xff\xff\xff\xff", MalformedBatchError),
    ],
)
def test_lying_headers_are_refused(at: int, field: bytes, error: type[MalformedBatchError]) -> None:
    damaged = bytearray(BATCH)
    damaged[at : at + len(field)] = field
    with pytest.raises(error):
        parse_batch(damaged)


def test_less_than_a_header_is_refused() -> None:
    for size in range(HEADER_BYTES):
        with pytest.raises(MalformedBatchError):
            parse_header(BATCH[:size])
