"""Who owns what is in Docker: each run gives its project a name that says which process it is of.

Containers, networks and volumes carry the project's name as Compose's label. So what a killed run has left behind is
known from what a living one needs, by whoever comes next.
"""

from __future__ import annotations

import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PREFIX: Final = "quirechaos"
_NAME: Final = re.compile(rf"{PREFIX}-([0-9a-f]{{12}})-([0-9]+)-([0-9]+)-([0-9]+)-[0-9a-f]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, for good: its number alone is given to another one some day."""

    boot: str
    pid_namespace: int
    pid: int
    started_ticks: int

    @classmethod
    def own(cls) -> Owner:
        pid = os.getpid()
        started = _started_ticks(pid)
        assert started is not None
        return cls(_boot(), _pid_namespace(), pid, started)

    @classmethod
    def of(cls, project: str) -> Owner | None:
        """None: it is no project of ours."""
        match = _NAME.fullmatch(project)
        return None if match is None else cls(match[1], *(int(match[group]) for group in (2, 3, 4)))

    def project(self) -> str:
        """A new name."""
        fields = (PREFIX, self.boot, self.pid_namespace, self.pid, self.started_ticks, secrets.token_hex(3))
        return "-".join(map(str, fields))

    def is_gone(self) -> bool:
        """Whether it has ended for certain. Of a process that cannot be seen from here, that is not known."""
        if self.boot != _boot() or self.pid_namespace != _pid_namespace():
            return False
        return _started_ticks(self.pid) != self.started_ticks


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").replace("-", "")[:12]


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _started_ticks(pid: int) -> int | None:
    """None: there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(stat.rpartition(")")[2].split()[19])
