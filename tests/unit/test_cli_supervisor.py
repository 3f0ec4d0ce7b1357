"""What the supervisor decides, what it makes of a log, and who has a port."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from quire.errors import DiskIoError
from quire.link.backoff import Backoff
from quire.link.network import Address
from quire.process.exits import Exit
from quire_broker.cli.supervisor import ports
from quire_broker.cli.supervisor.logfile import WORDS_CHARACTERS_MAX, LogFile
from quire_broker.cli.supervisor.restarts import STEADY_MS, Restarts, describe

# --- restarts ------------------------------------------------------------------------------------------------------


def restarts(*, attempts_max: int | None = None) -> Restarts:
    """Without randomness: the upper end of each wait."""
    return Restarts(
        backoff=Backoff(ms_min=200, ms_max=1_000, uniform=lambda _, high: high), attempts_max=attempts_max
    )


@pytest.mark.parametrize("code", [Exit.OK, Exit.FAILED, Exit.DIRECTORY_IN_USE, Exit.STOP_DEADLINE, Exit.BUG, -9, -11])
def test_restarts_after_ever_longer_pauses(code: int) -> None:
    history = restarts()
    assert [history.after_end(code, ran_ms=5) for _ in range(5)] == [200, 400, 800, 1_000, 1_000]


def test_pause_is_short_again_after_a_long_run() -> None:
    history = restarts()
    assert [history.after_end(1, ran_ms=5) for _ in range(3)] == [200, 400, 800]
    assert history.after_end(1, ran_ms=STEADY_MS) == 200
    assert history.after_end(1, ran_ms=5) == 400


def test_wrong_configuration_is_not_tried_again() -> None:
    history = restarts()
    history.on_ready()
    assert history.after_end(Exit.MISCONFIGURED, ran_ms=STEADY_MS) is None


def test_attempts_count_until_it_was_ready_once() -> None:
    history = restarts(attempts_max=2)
    assert history.after_end(1, ran_ms=5) == 200
    assert history.after_end(1, ran_ms=5) is None
    history = restarts(attempts_max=2)
    history.on_ready()
    assert None not in [history.after_end(1, ran_ms=5) for _ in range(10)]


def test_ends_are_described() -> None:
    assert describe(-9) == "was killed by SIGKILL"
    assert describe(-250) == "was killed by signal 250"
    assert describe(0) == "stopped"
    assert describe(1) == "ended with code 1"
    assert describe(4) == "did not stop in time"
    assert describe(70) == "ended because of a bug in Quire"


# --- log files -----------------------------------------------------------------------------------------------------

TEXT = '2026-01-01T00:00:00.000Z error    cannot go on node=n1 reason=DISK_IO message="no \\"sda\\"" path=/x\n'
JSON = '{"level": "error", "event": "cannot go on", "message": "no sda", "node": "n1"}\n'
INFO = "2026-01-01T00:00:00.000Z info     stopped node=n1 message=x\n"


def write(log: LogFile, text: str) -> None:
    fd = log.open()
    os.write(fd, text.encode())
    os.close(fd)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TEXT, 'no "sda"'),
        (TEXT + INFO, 'no "sda"'),
        (JSON, "no sda"),
        ("2026-01-01T00:00:00.000Z critical a bug ends it node=n1\n", "a bug ends it"),
        (
            "2026-01-01T00:00:00.000Z critical a bug ends it node=n1\n    Traceback\n      f()\n    ValueError: y\n",
            "a bug ends it: ValueError: y",
        ),
        (
            '{"level": "critical", "event": "a bug", "exception": "Traceback\\nValueError: y\\n"}',
            "a bug: ValueError: y",
        ),
        ("quire_broker: --x is no flag (INVALID_ARGUMENT)\n", "--x is no flag (INVALID_ARGUMENT)"),
        ("Traceback (most recent call last):\n  File x\nValueError: y\n", "ValueError: y"),
        (INFO, None),
        ('{"level": "info", "event": "stopped"}\n', None),
        ('{"level": "err', None),
        ("", None),
        ("x" * 5_000, "x" * WORDS_CHARACTERS_MAX),
    ],
)
def test_last_words(tmp_path: Path, text: str, words: str | None) -> None:
    log = LogFile(tmp_path / "logs" / "a.log")
    write(log, text)
    assert log.last_words() == words


def test_last_words_are_not_those_of_a_predecessor(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "a.log")
    write(log, TEXT)
    write(log, INFO)
    assert log.last_words() is None


def test_no_file_has_no_words(tmp_path: Path) -> None:
    assert LogFile(tmp_path / "a.log").last_words() is None


def test_log_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DiskIoError, match=r"a\.log cannot be opened: "):
        LogFile(tmp_path / "file" / "a.log").open()


def test_log_is_held_to_its_size_and_who_appends_goes_on(tmp_path: Path) -> None:
    log, aside = LogFile(tmp_path / "a.log", bytes_max=10), tmp_path / "a.log.1"
    fd = log.open()
    os.write(fd, b"0123456789")
    assert not log.bound()
    assert not aside.exists()
    os.write(fd, b"abcde")
    assert log.bound()
    assert (log.path.read_bytes(), aside.read_bytes()) == (b"", b"56789abcde")
    os.write(fd, b"new\n")
    assert log.path.read_bytes() == b"new\n"
    assert log.last_words() == "new"
    os.write(fd, b"x" * 20)
    assert log.bound()
    assert aside.read_bytes() == b"x" * 10
    os.close(fd)


def test_bounding_what_is_not_there(tmp_path: Path) -> None:
    assert not LogFile(tmp_path / "a.log").bound()


# --- ports ---------------------------------------------------------------------------------------------------------


def test_free_port_has_no_obstacle() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    assert ports.obstacle(Address("127.0.0.1", port)) is None


def test_taken_port_has_a_holder() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        why = ports.obstacle(Address("127.0.0.1", listener.getsockname()[1]))
    assert why is not None
    assert why.startswith(f"is taken by process {os.getpid()} (")


def test_port_that_cannot_be_had_at_all() -> None:
    why = ports.obstacle(Address("203.0.113.1", 7400))  # of nobody's interface: reserved for documents
    assert why == "cannot be had (Cannot assign requested address)"
