"""The options that verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

VARIABLE: Final = "QUIRE_BOOTSTRAP"
DEFAULT: Final = "localhost:7400"
TLS_CA_VARIABLE: Final = "QUIRE_TLS_CA"
TLS_CERT_VARIABLE: Final = "QUIRE_TLS_CERT"

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        metavar="HOST:PORT,...",
        envvar=VARIABLE,
        show_envvar=False,
        help=f"Brokers to ask first; {VARIABLE} sets it, too.",
    ),
]
TlsCa = Annotated[
    Path | None,
    typer.Option(
        "--tls-ca",
        metavar="FILE",
        envvar=TLS_CA_VARIABLE,
        show_envvar=False,
        help=f"Speak TLS; brokers are to be of this CA. {TLS_CA_VARIABLE} sets it, too.",
        show_default=False,
    ),
]
TlsCert = Annotated[
    Path | None,
    typer.Option(
        "--tls-cert",
        metavar="FILE",
        envvar=TLS_CERT_VARIABLE,
        show_envvar=False,
        help=f"Your own key and certificate. {TLS_CERT_VARIABLE} sets it, too.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of tables for people.")]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", show_default=False, help="The topic.")]


def app(doc: str | None) -> typer.Typer:
    """A verb's own parser, plain as the root's."""
    return typer.Typer(
        help=doc,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
