"""How the command reads messages, and how it prints them."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta, timezone
from typing import NamedTuple

import pytest

from quire.cli import places
from quire.cli.message_format import compiled, for_eyes, json_line, unescaped, value_line
from quire.cli.message_input import Given, header, json_parser, keyed_parser, lines, parsed, value_parser
from quire.cli.places import At, Earliest, Last, Latest, Since
from quire.cli.text import for_terminal
from quire.errors import InvalidArgumentError


class Message(NamedTuple):
    topic: str = "orders"
    partition: int = 2
    offset: int = 41
    timestamp_ms: int = 1_700_000_000_123
    key: bytes | None = b"k"
    value: bytes | None = b"hello"
    headers: tuple[tuple[str, bytes | None], ...] = ()


# --- printing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("format", "message", "printed"),
    [
        ("%s", Message(), b"hello"),
        ("%t/%p@%o %k=%s\\n", Message(), b"orders/2@41 k=hello\n"),
        ("%T|%d", Message(), b"1700000000123|2023-11-14T22:13:20.123Z"),
        ("%S %K", Message(), b"5 1"),
        ("%S %K", Message(key=None, value=None), b"-1 -1"),
        ("%k:%s", Message(key=None, value=None), b"NULL:NULL"),
        ("%h", Message(headers=(("a", b"1"), ("b", None))), b"a=1,b="),
        ("100%% \\t\\r\\0\\\\ \\x1B é", Message(), b"100% \t\r\0\\ \x1b \xc3\xa9"),
        ("%s", Message(value=b"\xff\x00"), b"\xff\x00"),
        ("", Message(), b""),
    ],
)
def test_format(format: str, message: Message, printed: bytes) -> None:
    assert compiled(format, null=b"NULL")(message) == printed


@pytest.mark.parametrize("format", ["%q", "%", "\\q", "\\", "\\x", "\\x1", "\\xzz"])
def test_format_that_is_none(format: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"--format '.*': it has '"):
        compiled(format, null=b"")


def test_value_line() -> None:
    assert value_line(b"~")(Message()) == b"hello\n"
    assert value_line(b"~")(Message(value=None)) == b"~\n"


def test_nothing_moves_the_cursor_of_a_terminal() -> None:
    evil = Message(value=b"\x1b[2Jred\r\x07 \xff \xc2\x9b1m tab\tline\nend \xe2\x80\xae\xf0\x9f\x90\x99")
    shown = for_eyes(value_line(b""))(evil).decode()
    assert shown == "\\x1b[2Jred\\r\\x07 \\xff \\x9b1m tab\tline\nend \\u202e🐙\n"
    assert for_terminal(b"\xe4\xb8\xad") == "中"


@pytest.mark.parametrize(("text", "separator"), [(":", b":"), ("\\t", b"\t"), ("=>", b"=>"), ("\\x00", b"\0")])
def test_separator(text: str, separator: bytes) -> None:
    assert unescaped(text, "--key-separator") == separator


def test_separator_that_is_none() -> None:
    with pytest.raises(InvalidArgumentError, match=r"--key-separator '\\\\q': it has '\\q'; there are"):
        unescaped("\\q", "--key-separator")
    with pytest.raises(InvalidArgumentError, match="--key-separator is empty"):
        unescaped("", "--key-separator")


# --- JSON there and back -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        Message(),
        Message(key=None, value=None),
        Message(key=b"", value=b""),
        Message(value=b"\xff\x00", key=b"\xfe", headers=(("a", b"\xfd"), ("a", None), ("é", b""))),
        Message(value='{"base64": "x"} \u2028 "quoted"\n'.encode()),
    ],
)
def test_what_consume_prints_produce_takes(message: Message) -> None:
    line = json_line(message)
    assert line.count(b"\n") == 1
    parse = json_parser(key=None, headers=(), keep_partition=True, keep_timestamp=True)
    assert parse(line) == Given(message.value, message.key, message.headers, message.partition, message.timestamp_ms)


def test_json_is_read_by_programs() -> None:
    document = json.loads(json_line(Message(value=b"\xff", headers=(("h", b"v"),))))
    assert document == {
        "topic": "orders",
        "partition": 2,
        "offset": 41,
        "timestamp_ms": 1_700_000_000_123,
        "key": "k",
        "value": {"base64": "/w=="},
        "headers": [["h", "v"]],
    }


def test_json_has_defaults_and_lets_values_be_json() -> None:
    parse = json_parser(key=b"k", headers=(("a", b"1"),), keep_partition=False, keep_timestamp=False)
    assert parse(b'{"value": {"id": 7, "n": [1, null]}, "partition": 3, "timestamp_ms": 5}') == Given(
        b'{"id":7,"n":[1,null]}', b"k", (("a", b"1"),)
    )
    assert parse(b'{"value": 1.5, "key": null, "headers": {"b": "2"}}') == Given(
        b"1.5", None, (("a", b"1"), ("b", b"2"))
    )


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"hello", "it is not JSON"),
        (b"\xff", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"key": "k"}', 'there is no "value"'),
        (b'{"value": "v", "vlaue": 1}', "no field 'vlaue'"),
        (b'{"value": {"base64": "!"}}', "not base64"),
        (b'{"value": {"base64": 1}}', "not base64"),
        (b'{"value": "v", "headers": "x"}', "headers are an object"),
        (b'{"value": "v", "headers": [["x"]]}', "headers are an object"),
        (b'{"value": "v", "headers": [[1, "x"]]}', "headers are an object"),
        (b'{"value": "v", "partition": -1}', "partition is to be a whole number"),
        (b'{"value": "v", "partition": true}', "partition is to be a whole number"),
        (b'{"value": "v", "timestamp_ms": "now"}', "timestamp_ms is to be a whole number"),
    ],
)
def test_json_that_is_no_message(line: bytes, complaint: str) -> None:
    parse = json_parser(key=None, headers=(), keep_partition=True, keep_timestamp=True)
    with pytest.raises(InvalidArgumentError, match=complaint):
        parse(line)


# --- lines ---------------------------------------------------------------------------------------------------------


def test_lines_of_a_file() -> None:
    assert list(lines(io.BytesIO(b"a\n\nb\r\nlast"), name="x")) == [b"a", b"", b"b\r", b"last"]
    assert list(lines(io.BytesIO(b""), name="x")) == []
    assert list(lines(io.BytesIO(b"12345\n12345"), name="x", line_bytes_max=5)) == [b"12345"] * 2


def test_line_that_is_too_long_is_not_read_to_its_end() -> None:
    file = io.BytesIO(b"ok\n" + b"x" * 1_000)
    with pytest.raises(InvalidArgumentError, match="x, line 2: it is longer than 5 bytes"):
        list(lines(file, name="x", line_bytes_max=5))
    assert file.tell() == 10


def test_values() -> None:
    parse = value_parser(key=b"k", headers=(("h", b"v"),), null_empty=False)
    assert parse(b"") == Given(b"", b"k", (("h", b"v"),))
    assert value_parser(key=None, headers=(), null_empty=True)(b"") == Given(None)


def test_keys_before_a_separator() -> None:
    parse = keyed_parser(b":", headers=(), null_empty=False)
    assert parse(b"k:v:w") == Given(b"v:w", b"k")
    assert parse(b":") == Given(b"", b"")
    assert keyed_parser(b":", headers=(), null_empty=True)(b":") == Given(None, None)
    with pytest.raises(InvalidArgumentError, match="there is no ':' behind a key"):
        parse(b"no key")


def test_line_with_a_mistake_is_named() -> None:
    parse = keyed_parser(b"\t", headers=(), null_empty=False)
    messages = parsed(io.BytesIO(b"k\tv\noops\n"), parse, name="orders.txt")
    assert next(messages) == (Given(b"v", b"k"), 4)
    with pytest.raises(InvalidArgumentError, match=r"orders\.txt, line 2: there is no '\\t' behind a key"):
        next(messages)


def test_headers_of_the_command_line() -> None:
    assert header("source=web=1") == ("source", b"web=1")
    assert header("empty=") == ("empty", b"")
    for text in ("source", "=web", ""):
        with pytest.raises(InvalidArgumentError, match="is not NAME=VALUE"):
            header(text)


# --- places --------------------------------------------------------------------------------------------------------

NOW = datetime(2026, 1, 31, 12, 0, 0, 500_000, tzinfo=UTC)
NOW_MS = 1_769_860_800_500


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", Earliest()),
        ("beginning", Earliest()),
        ("latest", Latest()),
        ("end", Latest()),
        ("0", At(0)),
        ("42", At(42)),
        ("-10", Last(10)),
        ("@1700000000000", Since(1_700_000_000_000)),
        ("2026-01-31T12:00:00.5Z", Since(NOW_MS)),
        ("2026-01-31T14:00:00.500+02:00", Since(NOW_MS)),
        ("15m", Since(NOW_MS - 15 * 60_000)),
        ("90s ago", Since(NOW_MS - 90_000)),
        ("2h", Since(NOW_MS - 2 * 3_600_000)),
        ("3d", Since(NOW_MS - 3 * 86_400_000)),
        ("500ms", Since(NOW_MS - 500)),
    ],
)
def test_place(text: str, place: places.Place) -> None:
    assert places.place(text, now=NOW) == place
    assert places.place(text, now=NOW.astimezone(timezone(timedelta(hours=-7)))) == place


def test_time_without_a_zone_is_local() -> None:
    local = datetime(2026, 1, 31, 12, 0).astimezone()
    assert places.place("2026-01-31T12:00", now=NOW) == Since(int(local.timestamp() * 1000))


@pytest.mark.parametrize(
    "text", ["", "soon", "1.5", "15x", "2026-13-01", "@x", "9" * 25, "१२", "0001-01-01T00:00+14:00"]
)
def test_place_that_is_none(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        places.place(text, now=NOW)
