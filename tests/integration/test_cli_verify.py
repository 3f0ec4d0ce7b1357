"""`quire verify`, as its users meet it: what it prints, how it exits, and how much memory a long history takes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.integration.cli_runs import Done, run_here
from tests.integration.up_processes import QUIRE, environment
from tests.raftkill.processes import REPOSITORY

DOCUMENT: Final = REPOSITORY / "docs" / "HISTORIES.md"
LINES: Final = 1_000_000
MEMORY_BYTES_MAX: Final = 128 * 1024 * 1024
BATCH: Final = 10
PARTITIONS: Final = 8


def block(kind: str) -> str:
    """The document's only one of this kind."""
    (found,) = re.findall(rf"^```{kind}\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return str(found)


def verify(*arguments: object, input: bytes = b"") -> Done:
    return run_here(["verify", *map(str, arguments)], input=input, environ={**environment(), "COLUMNS": "80"})


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """That of the document, with its anomalies."""
    path = tmp_path / "history.jsonl"
    path.write_text(block("json"))
    return path


def test_document_shows_what_is_printed(history: Path) -> None:
    command, _, output = block("console").partition("\n")
    assert command == "$ quire verify history.jsonl"
    done = verify(history)
    assert (done.code, done.stdout.decode(), done.stderr) == (1, output, "")


def test_from_standard_input(history: Path) -> None:
    lines = history.read_bytes().splitlines(keepends=True)
    done = verify("-", input=lines[0])
    assert done.code == 0
    assert done.stdout.decode().endswith("\nno anomaly\n")
    assert verify("-", input=history.read_bytes()).code == 1


def test_json(history: Path) -> None:
    done = verify(history, "--json")
    assert done.code == 1
    told = json.loads(done.stdout)
    assert (told["lines"], told["acknowledged"], told["unknown"], told["anomalies"]) == (9, 2, 1, 3)
    lost = next(each for each in told["verdicts"] if each["kind"] == "lost write")
    assert (lost["count"], lost["anomalies"][0]["value"], lost["anomalies"][0]["lines"]) == (1, "b", [5, 8])


def test_line_that_was_cut_short_is_mentioned(history: Path) -> None:
    history.write_bytes(history.read_bytes()[:-5])
    done = verify(history)
    assert "the last line was cut short, and is left out" in done.stdout.decode()
    assert "2 acknowledged values are where no full reader was" in done.stdout.decode()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"hello\n", "line 1: this is not JSON"),
        (b'{"format":"quire-history","version":1}\n{"time":\x1b[31m}\n', "line 2: this is not JSON"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_what_is_no_history_exits_with_2(tmp_path: Path, content: bytes | None, why: str) -> None:
    path = tmp_path / "history.jsonl"
    if content is not None:
        path.write_bytes(content)
    done = verify(path)
    assert (done.code, done.stdout) == (2, b"")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"quire: {path}")
    assert why in done.stderr
    assert "\x1b" not in done.stderr
    assert verify(tmp_path).code == 2  # a directory


def long_history() -> Iterator[bytes]:
    """Batches of sends, each of which is polled and read in the end."""
    yield b'{"format":"quire-history","version":1}\n'
    where = '"topic":"orders","partition":%d,"values":[%s]'
    for batch in range(LINES // (2 * BATCH + 2)):
        partition, base = batch % PARTITIONS, batch // PARTITIONS * BATCH
        values = [f'"p{batch % 3}-{batch * BATCH + n}"' for n in range(BATCH)]
        lines = []
        for n, value in enumerate(values):
            sent = f'{{"time":{batch},"process":"p{batch % 3}","op":"send",{where % (partition, value)}'
            lines.append(f'{sent},"type":"invoke"}}')
            lines.append(f'{sent},"type":"ok","offsets":[{base + n}]}}')
        offsets = ",".join(str(base + n) for n in range(BATCH))
        read = f'{{"time":{batch},"type":"ok",{where % (partition, ",".join(values))},"offsets":[{offsets}]'
        lines += [f'{read},"process":"r1","op":"poll"}}', f'{read},"process":"full","op":"read"}}']
        yield "".join(f"{line}\n" for line in lines).encode()


WATCHED = """
import runpy, sys
try:
    runpy.run_path(sys.argv.pop(1), run_name="__main__")
finally:
    sys.stderr.write(open("/proc/self/status").read())
"""
"""Not `ru_maxrss`: that counts what the process which started it had in memory, too."""


def test_memory_does_not_grow_with_the_history(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out, (tmp_path / "status").open("wb") as status:
        process = subprocess.Popen(
            [sys.executable, "-c", WATCHED, QUIRE, "verify", "-", "--json"],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=status,
        )
    assert process.stdin is not None
    for part in long_history():
        process.stdin.write(part)
    process.stdin.close()
    assert process.wait() == 0
    told = json.loads((tmp_path / "out").read_bytes())
    assert told["lines"] > LINES * 0.99
    assert told["acknowledged"] == told["polled"] == told["read"] == told["sends"] > LINES * 0.4
    used = re.search(r"^VmHWM:\s+(\d+) kB$", (tmp_path / "status").read_text(), re.MULTILINE)
    assert used is not None
    assert int(used[1]) * 1024 < MEMORY_BYTES_MAX
