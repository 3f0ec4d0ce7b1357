"""docs/CLI.md shows what the commands print: each is run, in order, and compared."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.integration.cli_runs import Command
from tests.integration.controller_cluster import WAIT_S_MAX
from tests.integration.up_processes import QUIRE, running_up
from tests.raftkill.processes import REPOSITORY

DOCUMENT: Final = REPOSITORY / "docs" / "CLI.md"

VARYING: Final = {
    # What differs from run to run, and by what it is replaced on both sides.
    r"localhost:\d+ to \d+, at": "localhost:(ports), at",
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}": "(id)",
    r"\bup-[0-9a-f]{12}\b": "up-(id)",
    r'"timestamp_ms": \d{13}': '"timestamp_ms": (ms)',
    r"(127\.0\.0\.1|localhost):\d{4,5}": r"\1:(port)",
    r"(active|fenced) +(\d+) +(\d+) +\d+": r"\1 \2 \3 (epoch)",
    r"such as that of \S+:": "such as that of (partition):",
    r" -b localhost:\(port\)": "",
    r"after \d+\.\d s": "after (s)",
    r"data in \S+": "data in (folder)",
    r"(?m)^  logs +\S+$": "  logs (folder)",
    r"(?m)^(produce, one at a time|produce, send\w*\(\)|consume|end to end) [ \d,.]+$": r"\1 (measured)",
    r" +": " ",
}


def settled(text: str) -> str:
    for pattern, replacement in VARYING.items():
        text = re.sub(pattern, replacement, text)
    return text.strip()


def examples() -> Iterator[tuple[str, str]]:
    """Each command that is shown, and what it is said to print."""
    for block in re.findall(
        r"^```console\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    ):
        for shown in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = shown.partition("\n")
            yield command, output


def test_commands_print_what_the_document_shows(tmp_path: Path) -> None:
    (first, up_output), *rest = examples()
    assert first == "quire up"
    with running_up(tmp_path / "data") as up:
        environ = Command(up).environ
        for command, output in rest:
            done = subprocess.run(
                ["bash", "-c", command],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=2 * WAIT_S_MAX,
            )
            assert settled(done.stdout) == settled(output), command
        up.stop()
    assert settled(up.output).partition("\nStopping")[0] == settled(up_output)
    assert len(rest) > 15


@pytest.mark.parametrize("verb", ["up", "topic create", "produce", "consume", "offsets", "cluster", "bench", "node"])
def test_options_of_the_document_are_there(verb: str) -> None:
    done = subprocess.run(
        [QUIRE, *verb.split(), "--help"], capture_output=True, text=True, check=True, timeout=WAIT_S_MAX
    )
    assert "Usage: quire" in done.stdout
    section = {"up": "A cluster on this machine", "produce": "Messages in", "consume": "Messages out"}.get(verb)
    if section is not None:
        text = DOCUMENT.read_text(encoding="utf-8").partition(f"## {section}\n")[2].partition("\n## ")[0]
        for option in re.findall(r"^\| `(--[a-z-]+)", text, re.MULTILINE):
            assert option in done.stdout, option
