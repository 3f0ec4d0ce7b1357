"""`quire topic move`: give a partition other brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from quire.cli import lag, options
from quire.cli.draining import NoWait, broker_named
from quire.cli.watching import Stage, until_done
from quire.cli.where import Where
from quire.errors import InvalidArgumentError, ReassignmentInProgressError, UnknownPartitionError

if TYPE_CHECKING:
    from quire import Admin, FollowerLag, PartitionDescription


def move(
    topic: options.Topic,
    partition: Annotated[
        int, typer.Argument(metavar="PARTITION", min=0, show_default=False, help="Index of the partition.")
    ],
    replicas: Annotated[
        str | None,
        typer.Option(
            "--replicas",
            "-r",
            metavar="NODE,...",
            help="The brokers that are to have it, by node or id, the preferred leader first.",
            show_default=False,
        ),
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Turn a move back that is under way.")] = False,
    no_wait: NoWait = False,
    as_json: options.AsJson = False,
    bootstrap: options.Bootstrap = options.DEFAULT,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
) -> None:
    """Move a partition to other brokers, and show how far that is.

    Ctrl-C ends the showing, not the move: the same command shows it again.
    """
    if cancel == (replicas is not None):
        raise InvalidArgumentError("give --replicas with the brokers that are to have it, or --cancel")
    with Where(bootstrap, tls_ca, tls_cert).admin() as admin:
        now = _described(admin, topic, partition)
        if replicas is None:
            wanted = _turn_back(admin, topic, now)
        else:
            brokers = admin.describe_cluster().brokers
            wanted = tuple(broker_named(brokers, each.strip()).broker_id for each in replicas.split(","))
            _begin(admin, topic, now, wanted, as_json=as_json)
        if no_wait:
            if not as_json:
                print(f"{topic}/{partition} is on its way to {_ids(wanted)}")
            return
        until_done(
            f"moving {topic}/{partition}",
            lambda: _stage(admin, topic, partition, wanted),
            as_json=as_json,
            interrupted=f"{topic}/{partition} is moved further; the same command shows how far it is, --cancel turns "
            "it back",
        )


def _turn_back(admin: Admin, topic: str, now: PartitionDescription) -> tuple[int, ...]:
    """Where it will be."""
    if now.cancelled and now.target is not None:
        return now.target  # by the next look it may be over, and of such a move `original` is where it was to go
    admin.cancel_move(topic, now.partition)
    return _described(admin, topic, now.partition).target or now.original or now.replicas


def _begin(admin: Admin, topic: str, now: PartitionDescription, wanted: tuple[int, ...], *, as_json: bool) -> None:
    try:
        admin.move_partition(topic, now.partition, wanted)
    except ReassignmentInProgressError as error:
        moving = _described(admin, topic, now.partition)
        if moving.target is None or moving.target != wanted:
            to = "elsewhere" if moving.target is None else f"to {_ids(moving.target)}"
            raise ReassignmentInProgressError(
                f"{topic}/{now.partition} is being moved {to}; wait for that, or turn it back with --cancel"
            ) from error
        if not as_json:
            print(f"{topic}/{now.partition} is being moved there already")


def _stage(admin: Admin, topic: str, partition: int, wanted: tuple[int, ...]) -> Stage:
    name, now = f"{topic}/{partition}", _described(admin, topic, partition)
    document = {
        "topic": topic,
        "partition": partition,
        "replicas": list(now.replicas),
        "isr": list(now.isr),
        "leader": now.leader,
        "target": None if now.target is None else list(now.target),
        "done": now.target is None,
    }
    if now.target is None:
        if now.replicas != wanted:
            at = _ids(now.replicas)
            return Stage(
                0, "", {}, problem=ReassignmentInProgressError(f"{name} is at {at}: the move was turned back")
            )
        return Stage(0, f"{name} is at {_ids(now.replicas)}", {**document, "followers": []}, is_done=True)
    lags = admin.follower_lag(topic).get(partition, ())
    document["followers"] = lag.documents(lags)
    missing = [each for each in now.target if each not in now.isr]
    if now.cancelled or not missing:
        text = f"{name}: the old replicas are let go" if not now.cancelled else f"{name}: the move is turned back"
        return Stage(len(missing), text, document)
    return Stage(len(missing), f"{name}: {_ids(missing)} not in sync yet", document, note=_note(lags, missing))


def _note(lags: tuple[FollowerLag, ...], missing: list[int]) -> str:
    return "; ".join(f"{each.broker_id}: {lag.text(each)}" for each in lags if each.broker_id in missing)


def _described(admin: Admin, topic: str, partition: int) -> PartitionDescription:
    partitions = admin.describe_topic(topic).partitions
    if partition >= len(partitions):
        raise UnknownPartitionError(
            f"topic '{topic}' has no partition {partition}; it has {len(partitions)}, from 0 on",
            topic=topic,
            partition=partition,
        )
    return partitions[partition]


def _ids(ids: tuple[int, ...] | list[int]) -> str:
    return " ".join(map(str, ids))
