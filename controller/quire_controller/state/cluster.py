"""Commands about the cluster as a whole: its id, its leading controller, its feature level, its producer ids."""

from __future__ import annotations

from quire.errors import (
    ClusterIdMismatchError,
    InvalidArgumentError,
    LimitExceededError,
    NotControllerError,
    UnsupportedFeatureError,
    invariant,
)
from quire.v1 import commands_pb2
from quire_controller.state import limits
from quire_controller.state.checks import active_broker, check_name, check_range, text_of
from quire_controller.state.model import ActiveController, Cluster, ProducerIds
from quire_controller.state.results import Decision, done
from quire_controller.state.tables import Tables


def initialize_cluster(tables: Tables, index: int, body: commands_pb2.InitializeCluster) -> Decision:
    check_name("cluster id", body.cluster_id)
    if tables.cluster is not None:
        # Every member of a new quorum may try; the first one counts.
        check_cluster_id(tables, body.cluster_id)
        return done([])
    if not body.feature_level:
        raise InvalidArgumentError("feature levels begin with 1")
    _check_controllers(body.feature_level, body.controller_level_max)
    return done([Cluster(body.cluster_id, body.feature_level)])


def _check_controllers(level: int, controller_level_max: int) -> None:
    """Not by what this member can do: members of different versions must decide alike."""
    if level > controller_level_max:
        raise UnsupportedFeatureError(
            f"not every controller can work at feature level {level}; upgrade them first", level=level
        )
    # Whoever said that all controllers can was wrong about this one. To go on would be to guess.
    invariant(
        level <= limits.FEATURE_LEVEL_MAX,
        f"the cluster is to be at feature level {level}, this controller can work up to {limits.FEATURE_LEVEL_MAX}",
    )


def check_cluster_id(tables: Tables, cluster_id: str) -> None:
    known = tables.known_cluster().cluster_id
    if cluster_id != known:
        raise ClusterIdMismatchError(
            f"this is cluster '{known}', not {cluster_id[:80]!a}; correct addresses or data directory",
            cluster_id=known,
        )


def begin_term(tables: Tables, index: int, body: commands_pb2.BeginTerm) -> Decision:
    check_name("controller id", body.controller_id)
    if not body.term:
        raise InvalidArgumentError("terms begin with 1")
    controller = ActiveController(body.term, body.controller_id)
    if tables.controller == controller:
        return done([])
    if tables.controller is not None and body.term <= tables.controller.term:
        raise deposed(tables, body.term)
    return done([controller])


def deposed(tables: Tables, term: int) -> NotControllerError:
    """For what a controller decided in a term that is over, or that it never announced."""
    current = tables.controller or ActiveController(0, "")
    return NotControllerError(
        f"term {term} is not that of the leading controller, '{current.controller_id}' in term {current.term}",
        leader_id=current.controller_id,
        term=current.term,
    )


def raise_feature_level(tables: Tables, index: int, body: commands_pb2.RaiseFeatureLevel) -> Decision:
    cluster = tables.known_cluster()
    if body.level < cluster.feature_level:
        raise InvalidArgumentError(
            f"the feature level is {cluster.feature_level} and cannot be lowered to {body.level}"
        )
    if body.level == cluster.feature_level:
        return done([])
    behind = [broker_id for broker_id in sorted(tables.brokers) if tables.brokers[broker_id].level_max < body.level]
    if behind:
        raise UnsupportedFeatureError(
            f"brokers {text_of(behind[:10])} cannot work at feature level {body.level}; upgrade or unregister them",
            level=body.level,
            brokers=text_of(behind[:10]),
        )
    _check_controllers(body.level, body.controller_level_max)
    return done([Cluster(cluster.cluster_id, body.level)])


def allocate_producer_ids(tables: Tables, index: int, body: commands_pb2.AllocateProducerIds) -> Decision:
    active_broker(tables, body.broker_id, body.broker_epoch)
    check_range("count", body.count, 1, limits.PRODUCER_IDS_PER_BLOCK_MAX)
    first = tables.producer_ids.next_producer_id
    if first + body.count > limits.PRODUCER_ID_END:
        raise LimitExceededError("there are no producer ids left", what="producer ids", limit=limits.PRODUCER_ID_END)
    block = commands_pb2.ProducerIdBlock(first_producer_id=first, count=body.count)
    return Decision([ProducerIds(first + body.count)], commands_pb2.CommandResult(producer_ids=block))
