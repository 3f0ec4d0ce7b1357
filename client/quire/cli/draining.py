"""`quire cluster drain` and `unregister`: rid a broker of what it has, and forget it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli import lag, options
from quire.cli.text import count
from quire.cli.watching import Stage, until_done
from quire.cli.where import Where
from quire.errors import InvalidArgumentError, NotEnoughBrokersError, UnknownBrokerError

if TYPE_CHECKING:
    from quire import Admin, BrokerDescription, ClusterDescription, MoveDescription

Node = Annotated[
    str, typer.Argument(metavar="NODE", show_default=False, help="The broker, by the name of its node or by its id.")
]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Begin it, and do not wait for its end.")]


def drain(
    node: Node,
    leaders: Annotated[
        bool, typer.Option("--leaders", help="Of leaderships alone, as before a restart; it keeps its replicas.")
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Let it work as any other again.")] = False,
    no_wait: NoWait = False,
    as_json: options.AsJson = False,
    bootstrap: options.Bootstrap = options.DEFAULT,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
) -> None:
    """Move everything that a broker leads and has to others, and show how far that is.

    Ctrl-C ends the showing, not the draining: the same command shows it again.
    """
    if undo and leaders:
        raise InvalidArgumentError("--undo ends any drain; leave out --leaders")
    with Where(bootstrap, tls_ca, tls_cert).admin() as admin:
        broker = broker_named(admin.describe_cluster().brokers, node)
        if undo:
            _undo(admin, broker, as_json=as_json)
            return
        goal = "leaderships" if leaders else "replicas"
        is_known = broker.drain == goal
        if not is_known:
            admin.drain_broker(broker.broker_id, leaderships_only=leaders)
        if no_wait:
            _show_begun(broker, is_known=is_known, as_json=as_json)
            return
        if is_known and not as_json:
            print(f"{_name(broker)} is being drained already")
        until_done(
            f"draining {broker.node_id}",
            lambda: _stage(admin, broker, goal),
            as_json=as_json,
            interrupted=f"{_name(broker)} is drained further; {_how_to_go_on(broker, goal)}",
        )


def unregister(
    node: Node,
    bootstrap: options.Bootstrap = options.DEFAULT,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
) -> None:
    """Forget a broker that has been drained and stopped."""
    with Where(bootstrap, tls_ca, tls_cert).admin() as admin:
        broker = broker_named(admin.describe_cluster().brokers, node)
        if not broker.fenced:
            raise InvalidArgumentError(f"{_name(broker)} is running, and would register again; stop it first")
        admin.unregister_broker(broker.broker_id)
    print(f"{_name(broker)} is forgotten")


def broker_named(brokers: Iterable[BrokerDescription], name: str) -> BrokerDescription:
    """Raises UnknownBrokerError. A node may be named like another one's number: names come first."""
    known = list(brokers)
    for each in known:
        if each.node_id == name:
            return each
    for each in known:
        if str(each.broker_id) == name:
            return each
    nodes = ", ".join(f"{each.node_id} ({each.broker_id})" for each in known[:20])
    raise UnknownBrokerError(f"there is no broker '{name[:80]}'; there are {nodes or 'none'}", broker=name[:80])


# --- how far it is --------------------------------------------------------------------------------------------------


def _stage(admin: Admin, broker: BrokerDescription, goal: str) -> Stage:
    cluster = admin.describe_cluster()
    now = next((each for each in cluster.brokers if each.broker_id == broker.broker_id), None)
    if now is None:
        return _ended(UnknownBrokerError(f"{_name(broker)} was unregistered", broker_id=broker.broker_id))
    if now.drain != goal:
        return _ended(InvalidArgumentError(f"somebody has ended or changed the drain of {_name(broker)}"))
    replicas = now.replicas if goal == "replicas" else 0
    left = replicas + now.leaderships
    moves = _moves_of(admin, cluster, broker.broker_id) if replicas else []
    document = {
        "broker_id": broker.broker_id,
        "node_id": broker.node_id,
        "drain": goal,
        "leaderships": now.leaderships,
        "replicas": now.replicas,
        "moving": len(moves),
        "done": left == 0,
    }
    if left == 0:
        return Stage(0, _done_text(broker, goal), document, is_done=True)
    parts = [count(now.leaderships, "leadership")] if now.leaderships else []
    if replicas:
        parts.append(f"{count(replicas, 'replica')} ({count(len(moves), 'move')} under way)")
    text = f"{_name(broker)}: {' and '.join(parts)} to go"
    if not moves and (stuck := _stuck(cluster, broker)):
        return _ended(stuck)
    return Stage(left, text, document, note=_note(moves))


def _moves_of(admin: Admin, cluster: ClusterDescription, broker_id: int) -> list[MoveDescription]:
    """The moves that take replicas from it."""
    if not cluster.reassigning:
        return []
    return [each for each in admin.list_moves() if broker_id in each.original and broker_id not in each.target]


def _stuck(cluster: ClusterDescription, broker: BrokerDescription) -> NotEnoughBrokersError | None:
    """Whether no broker is left that could take anything."""
    others = [each for each in cluster.brokers if each.broker_id != broker.broker_id]
    if any(not each.fenced and each.drain is None for each in others):
        return None
    return NotEnoughBrokersError(
        f"no broker is left that could take what {_name(broker)} has; start one, or undo the drain with "
        f"`quire cluster drain {broker.node_id} --undo`"
    )


def _note(moves: Iterable[MoveDescription]) -> str:
    records = size_bytes = 0
    for move in moves:
        for each in move.followers:
            if each.broker_id in move.target and each.broker_id not in move.original:
                records += each.records or 0
                size_bytes += each.size_bytes or 0
    return f"{lag.amount(records, size_bytes)} to copy" if records else ""


# --- words ----------------------------------------------------------------------------------------------------------


def _name(broker: BrokerDescription) -> str:
    return f"{broker.node_id} (broker {broker.broker_id})"


def _done_text(broker: BrokerDescription, goal: str) -> str:
    if goal == "leaderships":
        return f"{_name(broker)} leads nothing any more; {_how_to_end(broker)}"
    return (
        f"{_name(broker)} has nothing any more: stop it, and `quire cluster unregister {broker.node_id}` makes the "
        "cluster forget it"
    )


def _how_to_end(broker: BrokerDescription) -> str:
    return f"`quire cluster drain {broker.node_id} --undo` lets it work again"


def _how_to_go_on(broker: BrokerDescription, goal: str) -> str:
    flag = " --leaders" if goal == "leaderships" else ""
    return f"`quire cluster drain {broker.node_id}{flag}` shows how far it is, --undo ends it"


def _show_begun(broker: BrokerDescription, *, is_known: bool, as_json: bool) -> None:
    if as_json:
        _show({"broker_id": broker.broker_id, "node_id": broker.node_id, "was_draining": is_known})
    else:
        print(f"{_name(broker)} is being drained{' already' if is_known else ''}")


def _undo(admin: Admin, broker: BrokerDescription, *, as_json: bool) -> None:
    admin.undrain(broker.broker_id)
    moving = len(_moves_of(admin, admin.describe_cluster(), broker.broker_id))
    if as_json:
        _show({"broker_id": broker.broker_id, "node_id": broker.node_id, "drain": None, "moving": moving})
    elif broker.drain is None:
        print(f"{_name(broker)} was not being drained")
    else:
        further = f"; {count(moving, 'move')} from it that had begun go{'es' if moving == 1 else ''} on"
        print(f"{_name(broker)} works as any other again{further if moving else ''}")


def _show(document: dict[str, Any]) -> None:
    from quire.cli import tables

    tables.show_json(document)


def _ended(problem: UnknownBrokerError | InvalidArgumentError | NotEnoughBrokersError) -> Stage:
    return Stage(0, "", {}, problem=problem)
