"""Mending a log that others write to."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.errors import DamagedRangeError
from quire_broker.runtime.log_writer import LogWriter, Stored
from tests.integration.test_log_writer import EPOCH, WatchedDisk, batch, writer_on


@pytest.fixture
def disk() -> WatchedDisk:
    return WatchedDisk()


async def damaged(writer: LogWriter, directory: Path) -> bytes:
    """Write some batches and damage one; answers a copy of it, which has offset 2."""
    for _ in range(5):
        await writer.append([batch(bytes(100))], epoch=EPOCH)
    copy = bytes(writer.log.read(2, bytes_max=1).data)
    path = directory / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[2 * len(copy) + 80] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedRangeError):
        writer.log.read(2, bytes_max=1)
    return copy


async def test_a_writer_mends_its_log_and_goes_on(disk: WatchedDisk, tmp_path: Path) -> None:
    async with writer_on(disk, tmp_path) as writer:
        copy = await damaged(writer, tmp_path)
        assert await writer.exclusively(lambda log: log.mend(copy, now_ms=1_000)) == 3
        assert writer.log.quarantined == []
        assert writer.log.read(2, bytes_max=1).data == copy
        [stored] = await writer.append([batch()], epoch=EPOCH)
        assert isinstance(stored, Stored)
        assert (stored.base_offset, stored.fsynced) == (5, True)
