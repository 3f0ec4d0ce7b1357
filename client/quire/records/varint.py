"""Zigzag varints: how a record spells every length and every delta."""

from __future__ import annotations

from typing import Final

from quire.types import Buffer

VARINT_BYTES_MAX: Final = 10
"""64 bits, 7 to a byte."""

_WORD: Final = (1 << 64) - 1


def encode_varint(number: int) -> bytes:
    """Spell a signed number of at most 64 bits, small ones of either sign in few bytes."""
    rest = number << 1 if number >= 0 else ~(number << 1)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Read one number; answer it and the position after it.

    Raises IndexError where the buffer ends first and ValueError where ten bytes do not end the number.
    """
    rest = shift = 0
    while shift < 7 * VARINT_BYTES_MAX:
        byte = buffer[position]
        position += 1
        rest |= (byte & 0x7F) << shift
        if byte < 0x80:
            rest &= _WORD
            return (rest >> 1) ^ -(rest & 1), position
        shift += 7
    raise ValueError(f"a number goes on after {VARINT_BYTES_MAX} bytes")
