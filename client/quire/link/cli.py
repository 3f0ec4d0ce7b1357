"""Make certificates for the peer link: a node CA, and one for each node."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

import typer

from quire.link import certs
from quire.link.certs import Made, NodeSpec

app = typer.Typer(
    help=f"""{__doc__}

    Nodes talk to each other over mutual TLS and accept only certificates of their own cluster's CA. Each node needs
    ca.pem and its own <node>.pem. Keep ca.key where no node runs: who holds it can become any node.
    """,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Directory = Annotated[
    Path, typer.Option("--dir", metavar="DIR", help="Where the CA's and the nodes' files are.", show_default=False)
]
Nodes = Annotated[
    list[NodeSpec],
    typer.Option(
        "--node",
        metavar="NAME[=HOST,IP,...]",
        parser=NodeSpec.parse,
        help="A node, and host names or addresses under which other TLS clients reach it. May be repeated.",
        show_default=False,
    ),
]
Days = Annotated[int, typer.Option("--days", metavar="N", min=1, max=certs.CA_DAYS, help="How long they are valid.")]


@app.command()
def init(
    directory: Directory,
    cluster_id: Annotated[
        str,
        typer.Option("--cluster-id", metavar="ID", help="The cluster that the nodes belong to.", show_default=False),
    ],
    nodes: Nodes,
    days: Days = certs.NODE_DAYS,
) -> None:
    """Make a node CA and certificates for nodes. Overwrites nothing."""
    _show(certs.init(directory, cluster_id=cluster_id, nodes=nodes, days=days, now=_now()))
    typer.echo(f"Give each node {certs.CA_CERTIFICATE} and its own file. Keep {certs.CA_KEY} where no node runs.")


@app.command()
def add(
    directory: Directory,
    nodes: Nodes,
    days: Days = certs.NODE_DAYS,
    renew: Annotated[
        bool, typer.Option("--renew", help="Replace the key and certificate of nodes that have one.")
    ] = False,
) -> None:
    """Make certificates for further nodes, or renew them, with the CA in DIR."""
    _show(certs.add(directory, nodes=nodes, days=days, now=_now(), renew=renew))


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0)


def _show(made: list[Made]) -> None:
    for path, what, expires in made:
        until = "" if expires is None else f", valid until {expires:%Y-%m-%d}"
        typer.echo(f"{path}  {what}{until}")
