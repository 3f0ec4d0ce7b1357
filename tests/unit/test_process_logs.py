"""Logs: their form, that no value breaks it, and that nobody fills the disk with them."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog

from quire.config import LogFormat, LogLevel
from quire.process import logs
from quire.process.throttle import Throttle


@pytest.fixture
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, who, form = root.handlers[:], root.level, dict(logs._who), logs._format
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logs._who.clear()
    logs._who.update(who)
    logs._format = form
    structlog.reset_defaults()


Begin = Callable[..., io.StringIO]


@pytest.fixture
def begin(restored: None) -> Begin:
    def begin(form: LogFormat = LogFormat.JSON, level: LogLevel = LogLevel.INFO) -> io.StringIO:
        stream = io.StringIO()
        logs.configure(node="c1", role="controller", level=level, format=form, stream=stream)
        return stream

    return begin


def events(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_line(begin: Begin) -> None:
    stream = begin()
    logs.get("raft").info("leader elected", term=7, leader="c2", share=0.5, known=True, since=None)
    (event,) = events(stream)
    timestamp = event.pop("timestamp")
    assert timestamp.endswith("Z")
    assert len(timestamp) == len("2026-01-01T00:00:00.000Z")
    head = {"level": "info", "event": "leader elected", "node": "c1", "role": "controller", "logger": "raft"}
    assert event == head | {"term": 7, "leader": "c2", "share": 0.5, "known": True, "since": None}


def test_text_line(begin: Begin) -> None:
    stream = begin(LogFormat.TEXT)
    logs.get("raft").warning("peer lost", peer="c 2", why="a=b", count=3, none="")
    line = stream.getvalue()
    assert (
        line[24:] == ' warning  peer lost node=c1 role=controller logger=raft peer="c 2" why="a=b" count=3 none=""\n'
    )


def test_logger_that_was_got_before_is_configured_too(begin: Begin) -> None:
    logger = logs.get("early")
    stream = begin()
    logger.info("late")
    assert events(stream)[0]["event"] == "late"


def test_level(begin: Begin) -> None:
    stream = begin(level=LogLevel.WARNING)
    logs.get("a").info("no")
    logging.getLogger("b").info("no")
    logs.get("a").warning("yes")
    logging.getLogger("b").warning("yes")
    assert [event["event"] for event in events(stream)] == ["yes", "yes"]


def test_library_that_uses_the_standard_library_is_heard(begin: Begin) -> None:
    stream = begin()
    try:
        raise ValueError("bad")
    except ValueError:
        logging.getLogger("grpc._server").exception("call %s failed", "x")
    (event,) = events(stream)
    assert (event["event"], event["logger"], event["level"]) == ("call x failed", "grpc._server", "error")
    assert (event["node"], event["role"]) == ("c1", "controller")
    assert event["exception"].startswith("Traceback")
    assert event["exception"].endswith("ValueError: bad\n")


class Hostile:
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize("form", LogFormat)
@pytest.mark.parametrize(
    "value",
    [
        "line\nsecond\r\x1b[2J",
        "x" * 1_000_000,
        b"\x00\xff" * 1_000_000,
        memoryview(bytes(100_000)),
        "\udcff",
        float("nan"),
        float("inf"),
        2**100_000,
        Hostile(),
        {"a": "b" * 100_000, "password": "hunter2"},
        {1, 2},
        object(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_no_value_breaks_the_line(begin: Begin, form: LogFormat, value: object) -> None:
    stream = begin(form)
    logs.get("a").info("said", value=value)
    written = stream.getvalue()
    assert written.count("\n") == 1
    assert written[:-1].isprintable()
    assert len(written) < 8 * logs.VALUE_CHARACTERS_MAX, "characters that JSON escapes are longer"
    assert "hunter2" not in written
    if form is LogFormat.JSON:
        json.loads(written)


@pytest.mark.parametrize("form", LogFormat)
def test_event_itself_is_bounded_and_one_line(begin: Begin, form: LogFormat) -> None:
    stream = begin(form)
    logging.getLogger("library").warning("2026-01-01T00:00:00.000Z info fake\nforged " + "x" * 100_000)
    assert stream.getvalue().count("\n") == 1
    assert len(stream.getvalue()) < 2000


def test_number_of_fields_is_bounded(begin: Begin) -> None:
    stream = begin()
    logs.get("a").info("many", **{f"field_{number}": number for number in range(1000)})
    (event,) = events(stream)
    assert len(event) == logs.FIELDS_MAX + 1
    assert event["fields_left_out"] == 1000 + 6 - logs.FIELDS_MAX
    assert event["event"] == "many"


@pytest.mark.parametrize("name", ["password", "client_secret", "Authorization", "auth_token", "private_key_pem"])
def test_what_looks_like_a_secret_is_left_out(begin: Begin, name: str) -> None:
    stream = begin()
    logs.get("a").info("call", **{name: "hunter2"})
    assert events(stream)[0][name] == logs.REMOVED


def test_of_a_long_traceback_the_end_is_kept(begin: Begin) -> None:
    stream = begin(LogFormat.TEXT)
    error = ValueError("the beginning")
    for number in range(200):
        cause, error = error, ValueError(f"{number} {'y' * 500} the end")
        error.__cause__ = cause
    logs.get("a").error("failed", exc_info=error)
    lines = stream.getvalue().splitlines()
    assert lines[-1].endswith("the end")
    assert all(line.startswith("    ") for line in lines[1:]), "no line of it can pass for an event"
    assert len(stream.getvalue()) < 2 * logs.TRACEBACK_CHARACTERS_MAX


def test_same_event_again_and_again_is_one_line(begin: Begin) -> None:
    stream = begin()
    throttled = logs.Throttled(logs.get("link"), Throttle(interval_ms=3_600_000))
    for _ in range(10_000):
        throttled.warning("peer refused", key="10.0.0.1", why="no certificate")
    throttled.info("peer refused", key="10.0.0.2")
    assert [(event["level"], event.get("why")) for event in events(stream)] == [
        ("warning", "no certificate"),
        ("info", None),
    ]


def test_library_cannot_flood(begin: Begin) -> None:
    stream = begin()
    for number in range(10_000):
        logging.getLogger("asyncio").warning("accept failed for %d", number)
        logging.getLogger("asyncio").warning(f"accept failed for {number}")
    assert len(events(stream)) == 200


# --- the throttle --------------------------------------------------------------------------------------------------


def test_throttle_admits_a_key_once_an_interval_and_counts() -> None:
    throttle = Throttle(interval_ms=100)
    assert [throttle.admit("a", now_ms=now_ms) for now_ms in (0, 1, 99, 100, 101, 250)] == [0, None, None, 2, None, 1]
    assert throttle.admit("b", now_ms=251) == 0


def test_throttle_bounds_all_keys_together() -> None:
    throttle = Throttle(interval_ms=100, lines_max=5, keys_max=8)
    admitted = [throttle.admit(number, now_ms=number // 100) for number in range(1000)]
    assert sum(answer is not None for answer in admitted) == 5
    assert throttle.admit("later", now_ms=100) == 995
    for number in range(1000):
        throttle.admit(number, now_ms=1000 * number)
    assert throttle.key_count == 8


def test_throttle_does_not_lose_the_count_of_a_forgotten_key() -> None:
    throttle = Throttle(interval_ms=100, keys_max=1)
    assert [throttle.admit("a", now_ms=0), throttle.admit("a", now_ms=1)] == [0, None]
    assert throttle.admit("b", now_ms=2) == 0
    assert throttle.admit("c", now_ms=3) == 1


def test_bare_client_imports_nothing_of_this() -> None:
    code = """
import sys, quire, quire.cli, quire.errors, quire.records, quire.refusals, quire.rpc_errors, quire.types
ours = ('structlog', 'prometheus_client', 'uvloop', 'quire.process', 'quire.config')
print([name for name in sys.modules if name.startswith(ours)])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
