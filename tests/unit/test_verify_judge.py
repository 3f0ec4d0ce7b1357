"""Each anomaly, planted into a history that is well without it, is found where it is; and its near miss is not."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from quire.verify import Kind, Report, UnreadableHistoryError, check, judge
from quire.verify.line import LINE_BYTES_MAX

HEADER = '{"format":"quire-history","version":1}'


class Lines:
    """A history that is written by hand."""

    def __init__(self) -> None:
        self.lines = [HEADER]

    def add(self, process: str, type: str, op: str, **fields: Any) -> int:
        line = {"time": len(self.lines), "process": process, "type": type, "op": op, **fields}
        self.lines.append(json.dumps({name: field for name, field in line.items() if field is not None}))
        return len(self.lines)

    def send(
        self,
        *values: str,
        at: int | None = None,
        type: str = "ok",
        partition: int = 0,
        process: str = "p",
        topic: str = "orders",
    ) -> int:
        """Both lines of it; the number of the second. They are stored from offset `at` on."""
        self.add(process, "invoke", "send", topic=topic, values=values)
        offsets = [None if at is None else at + n for n in range(len(values))] if type == "ok" else None
        return self.add(process, type, "send", topic=topic, partition=partition, values=values, offsets=offsets)

    def poll(self, process: str = "r", partition: int = 0, topic: str = "orders", **records: int) -> int:
        return self.ok(process, "poll", records, partition, topic)

    def read(
        self,
        process: str = "full",
        partition: int = 0,
        start: int | None = None,
        topic: str = "orders",
        **records: int,
    ) -> int:
        return self.ok(process, "read", records, partition, topic, **({} if start is None else {"from": start}))

    def ok(
        self, process: str, op: str, records: dict[str, int], partition: int = 0, topic: str = "orders", **more: int
    ) -> int:
        values, offsets = list(records), list(records.values())
        return self.add(process, "ok", op, topic=topic, partition=partition, values=values, offsets=offsets, **more)

    @property
    def bytes(self) -> bytes:
        return "".join(f"{line}\n" for line in self.lines).encode()

    def check(self) -> Report:
        return check(io.BytesIO(self.bytes))

    def clean(self) -> None:
        report = self.check()
        assert [str(each) for verdict in report.verdicts.values() for each in verdict.anomalies] == []

    def one(self, kind: Kind, *, offset: int | None, value: str | None, lines: tuple[int, ...]) -> str:
        """That this is found, and nothing else; what is said of it."""
        report = self.check()
        found = [anomaly for verdict in report.verdicts.values() for anomaly in verdict.anomalies]
        assert [each.kind for each in found] == [kind], found
        assert (found[0].offset, found[0].value, found[0].lines) == (offset, value, lines), found[0]
        return found[0].text


@pytest.fixture
def lines() -> Lines:
    return Lines()


# --- lost writes ---------------------------------------------------------------------------------------------------


def test_acknowledged_and_below_what_was_read_is_lost(lines: Lines) -> None:
    lines.send("a", at=0)
    acked = lines.send("b", at=1)
    read = lines.read(a=0)
    lines.poll(c=2)
    lines.send("c", at=2)
    report = lines.check()
    assert {each.kind for v in report.verdicts.values() for each in v.anomalies} == {Kind.LOST_WRITE}
    assert [each.value for each in report.verdicts[Kind.LOST_WRITE].anomalies] == ["b", "c"]
    lost = report.verdicts[Kind.LOST_WRITE].anomalies[0]
    assert (lost.offset, lost.lines) == (1, (acked, read + 1))
    assert "nobody read it" in lost.text


def test_acknowledged_and_read_along_the_way_and_gone_later_is_lost(lines: Lines) -> None:
    acked = lines.send("a", at=0)
    polled = lines.poll(a=0)
    lines.read()
    text = lines.one(Kind.LOST_WRITE, offset=0, value="a", lines=(acked, polled))
    assert "no full reader found it" in text


def test_unknown_and_read_and_gone_later_is_lost(lines: Lines) -> None:
    lines.send("a", type="info")
    polled = lines.poll(a=0)
    lines.read()
    lines.one(Kind.LOST_WRITE, offset=0, value="a", lines=(polled,))


def test_unknown_and_never_read_is_well(lines: Lines) -> None:
    lines.send("a", type="info")
    lines.add("p", "invoke", "send", topic="orders", values=["b"])  # its process died
    lines.read()
    lines.clean()
    assert lines.check().unknown == 2


def test_of_an_unknown_batch_of_which_a_part_was_read_the_rest_is_lost(lines: Lines) -> None:
    unknown = lines.send("a", "b", type="info")
    read = lines.read(a=0)
    lines.one(Kind.LOST_WRITE, offset=None, value="b", lines=(unknown - 1, read))


def test_an_unknown_batch_that_was_read_is_well(lines: Lines) -> None:
    lines.send("a", "b", type="info")
    lines.read(a=0, b=1)
    lines.clean()


def test_what_lies_before_the_full_reader_began_is_not_judged(lines: Lines) -> None:
    lines.send("a", at=0)
    lines.send("b", at=1)
    lines.read(start=1, b=1)
    lines.clean()
    assert lines.check().not_judged == 1


def test_without_a_full_reader_nothing_is_said_to_be_lost(lines: Lines) -> None:
    lines.send("a", at=0)
    lines.send("b", at=1)
    lines.poll(b=1)
    lines.clean()
    assert lines.check().not_judged == 2


def test_a_full_reader_of_another_partition_does_not_count(lines: Lines) -> None:
    lines.send("a", at=0, partition=1)
    lines.read(partition=0)
    assert lines.check().not_judged == 1


# --- unseen --------------------------------------------------------------------------------------------------------


def test_acknowledged_beyond_all_that_was_read_is_unseen(lines: Lines) -> None:
    lines.send("a", at=0)
    acked = lines.send("b", at=1)
    lines.read(a=0)
    lines.one(Kind.UNSEEN, offset=1, value="b", lines=(acked,))


def test_acknowledged_without_an_offset_and_never_read_is_unseen(lines: Lines) -> None:
    acked = lines.send("a")
    lines.read()
    lines.one(Kind.UNSEEN, offset=None, value="a", lines=(acked,))


def test_acknowledged_without_an_offset_and_read_is_well(lines: Lines) -> None:
    lines.send("a")
    lines.read(a=5, start=5)
    lines.clean()


# --- duplicates and contradictions ---------------------------------------------------------------------------------


def test_read_at_two_offsets_is_a_duplicate(lines: Lines) -> None:
    acked = lines.send("a", at=0)
    lines.add("r", "ok", "poll", topic="orders", partition=0, values=["a", "a"], offsets=[0, 1])
    lines.add("full", "ok", "read", topic="orders", partition=0, values=["a", "a"], offsets=[0, 1])
    lines.one(Kind.DUPLICATE, offset=1, value="a", lines=(acked, acked + 1))


def test_read_elsewhere_than_acknowledged_is_a_duplicate(lines: Lines) -> None:
    acked = lines.send("a", at=0)
    read = lines.read(a=1, start=1)
    report = lines.check()
    assert report.verdicts[Kind.DUPLICATE].anomalies[0].lines == (acked, read)


def test_in_two_partitions_is_a_duplicate(lines: Lines) -> None:
    acked = lines.send("a", at=0)
    lines.read(a=0)
    other = lines.read(partition=1, a=0)
    lines.one(Kind.DUPLICATE, offset=0, value="a", lines=(acked, other))


def test_read_by_many_at_one_place_is_well(lines: Lines) -> None:
    lines.send("a", at=0)
    for reader in ("r1", "r2"):
        lines.poll(reader, a=0)
    lines.read(a=0)
    lines.clean()


def test_two_values_at_one_offset(lines: Lines) -> None:
    lines.send("a", at=0)
    lines.send("b", type="info", process="q")
    polled = lines.poll(b=0)
    lines.read(a=0)
    report = lines.check()
    found = report.verdicts[Kind.INCONSISTENT_OFFSET].anomalies
    assert [(each.offset, each.lines) for each in found] == [(0, (3, polled))]
    assert '"a"' in found[0].text
    assert '"b"' in found[0].text


def test_the_same_offset_of_two_partitions_is_well(lines: Lines) -> None:
    for partition, value in enumerate("ab"):
        lines.send(value, at=0, partition=partition)
        lines.ok("full", "read", {value: 0}, partition)
    lines.send("c", at=0, topic="others")
    lines.read("other", topic="others", c=0)
    lines.clean()


# --- reads of what should not be there -----------------------------------------------------------------------------


def test_failed_and_read(lines: Lines) -> None:
    failed = lines.send("a", type="fail")
    read = lines.read(a=0)
    lines.one(Kind.ABORTED_READ, offset=0, value="a", lines=(failed, read))


def test_failed_and_not_read_is_well(lines: Lines) -> None:
    lines.send("a", type="fail")
    lines.read()
    lines.clean()


def test_read_and_never_sent(lines: Lines) -> None:
    read = lines.read(a=0)
    lines.one(Kind.PHANTOM, offset=0, value="a", lines=(read,))


# --- order ---------------------------------------------------------------------------------------------------------


def test_later_and_at_an_earlier_offset_is_reordered(lines: Lines) -> None:
    first, second = lines.send("a", at=1), lines.send("b", at=0)
    lines.read(b=0, a=1)
    lines.one(Kind.REORDERED, offset=0, value="b", lines=(first, second))


def test_order_is_that_of_invocations_and_not_of_answers(lines: Lines) -> None:
    for value in "ab":
        lines.add("p", "invoke", "send", topic="orders", values=[value])
    for value, offset in (("b", 1), ("a", 0)):
        lines.add("p", "ok", "send", topic="orders", partition=0, values=[value], offsets=[offset])
    lines.read(a=0, b=1)
    lines.clean()


def test_two_senders_and_two_partitions_have_no_order(lines: Lines) -> None:
    lines.send("a", at=1, process="p")
    lines.send("b", at=0, process="q")
    lines.send("c", at=0, partition=1, process="p")
    lines.read(b=0, a=1)
    lines.read(partition=1, c=0)
    lines.clean()


# --- polls ---------------------------------------------------------------------------------------------------------


def test_a_gap_over_a_record_is_a_skip(lines: Lines) -> None:
    for offset, value in enumerate("abc"):
        lines.send(value, at=offset)
    before = lines.poll(a=0)
    after = lines.poll(c=2)
    lines.read(a=0, b=1, c=2)
    text = lines.one(Kind.POLL_SKIP, offset=1, value=None, lines=(before, after))
    assert "a record between them, the first at 1" in text


def test_a_gap_within_a_poll_is_a_skip(lines: Lines) -> None:
    for offset, value in enumerate("abcd"):
        lines.send(value, at=offset)
    polled = lines.poll(a=0, d=3)
    lines.read(a=0, b=1, c=2, d=3)
    assert "2 records between" in lines.one(Kind.POLL_SKIP, offset=1, value=None, lines=(polled,))


def test_a_gap_over_nothing_is_well(lines: Lines) -> None:
    """Compaction and transactions leave offsets without records."""
    lines.send("a", at=0)
    lines.send("c", at=2)
    lines.poll(a=0)
    lines.poll(c=2)
    lines.read(a=0, c=2)
    lines.clean()


def test_a_full_reader_that_begins_too_late_skips(lines: Lines) -> None:
    lines.send("a", at=0)
    lines.send("b", at=1)
    lines.poll(a=0, b=1)
    lines.read(b=1)
    report = lines.check()
    assert report.verdicts[Kind.POLL_SKIP].count == 1
    assert report.verdicts[Kind.LOST_WRITE].count == 1


@pytest.mark.parametrize("later", [0, 1])
def test_a_step_back_is_not_monotonic(lines: Lines, later: int) -> None:
    values = ("a", "b")
    for offset, value in enumerate(values):
        lines.send(value, at=offset)
    before = lines.poll(a=0, b=1)
    after = lines.ok("r", "poll", {values[later]: later})
    lines.read(a=0, b=1)
    lines.one(Kind.NON_MONOTONIC_POLL, offset=later, value=values[later], lines=(before, after))


@pytest.mark.parametrize("op", ["assign", "seek"])
@pytest.mark.parametrize("where", [{}, {"topic": "orders"}, {"topic": "orders", "partition": 0}])
def test_whoever_was_moved_may_go_back_and_skip(lines: Lines, op: str, where: dict[str, Any]) -> None:
    for offset, value in enumerate("abc"):
        lines.send(value, at=offset)
    lines.poll(a=0, b=1)
    lines.add("r", "ok", op, **where)
    lines.poll(a=0)
    lines.add("r", "ok", op, **where)
    lines.poll(c=2)
    lines.read(a=0, b=1, c=2)
    lines.clean()


@pytest.mark.parametrize("where", [{"topic": "others"}, {"topic": "orders", "partition": 1}])
def test_whoever_was_moved_elsewhere_may_not(lines: Lines, where: dict[str, Any]) -> None:
    lines.send("a", at=0)
    lines.poll(a=0)
    lines.add("r", "ok", "seek", **where)
    lines.add("another", "ok", "seek")
    lines.poll(a=0)
    lines.read(a=0)
    assert lines.check().verdicts[Kind.NON_MONOTONIC_POLL].count == 1


def test_two_readers_have_positions_of_their_own(lines: Lines) -> None:
    lines.send("a", at=0)
    lines.send("b", at=1)
    lines.poll("r1", a=0, b=1)
    lines.poll("r2", a=0)
    lines.read(a=0, b=1)
    lines.clean()


# --- histories -----------------------------------------------------------------------------------------------------


def test_other_operations_and_fields_are_passed_over(lines: Lines) -> None:
    lines.add("nemesis", "info", "fault", name="leader killed", nodes=["n1"])
    lines.add("r", "fail", "poll", error="UNAVAILABLE")
    lines.add("p", "invoke", "send", topic="orders", values=["a"], key="k")
    lines.clean()


def test_histories_may_be_put_one_after_another(lines: Lines) -> None:
    lines.send("a", at=0)
    other = Lines()
    other.read(a=0)
    report = check(io.BytesIO(lines.bytes + other.bytes))
    assert (report.anomalies, report.acknowledged, report.lines) == (0, 1, 5)


def test_a_last_line_that_was_cut_short_is_left_out(lines: Lines) -> None:
    lines.send("a", at=0)
    lines.read(a=0)
    whole = lines.bytes
    for cut in range(len(whole) - len(lines.lines[-1]), len(whole) - 1):
        report = check(io.BytesIO(whole[:cut]))
        assert report.truncated
        assert report.lines == 3
    assert not check(io.BytesIO(whole)).truncated
    assert not check(io.BytesIO(whole[:-1])).truncated  # only its end of line is missing


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "line 1: there is nothing"),
        ("[]\n", "line 1: this is not a JSON object"),
        ('{"format":"other"}\n', "line 1: this is no history"),
        ('{"format":"quire-history","version":2}\n', "line 1: version 2"),
        ('{"format":"quire-history","version":true}\n', "line 1: version True"),
        (f"{HEADER}\n\n", "line 2: this is not JSON"),
        (f"{HEADER}\n{{\n{{}}\n", "line 2: this is not JSON"),
        (f"{HEADER}\n{'[' * 100_000}\n", "line 2: this is not JSON"),
        (f"{HEADER}\n{{}}\n", "line 2: 'process' is missing"),
        (f"{HEADER}\n\xff\n", "line 2: this is not JSON"),
        (f"{HEADER}\n{' ' * LINE_BYTES_MAX}\n", "line 2: it is longer than 1,048,576 bytes"),
    ],
)
def test_what_is_no_history_is_refused(text: str, why: str) -> None:
    with pytest.raises(UnreadableHistoryError) as raised:
        check(io.BytesIO(text.encode("latin-1")))
    assert raised.value.message.startswith(why)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"process": 1}, "'process' is to be a name"),
        ({"process": ""}, "'process' is to be a name"),
        ({"type": "done"}, "'type' is 'done'"),
        ({"type": []}, "'type' is []"),
        ({"op": None}, "'op' is to be a name"),
        ({"time": "now"}, "'time' is to be a number"),
        ({"topic": 3}, "'topic' is to be a name"),
        ({"topic": ""}, "'topic' is to be a name"),
        ({"partition": -1}, "'partition' is to be a number"),
        ({"partition": 2**31}, "'partition' is to be a number"),
        ({"partition": True}, "'partition' is to be a number"),
        ({"values": "a"}, "'values' is to be a list"),
        ({"values": [1]}, "'values' is to be a list"),
        ({"values": [], "offsets": []}, "a send of no value"),
        ({"offsets": []}, "'offsets' is to be a list with one for each"),
        ({"offsets": [-1]}, "-1 is no offset"),
        ({"offsets": [2**63]}, "9223372036854775808 is no offset"),
        ({"offsets": [True]}, "True is no offset"),
        ({"op": "poll", "offsets": [None]}, "None is no offset"),
        ({"op": "read", "from": -1}, "'from' is to be an offset"),
    ],
)
def test_a_line_that_makes_no_sense_is_refused(changed: dict[str, Any], why: str) -> None:
    line = {"time": 1, "process": "p", "type": "ok", "op": "send", "topic": "t", "partition": 0}
    line |= {"values": ["a"], "offsets": [0], **changed}
    with pytest.raises(UnreadableHistoryError) as raised:
        check(io.BytesIO(f"{HEADER}\n{json.dumps(line)}\n".encode()))
    assert raised.value.message.startswith(f"line 2: {why}")
    assert raised.value.line == 2


@pytest.mark.parametrize("op", ["poll", "read"])
def test_too_many_readers_are_refused(lines: Lines, op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "PLACES_MAX", 3)
    for reader in range(2):
        for partition in range(2):
            lines.ok(f"r{reader}", op, {}, partition)
            lines.ok(f"r{reader}", op, {"a": 0}, partition)
    with pytest.raises(UnreadableHistoryError, match="line 8: more than 3 readers of partitions"):
        lines.check()


def test_values_are_unique(lines: Lines) -> None:
    lines.send("a", at=0)
    lines.send("a", at=1)
    with pytest.raises(UnreadableHistoryError) as raised:
        lines.check()
    assert raised.value.message == 'line 4: "a" is sent once more (first in line 2); values are to be unique'


def test_a_send_does_not_end_in_two_ways(lines: Lines) -> None:
    lines.send("a", at=0)
    lines.add("p", "fail", "send", topic="orders", values=["a"])
    with pytest.raises(UnreadableHistoryError) as raised:
        lines.check()
    assert raised.value.line == 4


def test_all_are_counted_and_the_first_are_shown(lines: Lines) -> None:
    for number in reversed(range(350)):
        lines.ok(f"full-{number}", "read", {f"v{number:03}": number})
    verdict = lines.check().verdicts[Kind.PHANTOM]
    assert verdict.count == 350
    assert [each.lines for each in verdict.anomalies] == [(number,) for number in range(2, 102)]
