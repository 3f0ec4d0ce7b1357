"""Names for the integers that must not be mixed up.

They cost nothing at run time; the type checker refuses an `Offset` where a `LeaderEpoch` is wanted.
"""

from typing import NewType

Offset = NewType("Offset", int)
"""A record's place in a partition. An *end* offset is exclusive: the offset that the next record will get."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""Which leadership of a partition wrote a batch. Rises with every election."""

ProducerId = NewType("ProducerId", int)
"""Identifies an idempotent producer; -1 where there is none."""

NO_PRODUCER = ProducerId(-1)
NO_EPOCH = LeaderEpoch(-1)

Buffer = bytes | bytearray | memoryview
"""Anything that holds contiguous bytes."""
