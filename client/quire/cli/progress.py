"""How far something is, shown on a terminal beside the output, and nowhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int, str], None]
"""Told how much is done altogether, and what else there is to say."""


@contextmanager
def bar(what: str, total: int | None, *, unit_bytes: bool = False) -> Iterator[Advance]:
    """A bar that goes away when it is done. Without `total` it only shows that something moves."""
    if not sys.stderr.isatty():
        yield lambda done, note: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    amount = DownloadColumn(binary_units=True) if unit_bytes else TaskProgressColumn()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        amount,
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True, highlight=False), transient=True) as progress:
        task = progress.add_task(what, total=total, note="")
        yield lambda done, note: progress.update(task, completed=done, note=note)
