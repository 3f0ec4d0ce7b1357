"""What a log must know of itself before it reads a single batch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from quire.disk.framed import frame, read_whole, stage, unframe
from quire.disk.port import Disk
from quire.errors import DamagedFileError

NAME: Final = "checkpoint"
_VERSION: Final = 1
_BYTES_MAX: Final = 16 * 1024 * 1024


class Cut(NamedTuple):
    """A removal that has begun: segments after `segment` go, that one ends at `position`, and the log at `offset`."""

    segment: int
    position: int
    offset: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    start_offset: int = 0
    recovery_point: int = 0
    """Everything below was synced, and sealed segments have their indexes, when this was written."""
    epochs: tuple[tuple[int, int], ...] = ()
    """(leader epoch, its first offset)."""
    quarantined: tuple[tuple[int, int], ...] = ()
    """(first offset, end offset) of ranges known to be damaged."""
    cut: Cut | None = None
    """Opening finishes it."""

    def to_bytes(self) -> bytes:
        body = {
            "start_offset": self.start_offset,
            "recovery_point": self.recovery_point,
            "epochs": self.epochs,
            "quarantined": self.quarantined,
            "cut": self.cut,
        }
        return frame("checkpoint", _VERSION, json.dumps(body).encode() + b"\n")

    @classmethod
    def from_bytes(cls, data: bytes, *, path: str) -> Checkpoint:
        payload = unframe(data, kind="checkpoint", version_max=_VERSION, path=path)
        body: dict[str, Any] = json.loads(payload)
        return cls(
            start_offset=body["start_offset"],
            recovery_point=body["recovery_point"],
            epochs=tuple((epoch, start) for epoch, start in body["epochs"]),
            quarantined=tuple((first, end) for first, end in body["quarantined"]),
            cut=None if body["cut"] is None else Cut(*body["cut"]),
        )


def load(disk: Disk, directory: str) -> Checkpoint | DamagedFileError | None:
    """The checkpoint; None where there is none; the error where it cannot be trusted.

    Raises where a newer Quire wrote it: to scan and replace it would be to take the log from that one.
    """
    path = f"{directory}/{NAME}"
    if not disk.exists(path):
        return None
    try:
        return Checkpoint.from_bytes(read_whole(disk, path, bytes_max=_BYTES_MAX), path=path)
    except DamagedFileError as error:
        if "version" in error.details:
            raise
        return error


def save(disk: Disk, directory: str, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint: after a crash the old or the new one is there, and after returning the new one."""
    stage(disk, f"{directory}/{NAME}", checkpoint.to_bytes())
    disk.sync_dir(directory)
