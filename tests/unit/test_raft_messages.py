"""What members say to each other, and what nobody may say to them."""

from __future__ import annotations

import random

import pytest
from google.protobuf.message import Message

from quire.errors import MalformedFrameError
from quire.v1 import raft_pb2
from quire_controller.raft.entry import NO_OP, REGULAR, Entry
from quire_controller.raft.messages import FRAME_KIND, INDEX_MAX, decode, decode_entries, encode_entries
from tests.unit.raft_crafting import entries

KINDS = {field.name: field for field in raft_pb2.RaftMessage.DESCRIPTOR.fields}
COUNTERS = ("term", "round", "previous_index", "last_index", "commit_index", "index", "position", "size")


def message(kind: str, **fields: int) -> raft_pb2.RaftMessage:
    made = raft_pb2.RaftMessage()
    inner: Message = getattr(made, kind)
    inner.SetInParent()
    for name, value in fields.items():
        setattr(inner, name, value)
    return made


def append_of(sent: list[Entry], *, term: int, previous_term: int = 1) -> tuple[raft_pb2.RaftAppend, bytes]:
    append = raft_pb2.RaftAppend(term=term, previous_index=sent[0][1] - 1, previous_term=previous_term)
    return append, b"".join(encode_entries(append, sent))


# --- messages ------------------------------------------------------------------------------------------------------


def test_frames_of_the_quorum_have_their_kind() -> None:
    assert FRAME_KIND == 16


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_message_travels(kind: str) -> None:
    sent = message(kind)
    received = decode(sent.SerializeToString())
    assert received == sent
    assert received.WhichOneof("message") == kind


def test_message_that_says_nothing() -> None:
    with pytest.raises(MalformedFrameError, match="says nothing that this version knows"):
        decode(b"")


def test_message_of_a_newer_version() -> None:
    # Field 99, of a length that holds.
    with pytest.raises(MalformedFrameError, match="says nothing that this version knows"):
        decode(b"\x9a\x06\x02\x08\x01")


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\x0a\x05\x08", b"\x80\x04\x95garbage", b"\x2a\x02\x08"])
def test_bytes_that_are_no_message(data: bytes) -> None:
    with pytest.raises(MalformedFrameError):
        decode(data)


def test_random_bytes_are_a_message_or_malformed() -> None:
    randomness = random.Random(3)
    for _ in range(3_000):
        data = bytearray(randomness.choice(list(KINDS)).encode())
        data = bytearray(message(randomness.choice(list(KINDS))).SerializeToString()) + data
        for _ in range(randomness.randint(0, 4)):
            data[randomness.randrange(len(data))] = randomness.getrandbits(8)
        try:
            decoded = decode(bytes(data))
        except MalformedFrameError:
            continue
        assert decoded.WhichOneof("message") in KINDS


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (kind, field.name)
        for kind, outer in KINDS.items()
        if outer.message_type is not None
        for field in outer.message_type.fields
        if field.name in COUNTERS
    ],
)
def test_numbers_that_nobody_reaches_by_counting(kind: str, field: str) -> None:
    decode(message(kind, **{field: INDEX_MAX}).SerializeToString())
    for number in (INDEX_MAX + 1, (1 << 64) - 1):
        with pytest.raises(MalformedFrameError, match=rf"{kind}\.{field} is {number}"):
            decode(message(kind, **{field: number}).SerializeToString())


def test_every_counter_of_a_message_is_checked() -> None:
    """One that is added later is to be looked at; these alone need not be."""
    unchecked = {
        f"{kind}.{field.name}"
        for kind, outer in KINDS.items()
        if outer.message_type is not None
        for field in outer.message_type.fields
        if field.cpp_type == field.CPPTYPE_UINT64 and field.name not in COUNTERS
    }
    assert unchecked == {
        # Compared with terms that are there, or with the message's own; a number beyond them is merely greater.
        "pre_vote.last_term",
        "vote.last_term",
        "append.previous_term",
        "append.terms",
        "install.last_term",
        # Names, not numbers.
        "append_answer.incarnation",
        "install_answer.incarnation",
        "probe.incarnation",
        "probe_answer.incarnation",
        "admit.incarnation",
        "forward.request_id",
        "forward_answer.request_id",
        "confirm.request_id",
    }


# --- entries -------------------------------------------------------------------------------------------------------


def test_entries_travel() -> None:
    sent = [*entries(5, 9, term=2), *entries(9, 12, term=4, size=1_000), (NO_OP, 12, 4), (REGULAR, 13, 4)]
    append, body = append_of(sent, term=4)
    assert decode_entries(append, body) == sent
    assert decode_entries(append, memoryview(body)) == sent
    assert all(isinstance(data, bytes) for data, _, _ in decode_entries(append, memoryview(body)))


def test_sign_of_life_has_no_entries() -> None:
    assert decode_entries(raft_pb2.RaftAppend(term=3, previous_index=7, previous_term=3), b"") == []


@pytest.mark.parametrize(
    ("terms", "sizes", "body"),
    [
        ([1], [], b""),
        ([], [1], b"\x00"),
        ([1, 1], [1], b"\x00"),
        ([1], [2], b"\x00"),
        ([1], [1], b"\x00\x00"),
        ([], [], b"\x00"),
        ([1, 1], [0xFFFFFFFF, 1], b"\x00"),
        ([1] * 4, [0xFFFFFFFF] * 4, b"\x00" * 100),
    ],
)
def test_entries_that_do_not_add_up(terms: list[int], sizes: list[int], body: bytes) -> None:
    append = raft_pb2.RaftAppend(term=1, previous_index=1, previous_term=0, terms=terms, sizes=sizes)
    with pytest.raises(MalformedFrameError, match="do not add up"):
        decode_entries(append, body)


@pytest.mark.parametrize(
    ("previous_term", "terms"), [(3, [2]), (1, [2, 1]), (1, [4, 6]), (1, [6]), (6, [6]), (1, [1 << 63])]
)
def test_terms_that_fall_or_are_beyond_the_leaders(previous_term: int, terms: list[int]) -> None:
    append = raft_pb2.RaftAppend(
        term=5, previous_index=1, previous_term=previous_term, terms=terms, sizes=[1] * len(terms)
    )
    with pytest.raises(MalformedFrameError, match="an entry of term"):
        decode_entries(append, REGULAR * len(terms))


@pytest.mark.parametrize("data", [b"", b"\x02", b"\x03version", b"\xff", b"\x80\x04\x95"])
def test_entries_of_no_kind(data: bytes) -> None:
    """The library's other kinds, membership and version, are pickles."""
    append = raft_pb2.RaftAppend(term=1, previous_index=4, previous_term=1, terms=[1, 1], sizes=[1, len(data)])
    with pytest.raises(MalformedFrameError, match="entry 6 begins with"):
        decode_entries(append, REGULAR + data)
