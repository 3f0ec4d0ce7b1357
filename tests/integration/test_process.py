"""Real processes: how they stop, how they fail, and that two of them never share a directory."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from quire.errors import DiskIoError
from quire.process import malloc
from quire.process.exits import Exit
from quire.process.lock import LOCK_FILE, DirectoryInUseError, DirectoryLock

CHILD = Path(__file__).with_name("process_child.py")
LONG_MS = 600_000
"""A deadline that does not come within a test."""
MALLOC = """
from quire.process import malloc
assert malloc.tune(mmap_threshold_bytes=1 << 28, trim_threshold_bytes=1 << 30, top_pad_bytes=1 << 26, arenas_max=2)
assert malloc.tune()
block = bytearray(1 << 25)
print([line for line in open("/proc/self/maps") if line.rstrip().endswith("[heap]")][0].split()[0])
"""


class Child:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def ready(self) -> None:
        assert self.line() == f"ready {self.process.pid}"

    def kill(self, number: int) -> None:
        self.process.send_signal(number)

    def ended(self) -> tuple[int, str, list[dict[str, Any]]]:
        """Exit code, the rest of what it printed, and its log."""
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, [json.loads(line) for line in err.splitlines()]


@contextmanager
def child(behaviour: str, *arguments: str | Path, stop_ms_max: int = LONG_MS) -> Iterator[Child]:
    command = [sys.executable, str(CHILD), behaviour, str(stop_ms_max), *map(str, arguments)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the tests in the background ignores it, and a child would too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    with process:
        try:
            yield Child(process)
        finally:
            process.kill()


# --- stopping ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_asks_to_stop(number: signal.Signals) -> None:
    with child("wait") as process:
        process.ready()
        process.kill(number)
        code, out, log = process.ended()
    assert (code, out) == (Exit.OK, f"asked\nstopping because of {number.name}\n")
    assert [(event["event"], event.get("signal"), event.get("why")) for event in log] == [
        ("asked to stop", number.name, None),
        ("stopped", None, number.name),
    ]


@pytest.mark.parametrize("behaviour", ["slow-stop", "blocked-stop"])
@pytest.mark.parametrize("numbers", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGTERM)])
def test_second_signal_ends_it_at_once(behaviour: str, numbers: tuple[signal.Signals, signal.Signals]) -> None:
    with child(behaviour) as process:
        process.ready()
        process.kill(numbers[0])
        assert process.line() == "asked"
        process.kill(numbers[1])
        code, _, _ = process.ended()
    assert code == -numbers[1]


@pytest.mark.parametrize("behaviour", ["slow-stop", "blocked-stop"])
def test_deadline_ends_what_does_not_stop(behaviour: str) -> None:
    with child(behaviour, stop_ms_max=50) as process:
        process.ready()
        process.kill(signal.SIGTERM)
        code, _, log = process.ended()
    assert code == Exit.STOP_DEADLINE
    assert (log[-1]["event"], log[-1]["level"]) == ("not stopped in time, so it ends here", "critical")
    assert (log[-1]["node"], log[-1]["role"]) == ("n1", "test")


def test_deadline_covers_threads_that_outlive_the_loop() -> None:
    with child("stuck-thread", stop_ms_max=50) as process:
        assert process.ended()[0] == Exit.STOP_DEADLINE


def test_deadline_holds_when_nobody_reads_the_log() -> None:
    """Standard error is a full pipe: the last words are given up, the exit is not."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write, bytes(4096))
    os.set_blocking(write, True)
    command = [sys.executable, str(CHILD), "blocked-stop", "50"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=write, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == Exit.STOP_DEADLINE
    os.close(read)
    os.close(write)


def test_ignored_interrupt_stays_ignored() -> None:
    command = [sys.executable, str(CHILD), "wait", str(LONG_MS)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read().endswith("stopping because of SIGTERM\n")
        assert process.wait(timeout=60) == Exit.OK


# --- ending by itself ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("behaviour", "code", "event", "field"),
    [
        ("return", Exit.OK, "stopped", ("why", "it had nothing more to do")),
        ("fail", Exit.FAILED, "cannot go on", ("message", "the disk is elsewhere")),
        ("fail-in-group", Exit.MISCONFIGURED, "cannot go on", ("reason", "INVALID_ARGUMENT")),
        ("bug", Exit.BUG, "a bug in Quire ends this process", ("level", "critical")),
        ("broken-in-callback", Exit.BUG, "a bug in Quire ends this process", ("level", "critical")),
        ("broken-in-task", Exit.BUG, "a bug in Quire ends this process", ("level", "critical")),
        ("broken-in-thread", Exit.BUG, "a bug in Quire ends this process", ("level", "critical")),
    ],
)
def test_end_has_a_code_and_a_last_line(behaviour: str, code: Exit, event: str, field: tuple[str, str]) -> None:
    with child(behaviour) as process:
        ended, _, log = process.ended()
    assert (ended, log[-1]["event"], log[-1][field[0]]) == (code, event, field[1])
    if code is Exit.BUG:
        assert log[-1]["exception"].startswith("Traceback")
        assert "a bug" in log[-1]["exception"] or "broken" in log[-1]["exception"]


def test_other_error_in_a_callback_is_logged_and_no_end() -> None:
    with child("error-in-callback") as process:
        code, out, log = process.ended()
    assert code == Exit.OK
    assert out.endswith("stopping because of enough\n")
    assert log[0]["event"] == "unhandled in the event loop"
    assert log[0]["exception"].endswith("ValueError: invalid literal for int() with base 10: 'x'\n")


# --- the command line ----------------------------------------------------------------------------------------------

START = """
import sys
from quire.process.start import configured
print(configured("controller", sys.argv[1:]).config.node.id)
"""


def start(*arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")}
    command = [sys.executable, "-c", START, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environ)


def test_configured_process_says_what_was_chosen() -> None:
    done = start("--node-id", "c1", "--node-cluster-id=prod")
    assert (done.returncode, done.stdout) == (0, "c1\n")
    event = json.loads(done.stderr)
    assert (event["event"], event["node"], event["role"]) == ("starting", "c1", "controller")
    assert json.loads(event["settings"]) == {
        "node.id": "c1 (--node-id)",
        "node.cluster_id": "prod (--node-cluster-id)",
    }


def test_misconfigured_process_does_not_start() -> None:
    done = start("--node-id", "c1", "--node-cluster-id", "prod", "--log-level", "x\x1b")
    assert (done.returncode, done.stdout) == (Exit.MISCONFIGURED, "")
    assert done.stderr.startswith("quire_controller: --log-level: 'x\\x1b' has characters that cannot be printed")
    assert done.stderr.endswith("(INVALID_ARGUMENT)\n")


def test_help_and_version() -> None:
    assert start("--help").stdout.startswith("Usage: python -m quire_controller [--config FILE]")
    assert "--controller-lease-ms" in start("--help").stdout
    assert start("--version").stdout.startswith("quire ")


# --- the directory -------------------------------------------------------------------------------------------------


def test_second_process_is_told_who_has_the_directory(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "data"
    with child("lock", directory) as first:
        first.ready()
        with child("lock", directory) as second:
            code, _, log = second.ended()
        assert code == Exit.DIRECTORY_IN_USE
        assert f"{directory} is in use by process {first.process.pid} on " in log[-1]["message"]
        with pytest.raises(DirectoryInUseError, match=f"process {first.process.pid} on"):
            DirectoryLock(directory)
        first.kill(signal.SIGKILL)
        assert first.ended()[0] == -signal.SIGKILL
    with child("lock", directory) as third:
        third.ready()
        assert (directory / LOCK_FILE).read_text().startswith(f"{third.process.pid} ")
        third.kill(signal.SIGTERM)
        assert third.ended()[0] == Exit.OK
    with DirectoryLock(directory):
        assert (directory / LOCK_FILE).read_text().startswith(f"{os.getpid()} ")


def test_lock_is_not_inherited_by_a_program_that_it_starts(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path) as lock:
        command = [sys.executable, "-c", "print('ready', flush=True); input()"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False)
    lock.release()
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        DirectoryLock(tmp_path).release()
        process.kill()


@pytest.mark.parametrize("content", [b"", b"garbage\x1b", b"\xff" * 5000])
def test_lock_file_with_anything_in_it(tmp_path: Path, content: bytes) -> None:
    with DirectoryLock(tmp_path):
        (tmp_path / LOCK_FILE).write_bytes(content)
        with pytest.raises(DirectoryInUseError, match="in use by a process that has just started"):
            DirectoryLock(tmp_path)


def test_directory_that_cannot_be_had(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DiskIoError, match="lock cannot be opened: "):
        DirectoryLock(tmp_path / "file")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / LOCK_FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DiskIoError, match="cannot be opened"):
        DirectoryLock(tmp_path / "linked")


# --- memory --------------------------------------------------------------------------------------------------------


def test_malloc_takes_large_blocks_from_the_heap() -> None:
    done = subprocess.run([sys.executable, "-c", MALLOC], capture_output=True, text=True, check=True)
    first, last = (int(address, 16) for address in done.stdout.strip().split("-"))
    assert last - first > 1 << 25


def test_malloc_of_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    assert malloc.tune(arenas_max=2) is False
