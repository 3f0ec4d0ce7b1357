"""Where brokers are, as users write it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from quire.errors import InvalidArgumentError
from quire.link.network import Address

PORT: Final = 7400
"""Where brokers listen unless told otherwise."""

Addresses = str | Iterable[str]


def parse(addresses: Addresses) -> list[Address]:
    """`"localhost:7400"`, `"a,b:7500"`, `["a:7400", "[::1]:7400"]`. Raises InvalidArgumentError."""
    texts = addresses.split(",") if isinstance(addresses, str) else list(addresses)
    parsed = [_parse(text) for text in texts]
    if not parsed:
        raise InvalidArgumentError("name at least one broker, as in 'localhost:7400'")
    return list(dict.fromkeys(parsed))


def _parse(text: object) -> Address:
    if not isinstance(text, str):
        raise InvalidArgumentError(f"the address of a broker is text such as 'localhost:7400', not {text!r}")
    stripped = text.strip()
    if stripped.startswith("["):
        host, bracket, rest = stripped[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise _refused(text)
        port = rest[1:]
    elif stripped.count(":") > 1:
        raise InvalidArgumentError(f"write an IPv6 address in brackets: '[{stripped}]:{PORT}'")
    else:
        host, _, port = stripped.partition(":")
    if not host or any(character.isspace() or character == "/" for character in host):
        raise _refused(text)
    if not port and not stripped.endswith(":"):
        return Address(host, PORT)
    if not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536):
        raise _refused(text)
    return Address(host, int(port))


def _refused(text: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{text!r} is not the address of a broker; write HOST:PORT, as in 'localhost:{PORT}'")
