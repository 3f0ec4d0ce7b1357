"""Writes a history while it happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import BinaryIO, Self

from quire.verify.line import Type, encode, header


class HistoryWriter:
    """Each call is a line. May be used from several threads; a process's lines are to be added in their order.

    `now_s` is what stands as `time`: seconds since the history began, by a clock that does not jump.
    """

    def __init__(self, file: BinaryIO, *, now_s: Callable[[], float] | None = None, **about: object) -> None:
        """`about` is added to the first line. The file is closed by `close`."""
        began = time.monotonic()
        self._now_s = now_s or (lambda: time.monotonic() - began)
        self._file = file
        self._lock = threading.Lock()
        self.lines = 1
        file.write(header(**about))

    def add(
        self,
        process: str,
        type: Type,
        op: str,
        *,
        topic: str | None = None,
        partition: int | None = None,
        values: Sequence[str] | None = None,
        offsets: Sequence[int | None] | None = None,
        **more: object,
    ) -> int:
        """The number of its line. `more` is kept and not looked at, but for `from` of a full read."""
        fields = {"topic": topic, "partition": partition, "values": values, "offsets": offsets, **more}
        with self._lock:
            line = {"time": round(self._now_s(), 6), "process": process, "type": type.value, "op": op}
            line.update({name: field for name, field in fields.items() if field is not None})
            self._file.write(encode(line))
            self.lines += 1
            return self.lines

    @property
    def now_s(self) -> float:
        return self._now_s()

    def flush(self) -> None:
        with self._lock:
            self._file.flush()

    def close(self) -> None:
        with self._lock:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
