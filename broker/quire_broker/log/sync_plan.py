"""One group commit: first the data, which writers wait for, then the books, which they do not.

Both are planned on the loop by `Log.begin_sync`, run on any thread, and taken in on the loop by `Log.finish_sync` and
`Log.finish_books`. They touch no file that the log writes meanwhile, but for the sync itself. While books are being
kept further data may be synced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from quire.disk.framed import stage
from quire.disk.port import Disk, DiskFile
from quire.errors import DiskFullError, DiskIoError, SyncFailedError
from quire.types import Buffer
from quire_broker.log import checkpoint as checkpoints
from quire_broker.log import snapshots
from quire_broker.log.checkpoint import Checkpoint
from quire_broker.log.segment import Segment
from quire_broker.log.synced_mark import SyncedMark


@dataclass
class SyncPlan:
    disk: Disk
    directory: str
    end_offset: int
    """Everything below is on the disk once `synced`."""
    files: Sequence[DiskFile]
    files_made: int
    """How many segments had been made when this was planned; their names are synced too."""
    sync_names: bool
    mark: SyncedMark
    books: Books | None
    """What to write down next, if it is time."""
    synced: bool = field(default=False, init=False)
    error: DiskFullError | DiskIoError | None = field(default=None, init=False)

    def run(self) -> None:
        """Sync. Raises nothing that a disk may do: `Log.finish_sync` looks at what became of it."""
        try:
            for file in self.files:
                file.sync()
            if self.sync_names:
                self.disk.sync_dir(self.directory)
        except (DiskFullError, DiskIoError) as error:
            self.error = error
        else:
            self._note_synced()

    @property
    def descriptor(self) -> int | None:
        """Of the one file that is to be synced, where that is all and the operating system may be told to.

        Who has had it synced calls `ran` in place of `run`.
        """
        return self.files[0].descriptor if len(self.files) == 1 and not self.sync_names else None

    def ran(self, why: str | None) -> None:
        """The file of `descriptor` was synced, or was not, and why."""
        if why is None:
            self._note_synced()
        else:
            self.error = SyncFailedError(f"cannot sync the log in {self.directory}: {why}", path=self.directory)

    def _note_synced(self) -> None:
        self.synced = True
        try:
            self.mark.write(self.end_offset)
        except (DiskFullError, DiskIoError) as error:
            self.error = error


@dataclass
class Books:
    """What makes the next opening quick: indexes, sidecars, the producers' snapshot, the checkpoint.

    To be run once everything below the checkpoint's recovery point is synced.
    """

    disk: Disk
    directory: str
    checkpoint: Checkpoint
    files: Sequence[tuple[str, Callable[[], Buffer]]]
    """(path, content)."""
    segment_bases: Sequence[int]
    """By these is decided which older snapshots stay."""
    sealed: Sequence[tuple[Segment, object]]
    """Segments whose indexes are among the files, with those indexes: by the end they may have got new ones."""
    log_bytes: int
    """How much was appended since the last time, when this was planned."""
    written_bytes: int = field(default=0, init=False)
    kept: bool = field(default=False, init=False)
    error: DiskFullError | DiskIoError | None = field(default=None, init=False)

    def run(self) -> None:
        """Write everything down. Raises nothing that a disk may do: `Log.finish_books` looks at what became of it."""
        try:
            for path, content in self.files:
                data = content()
                self.written_bytes += len(data)
                stage(self.disk, path, data)
            # The checkpoint says that these are there: their names must be on the disk before it.
            self.disk.sync_dir(self.directory)
            checkpoints.save(self.disk, self.directory, self.checkpoint)
            self.kept = True
            snapshots.remove_superfluous(self.disk, self.directory, self.segment_bases)
        except (DiskFullError, DiskIoError) as error:
            self.error = error
