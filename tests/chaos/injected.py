"""Runs a node's process with a disk that may be slow and a wall clock that may jump.

    python -m tests.chaos.injected <control file> <module> <flags …>

The control file is a JSON object, looked at every few milliseconds: `sync_delay_ms` is added to each sync of a file,
`clock_ms` to the wall clock.
"""

from __future__ import annotations

import json
import runpy
import sys
import threading
import time
from pathlib import Path
from typing import Final

from quire.disk.os_disk import OsFile

LOOK_S: Final = 0.02


class Control:
    """What is to be injected now."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.sync_delay_ms = 0
        self.clock_ms = 0
        self.look()

    def look(self) -> None:
        try:
            told = json.loads(self._path.read_text())
        except FileNotFoundError:
            told = {}
        self.sync_delay_ms, self.clock_ms = told.get("sync_delay_ms", 0), told.get("clock_ms", 0)

    def look_for_ever(self) -> None:
        while True:
            time.sleep(LOOK_S)
            self.look()

    def install(self) -> None:
        threading.Thread(target=self.look_for_ever, name="control", daemon=True).start()
        sync, time_s, time_ns = OsFile.sync, time.time, time.time_ns

        def slow_sync(file: OsFile) -> None:
            if self.sync_delay_ms:
                time.sleep(self.sync_delay_ms / 1000)
            sync(file)

        OsFile.sync = slow_sync  # type: ignore[method-assign,assignment]  # that is what this module is for
        # Else the kernel is asked to sync it, which nobody can slow down from here.
        OsFile.descriptor = property(lambda file: None)  # type: ignore[assignment,method-assign]  # as above
        time.time = lambda: time_s() + self.clock_ms / 1000
        time.time_ns = lambda: time_ns() + self.clock_ms * 1_000_000


def tell(path: Path, **told: int) -> None:
    """Have another process, that was started with this file, do so."""
    aside = path.with_suffix(".new")
    aside.write_text(json.dumps(told))
    aside.replace(path)  # it never reads half of it


def main() -> None:
    control = Control(Path(sys.argv.pop(1)))
    module = sys.argv.pop(1)
    control.install()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
