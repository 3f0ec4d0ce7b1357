"""Reads a history, line by line, and has it judged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from quire.verify import line
from quire.verify.anomalies import Report
from quire.verify.judge import Judge
from quire.verify.sorting import NewSorter
from quire.verify.spill import Spill


def check(file: BinaryIO, *, new_sorter: NewSorter = Spill) -> Report:
    """Raises UnreadableHistoryError, which has the number of the line, where there is no history to judge.

    Memory is bounded, whatever the length. What does not fit goes into temporary files, some hundred bytes a record
    that was sent or read.
    """
    judge = Judge(new_sorter)
    for number, text in _lines(file, judge):
        if number == 1 or line.is_header(text):  # histories may be put one after another
            line.check_header(text, number)
        else:
            judge.add(line.parse(text, number))
    if not judge.report.lines:
        raise line.UnreadableHistoryError("there is nothing", line=1)
    return judge.finish()


def _lines(file: BinaryIO, judge: Judge) -> Iterator[tuple[int, bytes]]:
    number = 0
    while text := file.readline(line.LINE_BYTES_MAX + 1):
        number += 1
        if len(text) > line.LINE_BYTES_MAX:
            raise line.UnreadableHistoryError(f"it is longer than {line.LINE_BYTES_MAX:,} bytes", line=number)
        if not text.endswith(b"\n") and not line.is_whole(text):
            judge.report.truncated = True  # its writer died within it, and it is the last one
            return
        judge.report.lines = number
        yield number, text
