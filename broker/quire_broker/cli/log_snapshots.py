"""Holding the snapshots of idempotent producers against the batches of the log, as those come by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from quire.errors import DamagedFileError
from quire.records.header import BatchHeader
from quire_broker.cli.log_picture import Picture
from quire_broker.log import snapshots
from quire_broker.log.producers import Producer, Producers, SentBatch
from quire_broker.log.ranges import OffsetRanges

_UNBOUNDED: Final = 1 << 62


class SnapshotCheck:
    """Of each file the first thing that is wrong is kept. What a snapshot leaves out may have been forgotten by age;
    what it tells of a batch must be what that batch says.

    Snapshots past the recovery point count for nothing: opening discards them.
    """

    def __init__(self, picture: Picture) -> None:
        self._wrong: dict[str, str] = {}
        self._first_offset = picture.segments[0].base_offset if picture.segments else picture.start_offset
        self._claims: dict[int, list[tuple[str, int, int, SentBatch]]] = {}
        """By base offset: (path, producer id, producer epoch, what it has sent)."""
        self._producers = Producers(producers_max=_UNBOUNDED, expiry_ms=_UNBOUNDED)
        for offset in snapshots.offsets(picture.disk.names(picture.directory)):
            if offset <= picture.recovery_point or not picture.trusted:
                self._load(picture, offset)

    def _load(self, picture: Picture, offset: int) -> None:
        path = snapshots.path_of(picture.directory, offset)
        try:
            held = snapshots.load(picture.disk, picture.directory, offset, self._producers)
        except DamagedFileError as error:
            self._wrong[path] = error.message
            return
        if held != offset:
            self._wrong[path] = f"it was taken at offset {held}, its name says {offset}"
            return
        for producer_id, producer in self._producers.items():
            self._claim(path, offset, producer_id, producer)

    def _claim(self, path: str, offset: int, producer_id: int, producer: Producer) -> None:
        for sent in producer.batches:
            if sent.base_offset >= offset:
                self._wrong.setdefault(path, f"it tells of offset {sent.base_offset}, and is as of {offset}")
            elif sent.base_offset >= self._first_offset:
                claim = (path, producer_id, producer.epoch, sent)
                self._claims.setdefault(sent.base_offset, []).append(claim)

    def on_batch(self, header: BatchHeader) -> None:
        for path, producer_id, epoch, sent in self._claims.pop(header.base_offset, ()):
            held = (header.producer_id, header.producer_epoch, header.base_sequence)
            if held != (producer_id, epoch, sent.first_sequence):
                self._wrong.setdefault(
                    path,
                    f"it has producer {producer_id} epoch {epoch} sequence {sent.first_sequence} at offset "
                    f"{sent.base_offset}, the log has producer {held[0]} epoch {held[1]} sequence {held[2]}",
                )

    def finish(self, lost: OffsetRanges) -> Iterator[tuple[str, str]]:
        """(path, reason) of the files that are wrong, once all batches but those of `lost` ranges were seen."""
        for offset, claims in sorted(self._claims.items()):
            if lost.holding(offset) is None:
                for path, producer_id, *_ in claims:
                    self._wrong.setdefault(
                        path, f"it has a batch of producer {producer_id} at offset {offset}, where none begins"
                    )
        yield from sorted(self._wrong.items())
