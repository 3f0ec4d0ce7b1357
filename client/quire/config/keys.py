"""How a section declares its keys.

A section is a frozen dataclass; each field is one key, declared with `key` or `required`:

    grpc_port: int = key(7401, PORT, "Where clients and brokers call.")

The type checker compares annotation, default and kind. Everything else (reading, errors, documentation) follows from
this one line.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from quire.config.kinds import Kind, Shown

T = TypeVar("T")

_DECLARATION: Final = "quire.config"
PREFIX: Final = "QUIRE"


@dataclass(frozen=True, slots=True)
class Key:
    """One setting."""

    section: str
    name: str
    kind: Kind[Any]
    doc: str
    default: Any
    """dataclasses.MISSING where somebody has to say it."""

    @property
    def path(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        return f"{PREFIX}_{self.section}_{self.name}".upper()

    @property
    def flag(self) -> str:
        return f"--{self.section}-{self.name}".replace("_", "-")

    @property
    def is_required(self) -> bool:
        return self.default is dataclasses.MISSING

    @property
    def default_shown(self) -> Shown:
        return None if self.is_required else self.kind.show(self.default)


def key(default: T, kind: Kind[T], doc: str) -> T:
    """A key of a section."""
    field: T = dataclasses.field(default=default, metadata={_DECLARATION: (kind, doc)})
    return field


def required(kind: Kind[T], doc: str) -> T:
    """A key that has no default: no value would suit everybody, or not without harm."""
    field: T = dataclasses.field(metadata={_DECLARATION: (kind, doc)})
    return field


def keys_of(name: str, section: type[Any]) -> tuple[Key, ...]:
    """The keys that a section declares, in its order."""
    keys = []
    for field in dataclasses.fields(section):
        kind, doc = field.metadata[_DECLARATION]
        keys.append(Key(name, field.name, kind, doc, field.default))
    return tuple(keys)


class Contradiction(NamedTuple):
    """Keys that are fine each and do not go together."""

    keys: tuple[str, ...]
    what: str
