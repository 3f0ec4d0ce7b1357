"""What can be configured, from the declarations themselves: for a terminal, for `docs/CONFIG.md`, for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Final, TypedDict

from quire.config.keys import Key
from quire.config.kinds import Shown
from quire.config.load import FILE_FLAG, FILE_VARIABLE
from quire.config.sections import KEYS, SECTIONS
from quire.config.toml import value_text

INTRODUCTION: Final = f"""\
A value comes from the first of these that has it: a flag (`--node-id c1`), a variable (`QUIRE_NODE_ID=c1`), a file,
the default. The file is TOML and is named with `{FILE_FLAG}` or `{FILE_VARIABLE}`; a key stands in its section:

    [node]
    id = "c1"

In flags and variables the items of a list are separated by commas. An empty text takes back what the file sets, where
a value may be empty. Relative paths begin at the directory in which the process was started. What is misspelled, out
of bounds or contradicts itself keeps a process from starting. `quire config` shows what holds, and where each value
comes from.
"""

WIDTH: Final = 100


class Document(TypedDict):
    section: str
    key: str
    allowed: str
    default: Shown
    required: bool
    variable: str
    flag: str
    doc: str


def documents() -> list[Document]:
    """Every key, in the order of declaration."""
    return [
        {
            "section": key.section,
            "key": key.name,
            "allowed": key.kind.allowed,
            "default": key.default_shown,
            "required": key.is_required,
            "variable": key.variable,
            "flag": key.flag,
            "doc": key.doc,
        }
        for key in KEYS.values()
    ]


def as_text() -> str:
    return "\n".join(_text_lines()) + "\n"


def as_markdown() -> str:
    return "\n".join(_markdown_lines()) + "\n"


def _text_lines() -> Iterator[str]:
    yield INTRODUCTION.replace("`", "").rstrip()
    for section, declared in SECTIONS.items():
        yield ""
        yield f"[{section}]"
        yield from textwrap.wrap(_summary(declared).replace("`", ""), WIDTH)
        for key in _keys(section):
            yield ""
            yield f"  {key.name}"
            yield from _wrapped(key.doc.replace("`", ""))
            yield from _wrapped(f"allowed   {key.kind.allowed}", hang=10)
            yield f"      default   {_default(key)}"
            yield f"      variable  {key.variable}"
            yield f"      flag      {key.flag}"


def _markdown_lines() -> Iterator[str]:
    yield "# Configuration"
    yield ""
    yield "<!-- Made by `quire config --docs --markdown` from the declarations in quire.config.sections. -->"
    yield ""
    yield INTRODUCTION.rstrip()
    for section, declared in SECTIONS.items():
        yield ""
        yield f"## `{section}`"
        yield ""
        yield _summary(declared)
        yield ""
        yield "| key | what | allowed | default | variable |"
        yield "|---|---|---|---|---|"
        for key in _keys(section):
            default = _default(key) if key.is_required or key.default_shown is None else f"`{_default(key)}`"
            yield f"| `{key.name}` | {key.doc} | {key.kind.allowed} | {default} | `{key.variable}` |"


def _keys(section: str) -> list[Key]:
    return [key for key in KEYS.values() if key.section == section]


def _default(key: Key) -> str:
    if key.is_required:
        return "none: it must be set"
    return "not set" if key.default_shown is None else value_text(key.default_shown)


def _summary(declared: type[object]) -> str:
    return " ".join((declared.__doc__ or "").split())


def _wrapped(text: str, *, hang: int = 0) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * (6 + hang))
