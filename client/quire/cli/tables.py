"""Tables for people. Imports what draws them only when one is drawn."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Final

from quire.cli.text import one_line

GAP: Final = 2


def show(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns whose names end in `>` are aligned to the right, as numbers are. Cells never move the cursor."""
    from rich.cells import cell_len

    names = [name.removesuffix(">") for name in columns]
    cells = [names, *([one_line(str(cell)) for cell in row] for row in rows)]
    widths = [max(cell_len(row[n]) for row in cells) for n in range(len(names))]
    for number, row in enumerate(cells):
        padded = []
        for n, cell in enumerate(row):
            space = " " * (widths[n] - cell_len(cell))
            padded.append(space + cell if columns[n].endswith(">") else cell + space)
        line = (" " * GAP).join(padded).rstrip()
        if number == 0 and sys.stdout.isatty():
            _print_heading(line)
        else:
            print(line)


def _print_heading(line: str) -> None:
    from rich.console import Console
    from rich.text import Text

    Console(highlight=False).print(Text(line, style="bold"), soft_wrap=True)


def show_json(document: object) -> None:
    # A text may hold half of a surrogate pair, which no file can: JSON has an escape for it, and Python the same one.
    text = json.dumps(document, indent=2, ensure_ascii=False)
    print(text.encode("utf-8", "backslashreplace").decode())
