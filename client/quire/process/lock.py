"""One process a data directory: two that wrote to the same files would destroy what each has promised."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from quire.errors import DiskIoError, UnavailableError

LOCK_FILE: Final = ".lock"
_HOLDER_BYTES_MAX: Final = 512


class DirectoryInUseError(UnavailableError):
    """Another process has this directory."""


class DirectoryLock:
    """A directory that no other process takes as long as this one lives. The kernel gives it back if it dies.

    The file stays when the lock goes: if it were removed, two processes could hold locks on two files of its name.
    """

    def __init__(self, directory: Path) -> None:
        """Take it. Makes the directory if there is none. Raises DirectoryInUseError, with who has it."""
        self.directory = directory
        path = directory / LOCK_FILE
        try:
            directory.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
        except OSError as error:
            raise DiskIoError(f"{path} cannot be opened: {error.strerror}", path=path) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
        except BlockingIOError as error:
            holder = _holder(self._fd)
            self.release()
            raise DirectoryInUseError(
                f"{directory} is in use by {holder}; give this process another directory, or stop that one first",
                path=directory,
                holder=holder,
            ) from error
        except OSError as error:
            self.release()
            raise DiskIoError(f"{path} cannot be locked: {error.strerror}", path=path) from error

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _holder(fd: int) -> str:
    """Who wrote itself into the file. In a container the number is that of the container's own counting."""
    try:
        pid, _, host = os.pread(fd, _HOLDER_BYTES_MAX, 0).decode("utf-8", "replace").strip().partition(" ")
    except OSError:
        pid, host = "", ""
    return f"process {int(pid)} on {host}" if pid.isascii() and pid.isdigit() else "a process that has just started"
