"""Where the time of a broker and of the SDK goes, by py-spy. `scripts/bench broker --profile DIR` runs it.

py-spy looks at the stacks of a process from outside, those of C code too, a hundred times a second. That slows it
down, so shares mean something and rates do not. It needs root, or a system where processes may trace others.

DIR gets the stacks, which a flame graph can be made of, and `profile.md` with the tables of docs/PERFORMANCE.md.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.table import Table

SECONDS: Final = 10
RATE: Final = 100
ROWS: Final = 12
PAGE_ROWS: Final = 9

_LINE: Final = re.compile(r"\((.*?)(?::\d+)?\)$")
_SYNC: Final = "kernel: sync the log"
_WAKE: Final = "kernel: wake another thread"
_KINDS: Final = (
    # Of the innermost frame: what is done there. Nothing: it waits.
    (re.compile(r"^(epoll_p?wait|poll|select)\b"), ""),
    (re.compile(r"^send"), "kernel: send"),
    (re.compile(r"^recv"), "kernel: receive"),
    (re.compile(r"^pwritev?"), "kernel: write to the log"),
    (re.compile(r"^pread"), "kernel: read the log"),
    (re.compile(r"^f(data)?sync"), _SYNC),
    (re.compile(r"^(write|read|syscall|futex)\b.*libc"), _WAKE),
    (re.compile(r"crc32c"), "CRC32-C"),
    (
        re.compile(r"^(gc_collect_main|visit_\w+|\w+_traverse\w*|__pyx_tp_traverse\w*)\b"),
        "Python's search for cycles",
    ),
    (re.compile(r"_crecords|default_records"), "record codec (Cython)"),
    (re.compile(r"libc"), "libc: copies and allocations"),
    (re.compile(r"cygrpc|grpc"), "gRPC"),
    (re.compile(r"_message\.abi3|upb|protobuf"), "protobuf"),
    (re.compile(r"quire"), "Quire's Python"),
)
_OTHER: Final = "Python, asyncio, uvloop"
_LAYERS: Final = (
    # Of the innermost file of Quire's: what it is a part of.
    ("quire_broker/service/hangup.py", "the loop, and gRPC below it"),
    ("quire_broker/service/", "service: calls and streams"),
    ("quire_broker/runtime/", "runtime: partitions, writers, budgets"),
    ("quire_broker/log/", "log: what is where in the files"),
    ("quire_broker/replica/", "replica: what is committed"),
    ("quire/process/rpc/", "gate: permission, limits, context"),
    ("quire/records/", "record batches: headers, CRC, codec"),
    ("quire/disk/", "disk: system calls"),
    ("quire/_client/", "SDK"),
)
_ELSEWHERE: Final = "the loop, and gRPC below it"
PAGE: Final = "profile.md"


class Profile(NamedTuple):
    by_kind: Counter[str]
    """What was done."""
    by_layer: Counter[str]
    """For which part of Quire's."""
    by_function: Counter[str]
    """For which function: the innermost one of Quire's on the stack."""


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
    found = Profile(Counter(), Counter(), Counter())
    for frames, count in stacks:
        kind = _kind(frames)
        if kind and frames[-1] not in waits:
            found.by_kind[kind] += count
            function, place = _innermost(frames)
            layer = next((layer for prefix, layer in _LAYERS if place.startswith(prefix)), _ELSEWHERE)
            found.by_layer[layer] += count
            if layer != _ELSEWHERE:
                found.by_function[f"`{function}` of `{place}`"] += count
    return found


def _kind(frames: list[str]) -> str:
    kind = next((kind for pattern, kind in _KINDS if pattern.search(frames[-1])), _OTHER)
    # Both are system calls without a name of their own.
    return _SYNC if kind == _WAKE and any("KernelSyncs.sync" in frame for frame in frames) else kind


def _innermost(frames: list[str]) -> tuple[str, str]:
    """Function and file of Quire's."""
    for frame in reversed(frames):
        place = _LINE.search(frame)
        if place is not None and place[1].startswith(("quire/", "quire_broker/")):
            return frame[: place.start()].strip(), place[1]
    return "", ""


def _tables(profile: Profile) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Of each view what it shows, and rows of share and what: of the whole, those that are a percent or more."""
    total = profile.by_kind.total()
    for what, counts in (
        ("what is done", profile.by_kind),
        ("for which part", profile.by_layer),
        ("for which function", profile.by_function),
    ):
        rows = [(f"{count / total:.0%}", name) for name, count in counts.most_common(ROWS) if count / total >= 0.01]
        yield what, rows


def show(title: str, profile: Profile) -> None:
    for what, rows in _tables(profile):
        table = Table(title=title)
        table.add_column("share", justify="right")
        table.add_column(what)
        for share, name in rows:
            table.add_row(share, name)
        Console(width=110 if not sys.stdout.isatty() else None).print(table)


def write_page(path: Path, profiles: Mapping[str, Profile]) -> None:
    """The same as Markdown; of functions the first few."""
    lines: list[str] = []
    for title, profile in profiles.items():
        lines += [
            f"### {title}",
            "",
            "| share | what is done | share | for which part | share | for which function |",
        ]
        lines.append("|---:|---|---:|---|---:|---|")
        columns = [rows[:PAGE_ROWS] for _, rows in _tables(profile)]
        for row in zip_longest(*columns, fillvalue=("", "")):
            lines.append(f"| {' | '.join(cell for pair in row for cell in pair)} |")
        lines.append("")
    path.write_text("\n".join(lines), encoding="utf-8")
