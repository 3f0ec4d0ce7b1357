"""Where a broker's time goes, by py-spy. `scripts/bench broker --profile DIR` runs it.

py-spy looks at the broker's stacks from outside, those of C code included, a hundred times a second. That slows it
down, so shares mean something and rates do not. It needs root, or a system where processes may trace others.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.table import Table

SECONDS: Final = 10
RATE: Final = 100
ROWS: Final = 12

_LINE: Final = re.compile(r"\((.*?)(?::\d+)?\)$")
_KINDS: Final = (
    # Of the innermost frame: what is done there. Nothing: it waits.
    (re.compile(r"^(epoll_p?wait|poll|select)\b"), ""),
    (re.compile(r"^send"), "kernel: send"),
    (re.compile(r"^recv"), "kernel: receive"),
    (re.compile(r"^pwritev?"), "kernel: write to the log"),
    (re.compile(r"^pread"), "kernel: read the log"),
    (re.compile(r"^f(data)?sync"), "kernel: sync the log"),
    (re.compile(r"^(write|read|syscall|futex)\b.*libc"), "kernel: wake another thread"),
    (re.compile(r"crc32c"), "CRC32-C"),
    (re.compile(r"libc"), "libc: copies and allocations"),
    (re.compile(r"cygrpc|grpc"), "gRPC"),
    (re.compile(r"_message\.abi3|upb|protobuf"), "protobuf"),
    (re.compile(r"quire"), "Quire's Python"),
)
_OTHER: Final = "Python, asyncio, uvloop"


class Profile(NamedTuple):
    by_kind: Counter[str]
    by_function: Counter[str]
    """The innermost function of Quire's on the stack."""


def record(pid: int, path: Path, load: Callable[[], object]) -> Profile:
    """Watch a process while it is under load."""
    command = [str(Path(sys.executable).parent / "py-spy"), "record", "--native", "--pid", str(pid)]
    options = ["--duration", str(SECONDS), "--rate", str(RATE), "--format", "raw", "--output", str(path)]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as spy:
        until = time.monotonic() + SECONDS
        while time.monotonic() < until and spy.poll() is None:
            load()
        said, _ = spy.communicate()
    if spy.returncode or not path.exists():
        raise SystemExit(f"bench broker: py-spy failed:\n{said}")
    return read(path)


def read(path: Path) -> Profile:
    stacks: list[tuple[list[str], int]] = []
    for line in path.read_text().splitlines():
        stack, _, samples = line.rpartition(" ")
        stacks.append((stack.split(";"), int(samples)))
    # libc comes without names: where threads wait is known by those that wait for a lock of Python's.
    waits = {
        frames[-1]
        for frames, _ in stacks
        if "libc" in frames[-1] and any(frame.startswith("PyThread_acquire_lock") for frame in frames)
    }
    by_kind: Counter[str] = Counter()
    by_function: Counter[str] = Counter()
    for frames, count in stacks:
        kind = _kind(frames[-1])
        if kind and frames[-1] not in waits:
            by_kind[kind] += count
            by_function[_function(frames)] += count
    return Profile(by_kind, by_function)


def _kind(frame: str) -> str:
    return next((kind for pattern, kind in _KINDS if pattern.search(frame)), _OTHER)


def _function(frames: list[str]) -> str:
    for frame in reversed(frames):
        place = _LINE.search(frame)
        if place is not None and place[1].startswith(("quire/", "quire_broker/")):
            return f"{frame[: place.start()].strip()} ({place[1]})"
    return "none: the threads of gRPC, the loop itself"


def show(title: str, profile: Profile) -> None:
    for name, counts in (("where", profile.by_kind), ("for which function of Quire's", profile.by_function)):
        table = Table(title=title)
        table.add_column("share", justify="right")
        table.add_column(name)
        total = sum(counts.values())
        for what, count in counts.most_common(ROWS):
            table.add_row(f"{count / total:.0%}", what)
        Console(width=110 if not sys.stdout.isatty() else None).print(table)
