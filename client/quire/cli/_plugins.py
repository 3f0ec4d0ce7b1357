"""Verbs of other packages: entry points of the group `quire.cli`, each naming a `typer.Typer`.

A plugin is imported only when its verb is called, so neither a slow nor a broken one is felt by the others. Its line
in `quire --help` is the first line of its module's docstring, read from the source.
"""

from __future__ import annotations

import ast
import tokenize
from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Final

import typer

GROUP: Final = "quire.cli"
EXIT_NOT_INSTALLED: Final = 2


def register(app: typer.Typer) -> None:
    """Give `app` a verb for each plugin that is installed. Of two with the same name the first found is taken."""
    plugins: dict[str, EntryPoint] = {}
    for plugin in entry_points(group=GROUP):
        plugins.setdefault(plugin.name, plugin)
    for name, plugin in sorted(plugins.items()):
        app.command(
            name,
            help=_summary(plugin.module),
            # All that follows the verb, --help too, is for the plugin's own parser.
            add_help_option=False,
            context_settings={
                "allow_extra_args": True,
                "allow_interspersed_args": False,
                "ignore_unknown_options": True,
            },
        )(_verb(plugin))


def _verb(plugin: EntryPoint) -> Callable[[typer.Context], None]:
    def run(context: typer.Context) -> None:
        try:
            app: typer.Typer = plugin.load()
        except ImportError as error:
            missing = (
                f"the module '{error.name}' is not installed" if isinstance(error, ModuleNotFoundError) else error
            )
            typer.echo(f"{context.command_path}: {missing}; run: pip install 'quire[server]'", err=True)
            raise typer.Exit(EXIT_NOT_INSTALLED) from error
        app(args=context.args, prog_name=context.command_path)

    return run


def _summary(module: str) -> str:
    """The first line of a module's docstring, without running any of its code or its packages'."""
    unknown = f"(from {module})"
    source = _source(module)
    if source is None:
        return unknown
    try:
        with tokenize.open(source) as file:
            for token in tokenize.generate_tokens(file.readline):
                if token.type == tokenize.STRING:
                    return str(ast.literal_eval(token.string)).strip().partition("\n")[0]
                if token.type not in (tokenize.COMMENT, tokenize.NL):
                    break
    except (OSError, SyntaxError, ValueError, tokenize.TokenError):
        pass  # a plugin that does not even parse is reported when its verb is called, not when another's is
    return unknown


def _source(module: str) -> Path | None:
    """Where a module's source is. Unlike importlib.util.find_spec, does not import the packages around it."""
    top, *rest = module.split(".")
    spec = PathFinder.find_spec(top)
    if spec is None:
        return None
    if not rest:
        return Path(spec.origin) if spec.origin else None
    for folder in spec.submodule_search_locations or ():
        for candidate in (Path(folder, *rest).with_suffix(".py"), Path(folder, *rest, "__init__.py")):
            if candidate.is_file():
                return candidate
    return None
