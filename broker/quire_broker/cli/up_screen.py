"""What `quire up` tells the person who typed it."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final, TextIO

from quire.cli.options import VARIABLE
from quire.cli.text import count, one_line
from quire.process import logs
from quire_broker.cli.supervisor.keeper import Role
from quire_broker.cli.supervisor.restarts import describe
from quire_broker.cli.up_directory import LOGS
from quire_broker.cli.up_plan import PORT_BASE, Node, bootstrap_of

WIDTH: Final = 80
_log = logs.get("supervisor")


class Screen:
    """An observer that prints. Nobody has to read it: a terminal that is gone is no reason to stop."""

    def __init__(self, nodes: Sequence[Node], roles: Sequence[Role], *, data_dir: Path, output: TextIO) -> None:
        self._nodes = nodes
        self._data_dir = data_dir
        self._output = output
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock()
        self._starting = {(role.node, role.name): role for role in roles}
        """Those that were never ready."""

    def began(self) -> None:
        self._say(f"Quire {version('quire')} · {count(len(self._nodes), 'node')} · data in {_folder(self._data_dir)}")
        plural = "" if len(self._nodes) == 1 else "s"
        doors = sorted(
            port for node in self._nodes for port in (node.broker_metrics_port, node.controller_metrics_port)
        )
        rows = {
            "clients connect to": bootstrap_of(self._nodes),
            f"controller{plural}": f"localhost:{_joined([node.controller_port for node in self._nodes])}",
            "metrics": f"localhost:{min(doors)} to {max(doors)}, at /metrics",
            "logs": _folder(self._data_dir / LOGS),
        }
        width = max(map(len, rows))
        for name, text in rows.items():
            self._say(f"  {name:{width}}  {text}")
        self._say("")

    def still_starting(self) -> None:
        """To be called when it has taken long."""
        for role in self._starting.values():
            self._say(f"still waiting for the {role.name} of {role.node}; its log is {_log_path(role)}")

    # -- as the supervisor's observer ------------------------------------------------------------------------------

    def ready(self, role: Role, *, took_ms: float) -> None:
        _log.info("ready", of=role.node, process=role.name, took_ms=round(took_ms))
        if self._starting.pop((role.node, role.name), None) is None:
            self._say(f"the {role.name} of {role.node} is back, after {took_ms / 1000:.1f} s")
        elif not self._starting:
            self._say(f"Ready after {self._clock() - self._began:.1f} s. To try it, in another terminal:")
            self._say("")
            first = self._nodes[0].broker_port
            address = "" if first == PORT_BASE else f" -b localhost:{first}"
            if len(self._nodes) > 1:
                # All of them: one is there to be killed, and whoever knows no other would take all for dead.
                address = ""
                self._say(f"  export {VARIABLE}={bootstrap_of(self._nodes)}")
            quire = as_typed(Path(sys.argv[0]))
            self._say(f"  {quire} topic create orders{address}")
            self._say(f"  echo hello | {quire} produce orders{address}")
            self._say(f"  {quire} consume orders --from earliest{address}")
            self._say("")
            self._say("Ctrl-C stops it.")

    def ended(self, role: Role, *, code: int, restart_ms: float, words: str | None) -> None:
        how = describe(code)
        _log.warning("ended", of=role.node, process=role.name, how=how, restart_ms=round(restart_ms), words=words)
        self._say(f"the {role.name} of {role.node} {how}; it is started again")
        self._say_words(words)

    def gave_up(self, role: Role, *, code: int, words: str | None) -> None:
        _log.error("given up", of=role.node, process=role.name, how=describe(code), words=words)
        self._say(f"the {role.name} of {role.node} {describe(code)}, and starting it again is of no use")
        self._say_words(words)
        self._say(f"  more is in {_log_path(role)}")

    def stopping(self, why: str) -> None:
        self._say("Stopping, brokers first …" if why != "SIGINT" else "\nStopping, brokers first …")

    def killed(self, role: Role) -> None:
        _log.warning("did not stop in time", of=role.node, process=role.name)
        self._say(f"the {role.name} of {role.node} did not stop in time, and was killed")

    def stopped(self) -> None:
        self._say(f"Stopped. All is in {_folder(self._data_dir)}; 'quire up' goes on from there.")

    def _say_words(self, words: str | None) -> None:
        if words:
            self._say(textwrap.fill(one_line(words), WIDTH, initial_indent="  ", subsequent_indent="  "))

    def _say(self, text: str) -> None:
        try:
            print(text, file=self._output, flush=True)
        except (OSError, ValueError):
            self._output = _nowhere()


def _nowhere() -> TextIO:
    """In place of an output that is gone; also for what the interpreter flushes at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return sys.stdout


def _joined(ports: Sequence[int]) -> str:
    return ", ".join(map(str, ports))


def as_typed(program: Path) -> str:
    """How to call this program from here: by its name only where that finds it."""
    found = shutil.which(program.name)
    if found is not None and Path(found).resolve() == program.resolve():
        return program.name
    try:
        return shlex.quote(str(program.resolve().relative_to(Path.cwd())))
    except ValueError:
        return shlex.quote(str(program))


def _folder(path: Path) -> str:
    return one_line(f"{path}/")


def _log_path(role: Role) -> str:
    return "" if role.log is None else one_line(str(role.log.path))
