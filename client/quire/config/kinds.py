"""What a value may be. A kind reads it from a file, where it has a type, or from text, and says what is allowed."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from quire.errors import InvalidArgumentError
from quire.link.network import Address

T = TypeVar("T")
EnumT = TypeVar("EnumT", bound=enum.StrEnum)

Shown = int | str | list[str] | None
"""A value as JSON and TOML know it. None is for what is not set: TOML has no word for that."""

TEXT_CHARACTERS_MAX: Final = 4096
ITEMS_MAX: Final = 64

_INTEGER: Final = re.compile(r"-?[0-9][0-9_]{0,30}", re.ASCII)
_ADDRESS: Final = re.compile(r"(?:\[([^]]+)\]|([^][:/]+)):([0-9]+)")
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?|[0-9A-Fa-f:.]{2,45}")


class Kind(Protocol[T]):
    """How values of one type are written. Whoever reads raises InvalidArgumentError for what is not allowed."""

    @property
    def allowed(self) -> str:
        """What may be written, as the end of a sentence: `an integer from 1 to 65535`."""
        ...

    def read(self, value: object) -> T:
        """The value that a TOML file gives."""
        ...

    def parse(self, text: str) -> T:
        """The value that a variable or a flag gives."""
        ...

    def show(self, value: T) -> Shown: ...


@dataclass(frozen=True, slots=True)
class Whole:
    low: int
    high: int

    @property
    def allowed(self) -> str:
        return f"an integer from {self.low} to {self.high}"

    def read(self, value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidArgumentError(f"{quoted(value)} is not an integer")
        if not self.low <= value <= self.high:
            raise InvalidArgumentError(f"{quoted(value)} is too {'small' if value < self.low else 'large'}")
        return value

    def parse(self, text: str) -> int:
        if not _INTEGER.fullmatch(text):
            raise InvalidArgumentError(f"{quoted(text)} is not an integer")
        return self.read(int(text.replace("_", "")))

    def show(self, value: int) -> Shown:
        return value


@dataclass(frozen=True, slots=True)
class Spelled(Generic[T]):
    """A value that is text in every source."""

    allowed: str
    spell: Callable[[str], T]

    def read(self, value: object) -> T:
        if not isinstance(value, str):
            raise InvalidArgumentError(f"{quoted(value)} is not text in quotes")
        return self.parse(value)

    def parse(self, text: str) -> T:
        if not text:
            raise InvalidArgumentError("it is empty")
        if len(text) > TEXT_CHARACTERS_MAX:
            raise InvalidArgumentError(f"it is longer than {TEXT_CHARACTERS_MAX} characters")
        if not text.isprintable():
            # A newline or an escape sequence would come back in logs and on terminals.
            raise InvalidArgumentError(f"{quoted(text)} has characters that cannot be printed")
        return self.spell(text)

    def show(self, value: T) -> Shown:
        return str(value)


@dataclass(frozen=True, slots=True)
class Maybe(Generic[T]):
    """A value that may be absent. Empty text says so, and thereby overrides a source that has one."""

    kind: Kind[T]

    @property
    def allowed(self) -> str:
        return f"{self.kind.allowed}, or empty"

    def read(self, value: object) -> T | None:
        return None if value == "" else self.kind.read(value)

    def parse(self, text: str) -> T | None:
        return None if text == "" else self.kind.parse(text)

    def show(self, value: T | None) -> Shown:
        return None if value is None else self.kind.show(value)


@dataclass(frozen=True, slots=True)
class Several(Generic[T]):
    """A list: an array in a file, separated by commas in text."""

    kind: Spelled[T]

    @property
    def allowed(self) -> str:
        return f"a list of {self.kind.allowed}"

    def read(self, value: object) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise InvalidArgumentError(f"{quoted(value)} is not an array in [brackets]")
        if len(value) > ITEMS_MAX:
            raise InvalidArgumentError(f"it has {len(value)} items, and {ITEMS_MAX} are the most")
        return tuple(self.kind.read(item) for item in value)

    def parse(self, text: str) -> tuple[T, ...]:
        return self.read([item.strip() for item in text.split(",")] if text else [])

    def show(self, value: tuple[T, ...]) -> Shown:
        return [str(self.kind.show(item)) for item in value]


def choice(options: type[EnumT]) -> Spelled[EnumT]:
    """One of the names of an enum."""
    *most, last = (option.value for option in options)
    allowed = f"{', '.join(most)} or {last}"

    def spell(text: str) -> EnumT:
        try:
            return options(text)
        except ValueError:
            raise InvalidArgumentError(f"{quoted(text)} is none of the choices") from None

    return Spelled(allowed, spell)


def check_host(text: str) -> str:
    if not _HOST.fullmatch(text):
        raise InvalidArgumentError(f"{quoted(text)} is neither a host name nor an IP address")
    return text


def parse_address(text: str) -> Address:
    """`b1.example:7400`, `[::1]:7400`."""
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise InvalidArgumentError(f"{quoted(text)} is not HOST:PORT")
    return Address(check_host(match[1] or match[2]), PORT.parse(match[3]))


def quoted(value: object) -> str:
    """A value for an error message: whose length, whatever it is, stays that of a message."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**30:
        return "a number of more than 30 digits"  # its own text would be refused by Python from some length on
    if isinstance(value, dict):
        return "a table"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


HOST: Final = Spelled("a host name or an IP address", check_host)
PATH: Final = Spelled("a path", Path)
PORT: Final = Whole(1, 65535)
ADDRESS: Final = Spelled("HOST:PORT", parse_address)
