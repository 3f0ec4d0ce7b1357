"""What scripts/lib/docker.sh says where there is no Docker to be had, and which image scripts/lib/image.sh removes.

With commands that are made up.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
CLIENT: Final = 'case "$1 $2" in "version "*) exit 1 ;; *) exit 0 ;; esac'
"""Compose is there, and no daemon."""


class Machine:
    """On which nothing is but bash, what is linked here, and what is made up."""

    def __init__(self, folder: Path) -> None:
        self.commands = folder / "commands"
        self.commands.mkdir()
        self.folder = folder
        for name in ("bash", "cat", "flock", "mktemp", "rm", "seq", "setsid", "sleep", "tail", "timeout", "xargs"):
            (self.commands / name).symlink_to(f"/usr/bin/{name}")
        self.has("id", "echo 0")

    def has(self, name: str, script: str) -> None:
        path = self.commands / name
        path.write_text(f"#!/usr/bin/bash\n{script}\n")
        path.chmod(0o755)

    def run(self, code: str, **environ: str) -> tuple[int, list[str]]:
        """Its exit code, and what it says."""
        # What it would leave on this machine goes here.
        places = {"PID": "pid", "LOG": "log", "LOCK": "lock"}
        settings = "\n".join(f"QUIRE_DOCKERD_{name}={self.folder / file}" for name, file in places.items())
        script = f"set -euo pipefail\nsource {ROOT}/scripts/lib/docker.sh\n{settings}\n{code}"
        done = subprocess.run(
            ["/usr/bin/bash", "-c", script],
            env={"PATH": str(self.commands), **environ},
            capture_output=True,
            text=True,
            timeout=120,
        )
        return done.returncode, done.stderr.splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_one_that_answers_is_taken(machine: Machine) -> None:
    machine.has("docker", "exit 0")
    assert machine.run("ensure_docker") == (0, [])


def test_nothing_there_and_nothing_to_install_it_with(machine: Machine) -> None:
    code, said = machine.run("ensure_docker")
    assert code == 1
    assert said == ["No Docker: docker.io docker-compose is missing, and this system has no apt to install it with"]


def test_who_is_not_root_installs_nothing(machine: Machine) -> None:
    machine.has("id", "echo 1000")
    machine.has("apt-get", "echo installed >&2")
    code, said = machine.run("ensure_docker")
    assert code == 1
    assert len(said) == 1
    assert "who is not root" in said[0]


def test_who_is_not_root_starts_nothing(machine: Machine) -> None:
    machine.has("id", "echo 1000")
    machine.has("docker", CLIENT)
    machine.has("dockerd", "echo started >&2")
    assert machine.run("ensure_docker") == (
        1,
        ["No Docker: no daemon answers this user, who is not root and cannot start one"],
    )


def test_packages_that_cannot_be_installed(machine: Machine) -> None:
    machine.has("apt-get", 'echo "E: no such mirror" >&2; exit 100')
    code, said = machine.run("ensure_docker")
    assert code == 1
    assert said[0].startswith("Installing docker.io")
    assert said[1] == "E: no such mirror"
    assert said[-1].endswith("cannot be installed; see above")


def test_a_daemon_that_does_not_start(machine: Machine) -> None:
    machine.has("docker", CLIENT)
    machine.has("dockerd", 'echo "failed to mount overlay" >&2; exit 1')
    code, said = machine.run("ensure_docker")
    assert code == 1
    assert said[0] == "Starting the Docker daemon …"
    assert said[1] == "failed to mount overlay"
    assert said[2].startswith("No Docker: the daemon does not start")


def test_a_daemon_elsewhere_is_not_replaced_by_one_here(machine: Machine) -> None:
    machine.has("docker", CLIENT)
    machine.has("apt-get", "echo installed >&2")
    machine.has("dockerd", "echo started >&2")
    code, said = machine.run("ensure_docker", DOCKER_HOST="tcp://elsewhere:2375")
    assert (code, said) == (1, ["No Docker: nothing answers at DOCKER_HOST=tcp://elsewhere:2375"])


def test_only_the_daemon_that_was_started_here_is_stopped(machine: Machine) -> None:
    with subprocess.Popen(["/usr/bin/sleep", "100"]) as other:
        try:
            (machine.folder / "pid").write_text(f"{other.pid}\n")
            code, said = machine.run("stop_docker")
            assert (code, said) == (0, ["No Docker daemon is running that these scripts have started"])
            assert other.poll() is None
        finally:
            other.kill()


@pytest.mark.parametrize(("names", "removed"), [(0, ["sha256:before"]), (1, []), (2, [])])
def test_an_image_that_was_built_before_stays_where_it_has_another_name(
    machine: Machine, names: int, removed: list[str]
) -> None:
    gone = machine.folder / "gone"
    gone.touch()
    machine.has(
        "docker", f'case "$1 $2" in "image inspect") echo {names} ;; "image rm") echo "${{@:3}}" >>{gone} ;; esac'
    )
    assert machine.run(f"source {ROOT}/scripts/lib/image.sh\n_image_tidy sha256:before") == (0, [])
    assert gone.read_text().split() == removed
