"""Records of one partition that travel together and share a fate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from quire._client.promise import Promise
from quire._client.stored import OFFSET_UNKNOWN, Placed, Stored, StoredRange
from quire.errors import BatchTooLargeError, QuireError
from quire.records import (
    HEADER_BYTES,
    BatchBuilder,
    Codec,
    Header,
    encode_columns,
    pack_batch,
    parse_header,
)

if TYPE_CHECKING:
    from quire._client.outbox import Outbox

NOTHING_LOOSE: Final = -1
_NO_HEADERS: Final[Sequence[Header]] = ()


class Batch(Promise[Placed | QuireError]):
    """From its first record until its outcome.

    Records are columns, and columns that nobody needs are None: most records have neither headers nor a timestamp of
    their own, and then a whole batch is encoded without a step of Python for each.
    """

    __slots__ = (
        "attempt",
        "base_sequence",
        "count",
        "deadline_ms",
        "encoded",
        "headers",
        "keys",
        "loose_epoch",
        "observed",
        "opened_ms",
        "order",
        "outbox",
        "problem",
        "sent_epoch",
        "size_bytes",
        "timestamp_ms",
        "timestamps",
        "values",
    )

    def __init__(self, outbox: Outbox, *, timestamp_ms: int, opened_ms: float, deadline_ms: float) -> None:
        super().__init__()
        self.outbox = outbox
        self.timestamp_ms = timestamp_ms
        self.opened_ms = opened_ms
        self.deadline_ms = deadline_ms
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] | None = None
        self.headers: list[Sequence[Header]] | None = None
        self.timestamps: list[int] | None = None
        self.size_bytes = 0
        """What its records count against the buffer: no less than what they take encoded."""
        self.observed = False
        """Whether somebody asked for the outcome, so that it need not be raised by `flush`."""
        # -- once it is on its way
        self.count = 0
        self.encoded = b""
        self.order = -1
        """Its place among all batches of the partition; -1 until it has a sequence."""
        self.base_sequence = -1
        self.attempt = 0
        """Which attempt an answer has to be to, or it is of the past. 0 while none is under way."""
        self.sent_epoch = NOTHING_LOOSE
        """The leader epoch that the attempt under way is addressed to."""
        self.loose_epoch = NOTHING_LOOSE
        """The highest leader epoch that an attempt without an answer was addressed to: it may yet be carried out."""
        self.problem: QuireError | None = None
        """What the newest attempt came to, for whoever is told that none succeeded."""

    # -- records -----------------------------------------------------------------------------------------------------

    def add_key(self, key: bytes | None) -> None:
        """Of the newest record; called for every record from the first one with a key on."""
        if self.keys is None:
            self.keys = [None] * (len(self.values) - 1)
        self.keys.append(key)

    def add_special(self, headers: Sequence[Header], timestamp_ms: int | None) -> None:
        """Headers and timestamp of the newest record; called for every record from the first special one on."""
        if self.headers is None or self.timestamps is None:
            before = len(self.values) - 1
            self.headers = [_NO_HEADERS] * before
            self.timestamps = [self.timestamp_ms] * before
        self.headers.append(headers)
        self.timestamps.append(self.timestamp_ms if timestamp_ms is None else timestamp_ms)

    # -- the wire ----------------------------------------------------------------------------------------------------

    def encode(self, *, producer_id: int, producer_epoch: int, base_sequence: int, codec: Codec) -> None:
        """Make the bytes that travel, once; later only who sends them under which sequence may change."""
        if self.encoded:
            self._readdress(producer_id, producer_epoch, base_sequence)
        elif self.headers is None or self.timestamps is None:
            self.encoded = encode_columns(
                self.values,
                keys=self.keys,
                timestamp_ms=self.timestamp_ms,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=base_sequence,
                codec=codec,
            )
        else:
            builder = BatchBuilder()
            keys = self.keys or [None] * len(self.values)
            for record in zip(keys, self.values, self.headers, self.timestamps, strict=True):
                if not builder.append(*record):
                    raise BatchTooLargeError("the records of a batch take more than was counted; send smaller ones")
            self.encoded = builder.build(
                producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence, codec=codec
            )
        self.count = len(self.values) or self.count
        self.base_sequence = base_sequence
        # The bytes say it all from here on, and would otherwise lie in memory twice.
        self.values, self.keys, self.headers = [], None, None

    def _readdress(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        header = parse_header(self.encoded)._replace(
            producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence
        )
        self.encoded = pack_batch(header, memoryview(self.encoded)[HEADER_BYTES:])

    def forget_records(self) -> None:
        """Whoever keeps a delivery keeps this batch, and shall not keep its bytes."""
        self.values, self.keys, self.headers, self.encoded = [], None, None, b""

    # -- the outcome -------------------------------------------------------------------------------------------------

    def stored(self, index: int) -> Stored:
        """Of one record. Raises what became of it instead, if it was not stored."""
        placed = self._placed()
        offset = placed.base_offset + index if placed.base_offset >= 0 else OFFSET_UNKNOWN
        timestamp_ms = self.timestamp_ms if self.timestamps is None else self.timestamps[index]
        outbox = self.outbox
        return Stored(outbox.topic.name, outbox.partition, offset, timestamp_ms, placed.duplicate, placed.durability)

    def stored_range(self, first: int, count: int) -> StoredRange:
        """Of records that were taken together."""
        return _range(self.stored(first), count)

    def _placed(self) -> Placed:
        outcome = self.outcome
        if isinstance(outcome, Placed):
            return outcome
        if outcome is None:
            raise RuntimeError("asked before there is an outcome")
        # Without its history: one error is raised at many places, and each would add its frames to those before.
        raise outcome.with_traceback(None)


def _range(first: Stored, count: int) -> StoredRange:
    return StoredRange(
        first.topic, first.partition, first.offset, count, first.timestamp_ms, first.duplicate, first.durability
    )
