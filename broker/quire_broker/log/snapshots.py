"""Where the state of idempotent producers is kept: `<offset, 20 digits>.producers`, as of just before that offset."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

from quire.disk.framed import read_whole, stage
from quire.disk.port import Disk
from quire.errors import DamagedFileError, DiskIoError
from quire.records.header import BatchHeader
from quire_broker.log.producers import Producers

SUFFIX: Final = ".producers"
KEPT: Final = 3
SEGMENTS_KEPT: Final = 16
"""The newest are kept, and the newest of each of the last segments: a truncation goes on from an older one."""

_NAME = re.compile(r"(\d{20})\.producers")
_BYTES_MAX: Final = 1 << 30


def path_of(directory: str, offset: int) -> str:
    return f"{directory}/{offset:020d}{SUFFIX}"


def offsets(names: Iterable[str]) -> list[int]:
    """Of which offsets there are snapshots among a directory's names, oldest first."""
    return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))


def remove_after(disk: Disk, directory: str, offset: int) -> None:
    """Delete the snapshots of later offsets: what they tell of is being removed, or never came about."""
    for later in offsets(disk.names(directory)):
        if later > offset:
            disk.remove(path_of(directory, later))


def remove_superfluous(disk: Disk, directory: str, segment_bases: Sequence[int]) -> None:
    """Delete what a truncation is not likely to need any more."""
    have = offsets(disk.names(directory))
    newest_of_segment = {bisect_right(segment_bases, offset - 1): offset for offset in have}
    recent = range(len(segment_bases) - SEGMENTS_KEPT + 1, len(segment_bases) + 1)
    keep = {*have[-KEPT:], *(offset for segment, offset in newest_of_segment.items() if segment in recent)}
    for offset in have:
        if offset not in keep:
            disk.remove(path_of(directory, offset))


def load(disk: Disk, directory: str, offset: int, producers: Producers) -> int:
    """Fill `producers` from the snapshot that is named by `offset`, and return the offset that it holds itself."""
    path = path_of(directory, offset)
    return producers.load(read_whole(disk, path, bytes_max=_BYTES_MAX), path=path)


def learn_late(
    disk: Disk, directory: str, headers: Sequence[BatchHeader], *, scratch: Producers, now_ms: int
) -> None:
    """Tell the snapshots that were taken behind some batches while those could not be read. `scratch` is overwritten.

    Without them a truncation would go on from a state that takes a retry of such a batch for a new one.
    """
    for offset in offsets(disk.names(directory)):
        before = [header for header in headers if header.end_offset <= offset]
        if not before:
            continue
        try:
            held = load(disk, directory, offset, scratch)
        except (DamagedFileError, DiskIoError):
            continue  # whoever needs it goes on from an older one
        news = [header for header in before if scratch.learn_late(header, now_ms=now_ms)]
        if held == offset and news:
            stage(disk, path_of(directory, offset), scratch.to_bytes(offset))


def load_newest(disk: Disk, directory: str, producers: Producers, *, at_most: int) -> int:
    """Fill `producers` from the newest good snapshot as of `at_most` or before; 0 and no producers without one."""
    for offset in reversed(offsets(disk.names(directory))):
        if offset <= at_most:
            try:
                if load(disk, directory, offset, producers) == offset:
                    return offset
            except DamagedFileError:
                pass  # an older one and a longer replay give the same
    producers.clear()
    return 0
