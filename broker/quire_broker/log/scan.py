"""Walking over a segment and believing nothing.

Used where trust has to be earned: at opening past the recovery point, when a read meets something odd, and by
`quire log verify`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from crc32c import crc32c

from quire.disk.port import DiskFile
from quire.errors import ChecksumMismatchError, DiskIoError, MalformedBatchError
from quire.records.header import (
    BATCH_BYTES_MAX,
    CRC_FIELD,
    CRC_START,
    HEADER_BYTES,
    MAGIC,
    BatchHeader,
    check_crc,
    parse_header,
)
from quire_broker.log.epochs import LeaderEpochs

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
            self._data = memoryview(
                _read_around(self._file, position, min(max(size, _CHUNK_BYTES), self._end - position))
            )
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
        """The next place after `position` where valid batches go on, if there is one.

        A record may hold bytes that look like a batch, offset and all, and even lead to the next real one. So a place
        is believed only by somebody else's word: that of the damaged batch itself, as far as it is coherent, or
        that of an index.
        """
        at = bisect_right(self._anchors, position, key=lambda anchor: anchor.position)
        anchor = self._anchors[at] if at < len(self._anchors) else None
        claim = _Claim(self.read(position, HEADER_BYTES), position, expected_offset)
        if anchor is None:
            if self._is_last(position, claim):
                return None
            return self._successor(position, claim, anchor) or self._search(position, claim)
        if claim.end_position != anchor.position and (found := self._successor(position, claim, anchor)) is not None:
            return found
        for later in self._anchors[at:]:
            header = self.examine(later.position, later.offset)
            if isinstance(header, BatchHeader) and later.offset > expected_offset:
                return Found(later.position, header)
        return None

    def _is_last(self, position: int, claim: _Claim) -> bool:
        """Whether a damaged batch says that nothing is behind it."""
        if claim.end_position == self._end:
            return True
        size = self._end - position
        return size <= BATCH_BYTES_MAX and crc32c(self.read(position, size)[CRC_START:]) == claim.crc

    def _successor(self, position: int, claim: _Claim, anchor: Anchor | None) -> Found | None:
        """The batch behind a damaged one by the latter's word: where its length says, or where its CRC holds.

        If its length was damaged its CRC tells where it ends; if anything else was, its length does. Where both lead
        to a batch, at different places, one of the two was made to deceive.
        """
        limit = self._end if anchor is None else anchor.position
        found: set[Found] = set()
        if claim.end_position < limit:
            header = self.examine(claim.end_position, claim.next_offset, exactly=claim.is_coherent)
            if isinstance(header, BatchHeader) and (
                claim.is_coherent or self._leads_on(claim.end_position, header, anchor)
            ):
                found.add(Found(claim.end_position, header))
        if claim.is_coherent:
            for end in self._ends_by_crc(position, limit, claim):
                header = self.examine(end, claim.next_offset)
                if isinstance(header, BatchHeader):
                    found.add(Found(end, header))
        return found.pop() if len(found) == 1 else None

    def _ends_by_crc(self, position: int, limit: int, claim: _Claim) -> Iterator[int]:
        """Where a batch may begin such that the CRC of the one at `position` holds up to there."""
        data = self.read(position, min(BATCH_BYTES_MAX, limit - position))
        crc, crc_end = 0, CRC_START
        for match in _headers_near(claim.next_offset).finditer(data, HEADER_BYTES):
            crc, crc_end = crc32c(data[crc_end : match.start()], crc), match.start()
            if crc == claim.crc:
                yield position + match.start()

    def _search(self, position: int, claim: _Claim) -> Found | None:
        """Any batch from which valid ones lead to the end, for want of a better: past the last entry of the index."""
        tried: set[int] = set()
        for candidate in self._candidates(position + 1, claim.next_offset):
            if candidate in tried:
                continue
            header = self.examine(candidate, claim.next_offset, exactly=False)
            if isinstance(header, BatchHeader) and self._leads_on(candidate, header, None, tried):
                return Found(candidate, header)
            tried.add(candidate)
            if len(tried) >= _CANDIDATES_MAX:
                break
        return None

    def _candidates(self, position: int, expected_offset: int) -> Iterator[int]:
        """Places where a batch may begin."""
        header = _headers_near(expected_offset)
        while position + HEADER_BYTES <= self._end:
            chunk = bytes(self.read(position, min(_CHUNK_BYTES, self._end - position)))
            if len(chunk) < HEADER_BYTES:
                return  # the file is shorter than it was
            for match in header.finditer(chunk):
                yield position + match.start()
            position += len(chunk) - HEADER_BYTES + 1

    def _leads_on(
        self, position: int, header: BatchHeader, anchor: Anchor | None, seen: set[int] | None = None
    ) -> bool:
        """Whether from a batch that checks valid ones lead to the next that the index knows, or else to the end.

        One that is the last itself leads nowhere: its offset, which is not under the CRC, must be the known end's.
        """
        first, end = header, position + header.size_bytes
        while (end < anchor.position) if anchor is not None else (end < self._end):
            if anchor is None and header.end_offset == self._end_offset:
                return True
            if seen is not None:
                seen.add(end)
            successor = self.examine(end, header.end_offset)
            if not isinstance(successor, BatchHeader):
                return False
            header, end = successor, end + successor.size_bytes
        if anchor is None:
            return header is not first or self._end_offset in (None, header.end_offset)
        return (end, header.end_offset) == (anchor.position, anchor.offset)


class _Claim:
    """What a damaged batch says of itself."""

    def __init__(self, header: memoryview, position: int, offset: int) -> None:
        fields = bytes(header).ljust(HEADER_BYTES, b"\x00")
        count = int.from_bytes(fields[57:61], "big")
        self.is_coherent = count > 0 and count == int.from_bytes(fields[23:27], "big") + 1
        """It says twice how many offsets it takes, and the same."""
        self.next_offset = offset + count if self.is_coherent else offset + 1
        """Of the batch behind it, or the lowest that one can have."""
        self.end_position = position + _claimed_bytes(header)
        self.crc = int.from_bytes(fields[CRC_FIELD:CRC_START], "big")


@lru_cache(maxsize=8)
def _headers_like(upper: bytes) -> re.Pattern[bytes]:
    return re.compile(rb"(?=%b.{4}[\x00\x01].{3}.{4}%b)" % (re.escape(upper), bytes([MAGIC])), re.DOTALL)


def _headers_near(offset: int) -> re.Pattern[bytes]:
    """Finds headers: a base offset shares its upper half with its neighbours, a length is below 2**25, magic is 2."""
    return _headers_like((offset >> 32).to_bytes(4, "big"))


def _read_around(file: DiskFile, position: int, size: int) -> bytes:
    """What can be read. For what cannot something else than zeros: it was written once, and is damaged now."""
    try:
        return file.read(position, size)
    except DiskIoError:
        parts = []
        while size > 0:
            part = min(size, _SECTOR_BYTES - position % _SECTOR_BYTES)
            try:
                parts.append(file.read(position, part))
            except DiskIoError:
                parts.append(b"\xff" * part)
            position, size = position + part, size - part
        return b"".join(parts)


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
