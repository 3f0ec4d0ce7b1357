"""The state's values as messages, and back.

Reading is strict about what would make two members differ, and raises ValueError for it. Whether values make sense is
not asked here: commands are checked by handlers, and what is in a snapshot was checked once.
"""

from __future__ import annotations

from google.protobuf.message import Message

from quire.v1 import durability_pb2, metadata_pb2, state_pb2
from quire_controller.state.model import (
    ActiveController,
    Broker,
    BrokerRemoved,
    CleanupPolicy,
    ClientKey,
    Cluster,
    DeletedTopic,
    DeletedTopicForgotten,
    DrainGoal,
    Flush,
    FlushMode,
    LastIsrReport,
    LeaderMove,
    Listener,
    ListenerProtocol,
    Partition,
    Partitioner,
    PartitionKey,
    ProducerIds,
    Published,
    Reassignment,
    Record,
    Session,
    Topic,
    TopicConfig,
)

# --- topics --------------------------------------------------------------------------------------------------------


def config_message(config: TopicConfig) -> metadata_pb2.TopicConfig:
    message = metadata_pb2.TopicConfig(
        partitioner=metadata_pb2.Partitioner.ValueType(config.partitioner),
        min_isr=config.min_isr,
        retention_ms=config.retention_ms,
        retention_bytes=config.retention_bytes,
        retention_segments=config.retention_segments,
        segment_bytes=config.segment_bytes,
        cleanup=metadata_pb2.CleanupPolicy.ValueType(config.cleanup),
        message_bytes_max=config.message_bytes_max,
        unclean_election=config.unclean_election,
    )
    if config.flush is not None:
        message.flush.CopyFrom(
            durability_pb2.FlushPolicy(
                mode=durability_pb2.FlushMode.ValueType(config.flush.mode), interval_ms=config.flush.interval_ms
            )
        )
    return message


def read_config(message: metadata_pb2.TopicConfig) -> TopicConfig:
    flush = message.flush
    return TopicConfig(
        partitioner=Partitioner(message.partitioner),
        flush=Flush(FlushMode(flush.mode), flush.interval_ms if flush.HasField("interval_ms") else None)
        if message.HasField("flush")
        else None,
        min_isr=message.min_isr if message.HasField("min_isr") else None,
        retention_ms=message.retention_ms if message.HasField("retention_ms") else None,
        retention_bytes=message.retention_bytes if message.HasField("retention_bytes") else None,
        retention_segments=message.retention_segments if message.HasField("retention_segments") else None,
        segment_bytes=message.segment_bytes if message.HasField("segment_bytes") else None,
        cleanup=CleanupPolicy(message.cleanup),
        message_bytes_max=message.message_bytes_max if message.HasField("message_bytes_max") else None,
        unclean_election=message.unclean_election if message.HasField("unclean_election") else None,
    )


def topic_message(topic: Topic) -> metadata_pb2.Topic:
    return metadata_pb2.Topic(
        topic_id=topic.topic_id,
        tenant=topic.tenant,
        name=topic.name,
        internal=topic.internal,
        partition_count=topic.partition_count,
        replication_factor=topic.replication_factor,
        config=config_message(topic.config),
    )


def _read_topic(message: metadata_pb2.Topic) -> Topic:
    return Topic(
        topic_id=message.topic_id,
        tenant=message.tenant,
        name=message.name,
        internal=message.internal,
        partition_count=message.partition_count,
        replication_factor=message.replication_factor,
        config=read_config(message.config),
    )


def _deleted_topic_message(deleted: DeletedTopic) -> metadata_pb2.DeletedTopic:
    return metadata_pb2.DeletedTopic(
        topic_id=deleted.topic_id,
        tenant=deleted.tenant,
        name=deleted.name,
        version=deleted.version,
        brokers=deleted.brokers,
    )


def _read_deleted_topic(message: metadata_pb2.DeletedTopic) -> DeletedTopic:
    return DeletedTopic(message.topic_id, message.tenant, message.name, message.version, tuple(message.brokers))


# --- partitions ----------------------------------------------------------------------------------------------------


def partition_message(partition: Partition) -> metadata_pb2.Partition:
    message = metadata_pb2.Partition(
        topic_id=partition.key.topic_id,
        partition=partition.key.partition,
        replicas=partition.replicas,
        isr=partition.isr,
        eligible=partition.eligible,
        leader=partition.leader or 0,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
    )
    message.reports.extend(map(_report_message, partition.reports))
    message.reserve.extend(map(_report_message, partition.reserve))
    if (move := partition.move) is not None:
        message.move.from_broker = move.from_broker
        message.move.from_broker_epoch = move.from_broker_epoch
        message.move.to_broker = move.to_broker
        message.move.version = move.version
    if (reassignment := partition.reassignment) is not None:
        message.reassignment.target.extend(reassignment.target)
        message.reassignment.original.extend(reassignment.original)
        message.reassignment.cancelled = reassignment.cancelled
    return message


def _read_partition(message: metadata_pb2.Partition) -> Partition:
    move, reassignment = message.move, message.reassignment
    return Partition(
        key=PartitionKey(message.topic_id, message.partition),
        replicas=tuple(message.replicas),
        isr=tuple(message.isr),
        eligible=tuple(message.eligible),
        leader=message.leader or None,
        leader_epoch=message.leader_epoch,
        partition_epoch=message.partition_epoch,
        reports=tuple(map(_read_report, message.reports)),
        reserve=tuple(map(_read_report, message.reserve)),
        move=LeaderMove(move.from_broker, move.from_broker_epoch, move.to_broker, move.version)
        if message.HasField("move")
        else None,
        reassignment=Reassignment(
            tuple(reassignment.target), tuple(reassignment.original), cancelled=reassignment.cancelled
        )
        if message.HasField("reassignment")
        else None,
    )


def _report_message(report: LastIsrReport) -> metadata_pb2.LastIsrReport:
    return metadata_pb2.LastIsrReport(
        broker_id=report.broker_id,
        broker_epoch=report.broker_epoch,
        last_epoch=report.last_epoch,
        log_end_offset=report.log_end_offset,
    )


def _read_report(message: metadata_pb2.LastIsrReport) -> LastIsrReport:
    return LastIsrReport(message.broker_id, message.broker_epoch, message.last_epoch, message.log_end_offset)


# --- brokers -------------------------------------------------------------------------------------------------------


def broker_message(broker: Broker) -> metadata_pb2.Broker:
    return metadata_pb2.Broker(
        broker_id=broker.broker_id,
        broker_epoch=broker.broker_epoch,
        incarnation_id=broker.incarnation_id,
        node_id=broker.node_id,
        rack=broker.rack,
        listeners=[
            metadata_pb2.Listener(
                name=listener.name,
                protocol=metadata_pb2.ListenerProtocol.ValueType(listener.protocol),
                host=listener.host,
                port=listener.port,
                tls=listener.tls,
            )
            for listener in broker.listeners
        ],
        features=metadata_pb2.FeatureRange(level_min=broker.level_min, level_max=broker.level_max),
        fenced=broker.fenced,
        drain=metadata_pb2.DrainGoal.ValueType(broker.drain),
        lease_ms=broker.lease_ms,
    )


def read_listener(message: metadata_pb2.Listener) -> Listener:
    return Listener(message.name, ListenerProtocol(message.protocol), message.host, message.port, message.tls)


def _read_broker(message: metadata_pb2.Broker) -> Broker:
    return Broker(
        broker_id=message.broker_id,
        broker_epoch=message.broker_epoch,
        incarnation_id=message.incarnation_id,
        node_id=message.node_id,
        rack=message.rack,
        listeners=tuple(map(read_listener, message.listeners)),
        level_min=message.features.level_min,
        level_max=message.features.level_max,
        fenced=message.fenced,
        drain=DrainGoal(message.drain),
        lease_ms=message.lease_ms,
    )


# --- records -------------------------------------------------------------------------------------------------------


def _cluster_message(cluster: Cluster) -> metadata_pb2.Cluster:
    return metadata_pb2.Cluster(cluster_id=cluster.cluster_id, feature_level=cluster.feature_level)


def _controller_message(controller: ActiveController) -> metadata_pb2.ActiveController:
    return metadata_pb2.ActiveController(term=controller.term, controller_id=controller.controller_id)


def metadata_record(record: Published) -> metadata_pb2.MetadataRecord:
    """A change as those who follow are told of it."""
    match record:
        case Partition():
            return metadata_pb2.MetadataRecord(partition=partition_message(record))
        case Topic():
            return metadata_pb2.MetadataRecord(topic=topic_message(record))
        case DeletedTopic():
            return metadata_pb2.MetadataRecord(topic_deleted=_deleted_topic_message(record))
        case DeletedTopicForgotten():
            return metadata_pb2.MetadataRecord(deleted_topic_forgotten=record.topic_id)
        case Broker():
            return metadata_pb2.MetadataRecord(broker=broker_message(record))
        case BrokerRemoved():
            return metadata_pb2.MetadataRecord(broker_removed=record.broker_id)
        case Cluster():
            return metadata_pb2.MetadataRecord(cluster=_cluster_message(record))
        case ActiveController():
            return metadata_pb2.MetadataRecord(active_controller=_controller_message(record))


Kept = Cluster | ActiveController | ProducerIds | Broker | Topic | DeletedTopic | Partition | Session
"""What a snapshot holds: things that are, not things that are no more."""


def state_record(record: Kept) -> state_pb2.StateRecord:
    """A value as a snapshot keeps it."""
    match record:
        case Partition():
            return state_pb2.StateRecord(partition=partition_message(record))
        case Session():
            return state_pb2.StateRecord(session=_session_message(record))
        case Topic():
            return state_pb2.StateRecord(topic=topic_message(record))
        case DeletedTopic():
            return state_pb2.StateRecord(deleted_topic=_deleted_topic_message(record))
        case Broker():
            return state_pb2.StateRecord(broker=broker_message(record))
        case Cluster():
            return state_pb2.StateRecord(cluster=_cluster_message(record))
        case ActiveController():
            return state_pb2.StateRecord(active_controller=_controller_message(record))
        case ProducerIds():
            return state_pb2.StateRecord(next_producer_id=record.next_producer_id)


def read_state_record(message: state_pb2.StateRecord) -> Record:
    """A value of a snapshot. Raises ValueError for a kind or an enum's value that this version does not know."""
    match message.WhichOneof("kind"):
        case "partition":
            return _read_partition(message.partition)
        case "session":
            return _read_session(message.session)
        case "topic":
            return _read_topic(message.topic)
        case "deleted_topic":
            return _read_deleted_topic(message.deleted_topic)
        case "broker":
            return _read_broker(message.broker)
        case "cluster":
            return Cluster(message.cluster.cluster_id, message.cluster.feature_level)
        case "active_controller":
            return ActiveController(message.active_controller.term, message.active_controller.controller_id)
        case "next_producer_id":
            return ProducerIds(message.next_producer_id)
        case None:
            raise ValueError("a record of no kind that this version knows")


def _session_message(session: Session) -> state_pb2.CommandSession:
    return state_pb2.CommandSession(
        client_id=session.key.client_id,
        client_incarnation=session.key.incarnation,
        index=session.index,
        results=[
            state_pb2.RememberedResult(sequence=sequence, result=result) for sequence, result in session.results
        ],
    )


def _read_session(message: state_pb2.CommandSession) -> Session:
    if not message.results:
        raise ValueError("a session of a proposer that proposed nothing")
    return Session(
        key=ClientKey(message.client_id, message.client_incarnation),
        index=message.index,
        results=tuple((result.sequence, result.result) for result in message.results),
    )


def has_unknown_fields(message: Message) -> bool:
    """Whether a newer version wrote more than this one understands. Takes what it does not understand away."""
    size = message.ByteSize()
    message.DiscardUnknownFields()
    return message.ByteSize() != size
