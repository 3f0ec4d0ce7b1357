"""A history that is well is said to be; whatever is planted into it is found, where it is, whatever the history."""

from __future__ import annotations

import io
import json
import marshal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.verify import Anomaly, Kind, check
from quire.verify.sorting import InMemory
from quire.verify.spill import Spill
from tests.property.verify_histories import TOPIC, Line, World, without, worlds


def found(world: World, kind: Kind) -> list[Anomaly]:
    return check(io.BytesIO(world.bytes), new_sorter=InMemory).verdicts[kind].anomalies


def one(draw: st.DataObject, candidates: list[Any]) -> Any:
    return draw.draw(st.sampled_from(candidates))


def full_line_of(world: World, value: str) -> tuple[int, Line]:
    return next((n, line) for n, line in world.numbered(op="read") if value in line["values"])


def acked(world: World) -> list[tuple[int, Line, int]]:
    """(number of the line, the line, which of its values)"""
    return [(n, line, at) for n, line in world.numbered(op="send", type="ok") for at in range(len(line["values"]))]


@given(worlds())
@settings(max_examples=300, deadline=None)
def test_what_is_well_is_said_to_be(world: World) -> None:
    report = check(io.BytesIO(world.bytes), new_sorter=InMemory)
    assert [each for verdict in report.verdicts.values() for each in verdict.anomalies] == []
    assert report.not_judged == 0
    assert report.read == sum(map(len, world.logs))
    assert report.sends == world.count
    assert report.acknowledged + report.failed + report.unknown == world.count


@given(worlds(busy=True), st.data())
@settings(max_examples=100, deadline=None)
def test_lost_write(world: World, draw: st.DataObject) -> None:
    def is_last(line: Line, at: int) -> bool:
        return bool(line["offsets"][at] == world.logs[line["partition"]][-1][0])

    number, line, at = one(draw, [each for each in acked(world) if not is_last(each[1], each[2])])
    value = line["values"][at]
    without(full_line_of(world, value)[1], value)
    anomaly = next(each for each in found(world, Kind.LOST_WRITE) if each.value == value)
    assert (anomaly.partition, anomaly.offset) == (line["partition"], line["offsets"][at])
    assert number in anomaly.lines
    assert {each.value for each in found(world, Kind.LOST_WRITE)} == {value}


@given(worlds(busy=True), st.data())
@settings(max_examples=100, deadline=None)
def test_unseen(world: World, draw: st.DataObject) -> None:
    lasts = {log[-1][1]: partition for partition, log in enumerate(world.logs) if log}
    number, line, at = one(draw, [each for each in acked(world) if each[1]["values"][each[2]] in lasts])
    value = line["values"][at]
    for _, read in [*world.numbered(op="read"), *world.numbered(op="poll")]:
        if value in read["values"]:
            without(read, value)
    (anomaly,) = found(world, Kind.UNSEEN)
    assert (anomaly.value, anomaly.offset, anomaly.lines) == (value, line["offsets"][at], (number,))


@given(worlds(busy=True), st.data())
@settings(max_examples=100, deadline=None)
def test_duplicate(world: World, draw: st.DataObject) -> None:
    partition, log = one(draw, list(enumerate(world.logs)))
    offset, value = draw.draw(st.sampled_from(log))
    world.read_line("full", "read", partition, [(log[-1][0] + 1, value)])
    (anomaly,) = found(world, Kind.DUPLICATE)
    assert anomaly.value == value
    assert f"offset {offset} " in anomaly.text
    assert f"offset {log[-1][0] + 1} " in anomaly.text


@given(worlds(busy=True), st.data())
@settings(max_examples=100, deadline=None)
def test_inconsistent_offset(world: World, draw: st.DataObject) -> None:
    _, line = one(draw, [each for each in world.numbered(op="read") if each[1]["values"]])
    at = draw.draw(st.integers(0, len(line["values"]) - 1))
    world.read_line("another", "poll", line["partition"], [(line["offsets"][at], "something else")])
    (anomaly,) = found(world, Kind.INCONSISTENT_OFFSET)
    assert (anomaly.partition, anomaly.offset) == (line["partition"], line["offsets"][at])
    assert len(world.lines) + 1 in anomaly.lines
    assert [each.value for each in found(world, Kind.PHANTOM)] == ["something else"]


@given(worlds(busy=True), st.data())
@settings(max_examples=100, deadline=None)
def test_aborted_read(world: World, draw: st.DataObject) -> None:
    number, line, _ = one(draw, acked(world))
    line["type"] = "fail"
    del line["offsets"]
    anomalies = found(world, Kind.ABORTED_READ)
    assert {each.value for each in anomalies} == set(line["values"])
    assert all(number in each.lines for each in anomalies)


@given(worlds(busy=True), st.data())
@settings(max_examples=100, deadline=None)
def test_reordered(world: World, draw: st.DataObject) -> None:
    """Two that one process sent to one partition have changed places, for everybody."""
    sends = list(world.numbered(op="send", type="ok"))
    pairs = [
        (one, other)
        for _, one in sends
        for _, other in sends
        if (one["process"], one["partition"]) == (other["process"], other["partition"])
        and one["offsets"][-1] < other["offsets"][0]
    ]
    early, late = one(draw, pairs)
    first, second = early["values"][0], late["values"][0]
    swapped = {first: second, second: first}
    early["offsets"][0], late["offsets"][0] = late["offsets"][0], early["offsets"][0]
    for _, read in [*world.numbered(op="read"), *world.numbered(op="poll")]:
        read["values"] = [swapped.get(value, value) for value in read["values"]]
    anomalies = found(world, Kind.REORDERED)
    assert second in {each.value for each in anomalies}
    report = check(io.BytesIO(world.bytes), new_sorter=InMemory)
    assert report.anomalies == report.verdicts[Kind.REORDERED].count


@given(worlds(busy=True), st.data())
@settings(max_examples=100, deadline=None)
def test_poll_skip(world: World, draw: st.DataObject) -> None:
    number, line = one(draw, [each for each in world.numbered(op="read") if len(each[1]["values"]) == 3])
    offset, value = line["offsets"][1], line["values"][1]
    without(line, value)
    world.read_line("another", "poll", line["partition"], [(offset, value)])  # so that it is known to be there
    (anomaly,) = found(world, Kind.POLL_SKIP)
    assert (anomaly.partition, anomaly.offset, anomaly.lines) == (line["partition"], offset, (number,))


@given(worlds(busy=True), st.data())
@settings(max_examples=100, deadline=None)
def test_non_monotonic_poll(world: World, draw: st.DataObject) -> None:
    number, line = one(draw, [each for each in world.numbered(op="read") if each[1]["values"]])
    world.lines.insert(number - 1, dict(line))
    anomaly = found(world, Kind.NON_MONOTONIC_POLL)[0]
    assert (anomaly.partition, anomaly.offset) == (line["partition"], line["offsets"][0])
    assert anomaly.lines == (number, number + 1)


@given(worlds(), st.integers(1, 5), st.integers(2, 4))
@settings(max_examples=50, deadline=None)
def test_it_is_the_same_where_there_is_little_memory(world: World, facts_max: int, runs_max: int) -> None:
    for line in world.lines[::7]:
        line["partition"] = 0  # so that there is something to find
    history = world.bytes
    in_memory = check(io.BytesIO(history), new_sorter=InMemory)
    spilt = check(io.BytesIO(history), new_sorter=lambda: Spill(facts_max, runs_max))
    assert spilt.as_json() == in_memory.as_json()


@given(st.lists(st.tuples(st.text(max_size=3), st.integers())), st.integers(1, 5), st.integers(2, 4))
@settings(max_examples=100, deadline=None)
def test_a_sorter_that_spills_sorts(facts: list[tuple[str, int]], facts_max: int, runs_max: int) -> None:
    sorter = Spill(facts_max, runs_max)
    for fact in facts:
        sorter.add(fact)
    assert list(sorter.sorted()) == sorted(facts)


@pytest.mark.parametrize("value", ["", "\x00", "a\nb", "\ud800", "𝕢", "x" * 10_000])
def test_any_text_is_a_value(value: str) -> None:
    lines = [
        {"format": "quire-history", "version": 1},
        {"time": 1, "process": "p", "type": "ok", "op": "send", "topic": TOPIC, "partition": 0}
        | {"values": [value], "offsets": [0]},
        {"time": 2, "process": "f", "type": "ok", "op": "read", "topic": TOPIC, "partition": 0}
        | {"values": [value], "offsets": [0]},
    ]
    history = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    report = check(io.BytesIO(history), new_sorter=lambda: Spill(1, 2))
    assert (report.anomalies, report.acknowledged, report.read) == (0, 1, 1)
    assert marshal.loads(marshal.dumps(value)) == value
