"""What is written is a history that can be read."""

from __future__ import annotations

import io
import json
import threading
from pathlib import Path

import pytest

from quire.errors import InvalidArgumentError
from quire.verify import HistoryWriter, Type, check
from quire.verify.line import LINE_BYTES_MAX


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    now_s = 1.25
    with HistoryWriter(path.open("wb"), now_s=lambda: now_s, seed=7) as history:
        where = {"topic": "orders", "partition": 0}
        assert history.add("p", Type.INVOKE, "send", topic="orders", values=["a"], key="é") == 2
        assert history.add("p", Type.OK, "send", topic="orders", partition=0, values=["a"], offsets=[None]) == 3
        history.add("f", Type.OK, "read", topic="orders", partition=0, values=["a"], offsets=[3], **{"from": 3})
        history.add("nemesis", Type.INFO, "fault", name="leader killed")
    header, *lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    assert header == {"format": "quire-history", "version": 1, "seed": 7}
    sent = {"time": 1.25, "process": "p", "type": "invoke", "op": "send", "topic": "orders", "values": ["a"]}
    assert lines[0] == {**sent, "key": "é"}
    assert lines[2]["from"] == 3
    assert where.items() <= lines[2].items()
    with path.open("rb") as file:
        report = check(file)
    assert (report.anomalies, report.acknowledged, report.read, report.lines) == (0, 1, 1, 5)


def test_line_that_nobody_would_read_is_not_written() -> None:
    file = io.BytesIO()
    history = HistoryWriter(file)
    room = LINE_BYTES_MAX - len('{"time":0.0,"process":"","type":"ok","op":"send"}\n')
    with pytest.raises(InvalidArgumentError, match="at most"):
        history.add("p" * (room + 20), Type.OK, "send")
    history.flush()
    assert file.getvalue().count(b"\n") == 1
    assert history.lines == 1


def test_several_threads_write_whole_lines() -> None:
    file = io.BytesIO()
    history = HistoryWriter(file)

    def write(name: str) -> None:
        for number in range(200):
            history.add(name, Type.INVOKE, "send", topic="orders", values=[f"{name}-{number}"])

    threads = [threading.Thread(target=write, args=(f"p{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file.seek(0)
    report = check(file)
    assert (report.unknown, report.lines, history.lines) == (800, 801, 801)
