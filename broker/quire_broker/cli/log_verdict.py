"""What `quire log verify` has to say of a log, as data and for people."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from quire.cli.text import count, number, one_line, size
from quire_broker.cli.text import span

Kind = Literal["batch", "segment", "missing", "quarantined", "checkpoint", "index", "timeindex", "producers"]
_INDENT: Final = 10

NoteKind = Literal["torn_tail", "removal", "synced_mark", "below_start", "changing"]


@dataclass(frozen=True)
class Finding:
    """Damage: what is not as it was written."""

    kind: Kind
    path: str
    reason: str
    advice: str
    position: int | None = None
    end_position: int | None = None
    first_offset: int | None = None
    end_offset: int | None = None
    quarantined: bool = False
    """The broker knows, and does not serve these offsets."""


@dataclass(frozen=True)
class Note:
    """What is worth knowing and no damage."""

    kind: NoteKind
    path: str
    text: str
    position: int | None = None
    offset: int | None = None


@dataclass
class SegmentCount:
    path: str
    base_offset: int
    end_offset: int
    batches: int = 0
    records: int = 0
    checked_bytes: int = 0


@dataclass
class Verdict:
    directory: str
    start_offset: int
    end_offset: int
    segments: list[SegmentCount] = field(default_factory=list)
    damage: list[Finding] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not self.damage

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "sound": self.sound}


def show(verdict: Verdict, console: Console) -> None:
    console.print(Text(one_line(verdict.directory), style="bold"), soft_wrap=True)
    console.print(_segments(verdict))
    for n, finding in enumerate(verdict.damage, start=1):
        console.print()
        title = f"damage {n} of {len(verdict.damage)}: {_what(finding)}"
        console.print(Text(title, style="bold red"), soft_wrap=True)
        where = []
        if finding.position is not None:
            last = "" if finding.end_position is None else f" to {finding.end_position - 1}"
            where.append(("bytes", f"{finding.position}{last}"))
        if finding.first_offset is not None:
            where.append(("offsets", span(finding.first_offset, finding.end_offset)))
        _lines(console, [("file", finding.path), *where, ("reason", finding.reason), ("to do", finding.advice)])
    for note in verdict.notes:
        console.print()
        console.print(Text(f"note: {note.kind.replace('_', ' ')}", style="yellow"), soft_wrap=True)
        byte = [] if note.position is None else [("byte", str(note.position))]
        _lines(console, [("file", note.path), *byte, ("what", note.text)])
    console.print()
    batches = sum(segment.batches for segment in verdict.segments)
    records = sum(segment.records for segment in verdict.segments)
    checked = sum(segment.checked_bytes for segment in verdict.segments)
    result = "sound" if verdict.sound else f"DAMAGED in {count(len(verdict.damage), 'place')}"
    console.print(
        Text(result, style="bold green" if verdict.sound else "bold red"),
        Text(f"· {count(batches, 'good batch', 'good batches')}, {count(records, 'record')}, {size(checked)}"),
    )


def _segments(verdict: Verdict) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for title in ("base offset", "end offset", "bytes", "batches", "records"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("found")
    for segment in verdict.segments:
        stem = segment.path.removesuffix(".log")
        damaged = sorted({finding.kind for finding in verdict.damage if finding.path.startswith(f"{stem}.")})
        noted = [note.kind.replace("_", " ") for note in verdict.notes if note.path == segment.path]
        found = Text("sound", style="green")
        if damaged:
            found = Text(f"DAMAGED: {', '.join(damaged)}", style="bold red")
        elif noted:
            found = Text(", ".join(noted), style="yellow")
        table.add_row(
            str(segment.base_offset),
            str(segment.end_offset),
            number(segment.checked_bytes),
            number(segment.batches),
            number(segment.records),
            found,
        )
    return table


def _what(finding: Finding) -> str:
    what = {
        "batch": "a batch does not check",
        "segment": "a segment is too short",
        "missing": "offsets are missing",
        "quarantined": "offsets are quarantined",
        "checkpoint": "the checkpoint is damaged",
        "index": "an offset index is damaged",
        "timeindex": "a time index is damaged",
        "producers": "a producer snapshot is damaged",
    }[finding.kind]
    return f"{what} (known to the broker)" if finding.quarantined else what


def _lines(console: Console, lines: list[tuple[str, str]]) -> None:
    """Not a table: a path must stay in one piece, to be copied."""
    for name, text in lines:
        title, *rest = textwrap.wrap(
            one_line(text), max(40, console.width - _INDENT), break_long_words=False, break_on_hyphens=False
        )
        if name == "file":
            title, rest = one_line(text), []
        console.print(Text.assemble((f"  {name}".ljust(_INDENT), "dim"), title), soft_wrap=True)
        for line in rest:
            console.print(Text(" " * _INDENT + line), soft_wrap=True)
