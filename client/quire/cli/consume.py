"""Print messages of topics as they come."""

from __future__ import annotations

import os
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from quire.cli import message_format, options, places
from quire.cli.message_format import Show
from quire.cli.places import At, Earliest, Last, Latest, Place, Since
from quire.cli.where import Where
from quire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from quire import Consumer, TopicPartition

POLL_S: Final = 1.0
POLL_RECORDS_MAX: Final = 1_000

app = options.app(None)


@app.command(
    help=f"""{__doc__}

    Follows the topics until Ctrl-C, from now on unless --from says otherwise. With --until-end it stops at what is
    the end when it starts, and begins with the earliest.

    A value is a line. Where standard output is a terminal, what would do something to it is printed as \\x1b;
    into a file or a pipe goes every byte as it is.

    \b
    quire consume orders --from earliest
    quire consume orders --from -10 --until-end
    quire consume orders --from 15m -f '%d %k: %s\\n'
    quire consume orders -e --json | jq .value
    """
)
def consume(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", show_default=False, help="The topics.")],
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="PLACE", help=f"Where to begin: {places.HELP}.", show_default=False),
    ] = None,
    until_end: Annotated[bool, typer.Option("--until-end", "-e", help="Stop at the end instead of waiting.")] = False,
    count_max: Annotated[
        int | None, typer.Option("--max", "-c", metavar="N", min=1, help="Stop after so many.", show_default=False)
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option(
            "--partition", "-p", metavar="N", min=0, help="Only this partition; may be repeated.", show_default=False
        ),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option("--format", "-f", metavar="FORMAT", help=f"{message_format.HELP}.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a line.")] = False,
    null: Annotated[str, typer.Option("--null", metavar="TEXT", help="What to print for null.")] = "",
    uncommitted: Annotated[
        bool, typer.Option("--uncommitted", help="Show messages of transactions that are not committed, too.")
    ] = False,
    bootstrap: options.Bootstrap = options.DEFAULT,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
) -> None:
    show = _show(format=format, as_json=as_json, null=os.fsencode(null))
    place = _place(start, until_end=until_end)
    isolation = "uncommitted" if uncommitted else "committed"
    where = Where(bootstrap, tls_ca, tls_cert)
    with _consumer(where, topics, partition, place, isolation, fixed=until_end) as consumer:
        if isinstance(place, Latest) and sys.stderr.isatty() and sys.stdout.isatty():
            print("Waiting for new messages; --from earliest shows those that are there.", file=sys.stderr)
        ends = consumer.end_offsets(consumer.assignment()) if until_end else None
        _print_all(consumer, show, count_max=count_max, ends=ends)


def _show(*, format: str | None, as_json: bool, null: bytes) -> Show:
    if as_json and format is not None:
        raise InvalidArgumentError("--json and --format say different things")
    if as_json:
        return message_format.json_line
    show = message_format.value_line(null) if format is None else message_format.compiled(format, null=null)
    return message_format.for_eyes(show) if sys.stdout.isatty() else show


def _place(text: str | None, *, until_end: bool) -> Place:
    if text is None:
        return Earliest() if until_end else Latest()
    try:
        return places.place(text, now=datetime.now().astimezone())
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"--from {error.message}") from error


def _consumer(
    where: Where, topics: list[str], wanted: list[int] | None, place: Place, isolation: str, *, fixed: bool
) -> Consumer:
    """One that begins at `place`. Of whole topics, unless it must know all partitions from the beginning."""
    if wanted is None and not fixed and not isinstance(place, Last):
        return where.consumer(*topics, start=_start(place), isolation=isolation)
    from quire import TopicPartition

    if wanted is None:
        with where.admin() as admin:
            partitions = [
                TopicPartition(topic, each.partition)
                for topic in topics
                for each in admin.describe_topic(topic).partitions
            ]
    else:
        partitions = [TopicPartition(topic, number) for topic in topics for number in sorted(set(wanted))]
    consumer = where.consumer(isolation=isolation)
    try:
        consumer.assign(partitions, start="latest" if isinstance(place, Last) else _start(place))
        if isinstance(place, Last):
            _seek_back(consumer, partitions, place.records)
    except BaseException:
        consumer.close()
        raise
    return consumer


def _start(place: Place) -> Any:
    match place:
        case Earliest():
            return "earliest"
        case At(offset):
            return offset
        case Since(timestamp_ms):
            return ("timestamp", timestamp_ms)
        case _:
            return "latest"


def _seek_back(consumer: Consumer, partitions: list[TopicPartition], records: int) -> None:
    beginnings, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
    for each in partitions:
        consumer.seek(each, max(beginnings[each], ends[each] - records))


def _print_all(
    consumer: Consumer, show: Show, *, count_max: int | None, ends: dict[TopicPartition, int] | None
) -> None:
    from quire import TopicPartition

    out = sys.stdout.buffer
    left = POLL_RECORDS_MAX if count_max is None else count_max
    while left and (ends is None or any(consumer.position(each) < end for each, end in ends.items())):
        for message in consumer.poll(timeout_s=POLL_S, records_max=min(left, POLL_RECORDS_MAX)):
            # What came after the end that was meant is for the next reader.
            if ends is None or message.offset < ends[TopicPartition(message.topic, message.partition)]:
                out.write(show(message))
                left -= count_max is not None
        out.flush()
