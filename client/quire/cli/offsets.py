"""Show where partitions begin and end."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from quire.cli import options, places, tables
from quire.cli.where import Where
from quire.errors import InvalidArgumentError

app = options.app(None)


@app.command(
    help=f"""{__doc__}

    Latest is the offset that the next message gets. With --at also the first message of that moment or later.
    """
)
def offsets(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False, help="The topic.")],
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="TIME",
            help="A time such as 2026-01-31T12:00, or 15m, 2h, 3d ago.",
            show_default=False,
        ),
    ] = None,
    as_json: options.AsJson = False,
    bootstrap: options.Bootstrap = options.DEFAULT,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
) -> None:
    moment = None if at is None else _moment(at)
    where = Where(bootstrap, tls_ca, tls_cert)
    with where.admin() as admin:
        found = admin.offsets(topic)
    ats = {} if moment is None else _offsets_at(where, topic, moment, list(found))
    if as_json:
        tables.show_json(
            [
                {
                    "partition": partition,
                    "earliest": each.earliest,
                    "latest": each.latest,
                    **({} if moment is None else {"at": ats[partition]}),
                }
                for partition, each in sorted(found.items())
            ]
        )
        return
    columns = ["partition>", "earliest>", "latest>", "between>", *([] if moment is None else ["at>"])]
    rows = []
    for partition, each in sorted(found.items()):
        row: list[object] = [partition, f"{each.earliest:,}", f"{each.latest:,}", f"{each.latest - each.earliest:,}"]
        if moment is not None:
            offset = ats[partition]
            row.append("none so late" if offset is None else f"{offset:,}")
        rows.append(row)
    tables.show(columns, rows)


def _moment(text: str) -> int:
    try:
        return places.moment(text, now=datetime.now().astimezone())
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"--at {error.message}") from error


def _offsets_at(where: Where, topic: str, timestamp_ms: int, partitions: list[int]) -> dict[int, int | None]:
    with where.consumer() as consumer:
        found = consumer.offsets_at(timestamp_ms, [(topic, partition) for partition in partitions])
    return {partition.partition: offset for partition, offset in found.items()}
