"""Which partition a record goes to.

A key's partition is the topic's business, so that two kinds of client never split a key; where a record without a key
goes is each producer's own. Pure: what is random is given.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import mmh3

from quire.errors import InvalidArgumentError
from quire.v1 import metadata_pb2

KeyPartitioner = Callable[[bytes, int], int]
"""From a key and the number of partitions to an index below that number."""
Chooser = Callable[[bytes | None, int], int]
"""The same, for records without keys, too."""

_KAFKA_SEED: Final = 0x9747B28C
_KAFKA_MASK: Final = 0x7FFFFFFF


def murmur3(key: bytes, count: int) -> int:
    """MurmurHash3 (x86, 32 bits, seed 0), modulo the number of partitions: Quire's own."""
    return mmh3.hash(key, 0, False) % count


def key_partitioner(partitioner: int) -> KeyPartitioner:
    """The one that a topic names (quire.v1.Partitioner).

    Raises InvalidArgumentError for one of a newer version: to guess would split keys.
    """
    if partitioner in (metadata_pb2.PARTITIONER_UNSPECIFIED, metadata_pb2.PARTITIONER_MURMUR3):
        return murmur3
    if partitioner == metadata_pb2.PARTITIONER_MURMUR2:
        return _murmur2()
    raise InvalidArgumentError(
        f"the topic maps keys by partitioner {partitioner}, which this version of Quire does not know: upgrade "
        "it, or name the partition of each record",
        partitioner=partitioner,
    )


def checked(partitioner: Callable[[bytes | None, int], object]) -> Chooser:
    """A user's own, whose answers are looked at before they are believed."""
    return partial(_call_checked, partitioner)


class RoundRobin:
    """One partition after the other, for every record."""

    def __init__(self, first: int = 0) -> None:
        self._next = first

    def __call__(self, key: bytes | None, count: int) -> int:
        index = self._next % count
        self._next = index + 1
        return index


def _call_checked(partitioner: Callable[[bytes | None, int], object], key: bytes | None, count: int) -> int:
    index = partitioner(key, count)
    if not isinstance(index, int) or not 0 <= index < count:
        raise InvalidArgumentError(
            f"the partitioner gave {index!r} for {count} partitions; it is to give a number from 0 to {count - 1}"
        )
    return index


def _murmur2() -> KeyPartitioner:
    # Not with the module: few topics ask for it.
    from murmurhash2 import murmurhash2

    def murmur2(key: bytes, count: int) -> int:
        """Kafka's: MurmurHash2 without the sign bit, modulo the number of partitions."""
        return (murmurhash2(key, _KAFKA_SEED) & _KAFKA_MASK) % count

    return murmur2
