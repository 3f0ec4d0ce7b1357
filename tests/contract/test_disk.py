"""What the Disk port promises, held against every implementation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from quire.disk.os_disk import OsDisk
from quire.disk.port import Disk, DiskFile
from quire.disk.sim_disk import SimDisk
from quire.errors import DiskIoError

MANY: Final = 3 * os.sysconf("SC_IOV_MAX") + 1


class Place:
    def __init__(self, disk: Disk, root: str) -> None:
        self.disk = disk
        self.root = root

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def make(self, name: str, data: bytes = b"") -> DiskFile:
        file = self.disk.open(self.path(name), create=True)
        file.write(0, [data])
        return file

    def content(self, name: str) -> bytes:
        file = self.disk.open(self.path(name))
        try:
            return file.read(0, file.size())
        finally:
            file.close()


@pytest.fixture(params=[SimDisk, OsDisk])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    place = Place(SimDisk(), "/root") if request.param is SimDisk else Place(OsDisk(), str(tmp_path / "root"))
    place.disk.make_dirs(place.root)
    return place


# --- files --------------------------------------------------------------------------------------------------------


def test_a_created_file_is_empty(place: Place) -> None:
    file = place.disk.open(place.path("a"), create=True)
    assert file.size() == 0
    assert file.read(0, 10) == b""


def test_opening_to_create_keeps_what_is_there(place: Place) -> None:
    place.make("a", b"content").close()
    file = place.disk.open(place.path("a"), create=True)
    assert file.read(0, 100) == b"content"


def test_a_file_can_be_read_and_written_without_create(place: Place) -> None:
    place.make("a", b"content").close()
    file = place.disk.open(place.path("a"))
    assert file.write(0, [b"C"]) == 1
    assert file.read(0, 7) == b"Content"


def test_two_handles_see_one_file(place: Place) -> None:
    one = place.make("a")
    other = place.disk.open(place.path("a"))
    one.write(0, [b"seen"])
    assert other.read(0, 4) == b"seen"


def test_a_read_is_short_only_where_the_file_ends(place: Place) -> None:
    file = place.make("a", b"0123456789")
    assert file.read(2, 3) == b"234"
    assert file.read(8, 5) == b"89"
    assert file.read(10, 5) == b""
    assert file.read(1_000, 5) == b""
    assert file.read(3, 0) == b""


def test_a_write_lays_its_buffers_end_to_end(place: Place) -> None:
    file = place.make("a", b"..........")
    assert file.write(2, [b"ab", bytearray(b"cd"), memoryview(b"ef")]) == 6
    assert file.read(0, 20) == b"..abcdef.."


def test_a_write_of_nothing_changes_nothing(place: Place) -> None:
    file = place.make("a", b"abc")
    assert file.write(0, []) == 0
    assert file.write(50, [b"", b""]) == 0
    assert file.read(0, 100) == b"abc"


def test_a_write_takes_more_buffers_than_the_system_does_at_once(place: Place) -> None:
    buffers = [b"%d," % n if n % 7 else b"" for n in range(MANY)]
    file = place.make("a", b"head")
    assert file.write(4, buffers) == len(b"".join(buffers))
    assert file.read(0, file.size()) == b"head" + b"".join(buffers)


def test_a_write_past_the_end_fills_with_zeros(place: Place) -> None:
    file = place.make("a", b"abc")
    file.write(6, [b"xyz"])
    assert file.read(0, 100) == b"abc\0\0\0xyz"


def test_a_large_write_is_read_back(place: Place) -> None:
    data = os.urandom(3 << 20)
    file = place.make("a")
    assert file.write(0, [data]) == len(data)
    assert file.read(0, len(data) + 1) == data


@pytest.mark.parametrize(("size", "content"), [(0, b""), (2, b"ab"), (3, b"abc"), (5, b"abc\0\0")])
def test_a_truncated_file_has_the_size_that_was_asked_for(place: Place, size: int, content: bytes) -> None:
    file = place.make("a", b"abc")
    file.truncate(size)
    assert file.size() == size
    assert file.read(0, 100) == content


def test_what_was_cut_off_does_not_come_back(place: Place) -> None:
    file = place.make("a", b"secret")
    file.truncate(2)
    file.write(5, [b"!"])
    assert file.read(0, 100) == b"se\0\0\0!"


def test_a_sync_changes_nothing_that_is_seen(place: Place) -> None:
    file = place.make("a", b"abc")
    file.sync()
    place.disk.sync_dir(place.root)
    assert place.content("a") == b"abc"


def test_a_closed_file_refuses_everything_but_another_close(place: Place) -> None:
    file = place.make("a", b"abc")
    file.close()
    file.close()
    for use in (
        file.size,
        file.sync,
        lambda: file.read(0, 1),
        lambda: file.write(0, [b"x"]),
        lambda: file.truncate(0),
    ):
        with pytest.raises(DiskIoError):
            use()
    assert place.content("a") == b"abc"


# --- names --------------------------------------------------------------------------------------------------------


def test_what_is_not_there_is_a_typed_error(place: Place) -> None:
    missing = place.path("missing")
    for use in (
        lambda: place.disk.open(missing),
        lambda: place.disk.remove(missing),
        lambda: place.disk.rename(missing, place.path("new")),
        lambda: place.disk.sync_dir(missing),
        lambda: place.disk.open(f"{missing}/a", create=True),
    ):
        with pytest.raises(DiskIoError) as caught:
            use()
        assert caught.value.details["path"].startswith(missing)
    assert place.disk.names(place.root) == []


def test_names_are_sorted(place: Place) -> None:
    for name in ("b", "a", "10", "9", "Z"):
        place.make(name)
    assert place.disk.names(place.root) == ["10", "9", "Z", "a", "b"]


def test_a_directory_that_is_not_there_has_no_names(place: Place) -> None:
    assert place.disk.names(place.path("missing")) == []


def test_names_are_of_one_directory(place: Place) -> None:
    place.disk.make_dirs(place.path("inner"))
    place.make("a")
    place.make("inner/b")
    assert place.disk.names(place.root) == ["a", "inner"]
    assert place.disk.names(place.path("inner")) == ["b"]


def test_a_file_has_no_names(place: Place) -> None:
    place.make("a")
    with pytest.raises(DiskIoError):
        place.disk.names(place.path("a"))


def test_exists_tells_what_is_there(place: Place) -> None:
    place.make("a")
    assert place.disk.exists(place.path("a"))
    assert place.disk.exists(place.root)
    assert not place.disk.exists(place.path("b"))


def test_directories_are_made_with_their_parents_and_twice(place: Place) -> None:
    for _ in range(2):
        place.disk.make_dirs(place.path("x/y/z"))
    assert place.disk.names(place.path("x")) == ["y"]
    place.make("x/y/z/a", b"deep")
    assert place.content("x/y/z/a") == b"deep"


def test_a_directory_is_no_file(place: Place) -> None:
    place.disk.make_dirs(place.path("inner"))
    place.make("a")
    for use in (
        lambda: place.disk.open(place.path("inner")),
        lambda: place.disk.open(place.path("inner"), create=True),
        lambda: place.disk.remove(place.path("inner")),
        lambda: place.disk.rename(place.path("a"), place.path("inner")),
        lambda: place.disk.make_dirs(place.path("a")),
    ):
        with pytest.raises(DiskIoError):
            use()
    assert place.disk.names(place.root) == ["a", "inner"]


def test_a_rename_replaces(place: Place) -> None:
    place.make("old", b"new content")
    place.make("new", b"gone")
    place.disk.rename(place.path("old"), place.path("new"))
    assert place.disk.names(place.root) == ["new"]
    assert place.content("new") == b"new content"


def test_an_open_file_follows_its_rename(place: Place) -> None:
    file = place.make("old", b"a")
    place.disk.rename(place.path("old"), place.path("new"))
    file.write(1, [b"b"])
    file.sync()
    assert place.content("new") == b"ab"


def test_a_removed_file_is_gone_but_for_who_has_it_open(place: Place) -> None:
    file = place.make("a", b"abc")
    place.disk.remove(place.path("a"))
    assert not place.disk.exists(place.path("a"))
    assert file.read(0, 3) == b"abc"
    assert place.make("a").size() == 0


def test_an_empty_directory_can_be_removed_and_no_other(place: Place) -> None:
    place.disk.make_dirs(place.path("x/y"))
    place.make("a")
    for path in ("x", "a", "missing"):
        with pytest.raises(DiskIoError):
            place.disk.remove_dir(place.path(path))
    place.disk.remove_dir(place.path("x/y"))
    place.disk.remove_dir(place.path("x"))
    assert place.disk.names(place.root) == ["a"]


def test_there_is_room(place: Place) -> None:
    assert place.disk.free_bytes(place.root) > 0
