"""From the command line of a server process to its configuration and its log."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Final

from quire.config import Effective, documents, load
from quire.errors import QuireError
from quire.process import logs
from quire.process.exits import Exit

HELP_FLAGS: Final = ("--help", "-h")


def configured(role: str, arguments: Sequence[str]) -> Effective:
    """Read the configuration and set up logs as it says. Ends the process where there is nothing to go on with."""
    if any(flag in arguments for flag in HELP_FLAGS):
        print(
            f"Usage: python -m quire_{role} [--config FILE] [--SECTION-KEY VALUE]...\n\n{documents.as_text()}", end=""
        )
        sys.exit(Exit.OK)
    if "--version" in arguments:
        print(f"quire {version('quire')}")
        sys.exit(Exit.OK)
    try:
        effective = load(arguments, environ=os.environ)
    except QuireError as error:
        message = "".join(character if character.isprintable() else " " for character in error.message)
        print(f"quire_{role}: {message} ({error.reason})", file=sys.stderr)
        sys.exit(Exit.MISCONFIGURED)
    config = effective.config
    logs.configure(node=config.node.id, role=role, level=config.log.level, format=config.log.format)
    logs.get("process").info("starting", version=version("quire"), pid=os.getpid(), settings=effective.chosen())
    return effective
