"""A log on a real file system that is really full: a tmpfs of 2 MiB in a mount namespace of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.integration.log_on_small_disk import SCENARIOS

REPOSITORY: Final = Path(__file__).resolve().parents[2]
MOUNT_AND_RUN: Final = 'mount -t tmpfs -o size=2m quire-test "$1" && shift && exec "$@"'


@pytest.fixture(scope="module")
def unshare(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs another one where it may mount."""
    command = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    disk = tmp_path_factory.mktemp("try")
    tried = subprocess.run([*command, "sh", "-c", MOUNT_AND_RUN, "sh", disk, "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        pytest.fail(
            f"`{' '.join(command)}` cannot mount a tmpfs here, and without one no disk can be filled: "
            f"{tried.stderr.strip()}. Run as root, or allow unprivileged user namespaces."
        )
    return command


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_on_a_full_disk(scenario: str, unshare: list[str], tmp_path: Path) -> None:
    disk, elsewhere = tmp_path / "disk", tmp_path / "elsewhere"
    disk.mkdir()
    elsewhere.mkdir()
    python = [sys.executable, "-m", "tests.integration.log_on_small_disk", scenario, str(disk), str(elsewhere)]
    done = subprocess.run(
        [*unshare, "sh", "-c", MOUNT_AND_RUN, "sh", str(disk), *python],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
