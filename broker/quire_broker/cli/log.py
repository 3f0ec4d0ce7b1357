"""Look into a log's files: what it is, what it holds, whether it is sound.

Only ever reads, so it may be used on what a crash has left and while a broker is writing.
"""

from __future__ import annotations

import errno
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, Final, TypeVar

import typer
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from quire.cli.text import one_line
from quire.disk.read_only_disk import ReadOnlyDisk
from quire.errors import DiskIoError
from quire_broker.cli import log_dump, log_stat, log_verdict
from quire_broker.cli.log_picture import UnusableError, find_logs, steadily, take
from quire_broker.cli.log_verdict import Verdict
from quire_broker.cli.log_verify import verify_steadily

EXIT_DAMAGED: Final = 1
EXIT_USAGE: Final = 2

T = TypeVar("T")

app = typer.Typer(
    help=__doc__,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Directory = Annotated[
    str,
    typer.Argument(
        metavar="DIR", help="The directory of a log, or one above it: then of every log below.", show_default=False
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of tables for people.")]


@app.command()
def stat(directory: Directory, as_json: AsJson = False) -> None:
    """Show offsets, epochs, producers and segments. Quick: reads seals and the tail only."""
    with _errors():
        disk = ReadOnlyDisk()
        stats = (steadily(disk, log, log_stat.stat) for log in find_logs(disk, directory))
        if as_json:
            _print_json({"logs": [each.to_json() for each in stats]})
        else:
            _show_all(stats, log_stat.show)


@app.command()
def dump(
    directory: Directory,
    from_offset: Annotated[
        int | None,
        typer.Option(
            "--from", metavar="OFFSET", min=0, help="Begin with this offset.", show_default="the log's start"
        ),
    ] = None,
    count_max: Annotated[
        int,
        typer.Option(
            "--max", metavar="N", min=0, help="Stop after so many batches, or records, of each log; 0 for no limit."
        ),
    ] = 100,
    records: Annotated[bool, typer.Option("--records", help="Print the records of each batch too.")] = False,
    wide: Annotated[bool, typer.Option("--wide", help="Do not cut lines to the width of the terminal.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """Print batches, one a line. Exits with 1 if it met damage."""
    damaged = False
    with _errors():
        disk = ReadOnlyDisk()
        lines = log_dump.Lines(records=records, write=_line_writer(wide=wide))
        for log in find_logs(disk, directory):
            picture = take(disk, log)
            start = picture.start_offset if from_offset is None else from_offset
            empty = True
            for item in log_dump.dump(picture, from_offset=start, count_max=count_max or None, records=records):
                empty = False
                damaged |= log_dump.is_damage(item)
                if isinstance(item, log_dump.More):
                    _say(f"{log}: more follows, --from {item.next_offset}")
                elif as_json:
                    print(log_dump.to_json(item))
                else:
                    lines.show(item)
            if empty:
                _say(f"{log}: nothing from offset {start} on")
    if damaged:
        raise typer.Exit(EXIT_DAMAGED)


@app.command()
def verify(directory: Directory, as_json: AsJson = False) -> None:
    """Check every batch and every file of a log. Exits with 0 if sound, 1 if damaged.

    A torn tail that was never acknowledged is no damage. What the broker has quarantined is.
    """
    with _errors():
        disk = ReadOnlyDisk()
        verdicts: list[Verdict] = []

        def run() -> Iterator[Verdict]:
            for log in find_logs(disk, directory):
                with _progress(log) as on_progress:
                    verdict = verify_steadily(disk, log, on_progress)
                verdicts.append(verdict)
                yield verdict

        if as_json:
            bodies = [verdict.to_json() for verdict in run()]
            _print_json({"sound": all(verdict.sound for verdict in verdicts), "logs": bodies})
        else:
            _show_all(run(), log_verdict.show)
    if not all(verdict.sound for verdict in verdicts):
        raise typer.Exit(EXIT_DAMAGED)


# -- printing ------------------------------------------------------------------------------------------------------


def _show_all(items: Iterable[T], show: Callable[[T, Console], None]) -> None:
    console = _console()
    for n, item in enumerate(items):
        if n:
            console.print()
        show(item, console)


def _line_writer(*, wide: bool) -> Callable[[str, str], None]:
    """What prints a line in a style. On a terminal a line stays one: what does not fit is cut off."""
    console = _console()
    if not console.is_terminal:
        return lambda line, _: print(line)

    def write(line: str, style: str) -> None:
        if not wide and cell_len(line) > console.width:
            line = set_cell_size(line, console.width - 1) + "…"
        console.print(Text(line, style=style), soft_wrap=True)

    return write


def _console() -> Console:
    return Console(highlight=False, markup=False, emoji=False)


def _print_json(document: dict[str, object]) -> None:
    print(json.dumps(document, indent=2))


def _say(text: str) -> None:
    """For a person, beside the output."""
    print(one_line(text), file=sys.stderr)


@contextmanager
def _progress(log: str) -> Iterator[Callable[[int, int], None]]:
    """A bar that is told how many bytes are done of how many; only on a terminal, and gone when it is done."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _done, _total: None
        return
    columns = (TextColumn("checking"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(one_line(log), total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


# -- errors --------------------------------------------------------------------------------------------------------

_ADVICE: Final = {
    errno.EACCES: "run this as the user that the log belongs to",
    errno.EPERM: "run this as the user that the log belongs to",
    errno.EIO: "the disk is failing; take this replica out of service",
    errno.ENOENT: "it was there a moment ago: a broker is removing files; try again",
}


@contextmanager
def _errors() -> Iterator[None]:
    """Say on one line what keeps us from working, and exit with the code for that."""
    # A path or a value may hold what the terminal's encoding has no character for.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        yield
    except UnusableError as error:
        _say(f"quire log: {error}")
        raise typer.Exit(EXIT_USAGE) from error
    except DiskIoError as error:
        code = int(error.details.get("errno", 0))
        _say(f"quire log: {error.message}; {_ADVICE.get(code, 'mend that and try again')}")
        raise typer.Exit(EXIT_USAGE) from error
