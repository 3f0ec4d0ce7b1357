"""Messages as `quire produce` reads them: lines, lines with keys, JSON lines, whole files. Pure but for reading."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final, NamedTuple

from quire.errors import InvalidArgumentError

LINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""A line beyond it is no message: what no broker takes is not gathered in memory either."""

Header = tuple[str, bytes | None]


class Given(NamedTuple):
    """A message that somebody wants to send."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


Parse = Callable[[bytes], Given]


def lines(file: BinaryIO, *, name: str, line_bytes_max: int = LINE_BYTES_MAX) -> Iterator[bytes]:
    """The lines of a file without their ends, each as soon as it is there."""
    number = 0
    while line := file.readline(line_bytes_max + 2):
        number += 1
        line = line.removesuffix(b"\n")
        if len(line) > line_bytes_max:
            raise InvalidArgumentError(f"{name}, line {number}: it is longer than {line_bytes_max:,} bytes")
        yield line


def parsed(file: BinaryIO, parse: Parse, *, name: str) -> Iterator[tuple[Given, int]]:
    """The messages of a file, and how many bytes of it each took. Names the line that is not one."""
    for number, line in enumerate(lines(file, name=name), start=1):
        try:
            yield parse(line), len(line) + 1
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{name}, line {number}: {error.message}") from error


# --- a line --------------------------------------------------------------------------------------------------------


def value_parser(*, key: bytes | None, headers: tuple[Header, ...], null_empty: bool) -> Parse:
    """The line is the value."""
    return lambda line: Given(_null_if(line, null_empty), key, headers)


def keyed_parser(separator: bytes, *, headers: tuple[Header, ...], null_empty: bool) -> Parse:
    """What comes before the first separator is the key, the rest is the value."""

    def parse(line: bytes) -> Given:
        key, found, value = line.partition(separator)
        if not found:
            raise InvalidArgumentError(f"there is no {separator.decode('utf-8', 'backslashreplace')!r} behind a key")
        return Given(_null_if(value, null_empty), _null_if(key, null_empty), headers)

    return parse


def _null_if(data: bytes, null_empty: bool) -> bytes | None:
    return None if null_empty and not data else data


# --- JSON ----------------------------------------------------------------------------------------------------------

_KNOWN: Final = frozenset({"value", "key", "headers", "partition", "timestamp_ms", "topic", "offset"})
"""What `quire consume --json` prints. Topic and offset are those of where it was read: they are passed over."""


def json_parser(
    *, key: bytes | None, headers: tuple[Header, ...], keep_partition: bool, keep_timestamp: bool
) -> Parse:
    """The line is an object as `quire consume --json` prints them; what it leaves out is as given here."""

    def parse(line: bytes) -> Given:
        try:
            document = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"it is not JSON: {error}") from error
        if not isinstance(document, dict):
            raise InvalidArgumentError('it is not a JSON object such as {"value": "hello"}')
        unknown = sorted(set(document) - _KNOWN)
        if unknown:
            raise InvalidArgumentError(f"there is no field {unknown[0][:80]!r}, but {', '.join(sorted(_KNOWN))}")
        if "value" not in document:
            raise InvalidArgumentError('there is no "value"; null says that there is to be none')
        return Given(
            _from_json(document["value"]),
            _from_json(document["key"]) if "key" in document else key,
            (*headers, *_headers(document.get("headers"))),
            _whole(document, "partition", at_most=2**31 - 1) if keep_partition else None,
            _whole(document, "timestamp_ms", at_most=2**63 - 1) if keep_timestamp else None,
        )

    return parse


def _from_json(value: object) -> bytes | None:
    """Text is itself, {"base64": …} what it encodes; any other value is stored as its JSON."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, dict) and list(value) == ["base64"]:
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"that is not base64: {error}") from error
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _headers(value: object) -> Iterator[Header]:
    """An object, or an array of pairs where a name comes more than once."""
    if value is None:
        return
    pairs = list(value.items()) if isinstance(value, dict) else value
    if not isinstance(pairs, list):
        raise InvalidArgumentError('headers are an object, or an array of pairs such as [["source", "web"]]')
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise InvalidArgumentError('headers are an object, or an array of pairs such as [["source", "web"]]')
        yield pair[0], _from_json(pair[1])


def _whole(document: dict[str, object], name: str, *, at_most: int) -> int | None:
    value = document.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= at_most:
        raise InvalidArgumentError(f"{name} is to be a whole number from 0, not {str(value)[:80]}")
    return value


def header(text: str) -> Header:
    """`source=web`: a header of the command line."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise InvalidArgumentError(f"--header {text[:80]!r} is not NAME=VALUE")
    return name, value.encode("utf-8", "surrogateescape")
