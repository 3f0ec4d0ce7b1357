"""A data directory of `quire up` remembers which cluster it is of, so that `quire up` alone starts that one again."""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Final

from quire.errors import DamagedFileError, DiskIoError, InvalidArgumentError
from quire.process.lock import LOCK_FILE
from quire_broker.cli.up_plan import NODES_ALLOWED, PORT_BASE, PORT_BASE_MAX, Cluster

DESCRIPTION: Final = "up.json"
LOGS: Final = "logs"
FORMAT: Final = 1
_NEW: Final = f"{DESCRIPTION}.new"


def settle(data_dir: Path, *, nodes: int | None, port_base: int | None) -> Cluster:
    """Which cluster this directory is, or begins to be, of. To be called by who has locked it."""
    known = remembered(data_dir)
    if known is None:
        cluster = Cluster(
            cluster_id=f"up-{uuid.uuid4().hex[:12]}", nodes=nodes or 1, port_base=port_base or PORT_BASE
        )
    elif nodes not in (None, known.nodes):
        raise InvalidArgumentError(
            f"{data_dir} is of a cluster of {known.nodes}, and cannot become one of {nodes}: leave out --nodes, "
            "or give another --data-dir",
            path=data_dir,
        )
    else:
        cluster = Cluster(cluster_id=known.cluster_id, nodes=known.nodes, port_base=port_base or known.port_base)
    if cluster != known:
        _remember(cluster, data_dir)
    return cluster


def remembered(data_dir: Path) -> Cluster | None:
    """What the directory is of; None if it is new. Raises for one that is of something else."""
    path = data_dir / DESCRIPTION
    try:
        return _parse(path.read_bytes())
    except FileNotFoundError:
        _check_new(data_dir)
        return None
    except OSError as error:
        raise DiskIoError(f"{path} cannot be read: {error.strerror}", path=path) from error
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedFileError(
            f"{path} is not as 'quire up' wrote it; it says what {data_dir} is of, as "
            f'{{"format": {FORMAT}, "cluster_id": "up-…", "nodes": 1, "port_base": {PORT_BASE}}}',
            path=path,
        ) from error


def _parse(content: bytes) -> Cluster:
    body = json.loads(content)
    cluster = Cluster(cluster_id=body["cluster_id"], nodes=body["nodes"], port_base=body["port_base"])
    if body["format"] != FORMAT or cluster.nodes not in NODES_ALLOWED or not isinstance(cluster.cluster_id, str):
        raise ValueError
    if not 1 <= cluster.port_base <= PORT_BASE_MAX:
        raise ValueError
    return cluster


def _check_new(data_dir: Path) -> None:
    try:
        names = sorted(each.name for each in data_dir.iterdir())
    except OSError as error:
        raise DiskIoError(f"{data_dir} cannot be read: {error.strerror}", path=data_dir) from error
    foreign = [name for name in names if name not in (LOCK_FILE, _NEW, LOGS)]
    if foreign:
        raise InvalidArgumentError(
            f"{data_dir} is not empty ('{foreign[0]}' is there) and not of 'quire up': give another --data-dir",
            path=data_dir,
        )


def _remember(cluster: Cluster, data_dir: Path) -> None:
    """On the disk before any process starts: data of a cluster without a name would be of no use."""
    path, new = data_dir / DESCRIPTION, data_dir / _NEW
    try:
        with new.open("wb") as file:
            file.write(json.dumps({"format": FORMAT, **asdict(cluster)}, indent=2).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        directory = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise DiskIoError(f"{path} cannot be written: {error.strerror}", path=path) from error
