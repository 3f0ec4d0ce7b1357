"""Watch something that the cluster does by itself until it is done: a bar on a terminal, lines elsewhere, or JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from quire.cli import progress
from quire.errors import QuireError

LOOK_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Stage:
    """How far it is."""

    left: int
    """How much there is to do, of whatever is counted."""
    text: str
    """What there is to say; lines are printed when it changes."""
    document: dict[str, Any]
    """The same for programs."""
    is_done: bool = False
    note: str = ""
    """What changes all the time: for a terminal only."""
    problem: QuireError | None = None
    """Why it will never be done."""


def until_done(what: str, look: Callable[[], Stage], *, as_json: bool, interrupted: str) -> None:
    """Raises the problem of a stage that has one. `interrupted` is said at Ctrl-C: the cluster does not stop then."""
    try:
        _watch(what, look, as_json=as_json)
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        raise


def _watch(what: str, look: Callable[[], Stage], *, as_json: bool) -> None:
    stage = look()
    if as_json or not sys.stderr.isatty():
        said = ""
        while not _is_over(stage):
            shown = _shown(stage, as_json=as_json)
            if shown != said:
                print(shown, flush=True)
                said = shown
            time.sleep(LOOK_S)
            stage = look()
    else:
        with progress.bar(what, stage.left) as advance:
            total = stage.left
            while not _is_over(stage):
                total = max(total, stage.left)
                advance(total - stage.left, stage.note or stage.text)
                time.sleep(LOOK_S)
                stage = look()
    # Behind the bar, which takes standard output for itself as long as it is there.
    print(_shown(stage, as_json=as_json), flush=True)


def _is_over(stage: Stage) -> bool:
    if stage.problem is not None:
        raise stage.problem
    return stage.is_done


def _shown(stage: Stage, *, as_json: bool) -> str:
    return json.dumps(stage.document, ensure_ascii=False) if as_json else stage.text
