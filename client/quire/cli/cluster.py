"""Show brokers, controllers, and partitions that are not well; drain a broker."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

import typer

from quire.cli import draining, lag, options, tables
from quire.cli.text import count, one_line
from quire.cli.topic import brokers, trouble
from quire.cli.where import Where
from quire.errors import InvalidArgumentError, QuireError, UnknownTopicError

if TYPE_CHECKING:
    from quire import (
        Admin,
        BrokerDescription,
        ClusterDescription,
        FollowerLag,
        PartitionDescription,
        QuorumDescription,
        QuorumMember,
    )

TROUBLED_SHOWN_MAX: Final = 100
CALL_MS_MAX: Final = 10_000
LEADER_CONNECT_MS_MAX: Final = 500
LEADER_CALL_MS_MAX: Final = 2_000

app = options.app(None)
app.info.no_args_is_help = False
app.command()(draining.drain)
app.command()(draining.unregister)


@app.callback(
    invoke_without_command=True,
    help=f"""{__doc__}

    Exits with 1 only if nobody can tell, as without a majority of controllers; --json is for who wants to judge.
    """,
)
def cluster(
    context: typer.Context,
    as_json: options.AsJson = False,
    bootstrap: options.Bootstrap = options.DEFAULT,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
) -> None:
    if context.invoked_subcommand is not None:
        _refuse_what_would_be_lost(context)
        return
    where = Where(bootstrap, tls_ca, tls_cert)
    with where.admin(call_ms_max=CALL_MS_MAX) as admin:
        quorum = _by_its_leader(where, admin.describe_quorum())
        try:
            described = admin.describe_cluster()
            troubled = _troubled(admin, described)
            lags = _lags(admin, troubled)
        except QuireError as error:
            # Without a majority nobody can tell of the brokers, and the controllers are what one has to look at.
            _show_quorum_alone(quorum, error, as_json=as_json)
            raise
    if as_json:
        tables.show_json(_document(described, quorum, troubled, lags))
        return
    print(
        f"cluster {one_line(described.cluster_id)}: {count(len(described.brokers), 'broker')}, "
        f"{count(described.topics, 'topic')}, {count(described.partitions, 'partition')}"
    )
    print()
    tables.show(
        ["broker>", "node", "rack", "address", "state", "leads>", "replicas>", "epoch>"],
        [_broker_row(each) for each in described.brokers],
    )
    print()
    _show_quorum(quorum)
    print()
    _show_troubled(described, troubled)
    _show_lags(lags)


def _refuse_what_would_be_lost(context: typer.Context) -> None:
    """Options of `quire cluster` itself say nothing to its subcommands, which have their own."""
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise InvalidArgumentError(f"give {parameter.opts[0]} behind '{context.invoked_subcommand}'")


# --- brokers and controllers ---------------------------------------------------------------------------------------


def _broker_row(each: BrokerDescription) -> tuple[object, ...]:
    state = "fenced" if each.fenced else "active"
    if each.drain is not None:
        state += f", draining {each.drain}"
    address = _address(each)
    return (
        each.broker_id,
        each.node_id,
        each.rack or "-",
        address,
        state,
        each.leaderships,
        each.replicas,
        each.broker_epoch,
    )


def _address(each: BrokerDescription) -> str:
    addresses = [f"{listener.host}:{listener.port}" for listener in each.listeners if listener.protocol == "grpc"]
    return ", ".join(addresses) or "-"


def _show_quorum(quorum: QuorumDescription) -> None:
    rows = [_member_row(each, quorum) for each in quorum.members]
    tables.show(["controller", "address", "role", "behind>", ""], rows)


def _show_quorum_alone(quorum: QuorumDescription, problem: QuireError, *, as_json: bool) -> None:
    if as_json:
        tables.show_json({"problem": problem.message, "quorum": asdict(quorum)})
    else:
        print(f"cluster {one_line(quorum.cluster_id)}, as controller {one_line(quorum.member_id)} sees it:")
        print()
        _show_quorum(quorum)


def _by_its_leader(where: Where, quorum: QuorumDescription) -> QuorumDescription:
    """Only the leader knows how far the others are. Where it cannot be reached from here, what another one sees."""
    leader = next((each for each in quorum.members if each.member_id == quorum.leader_id), None)
    if leader is None or quorum.member_id == quorum.leader_id:
        return quorum
    try:
        at_leader = replace(where, bootstrap=leader.grpc_address, connect_ms_max=LEADER_CONNECT_MS_MAX)
        with at_leader.admin(call_ms_max=LEADER_CALL_MS_MAX) as admin:
            return admin.describe_quorum()
    except QuireError:
        return quorum


def _member_row(each: QuorumMember, quorum: QuorumDescription) -> tuple[object, ...]:
    is_asked = each.member_id == quorum.member_id
    if each.member_id == quorum.leader_id:
        role = "leader"
    elif is_asked:
        role = quorum.role
    else:
        role = "follower" if each.connected else "-"
    behind = "-" if each.match_index is None else f"{quorum.last_index - each.match_index:,}"
    problem = (
        "" if each.connected else f"not reached by {quorum.member_id}{f': {each.problem}' if each.problem else ''}"
    )
    if is_asked and quorum.disk_full:
        problem = "its disk is full"
    return each.member_id, each.grpc_address, role, behind, problem


# --- partitions that are not well ----------------------------------------------------------------------------------


def _troubled(admin: Admin, described: ClusterDescription) -> list[tuple[str, PartitionDescription]]:
    """As many as are shown; none are looked for where there are none."""
    found: list[tuple[str, PartitionDescription]] = []
    if not (described.leaderless or described.under_replicated or described.reassigning):
        return found
    for topic in admin.list_topics(include_internal=True):
        with suppress(UnknownTopicError):  # deleted a moment ago
            found += [(topic.name, each) for each in admin.describe_topic(topic.name).partitions if trouble(each)]
        if len(found) > TROUBLED_SHOWN_MAX:
            break
    return found


def _show_troubled(described: ClusterDescription, troubled: list[tuple[str, PartitionDescription]]) -> None:
    words = [
        f"{count(number, 'partition')} {what}"
        for number, what in (
            (described.leaderless, "without a leader"),
            (described.under_replicated, "with replicas that are not in sync"),
            (described.reassigning, "being moved"),
        )
        if number
    ]
    if not words:
        print("Every partition has a leader, and all its replicas are in sync.")
        return
    print(f"{'; '.join(words)}:")
    print()
    tables.show(
        ["topic", "partition>", "leader>", "epoch>", "replicas", "in sync", ""],
        [
            (
                name,
                each.partition,
                "-" if each.leader is None else each.leader,
                each.leader_epoch,
                brokers(each.replicas),
                brokers(each.isr),
                trouble(each),
            )
            for name, each in troubled[:TROUBLED_SHOWN_MAX]
        ],
    )
    if len(troubled) > TROUBLED_SHOWN_MAX:
        print("… and more; `quire topic describe` shows them topic by topic")


Lags = dict[tuple[str, int], tuple["FollowerLag", ...]]
"""By topic and partition."""


def _lags(admin: Admin, troubled: list[tuple[str, PartitionDescription]]) -> Lags:
    """How far the followers of the partitions that are not well are, as their leaders know it."""
    found: Lags = {}
    for name in {name: None for name, _ in troubled}:
        wanted = {each.partition for topic, each in troubled if topic == name}
        with suppress(UnknownTopicError):
            for partition, lags in admin.follower_lag(name).items():
                if partition in wanted:
                    found[name, partition] = lags
    return found


def _show_lags(lags: Lags) -> None:
    """By broker: of how many partitions it does not have everything, as far as that is known."""
    behind: dict[int, list[FollowerLag]] = {}
    for found in lags.values():
        for each in found:
            if each.records != 0:
                behind.setdefault(each.broker_id, []).append(each)
    if behind:
        print()
        tables.show(
            ["broker>", "behind in>", "by", ""], [_lag_row(broker, each) for broker, each in sorted(behind.items())]
        )


def _lag_row(broker_id: int, lags: list[FollowerLag]) -> tuple[object, ...]:
    following = [each for each in lags if each.records is not None]
    records = sum(each.records or 0 for each in following)
    sizes = [each.size_bytes for each in following]
    known = None if None in sizes else sum(each or 0 for each in sizes)
    away = len(lags) - len(following)
    return (
        broker_id,
        count(len(lags), "partition"),
        lag.amount(records, known) if following else "-",
        f"{away:,} not followed" if away else "",
    )


def _document(
    described: ClusterDescription,
    quorum: QuorumDescription,
    troubled: list[tuple[str, PartitionDescription]],
    lags: Lags,
) -> dict[str, Any]:
    return {
        **asdict(described),
        "quorum": asdict(quorum),
        "troubled": [
            {"topic": name, **asdict(each), "followers": lag.documents(lags.get((name, each.partition), ()))}
            for name, each in troubled
        ],
    }
