"""Frames: a fixed prefix, a small protobuf header, a raw body. Pure.

    magic (2) · kind (2) · header length (4) · body length (4) · header · body        big-endian

`kind` says what a frame is for. Kinds below `FIRST_USER_KIND` belong to the link itself, the rest to whoever uses it.
The space is open: a kind that nobody here knows is delivered like any other.

The parser lends its buffers to whoever reads from the socket, so that a large body is received where it stays. It
looks at lengths as soon as the prefix is there and refuses before it makes room.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from quire.errors import InvalidArgumentError, MalformedFrameError, invariant
from quire.types import Buffer

PREFIX: Final = struct.Struct(">HHII")
MAGIC: Final = 0xF17E
"""No ASCII text, TLS record or pickle begins with it, so a stranger is known by the first bytes."""

KIND_MAX: Final = 0xFFFF
FIRST_USER_KIND: Final = 16
HEADER_BYTES_MAX: Final = 64 * 1024
BODY_BYTES_MAX: Final = 32 * 1024 * 1024

LARGE_BODY_BYTES: Final = 64 * 1024
"""Bodies over this size are received into a buffer of their own, smaller ones through the parser's."""
CLAIM_BYTES_MAX: Final = 1024 * 1024
"""How much room is made on a peer's word alone. From there on it grows with what has really come."""
GROWTH: Final = 4

JOINED_BYTES_MAX: Final = 16 * 1024
"""Buffers below this size are cheaper to copy than to hand over one by one, above all to TLS."""


class Frame(NamedTuple):
    kind: int
    header: bytes
    body: Buffer


class Limits(NamedTuple):
    """What a peer may send in one frame."""

    header_bytes_max: int = HEADER_BYTES_MAX
    body_bytes_max: int = BODY_BYTES_MAX


def encode(kind: int, header: Buffer = b"", body: Sequence[Buffer] = (), *, body_bytes_max: int) -> list[Buffer]:
    """The frame as buffers to be written in a row. The bodies are those given, not copies."""
    body_bytes = sum(map(len, body))
    if not 0 < kind <= KIND_MAX:
        raise InvalidArgumentError(f"a frame's kind is 1 to {KIND_MAX}, not {kind}")
    if len(header) > HEADER_BYTES_MAX or body_bytes > body_bytes_max:
        raise InvalidArgumentError(
            f"a frame of kind {kind} with {len(header)} bytes of header and {body_bytes} of body is over what the "
            f"peer takes ({HEADER_BYTES_MAX} and {body_bytes_max}); send less at once",
            kind=kind,
        )
    return [PREFIX.pack(MAGIC, kind, len(header), body_bytes), header, *body]


def join_small(buffers: Sequence[Buffer]) -> list[Buffer]:
    """The same bytes in fewer buffers: small neighbours are copied together, large ones stay as they are."""
    joined: list[Buffer] = []
    run: list[Buffer] = []
    for buffer in buffers:
        if len(buffer) < JOINED_BYTES_MAX:
            run.append(buffer)
            continue
        if run:
            joined.append(b"".join(run))
            run = []
        joined.append(buffer)
    if run:
        joined.append(b"".join(run))
    return joined


class FrameParser:
    """Bytes in, frames out.

        view = parser.free()     fill some of it from the socket
        parser.filled(count)
        while frame := parser.next_frame(): …

    `next_frame` may be left alone for as long as one likes, but not while more is filled in.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._view = _room_for(limits)
        self._start = 0
        """Where the first byte is that no frame was made of yet."""
        self._end = 0
        self._prefix: tuple[int, int, int] | None = None
        """Kind, header length and body length of the frame at `_start`, once they are known and within the limits."""
        self._large: _LargeFrame | None = None
        """A frame whose body is coming in. Nothing of it is in `_view` any more."""

    @property
    def room_bytes(self) -> int:
        """All the memory that the parser holds for what a peer sends."""
        return len(self._view) + (0 if self._large is None else len(self._large.body))

    @property
    def inside_frame(self) -> bool:
        """Whether a frame has begun and not ended."""
        return self._start < self._end or self._large is not None

    def use_limits(self, limits: Limits) -> None:
        """From the next frame on, other limits. Only between two frames."""
        invariant(self._prefix is None and self._large is None, "limits changed inside a frame")
        rest = self._view[self._start : self._end]
        self._limits = limits
        self._view = _room_for(limits)
        self._view[: len(rest)] = rest
        self._start, self._end = 0, len(rest)

    def free(self) -> memoryview:
        """Where the next bytes go; never empty."""
        if self._large is not None:
            return self._large.free()
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start + self._bytes_in_view() > len(self._view):
            # At most once a frame, since from 0 on every frame fits: the work stays linear for any chunking.
            waiting = self._end - self._start
            self._view[:waiting] = self._view[self._start : self._end]
            self._start, self._end = 0, waiting
        invariant(self._end < len(self._view), "a frame parser was filled although frames wait in it")
        return self._view[self._end :]

    def filled(self, count: int) -> None:
        """`count` bytes were written to the view that `free` gave."""
        if self._large is None:
            self._end += count
        else:
            self._large.filled(count)

    def next_frame(self) -> Frame | None:
        """The next frame that is complete. Raises MalformedFrameError, after which the parser is of no use."""
        if self._large is None:
            if self._prefix is None:
                if self._end - self._start < PREFIX.size:
                    return None
                self._prefix = self._checked_prefix()
            kind, header_bytes, body_bytes = self._prefix
            if self._end - self._start < self._bytes_in_view():
                return None
            body_at = self._start + PREFIX.size + header_bytes
            header = bytes(self._view[self._start + PREFIX.size : body_at])
            self._prefix = None
            if body_bytes <= LARGE_BODY_BYTES:
                self._start = body_at + body_bytes
                # A copy: a view would keep the whole buffer alive, and be overwritten by what comes next.
                return Frame(kind, header, bytes(self._view[body_at : self._start]))
            self._start = min(body_at + body_bytes, self._end)
            self._large = _LargeFrame(kind, header, body_bytes, begins_with=self._view[body_at : self._start])
        frame = self._large.finished()
        if frame is not None:
            self._large = None
        return frame

    # -- inside ----------------------------------------------------------------------------------------------------

    def _checked_prefix(self) -> tuple[int, int, int]:
        magic, kind, header_bytes, body_bytes = PREFIX.unpack_from(self._view, self._start)
        if magic != MAGIC:
            first = bytes(self._view[self._start : self._start + 4])
            raise MalformedFrameError(
                f"these bytes are no frame of a peer link (they begin with {first!r}); is a program other than a "
                "node using the peer port, or has one side TLS and the other not?"
            )
        if header_bytes > self._limits.header_bytes_max or body_bytes > self._limits.body_bytes_max:
            raise MalformedFrameError(
                f"a frame of kind {kind} claims {header_bytes} bytes of header and {body_bytes} of body; "
                f"{self._limits.header_bytes_max} and {self._limits.body_bytes_max} are allowed here",
                kind=kind,
            )
        return kind, header_bytes, body_bytes

    def _bytes_in_view(self) -> int:
        """How much of the frame at `_start` is to be in `_view` before anything can be done with it."""
        if self._prefix is None:
            return PREFIX.size
        _, header_bytes, body_bytes = self._prefix
        return PREFIX.size + header_bytes + (body_bytes if body_bytes <= LARGE_BODY_BYTES else 0)


class _LargeFrame:
    """A frame whose body is received into a buffer of its own, which grows with what has come."""

    def __init__(self, kind: int, header: bytes, body_bytes: int, *, begins_with: memoryview) -> None:
        self.body = bytearray(min(body_bytes, CLAIM_BYTES_MAX))
        self._kind = kind
        self._header = header
        self._body_bytes = body_bytes
        self._end = len(begins_with)
        self.body[: self._end] = begins_with

    def free(self) -> memoryview:
        return memoryview(self.body)[self._end :]

    def filled(self, count: int) -> None:
        self._end += count
        if self._end == len(self.body) < self._body_bytes:
            # A new one, since the reader may still hold a view of the old, which then cannot be resized.
            grown = bytearray(min(self._body_bytes, len(self.body) * GROWTH))
            grown[: self._end] = self.body
            self.body = grown

    def finished(self) -> Frame | None:
        return Frame(self._kind, self._header, self.body) if self._end == self._body_bytes else None


def _room_for(limits: Limits) -> memoryview:
    return memoryview(bytearray(PREFIX.size + limits.header_bytes_max + min(limits.body_bytes_max, LARGE_BODY_BYTES)))
