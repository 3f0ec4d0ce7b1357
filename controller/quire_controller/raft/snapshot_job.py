"""Takes snapshots while the member goes on: a piece now and then, the sync on another thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Protocol

from quire.errors import DiskFullError
from quire.link.network import Scheduler
from quire_controller.raft.core import Core
from quire_controller.raft.snapshot import SnapshotWriter

PAUSE_S: Final = 0.001
"""Between two pieces: a commit takes several turns of the loop, and is not to wait for a piece in each of them."""


class Background(Protocol):
    """Runs something that blocks, off the loop, and tells how it ended, on the loop."""

    def __call__(self, work: Callable[[], None], done: Callable[[BaseException | None], None], /) -> None: ...


class SnapshotJob:
    def __init__(self, core: Core, scheduler: Scheduler, background: Background, *, retry_ms: int) -> None:
        self._core = core
        self._scheduler = scheduler
        self._background = background
        self._retry_ms = retry_ms
        self._not_before = 0.0
        self._writer: SnapshotWriter | None = None
        self._is_stopped = False

    @property
    def is_running(self) -> bool:
        return self._writer is not None

    def begin_if_due(self, guarded: Callable[[Callable[[], None]], Callable[[], None]]) -> None:
        """Begin a snapshot if it is time for one. `guarded` makes a callback whose failure ends the member."""
        if self._writer is not None or self._is_stopped or not self._core.snapshot_is_due:
            return
        if self._scheduler.time() < self._not_before:
            return
        try:
            self._writer, pieces = self._core.begin_snapshot()
        except DiskFullError:
            self._give_up()
            return
        self._scheduler.call_soon(guarded(lambda: self._go_on(pieces, guarded)))

    def stop(self) -> None:
        self._is_stopped = True

    def _go_on(self, pieces: Iterator[bytes], guarded: Callable[[Callable[[], None]], Callable[[], None]]) -> None:
        writer = self._writer
        if self._is_stopped or writer is None:
            return
        try:
            piece = next(pieces, None)
            if piece is not None:
                writer.write(piece)
                self._scheduler.call_later(PAUSE_S, guarded(lambda: self._go_on(pieces, guarded)))
                return
            writer.finish()
        except DiskFullError:
            self._give_up()
            return

        def done(error: BaseException | None) -> None:
            guarded(lambda: self._on_synced(writer, error))()

        self._background(writer.sync, done)

    def _on_synced(self, writer: SnapshotWriter, error: BaseException | None) -> None:
        if self._is_stopped:
            return
        if error is not None:
            raise error
        try:
            self._core.finish_snapshot(writer)
        except DiskFullError:
            self._give_up()
        self._writer = None

    def _give_up(self) -> None:
        """No room: try again when there may be some."""
        writer, self._writer = self._writer, None
        self._not_before = self._scheduler.time() + self._retry_ms / 1000
        if writer is not None:
            writer.abandon()
