"""Holds what was read against what was promised.

    add    each operation, in the order of the history: counts, positions of readers, facts
    finish facts by value: lost, unseen, duplicate, aborted, phantom
           facts by place: inconsistent offsets, and which gaps of readers had records in them
           facts by sender: what was reordered

Only positions of readers and a few numbers a partition are kept; facts go through sorters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Final

from quire.verify.anomalies import Anomaly, Kind, Report, Verdict
from quire.verify.gaps import Gap, Gaps
from quire.verify.line import Op, Operation, Type, UnreadableHistoryError
from quire.verify.sorting import Fact, NewSorter

PLACES_MAX: Final = 100_000
"""Partitions, and readers of a partition. A history with more of either is refused."""
SAME_MAX: Final = 1_000
"""So many acknowledgements and places of one value are looked at: it should have one of each."""
VALUE_CHARS_MAX: Final = 60
NONE: Final = -1
"""Where an offset or a partition is not known, in facts: they are compared, and None cannot be."""

INVOKED, ACKED, FAILED, UNKNOWN, POLLED, READ = range(6)
_OUTCOMES: Final = {Type.OK: ACKED, Type.FAIL: FAILED, Type.INFO: UNKNOWN, Type.INVOKE: INVOKED}

UNITS: Final = {
    Kind.LOST_WRITE: "stored values",
    Kind.UNSEEN: "acknowledged values",
    Kind.DUPLICATE: "values",
    Kind.INCONSISTENT_OFFSET: "offsets",
    Kind.ABORTED_READ: "failed sends",
    Kind.PHANTOM: "values read",
    Kind.REORDERED: "acknowledged values",
    Kind.POLL_SKIP: "records read",
    Kind.NON_MONOTONIC_POLL: "records read",
}


@dataclass(slots=True)
class _Partition:
    """What is known of one after all lines."""

    topic: str
    number: int
    highest: int = NONE
    """The highest offset that anyone read."""
    highest_line: int = 0
    full_from: int | None = None
    """From where on a full reader read it."""


@dataclass(slots=True)
class _Value:
    """What the history says of one value."""

    text: str
    invoked: Fact | None = None
    acked: list[Fact] = field(default_factory=list)
    failed: Fact | None = None
    unknown: Fact | None = None
    reads: dict[tuple[int, int], int] = field(default_factory=dict)
    """(place, offset) → the line that read it there first."""
    full: set[tuple[int, int]] = field(default_factory=set)

    @property
    def is_sent(self) -> bool:
        return bool(self.invoked or self.acked or self.failed or self.unknown)


class Judge:
    def __init__(self, new_sorter: NewSorter) -> None:
        self.report = Report(verdicts={kind: Verdict(kind=kind, unit=UNITS[kind]) for kind in Kind})
        self._by_value, self._by_place, self._gaps = new_sorter(), new_sorter(), new_sorter()
        self._by_sender, self._by_batch = new_sorter(), new_sorter()
        self._place_ids: dict[tuple[str, int], int] = {}
        self._places: list[_Partition] = []
        self._processes: dict[str, int] = {}
        self._names: list[str] = []
        self._positions: dict[tuple[int, int], tuple[int, int]] = {}
        """(process, place) → the last offset that it was handed, and in which line."""

    # -- lines -------------------------------------------------------------------------------------------------------

    def add(self, operation: Operation) -> None:
        op = operation.op
        if op == Op.SEND:
            self._on_send(operation)
        elif op in (Op.POLL, Op.READ):
            self._on_read(operation)
        elif op in (Op.ASSIGN, Op.SEEK) and operation.type in (Type.OK, Type.INVOKE, Type.INFO):
            self._on_moved(operation)

    def _on_send(self, operation: Operation) -> None:
        line, _, kind, _, topic, partition, values, offsets, _ = operation
        code = _OUTCOMES[Type(kind)]
        place = self._place(topic, partition, line) if partition >= 0 else NONE
        process = self._process(operation.process, line)
        add = self._by_value.add
        size = len(values)
        for index, value in enumerate(values):
            offset = NONE
            if code == ACKED:
                told = offsets[index]
                if told is not None:
                    offset = told
                    self._by_place.add((place, offset, value, line))
            add((value, code, line, place, offset, process, index, size))

    def _on_read(self, operation: Operation) -> None:
        line, _, _, op, topic, partition, values, offsets, start = operation
        place = self._place(topic, partition, line)
        process = self._process(operation.process, line)
        about = self._places[place]
        reader = (process, place)
        if reader not in self._positions and len(self._positions) >= PLACES_MAX:
            raise UnreadableHistoryError(f"more than {PLACES_MAX:,} readers of partitions", line=line)
        if op == Op.READ:
            code = READ
            if about.full_from is None or start < about.full_from:
                about.full_from = start
            self._positions.setdefault(reader, (start - 1, line))
            self.report.read += len(values)
        else:
            code = POLLED
            self.report.polled += len(values)
        position = self._positions.get(reader)
        before, before_line = position if position is not None else (None, 0)
        for offset, value in zip(offsets, values, strict=True):
            if offset is None:  # the parser lets only sends be unsure of it
                continue
            if before is not None and offset != before + 1:
                if offset <= before:
                    self._on_step_back(about, operation.process, (before, before_line), (offset, line), value)
                else:
                    self._gaps.add((place, before + 1, offset, process, before_line, line))
            before, before_line = offset, line
            self._by_value.add((value, code, line, place, offset, process, 0, 1))
            self._by_place.add((place, offset, value, line))
            if offset > about.highest:
                about.highest, about.highest_line = offset, line
        if before is not None:
            self._positions[reader] = (before, before_line)
        for kind in (Kind.POLL_SKIP, Kind.NON_MONOTONIC_POLL):
            self.report.verdicts[kind].checked += len(values)

    def _on_moved(self, operation: Operation) -> None:
        """Somebody was given other partitions, or goes on elsewhere."""
        process = self._process(operation.process, operation.line)
        if operation.topic and operation.partition >= 0:
            self._positions.pop((process, self._place(operation.topic, operation.partition, operation.line)), None)
            return
        for reader in [each for each in self._positions if each[0] == process]:
            if not operation.topic or self._places[reader[1]].topic == operation.topic:
                del self._positions[reader]

    def _on_step_back(
        self, about: _Partition, process: str, before: tuple[int, int], now: tuple[int, int], value: str
    ) -> None:
        self._found(
            Kind.NON_MONOTONIC_POLL,
            about,
            now[0],
            value,
            (before[1], now[1]),
            f"{process} was handed offset {before[0]}, and then offset {now[0]}, without having been moved",
        )

    def _place(self, topic: str, partition: int, line: int) -> int:
        key = (topic, partition)
        found = self._place_ids.get(key)
        if found is None:
            if len(self._places) >= PLACES_MAX:
                raise UnreadableHistoryError(f"more than {PLACES_MAX:,} partitions", line=line)
            found = self._place_ids[key] = len(self._places)
            self._places.append(_Partition(topic, partition))
        return found

    def _process(self, name: str, line: int) -> int:
        found = self._processes.get(name)
        if found is None:
            if len(self._names) >= PLACES_MAX:
                raise UnreadableHistoryError(f"more than {PLACES_MAX:,} processes", line=line)
            found = self._processes[name] = len(self._names)
            self._names.append(name)
        return found

    # -- the end -----------------------------------------------------------------------------------------------------

    def finish(self) -> Report:
        for text, facts in groupby(self._by_value.sorted(), key=itemgetter(0)):
            self._judge_value(_value(text, facts))
        self._judge_places()
        self._judge_order()
        self._judge_batches()
        self.report.partitions = len(self._places)
        for verdict in self.report.verdicts.values():
            verdict.settle()
        return self.report

    def _judge_value(self, value: _Value) -> None:
        report, verdicts = self.report, self.report.verdicts
        verdicts[Kind.DUPLICATE].checked += 1
        self._judge_duplicate(value)
        if value.reads:
            verdicts[Kind.PHANTOM].checked += 1
        if not value.is_sent:
            where, line = min(value.reads.items(), key=itemgetter(1))
            about = self._places[where[0]]
            text = "it was read, and nobody sent it"
            self._found(Kind.PHANTOM, about, where[1], value.text, (line,), text)
            return
        report.sends += 1
        if value.acked:
            report.acknowledged += 1
            self._judge_acked(value)
        elif value.failed is not None:
            report.failed += 1
            verdicts[Kind.ABORTED_READ].checked += 1
            for where, line in sorted(value.reads.items(), key=itemgetter(1))[:1]:
                text = f"sending it failed (line {value.failed[2]:,}), and it was read all the same (line {line:,})"
                lines = (value.failed[2], line)
                self._found(Kind.ABORTED_READ, self._places[where[0]], where[1], value.text, lines, text)
        else:
            report.unknown += 1
            if value.reads:
                verdicts[Kind.LOST_WRITE].checked += 1
                self._judge_read(value)
            self._note_batch(value)

    def _judge_duplicate(self, value: _Value) -> None:
        places: dict[tuple[int, int], int] = {}
        for fact in value.acked:
            if fact[4] != NONE:
                places.setdefault((fact[3], fact[4]), fact[2])
        for where, line in value.reads.items():
            places.setdefault(where, line)
        if len(places) < 2:
            return
        found = sorted(places.items(), key=itemgetter(1))
        (here, first_line), ((place, offset), line) = found[:2]
        text = f"it is at {self._at(*here)} (line {first_line:,}) and at {self._at(place, offset)} (line {line:,})"
        more = f", and {len(found) - 2} places more" if len(found) > 2 else ""
        lines = tuple(at for _, at in found[:10])
        self._found(Kind.DUPLICATE, self._places[place], offset, value.text, lines, text + more)

    def _judge_acked(self, value: _Value) -> None:
        told = value.acked[0]
        _, _, line, place, offset, process, index, _ = told
        about = self._places[place]
        if value.invoked is not None and offset != NONE:
            self._by_sender.add((process, place, value.invoked[2], index, offset, line, value.text))
        if about.full_from is None or NONE < offset < about.full_from:
            self.report.not_judged += 1
            return
        self.report.verdicts[Kind.LOST_WRITE].checked += 1
        self.report.verdicts[Kind.UNSEEN].checked += 1
        if value.full:
            return
        at = f"it was acknowledged at {self._at(place, offset)} (line {line:,})"
        if value.reads:
            where, seen = min(value.reads.items(), key=itemgetter(1))
            text = f"{at} and read (line {seen:,}), and no full reader found it"
            self._found(Kind.LOST_WRITE, about, where[1], value.text, (line, seen), text)
        elif offset <= about.highest and offset != NONE:
            text = f"{at}, somebody read offset {about.highest} (line {about.highest_line:,}), and nobody read it"
            self._found(Kind.LOST_WRITE, about, offset, value.text, (line, about.highest_line), text)
        else:
            text = f"{at}, and nobody read so far by the end"
            self._found(Kind.UNSEEN, about, None if offset == NONE else offset, value.text, (line,), text)

    def _judge_read(self, value: _Value) -> None:
        """Nobody knows of the sender whether it was stored; but somebody has seen it, so it was, and must stay."""
        (place, offset), line = min(value.reads.items(), key=itemgetter(1))
        about = self._places[place]
        if value.full or about.full_from is None or offset < about.full_from:
            return
        text = f"it was read at {self._at(place, offset)} (line {line:,}), and no full reader found it"
        self._found(Kind.LOST_WRITE, about, offset, value.text, (line,), text)

    def _note_batch(self, value: _Value) -> None:
        """What was sent together is stored together, so one value that was read speaks for the others."""
        sent = value.invoked or value.unknown
        if sent is not None and sent[7] > 1:
            place, offset = min(value.reads) if value.reads else (NONE, NONE)
            line = min(value.reads.values()) if value.reads else 0
            self._by_batch.add((sent[2], sent[6], value.text, place, offset, line))

    def _judge_batches(self) -> None:
        for sent, facts in groupby(self._by_batch.sorted(), key=itemgetter(0)):
            batch = list(facts)
            read = [fact for fact in batch if fact[3] != NONE]
            if not read:
                continue
            _, _, other, place, offset, line = read[0]
            about = self._places[place]
            if about.full_from is None or offset < about.full_from:
                continue
            for fact in batch:
                self.report.verdicts[Kind.LOST_WRITE].checked += fact[3] == NONE
                if fact[3] == NONE:
                    text = (
                        f"it was sent with {_shown(other)} (line {sent:,}), which was read at "
                        f"{self._at(place, offset)} (line {line:,}), and nobody read this one"
                    )
                    self._found(Kind.LOST_WRITE, about, None, fact[2], (sent, line), text)

    def _judge_places(self) -> None:
        gaps = Gaps(Gap(*fact) for fact in self._gaps.sorted())
        verdict = self.report.verdicts[Kind.INCONSISTENT_OFFSET]
        for (place, offset), facts in groupby(self._by_place.sorted(), key=itemgetter(0, 1)):
            verdict.checked += 1
            self._on_skips(gaps.on_record(place, offset))
            first, first_line = "", 0
            for _, _, value, line in facts:
                if not first_line:
                    first, first_line = value, line
                elif value != first:
                    text = f"there is {_shown(first)} (line {first_line:,}) and {_shown(value)} (line {line:,})"
                    lines = (first_line, line)
                    self._found(Kind.INCONSISTENT_OFFSET, self._places[place], offset, value, lines, text)
                    break
        self._on_skips(gaps.rest())

    def _on_skips(self, gaps: Iterator[Gap]) -> None:
        for gap in gaps:
            if gap.records:
                about = self._places[gap.place]
                what = "a record" if gap.records == 1 else f"{gap.records:,} records"
                self._found(
                    Kind.POLL_SKIP,
                    about,
                    gap.first,
                    None,
                    (gap.line_before, gap.line_after),
                    f"{self._names[gap.process]} was handed offset {gap.end} after {gap.start - 1}: {what} between "
                    f"them, the first at {gap.first}",
                )

    def _judge_order(self) -> None:
        verdict = self.report.verdicts[Kind.REORDERED]
        for (process, place), facts in groupby(self._by_sender.sorted(), key=itemgetter(0, 1)):
            highest, before, before_line = NONE, "", 0
            for _, _, _, _, offset, line, value in facts:
                verdict.checked += 1
                if offset < highest:
                    text = (
                        f"{self._names[process]} sent it after {_shown(before)}, which is at offset {highest} "
                        f"(line {before_line:,}); it is at {offset}"
                    )
                    self._found(Kind.REORDERED, self._places[place], offset, value, (before_line, line), text)
                else:
                    highest, before, before_line = offset, value, line

    def _found(
        self, kind: Kind, about: _Partition, offset: int | None, value: str | None, lines: tuple[int, ...], text: str
    ) -> None:
        anomaly = Anomaly(
            kind=kind,
            topic=about.topic,
            partition=about.number,
            offset=offset,
            value=value,
            lines=tuple(sorted(set(lines) - {0})),
            text=text if value is None else f"{_shown(value)}: {text}",
        )
        self.report.verdicts[kind].add(anomaly)

    def _at(self, place: int, offset: int) -> str:
        about = self._places[place]
        return f"{about.topic}/{about.number}, {'an unknown offset' if offset == NONE else f'offset {offset}'}"


def _value(text: str, facts: Iterator[Fact]) -> _Value:
    found = _Value(text)
    for fact in facts:
        code = fact[1]
        if code == INVOKED:
            if found.invoked is not None:
                first = found.invoked[2]
                raise UnreadableHistoryError(
                    f"{_shown(text)} is sent once more (first in line {first:,}); values are to be unique",
                    line=fact[2],
                )
            found.invoked = fact
        elif code == ACKED:
            if len(found.acked) < SAME_MAX:
                found.acked.append(fact)
        elif code == FAILED:
            found.failed = fact
        elif code == UNKNOWN:
            found.unknown = fact
        else:
            where = (fact[3], fact[4])
            if len(found.reads) < SAME_MAX:
                found.reads.setdefault(where, fact[2])
            if code == READ:
                found.full.add(where)
    if found.acked and found.failed is not None:
        lines = found.acked[0][2], found.failed[2]
        raise UnreadableHistoryError(
            f"{_shown(text)} failed in one line and was acknowledged in another ({min(lines):,})", line=max(lines)
        )
    return found


def _shown(value: str) -> str:
    cut = value if len(value) <= VALUE_CHARS_MAX else value[:VALUE_CHARS_MAX] + "…"
    return json.dumps(cut, ensure_ascii=False)
