"""The random id of a broker's data directory: file `incarnation`, written once, durably, before anybody hears of it.

Under the same id the controllers believe that what this broker once had on its disk is still there. So an id that
cannot be read is never made anew by itself: it would be a lie in one direction or the other.
"""

from __future__ import annotations

import json
import random
from typing import Any, Final

from quire.disk.framed import frame, read_whole, stage, unframe
from quire.disk.port import Disk
from quire.errors import ClusterIdMismatchError, DamagedFileError, InvalidArgumentError

FILE: Final = "incarnation"
KIND: Final = "broker-incarnation"
VERSION: Final = 1
BYTES_MAX: Final = 4096
ID_BYTES: Final = 16

_ADVICE: Final = (
    "If you have a copy of that file, put it back. If every partition of this broker has a replica in sync "
    "elsewhere, move the broker's directory away and start it again: it gets everything from the others"
)


def incarnation_id(
    disk: Disk, directory: str, *, cluster_id: str, broker_id: int, data: str, randomness: random.Random
) -> bytes:
    """The id of a broker's directory, which gets one if it is new. `data` is the folder in it that has the logs.

    Raises DamagedFileError where there is none though there are logs, or one that cannot be read;
    ClusterIdMismatchError or InvalidArgumentError if the directory is another cluster's or another broker's.
    """
    path = f"{directory}/{FILE}"
    if disk.exists(path):
        found = _read(disk, path)
        if found["cluster_id"] != cluster_id:
            raise ClusterIdMismatchError(
                f"{directory} holds data of cluster '{found['cluster_id']}', and this node is configured for "
                f"'{cluster_id}' (node.cluster_id)",
                cluster_id=found["cluster_id"],
            )
        if found["broker_id"] != broker_id:
            raise InvalidArgumentError(
                f"{directory} holds the data of broker {found['broker_id']}, and this is to be broker {broker_id} "
                "(broker.id, or the number at the end of node.id)",
                path=path,
            )
        # The process that wrote it may have died before it had made the name durable.
        disk.sync_dir(directory)
        return bytes.fromhex(found["incarnation_id"])
    if disk.names(f"{directory}/{data}"):
        raise DamagedFileError(
            f"{path} is missing, and there is data in {directory}/{data}: nobody can tell whether that is all that "
            f"this broker had. {_ADVICE}",
            path=path,
        )
    made = randomness.randbytes(ID_BYTES)
    content = {"broker_id": broker_id, "cluster_id": cluster_id, "incarnation_id": made.hex()}
    disk.make_dirs(directory)
    stage(disk, path, frame(KIND, VERSION, json.dumps(content, sort_keys=True).encode() + b"\n"))
    disk.sync_dir(directory)
    return made


def _read(disk: Disk, path: str) -> dict[str, Any]:
    try:
        payload = unframe(read_whole(disk, path, bytes_max=BYTES_MAX), kind=KIND, version_max=VERSION, path=path)
    except DamagedFileError as error:
        raise DamagedFileError(
            f"{error.message}: nobody can tell any more whether this disk is the one that the broker had. {_ADVICE}",
            path=path,
        ) from error
    content: dict[str, Any] = json.loads(payload)  # the checksum holds: it is what was written
    return content
