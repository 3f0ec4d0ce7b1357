"""Whether a port can be had, and who has it if not."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from quire.link.network import Address
from quire_broker.cli.supervisor.child import LEASH

COMMAND_CHARACTERS_MAX: Final = 60
_LISTENING: Final = "0A"


def obstacle(address: Address) -> str | None:
    """Why nobody could listen there now: `is taken by process 4242 (python -m http.server)`. None if one could."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As servers do: what an ended process has left in TIME_WAIT is no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return f"cannot be had ({error.strerror})"
            return f"is taken by {_holder(address.port) or 'a process of another user'}"
    return None


def _holder(port: int) -> str | None:
    inodes = set(_inodes(port))
    for process in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)) if inodes else ():
        if any(inode in inodes for inode in _sockets(process)):
            return _described(process)
    return None


def _inodes(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _sockets(process: Path) -> Iterator[str]:
    """The inodes of its sockets; none of another user's process."""
    try:
        descriptors = list((process / "fd").iterdir())
    except OSError:
        return
    for descriptor in descriptors:
        try:
            target = os.readlink(descriptor)
        except OSError:
            continue
        if target.startswith("socket:["):
            yield target[len("socket:[") : -1]


def _described(process: Path) -> str:
    """`process 4242 (quire up)`. Of a child of ours it is the supervisor: the child would be started again."""
    words = _words(process)
    if LEASH in words:
        process = process.with_name(words[words.index(LEASH) + 1])
        words = _words(process)
    text = " ".join([os.path.basename(words[0]), *words[1:]]).strip() if words else "gone meanwhile"
    if len(text) > COMMAND_CHARACTERS_MAX:
        text = f"{text[: COMMAND_CHARACTERS_MAX - 1]}…"
    return f"process {process.name} ({text})"


def _words(process: Path) -> list[str]:
    try:
        return (process / "cmdline").read_bytes().decode("utf-8", "replace").rstrip("\0").split("\0")
    except OSError:
        return []
