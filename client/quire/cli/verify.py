"""Check a history for lost, doubled and reordered messages."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final

import typer

from quire.cli import options, tables
from quire.cli.text import one_line

if TYPE_CHECKING:
    from quire.verify import Report

STDIN: Final = "-"
SHOWN_MAX: Final = 10
EXIT_ANOMALIES: Final = 1
EXIT_UNREADABLE: Final = 2

app = options.app(None)


@app.command(
    help=f"""{__doc__}

    A history says, a line of JSON an operation, what clients asked for and what they were told; docs/HISTORIES.md has
    its form. Exits with 1 if there is an anomaly, with 2 if the history cannot be read.

    \b
    quire verify history.jsonl
    zcat history.jsonl.gz | quire verify -
    """
)
def verify(
    history: Annotated[
        Path, typer.Argument(metavar="HISTORY", show_default=False, help="The file; '-' is standard input.")
    ],
    as_json: options.AsJson = False,
) -> None:
    from quire.verify import UnreadableHistoryError, check

    name = "standard input" if str(history) == STDIN else str(history)
    with ExitStack() as stack:
        try:
            file: BinaryIO = sys.stdin.buffer if str(history) == STDIN else stack.enter_context(history.open("rb"))
            report = check(file)
        except UnreadableHistoryError as error:
            _refuse(f"{name}, {error.message}", error.reason)
        except OSError as error:
            _refuse(f"{name} cannot be read: {error.strerror}", "INVALID_ARGUMENT")
    if as_json:
        tables.show_json(report.as_json())
    else:
        _show(report)
    if report.anomalies:
        raise typer.Exit(EXIT_ANOMALIES)


def _refuse(text: str, reason: str) -> None:
    typer.echo(f"quire: {one_line(text)} ({reason})", err=True)
    raise typer.Exit(EXIT_UNREADABLE)


def _show(report: Report) -> None:
    print(
        f"{report.lines:,} lines: {report.sends:,} values sent, of which {report.acknowledged:,} acknowledged, "
        f"{report.failed:,} failed, {report.unknown:,} unknown"
    )
    print(
        f"{report.polled:,} read along the way, {report.read:,} by full readers, in {_partitions(report.partitions)}"
    )
    if report.truncated:
        print("the last line was cut short, and is left out")
    if report.not_judged:
        print(
            f"{report.not_judged:,} acknowledged values are where no full reader was: if they are lost is not known"
        )
    print()
    rows = [
        (each.kind.value, f"{each.count:,}", f"{each.checked:,} {each.unit}") for each in report.verdicts.values()
    ]
    tables.show(["anomaly", "found>", "among"], rows)
    for verdict in report.verdicts.values():
        if not verdict.count:
            continue
        print(f"\n{verdict.kind.value}:")
        for anomaly in verdict.anomalies[:SHOWN_MAX]:
            offset = "" if anomaly.offset is None else f" offset {anomaly.offset}"
            print(one_line(f"  {anomaly.topic}/{anomaly.partition}{offset}: {anomaly.text}"))
        if verdict.count > SHOWN_MAX:
            print(f"  and {verdict.count - SHOWN_MAX:,} more")
    print(f"\n{report.anomalies:,} anomalies" if report.anomalies else "\nno anomaly")


def _partitions(count: int) -> str:
    return f"{count:,} partition{'' if count == 1 else 's'}"
