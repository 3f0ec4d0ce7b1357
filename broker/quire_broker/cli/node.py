"""Run one node of a cluster: a broker, a controller, or both."""

from __future__ import annotations

import os
from typing import Annotated, Final

import typer

from quire.cli.text import one_line
from quire.config import load
from quire.errors import InvalidArgumentError, QuireError
from quire.process import logs, run
from quire.process.exits import Exit
from quire.process.lock import DirectoryInUseError, DirectoryLock
from quire.process.run import Stop
from quire_broker.cli.supervisor import roles
from quire_broker.cli.supervisor.keeper import Role, Supervisor
from quire_broker.cli.supervisor.restarts import describe

DEFAULT_ROLES: Final = ",".join(roles.NAMES)

_log = logs.get("supervisor")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    help=f"""{__doc__}

    Takes the flags, variables and file of 'quire config', as in --config node.toml --node-id n1. Roles are processes
    of their own that are started again when they die; a wrong configuration ends all. Logs go to standard error.
    SIGTERM stops the broker, then the controller.
    """,
)
def node(
    context: typer.Context,
    wanted: Annotated[
        str, typer.Option("--roles", metavar="ROLES", help="What this node is: broker, controller or both.")
    ] = DEFAULT_ROLES,
) -> None:
    try:
        _run(wanted, context.args)
    except QuireError as error:
        # With the codes of the processes: whoever runs this in a container tells them apart.
        typer.echo(f"quire node: {one_line(error.message)} ({error.reason})", err=True)
        raise typer.Exit(_code(error)) from error


def _run(wanted: str, arguments: list[str]) -> None:
    names = _parse_roles(wanted)
    config = load(arguments, environ=os.environ).config
    # What each process would refuse, said once and before any is started.
    members = config.controller.quorum(config.node.id) if roles.CONTROLLER in names else ()
    broker_id = config.broker_id if roles.BROKER in names else None
    logs.configure(node=config.node.id, role="supervisor", level=config.log.level, format=config.log.format)
    _log.info("starting", pid=os.getpid(), broker_id=broker_id, members=", ".join(map(str, members)))
    kept = [roles.role(config, name, arguments, log=None) for name in names]
    with DirectoryLock(config.node.data_dir):
        run.run(lambda stop: _serve(kept, stop), stop_ms_max=roles.stop_ms_max(config))


async def _serve(kept: list[Role], stop: Stop) -> None:
    code = await Supervisor(kept, _Log()).run(stop)
    if code != Exit.OK:
        raise SystemExit(code)


def _code(error: QuireError) -> Exit:
    if isinstance(error, DirectoryInUseError):
        return Exit.DIRECTORY_IN_USE
    return Exit.MISCONFIGURED if isinstance(error, InvalidArgumentError) else Exit.FAILED


def _parse_roles(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in roles.NAMES:
            raise InvalidArgumentError(f"--roles {text[:80]!r}: there are {' and '.join(roles.NAMES)}")
    return sorted(set(names))


class _Log:
    """An observer that logs."""

    def ready(self, role: Role, *, took_ms: float) -> None:
        _log.info("ready", process=role.name, took_ms=round(took_ms))

    def ended(self, role: Role, *, code: int, restart_ms: float, words: str | None) -> None:
        _log.warning("ended, and is started again", process=role.name, how=describe(code), after_ms=round(restart_ms))

    def gave_up(self, role: Role, *, code: int, words: str | None) -> None:
        _log.error("ended, and starting it again is of no use", process=role.name, how=describe(code))

    def stopping(self, why: str) -> None:
        _log.info("stopping", why=why)

    def killed(self, role: Role) -> None:
        _log.warning("did not stop in time, and is killed", process=role.name)
