"""A configuration shown as the file that would give it, each line with where its value comes from."""

from __future__ import annotations

import json
from collections.abc import Iterator

from quire.config.keys import Key
from quire.config.kinds import Shown
from quire.config.load import NOWHERE, Setting, Survey
from quire.config.sections import SECTIONS


def render(found: Survey) -> str:
    """TOML, with sources as comments. What is not set is a comment, too."""
    return "\n".join(_lines(found)) + "\n"


def value_text(value: Shown) -> str:
    """A value as TOML spells it."""
    if isinstance(value, list):
        return f"[{', '.join(map(value_text, value))}]"
    # JSON's strings are TOML's, but for this one character, which TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _lines(found: Survey) -> Iterator[str]:
    for number, section in enumerate(SECTIONS):
        if number:
            yield ""
        yield f"[{section}]"
        mine = [setting for setting in found.settings.values() if setting.key.section == section]
        assignments = [_assignment(setting) for setting in mine]
        width = min(60, max(map(len, assignments)))
        for assignment, setting in zip(assignments, mine, strict=True):
            yield f"{assignment:{width}}  # {_remark(setting)}"


def _assignment(setting: Setting) -> str:
    shown = None if setting.source is NOWHERE else setting.key.kind.show(setting.value)
    return f"# {setting.key.name} =" if shown is None else f"{setting.key.name} = {value_text(shown)}"


def _remark(setting: Setting) -> str:
    return f"not set; give {_ways(setting.key)}" if setting.source is NOWHERE else str(setting.source)


def _ways(key: Key) -> str:
    return f"{key.flag} or {key.variable}"
