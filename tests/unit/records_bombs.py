"""Streams that claim, inflate to, or otherwise cost gigabytes. Each fits a batch, so that decoders get to it."""

from __future__ import annotations

import struct
import zlib
from typing import Final

import cramjam
import lz4.frame

from quire.records import Codec

_GIB: Final = 1 << 30
_XERIAL: Final = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"


def gzip_bomb() -> bytes:
    """2 GiB of zeros in 2 MB: one flushed mebibyte, again and again."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    mebibyte = deflate.compress(bytes(1 << 20)) + deflate.flush(zlib.Z_FULL_FLUSH)
    return b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff" + mebibyte * 2048 + b"\x03\x00" + bytes(8)


def lz4_bomb(claimed_bytes: int | None = None) -> bytes:
    """1 GiB of zeros in 4 MB; a claimed size makes the frame say that it is small."""
    frame: bytes = lz4.frame.compress(
        bytes(4 << 20),
        block_size=lz4.frame.BLOCKSIZE_MAX4MB,
        block_linked=False,
        store_size=claimed_bytes is not None,
    )
    header_bytes = 7 if claimed_bytes is None else 15
    return frame[:header_bytes] + frame[header_bytes:-4] * 256 + bytes(4)


def zstd_bomb(*, window: int = 0x38, blocks: int = 32 * 1024) -> bytes:
    """4 GiB in 128 KB: blocks of one byte, repeated 128 Ki times each."""
    repeated = struct.pack("<I", (128 * 1024) << 3 | 1 << 1)[:3] + b"\x00"
    return b"\x28\xb5\x2f\xfd" + bytes([0x00, window]) + repeated * blocks


def zstd_claim() -> bytes:
    """A frame that claims 8 GiB and holds one byte."""
    return b"\x28\xb5\x2f\xfd" + bytes([0xE0]) + struct.pack("<Q", 8 * _GIB) + b"\x09\x00\x00x"


def snappy_honest() -> bytes:
    """256 MiB of zeros in 12 MB: snappy shrinks no better than 21 to 1, and 16 MiB is all that a batch may have."""
    block = bytes(cramjam.snappy.compress_raw(bytes(1 << 20)))
    return _XERIAL + (struct.pack(">i", len(block)) + block) * 256


BOMBS: Final[dict[str, tuple[Codec, bytes]]] = {
    "gzip": (Codec.GZIP, gzip_bomb()),
    "lz4": (Codec.LZ4, lz4_bomb()),
    "lz4 that says it is small": (Codec.LZ4, lz4_bomb(claimed_bytes=4 << 20)),
    "zstd": (Codec.ZSTD, zstd_bomb()),
    "zstd with a window of 2 TiB": (Codec.ZSTD, zstd_bomb(window=0xF8)),
    "zstd with a window of 128 MiB": (Codec.ZSTD, zstd_bomb(window=0x88)),
    "zstd that only claims": (Codec.ZSTD, zstd_claim()),
    "snappy that only claims": (Codec.SNAPPY, b"\xff\xff\xff\xff\x0f\x00a"),
    "snappy that claims in a block": (Codec.SNAPPY, _XERIAL + struct.pack(">i", 7) + b"\xff\xff\xff\xff\x0f\x00a"),
    "snappy": (Codec.SNAPPY, snappy_honest()),
    "snappy in millions of empty blocks": (Codec.SNAPPY, _XERIAL + b"\x00\x00\x00\x01\x00" * (3 << 20)),
}
