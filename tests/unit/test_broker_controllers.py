"""Calling the quorum: one member's calls, and which member is asked when one does not answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import pytest

from quire.errors import (
    InvalidArgumentError,
    OutcomeUnknownError,
    QuireError,
    StaleBrokerEpochError,
    TopicAlreadyExistsError,
    UnavailableError,
    UnknownTopicError,
)
from quire.link.network import Address
from quire.process.rpc import permissions, server
from quire.process.rpc.gate import Gate
from quire.v1 import commands_pb2, controller_pb2, controller_pb2_grpc, topics_pb2
from quire_broker.adapters.controllers import GrpcMember
from quire_broker.ports import ControllerMember
from quire_broker.runtime.controllers import CHANGES_UNDER_WAY_MAX, ChangeNames, QuorumClient, QuorumClientConfig
from tests.unit.broker_quorum import LocalMember, local_members, sent, until
from tests.unit.controller_service_harness import FEATURES, Services
from tests.unit.virtual_time import in_virtual_time

SERVICES = [
    controller_pb2.DESCRIPTOR.services_by_name[name] for name in ("ControllerService", "ControllerAdminService")
]
REGISTRATION = controller_pb2.RegisterBrokerRequest(
    cluster_id="c", broker_id=1, incarnation_id=b"i" * 16, features=FEATURES
)
CREATION = controller_pb2.CreateTopicRequest(name="orders", partition_count=1)


# --- one member ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def local_member(services: Services) -> AsyncIterator[ControllerMember]:
    member = LocalMember("local", services)
    yield member
    await member.close()


@asynccontextmanager
async def grpc_member(services: Services) -> AsyncIterator[ControllerMember]:
    gate = Gate(permissions.declared(SERVICES), cluster_id="c", listener="controller")
    serving = server.build(gate, request_bytes_max=4 * 1024 * 1024)
    controller_pb2_grpc.add_ControllerServiceServicer_to_server(services.brokers, serving)
    controller_pb2_grpc.add_ControllerAdminServiceServicer_to_server(services.admin, serving)
    port = server.listen(serving, Address("127.0.0.1", 0), tls=None)
    await serving.start()
    member = GrpcMember(Address("127.0.0.1", port), tls=None)
    yield member
    await member.close()
    await serving.stop(None)


@pytest.fixture(params=[local_member, grpc_member])
async def member(request: pytest.FixtureRequest) -> AsyncIterator[tuple[ControllerMember, Services]]:
    services = Services()
    async with request.param(services) as made:
        yield made, services
    services.runtime.stop()


Both = tuple[ControllerMember, Services]


async def test_member_answers_and_refuses(member: Both) -> None:
    asked, services = member
    data = await asked.call(
        "/quire.v1.ControllerService/RegisterBroker", REGISTRATION.SerializeToString(), timeout_s=10
    )
    assert (
        controller_pb2.RegisterBrokerResponse.FromString(data).broker_epoch == services.state.brokers[1].broker_epoch
    )
    stale = controller_pb2.UnfenceBrokerRequest(broker_id=1, broker_epoch=1)
    with pytest.raises(StaleBrokerEpochError):
        await asked.call("/quire.v1.ControllerService/UnfenceBroker", stale.SerializeToString(), timeout_s=10)
    with pytest.raises(InvalidArgumentError):
        await asked.call("/quire.v1.ControllerService/UnfenceBroker", b"\xff", timeout_s=10)


async def test_member_that_does_not_answer_in_time_leaves_the_outcome_unknown(member: Both) -> None:
    asked, services = member
    services.quorum.fate = "silent"
    with pytest.raises(OutcomeUnknownError):
        await asked.call(
            "/quire.v1.ControllerService/RegisterBroker", REGISTRATION.SerializeToString(), timeout_s=0.3
        )


async def test_members_stream_goes_on_until_it_is_closed_or_ends(member: Both) -> None:
    asked, services = member
    request = controller_pb2.WatchMetadataRequest().SerializeToString()
    async with aclosing(asked.stream("/quire.v1.ControllerService/WatchMetadata", request)) as answers:
        first = controller_pb2.WatchMetadataResponse.FromString(await anext(answers))
        assert first.WhichOneof("kind") in ("snapshot", "deltas")
        await services.register(1)
        kinds: set[str | None] = set()
        while kinds != {"deltas", "alive"}:
            kinds.add(controller_pb2.WatchMetadataResponse.FromString(await anext(answers)).WhichOneof("kind"))
    services.watches.stop()
    with pytest.raises(UnavailableError):
        async for _ in asked.stream("/quire.v1.ControllerService/WatchMetadata", request):
            pass


async def test_closed_member_ends_calls_and_streams(member: Both) -> None:
    asked, services = member
    services.quorum.fate = "silent"
    call = asyncio.create_task(
        asked.call("/quire.v1.ControllerService/RegisterBroker", REGISTRATION.SerializeToString(), timeout_s=10)
    )
    stream = asked.stream("/quire.v1.ControllerService/WatchMetadata", b"")
    await anext(stream)
    await until(lambda: len(services.quorum.proposed) == 3)  # the term, the cluster, the registration

    async def read_on() -> None:
        async for _ in stream:
            pass

    reading = asyncio.create_task(read_on())
    await asyncio.sleep(0)
    await asked.close()
    for ended in (call, reading):
        with pytest.raises((OutcomeUnknownError, UnavailableError)):
            await ended
    with pytest.raises(UnavailableError):
        await asked.call("/quire.v1.ControllerService/Heartbeat", b"", timeout_s=1)


async def test_cancelled_call_is_cancelled(member: Both) -> None:
    asked, services = member
    services.quorum.fate = "silent"
    call = asyncio.create_task(
        asked.call("/quire.v1.ControllerService/RegisterBroker", REGISTRATION.SerializeToString(), timeout_s=10)
    )
    await until(lambda: len(services.quorum.proposed) == 3)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_nobody_there_is_unavailable() -> None:
    member = GrpcMember(Address("127.0.0.1", 1), tls=None)
    with pytest.raises(UnavailableError):
        await member.call("/quire.v1.ControllerService/Heartbeat", b"", timeout_s=10)
    with pytest.raises(UnavailableError):
        await anext(member.stream("/quire.v1.ControllerService/WatchMetadata", b""))
    await member.close()


async def test_plain_text_stays_on_loopback() -> None:
    with pytest.raises(InvalidArgumentError, match="needs TLS"):
        GrpcMember(Address("10.0.0.1", 7401), tls=None)


# --- several members -----------------------------------------------------------------------------------------------


class Fixture:
    """Three members of one quorum, the first of which is asked first."""

    def __init__(self, *addresses: str) -> None:
        self.services = Services()
        self.members = local_members(self.services, *(addresses or ("c1:1", "c2:1", "c3:1")))
        config = QuorumClientConfig(attempt_ms_max=100, backoff_ms_min=1, backoff_ms_max=5)
        self.client = QuorumClient(self.members, client_id="broker-1", randomness=FirstOne(1), config=config)

    async def register(self, timeout_s: float = 10) -> controller_pb2.RegisterBrokerResponse:
        return await self.client.register(REGISTRATION, timeout_s=timeout_s)


class FirstOne(random.Random):
    def randrange(self, *_: Any) -> int:
        return 0


@pytest.fixture
async def quorum() -> AsyncIterator[Fixture]:
    fixture = Fixture()
    yield fixture
    await fixture.client.close()
    fixture.services.runtime.stop()


async def test_what_one_refuses_for_want_of_a_leader_the_next_is_asked(quorum: Fixture) -> None:
    quorum.members[0].fail(refusal=UnavailableError("no leader"))
    await quorum.register()
    await quorum.register()
    assert [len(member.calls) for member in quorum.members] == [1, 2, 0], "and it is stuck to"


async def test_a_change_whose_answer_was_lost_is_not_made_twice(quorum: Fixture) -> None:
    quorum.members[0].fail(loses_answers=True)
    answer = await quorum.register()
    names = [
        controller_pb2.RegisterBrokerRequest.FromString(data).change_id
        for data in sent(quorum.members, "RegisterBroker")
    ]
    assert len(names) == 2
    assert names[0] == names[1]
    assert (names[0].client_id, names[0].sequence, len(names[0].client_incarnation)) == ("broker-1", 1, 16)
    assert quorum.services.state.brokers[1].broker_epoch == answer.broker_epoch, "registered once"
    assert not REGISTRATION.HasField("change_id"), "the caller's message is left alone"


async def test_a_frozen_member_is_given_up_after_a_while(quorum: Fixture) -> None:
    quorum.members[0].fail(is_frozen=True)
    await quorum.register()
    assert len(quorum.members[1].calls) == 1


async def test_every_kind_of_change_is_named_and_arrives_whole(quorum: Fixture) -> None:
    client, state = quorum.client, quorum.services.state
    epoch = (await quorum.register()).broker_epoch
    who: dict[str, Any] = {"broker_id": 1, "broker_epoch": epoch}
    await client.unfence(controller_pb2.UnfenceBrokerRequest(**who), timeout_s=10)
    assert not state.brokers[1].fenced
    beat = await client.heartbeat(controller_pb2.HeartbeatRequest(**who, applied_version=7), timeout_s=10)
    assert (beat.lease_ms, beat.metadata_version) == (3000, state.version)
    ids = await client.allocate_producer_ids(
        controller_pb2.AllocateProducerIdsRequest(**who, count=1000), timeout_s=10
    )
    assert ids.count == 1000
    made = await client.ensure_internal_topic(
        controller_pb2.EnsureInternalTopicRequest(name="__groups", partition_count=2), timeout_s=10
    )
    change = commands_pb2.IsrChange(
        topic_id=made.topic_id,
        partition=1,
        leader_epoch=1,
        partition_epoch=0,
        isr=[commands_pb2.IsrMember(broker_id=1, broker_epoch=epoch)],
    )
    altered = await client.alter_partitions(
        controller_pb2.AlterPartitionsRequest(**who, changes=[change]), timeout_s=10
    )
    assert len(altered.outcomes) == 1
    await client.confirm_deletions(controller_pb2.ConfirmDeletionsRequest(**who, topic_ids=[b"t" * 16]), timeout_s=10)
    await client.fence(
        controller_pb2.FenceBrokerRequest(**who, cause=commands_pb2.FENCE_CAUSE_STOPPING), timeout_s=10
    )
    assert state.brokers[1].fenced
    for name, count in (("AlterPartitions", 1), ("AllocateProducerIds", 1), ("ConfirmDeletions", 1)):
        assert len(sent(quorum.members, name)) == count


async def test_a_refusal_is_passed_on_and_nobody_else_asked(quorum: Fixture) -> None:
    await quorum.register()
    with pytest.raises(StaleBrokerEpochError):
        await quorum.client.unfence(controller_pb2.UnfenceBrokerRequest(broker_id=1, broker_epoch=1), timeout_s=10)
    assert len(sent(quorum.members, "UnfenceBroker")) == 1


@pytest.mark.parametrize(
    ("fates", "expected"),
    [
        ([{"refusal": UnavailableError("no leader")}] * 3, UnavailableError),
        ([{"loses_answers": True}, {"refusal": UnavailableError("no")}, {"refusal": UnavailableError("no")}],
         OutcomeUnknownError),
        ([{"is_frozen": True}] * 3, OutcomeUnknownError),
    ],
)  # fmt: skip
async def test_when_none_answers_it_is_said_whether_it_may_have_been_done(
    quorum: Fixture, fates: Sequence[dict[str, Any]], expected: type[QuireError]
) -> None:
    for member, fate in zip(quorum.members, fates, strict=True):
        member.fail(**fate)
    with pytest.raises(expected):
        await quorum.register(timeout_s=0.4)
    assert all(len(member.calls) >= 1 for member in quorum.members)


async def test_all_are_asked_again_until_one_can(quorum: Fixture) -> None:
    for member in quorum.members:
        member.fail(refusal=UnavailableError("no leader", retry_after_ms=1))
    registering = asyncio.create_task(quorum.register())
    await until(lambda: len(sent(quorum.members, "RegisterBroker")) >= 10)
    quorum.members[2].fail()
    await registering


async def test_heartbeats_find_the_leader(quorum: Fixture) -> None:
    """A member that does not lead names the leader, which is asked at once and from then on."""
    epoch = (await quorum.register()).broker_epoch
    for member in quorum.members[:2]:
        member.fail(refusal=UnavailableError("not me", leader="c3", leader_address="c3:1"))
    request = controller_pb2.HeartbeatRequest(broker_id=1, broker_epoch=epoch)
    for _ in range(3):
        await quorum.client.heartbeat(request, timeout_s=10)
    assert [len(member.named("Heartbeat")) for member in quorum.members] == [1, 0, 3]
    # They may name each other, or somebody nobody knows.
    quorum.members[2].fail(refusal=UnavailableError("not me", leader_address="c1:1"))
    with pytest.raises(UnavailableError):
        await quorum.client.heartbeat(request, timeout_s=0.05)
    quorum.members[0].fail(refusal=UnavailableError("not me", leader_address="elsewhere:1"))
    quorum.members[2].fail(refusal=UnavailableError("not me", leader_address="elsewhere:1"))
    quorum.members[1].fail()
    await quorum.client.heartbeat(request, timeout_s=10)


def test_leader_that_keeps_silent_is_left_alone_for_a_while_though_others_name_it() -> None:
    """They have not noticed yet, and each question to it costs a part of the lease."""

    async def ask() -> list[int]:
        quorum = Fixture()
        epoch = (await quorum.register()).broker_epoch
        request = controller_pb2.HeartbeatRequest(broker_id=1, broker_epoch=epoch)
        quorum.members[0].fail(is_frozen=True)
        for member in quorum.members[1:]:
            member.fail(refusal=UnavailableError("not me", leader_address="c1:1"))
        asking = asyncio.create_task(quorum.client.heartbeat(request, timeout_s=2))
        await asyncio.sleep(1.5)
        counts = [len(member.named("Heartbeat")) for member in quorum.members]
        quorum.members[2].fail()
        await asking
        quorum.services.runtime.stop()
        return counts

    asked = in_virtual_time(ask)
    assert asked[0] == 1
    assert min(asked[1:]) > 10


async def test_watch_goes_on_with_another_member_when_one_fails_or_is_silent(quorum: Fixture) -> None:
    request = controller_pb2.WatchMetadataRequest(cluster_id="c")
    async with aclosing(quorum.client.watch(request, silence_s_max=5)) as answers:
        await anext(answers)
        assert quorum.members[0].open_streams == 1
    assert quorum.members[0].open_streams == 0
    quorum.members[1].fail(is_frozen=True)
    with pytest.raises(UnavailableError, match="said nothing for"):
        await anext(quorum.client.watch(request, silence_s_max=0.05))
    answers = quorum.client.watch(request, silence_s_max=5)
    await anext(answers)
    assert quorum.members[2].open_streams == 1
    quorum.members[2].fail(refusal=UnavailableError("stopping"))
    with pytest.raises(UnavailableError, match="stopping"):
        async for _ in answers:
            pass
    async with aclosing(quorum.client.watch(request, silence_s_max=5)) as answers:
        await anext(answers)
        assert quorum.members[0].open_streams == 1


# --- forwarding ----------------------------------------------------------------------------------------------------


async def created(quorum: Fixture, request: controller_pb2.CreateTopicRequest) -> bytes:
    data = await quorum.client.forward("CreateTopic", request.SerializeToString(), timeout_s=10)
    return controller_pb2.CreateTopicResponse.FromString(data).topic_id


async def test_forwarded_change_is_named_unless_it_has_a_name(quorum: Fixture) -> None:
    await quorum.services.register(1)
    quorum.members[0].fail(loses_answers=True)
    topic_id = await created(quorum, CREATION)
    assert [topic.topic_id for topic in quorum.services.state.topics.values()] == [topic_id], "made once"
    named = controller_pb2.CreateTopicRequest(name="named", partition_count=1)
    named.change_id.client_id, named.change_id.client_incarnation, named.change_id.sequence = "me", b"m" * 16, 5
    again = [await created(quorum, named) for _ in range(2)]
    assert again[0] == again[1]
    assert sent(quorum.members, "CreateTopic")[-1] == named.SerializeToString()


async def test_forwarded_call_keeps_what_is_unknown_and_its_metadata(quorum: Fixture) -> None:
    await quorum.services.register(1)
    unknown = b"\xfa\x3f\x03abc"  # field 1023
    metadata = (("traceparent", "00-x"),)
    await quorum.client.forward(
        "CreateTopic", CREATION.SerializeToString() + unknown, timeout_s=10, metadata=metadata
    )
    assert unknown in quorum.members[0].named("CreateTopic")[0]
    assert quorum.members[0].metadata == [metadata]


async def test_forwarded_reads_and_refusals(quorum: Fixture) -> None:
    await quorum.services.register(1)
    await created(quorum, CREATION)
    quorum.members[0].fail(is_frozen=True)
    request = controller_pb2.DescribeTopicRequest(topic=topics_pb2.TopicRef(name="orders"))
    data = await quorum.client.forward("DescribeTopic", request.SerializeToString(), timeout_s=10)
    assert controller_pb2.DescribeTopicResponse.FromString(data).topic.name == "orders"
    assert len(quorum.members[1].named("DescribeTopic")) == 1
    with pytest.raises(TopicAlreadyExistsError):
        await created(quorum, CREATION)
    request.topic.name = "none"
    with pytest.raises(UnknownTopicError) as raised:
        await quorum.client.forward("DescribeTopic", request.SerializeToString(), timeout_s=10)
    assert raised.value.details == {"topic": "none"}
    with pytest.raises(InvalidArgumentError, match="does not parse"):
        await quorum.client.forward("CreateTopic", b"\xff", timeout_s=10)


async def test_forwarded_change_of_unknown_outcome_says_what_to_do(quorum: Fixture) -> None:
    for member in quorum.members:
        member.fail(is_frozen=True)
    with pytest.raises(OutcomeUnknownError, match=r"what became of CreateTopic .*look at what it was to change"):
        await quorum.client.forward("CreateTopic", CREATION.SerializeToString(), timeout_s=0.2)


# --- names ---------------------------------------------------------------------------------------------------------


async def test_names_stay_close_enough_to_be_remembered() -> None:
    names = ChangeNames(client_id="b", incarnation=b"i" * 16)
    taken = [await names.take() for _ in range(CHANGES_UNDER_WAY_MAX)]
    assert [name.sequence for name in taken] == list(range(1, CHANGES_UNDER_WAY_MAX + 1))
    waiting = [asyncio.create_task(names.take()) for _ in range(3)]
    await asyncio.sleep(0)
    for name in taken[1:]:
        names.done(name)
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting), "the oldest is what counts"
    waiting[0].cancel()
    names.done(taken[0])
    assert [(await task).sequence for task in waiting[1:]] == [CHANGES_UNDER_WAY_MAX + 1, CHANGES_UNDER_WAY_MAX + 2]
    with suppress(asyncio.CancelledError):
        await waiting[0]


async def test_turn_of_one_who_gave_up_is_anothers() -> None:
    names = ChangeNames(client_id="b", incarnation=b"i" * 16)
    taken = [await names.take() for _ in range(CHANGES_UNDER_WAY_MAX)]
    first, second = (asyncio.create_task(names.take()) for _ in range(2))
    await asyncio.sleep(0)
    names.done(taken[0])
    first.cancel()  # its turn has come, and it does not know yet
    assert (await second).sequence == CHANGES_UNDER_WAY_MAX + 1


async def test_change_that_finds_no_room_in_time_was_not_made(quorum: Fixture) -> None:
    for member in quorum.members:
        member.fail(is_frozen=True)
    stuck = [asyncio.create_task(quorum.register(timeout_s=5)) for _ in range(CHANGES_UNDER_WAY_MAX)]
    await until(lambda: len(sent(quorum.members, "RegisterBroker")) == CHANGES_UNDER_WAY_MAX)
    with pytest.raises(UnavailableError, match="earlier changes wait"):
        await quorum.register(timeout_s=0.05)
    for task in stuck:
        task.cancel()
    await asyncio.wait(stuck)
