"""Folders of partitions: whose they are, and how they go."""

from __future__ import annotations

import pytest

from quire.disk.sim_disk import SimDisk, SimulatedCrash
from quire.errors import DamagedFileError
from quire_broker.log import place as places
from quire_broker.log.place import PartitionKey, Place

ROOT = "/data"
KEY = PartitionKey(bytes(range(16)), 3)


def files_in(disk: SimDisk, place: Place) -> None:
    disk.make_dirs(place.records)
    for name in ("a.log", "a.index"):
        disk.open(f"{place.records}/{name}", create=True).close()


def test_a_folder_says_whose_it_is_also_after_a_kill() -> None:
    disk = SimDisk()
    place = places.make(disk, ROOT, KEY, topic="orders")
    disk.kill()
    assert list(places.find(disk, ROOT)) == [place]
    assert place.directory == "/data/topics/orders-000102030405/3"
    assert places.make(disk, ROOT, KEY, topic="orders") == place


def test_a_damaged_mark_is_told_of_and_not_passed_over() -> None:
    disk = SimDisk()
    place = places.make(disk, ROOT, KEY, topic="orders")
    disk.flip(f"{place.directory}/{places.META}", 60, 3)
    with pytest.raises(DamagedFileError):
        list(places.find(disk, ROOT))
    with pytest.raises(DamagedFileError):
        places.make(disk, ROOT, KEY, topic="orders")


def test_a_folder_of_another_partition_is_not_taken() -> None:
    disk = SimDisk()
    places.make(disk, ROOT, KEY, topic="orders")
    other = PartitionKey(KEY.topic_id[:6] + bytes(10), 3)  # the same folder: its name has only a part of the id
    with pytest.raises(DamagedFileError, match="is of partition"):
        places.make(disk, ROOT, other, topic="orders")


def test_a_condemned_folder_is_no_partition_and_goes_whole_wherever_it_dies() -> None:
    for steps in range(12):
        disk = SimDisk()
        place = places.make(disk, ROOT, KEY, topic="orders")
        files_in(disk, place)
        keeps = places.make(disk, ROOT, PartitionKey(KEY.topic_id, 4), topic="orders")
        files_in(disk, keeps)
        places.condemn(disk, place)
        disk.crash_after(steps)
        try:
            places.remove(disk, place.directory)
        except SimulatedCrash:
            disk.kill()
        for directory in list(places.condemned(disk, ROOT)):
            places.remove(disk, directory)
        assert list(places.condemned(disk, ROOT)) == []
        assert list(places.find(disk, ROOT)) == [keeps]
        assert disk.names(keeps.records) == ["a.index", "a.log"]
        assert disk.names(f"{ROOT}/topics/orders-000102030405") == ["4"]


def test_the_last_partition_takes_the_topics_folder_along() -> None:
    disk = SimDisk()
    place = places.make(disk, ROOT, KEY, topic="orders")
    places.condemn(disk, place)
    places.remove(disk, place.directory)
    assert disk.names(f"{ROOT}/topics") == []
