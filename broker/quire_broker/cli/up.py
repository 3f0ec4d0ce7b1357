"""Start a cluster of one node, or of several, on this machine."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from quire.cli.text import count
from quire.config import Config, LogFormat, load
from quire.errors import InvalidArgumentError, UnavailableError
from quire.link.network import Address
from quire.process import logs, run
from quire.process.exits import Exit
from quire.process.lock import DirectoryInUseError, DirectoryLock
from quire.process.run import Stop
from quire_broker.cli.supervisor import ports, roles
from quire_broker.cli.supervisor.keeper import Role, Supervisor
from quire_broker.cli.supervisor.logfile import LogFile
from quire_broker.cli.up_directory import LOGS, remembered, settle
from quire_broker.cli.up_plan import (
    LOOPBACK,
    NODES_ALLOWED,
    PORT_BASE,
    PORT_BASE_MAX,
    Node,
    arguments_of,
    bootstrap_of,
    nodes_of,
    settings_of,
)
from quire_broker.cli.up_screen import Screen

ATTEMPTS_MAX: Final = 3
"""A process that was never ready, and ended so often, does not do so by accident."""
PATIENCE_MS: Final = 10_000
"""After so long a person may want to know what is not ready yet."""
PORT_STEP: Final = 1_000

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    help=f"""{__doc__}

    Runs in the foreground until Ctrl-C. Each node is a broker and a controller, processes of their own that are
    started again when they die; everything listens on loopback. What they keep is there the next time.

    Further settings of 'quire config --docs' may be given as flags, as in --controller-lease-ms 5000.
    """,
)
def up(
    context: typer.Context,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes",
            metavar="N",
            help="How many nodes: 1, 3 or 5; by default what the directory is of, or 1.",
            show_default=False,
        ),
    ] = None,
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="Where all data is, and the logs.")
    ] = Path("quire-data"),
    port_base: Annotated[
        int | None,
        typer.Option(
            "--port-base",
            metavar="PORT",
            help="The first broker's port, from which the others are counted; by default what the directory had, or "
            f"{PORT_BASE}.",
            show_default=False,
        ),
    ] = None,
) -> None:
    if nodes is not None and nodes not in NODES_ALLOWED:
        raise InvalidArgumentError(f"--nodes {nodes}: 1, 3 and 5 nodes form a quorum of controllers")
    if port_base is not None and not 1 <= port_base <= PORT_BASE_MAX:
        raise InvalidArgumentError(f"--port-base {port_base}: it may be from 1 to {PORT_BASE_MAX}")
    with _locked(data_dir):
        cluster = settle(data_dir, nodes=nodes, port_base=port_base)
        planned = nodes_of(cluster, data_dir)
        lines = [_arguments(node, settings_of(node, planned, cluster), context.args) for node in planned]
        configs = [load(line, environ=os.environ).config for line in lines]
        _check_ports(planned, port_base=cluster.port_base)
        level = configs[0].log.level
        own_log = LogFile(data_dir / LOGS / "up.log")
        logs.configure(node="up", role="supervisor", level=level, format=LogFormat.TEXT, stream=own_log.writer())
        kept = [role for config, line in zip(configs, lines, strict=True) for role in _roles(config, line, data_dir)]
        run.run(
            lambda stop: _serve(planned, kept, data_dir, own_log, stop),
            stop_ms_max=roles.stop_ms_max(configs[0]),
        )


async def _serve(nodes: Sequence[Node], kept: Sequence[Role], data_dir: Path, own_log: LogFile, stop: Stop) -> None:
    screen = Screen(nodes, kept, data_dir=data_dir, output=sys.stdout)
    loop = asyncio.get_running_loop()
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
        # A terminal that is closed. Else nobody would be left to stop the children in order.
        loop.add_signal_handler(signal.SIGHUP, stop.request, "SIGHUP")
    patience = loop.call_later(PATIENCE_MS / 1000, screen.still_starting)
    screen.began()
    code = await Supervisor(kept, screen, attempts_max=ATTEMPTS_MAX, own_log=own_log).run(stop)
    patience.cancel()
    screen.stopped()
    if code != Exit.OK:
        raise SystemExit(code)


def _arguments(node: Node, settings: dict[str, str], given: Sequence[str]) -> list[str]:
    names = {argument.partition("=")[0] for argument in given}
    if "--log-format" not in names and "QUIRE_LOG_FORMAT" not in os.environ:
        given = ["--log-format=text", *given]  # into files that a person opens
    return arguments_of(settings, given)


def _roles(config: Config, arguments: Sequence[str], data_dir: Path) -> list[Role]:
    return [
        roles.role(config, name, arguments, log=LogFile(data_dir / LOGS / f"{config.node.id}-{name}.log"))
        for name in roles.NAMES
    ]


# --- what may stand in the way -------------------------------------------------------------------------------------


def _locked(data_dir: Path) -> DirectoryLock:
    try:
        return DirectoryLock(data_dir)
    except DirectoryInUseError as error:
        cluster = remembered(data_dir)
        there = "" if cluster is None else f" at {bootstrap_of(nodes_of(cluster, data_dir))}"
        raise DirectoryInUseError(
            f"'quire up' is running on {data_dir} already{there} ({error.details['holder']}); stop that one first "
            "with Ctrl-C, or give this one another --data-dir and --port-base",
            path=data_dir,
        ) from error


def _check_ports(nodes: Sequence[Node], *, port_base: int) -> None:
    """Here, since a child could only say that a port is taken, and not by whom."""
    taken = [
        f"port {port} ({use}) {why}"
        for node in nodes
        for port, use in node.ports.items()
        if (why := ports.obstacle(Address(LOOPBACK, port))) is not None
    ]
    if taken:
        more = f" and {count(len(taken) - 1, 'more port')}" if len(taken) > 1 else ""
        free = _free_base(nodes, port_base)
        other = f", such as {free}" if free else ""
        raise UnavailableError(f"{taken[0]}{more}; stop that, or give another --port-base{other}")


def _free_base(nodes: Sequence[Node], port_base: int) -> int | None:
    needed = [port - port_base for node in nodes for port in node.ports]
    for base in range(port_base + PORT_STEP, PORT_BASE_MAX, PORT_STEP):
        if all(ports.obstacle(Address(LOOPBACK, base + offset)) is None for offset in needed):
            return base
    return None
