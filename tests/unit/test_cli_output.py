"""What the command prints of outcomes and measurements, and what it imports for that."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from quire import Durability, Stored
from quire.cli import progress, tables
from quire.cli.bench import percentiles
from quire.cli.sending import Tally
from quire.cli.text import duration
from quire.errors import InvalidArgumentError, OutcomeUnknownError, QuireError, UnavailableError

SAFE = Durability(replicas=3, fsynced=True)


class Settled:
    """A delivery whose outcome is there."""

    def __init__(self, outcome: Stored | QuireError) -> None:
        self._outcome = outcome

    def add_done_callback(self, callback: object) -> None:
        assert callable(callback)
        callback(self)

    def result(self, timeout_s: float | None = None) -> Stored:
        assert isinstance(self._outcome, Stored)
        return self._outcome

    def exception(self, timeout_s: float | None = None) -> QuireError | None:
        return self._outcome if isinstance(self._outcome, QuireError) else None


def stored(offset: int, *, partition: int = 0, durability: Durability = SAFE) -> Stored:
    return Stored("orders", partition, offset, 1_700_000_000_000, False, durability)


def told(*outcomes: Stored | QuireError, report: bool = False) -> Tally:
    tally = Tally("orders", report=report)
    for outcome in outcomes:
        tally.add(Settled(outcome))  # type: ignore[arg-type]  # all of a delivery that is asked for
    return tally


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        ([], "0 messages stored in orders\n"),
        ([stored(7)], "1 message stored in orders: partition 0, offset 7; on 3 replicas, fsynced\n"),
        (
            [stored(8), stored(7)],
            "2 messages stored in orders: partition 0, offsets 7 to 8; on 3 replicas, fsynced\n",
        ),
        (
            [stored(7), stored(3, partition=1)],
            "2 messages stored in orders: 2 partitions; on 3 replicas, fsynced\n",
        ),
        (
            [stored(7), stored(8, durability=Durability(replicas=2, fsynced=False))],
            "2 messages stored in orders: partition 0, offsets 7 to 8; on 2 replicas, not fsynced\n",
        ),
        (
            [stored(-1, durability=Durability(replicas=0, fsynced=False))],
            "1 message stored in orders, as far as anybody knows: --acks none waits for nothing\n",
        ),
        (
            [stored(7), UnavailableError("gone\x1b"), UnavailableError("later"), OutcomeUnknownError("who knows")],
            "1 message stored in orders: partition 0, offset 7; on 3 replicas, fsynced\n"
            "2 messages not stored\n"
            "1 message may be stored, or not\n"
            "quire produce: gone? (UNAVAILABLE)\n",
        ),
        ([UnavailableError("gone")], "1 message not stored\nquire produce: gone (UNAVAILABLE)\n"),
    ],
)
def test_tally(capsys: pytest.CaptureFixture[str], outcomes: list[Stored | QuireError], said: str) -> None:
    tally = told(*outcomes)
    assert tally.failed == any(isinstance(each, QuireError) for each in outcomes)
    tally.finish(quiet=False)
    assert capsys.readouterr() == ("", said)


def test_quiet_tally_says_only_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    told(stored(1)).finish(quiet=True)
    assert capsys.readouterr().err == ""
    told(stored(1), UnavailableError("gone")).finish(quiet=True)
    assert "1 message not stored" in capsys.readouterr().err


def test_refused_message_counts_as_failure(capsys: pytest.CaptureFixture[str]) -> None:
    tally = told(stored(1))
    tally.refuse(InvalidArgumentError("line 2 is none"))
    tally.finish(quiet=True)
    assert capsys.readouterr().err.endswith("fsynced\nquire produce: line 2 is none (INVALID_ARGUMENT)\n")


def test_report_is_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    told(stored(7), UnavailableError("gone"), report=True)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {
            "topic": "orders",
            "partition": 0,
            "offset": 7,
            "timestamp_ms": 1_700_000_000_000,
            "duplicate": False,
            "replicas": 3,
            "fsynced": True,
        },
        {"error": "UNAVAILABLE", "message": "gone"},
    ]


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    tables.show(["name", "count>", ""], [("a", 1, "x"), ("日本", 1000, ""), ("evil\x1b[2J\n", 7, "y")])
    assert capsys.readouterr().out == (
        "name       count\na              1  x\n日本        1000\nevil?[2J?      7  y\n"
    )


def test_percentiles() -> None:
    took = [n / 1000 for n in range(100, 0, -1)]
    assert percentiles(took) == {"p50": 50.0, "p99": 99.0, "max": 100.0}
    assert percentiles([0.002]) == {"p50": 2.0, "p99": 2.0, "max": 2.0}
    with pytest.raises(InvalidArgumentError, match="give more --seconds"):
        percentiles([])


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (604_800_000, "7 days"),
        (86_400_000, "1 day"),
        (3_600_000, "1 h"),
        (90_000, "90 s"),
        (120_000, "2 min"),
        (1_500, "1,500 ms"),
        (0, "0 ms"),
    ],
)
def test_durations(ms: int, text: str) -> None:
    assert duration(ms) == text


def test_bar_without_a_terminal_is_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.bar("lines", 10) as advance:
        advance(5, "half")
    assert capsys.readouterr() == ("", "")


IMPORTED = """
import sys
from quire.cli import main
sys.argv = ["quire", *sys.argv[1:]]
try:
    main()
finally:
    print([name for name in ("grpc", "rich", "quire._client", "quire.records") if name in sys.modules])
"""


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["topic", "--help"], ["consume", "--help"]])
def test_help_imports_nothing_that_is_slow(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_json_can_be_printed_of_any_text(capsys: pytest.CaptureFixture[str]) -> None:
    document = {"values": ["\ud800", "ü", "\udc80", "\\ud800"]}
    tables.show_json(document)
    said = capsys.readouterr().out
    assert json.loads(said.encode()) == document
    assert "ü" in said
