"""A controller's state to try commands on: what the tests of the state machine share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from quire.errors import QuireError
from quire.v1 import commands_pb2 as c
from quire.v1 import errors_pb2, metadata_pb2
from quire_controller.state.machine import ControllerState
from quire_controller.state.model import Broker, Partition, PartitionKey
from quire_controller.state.results import error_of

CLUSTER_ID: Final = "c1"
TENANT: Final = "default"
LEASE_MS: Final = 3_000
INITIALIZATION: Final = c.InitializeCluster(cluster_id=CLUSTER_ID, feature_level=1, controller_level_max=1)
LogEnds = dict[PartitionKey, tuple[int, int]]
"""(last epoch, log end) of partitions."""


def uuid_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


def command_bytes(*, client: str = "", sequence: int = 0, level: int = 0, **body: Any) -> bytes:
    """A serialized command with the one body that is named."""
    command = c.Command(feature_level=level, **body)
    if client:
        command.client_id, command.client_incarnation, command.sequence = client, uuid_of(7), sequence
    return command.SerializeToString(deterministic=True)


def registration(
    broker_id: int,
    *,
    disk: int | None = None,
    rack: str = "",
    ends: LogEnds | None = None,
    **changes: Any,
) -> c.RegisterBroker:
    body = c.RegisterBroker(
        cluster_id=CLUSTER_ID,
        broker_id=broker_id,
        incarnation_id=uuid_of(disk or 1000 + broker_id),
        rack=rack,
        listeners=[
            metadata_pb2.Listener(
                name="clients", protocol=metadata_pb2.LISTENER_PROTOCOL_GRPC, host=f"b{broker_id}", port=7400
            )
        ],
        features=metadata_pb2.FeatureRange(level_min=1, level_max=1),
        log_ends=[
            c.LogEnd(topic_id=key.topic_id, partition=key.partition, last_epoch=epoch, log_end_offset=end)
            for key, (epoch, end) in (ends or {}).items()
        ],
    )
    body.MergeFrom(c.RegisterBroker(**changes))
    return body


class Controller:
    """A state machine, and the words to talk to it."""

    def __init__(self, brokers: Iterable[int] = (), *, racks: dict[int, str] | None = None) -> None:
        self.state = ControllerState()
        self.index = 0
        self.commands: list[tuple[int, bytes]] = []
        self.ok(initialize_cluster=INITIALIZATION)
        self.ok(begin_term=c.BeginTerm(term=1, controller_id="n1"))
        for broker_id in brokers:
            self.register(broker_id, rack=(racks or {}).get(broker_id, ""))
            self.unfence(broker_id)

    # -- commands --------------------------------------------------------------------------------------------------

    def apply(self, data: bytes) -> bytes:
        self.index += 1
        self.commands.append((self.index, data))
        return self.state.apply(self.index, data)

    def run(self, *, client: str = "", sequence: int = 0, level: int = 0, **body: Any) -> c.CommandResult:
        data = command_bytes(client=client, sequence=sequence, level=level, **body)
        return c.CommandResult.FromString(self.apply(data))

    def ok(self, **body: Any) -> c.CommandResult:
        result = self.run(**body)
        assert result.WhichOneof("outcome") != "error", result.error
        assert result.index == self.index
        return result

    def refused(self, **body: Any) -> QuireError:
        """The error, after checking that it changed nothing."""
        before = everything(self.state)
        error = error_of(self.run(**body))
        assert error is not None
        assert everything(self.state) == before
        return error

    def outcomes(self, **body: Any) -> list[str]:
        """For each partition of the command the reason why it was refused, or 'OK'."""
        names = [errors_pb2.ErrorReason.Name(each.error) for each in self.ok(**body).partitions.outcomes]
        return [name.removeprefix("ERROR_REASON_").replace("UNSPECIFIED", "OK") for name in names]

    # -- brokers ---------------------------------------------------------------------------------------------------

    def register(
        self, broker_id: int, *, disk: int | None = None, rack: str = "", ends: LogEnds | None = None
    ) -> int:
        result = self.ok(register_broker=registration(broker_id, disk=disk, rack=rack, ends=ends))
        return result.broker_registered.broker_epoch

    def unfence(self, broker_id: int) -> None:
        self.ok(
            unfence_broker=c.UnfenceBroker(broker_id=broker_id, broker_epoch=self.epoch(broker_id), lease_ms=LEASE_MS)
        )

    def fence(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            self.ok(
                fence_broker=c.FenceBroker(
                    broker_id=broker_id, broker_epoch=self.epoch(broker_id), cause=c.FENCE_CAUSE_CRASHED
                )
            )

    def restart(self, broker_id: int, *, disk: int | None = None, ends: LogEnds | None = None) -> None:
        self.register(broker_id, disk=disk, ends=ends)
        self.unfence(broker_id)

    def drain(self, broker_id: int, goal: metadata_pb2.DrainGoal.ValueType) -> None:
        self.ok(drain_broker=c.DrainBroker(broker_id=broker_id, goal=goal))

    def broker(self, broker_id: int) -> Broker:
        return self.state.brokers[broker_id]

    def epoch(self, broker_id: int) -> int:
        return self.broker(broker_id).broker_epoch

    # -- topics ----------------------------------------------------------------------------------------------------

    def topic(
        self,
        name: str = "orders",
        *assignments: Sequence[int],
        number: int = 1,
        min_isr: int | None = None,
        unclean: bool | None = None,
        **body: Any,
    ) -> bytes:
        """Make a topic, on certain brokers or with so many partitions; give its id."""
        config = metadata_pb2.TopicConfig(min_isr=min_isr, unclean_election=unclean)
        self.ok(
            create_topic=c.CreateTopic(
                topic_id=uuid_of(number),
                tenant=TENANT,
                name=name,
                config=config,
                assignments=[c.ReplicaAssignment(replicas=replicas) for replicas in assignments],
                **body,
            )
        )
        return uuid_of(number)

    def partition(self, key: PartitionKey) -> Partition:
        return self.state.partitions[key]

    def at(self, key: PartitionKey, *, later: int = 0) -> c.PartitionAt:
        return c.PartitionAt(
            topic_id=key.topic_id,
            partition=key.partition,
            partition_epoch=self.partition(key).partition_epoch + later,
        )

    def isr_change(self, key: PartitionKey, members: Iterable[int], **changes: Any) -> c.IsrChange:
        partition = self.partition(key)
        values: dict[str, Any] = {
            "topic_id": key.topic_id,
            "partition": key.partition,
            "leader_epoch": partition.leader_epoch,
            "partition_epoch": partition.partition_epoch,
            "isr": [c.IsrMember(broker_id=member, broker_epoch=self.epoch(member)) for member in members],
        }
        return c.IsrChange(**(values | changes))

    def alter(self, key: PartitionKey, members: Iterable[int], *, by: int | None = None, **changes: Any) -> str:
        """The partition's leader asks for an ISR."""
        broker_id = by or self.partition(key).leader or 0
        body = c.AlterPartitions(
            broker_id=broker_id,
            broker_epoch=self.epoch(broker_id),
            changes=[self.isr_change(key, members, **changes)],
        )
        return self.outcomes(alter_partitions=body)[0]

    def picture(self, key: PartitionKey) -> str:
        """Who leads, who is in sync, who is eligible: '1 of 1,2,3' or '- of 3 +1,2'."""
        partition = self.partition(key)
        eligible = f" +{','.join(map(str, partition.eligible))}" if partition.eligible else ""
        return f"{partition.leader or '-'} of {','.join(map(str, partition.isr))}{eligible}"


def everything(state: ControllerState) -> list[object]:
    """All that the state holds, but for the proposers that it remembers."""
    return [value for value in state.tables.picture().everything() if type(value).__name__ != "Session"]
