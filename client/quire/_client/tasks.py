"""Tasks that run for as long as a client does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

_log = logging.getLogger("quire")


def start(coroutine: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
    """Its owner cancels and awaits it. Should it end by a bug, the log says so: nobody may be waiting for it then."""
    task = asyncio.create_task(coroutine, name=name)
    task.add_done_callback(_tell)
    return task


def _tell(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("%s ended, which is a bug in Quire", task.get_name(), exc_info=error)
