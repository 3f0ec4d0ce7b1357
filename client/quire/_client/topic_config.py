"""A topic's settings as users write them, and as they travel."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from quire.errors import InvalidArgumentError
from quire.v1 import durability_pb2, metadata_pb2

Setting = str | int | bool

_FLUSHES: Final = {"fsync": durability_pb2.FLUSH_MODE_FSYNC, "os": durability_pb2.FLUSH_MODE_OS}
_INTERVAL: Final = re.compile(r"interval\((\d{1,9})\)")
_PARTITIONERS: Final = {
    "murmur3": metadata_pb2.PARTITIONER_MURMUR3,
    "murmur2": metadata_pb2.PARTITIONER_MURMUR2,
}
_CLEANUPS: Final = {
    "delete": metadata_pb2.CLEANUP_POLICY_DELETE,
    "compact": metadata_pb2.CLEANUP_POLICY_COMPACT,
    "compact,delete": metadata_pb2.CLEANUP_POLICY_COMPACT_AND_DELETE,
}

NAMES: Final = tuple(field.name for field in metadata_pb2.TopicConfig.DESCRIPTOR.fields)
"""All settings; docs/SDK.md says what they mean."""


def to_wire(config: Mapping[str, Setting]) -> metadata_pb2.TopicConfig:
    """Raises InvalidArgumentError for what is no setting, or not spelled as one."""
    message = metadata_pb2.TopicConfig()
    for name, value in config.items():
        check_names([name])
        if name == "flush":
            _set_flush(message, value)
        elif name == "partitioner":
            message.partitioner = _choice(name, value, _PARTITIONERS)
        elif name == "cleanup":
            message.cleanup = _choice(name, value, _CLEANUPS)
        elif name == "unclean_election":
            message.unclean_election = _truth(name, value)
        else:
            setattr(message, name, _whole(name, value))
    return message


def from_wire(message: metadata_pb2.TopicConfig) -> dict[str, Setting]:
    """What is set; what is not has its default."""
    config: dict[str, Setting] = {}
    for field, value in message.ListFields():
        name = field.name
        reader = _READERS.get(name)
        config[name] = value if reader is None else reader(value)
    return config


def check_names(names: Iterable[str]) -> None:
    for name in names:
        if name not in NAMES:
            raise InvalidArgumentError(f"there is no topic setting {name!r}; there are {', '.join(NAMES)}")


def _set_flush(message: metadata_pb2.TopicConfig, value: object) -> None:
    if isinstance(value, str) and (interval := _INTERVAL.fullmatch(value)):
        message.flush.mode = durability_pb2.FLUSH_MODE_INTERVAL
        message.flush.interval_ms = int(interval[1])
    elif isinstance(value, str) and value in _FLUSHES:
        message.flush.mode = _FLUSHES[value]
    else:
        raise InvalidArgumentError(f"flush is 'fsync', 'os' or 'interval(MILLISECONDS)', not {value!r}")


def _flush_text(flush: durability_pb2.FlushPolicy) -> str:
    if flush.mode == durability_pb2.FLUSH_MODE_INTERVAL:
        return f"interval({flush.interval_ms})"
    return "os" if flush.mode == durability_pb2.FLUSH_MODE_OS else "fsync"


def _choice(name: str, value: object, choices: Mapping[str, Any]) -> Any:
    if not isinstance(value, str) or value not in choices:
        raise InvalidArgumentError(f"{name} is one of {', '.join(map(repr, choices))}, not {value!r}")
    return choices[value]


def _truth(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return value == "true"
    raise InvalidArgumentError(f"{name} is True or False, not {value!r}")


def _whole(name: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        number = int(value)
    else:
        raise InvalidArgumentError(f"{name} is a whole number, not {value!r}")
    bits = 31 if name in ("min_isr", "retention_segments", "message_bytes_max") else 63
    if not -(2**bits) <= number < 2**bits:
        raise InvalidArgumentError(f"{name} cannot be {number}: it is out of any range")
    return number


def _name_of(choices: Mapping[str, int]) -> Callable[[int], str]:
    names = {number: name for name, number in choices.items()}
    return lambda number: names.get(number, f"unknown ({number})")


_READERS: Final[Mapping[str, Callable[[Any], Setting]]] = {
    "flush": _flush_text,
    "partitioner": _name_of(_PARTITIONERS),
    "cleanup": _name_of(_CLEANUPS),
}
