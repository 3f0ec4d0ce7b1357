"""The files that children write their logs to: bounded, and asked for the last words of one that died."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Final, TextIO

from quire.errors import DiskIoError

BYTES_MAX: Final = 16 * 1024 * 1024
"""A file larger than this is moved aside; the one that was aside before is gone."""
CHUNK_BYTES: Final = 1024 * 1024
TAIL_BYTES: Final = 64 * 1024
WORDS_CHARACTERS_MAX: Final = 1_000

_TEXT: Final = re.compile(r"\S+ (?:error|critical) +(?P<event>[^=]*?)(?: \w+=|$)")
_EVENT: Final = re.compile(r"\d{4}-\d\d-\d\dT\S+ \w+ ")
_MESSAGE: Final = re.compile(r' message=("(?:[^"\\]|\\.)*"|\S+)')


class LogFile:
    """A file that processes append to, one after the other."""

    def __init__(self, path: Path, *, bytes_max: int = BYTES_MAX) -> None:
        self.path = path
        self._bytes_max = bytes_max
        self._began_at = 0

    def open(self) -> int:
        """A descriptor to append with, for a process that is about to start."""
        try:
            self.path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
            self._began_at = os.fstat(fd).st_size
        except OSError as error:
            raise DiskIoError(f"{self.path} cannot be opened: {error.strerror}", path=self.path) from error
        return fd

    def writer(self) -> TextIO:
        """The same for this process."""
        return open(self.open(), "w", encoding="utf-8", errors="backslashreplace")

    def bound(self) -> bool:
        """Begin anew if it is too large, in the same file: whoever appends goes on. What it held is in `<path>.1`.

        A line that is written while this happens may be lost.
        """
        try:
            with self.path.open("r+b") as file:
                size = os.fstat(file.fileno()).st_size
                if size <= self._bytes_max:
                    return False
                file.seek(-self._bytes_max, os.SEEK_END)
                with self.path.with_name(f"{self.path.name}.1").open("wb") as aside:
                    while chunk := file.read(CHUNK_BYTES):
                        aside.write(chunk)
                file.truncate(0)
        except OSError:
            return False  # a full disk, most likely: the next attempt comes soon
        self._began_at = 0
        return True

    def last_words(self) -> str | None:
        """Why the process that was last given a descriptor could not go on, if it said so."""
        try:
            with self.path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(size - TAIL_BYTES, min(self._began_at, size)))
                tail = file.read(TAIL_BYTES).decode("utf-8", "replace")
        except OSError:
            return None
        return _last_words([line for line in tail.splitlines() if line.strip()])


def _last_words(lines: list[str]) -> str | None:
    for number in reversed(range(len(lines))):
        if words := _words(lines[number]):
            # The lines of a traceback are indented. Its last one says what it was.
            if number + 1 < len(lines) and lines[number + 1].startswith("    "):
                words = f"{words}: {lines[-1].strip()}"
            return words[:WORDS_CHARACTERS_MAX]
    if lines and not _is_event(lines[-1]):
        return lines[-1].strip()[:WORDS_CHARACTERS_MAX]  # Python's own, of what never came to have a log
    return None


def _words(line: str) -> str | None:
    """What a line says, if it is an event of level error or worse, or no event but an error at the start."""
    if line.startswith("{"):
        return _json_words(line)
    if match := _TEXT.match(line):
        message = _MESSAGE.search(line)
        return match["event"] if message is None else _unquoted(message[1])
    # What a process says before it has a log: `quire_broker: --log-level: 'x' is none of the choices`.
    if line.startswith(("quire: ", "quire_")):
        return line.partition(": ")[2]
    return None


def _is_event(line: str) -> bool:
    return line.startswith("{") or _EVENT.match(line) is not None


def _json_words(line: str) -> str | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    if not isinstance(event, dict) or event.get("level") not in ("error", "critical"):
        return None
    words = str(event.get("message") or event.get("event"))
    trace = str(event.get("exception") or "").splitlines()
    return f"{words}: {trace[-1].strip()}" if trace else words


def _unquoted(text: str) -> str:
    if text.startswith('"'):
        try:
            return str(json.loads(text))
        except ValueError:
            pass
    return text
