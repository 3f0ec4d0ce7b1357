"""One group commit: which files to sync, and what to write down once they are.

Made on the loop by `Log.begin_sync`, run on any thread, handed back on the loop to `Log.finish_sync`. It touches no
file that the log writes meanwhile, but for the sync itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from quire.errors import DiskFullError, DiskIoError
from quire.types import Buffer
from quire_broker.log import checkpoint as checkpoints
from quire_broker.log.checkpoint import Checkpoint
from quire_broker.log.framed import stage
from quire_broker.log.segment import Segment
from quire_broker.log.synced_mark import SyncedMark
from quire_broker.ports import Disk, DiskFile


@dataclass
class Bookkeeping:
    """What makes the next opening quick: written after the data, and never a condition of an acknowledgement."""

    checkpoint: Checkpoint
    files: Sequence[tuple[str, Callable[[], Buffer]]]
    """(path, content) of indexes, sidecars and the producers' snapshot."""
    stale: Sequence[str]
    """Files that the new ones replace."""
    sealed: Sequence[tuple[Segment, object]]
    """Segments whose indexes are among the files, with those indexes: by the end they may have got new ones."""
    log_bytes: int
    """How much was appended since the last one, when this one was planned."""
    written_bytes: int = 0


@dataclass
class SyncPlan:
    disk: Disk
    directory: str
    end_offset: int
    """Everything below is on the disk once `data_synced`."""
    files: Sequence[DiskFile]
    files_made: int
    """How many segments had been made when this was planned; their names are synced too."""
    sync_names: bool
    mark: SyncedMark
    bookkeeping: Bookkeeping | None
    data_synced: bool = field(default=False, init=False)
    books_kept: bool = field(default=False, init=False)
    error: DiskFullError | DiskIoError | None = field(default=None, init=False)

    def run(self) -> None:
        """Sync. Raises nothing that a disk may do: `Log.finish_sync` looks at what became of it."""
        try:
            for file in self.files:
                file.sync()
            if self.sync_names:
                self.disk.sync_dir(self.directory)
            self.data_synced = True
            self.mark.write(self.end_offset)
            if self.bookkeeping is not None:
                self._keep_books(self.bookkeeping)
                self.books_kept = True
        except (DiskFullError, DiskIoError) as error:
            self.error = error

    def _keep_books(self, books: Bookkeeping) -> None:
        for path, content in books.files:
            data = content()
            books.written_bytes += len(data)
            stage(self.disk, path, data)
        # The checkpoint says that these are there: their names must be on the disk before it.
        self.disk.sync_dir(self.directory)
        checkpoints.save(self.disk, self.directory, books.checkpoint)
        for path in books.stale:
            self.disk.remove(path)
