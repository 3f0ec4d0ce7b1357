"""Structured logs on standard error: JSON lines for machines, or text for eyes.

Every event has `timestamp`, `level`, `event`, `node` and `role`, then what the caller adds. What libraries log with
the standard library goes the same way. Values may come from a peer, so each is cut to a length, there are only so
many in a line, and none can make a line of its own; what looks like a secret by its name is left out. For what a peer
can make us say again and again there is `Throttled`; what libraries say is always throttled.
"""

from __future__ import annotations

import json
import logging
import math
import os
import select
import sys
import time
import traceback
from collections.abc import Hashable, Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any, Final, TextIO, cast

import structlog

from quire.config.sections import LogFormat, LogLevel
from quire.process.throttle import Throttle

VALUE_CHARACTERS_MAX: Final = 1_000
TRACEBACK_CHARACTERS_MAX: Final = 8_000
FIELDS_MAX: Final = 32
SECRET_WORDS: Final = ("password", "passphrase", "secret", "token", "authorization", "credential", "private_key")
REMOVED: Final = "[removed]"

Logger = structlog.stdlib.BoundLogger

_FIRST: Final = ("timestamp", "level", "event", "node", "role", "logger")
_LAST_WORDS_SECONDS: Final = 1.0
_CHUNK_BYTES: Final = 4096  # select.PIPE_BUF: what a pipe that is ready takes whole

_who: dict[str, str] = {}
_format = LogFormat.TEXT


def get(name: str) -> Logger:
    """A logger; `name` says which part speaks. `log.info("leader elected", term=7)`: events are constant texts."""
    return cast(Logger, structlog.get_logger(name))


def configure(*, node: str, role: str, level: LogLevel, format: LogFormat, stream: TextIO | None = None) -> None:
    """Take over all logging of this process."""
    global _format
    _who.update(node=node, role=role)
    _format = format
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.addFilter(_ForeignThrottle())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _bounded, _rendered],
            foreign_pre_chain=[structlog.stdlib.add_log_level, structlog.stdlib.add_logger_name, _stamped, _excused],
            pass_foreign_args=False,
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            _stamped,
            _excused,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        # Not cached: a logger that a module got before this call would never hear of it.
        cache_logger_on_first_use=False,
    )


class Throttled:
    """A logger for what a peer can bring about: the same key at most once an interval, with how often it was not."""

    def __init__(self, logger: Logger, throttle: Throttle | None = None) -> None:
        self._logger = logger
        self._throttle = throttle or Throttle()

    def warning(self, event: str, *, key: Hashable = None, **fields: object) -> None:
        self._log(logging.WARNING, event, key, fields)

    def info(self, event: str, *, key: Hashable = None, **fields: object) -> None:
        self._log(logging.INFO, event, key, fields)

    def _log(self, level: int, event: str, key: Hashable, fields: dict[str, object]) -> None:
        withheld = self._throttle.admit((event, key), now_ms=_monotonic_ms())
        if withheld is not None:
            self._logger.log(level, event, **fields, **({"withheld": withheld} if withheld else {}))


def last_words(event: str, *, error: BaseException | None = None, **fields: object) -> None:
    """Say something before the process ends on the spot: takes no lock, and does not wait for a reader for long."""
    words: MutableMapping[str, Any] = {"level": "critical", "event": event, **fields}
    if error is not None:
        words["exc_info"] = error
    for processor in (_stamped, _excused, _bounded):
        words = processor(None, "critical", words)
    data = memoryview((_rendered(None, "critical", words) + "\n").encode("utf-8", "backslashreplace"))
    deadline = time.monotonic() + _LAST_WORDS_SECONDS
    try:
        while data and select.select([], [2], [], max(0.0, deadline - time.monotonic()))[1]:
            data = data[os.write(2, data[:_CHUNK_BYTES]) :]
    except (OSError, ValueError):
        return  # nobody listens


class _ForeignThrottle(logging.Filter):
    """Holds back what a library repeats. Ours, which structlog brings as a dict, is our own responsibility."""

    def __init__(self) -> None:
        super().__init__()
        self._throttle = Throttle(lines_max=200)

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.msg, dict):
            return True
        key = (record.name, record.levelno, str(record.msg)[:VALUE_CHARACTERS_MAX])
        withheld = self._throttle.admit(key, now_ms=_monotonic_ms())
        if withheld:
            # In the text, since a foreign record has no fields.
            record.msg, record.args = f"{record.getMessage()} (and {withheld} more like it or others)", None
        return withheld is not None


# --- processors ----------------------------------------------------------------------------------------------------


def _stamped(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    event["timestamp"] = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    for name, value in _who.items():
        event.setdefault(name, value)
    return event


def _excused(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """An exception as text: its end, which says what happened and where, if it is long."""
    error = event.pop("exc_info", None)
    if error is True:
        error = sys.exc_info()[1]
    if isinstance(error, tuple):
        error = error[1]
    if isinstance(error, BaseException):
        text = "".join(traceback.format_exception(error))
        event["exception"] = text if len(text) <= TRACEBACK_CHARACTERS_MAX else f"…{text[-TRACEBACK_CHARACTERS_MAX:]}"
    return event


def _bounded(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    names = [name for name in _FIRST if name in event] + [name for name in event if name not in _FIRST]
    bounded: dict[str, Any] = {str(name)[:100]: _bounded_value(str(name), event[name]) for name in names[:FIELDS_MAX]}
    if len(names) > FIELDS_MAX:
        bounded["fields_left_out"] = len(names) - FIELDS_MAX
    return bounded


def _bounded_value(name: str, value: object) -> object:
    if any(word in name.lower() for word in SECRET_WORDS):
        return REMOVED
    if value is None or isinstance(value, bool) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, int) and abs(value) < 2**64:
        return value
    limit = TRACEBACK_CHARACTERS_MAX + 1 if name == "exception" else VALUE_CHARACTERS_MAX
    try:
        if isinstance(value, bytes | bytearray | memoryview):
            text = bytes(value[:limit]).hex()
        elif isinstance(value, Mapping):
            text = json.dumps({str(key): str(_bounded_value(str(key), item)) for key, item in value.items()})
        else:
            text = value if isinstance(value, str) else str(value)
    except Exception as error:  # whatever an object's own __str__ does, the line is to be written
        text = f"(cannot be shown: {type(error).__name__})"
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _rendered(_: Any, __: str, event: MutableMapping[str, Any]) -> str:
    if _format is LogFormat.JSON:
        return json.dumps(event)
    fields = dict(event)
    head = f"{fields.pop('timestamp', '')} {fields.pop('level', ''):<8} {_one_line(fields.pop('event', ''))}"
    exception = fields.pop("exception", None)
    pairs = "".join(f" {_one_line(name)}={_quoted(value)}" for name, value in fields.items())
    # Indented, so that no line of it can pass for an event.
    rest = "" if exception is None else "".join(f"\n    {_one_line(line)}" for line in str(exception).splitlines())
    return f"{head}{pairs}{rest}"


def _one_line(value: object) -> str:
    return "".join(character if character.isprintable() else "?" for character in str(value))


def _quoted(value: object) -> str:
    text = str(value)
    return text if text and text.isprintable() and not set(' "=') & set(text) else json.dumps(text, ensure_ascii=True)


def _monotonic_ms() -> int:
    return int(time.monotonic() * 1000)
