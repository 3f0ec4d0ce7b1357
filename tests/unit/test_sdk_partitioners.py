"""Keys go where every client of the topic sends them."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire._client.partitioners import RoundRobin, checked, key_partitioner, murmur3
from quire.errors import InvalidArgumentError
from quire.v1 import metadata_pb2

with warnings.catch_warnings():
    # It reads its own schemas by a call that Python has deprecated; our tests take any warning for an error.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.partitioner.default import murmur2 as kafkas_murmur2

COUNTS = st.integers(min_value=1, max_value=10_000)


@given(key=st.binary(max_size=300), count=COUNTS)
def test_murmur2_is_kafkas(key: bytes, count: int) -> None:
    ours = key_partitioner(metadata_pb2.PARTITIONER_MURMUR2)
    assert ours(key, count) == (kafkas_murmur2(key) & 0x7FFFFFFF) % count


@pytest.mark.parametrize(
    ("key", "hashed"),
    # MurmurHash3_x86_32 with seed 0, from published test vectors.
    [(b"", 0), (b"\xff\xff\xff\xff", 0x76293B50), (b"\x21\x43\x65\x87", 0xF55B516B), (b"\x00", 0x514E28B7)],
)
def test_murmur3_is_the_published_one(key: bytes, hashed: int) -> None:
    assert murmur3(key, 1 << 32) == hashed
    assert murmur3(key, 3) == hashed % 3


def test_topic_without_a_word_maps_keys_by_murmur3() -> None:
    assert key_partitioner(metadata_pb2.PARTITIONER_UNSPECIFIED) is murmur3
    assert key_partitioner(metadata_pb2.PARTITIONER_MURMUR3) is murmur3


def test_partitioner_of_a_newer_version_is_not_guessed() -> None:
    with pytest.raises(InvalidArgumentError, match="upgrade"):
        key_partitioner(99)


def test_round_robin_takes_turns() -> None:
    choose = RoundRobin(first=2)
    assert [choose(b"k", 3) for _ in range(5)] == [2, 0, 1, 2, 0]
    assert choose(None, 2) in (0, 1)


@pytest.mark.parametrize("answer", [-1, 3, "0", None, 1.0])
def test_answer_of_a_users_partitioner_is_looked_at(answer: object) -> None:
    with pytest.raises(InvalidArgumentError, match="from 0 to 2"):
        checked(lambda key, count: answer)(b"k", 3)
    assert checked(lambda key, count: count - 1)(None, 3) == 2
