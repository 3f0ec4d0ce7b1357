"""The newest changes, for those who follow. In memory only: after a restart followers get a snapshot."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from quire.v1 import metadata_pb2
from quire_controller.state import limits
from quire_controller.state.codec import metadata_record
from quire_controller.state.model import Published


class _Change:
    """What one command changed. The message is made when it is first asked for: often nobody does."""

    __slots__ = ("_message", "previous_version", "records", "version")

    def __init__(self, version: int, previous_version: int, records: Sequence[Published]) -> None:
        self.version = version
        self.previous_version = previous_version
        self.records = records
        self._message: metadata_pb2.MetadataDelta | None = None

    def message(self) -> metadata_pb2.MetadataDelta:
        if self._message is None:
            self._message = metadata_pb2.MetadataDelta(
                version=self.version,
                previous_version=self.previous_version,
                records=list(map(metadata_record, self.records)),
            )
        return self._message


class RecentChanges:
    def __init__(self, *, published_version: int = 0) -> None:
        self.published_version = published_version
        """The last version at which something changed that is published."""
        self._floor = published_version
        """Who has this version, or a newer one, can be told what came after it."""
        self._changes: deque[_Change] = deque()
        self._record_count = 0

    def add(self, version: int, records: Sequence[Published]) -> None:
        if not records:
            return
        self._changes.append(_Change(version, self.published_version, records))
        self._record_count += len(records)
        self.published_version = version
        while len(self._changes) > limits.RECENT_DELTAS_MAX or self._record_count > limits.RECENT_RECORDS_MAX:
            oldest = self._changes.popleft()
            self._record_count -= len(oldest.records)
            self._floor = oldest.version

    def since(self, version: int, *, current: int) -> list[metadata_pb2.MetadataDelta] | None:
        """What changed after `version`; the last one has the version `current`. None if that is not known any more.

        Nor for a version that lies in the future: whoever has it follows another cluster, or this one has lost some
        of its past. He must begin anew.
        """
        if not self._floor <= version <= current:
            return None
        deltas: list[metadata_pb2.MetadataDelta] = []
        for change in reversed(self._changes):
            if change.version <= version:
                break
            deltas.append(change.message())
        deltas.reverse()
        reached = deltas[-1].version if deltas else version
        if reached < current:
            deltas.append(metadata_pb2.MetadataDelta(version=current, previous_version=self.published_version))
        return deltas
