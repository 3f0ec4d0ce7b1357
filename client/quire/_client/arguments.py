"""What users hand over, looked at before it is taken: errors here name the argument and say how to mend it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from quire.errors import InvalidArgumentError
from quire.records import Header

HeadersArgument = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]

HEADER_OVERHEAD_BYTES = 12
"""More than the lengths of a header's name and value take."""


def as_bytes(value: object, what: str) -> bytes | None:
    """Bytes as they are, and of what may change later a copy."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        raise InvalidArgumentError(f"the {what} is text, and records are bytes: give {what}.encode()")
    raise InvalidArgumentError(f"the {what} is a {type(value).__name__}; give bytes, or None")


def as_headers(headers: HeadersArgument) -> tuple[list[Header], int]:
    """Headers as the encoder takes them, and what they take encoded at most."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    checked: list[Header] = []
    size = 0
    try:
        for name, value in pairs:
            if not isinstance(name, str):
                raise InvalidArgumentError(f"the name of a header is a {type(name).__name__}; give text")
            given = as_bytes(value, f"header {name!r}")
            checked.append((name, given))
            size += HEADER_OVERHEAD_BYTES + len(name.encode()) + len(given or b"")
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"the name of a header cannot be written in UTF-8: {error}") from error
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            "headers are a mapping of names to bytes, or pairs of them: {'source': b'web'} or [('source', b'web')]"
        ) from error
    return checked, size


def as_column(values: Sequence[object], what: str) -> list[bytes | None]:
    """Many of them. A copy of the list, never of the bytes in it."""
    if isinstance(values, bytes | bytearray | memoryview | str):
        raise InvalidArgumentError(f"{what}s are many: give a list of bytes, or use send() for one")
    return [each if each.__class__ is bytes else as_bytes(each, what) for each in values]


def check_whole(name: str, value: object, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidArgumentError(f"{name} is to be a whole number from {least} to {most}, not {value!r}")
    return value


def check_choice(name: str, value: object, choices: Iterable[str]) -> str:
    known = list(choices)
    if not isinstance(value, str) or value not in known:
        raise InvalidArgumentError(f"{name} is to be one of {', '.join(map(repr, known))}, not {value!r}")
    return value
