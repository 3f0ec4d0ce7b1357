"""Walking over a segment and believing nothing.

Used where trust has to be earned: at opening past the recovery point, when a read meets something odd, and by
`quire log verify`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from quire.errors import ChecksumMismatchError, MalformedBatchError
from quire.records.header import HEADER_BYTES, MAGIC, BatchHeader, check_crc, parse_header
from quire_broker.log.epochs import LeaderEpochs
from quire_broker.ports import DiskFile

_CHUNK_BYTES: Final = 1024 * 1024
_SECTOR_BYTES: Final = 512
_LENGTH_END: Final = 12
_CANDIDATES_MAX: Final = 1000
"""Places looked at in search of the next batch. Past that the rest of the stretch counts as damaged: a value made of
a million look-alikes must not keep a broker from starting."""


class Found(NamedTuple):
    """A batch that checks."""

    position: int
    header: BatchHeader


class Damage(NamedTuple):
    """Bytes that are no batch, or not the batch that belongs there."""

    path: str
    position: int
    end_position: int
    first_offset: int
    end_offset: int | None
    """Where valid offsets go on; None if nothing valid follows in this segment."""
    reason: str
    never_written: bool
    """It is cut off by the file's end or has a blank sector: it looks like a write that did not wholly arrive,
    not like one that was changed."""


class Anchor(NamedTuple):
    """Where a batch is known to begin, by the word of an index."""

    offset: int
    position: int


def scan(
    file: DiskFile,
    *,
    path: str,
    position: int,
    end_position: int,
    expected_offset: int,
    epochs: LeaderEpochs | None,
    end_offset: int | None = None,
    anchors: Sequence[Anchor] = (),
    on_progress: Callable[[int], None] | None = None,
) -> Iterator[Found | Damage]:
    """Check every batch from `position` on. Without `epochs` any epoch is believed.

    `end_offset`, where it is known, and `anchors` help to find out how it goes on behind damage.
    """
    segment = _Unproven(file, end_position, end_offset, epochs, anchors)
    while position < end_position:
        if on_progress is not None:
            on_progress(position)
        batch = segment.examine(position, expected_offset)
        if isinstance(batch, BatchHeader):
            yield Found(position, batch)
            expected_offset = batch.end_offset
            position += batch.size_bytes
            continue
        found = segment.resume_after(position, expected_offset)
        end = end_position if found is None else found.position
        yield Damage(
            path=path,
            position=position,
            end_position=end,
            first_offset=expected_offset,
            end_offset=None if found is None else found.header.base_offset,
            reason=batch,
            never_written=(found is None and segment.is_cut_off(position))
            or _has_blank_sector(segment.read(position, end - position), position, expected_offset),
        )
        if found is None:
            return
        expected_offset, position = found.header.base_offset, found.position


class _Unproven:
    """A segment's bytes, read ahead so that a walk over small batches costs one read a megabyte."""

    def __init__(
        self,
        file: DiskFile,
        end_position: int,
        end_offset: int | None,
        epochs: LeaderEpochs | None,
        anchors: Sequence[Anchor],
    ) -> None:
        self._file = file
        self._end = end_position
        self._end_offset = end_offset
        self._epochs = epochs
        self._anchors = [anchor for anchor in anchors if anchor.position < end_position]
        self._start = 0
        self._data = memoryview(b"")

    def read(self, position: int, size: int) -> memoryview:
        """Up to `size` bytes, fewer only at the end."""
        size = max(0, min(size, self._end - position))
        at = position - self._start
        if at < 0 or at + size > len(self._data):
            self._data = memoryview(self._file.read(position, min(max(size, _CHUNK_BYTES), self._end - position)))
            self._start, at = position, 0
        return self._data[at : at + size]

    def examine(self, position: int, expected_offset: int, *, exactly: bool = True) -> BatchHeader | str:
        """The batch's header, or what is wrong. `exactly=False` lets the offset be any from `expected_offset` on."""
        try:
            header = parse_header(self.read(position, HEADER_BYTES))
        except MalformedBatchError as error:
            return error.message
        if header.base_offset != expected_offset and (exactly or header.base_offset < expected_offset):
            return f"base offset is {header.base_offset} where {expected_offset} belongs"
        if self._epochs is not None and header.leader_epoch != (epoch := self._epochs.at(header.base_offset)):
            return f"leader epoch is {header.leader_epoch} where {epoch} belongs"
        if header.record_count != header.last_offset_delta + 1:
            return f"{header.record_count} records for {header.last_offset_delta + 1} offsets"
        data = self.read(position, header.size_bytes)
        if len(data) < header.size_bytes:
            return f"batch of {header.size_bytes} bytes is cut off after {len(data)}"
        try:
            check_crc(data, header)
        except ChecksumMismatchError as error:
            return error.message
        return header

    def is_cut_off(self, position: int) -> bool:
        """Whether the batch at `position` would go on past the end."""
        header = self.read(position, HEADER_BYTES)
        return len(header) < HEADER_BYTES or position + _claimed_bytes(header) > self._end

    def resume_after(self, position: int, expected_offset: int) -> Found | None:
        """The next place after `position` where valid batches go on, if there is one."""
        at = bisect_right(self._anchors, position, key=lambda anchor: anchor.position)
        anchor = self._anchors[at] if at < len(self._anchors) else None
        limit = self._end if anchor is None else anchor.position
        tries = 0
        for candidate in self._candidates(position, limit, expected_offset):
            header = self.examine(candidate, expected_offset + 1, exactly=False)
            if isinstance(header, BatchHeader):
                after_claim = self._claimed_end(position, expected_offset) == (candidate, header.base_offset)
                if after_claim or self._confirmed(candidate, header, anchor):
                    return Found(candidate, header)
            if (tries := tries + 1) == _CANDIDATES_MAX:
                break
        for later in self._anchors[at:]:
            header = self.examine(later.position, later.offset)
            if isinstance(header, BatchHeader) and later.offset > expected_offset:
                return Found(later.position, header)
        return None

    def _claimed_end(self, position: int, expected_offset: int) -> tuple[int, int] | None:
        """Where the next batch begins, and with which offset, by the word of one that is damaged somewhere."""
        try:
            header = parse_header(self.read(position, HEADER_BYTES))
        except MalformedBatchError:
            return None
        return position + header.size_bytes, expected_offset + header.last_offset_delta + 1

    def _candidates(self, position: int, limit: int, expected_offset: int) -> Iterator[int]:
        """Places below `limit` where a batch may begin, the likeliest first."""
        # Most damage leaves the length alone: the batch after it begins where it should.
        if (claimed := position + _claimed_bytes(self.read(position, _LENGTH_END))) < limit:
            yield claimed
        # A base offset shares its upper half with its neighbours, a length is below 2**25, and magic is fixed.
        upper = re.escape((expected_offset >> 32).to_bytes(4, "big"))
        header = re.compile(rb"(?=%b.{4}[\x00\x01].{3}.{4}%b)" % (upper, bytes([MAGIC])), re.DOTALL)
        position += 1
        while position + HEADER_BYTES <= limit:
            chunk = bytes(self.read(position, min(_CHUNK_BYTES, limit - position)))
            if len(chunk) < HEADER_BYTES:
                return  # the file is shorter than it was
            for match in header.finditer(chunk):
                yield position + match.start()
            position += len(chunk) - HEADER_BYTES + 1

    def _confirmed(self, position: int, header: BatchHeader, anchor: Anchor | None) -> bool:
        """Whether somebody else vouches for a batch that checks, and for its offset, which is not under the CRC.

        A record's value may hold bytes that look like a batch. From a real one valid ones lead to the next that the
        index knows; past the last of those its successor goes on where it ends, or the segment is known to.
        """
        end = position + header.size_bytes
        if anchor is None:
            after = self.read(end, 8)
            if len(after) < 8:
                return header.end_offset == self._end_offset
            return int.from_bytes(after, "big") == header.end_offset
        while end < anchor.position:
            successor = self.examine(end, header.end_offset)
            if not isinstance(successor, BatchHeader):
                return False
            header, end = successor, end + successor.size_bytes
        return (end, header.end_offset) == (anchor.position, anchor.offset)


def _claimed_bytes(header: memoryview) -> int:
    return _LENGTH_END + int.from_bytes(header[8:_LENGTH_END], "big")


def _has_blank_sector(data: memoryview, position: int, expected_offset: int) -> bool:
    """Whether some sector's share of a damaged stretch is all zeros, as only a sector is that was never written.

    The share of the first sector may be a few bytes that a real batch has as zeros too; those say nothing.
    """
    blank = bytes(_SECTOR_BYTES)
    at = 0
    while at < len(data):
        end = min(len(data), at + _SECTOR_BYTES - (position + at) % _SECTOR_BYTES)
        if data[at:end] == blank[: end - at]:
            length_is_in_it = at == 0 and end >= _LENGTH_END
            if at > 0 or length_is_in_it or any(expected_offset.to_bytes(8, "big")[: end - at]):
                return True
        at = end
    return False
