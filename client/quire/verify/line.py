"""One line of a history, read and written. docs/HISTORIES.md is its contract."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, NoReturn

from quire.errors import InvalidArgumentError

FORMAT: Final = "quire-history"
VERSION: Final = 1
LINE_BYTES_MAX: Final = 1024 * 1024
OFFSET_MAX: Final = 2**63 - 1
PARTITION_MAX: Final = 2**31 - 1


class UnreadableHistoryError(InvalidArgumentError):
    """A line is not of a history, or contradicts another one."""

    def __init__(self, why: str, *, line: int) -> None:
        super().__init__(f"line {line:,}: {why}", line=line)
        self.line = line


class Type(enum.StrEnum):
    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"
    """It was not done, and will not be."""
    INFO = "info"
    """It was done, or will be, or not."""


class Op(enum.StrEnum):
    """The operations that are checked. Others may stand in a history as well."""

    SEND = "send"
    POLL = "poll"
    READ = "read"
    ASSIGN = "assign"
    SEEK = "seek"


class Operation(NamedTuple):
    line: int
    process: str
    type: str
    op: str
    topic: str
    partition: int
    """-1 where it is not told."""
    values: list[str]
    offsets: list[int | None]
    start: int
    """Where a full read of the partition began."""


_TYPES: Final = frozenset(Type)
_NOT_LOOKED_INTO: Final = Operation(0, "", "", "", "", -1, [], [], 0)


def header(**about: object) -> bytes:
    """The first line."""
    return encode({"format": FORMAT, "version": VERSION, **about})


def encode(line: Mapping[str, object]) -> bytes:
    found = json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    if len(found) > LINE_BYTES_MAX:
        raise InvalidArgumentError(
            f"a line of {len(found):,} bytes; a history has lines of {LINE_BYTES_MAX:,} at most"
        )
    return found


def is_whole(text: bytes) -> bool:
    """Whether this is JSON from its beginning to its end: else its writer may have died within it."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def check_header(text: bytes, number: int) -> None:
    found = _object(text, number)
    if found.get("format") != FORMAT:
        _refuse(f'this is no history: its first line is to be {{"format": "{FORMAT}", "version": {VERSION}}}', number)
    version = found.get("version")
    if not _is_int(version) or version != VERSION:
        _refuse(f"version {version!r}, and this program reads version {VERSION}", number)


def is_header(text: bytes) -> bool:
    return text.startswith(b'{"format"')


def parse(text: bytes, number: int) -> Operation:
    """What this line says. Raises UnreadableHistoryError if it is not one."""
    found = _object(text, number)
    try:
        process, kind, op = found["process"], found["type"], found["op"]
        time = found["time"]
    except KeyError as error:
        _refuse(f"{error.args[0]!r} is missing", number)
    if not isinstance(process, str) or not process:
        _refuse("'process' is to be a name", number)
    if not isinstance(kind, str) or kind not in _TYPES:
        _refuse(f"'type' is {kind!r}, and is to be one of {', '.join(Type)}", number)
    if not isinstance(op, str):
        _refuse("'op' is to be a name", number)
    if isinstance(time, bool) or not isinstance(time, int | float):
        _refuse("'time' is to be a number of seconds", number)
    if op == "send":
        return _send(found, process, kind, number)
    if op in ("poll", "read"):
        return _read(found, process, kind, op, number) if kind == "ok" else _NOT_LOOKED_INTO
    if op in ("assign", "seek"):
        return Operation(number, process, kind, op, *_where(found, number, optional=True), [], [], 0)
    return _NOT_LOOKED_INTO


def _send(found: dict[str, Any], process: str, kind: str, number: int) -> Operation:
    topic, partition = _where(found, number, optional=kind != "ok")
    values = _values(found, number)
    if not values:
        _refuse("a send of no value", number)
    offsets: list[int | None] = []
    if kind == "ok":
        offsets = found.get("offsets", [])
        _check_offsets(offsets, len(values), number, unknown_allowed=True)
    return Operation(number, process, kind, "send", topic, partition, values, offsets, 0)


def _read(found: dict[str, Any], process: str, kind: str, op: str, number: int) -> Operation:
    topic, partition = _where(found, number)
    values = _values(found, number)
    offsets = found.get("offsets", [])
    _check_offsets(offsets, len(values), number)
    start = found.get("from", 0)
    if not _is_int(start) or not 0 <= start <= OFFSET_MAX:
        _refuse("'from' is to be an offset", number)
    return Operation(number, process, kind, op, topic, partition, values, offsets, start)


def _where(found: dict[str, Any], number: int, *, optional: bool = False) -> tuple[str, int]:
    topic, partition = found.get("topic", ""), found.get("partition", -1)
    if not isinstance(topic, str) or (not topic and not optional):
        _refuse("'topic' is to be a name", number)
    if not _is_int(partition) or partition > PARTITION_MAX or partition < (-1 if optional else 0):
        _refuse("'partition' is to be a number from 0 on", number)
    return topic, partition


def _values(found: dict[str, Any], number: int) -> list[str]:
    values = found.get("values")
    if not isinstance(values, list) or not all(type(each) is str for each in values):
        _refuse("'values' is to be a list of texts", number)
    return values


def _check_offsets(offsets: object, count: int, number: int, *, unknown_allowed: bool = False) -> None:
    if not isinstance(offsets, list) or len(offsets) != count:
        _refuse("'offsets' is to be a list with one for each value", number)
    for each in offsets:
        if not ((type(each) is int and 0 <= each <= OFFSET_MAX) or (each is None and unknown_allowed)):
            _refuse(f"{each!r} is no offset", number)


def _object(text: bytes, number: int) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableHistoryError(f"this is not JSON: {error}", line=number) from error
    if not isinstance(found, dict):
        _refuse("this is not a JSON object", number)
    return found


def _is_int(found: object) -> bool:
    return type(found) is int


def _refuse(why: str, number: int) -> NoReturn:
    raise UnreadableHistoryError(why, line=number)
