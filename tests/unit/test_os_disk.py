"""What the operating system does to the real disk, as far as a test can make it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

import pytest

from quire.disk.os_disk import OsDisk, OsFile
from quire.errors import DiskFullError, DiskIoError, SyncFailedError
from quire.types import Buffer

REPOSITORY: Final = Path(__file__).resolve().parents[2]


@pytest.fixture
def file(tmp_path: Path) -> OsFile:
    return OsDisk().open(str(tmp_path / "file"), create=True)


def failing(number: int) -> NoReturn:
    raise OSError(number, os.strerror(number))


@pytest.mark.parametrize("step", [1, 2, 3, 7, 64])
def test_a_short_write_is_gone_on_with(file: OsFile, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    pwritev = os.pwritev

    def write_a_little(fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        return pwritev(fd, [b"".join(buffers)[:step]], offset)

    monkeypatch.setattr(os, "pwritev", write_a_little)
    buffers = [b"abc", b"", b"defgh", b"i" * 100, b""]
    assert file.write(3, buffers) == 108
    assert file.read(0, 200) == b"\0\0\0" + b"".join(buffers)


def test_a_short_read_is_gone_on_with(file: OsFile, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write(0, [b"0123456789"])
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: pread(fd, min(size, 3), offset))
    assert file.read(1, 8) == b"12345678"
    assert file.read(5, 100) == b"56789"


def test_a_write_that_gets_nowhere_is_a_full_disk(file: OsFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    with pytest.raises(DiskFullError):
        file.write(0, [b"abc"])


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_no_room_is_a_full_disk(file: OsFile, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(os, "pwritev", lambda *_: failing(number))
    with pytest.raises(DiskFullError) as caught:
        file.write(0, [b"abc"])
    assert caught.value.retriable
    assert caught.value.retry_after_ms is not None
    assert caught.value.details["path"].endswith("/file")


def test_any_other_error_is_told_with_its_number(file: OsFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwritev", lambda *_: failing(errno.EIO))
    with pytest.raises(DiskIoError) as caught:
        file.write(0, [b"abc"])
    assert caught.value.details["errno"] == str(errno.EIO)
    assert not caught.value.retriable


def test_a_failed_sync_is_final(file: OsFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fdatasync", "fsync"):
        monkeypatch.setattr(os, name, lambda *_: failing(errno.EIO))
    with pytest.raises(SyncFailedError):
        file.sync()
    with pytest.raises(SyncFailedError):
        OsDisk().sync_dir(str(tmp_path))


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(DiskIoError) as caught:
        OsDisk().open(str(tmp_path))
    assert caught.value.details["errno"] == str(errno.EISDIR)


def test_a_directory_left_unsynced_by_another_process_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "made"
    directory.mkdir()
    synced: list[str] = []
    monkeypatch.setattr(OsDisk, "sync_dir", lambda _, path: synced.append(path))
    OsDisk().make_dirs(str(directory))
    assert synced == [str(tmp_path)]


def test_each_new_directory_is_synced_into_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(OsDisk, "sync_dir", lambda _, path: synced.append(path))
    OsDisk().make_dirs(str(tmp_path / "x" / "y"))
    assert synced[-2:] == [str(tmp_path), str(tmp_path / "x")]


BEYOND_THE_LIMIT: Final = """
import resource, signal, sys
from quire.errors import DiskFullError
from quire.disk.os_disk import OsDisk

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
file = OsDisk().open(sys.argv[1], create=True)
file.write(0, [b"a" * 900])
for attempt in range(2):
    try:
        file.write(900, [b"b" * 90, b"c" * 90])
    except DiskFullError:
        continue
    sys.exit("the write went through")
file.truncate(900)
assert file.read(0, 2000) == b"a" * 900
file.write(900, [b"d" * 100])
"""


def test_a_write_past_a_limit_of_the_system_is_a_full_disk(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BEYOND_THE_LIMIT, tmp_path / "file"], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "file").read_bytes() == b"a" * 900 + b"d" * 100
