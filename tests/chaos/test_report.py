"""The page of a run: whole, safe, and without anything from elsewhere, whatever the history holds."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

import pytest

from quire.verify import HistoryWriter, Report, Type, check
from tests.chaos import report as reports
from tests.chaos import timeline as timelines
from tests.chaos.timeline import Timeline

VOID: Final = {"meta", "rect", "line", "path", "br"}
IMPLIED: Final = {"tr", "td", "th", "p"}
"""What HTML lets end by itself."""
NASTY: Final = '<script>alert("x")</script>&'


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Reading(HTMLParser):
    """Checks that what is begun is ended, and collects what is referred to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attributes:
            assert name not in ("src", "onload", "onclick"), (tag, name)
            if name == "id":
                self.ids.add(value or "")
            if name == "href":
                self.links.add(value or "")
        if tag not in VOID | IMPLIED:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID | IMPLIED:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Ten seconds: a fault from 2 to 4, well at 5, compared at 6; silence from 2 to 4.5; one record lost."""
    path, clock = tmp_path / "history.jsonl", Clock()
    where = {"topic": "orders", "partition": 0}
    with HistoryWriter(path.open("wb"), now_s=clock, kind="processes") as history:

        def at(now_s: float, process: str, type: Type, op: str, **fields: object) -> None:
            clock.now_s = now_s
            history.add(process, type, op, **fields)  # type: ignore[arg-type]  # fields of all kinds

        def send(now_s: float, number: int) -> None:
            value = [f"{NASTY}{number}"]
            at(now_s, "p1", Type.INVOKE, "send", values=value, **where)
            at(now_s, "p1", Type.OK, "send", values=value, offsets=[number], took_ms=10.0 * number, **where)

        at(0.0, "watch", Type.INFO, "watch", known=True, leader=1, epoch=0, isr=[1, 2, 3], **where)
        send(1.0, 0)
        at(2.0, "nemesis", Type.INFO, "fault", name=NASTY, what="begins", nodes=["n1"])
        at(3.0, "watch", Type.INFO, "watch", known=True, epoch=1, isr=[2, 3], **where)
        at(3.5, "watch", Type.INFO, "watch", known=True, leader=2, epoch=1, isr=[2, 3], **where)
        at(4.0, "nemesis", Type.INFO, "fault", name=NASTY, what="ends", nodes=["n1"])
        send(4.5, 1)
        at(5.0, "nemesis", Type.INFO, "fault", name=NASTY, what="is over", nodes=["n1"])
        at(6.0, "nemesis", Type.INFO, "compare", equal=True)
        at(7.0, "watch", Type.INFO, "watch", known=False, topic="orders")
        send(8.0, 2)
        at(10.0, "full", Type.OK, "read", values=[f"{NASTY}0", f"{NASTY}2"], offsets=[0, 2], **where)
    return path


def read(history: Path) -> tuple[Timeline, Report]:
    with history.open("rb") as file:
        report = check(file)
    lines = {number for verdict in report.verdicts.values() for each in verdict.anomalies for number in each.lines}
    return timelines.read(history, lines=lines), report


def test_what_happened_when(history: Path) -> None:
    timeline, report = read(history)
    (fault,) = timeline.faults
    assert (fault.began_s, fault.ended_s, fault.well_s, fault.nodes) == (2.0, 4.0, 5.0, ("n1",))
    assert fault.silent_s == 2.5
    assert timeline.comparisons == 1
    assert [(each.began_s, each.ended_s, each.leader, each.in_sync, each.known) for each in timeline.reigns] == [
        (0.0, 3.0, 1, 3, True),
        (3.0, 3.5, None, 2, True),
        (3.5, 7.0, 2, 2, True),
        (7.0, 10.0, None, 0, False),
    ]
    assert timeline.elections == 1
    by_time = {each.at_s: each for each in timeline.bins}
    assert by_time[1.0].per_s == pytest.approx(1 / timeline.bin_s)
    assert by_time[5.0].per_s is None  # traffic was quiet, so that says nothing
    assert by_time[2.0].per_s == 0.0
    assert (by_time[8.0].p50_ms, by_time[8.0].p99_ms) == (20.0, 20.0)
    assert report.anomalies == 2  # it is lost, and the full reader skipped it


@pytest.mark.parametrize("failure", [None, NASTY])
def test_page_is_whole_and_has_all_it_refers_to(history: Path, failure: str | None) -> None:
    timeline, report = read(history)
    page = reports.page(title=NASTY, timeline=timeline, report=report, facts=[(NASTY, NASTY)], failure=failure)
    reading = Reading()
    reading.feed(page)
    reading.close()
    assert reading.open == []
    assert "script" not in reading.tags
    assert {link.removeprefix("#") for link in reading.links} <= reading.ids
    lines = {number for verdict in report.verdicts.values() for each in verdict.anomalies for number in each.lines}
    assert lines
    assert {"#lost-write", "#poll-skip", *(f"#line-{number}" for number in lines)} == reading.links
    assert not re.search(r"https?:|url\(|@import", page)
    assert "2 anomalies" in reading.text
    assert NASTY in reading.text  # as text


def test_page_of_a_run_that_never_began(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    HistoryWriter(path.open("wb")).close()
    timeline, report = read(path)
    assert "no anomaly" in reports.page(title="t", timeline=timeline, report=report, facts=[], failure=None)
