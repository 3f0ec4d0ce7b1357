"""Docker's command, and what belongs to one Compose project."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from tests.chaos.owned import Owner

PROJECT_LABEL: Final = "com.docker.compose.project"
SERVICE_LABEL: Final = "com.docker.compose.service"
CALL_S_MAX: Final = 120.0


async def run(
    *command: str, input: str = "", environ: Mapping[str, str] | None = None, timeout_s: float = CALL_S_MAX
) -> str:
    """What it prints. AssertionError, with all that it said, unless it ends with 0 in time."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=None if environ is None else {**os.environ, **environ},
    )
    try:
        async with asyncio.timeout(timeout_s):
            out, said = await process.communicate(input.encode())
    except TimeoutError:
        raise AssertionError(f"{' '.join(command)} did not end in {timeout_s:.0f} s") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    told = (out + said).decode(errors="replace")
    assert process.returncode == 0, f"{' '.join(command)} ended with {process.returncode}:\n{told}"
    return out.decode()


async def docker(*arguments: str) -> str:
    return (await run("docker", *arguments)).strip()


async def answers() -> bool:
    """Whether there is any Docker."""
    try:
        await docker("version")
    except (AssertionError, FileNotFoundError):
        return False
    return True


async def compose(project: str, file: str, *arguments: str, environ: Mapping[str, str]) -> str:
    """Compose of version 2 where there is one, else of version 1."""
    try:
        await docker("compose", "version")
    except AssertionError:
        command: Sequence[str] = ("docker-compose",)
    else:
        command = ("docker", "compose")
    return await run(*command, "-p", project, "-f", file, *arguments, environ=environ)


async def container_of(project: str, service: str) -> str | None:
    """None: there is none, running or not."""
    of_it = (f"label={PROJECT_LABEL}={project}", f"label={SERVICE_LABEL}={service}")
    found = (await docker("ps", "-aq", "--filter", of_it[0], "--filter", of_it[1])).split()
    assert len(found) <= 1, f"{project} has {len(found)} containers for {service}"
    return found[0] if found else None


async def remove(project: str) -> None:
    """All that Docker has of it, whatever state it is in."""
    of_it = f"label={PROJECT_LABEL}={project}"
    for listed, removal in (
        (("ps", "-aq"), ("rm", "--force", "--volumes")),
        (("network", "ls", "-q"), ("network", "rm")),
        (("volume", "ls", "-q"), ("volume", "rm", "--force")),
    ):
        if found := (await docker(*listed, "--filter", of_it)).split():
            await docker(*removal, *found)
    if await docker("images", "-q", image_of(project)):
        await docker("image", "rm", "--force", image_of(project))


async def remove_stale() -> list[str]:
    """What runs that are over have left behind. Gives their projects."""
    format_ = f'{{{{.Label "{PROJECT_LABEL}"}}}}'
    names: set[str] = set()
    for listed in (("ps", "-a"), ("network", "ls"), ("volume", "ls")):
        names.update((await docker(*listed, "--filter", f"label={PROJECT_LABEL}", "--format", format_)).split())
    tags = (await docker("images", "--format", "{{.Tag}}", image_of("*"))).split()
    stale = sorted(name for name in {*names, *tags} if (owner := Owner.of(name)) and owner.is_gone())
    for name in stale:
        await remove(name)
    return stale


def image_of(project: str) -> str:
    """Each run has one of its own: what somebody builds meanwhile, of another clone, is none of its business."""
    return f"quire:{project}"
