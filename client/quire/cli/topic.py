"""Make, list, describe, change, move and delete topics."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli import lag, moving, options, tables
from quire.cli.text import count, duration, one_line, size
from quire.cli.where import Where
from quire.errors import InvalidArgumentError, QuireError

if TYPE_CHECKING:
    from quire import Admin, FollowerLag, PartitionDescription, PartitionOffsets, TopicDescription

app = options.app(__doc__)
app.command()(moving.move)

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="The topic.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        "-c",
        metavar="NAME=VALUE",
        help="A setting, as in retention_ms=3600000 or flush=os; may be repeated.",
        show_default=False,
    ),
]


@app.command()
def create(
    name: Name,
    partitions: Annotated[
        int, typer.Option("--partitions", "-n", metavar="N", min=1, help="How many partitions it has.")
    ] = 1,
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas",
            "-r",
            metavar="N",
            min=1,
            help="How many brokers have each; by default 3, or all if they are fewer.",
            show_default=False,
        ),
    ] = None,
    config: Settings = None,
    bootstrap: options.Bootstrap = options.DEFAULT,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
) -> None:
    """Make a topic."""
    with Where(bootstrap, tls_ca, tls_cert).admin() as admin:
        admin.create_topic(name, partitions=partitions, replication_factor=replicas or 0, config=settings_of(config))
        made = admin.describe_topic(name)
    print(f"made topic {name}: {_shape(len(made.partitions), made.replication_factor)}")


@app.command("list")
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Quire's own topics, too.")] = False,
    as_json: options.AsJson = False,
    bootstrap: options.Bootstrap = options.DEFAULT,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
) -> None:
    """List topics."""
    with Where(bootstrap, tls_ca, tls_cert).admin() as admin:
        topics = admin.list_topics(include_internal=internal)
    if as_json:
        tables.show_json([{**asdict(topic), "topic_id": str(topic.topic_id)} for topic in topics])
    elif topics:
        rows = [(each.name, each.partitions, each.replication_factor, _config(each.config)) for each in topics]
        tables.show(["topic", "partitions>", "replicas>", "settings"], rows)
    else:
        print("There are no topics; `quire topic create NAME` makes one.", file=sys.stderr)


@app.command()
def describe(
    name: Name,
    as_json: options.AsJson = False,
    bootstrap: options.Bootstrap = options.DEFAULT,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
) -> None:
    """Show a topic's settings, and who has and leads its partitions."""
    with Where(bootstrap, tls_ca, tls_cert).admin() as admin:
        topic = admin.describe_topic(name)
        offsets = _offsets(admin, topic)
        lags = admin.follower_lag(name) if topic.replication_factor > 1 or _is_moving(topic) else {}
    if as_json:
        tables.show_json(_document(topic, offsets, lags))
        return
    print(f"topic {one_line(topic.name)}: {_shape(len(topic.partitions), topic.replication_factor)}")
    print(f"  id        {topic.topic_id}")
    for n, (setting, value) in enumerate(topic.config.items()):
        print(f"  {'settings' if n == 0 else '':8}  {setting}={value}{_meaning(setting, value)}")
    if not topic.config:
        print("  settings  all have their defaults")
    print()
    tables.show(
        ["partition>", "leader>", "epoch>", "replicas", "in sync", "earliest>", "latest>", ""],
        [_row(each, offsets.get(each.partition)) for each in topic.partitions],
    )
    lag.show(lags)


@app.command()
def alter(
    name: Name,
    config: Settings = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", "-u", metavar="NAME", help="Give a setting its default back.", show_default=False),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            "-n",
            metavar="N",
            min=1,
            help="Add partitions, so that there are N. Keys go to other partitions by that.",
            show_default=False,
        ),
    ] = None,
    bootstrap: options.Bootstrap = options.DEFAULT,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
) -> None:
    """Change a topic's settings, or give it more partitions."""
    settings = settings_of(config)
    if not (settings or unset or partitions):
        raise InvalidArgumentError("nothing is to be changed: give --config, --unset or --partitions")
    with Where(bootstrap, tls_ca, tls_cert).admin() as admin:
        if settings or unset:
            admin.alter_topic(name, settings, unset or ())
        if partitions:
            admin.add_partitions(name, partitions)
        topic = admin.describe_topic(name)
    shape = _shape(len(topic.partitions), topic.replication_factor)
    print(f"topic {name}: {shape}; {_config(topic.config) or 'all settings have their defaults'}")


@app.command()
def delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: options.Bootstrap = options.DEFAULT,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
) -> None:
    """Delete a topic and all its messages. Asks first."""
    with Where(bootstrap, tls_ca, tls_cert).admin() as admin:
        if not yes:
            if not sys.stdin.isatty():
                raise InvalidArgumentError(f"topic {name} would be deleted with all its messages; --yes means it")
            topic = admin.describe_topic(name)
            shape = _shape(len(topic.partitions), topic.replication_factor)
            typer.confirm(f"Delete topic {name} ({shape}) with all its messages?", abort=True, err=True)
        admin.delete_topic(name)
    print(f"deleted topic {name}")


# --- words ---------------------------------------------------------------------------------------------------------


def settings_of(given: Iterable[str] | None) -> dict[str, str]:
    settings: dict[str, str] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise InvalidArgumentError(f"--config {text[:80]!r} is not NAME=VALUE")
        if name in settings:
            raise InvalidArgumentError(f"--config {name} is there more than once")
        settings[name] = value
    return settings


def _shape(partitions: int, replicas: int) -> str:
    return f"{count(partitions, 'partition')}, {count(replicas, 'replica')} each"


def _config(config: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in config.items())


def _meaning(name: str, value: object) -> str:
    """What a large number means to a person."""
    if isinstance(value, bool) or not isinstance(value, int):
        return ""
    if value < 0:
        return " (without limit)" if name.startswith("retention_") else ""
    if name.endswith("_ms"):
        return f" ({duration(value)})"
    return f" ({size(value)})" if name.endswith(("_bytes", "_bytes_max")) else ""


def _row(each: PartitionDescription, offsets: PartitionOffsets | None) -> tuple[object, ...]:
    return (
        each.partition,
        "-" if each.leader is None else each.leader,
        each.leader_epoch,
        brokers(each.replicas),
        brokers(each.isr),
        "-" if offsets is None else f"{offsets.earliest:,}",
        "-" if offsets is None else f"{offsets.latest:,}",
        trouble(each),
    )


def brokers(ids: Iterable[int]) -> str:
    return " ".join(map(str, ids)) or "-"


def trouble(each: PartitionDescription) -> str:
    """What is not as it should be, or is on its way."""
    words = []
    if each.leader is None:
        words.append("offline")
    missing = sorted(set(each.replicas) - set(each.isr))
    if missing:
        words.append(f"not in sync: {brokers(missing)}")
    if each.target is not None:
        words.append(f"moving to {brokers(each.target)}")
    return ", ".join(words)


def _offsets(admin: Admin, topic: TopicDescription) -> dict[int, PartitionOffsets]:
    """None where some leader does not answer: the rest is worth being shown all the same."""
    if any(each.leader is None for each in topic.partitions):
        return {}  # nobody knows them, and it would be waited for somebody who does
    try:
        return admin.offsets(topic.name)
    except QuireError as error:
        print(f"quire topic describe: no offsets: {one_line(error.message)}", file=sys.stderr)
        return {}


def _is_moving(topic: TopicDescription) -> bool:
    return any(each.target is not None for each in topic.partitions)


def _document(
    topic: TopicDescription,
    offsets: Mapping[int, PartitionOffsets],
    lags: Mapping[int, Iterable[FollowerLag]],
) -> dict[str, Any]:
    document = {**asdict(topic), "topic_id": str(topic.topic_id)}
    for each in document["partitions"]:
        found = offsets.get(each["partition"])
        each["earliest"] = None if found is None else found.earliest
        each["latest"] = None if found is None else found.latest
        each["followers"] = lag.documents(lags.get(each["partition"], ()))
    return document
