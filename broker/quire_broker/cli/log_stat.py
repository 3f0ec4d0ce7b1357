"""`quire log stat`: what a log is, from its checkpoint, seals and tail, without reading the rest."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from quire.cli.text import count, number, one_line, size
from quire.errors import DamagedFileError
from quire_broker.cli.log_picture import Picture, SegmentFile
from quire_broker.cli.text import iso_time, span
from quire_broker.log import snapshots
from quire_broker.log.epochs import EpochStart
from quire_broker.log.index import BEGINNING
from quire_broker.log.producers import Producers
from quire_broker.log.ranges import OffsetRange
from quire_broker.log.scan import Found

UNBOUNDED: Final = 1 << 62
_EPOCHS_SHOWN: Final = 8


@dataclass
class SegmentStat:
    path: str
    base_offset: int
    end_offset: int
    size_bytes: int
    batches: int | None
    """None where counting would take reading it all."""
    max_timestamp: str | None
    sealed: bool


@dataclass
class LogStat:
    directory: str
    start_offset: int | None
    end_offset: int
    recovery_point: int | None
    synced_mark: int | None
    size_bytes: int
    leader_epochs: list[EpochStart] | None
    producers: int
    quarantined: list[OffsetRange] | None
    segments: list[SegmentStat]
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        body = asdict(self)
        for name, items in (("leader_epochs", self.leader_epochs), ("quarantined", self.quarantined)):
            body[name] = None if items is None else [item._asdict() for item in items]
        return body


def stat(picture: Picture) -> LogStat:
    return _Stat(picture).run()


class _Stat:
    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        self._notes: list[str] = []
        self._producers = Producers(producers_max=UNBOUNDED, expiry_ms=UNBOUNDED)
        self._known_from = 0
        """Up to where the producers' state was read; batches from here on are learned."""

    def run(self) -> LogStat:
        picture = self._picture
        if picture.checkpoint_error is not None:
            self._notes.append(f"{picture.checkpoint_error}; start, epochs and quarantined ranges are not known")
        if picture.synced_mark is None:
            self._notes.append("the synced mark is not whole, and counts for nothing")
        if picture.leaving:
            self._notes.append(f"{count(len(picture.leaving), 'segment')} being removed; opening finishes it")
        self._load_producers()
        segments: list[SegmentStat] = []
        end = picture.start_offset
        for segment in picture.segments:
            self._note_missing(end, segment.base_offset)
            segments.append(self._segment(segment))
            end = max(end, segments[-1].end_offset)
            if picture.ends_early(segment, end):
                self._notes.append(f"what follows offset {end} was never acknowledged; the next opening removes it")
                break
        self._note_missing(end, picture.acknowledged)
        return LogStat(
            directory=picture.directory,
            start_offset=picture.start_offset if picture.trusted else None,
            end_offset=max(end, picture.acknowledged),
            recovery_point=picture.recovery_point if picture.trusted else None,
            synced_mark=picture.synced_mark,
            size_bytes=sum(segment.size_bytes for segment in segments),
            leader_epochs=list(picture.epochs or ()) if picture.trusted else None,
            producers=len(self._producers),
            quarantined=list(picture.quarantined) if picture.trusted else None,
            segments=segments,
            notes=self._notes,
        )

    def _note_missing(self, first: int, end: int) -> None:
        known = self._picture.quarantined.holding(first)
        if known is not None:
            first = known.end_offset
        if first < end:
            self._notes.append(f"offsets {span(first, end)} are missing; see `quire log verify`")

    def _load_producers(self) -> None:
        """From the newest snapshot; the tail adds to it."""
        picture = self._picture
        try:
            self._known_from = snapshots.load_newest(
                picture.disk, picture.directory, self._producers, at_most=picture.recovery_point
            )
        except DamagedFileError as error:
            self._notes.append(error.message)

    def _segment(self, segment: SegmentFile) -> SegmentStat:
        picture = self._picture
        seal = picture.seal(segment)
        following = segment.next_base_offset
        if seal is not None and following is not None and seal.end_offset <= following:
            if seal.size_bytes > segment.size_bytes:
                self._notes.append(
                    f"{segment.path} has {segment.size_bytes} bytes, its index says {seal.size_bytes}; "
                    f"see `quire log verify`"
                )
            return SegmentStat(
                path=segment.path,
                base_offset=segment.base_offset,
                end_offset=seal.end_offset,
                size_bytes=segment.size_bytes,
                batches=None,
                max_timestamp=iso_time(seal.max_timestamp_ms),
                sealed=True,
            )
        if picture.must_be_sealed(segment):
            self._notes.append(f"the index of {segment.path} has no good seal; it is rebuilt at the next opening")
        return self._read_tail(segment)

    def _read_tail(self, segment: SegmentFile) -> SegmentStat:
        picture = self._picture
        begin, max_timestamp_ms = picture.floor(segment, picture.recovery_point)
        end, batches = segment.base_offset + begin.relative_offset, 0
        for item in picture.scan(segment, begin):
            if isinstance(item, Found):
                batches += 1
                end = item.header.end_offset
                max_timestamp_ms = max(max_timestamp_ms, item.header.max_timestamp_ms)
                if item.header.base_offset >= self._known_from:
                    self._producers.learn(item.header, now_ms=item.header.max_timestamp_ms)
                continue
            if picture.is_torn(item, segment):
                self._notes.append(
                    f"{segment.path} has a torn tail from byte {item.position} on: it was never acknowledged"
                )
                break
            end = picture.lost_until(item, segment)
            self._notes.append(
                f"offsets {span(item.first_offset, end)} are damaged at byte {item.position} of {segment.path}; "
                f"see `quire log verify`"
            )
        return SegmentStat(
            path=segment.path,
            base_offset=segment.base_offset,
            end_offset=end,
            size_bytes=segment.size_bytes,
            batches=batches if begin == BEGINNING else None,
            max_timestamp=iso_time(max_timestamp_ms),
            sealed=False,
        )


def show(stat: LogStat, console: Console) -> None:
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    unknown = Text("unknown", style="yellow")
    facts.add_row("start offset", unknown if stat.start_offset is None else str(stat.start_offset))
    facts.add_row("end offset", str(stat.end_offset))
    facts.add_row("recovery point", unknown if stat.recovery_point is None else str(stat.recovery_point))
    facts.add_row("synced mark", unknown if stat.synced_mark is None else str(stat.synced_mark))
    facts.add_row("size", f"{size(stat.size_bytes)} in {count(len(stat.segments), 'segment')}")
    facts.add_row("leader epochs", unknown if stat.leader_epochs is None else _epochs(stat.leader_epochs))
    facts.add_row("producers", number(stat.producers))
    facts.add_row("quarantined", unknown if stat.quarantined is None else _quarantined(stat.quarantined))
    for note in stat.notes:
        facts.add_row(Text("note", style="yellow"), Text(one_line(note)))
    segments = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for title in ("base offset", "end offset", "bytes", "batches"):
        segments.add_column(title, justify="right", no_wrap=True)
    for title in ("largest timestamp", "state"):
        segments.add_column(title, no_wrap=True)
    for segment in stat.segments:
        segments.add_row(
            str(segment.base_offset),
            str(segment.end_offset),
            number(segment.size_bytes),
            "" if segment.batches is None else number(segment.batches),
            segment.max_timestamp or "",
            "sealed" if segment.sealed else "active" if segment is stat.segments[-1] else "not sealed",
        )
    console.print(Text(one_line(stat.directory), style="bold"), soft_wrap=True)
    console.print(facts)
    console.print()
    console.print(segments)


def _epochs(epochs: list[EpochStart]) -> str:
    """`3 from offset 0, 5 from 120`; of many the newest."""
    if not epochs:
        return "none"
    shown = epochs[-_EPOCHS_SHOWN:]
    text = ", ".join(f"{epoch} from offset {start}" for epoch, start in shown)
    return text if len(shown) == len(epochs) else f"… {text}"


def _quarantined(ranges: list[OffsetRange]) -> Text:
    if not ranges:
        return Text("none")
    return Text("offsets " + ", ".join(span(*lost) for lost in ranges), style="bold red")
