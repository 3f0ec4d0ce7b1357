"""From flags, environment and file to a `Config`. All that is wrong is said at once, each with where it stands."""

from __future__ import annotations

import difflib
import enum
import re
import tomllib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from quire.config.keys import PREFIX, Key
from quire.config.kinds import quoted
from quire.config.sections import KEYS, SECTIONS, Config, contradictions
from quire.errors import InvalidArgumentError

FILE_FLAG: Final = "--config"
FILE_VARIABLE: Final = f"{PREFIX}_CONFIG"
FILE_BYTES_MAX: Final = 1024 * 1024
PROBLEMS_SHOWN_MAX: Final = 10

CLIENT_VARIABLES: Final = frozenset({f"{PREFIX}_BOOTSTRAP", f"{PREFIX}_TLS_CA", f"{PREFIX}_TLS_CERT"})
"""What the `quire` command reads, and no process: it may well be there where somebody starts one."""
VARIABLES: Final = {key.variable: key for key in KEYS.values()}
FLAGS: Final = {key.flag: key for key in KEYS.values()}

_SERVICE_LINK: Final = re.compile(
    rf"{PREFIX}(_[A-Z0-9_]+)?_"
    r"(SERVICE_HOST=|SERVICE_PORT(_[A-Z0-9_]+)?=|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?=|PORT=(tcp|udp|sctp)://)"
)
"""What Kubernetes puts into the environment of every pod when a service is called `quire` or `quire-controller`.

One of the names is what a person might write, too (QUIRE_METRICS_PORT); there the value tells who did.
"""


class SourceKind(enum.StrEnum):
    """Where a value can come from, the strongest first."""

    FLAG = "flag"
    VARIABLE = "variable"
    FILE = "file"
    DEFAULT = "default"
    NOWHERE = "nowhere"


class Source(NamedTuple):
    kind: SourceKind
    name: str
    """As a person would look for it: `--node-id`, `QUIRE_NODE_ID`, `quire.toml [node] id`."""

    def __str__(self) -> str:
        return self.name


DEFAULT: Final = Source(SourceKind.DEFAULT, "default")
NOWHERE: Final = Source(SourceKind.NOWHERE, "not set")


@dataclass(frozen=True, slots=True)
class Setting:
    """A key with its value, and where that comes from. The value of what is set NOWHERE means nothing."""

    key: Key
    value: Any
    source: Source


@dataclass(frozen=True, slots=True)
class Survey:
    """What all sources together say, also where it cannot be used."""

    settings: Mapping[str, Setting]
    """By path (`node.id`), in the order of declaration."""
    problems: Sequence[str]


@dataclass(frozen=True, slots=True)
class Effective:
    """A configuration that holds together, and where each of its values comes from."""

    config: Config
    settings: Mapping[str, Setting]

    def chosen(self) -> dict[str, str]:
        """What somebody set, `{"node.id": "c1 (QUIRE_NODE_ID)"}`: for the first line of a log."""
        return {
            path: f"{setting.key.kind.show(setting.value)} ({setting.source})"
            for path, setting in self.settings.items()
            if setting.source is not DEFAULT
        }


def load(arguments: Sequence[str] = (), *, environ: Mapping[str, str], file: Path | None = None) -> Effective:
    """The configuration of this process. Raises InvalidArgumentError with everything that is wrong.

    The file is `file`, or what `--config` or QUIRE_CONFIG names; without any there is none.
    """
    found = survey(arguments, environ=environ, file=file)
    if found.problems:
        raise InvalidArgumentError(_joined(found.problems), problems=len(found.problems))
    return Effective(_build(found.settings), found.settings)


def survey(arguments: Sequence[str] = (), *, environ: Mapping[str, str], file: Path | None = None) -> Survey:
    """The same without raising: what could be read, and what is wrong."""
    problems: list[str] = []
    flags, named = _from_flags(arguments, problems)
    named = named or environ.get(FILE_VARIABLE)
    if file is None and named:
        file = Path(named)
    found = [
        *([] if file is None else _from_file(file, problems)),
        *_from_environment(environ, problems),
        *flags,
    ]
    settings = {
        path: Setting(key, None, NOWHERE) if key.is_required else Setting(key, key.default, DEFAULT)
        for path, key in KEYS.items()
    }
    # The weakest source comes first. What a stronger one overrides is read, too: a value that is not allowed would
    # surprise whoever takes the stronger one away.
    for given in found:
        try:
            settings[given.key.path] = Setting(given.key, given.read(), given.source)
        except InvalidArgumentError as error:
            problems.append(f"{given.source}: {error.message}; allowed is {given.key.kind.allowed}")
    missing = [each.key for each in settings.values() if each.source is NOWHERE]
    tried = {given.key.path for given in found}
    problems += [
        f"{key.path} is not set and has no default: give {key.flag}, {key.variable} or, in a file, "
        f"'{key.name}' in [{key.section}]"
        for key in missing
        if key.path not in tried
    ]
    if not missing:
        problems += [
            f"{', '.join(_shown(settings[path]) for path in wrong.keys)}: {wrong.what}"
            for wrong in contradictions(_build(settings))
        ]
    return Survey(settings, problems)


def _build(settings: Mapping[str, Setting]) -> Config:
    return Config(
        **{
            name: section(**{each.key.name: each.value for each in settings.values() if each.key.section == name})
            for name, section in SECTIONS.items()
        }
    )


# --- the sources ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Given:
    """What one source says of one key, before anybody has read it."""

    key: Key
    source: Source
    raw: object

    def read(self) -> Any:
        kind = self.key.kind
        return kind.read(self.raw) if self.source.kind is SourceKind.FILE else kind.parse(str(self.raw))


def _from_file(path: Path, problems: list[str]) -> Iterator[_Given]:
    for section, table in _read_toml(path, problems).items():
        if section not in SECTIONS:
            problems.append(f"{path}: there is no section [{_printable(section)}]{_meant(section, SECTIONS, '[{}]')}")
        elif not isinstance(table, dict):
            problems.append(f"{path}: '{section}' is to be a section, [{section}], not {quoted(table)}")
        else:
            for name, value in table.items():
                if key := KEYS.get(f"{section}.{name}"):
                    yield _Given(key, Source(SourceKind.FILE, f"{path} [{section}] {name}"), value)
                else:
                    hint = _meant_key(section, name)
                    problems.append(f"{path} [{section}]: there is no key '{_printable(name)}'{hint}")


def _read_toml(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
        if len(content) > FILE_BYTES_MAX:
            problems.append(f"{path} is larger than {FILE_BYTES_MAX} bytes: is it a configuration?")
            return {}
        return tomllib.loads(content.decode("utf-8"))
    except OSError as error:
        problems.append(f"{path} cannot be read: {error.strerror}")
    except UnicodeDecodeError as error:
        problems.append(f"{path} is not UTF-8 at byte {error.start}")
    except (ValueError, RecursionError) as error:
        # Besides tomllib's own ValueError: a number with more digits than Python converts, brackets without end.
        problems.append(f"{path} is not TOML that can be read: {error}")
    return {}


def _from_environment(environ: Mapping[str, str], problems: list[str]) -> Iterator[_Given]:
    for variable in sorted(environ):
        if variable in (FILE_VARIABLE, *CLIENT_VARIABLES) or not variable.startswith(f"{PREFIX}_"):
            continue
        if key := VARIABLES.get(variable):
            yield _Given(key, Source(SourceKind.VARIABLE, variable), environ[variable])
        elif not _SERVICE_LINK.match(f"{variable}={environ[variable]}"):
            problems.append(f"the variable {_printable(variable)} is no setting{_meant(variable, VARIABLES, '{}')}")


def _from_flags(arguments: Sequence[str], problems: list[str]) -> tuple[list[_Given], str | None]:
    """What `--flag value` and `--flag=value` say, and the file that they name."""
    texts: dict[str, str] = {}
    left = deque(arguments)
    while left:
        argument = left.popleft()
        flag, equals, text = argument.partition("=")
        if not equals and left and not left[0].startswith("--"):
            equals, text = "=", left.popleft()
        if flag not in FLAGS and flag != FILE_FLAG:
            problems.append(f"{quoted(flag)} is no flag{_meant(flag, [*FLAGS, FILE_FLAG], '{}')}")
        elif not equals:
            problems.append(f"{flag} is to be followed by a value")
        elif flag in texts:
            problems.append(f"{flag} is there more than once")
        else:
            texts[flag] = text
    file = texts.pop(FILE_FLAG, None)
    return [_Given(FLAGS[flag], Source(SourceKind.FLAG, flag), text) for flag, text in texts.items()], file


# --- what is said about problems -----------------------------------------------------------------------------------


def _shown(setting: Setting) -> str:
    return f"{setting.key.path} = {setting.key.kind.show(setting.value)} ({setting.source})"


def _meant_key(section: str, name: str) -> str:
    names = {key.name for key in KEYS.values() if key.section == section}
    for key in KEYS.values():
        if key.name == name:  # right, and in the wrong section
            return f"; did you mean {key.path}?"
    return _meant(name, sorted(names), "'{}'")


def _meant(name: str, known: Iterable[str], form: str) -> str:
    close = difflib.get_close_matches(name[:200], list(known), n=1, cutoff=0.6)
    return f"; did you mean {form.format(close[0])}?" if close else "; 'quire config --docs' lists them all"


def _printable(name: str) -> str:
    text = "".join(character if character.isprintable() else "?" for character in name)
    return text if len(text) <= 80 else f"{text[:79]}…"


def _joined(problems: Sequence[str]) -> str:
    if len(problems) == 1:
        return problems[0]
    shown = [f"{number}) {problem}" for number, problem in enumerate(problems[:PROBLEMS_SHOWN_MAX], start=1)]
    more = len(problems) - len(shown)
    return f"{len(problems)} problems: {' '.join(shown)}{f' and {more} more' if more else ''}"
