"""Messages as `quire consume` prints them: the value alone, by a format as kcat's, or as JSON. Pure."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Final, Protocol

from quire.cli.text import for_terminal, iso_time
from quire.errors import InvalidArgumentError

HELP: Final = (
    "%s value, %k key, %h headers, %t topic, %p partition, %o offset, %T timestamp in ms, %d date and time, %S and "
    "%K the bytes of value and key (-1 for none), %% a percent sign; \\n, \\t, \\r, \\0, \\\\, \\xHH"
)


class Message(Protocol):
    """What is used of a message of the SDK."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp_ms(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]: ...


Show = Callable[[Message], bytes]


def value_line(null: bytes) -> Show:
    """The value and a newline."""
    return lambda message: (null if message.value is None else message.value) + b"\n"


def json_line(message: Message) -> bytes:
    """A JSON object that `quire produce --json` takes."""
    document = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp_ms": message.timestamp_ms,
        "key": to_json(message.key),
        "value": to_json(message.value),
        "headers": [[name, to_json(value)] for name, value in message.headers],
    }
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def to_json(data: bytes | None) -> object:
    """Text as it is, and what is no text as `{"base64": "…"}`."""
    if data is None:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def for_eyes(show: Show) -> Show:
    """The same without what would do something to a terminal."""
    return lambda message: for_terminal(show(message)).encode("utf-8", "backslashreplace")


# --- formats -------------------------------------------------------------------------------------------------------


def compiled(format: str, *, null: bytes) -> Show:
    """What `format` says, without a newline of its own. Raises InvalidArgumentError for what it cannot say."""
    try:
        return _compiled(format, null)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"--format {format[:80]!r}: {error.message}") from error


def _compiled(format: str, null: bytes) -> Show:
    parts: list[bytes | Show] = []
    literal = bytearray()
    at = 0
    while at < len(format):
        character = format[at]
        if character == "%":
            at, part = _token(format, at, null)
            if isinstance(part, bytes):
                literal += part
            else:
                parts += [bytes(literal), part]
                literal.clear()
        elif character == "\\":
            at, escaped = _escape(format, at)
            literal += escaped
        else:
            literal += character.encode("utf-8", "surrogateescape")
            at += 1
    parts.append(bytes(literal))
    return lambda message: b"".join([part if isinstance(part, bytes) else part(message) for part in parts])


def _token(format: str, at: int, null: bytes) -> tuple[int, bytes | Show]:
    name = format[at + 1 : at + 2]
    if name == "%":
        return at + 2, b"%"
    tokens: dict[str, Show] = {
        "s": lambda message: null if message.value is None else message.value,
        "k": lambda message: null if message.key is None else message.key,
        "h": _headers,
        "t": lambda message: message.topic.encode(),
        "p": lambda message: b"%d" % message.partition,
        "o": lambda message: b"%d" % message.offset,
        "T": lambda message: b"%d" % message.timestamp_ms,
        "d": lambda message: iso_time(message.timestamp_ms).encode(),
        "S": lambda message: b"%d" % (-1 if message.value is None else len(message.value)),
        "K": lambda message: b"%d" % (-1 if message.key is None else len(message.key)),
    }
    if name not in tokens:
        raise InvalidArgumentError(f"it has '%{name}'; there are {HELP}")
    return at + 2, tokens[name]


def _headers(message: Message) -> bytes:
    return b",".join(name.encode() + b"=" + (value or b"") for name, value in message.headers)


_HEX: Final = re.compile(r"[0-9A-Fa-f]{2}")
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


def _escape(format: str, at: int) -> tuple[int, bytes]:
    name = format[at + 1 : at + 2]
    if name == "x":
        digits = format[at + 2 : at + 4]
        if not _HEX.fullmatch(digits):
            raise InvalidArgumentError(f"it has '\\x{digits}', and \\x takes two hex digits")
        return at + 4, bytes.fromhex(digits)
    if name not in _ESCAPES:
        raise InvalidArgumentError(f"it has '\\{name}'; there are \\n, \\t, \\r, \\0, \\\\ and \\xHH")
    return at + 2, _ESCAPES[name]


def unescaped(text: str, option: str) -> bytes:
    """A separator as somebody typed it, where `\\t` is a tab."""
    literal = bytearray()
    at = 0
    while at < len(text):
        if text[at] == "\\":
            try:
                at, escaped = _escape(text, at)
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"{option} {text[:80]!r}: {error.message}") from error
            literal += escaped
        else:
            literal += text[at].encode("utf-8", "surrogateescape")
            at += 1
    if not literal:
        raise InvalidArgumentError(f"{option} is empty")
    return bytes(literal)
