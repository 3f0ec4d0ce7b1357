"""Show the configuration that a process would have here, or what can be configured."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from quire.config import documents, toml
from quire.config.load import NOWHERE, Survey, survey
from quire.errors import InvalidArgumentError

EXIT_WRONG = 1

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    help=f"""{__doc__}

    Takes the flags that processes take (--node-id c1), and reads the same variables (QUIRE_NODE_ID) and file. Prints
    TOML that can be used as a file; exits with 1 if a process would refuse to start with it.
    """,
)
def show(
    context: typer.Context,
    file: Annotated[
        Path | None,
        typer.Option("--file", "--config", metavar="FILE", help="The file to read; else what QUIRE_CONFIG names."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    docs: Annotated[bool, typer.Option("--docs", help="Print what can be configured instead.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="With --docs: print docs/CONFIG.md.")] = False,
) -> None:
    if docs:
        if context.args:
            raise InvalidArgumentError(f"--docs documents all there is; leave out {context.args[0][:80]!r}")
        typer.echo(_docs(as_json=as_json, markdown=markdown), nl=False)
        return
    if markdown:
        raise InvalidArgumentError("--markdown is for --docs")
    found = survey(context.args, environ=os.environ, file=file)
    typer.echo(_as_json(found) if as_json else toml.render(found), nl=False)
    for problem in found.problems:
        typer.echo(f"quire config: {problem}", err=True)
    if found.problems:
        raise typer.Exit(EXIT_WRONG)


def _docs(*, as_json: bool, markdown: bool) -> str:
    if as_json:
        return json.dumps(documents.documents(), indent=2) + "\n"
    return documents.as_markdown() if markdown else documents.as_text()


def _as_json(found: Survey) -> str:
    sections: dict[str, dict[str, object]] = {}
    for setting in found.settings.values():
        value = None if setting.source is NOWHERE else setting.key.kind.show(setting.value)
        entry = {"value": value, "source": setting.source.kind, "name": setting.source.name}
        sections.setdefault(setting.key.section, {})[setting.key.name] = entry
    return json.dumps({"settings": sections, "problems": list(found.problems)}, indent=2) + "\n"
