"""An entry of the replicated log, in the shape that PySyncObj wants: data, index, term."""

from __future__ import annotations

from typing import Final

Entry = tuple[bytes, int, int]
"""(data, index, term). The first byte of the data is PySyncObj's kind of command."""

FIRST_INDEX: Final = 1
"""PySyncObj begins every log with an empty entry of this index and of term 0. It is never written to disk."""
FIRST: Final[Entry] = (b"\x01", FIRST_INDEX, 0)

REGULAR: Final = b"\x00"
NO_OP: Final = b"\x01"
