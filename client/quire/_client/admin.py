"""`quire.Admin`: topics and the cluster, for programs without an event loop."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import UUID

from quire._client import aio_admin
from quire._client.addresses import Addresses
from quire._client.aio_admin import CALL_MS_MAX
from quire._client.descriptions import (
    ClusterDescription,
    FollowerLag,
    MoveDescription,
    PartitionOffsets,
    QuorumDescription,
    TopicDescription,
    TopicSummary,
)
from quire._client.loop_thread import LoopThread
from quire._client.options import CONNECT_MS_MAX, PathArgument
from quire._client.topic_config import Setting
from quire.errors import UnavailableError

T = TypeVar("T")


class Admin:
    """Makes, changes and describes topics, and describes the cluster. Any number of threads may share one.

    with Admin("localhost:7400") as admin:
        admin.create_topic("orders", partitions=3)
    """

    def __init__(
        self,
        addresses: Addresses,
        *,
        call_ms_max: int = CALL_MS_MAX,
        client_id: str = "",
        tls_ca: PathArgument | None = None,
        tls_cert: PathArgument | None = None,
        connect_ms_max: int = CONNECT_MS_MAX,
    ) -> None:
        """docs/SDK.md says what the arguments mean. Nothing is connected before the first call."""
        self._loop: LoopThread | None = None
        self._admin = aio_admin.Admin(
            addresses,
            call_ms_max=call_ms_max,
            client_id=client_id,
            tls_ca=tls_ca,
            tls_cert=tls_cert,
            connect_ms_max=connect_ms_max,
        )
        self._closing = threading.Lock()
        self._loop = LoopThread.acquire()

    # -- topics ------------------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication_factor: int = 0,
        config: Mapping[str, Setting] | None = None,
    ) -> UUID:
        """Make a topic; its id. Without a replication factor: 3, or as many as there are brokers if those are fewer.

        Raises TopicAlreadyExistsError, InvalidTopicNameError, NotEnoughBrokersError, InvalidArgumentError.
        """
        return self._run(
            self._admin.create_topic(
                name, partitions=partitions, replication_factor=replication_factor, config=config
            )
        )

    def delete_topic(self, name: str) -> None:
        """Delete a topic and all its records. Raises UnknownTopicError."""
        self._run(self._admin.delete_topic(name))

    def alter_topic(self, name: str, set: Mapping[str, Setting] | None = None, unset: Iterable[str] = ()) -> None:
        """Give settings values, or their defaults back. Raises UnknownTopicError, InvalidArgumentError."""
        self._run(self._admin.alter_topic(name, set, unset))

    def add_partitions(self, name: str, count: int) -> None:
        """Give a topic more partitions, `count` altogether. Keys go to other partitions by that."""
        self._run(self._admin.add_partitions(name, count))

    def list_topics(self, *, include_internal: bool = False) -> list[TopicSummary]:
        """All topics, in ascending order of names."""
        return self._run(self._admin.list_topics(include_internal=include_internal))

    def describe_topic(self, name: str) -> TopicDescription:
        """One topic and its partitions. Raises UnknownTopicError."""
        return self._run(self._admin.describe_topic(name))

    def offsets(self, topic: str) -> dict[int, PartitionOffsets]:
        """The first and the next offset of each partition of a topic. Raises UnknownTopicError."""
        return self._run(self._admin.offsets(topic))

    # -- the cluster -------------------------------------------------------------------------------------------------

    def describe_cluster(self) -> ClusterDescription:
        """The cluster and its brokers, and how far moves and drains have come."""
        return self._run(self._admin.describe_cluster())

    def describe_quorum(self) -> QuorumDescription:
        """How the controllers are doing, as the one that is asked sees it; also without a majority."""
        return self._run(self._admin.describe_quorum())

    # -- who has what and leads it ---------------------------------------------------------------------------------

    def follower_lag(self, topic: str) -> dict[int, tuple[FollowerLag, ...]]:
        """How far the followers of each partition of a topic are. Partitions whose leader does not say are left out.

        Raises UnknownTopicError.
        """
        return self._run(self._admin.follower_lag(topic))

    def move_partition(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        """Begin to move a partition to these brokers, the preferred leader first. `list_moves` shows how far it is.

        Raises UnknownTopicError, UnknownPartitionError, UnknownBrokerError, BrokerFencedError, InvalidArgumentError,
        ReassignmentInProgressError.
        """
        self._run(self._admin.move_partition(topic, partition, replicas))

    def cancel_move(self, topic: str, partition: int) -> None:
        """Turn such a move back. Raises NoReassignmentInProgressError, UnknownTopicError, UnknownPartitionError."""
        self._run(self._admin.cancel_move(topic, partition))

    def list_moves(self) -> list[MoveDescription]:
        """All partitions that are being moved, and how far their replicas are."""
        return self._run(self._admin.list_moves())

    def elect_preferred(self, topic: str | None = None) -> int:
        """Give leaderships back to the first of each partition's replicas, of one topic or of all; how many.

        Those whose preferred leader is away, or not in sync, stay where they are. The moves are over a moment later.
        """
        return self._run(self._admin.elect_preferred(topic))

    def drain_broker(self, broker_id: int, *, leaderships_only: bool = False) -> None:
        """Begin to rid a broker of what it leads and has. `describe_cluster` shows what is left.

        It gets nothing new from now on, also after a restart, until `undrain`. With `leaderships_only` it keeps its
        replicas. Raises UnknownBrokerError, NotEnoughBrokersError.
        """
        self._run(self._admin.drain_broker(broker_id, leaderships_only=leaderships_only))

    def undrain(self, broker_id: int) -> None:
        """Let a broker work as any other again. Moves that are under way go on. Raises UnknownBrokerError."""
        self._run(self._admin.undrain(broker_id))

    def unregister_broker(self, broker_id: int) -> None:
        """Forget a broker that has no replicas. Raises UnknownBrokerError, BrokerNotEmptyError."""
        self._run(self._admin.unregister_broker(broker_id))

    # -- life --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        with self._closing:
            loop = self._loop
            if loop is None:
                return
            loop.refuse_own_thread()
            self._loop = None
            try:
                loop.run(self._admin.close())
            finally:
                loop.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self, warn: Callable[..., object] = warnings.warn) -> None:
        loop = getattr(self, "_loop", None)
        if loop is not None:
            loop.abandon(self._admin.close())
            warn(f"unclosed {self!r}; use 'with' or close()", ResourceWarning, source=self)

    def __repr__(self) -> str:
        return f"<quire.Admin, {'closed' if self._loop is None else 'open'}>"

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        loop = self._loop
        if loop is None:
            coroutine.close()
            raise UnavailableError("this admin client is closed; make another one")
        return loop.run(coroutine)
