"""The id of a broker's data directory: made once, durably, and never again by itself."""

from __future__ import annotations

import contextlib
import random

import pytest

from quire.disk.framed import TEMPORARY_SUFFIX
from quire.disk.sim_disk import SimDisk, SimulatedCrash
from quire.errors import ClusterIdMismatchError, DamagedFileError, InvalidArgumentError
from quire_broker.runtime.incarnation import FILE, incarnation_id

ROOT = "/data/broker"
PATH = f"{ROOT}/{FILE}"
STORED = (
    b"quire-broker-incarnation v1 crc=6000256e bytes=93\n"
    b'{"broker_id": 3, "cluster_id": "prod", "incarnation_id": "01020304050607080910111213141516"}\n'
)
"""What was written once has to be read for ever."""


def id_of(disk: SimDisk, *, cluster_id: str = "prod", broker_id: int = 3, seed: int = 1) -> bytes:
    return incarnation_id(
        disk, ROOT, cluster_id=cluster_id, broker_id=broker_id, data="topics", randomness=random.Random(seed)
    )


def write(disk: SimDisk, path: str, data: bytes) -> None:
    disk.make_dirs(path.rpartition("/")[0])
    file = disk.open(path, create=True)
    file.truncate(0)
    file.write(0, [data])
    file.sync()
    file.close()
    disk.sync_dir(path.rpartition("/")[0])


def test_made_once_and_found_again() -> None:
    disk = SimDisk()
    made = id_of(disk)
    assert len(made) == 16
    assert id_of(disk, seed=2) == made
    write(disk, f"{ROOT}/topics/orders", b"")
    assert id_of(disk) == made
    assert id_of(SimDisk(), seed=2) != made


def test_what_was_written_once_is_still_read() -> None:
    disk = SimDisk()
    write(disk, PATH, STORED)
    assert id_of(disk) == bytes.fromhex("01020304050607080910111213141516")


def test_power_cut_leaves_the_one_that_was_told_or_none() -> None:
    """Whenever the power fails: an id that was given out is there afterwards."""
    for steps in range(30):
        for seed in range(5):
            disk = SimDisk()
            disk.crash_after(steps)
            told = None
            with contextlib.suppress(SimulatedCrash):
                told = id_of(disk)
            disk.power_cut(random.Random(seed))
            after = id_of(disk, seed=99)
            assert told is None or after == told
    assert told is not None, "the last of them came through"


def test_one_that_a_dying_process_left_is_durable_before_it_is_told() -> None:
    for steps in range(30):
        disk = SimDisk()
        disk.crash_after(steps)
        with contextlib.suppress(SimulatedCrash):
            id_of(disk)
        disk.kill()
        told = id_of(disk)
        disk.power_cut(random.Random(steps))
        assert id_of(disk, seed=99) == told


def test_one_that_is_damaged_is_not_made_anew() -> None:
    for position in range(len(STORED)):
        disk = SimDisk()
        write(disk, PATH, STORED[:position] + bytes([STORED[position] ^ 4]) + STORED[position + 1 :])
        with pytest.raises(DamagedFileError, match="move the broker's directory away and start it again") as raised:
            id_of(disk)
        assert raised.value.details == {"path": PATH}
    for cut in range(len(STORED)):
        disk = SimDisk()
        write(disk, PATH, STORED[:cut])
        with pytest.raises(DamagedFileError):
            id_of(disk)


def test_one_that_is_missing_is_not_made_anew_where_there_is_data() -> None:
    disk = SimDisk()
    write(disk, f"{ROOT}/topics/orders-1/0/partition.meta", b"x")
    with pytest.raises(DamagedFileError, match="is missing, and there is data"):
        id_of(disk)
    assert not disk.exists(PATH)
    assert not disk.exists(PATH + TEMPORARY_SUFFIX)


def test_directory_of_another_cluster_or_broker_is_refused() -> None:
    disk = SimDisk()
    id_of(disk)
    with pytest.raises(ClusterIdMismatchError, match=r"holds data of cluster 'prod'.*'test' \(node.cluster_id\)"):
        id_of(disk, cluster_id="test")
    with pytest.raises(InvalidArgumentError, match="the data of broker 3, and this is to be broker 4"):
        id_of(disk, broker_id=4)
