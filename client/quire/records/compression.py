"""The four codecs of a batch, with an output that never grows past a bound.

Compressing must give the same bytes on every run, since batches are compared byte for byte: gzip carries no time.

Decompressing never trusts a size that the input claims. gzip, lz4 and zstd are inflated in steps of at most
`_STEP_BYTES`; snappy cannot be, so its claims are checked against the bound, and against what snappy can
reach at all, before anything is allocated. Nothing may follow the one gzip member or lz4 frame: a reader that went on
could be sent a million empty ones. (zstd's reader goes on by itself, over empty frames at the speed of C.)
"""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from collections.abc import Callable
from typing import Final

import cramjam
import lz4.frame
import zstandard

from quire.errors import BatchTooLargeError, InvalidArgumentError, PoisonBatchError, UnsupportedBatchError
from quire.records.header import Codec
from quire.types import Buffer

_STEP_BYTES: Final = 1 << 20

_ZSTD_WINDOW_BYTES_MAX: Final = 1 << 27
"""What Kafka's highest level (22) asks for. It is reserved, but only touched as far as there is output."""

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_XERIAL_BLOCK_COUNT_MAX: Final = 1 << 16
"""Room for 64 MiB in blocks of 1 KiB; writers fill 32. Each block costs memory and time of its own, and an empty one
takes 5 bytes: without a bound a batch of 16 MiB would cost its reader a gigabyte, and seconds."""
_INT32 = struct.Struct(">i")
_SNAPPY_RATIO_MAX: Final = 64
"""A three-byte copy yields at most 64 bytes: whatever claims more than 64 a byte lies."""
_SNAPPY_CLAIM_MAX: Final = (1 << 32) - 1

_GZIP_LEVEL: Final = 9
_ZSTD_LEVEL: Final = 3
_LZ4_LEVEL: Final = 0


class _OverBoundError(Exception):
    """More would come out than may."""


class _DamagedError(Exception):
    """Not what the codec says it is."""


def compress(codec: int, plain: Buffer, *, level: int | None = None) -> bytes:
    """Compress the records of a batch; `level` is the codec's own scale, and None its usual one."""
    try:
        codec = Codec(codec)
    except ValueError as error:
        raise InvalidArgumentError(f"there is no codec {codec}", codec=codec) from error
    if codec is Codec.NONE or codec is Codec.SNAPPY:
        if level is not None:
            raise InvalidArgumentError(f"codec {codec.name.lower()} has no levels", level=level)
        return bytes(plain) if codec is Codec.NONE else _compress_snappy(plain)
    try:
        if codec is Codec.GZIP:
            return _compress_gzip(plain, _GZIP_LEVEL if level is None else level)
        if codec is Codec.LZ4:
            # Kafka's own reader knows no linked blocks.
            compressed: bytes = lz4.frame.compress(
                plain, compression_level=_LZ4_LEVEL if level is None else level, block_linked=False
            )
            return compressed
        return zstandard.ZstdCompressor(level=_ZSTD_LEVEL if level is None else level).compress(plain)
    except (ValueError, OverflowError, zlib.error) as error:
        raise InvalidArgumentError(f"codec {codec.name.lower()} has no level {level}", level=level) from error


def decompress(codec: int, data: Buffer, *, plain_bytes_max: int) -> Buffer:
    """Undo `compress`, refusing to give more than `plain_bytes_max` bytes, whatever the data claims."""
    if codec == Codec.NONE:
        if len(data) > plain_bytes_max:
            raise BatchTooLargeError(
                f"{len(data)} bytes of records are over the limit of {plain_bytes_max}", limit_bytes=plain_bytes_max
            )
        return data
    inflate = _INFLATE.get(codec)
    if inflate is None:
        raise UnsupportedBatchError(f"batch is compressed with codec {codec}, which nothing here knows", codec=codec)
    try:
        return inflate(data, plain_bytes_max)
    except _OverBoundError:
        raise BatchTooLargeError(
            f"batch of {len(data)} compressed bytes holds more than the {plain_bytes_max} bytes it may inflate to",
            limit_bytes=plain_bytes_max,
        ) from None
    except (_DamagedError, zlib.error, zstandard.ZstdError, RuntimeError, cramjam.DecompressionError) as error:
        raise PoisonBatchError(
            f"records do not decompress as {Codec(codec).name.lower()}: {error}", codec=codec
        ) from error


def _compress_gzip(plain: Buffer, level: int) -> bytes:
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=level, mtime=0) as file:
        file.write(plain)
    return out.getvalue()


def _inflate_gzip(data: Buffer, plain_bytes_max: int) -> bytes:
    inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    plain = inflater.decompress(data, plain_bytes_max + 1)
    if len(plain) > plain_bytes_max:
        raise _OverBoundError
    if not inflater.eof:
        raise _DamagedError("it ends too early")
    if inflater.unused_data:
        raise _DamagedError(f"{len(inflater.unused_data)} bytes follow its end")
    return plain


def _compress_snappy(plain: Buffer) -> bytes:
    view = memoryview(plain)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _inflate_snappy(data: Buffer, plain_bytes_max: int) -> bytes:
    view = memoryview(data)
    # The two version numbers after the magic are not looked at: some writers put them in the other byte order.
    blocks = _xerial_blocks(view) if bytes(view[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC else [view]
    # All claims before any block: the sum is what counts.
    if sum(map(_snappy_claim, blocks)) > plain_bytes_max:
        raise _OverBoundError
    return b"".join([bytes(cramjam.snappy.decompress_raw(block)) for block in blocks])


def _xerial_blocks(view: memoryview) -> list[memoryview]:
    blocks: list[memoryview] = []
    position, end = len(_XERIAL_HEADER), len(view)
    while position < end:
        if len(blocks) == _XERIAL_BLOCK_COUNT_MAX:
            raise _DamagedError(f"it has more than {_XERIAL_BLOCK_COUNT_MAX} blocks")
        if end - position < _INT32.size:
            raise _DamagedError("it ends within a block's length")
        (length,) = _INT32.unpack_from(view, position)
        position += _INT32.size
        if not 0 < length <= end - position:
            raise _DamagedError(f"a block of {length} bytes where {end - position} are left")
        blocks.append(view[position : position + length])
        position += length
    return blocks


def _snappy_claim(block: memoryview) -> int:
    """The size that a raw snappy block says it has when decompressed, if that is possible at all."""
    claim = 0
    for index, byte in enumerate(block[:5]):
        claim |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            if claim > min(len(block) * _SNAPPY_RATIO_MAX, _SNAPPY_CLAIM_MAX):
                raise _DamagedError(f"{len(block)} bytes claim to hold {claim}")
            return claim
    raise _DamagedError("a block does not say how large it is")


def _inflate_lz4(data: Buffer, plain_bytes_max: int) -> bytes:
    inflater = lz4.frame.LZ4FrameDecompressor()
    chunk: bytes = inflater.decompress(data, max_length=_STEP_BYTES)
    chunks, size = [chunk], len(chunk)
    while not inflater.eof:
        if size > plain_bytes_max:
            raise _OverBoundError
        if inflater.needs_input:
            raise _DamagedError("it ends too early")
        chunk = inflater.decompress(b"", max_length=_STEP_BYTES)
        chunks.append(chunk)
        size += len(chunk)
    if size > plain_bytes_max:
        raise _OverBoundError
    if inflater.unused_data:
        raise _DamagedError(f"{len(inflater.unused_data)} bytes follow its end")
    return b"".join(chunks)


def _inflate_zstd(data: Buffer, plain_bytes_max: int) -> bytes:
    inflater = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX)
    chunks, size = [], 0
    with inflater.stream_reader(data, read_across_frames=True) as reader:
        while chunk := reader.read(_STEP_BYTES):
            size += len(chunk)
            if size > plain_bytes_max:
                raise _OverBoundError
            chunks.append(chunk)
    return b"".join(chunks)


_INFLATE: Final[dict[int, Callable[[Buffer, int], bytes]]] = {
    Codec.GZIP: _inflate_gzip,
    Codec.SNAPPY: _inflate_snappy,
    Codec.LZ4: _inflate_lz4,
    Codec.ZSTD: _inflate_zstd,
}
