"""What a member must not forget: whose directory this is, whether it votes, its term and its vote. File `member`.

Replaced as a whole and synced, name included, before anything is told to anyone that depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from quire.disk.framed import frame, read_whole, stage, unframe
from quire.disk.port import Disk
from quire.errors import DamagedFileError
from quire.v1 import raft_pb2

FILE: Final = "member"
KIND: Final = "raft-member"
VERSION: Final = 1
BYTES_MAX: Final = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class HardState:
    cluster_id: str
    member_id: str
    incarnation: int
    votes: bool = False
    term: int = 0
    voted_for: str = ""
    resetting_to: int | None = None
    """While the journal is being replaced by a snapshot: that snapshot's index."""


def write(disk: Disk, directory: str, state: HardState) -> None:
    message = raft_pb2.RaftHardState(
        cluster_id=state.cluster_id,
        member_id=state.member_id,
        incarnation=state.incarnation,
        votes=state.votes,
        term=state.term,
        voted_for=state.voted_for,
        resetting_to=state.resetting_to,
    )
    stage(disk, f"{directory}/{FILE}", frame(KIND, VERSION, message.SerializeToString(deterministic=True)))
    disk.sync_dir(directory)


def read(disk: Disk, directory: str) -> HardState | None:
    """None where there is none. Raises DamagedFileError."""
    path = f"{directory}/{FILE}"
    if not disk.exists(path):
        return None
    try:
        payload = unframe(read_whole(disk, path, bytes_max=BYTES_MAX), kind=KIND, version_max=VERSION, path=path)
        message = raft_pb2.RaftHardState.FromString(payload)
    except (DamagedFileError, DecodeError) as error:
        raise DamagedFileError(
            f"{path} is damaged ({error}): this member does not know its term and vote any more and could vote "
            "twice. If a majority of the others is well, move its directory away and start it again: it comes back "
            "without a vote, catches up, and is admitted by the leader",
            path=path,
        ) from error
    return HardState(
        cluster_id=message.cluster_id,
        member_id=message.member_id,
        incarnation=message.incarnation,
        votes=message.votes,
        term=message.term,
        voted_for=message.voted_for,
        resetting_to=message.resetting_to if message.HasField("resetting_to") else None,
    )
