"""The `quire` command. This module is its root: what holds for every verb."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from typing import Annotated, Final, NoReturn

import typer

from quire.cli import _plugins
from quire.errors import QuireError

EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130
EXIT_BROKEN_PIPE: Final = 141
"""What a shell reports of a program that SIGINT or SIGPIPE ended: 128 and the number of the signal."""


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"quire {version('quire')}")
        raise typer.Exit


def _root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """A replicated log and a work queue in one cluster."""


def build_app() -> typer.Typer:
    """The command with all its verbs, those of the installed server packages included."""
    # Plain help: importing what draws boxes would double the time until `quire --help` answers.
    app = typer.Typer(
        callback=_root,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    _plugins.register(app)
    return app


def main() -> NoReturn:
    """Run the verb that the command line names, and exit with a code that says how it went."""
    code: int | str | None
    try:
        try:
            build_app()(prog_name="quire")
            code = 0
        except QuireError as error:
            typer.echo(f"quire: {_one_line(error.message)} ({error.reason})", err=True)
            code = EXIT_FAILED
        except SystemExit as error:
            # Typer turns a broken pipe into exit code 1, which scripts would take for a failure of the verb.
            if isinstance(error.__context__, BrokenPipeError):
                raise error.__context__ from None
            code = error.code
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has left. The interpreter flushes once more at exit, and must not complain then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    sys.exit(code)


def _one_line(text: str) -> str:
    """The text without what could move the cursor: a message may come from a server that we should not trust."""
    return "".join(character if character.isprintable() else " " for character in text)
