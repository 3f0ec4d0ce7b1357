"""How far followers are, as tables and texts have it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from quire.cli import tables
from quire.cli.text import count, size

if TYPE_CHECKING:
    from quire import FollowerLag


def amount(records: int, size_bytes: int | None) -> str:
    """`1,204 records, 1.2 MiB`."""
    return count(records, "record") + ("" if size_bytes is None else f", {size(size_bytes)}")


def text(lag: FollowerLag) -> str:
    return "does not follow" if lag.records is None else amount(lag.records, lag.size_bytes)


def behind(lags: Mapping[int, Iterable[FollowerLag]]) -> list[tuple[int, FollowerLag]]:
    """(partition, follower) where a follower has not got everything."""
    return [(partition, lag) for partition, found in sorted(lags.items()) for lag in found if lag.records != 0]


def show(lags: Mapping[int, Iterable[FollowerLag]]) -> None:
    """Those of a topic that are behind; nothing, if nobody is."""
    if rows := [(partition, lag.broker_id, text(lag)) for partition, lag in behind(lags)]:
        print()
        tables.show(["partition>", "follower>", "behind"], rows)


def documents(found: Iterable[FollowerLag]) -> list[dict[str, Any]]:
    return [{"broker_id": each.broker_id, "records": each.records, "size_bytes": each.size_bytes} for each in found]
