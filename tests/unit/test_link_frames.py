"""The frame codec: any chunking gives the same frames, and no claim makes it take more room than it may."""

from __future__ import annotations

import pickle
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.errors import InvalidArgumentError, InvariantViolation, MalformedFrameError
from quire.link.frames import (
    BODY_BYTES_MAX,
    CLAIM_BYTES_MAX,
    GROWTH,
    HEADER_BYTES_MAX,
    JOINED_BYTES_MAX,
    KIND_MAX,
    LARGE_BODY_BYTES,
    MAGIC,
    PREFIX,
    Frame,
    FrameParser,
    Limits,
    encode,
    join_small,
)
from quire.types import Buffer

ROOM_BYTES = PREFIX.size + HEADER_BYTES_MAX + LARGE_BODY_BYTES


def encoded(frame: Frame) -> bytes:
    return b"".join(encode(frame.kind, frame.header, [frame.body], body_bytes_max=BODY_BYTES_MAX))


def feed(parser: FrameParser, data: bytes) -> list[Frame]:
    """The frames that come of it, as a session with this one chunk to read would get them."""
    frames = []
    while data:
        free = parser.free()
        count = min(len(free), len(data))
        free[:count] = data[:count]
        data = data[count:]
        parser.filled(count)
        while (frame := parser.next_frame()) is not None:
            frames.append(frame)
    return frames


SIZES = st.one_of(
    st.integers(0, 300),
    st.sampled_from([LARGE_BODY_BYTES - 1, LARGE_BODY_BYTES, LARGE_BODY_BYTES + 1, CLAIM_BYTES_MAX + 1]),
)
FRAMES = st.builds(
    lambda kind, header, body, seed: Frame(kind, random.Random(seed).randbytes(header), bytes([seed % 251]) * body),
    st.integers(1, KIND_MAX),
    st.one_of(st.integers(0, 300), st.just(HEADER_BYTES_MAX)),
    SIZES,
    st.integers(0, 1000),
)


@given(st.lists(FRAMES, max_size=8), st.integers(), st.sampled_from([3, 100, 70_000, 1 << 30]))
@settings(max_examples=150, deadline=None)
def test_any_chunking_gives_the_same_frames(frames: list[Frame], seed: int, chunk_max: int) -> None:
    data = b"".join(map(encoded, frames))
    randomness = random.Random(seed)
    if len(data) > 20_000:
        chunk_max = max(chunk_max, 1000)  # byte by byte is tried on short ones
    parser = FrameParser(Limits())
    got = []
    at = 0
    while at < len(data):
        end = at + randomness.randint(1, chunk_max)
        got += feed(parser, data[at:end])
        at = end
        assert parser.room_bytes <= ROOM_BYTES + 2 * CLAIM_BYTES_MAX
    assert got == frames
    assert not parser.inside_frame


@given(st.binary(max_size=200), st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_hostile_prefix_is_refused_or_bounded(prefix: bytes, rest: bytes) -> None:
    for begin in (b"", MAGIC.to_bytes(2, "big")):
        parser = FrameParser(Limits())
        try:
            feed(parser, begin + prefix + rest)
        except MalformedFrameError:
            continue
        assert parser.room_bytes <= ROOM_BYTES + CLAIM_BYTES_MAX


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
def test_one_frame_at_a_time(chunk: int) -> None:
    parser = FrameParser(Limits())
    data = encoded(Frame(20, b"head", b"body")) * 3
    got = [frame for at in range(0, len(data), chunk) for frame in feed(parser, data[at : at + chunk])]
    assert got == [Frame(20, b"head", b"body")] * 3


@pytest.mark.parametrize(
    ("header_bytes", "body_bytes"),
    [(HEADER_BYTES_MAX + 1, 0), (0xFFFFFFFF, 0), (0, BODY_BYTES_MAX + 1), (0, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF)],
)
def test_too_long_is_refused_by_the_prefix_alone(header_bytes: int, body_bytes: int) -> None:
    parser = FrameParser(Limits())
    with pytest.raises(MalformedFrameError, match=f"{header_bytes} bytes of header and {body_bytes} of body"):
        feed(parser, PREFIX.pack(MAGIC, 20, header_bytes, body_bytes))
    assert parser.room_bytes == ROOM_BYTES


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x00",
        pickle.dumps({"a": 1}),
        bytes(100),
    ],
    ids=["http", "tls", "pickle", "zeros"],
)
def test_stranger_is_told_by_the_first_bytes(data: bytes) -> None:
    with pytest.raises(MalformedFrameError, match="no frame of a peer link"):
        feed(FrameParser(Limits()), data)


def test_room_grows_with_what_has_come_and_not_with_what_is_claimed() -> None:
    parser = FrameParser(Limits())
    feed(parser, PREFIX.pack(MAGIC, 20, 0, BODY_BYTES_MAX))
    received = 0
    chunk = bytes(100_000)
    while received + len(chunk) < BODY_BYTES_MAX:
        assert feed(parser, chunk) == []
        received += len(chunk)
        assert parser.room_bytes <= ROOM_BYTES + max(CLAIM_BYTES_MAX, GROWTH * received)
    (frame,) = feed(parser, bytes(BODY_BYTES_MAX - received))
    assert len(frame.body) == BODY_BYTES_MAX
    assert parser.room_bytes == ROOM_BYTES


def test_large_body_is_received_where_it_stays() -> None:
    parser = FrameParser(Limits())
    feed(parser, PREFIX.pack(MAGIC, 20, 0, 100_000))
    free = parser.free()
    free[:] = bytes(99_999) + b"x"
    parser.filled(len(free))
    frame = parser.next_frame()
    assert frame is not None
    assert frame.body is free.obj


def test_large_body_that_comes_with_what_follows_it() -> None:
    frames = [Frame(20, b"", bytes(LARGE_BODY_BYTES + 1)), Frame(21, b"next", b"")]
    parser = FrameParser(Limits())
    data = b"".join(map(encoded, frames))
    assert len(data) < len(parser.free())
    assert feed(parser, data) == frames


def test_frames_wait_in_the_parser() -> None:
    parser = FrameParser(Limits())
    data = encoded(Frame(20, b"", b"1")) + encoded(Frame(20, b"", b"2")) + b"\xf1"
    parser.free()[: len(data)] = data
    parser.filled(len(data))
    assert parser.next_frame() == Frame(20, b"", b"1")
    assert parser.next_frame() == Frame(20, b"", b"2")
    assert parser.next_frame() is None
    assert parser.inside_frame


def test_parser_that_is_full_of_frames_is_not_filled() -> None:
    parser = FrameParser(Limits(header_bytes_max=0, body_bytes_max=1))
    parser.filled(len(parser.free()))
    with pytest.raises(InvariantViolation):
        parser.free()


def test_limits_change_between_frames_only() -> None:
    parser = FrameParser(Limits(header_bytes_max=10, body_bytes_max=0))
    first, second = encoded(Frame(1, b"ten bytes.", b"")), encoded(Frame(20, b"", b"body"))
    data = first + second[:5]
    free = parser.free()
    parser.free()[: len(free)] = data[: len(free)]
    parser.filled(len(free))
    assert parser.next_frame() == Frame(1, b"ten bytes.", b"")
    parser.use_limits(Limits())
    assert feed(parser, data[len(free) :] + second[5:]) == [Frame(20, b"", b"body")]
    feed(parser, PREFIX.pack(MAGIC, 20, 0, 1))
    with pytest.raises(InvariantViolation):
        parser.use_limits(Limits())


def test_encoder_copies_no_body() -> None:
    bodies: list[Buffer] = [bytes(10), bytearray(10), memoryview(bytes(10))]
    buffers = encode(20, b"header", bodies, body_bytes_max=30)
    assert [id(buffer) for buffer in buffers[2:]] == [id(body) for body in bodies]
    with pytest.raises(InvalidArgumentError):
        encode(20, b"header", bodies, body_bytes_max=29)


@given(st.lists(st.sampled_from([0, 1, 100, JOINED_BYTES_MAX - 1, JOINED_BYTES_MAX, 50_000]), max_size=12))
def test_joining_keeps_the_bytes_and_the_large_buffers(sizes: list[int]) -> None:
    buffers = [bytes([n]) * size for n, size in enumerate(sizes)]
    joined = join_small(buffers)
    assert b"".join(joined) == b"".join(buffers)
    large = [id(buffer) for buffer in buffers if len(buffer) >= JOINED_BYTES_MAX]
    assert [each for each in map(id, joined) if each in large] == large
    assert len(joined) <= 2 * len(large) + 1
