"""BrokerService, put together: which method is whose, and how its requests are parsed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
from google.protobuf.message import Message

from quire.errors import UnsupportedFeatureError
from quire.v1 import broker_pb2
from quire_broker.service.answers import CallContext
from quire_broker.service.fetch import Fetching
from quire_broker.service.follow import Following
from quire_broker.service.followers import Followers
from quire_broker.service.hangup import untraced
from quire_broker.service.offsets import Offsets
from quire_broker.service.produce import Producing
from quire_broker.service.produce_stream import ProduceStreams
from quire_broker.service.splice import Spliced
from quire_broker.service.subscribe import Subscriptions
from quire_broker.service.wire import small, with_raw

SERVICE: Final = broker_pb2.DESCRIPTOR.services_by_name["BrokerService"]
SUBSCRIBE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Ten thousand partitions by names of full length are less."""


class BrokerService:
    def __init__(
        self,
        *,
        producing: Producing,
        streams: ProduceStreams,
        fetching: Fetching,
        offsets: Offsets,
        subscriptions: Subscriptions,
        following: Following,
        followers: Followers,
        next_producer_id: Callable[[], Awaitable[int]],
    ) -> None:
        self._producing = producing
        self._streams = streams
        self._fetching = fetching
        self._offsets = offsets
        self._subscriptions = subscriptions
        self._following = following
        self._followers = followers
        self._next_producer_id = next_producer_id

    def stop(self) -> None:
        """Streams end when what they have taken is answered; nobody waits for records any more."""
        for part in (self._streams, self._fetching, self._subscriptions, self._following):
            part.stop()

    def handlers(self) -> grpc.GenericRpcHandler:
        """Not those of the stubs: a request is looked at before it is parsed."""
        streams, subscriptions, following = self._streams, self._subscriptions, self._following

        async def produce_stream(_: object, context: CallContext) -> None:
            await untraced(streams.serve(context))

        async def subscribe(_: object, context: CallContext) -> None:
            await untraced(subscriptions.serve(context))

        async def follow_topics(request: broker_pb2.FollowTopicsRequest, context: CallContext) -> None:
            await untraced(following.serve(request, context))

        return grpc.method_handlers_generic_handler(
            SERVICE.full_name,
            {
                "Produce": _call(self._producing.produce, with_raw(broker_pb2.ProduceRequest)),
                "Fetch": _call(self._fetching.fetch, small(broker_pb2.FetchRequest)),
                "ListOffsets": _call(self._offsets.list_offsets, small(broker_pb2.ListOffsetsRequest)),
                "DescribeFollowers": _call(self._followers.describe, small(broker_pb2.DescribeFollowersRequest)),
                "InitProducer": _call(self.init_producer, small(broker_pb2.InitProducerRequest)),
                "ProduceStream": grpc.stream_stream_rpc_method_handler(
                    produce_stream, with_raw(broker_pb2.ProduceStreamRequest), _serialized
                ),
                "Subscribe": grpc.stream_stream_rpc_method_handler(
                    subscribe, small(broker_pb2.SubscribeRequest, bytes_max=SUBSCRIBE_BYTES_MAX), _serialized
                ),
                "FollowTopics": grpc.unary_stream_rpc_method_handler(
                    follow_topics, small(broker_pb2.FollowTopicsRequest), _serialized
                ),
            },
        )

    async def init_producer(
        self, request: broker_pb2.InitProducerRequest, context: CallContext
    ) -> broker_pb2.InitProducerResponse:
        if request.transactional_id:
            raise UnsupportedFeatureError("transactions are not served; leave `transactional_id` out")
        return broker_pb2.InitProducerResponse(producer_id=await self._next_producer_id(), producer_epoch=0)


def _call(serve: Callable[..., Awaitable[Message | Spliced]], parse: Callable[[bytes], object]) -> Any:
    return grpc.unary_unary_rpc_method_handler(serve, parse, _serialized)


def _serialized(message: Message | Spliced) -> bytes:
    return message.SerializeToString()
