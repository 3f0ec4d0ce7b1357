"""Histories of a log that is well, of any shape, and anomalies to plant into them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from hypothesis import strategies as st

TOPIC: Final = "orders"
Line = dict[str, Any]


@dataclass
class World:
    """Partitions as they would be, and what clients were told of them."""

    lines: list[Line] = field(default_factory=list)
    logs: list[list[tuple[int, str]]] = field(default_factory=list)
    """By partition: what is stored where. Some offsets have no record."""
    positions: dict[tuple[str, int], int] = field(default_factory=dict)
    """How many records of a partition a reader has."""
    pending: list[Line] = field(default_factory=list)
    """What is acknowledged later."""
    count: int = 0

    def add(self, process: str, type: str, op: str, **fields: Any) -> Line:
        line = {"time": len(self.lines), "process": process, "type": type, "op": op, "topic": TOPIC, **fields}
        self.lines.append(line)
        return line

    # -- what happens ------------------------------------------------------------------------------------------------

    def send(self, process: str, partition: int, size: int, end: str, gap: int, *, late: bool) -> None:
        values = [f"v{self.count + n}" for n in range(size)]
        self.count += size
        self.add(process, "invoke", "send", partition=partition, values=values)
        log = self.logs[partition]
        base = (log[-1][0] + 1 if log else 0) + gap
        if end in ("ok", "unknown and stored"):
            log += [(base + n, value) for n, value in enumerate(values)]
        if end == "ok":
            offsets = list(range(base, base + size))
            line = {"process": process, "type": "ok", "op": "send", "topic": TOPIC, "partition": partition}
            line |= {"values": values, "offsets": offsets}
            if late:
                self.pending.append(line)
            else:
                self.lines.append({"time": len(self.lines), **line})
        elif end == "fail":
            self.add(process, "fail", "send", partition=partition, values=values)
        elif end != "its process died":
            self.add(process, "info", "send", partition=partition, values=values)

    def settle(self) -> None:
        for line in self.pending:
            self.lines.append({"time": len(self.lines), **line})
        self.pending.clear()

    def poll(self, reader: str, partition: int, size: int) -> None:
        at = self.positions.get((reader, partition), 0)
        found = self.logs[partition][at : at + size]
        self.positions[reader, partition] = at + len(found)
        self.read_line(reader, "poll", partition, found)

    def seek(self, reader: str, partition: int, to: int) -> None:
        self.positions[reader, partition] = min(to, len(self.logs[partition]))
        self.add(reader, "ok", "seek", partition=partition)

    def read_line(self, reader: str, op: str, partition: int, found: list[tuple[int, str]]) -> Line:
        offsets, values = [offset for offset, _ in found], [value for _, value in found]
        return self.add(reader, "ok", op, partition=partition, values=values, offsets=offsets)

    def end(self) -> None:
        self.settle()
        for partition, log in enumerate(self.logs):
            self.read_line("full", "read", partition, [])
            for at in range(0, len(log), 3):
                self.read_line("full", "read", partition, log[at : at + 3])

    # -- what is there -----------------------------------------------------------------------------------------------

    def numbered(self, **wanted: Any) -> Iterator[tuple[int, Line]]:
        """Lines like these, as they are numbered in the file."""
        for number, line in enumerate(self.lines, 2):
            if all(line.get(name) == value for name, value in wanted.items()):
                yield number, line

    @property
    def bytes(self) -> bytes:
        return b"".join(
            json.dumps(line).encode() + b"\n" for line in ({"format": "quire-history", "version": 1}, *self.lines)
        )


ENDS: Final = ("ok", "ok", "ok", "fail", "unknown", "unknown and stored", "its process died")
PROCESSES: Final = ("p1", "p2")
READERS: Final = ("r1", "r2")


@st.composite
def worlds(draw: st.DrawFn, *, busy: bool = False) -> World:
    """`busy`: each partition has four records or more, the last of them acknowledged, so a plant has room."""
    partitions = draw(st.integers(1, 3))
    world = World(logs=[[] for _ in range(partitions)])
    for partition in range(partitions * busy):
        for _ in range(3):
            world.send("p1", partition, 1, "ok", 0, late=False)
    numbers, sizes = st.integers(0, partitions - 1), st.integers(1, 3)
    for what in draw(
        st.lists(st.sampled_from(("send", "send", "send", "poll", "poll", "seek", "settle")), max_size=40)
    ):
        if what == "send":
            end = draw(st.sampled_from(ENDS))
            gap = draw(st.sampled_from((0, 0, 0, 1, 5)))
            world.send(
                draw(st.sampled_from(PROCESSES)), draw(numbers), draw(sizes), end, gap, late=draw(st.booleans())
            )
        elif what == "poll":
            world.poll(draw(st.sampled_from(READERS)), draw(numbers), draw(st.integers(0, 4)))
        elif what == "seek":
            world.seek(draw(st.sampled_from(READERS)), draw(numbers), draw(st.integers(0, 10)))
        else:
            world.settle()
    for partition in range(partitions * busy):
        world.send("p2", partition, 1, "ok", 0, late=False)
    world.end()
    return world


def without(line: Line, value: str) -> None:
    """As if this had not been read."""
    at = line["values"].index(value)
    del line["values"][at], line["offsets"][at]
