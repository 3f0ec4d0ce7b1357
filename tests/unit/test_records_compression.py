"""The codecs alone: what comes out is bounded, whatever goes in."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
import zlib

import cramjam
import lz4.frame
import pytest
import zstandard

from quire.errors import BatchTooLargeError, InvalidArgumentError, PoisonBatchError
from quire.records import Codec, parse_batch
from quire.records.compression import compress, decompress
from tests.unit.records_bombs import BOMBS
from tests.unit.records_crafting import batch_around

PLAIN = b"".join(b'{"id":%d,"total":%d}' % (i, i * 7919 % 1000) for i in range(20_000))
CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
XERIAL = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"


def inflate(codec: Codec, data: bytes, limit: int = 1 << 22) -> bytes:
    return bytes(decompress(codec, data, plain_bytes_max=limit))


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("size", [0, 1, 100, 32 * 1024, 32 * 1024 + 1, len(PLAIN)])
def test_round_trip(codec: Codec, size: int) -> None:
    assert inflate(codec, compress(codec, PLAIN[:size])) == PLAIN[:size]


@pytest.mark.parametrize("codec", list(Codec))
def test_the_limit_is_exact(codec: Codec) -> None:
    data = compress(codec, PLAIN)
    assert inflate(codec, data, len(PLAIN)) == PLAIN
    with pytest.raises(BatchTooLargeError):
        inflate(codec, data, len(PLAIN) - 1)


@pytest.mark.parametrize("codec", CODECS)
def test_the_same_bytes_every_time(codec: Codec) -> None:
    assert compress(codec, PLAIN) == compress(codec, memoryview(bytearray(PLAIN)))


def test_codecs_by_number() -> None:
    for codec in Codec:
        assert compress(int(codec), PLAIN) == compress(codec, PLAIN)
    for number in (-1, 5, 7):
        with pytest.raises(InvalidArgumentError):
            compress(number, PLAIN)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", [b"", b"\x00", b"garbage that is no stream", bytes(100), b"\xff" * 100])
def test_garbage(codec: Codec, data: bytes) -> None:
    if (codec, data) in ((Codec.SNAPPY, b"\x00"), (Codec.ZSTD, b"")):
        assert inflate(codec, data) == b""  # which no batch with a record in it accepts
        return
    with pytest.raises(PoisonBatchError):
        inflate(codec, data)


@pytest.mark.parametrize("codec", CODECS)
def test_truncated_streams_do_not_pass_for_whole(codec: Codec) -> None:
    data = compress(codec, PLAIN)
    for cut in (1, 5, len(data) // 2, len(data) - 4):
        try:
            assert inflate(codec, data[:-cut]) != PLAIN
        except PoisonBatchError:
            continue
        # zstd cannot tell; the records in it are then cut off, which is poison too.
        assert codec is Codec.ZSTD


@pytest.mark.parametrize("codec", CODECS)
def test_nothing_may_follow(codec: Codec) -> None:
    data = compress(codec, PLAIN)
    with pytest.raises(PoisonBatchError):
        inflate(codec, data + b"trailing garbage")
    with pytest.raises(PoisonBatchError):
        inflate(codec, data + b"\x00")


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4])
def test_one_member_or_frame_only(codec: Codec) -> None:
    # A million empty ones would keep a reader busy for nothing.
    data = compress(codec, PLAIN)
    with pytest.raises(PoisonBatchError):
        inflate(codec, data + data)
    with pytest.raises(PoisonBatchError):
        inflate(codec, compress(codec, b"") * 100_000 + data)


def test_many_zstd_frames_are_read_within_the_limit() -> None:
    data = compress(Codec.ZSTD, b"x" * 1000)
    assert inflate(Codec.ZSTD, data * 3) == b"x" * 3000
    assert inflate(Codec.ZSTD, compress(Codec.ZSTD, b"") * 100_000 + data) == b"x" * 1000
    with pytest.raises(BatchTooLargeError):
        inflate(Codec.ZSTD, data * 3, 2999)


def test_zstd_as_other_writers_make_it() -> None:
    streaming = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    assert inflate(Codec.ZSTD, streaming.compress(PLAIN) + streaming.flush()) == PLAIN
    checked = zstandard.ZstdCompressor(level=22, write_checksum=True).compressobj()
    assert inflate(Codec.ZSTD, checked.compress(PLAIN) + checked.flush()) == PLAIN


def test_lz4_as_other_writers_make_it() -> None:
    for linked in (True, False):
        for size in (True, False):
            data = lz4.frame.compress(PLAIN, block_linked=linked, store_size=size, content_checksum=True)
            assert inflate(Codec.LZ4, data) == PLAIN


def test_gzip_as_other_writers_make_it() -> None:
    assert inflate(Codec.GZIP, gzip.compress(PLAIN, mtime=77)) == PLAIN
    wrong = bytearray(gzip.compress(PLAIN))
    wrong[-6] ^= 1
    with pytest.raises(PoisonBatchError):
        inflate(Codec.GZIP, bytes(wrong))
    with pytest.raises(PoisonBatchError):
        inflate(Codec.GZIP, zlib.compress(PLAIN))


def test_snappy_without_framing() -> None:
    assert inflate(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(PLAIN))) == PLAIN


def test_snappy_with_versions_in_the_other_byte_order() -> None:
    data = compress(Codec.SNAPPY, PLAIN)
    assert data[:16] == XERIAL
    swapped = data[:8] + struct.pack("<ii", 1, 1) + data[16:]
    assert inflate(Codec.SNAPPY, swapped) == PLAIN


@pytest.mark.parametrize("length", [0, -1, 5, 2**31 - 1, -(2**31)])
def test_snappy_blocks_that_lie_about_their_length(length: int) -> None:
    with pytest.raises(PoisonBatchError):
        inflate(Codec.SNAPPY, XERIAL + struct.pack(">i", length) + b"\x01\x00a")


def test_snappy_has_so_many_blocks_and_no_more() -> None:
    block = struct.pack(">i", 3) + b"\x01\x00a"
    assert inflate(Codec.SNAPPY, XERIAL + block * 65536) == b"a" * 65536
    with pytest.raises(PoisonBatchError, match="more than 65536 blocks"):
        inflate(Codec.SNAPPY, XERIAL + block * 65537)


def test_snappy_cut_off_within_a_length() -> None:
    with pytest.raises(PoisonBatchError):
        inflate(Codec.SNAPPY, compress(Codec.SNAPPY, PLAIN) + b"\x00\x00")


@pytest.mark.parametrize(("codec", "bomb"), BOMBS.values(), ids=BOMBS.keys())
def test_bombs_fit_a_batch(codec: Codec, bomb: bytes) -> None:
    # A larger one is refused for its size, and no decoder that is shown it ever inflates it.
    parse_batch(batch_around(bomb, codec))


@pytest.mark.parametrize(("codec", "bomb"), BOMBS.values(), ids=BOMBS.keys())
def test_bombs_stay_within_the_limit(codec: Codec, bomb: bytes) -> None:
    limit = 4 << 20
    tracemalloc.start()
    try:
        with pytest.raises((BatchTooLargeError, PoisonBatchError)):
            inflate(codec, bomb, limit)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # A copy or two of what went in, and twice what may come out. Only Python's own memory is seen here; the mutation
    # test bounds that of the whole process.
    assert peak < 2 * len(bomb) + 2 * limit
