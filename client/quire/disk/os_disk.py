"""The Disk port on the operating system's files."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from quire.errors import DiskFullError, DiskIoError, SyncFailedError
from quire.types import Buffer

# One pwritev takes at most IOV_MAX buffers.
_BUFFERS_MAX = os.sysconf("SC_IOV_MAX")
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def _translated(verb: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _translate(error, verb, path) from error


def _translate(error: OSError, verb: str, path: str) -> DiskIoError | DiskFullError:
    if error.errno in _FULL:
        return DiskFullError(
            f"no room to {verb} {path}: {error.strerror}; free some space, writing goes on by itself",
            path=path,
            retry_after_ms=1000,
        )
    return DiskIoError(f"cannot {verb} {path}: {error.strerror}", path=path, errno=error.errno)


class OsFile:
    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._fd = fd

    def size(self) -> int:
        with _translated("stat", self._path):
            return os.fstat(self._fd).st_size

    def read(self, position: int, size: int) -> bytes:
        try:
            data = os.pread(self._fd, size, position)
            while 0 < len(data) < size:  # a signal, or more than the kernel gives in one go
                more = os.pread(self._fd, size - len(data), position + len(data))
                if not more:
                    break
                data += more
            return data
        except OSError as error:
            raise _translate(error, "read", self._path) from error

    def write(self, position: int, buffers: Sequence[Buffer]) -> int:
        total = sum(map(len, buffers))
        try:
            if len(buffers) <= _BUFFERS_MAX:
                written = os.pwritev(self._fd, buffers, position)
                if written == total:
                    return total
                self._write_slowly(position, buffers, skip=written)
            else:
                self._write_slowly(position, buffers, skip=0)
        except OSError as error:
            raise _translate(error, "write", self._path) from error
        return total

    def _write_slowly(self, position: int, buffers: Sequence[Buffer], *, skip: int) -> None:
        """Write what lies past the first `skip` bytes, a limited number of buffers at a time."""
        left = [memoryview(buffer) for buffer in buffers]
        position += skip
        start = 0
        while start < len(left):
            if skip >= len(left[start]):
                skip -= len(left[start])
                start += 1
                continue
            left[start] = left[start][skip:]
            skip = os.pwritev(self._fd, left[start : start + _BUFFERS_MAX], position)
            if skip == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            position += skip

    def truncate(self, size: int) -> None:
        with _translated("truncate", self._path):
            os.ftruncate(self._fd, size)

    def sync(self) -> None:
        fd = self._fd
        if fd < 0:
            # Python checks this one descriptor itself, and its ValueError would end the thread that syncs.
            raise DiskIoError(f"cannot sync {self._path}: it is closed", path=self._path)
        try:
            os.fdatasync(fd)
        except OSError as error:
            raise SyncFailedError(f"cannot sync {self._path}: {error.strerror}", path=self._path) from error

    @property
    def descriptor(self) -> int | None:
        return self._fd if self._fd >= 0 else None

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with _translated("close", self._path):
                os.close(fd)


class OsDisk:
    def open(self, path: str, *, create: bool = False) -> OsFile:
        with _translated("open", path):
            return OsFile(path, os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644))

    def exists(self, path: str) -> bool:
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            # "Not there" would be a lie with consequences: a log without its checkpoint believes nothing.
            raise _translate(error, "look for", path) from error
        return True

    def names(self, directory: str) -> list[str]:
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _translate(error, "list", directory) from error

    def make_dirs(self, directory: str) -> None:
        parent = os.path.dirname(os.path.abspath(directory))
        if os.path.isdir(directory):
            # It may have been made by a process that was killed before it could sync the parent.
            if os.access(parent, os.R_OK):
                self.sync_dir(parent)
            return
        self.make_dirs(parent)
        with _translated("make directory", directory):
            os.makedirs(directory, exist_ok=True)
        self.sync_dir(parent)

    def rename(self, old: str, new: str) -> None:
        with _translated("rename", old):
            os.replace(old, new)

    def remove(self, path: str) -> None:
        with _translated("remove", path):
            os.unlink(path)

    def remove_dir(self, directory: str) -> None:
        with _translated("remove directory", directory):
            os.rmdir(directory)

    def free_bytes(self, directory: str) -> int:
        with _translated("look at the room of", directory):
            found = os.statvfs(directory)
        return found.f_bavail * found.f_frsize

    def sync_dir(self, directory: str) -> None:
        with _translated("open", directory):
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            raise SyncFailedError(f"cannot sync {directory}: {error.strerror}", path=directory) from error
        finally:
            os.close(fd)
