"""How a broker belongs to its cluster, against the real controller, in virtual time: what is said is exact."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any

import pytest

from quire.errors import (
    ClusterIdMismatchError,
    InvalidArgumentError,
    OutcomeUnknownError,
    QuireError,
    StaleBrokerEpochError,
    UnavailableError,
    UnknownBrokerError,
)
from quire.v1 import commands_pb2, controller_pb2, metadata_pb2, topics_pb2
from quire_broker.runtime.membership import MembershipConfig
from quire_broker.runtime.membership_producer_ids import BLOCK, ProducerIds
from quire_broker.runtime.membership_session import Ending, Session
from tests.unit.broker_membership_harness import INCARNATION, LEASE_S, LISTENERS, World, ending, world
from tests.unit.controller_service_harness import FEATURES
from tests.unit.virtual_time import in_virtual_time

MILLISECOND = 0.001
Test = Callable[..., Coroutine[Any, Any, None]]


def virtually(test: Test) -> Callable[..., None]:
    """The test runs in virtual time."""

    @wraps(test)
    def run(**arguments: Any) -> None:
        in_virtual_time(lambda: test(**arguments))

    return run


# --- joining -------------------------------------------------------------------------------------------------------


@virtually
async def test_registers_and_takes_part() -> None:
    async with world() as w:
        w.log_ends = [commands_pb2.LogEnd(topic_id=b"t" * 16, partition=2, last_epoch=5, log_end_offset=7)]
        await w.taking_part()
        assert w.seen("registered", "asked whether ready", "lease gained") == [
            "registered",
            "asked whether ready",
            "lease gained",
        ]
        asked = controller_pb2.RegisterBrokerRequest.FromString(w.requests("RegisterBroker")[0])
        assert (asked.cluster_id, asked.broker_id, asked.incarnation_id) == ("c", 1, INCARNATION)
        assert (asked.node_id, asked.rack, tuple(asked.listeners)) == ("node-1", "r1", LISTENERS)
        assert (asked.features, list(asked.log_ends)) == (FEATURES, w.log_ends)
        assert w.membership.broker_epoch == w.me.broker_epoch
        assert not w.me.fenced
        assert w.membership.lease_expires is not None
        assert w.now < w.membership.lease_expires <= w.now + LEASE_S


@virtually
async def test_waits_for_its_registration_to_be_applied_and_for_itself() -> None:
    async with world() as w:
        w.applies = False
        w.is_ready.clear()
        await asyncio.sleep(5)
        assert w.seen("registered", "asked whether ready") == ["registered"]
        w.membership.on_applied(w.image.version)
        w.applies = True
        await asyncio.sleep(5)
        assert w.seen("registered", "asked whether ready") == ["registered", "asked whether ready"]
        assert (w.me.fenced, w.heartbeats()) == (True, 0)
        w.is_ready.set()
        await w.taking_part()


@virtually
async def test_waits_for_controllers_that_are_not_there_yet() -> None:
    async with world() as w:
        w.fail_all(refusal=UnavailableError("no connection"))
        await asyncio.sleep(300)
        assert w.me is None
        w.fail_all()
        began = w.now
        await w.taking_part()
        assert w.now - began < 5


@virtually
@pytest.mark.parametrize("what", ["refused", "another cluster"])
async def test_what_waiting_does_not_mend_ends_it(what: str) -> None:
    w = World()
    if what == "refused":
        w.fail_all(refusal=InvalidArgumentError("node 'node-1' is registered under another broker id"))
        assert isinstance(await ending(w), InvalidArgumentError)
    else:
        await w.services.register(9)  # so that the cluster has a name
        w.services.state.tables.cluster = type(w.services.state.cluster)("other", 1)  # type: ignore[misc]
        assert isinstance(await ending(w), ClusterIdMismatchError)


# --- the lease -----------------------------------------------------------------------------------------------------


@virtually
async def test_lease_goes_on_as_long_as_heartbeats_are_answered() -> None:
    async with world() as w:
        await w.taking_part()
        for _ in range(100):
            await asyncio.sleep(0.3)
            assert w.membership.may_lead()
        assert w.seen("lease gained", "lease lost") == ["lease gained"]
        assert 60 <= w.heartbeats() <= 70, "one every half a second or a little less"


@virtually
async def test_lease_ends_by_itself_and_before_the_controller_ends_it() -> None:
    async with world() as w:
        await w.taking_part()
        await asyncio.sleep(10)
        expires = w.membership.lease_expires
        w.fail_all(is_frozen=True)
        lost_at = await w.until(lambda: not w.membership.may_lead())
        assert expires is not None
        assert abs(lost_at - expires) <= MILLISECOND * 1.5
        assert not w.me.fenced
        await asyncio.sleep(2 * MILLISECOND)
        assert w.seen("lease gained", "lease lost") == ["lease gained", "lease lost"]
        assert w.last("lease lost") - expires <= 2 * MILLISECOND
        assert w.membership.lease_expires is None
        fenced_at = await w.until(lambda: w.me.fenced)
        assert fenced_at - lost_at < 0.5


@virtually
async def test_lease_counts_from_the_sending_of_the_heartbeat() -> None:
    async with world() as w:
        await w.taking_part()
        w.fail_all(answer_delay_s=0.6)
        await asyncio.sleep(20)
        assert w.membership.may_lead()
        expires = w.membership.lease_expires
        assert expires is not None
        assert expires - w.now <= LEASE_S - 0.6 + MILLISECOND, "the time to the answer is taken off"


@virtually
async def test_lease_counts_only_once_the_metadata_is_applied() -> None:
    async with world() as w:
        await w.taking_part()
        w.applies = False
        await w.services.create("orders")
        await w.until(lambda: not w.membership.may_lead(), within_s=LEASE_S + 0.1)
        assert not w.me.fenced, "for the controller it is as alive as ever"
        beat = controller_pb2.HeartbeatRequest.FromString(w.members[0].named("Heartbeat")[-1])
        assert beat.applied_version == w.membership.applied_version < w.image.version
        w.membership.on_applied(w.image.version)
        assert w.membership.may_lead()
        assert w.seen("lease gained", "lease lost") == ["lease gained", "lease lost", "lease gained"]


@virtually
async def test_short_silence_of_controllers_costs_nothing() -> None:
    async with world() as w:
        await w.taking_part()
        for fate in ({"is_frozen": True}, {"loses_answers": True}, {"refusal": UnavailableError("electing")}):
            w.fail_all(**fate)
            await asyncio.sleep(1.5)
            w.fail_all()
            await asyncio.sleep(5)
        assert w.seen("registered", "lease gained", "lease lost") == ["registered", "lease gained"]


@virtually
@pytest.mark.parametrize("gone", [0, 1, 2])
async def test_controller_that_is_gone_or_stuck_costs_nothing(gone: int) -> None:
    """The leading one stands still: another one leads, and the others say so."""
    async with world() as w:
        await w.taking_part()
        leader = w.members[(gone + 1) % 3]
        for member in w.members:
            if member is not leader:
                member.fail(refusal=UnavailableError("not me", leader="c", leader_address=leader.address))
        w.members[gone].fail(is_frozen=True)
        await asyncio.sleep(30)
        assert w.seen("registered", "lease gained", "lease lost") == ["registered", "lease gained"]


# --- another registration ------------------------------------------------------------------------------------------


@virtually
async def test_registers_anew_after_it_was_fenced() -> None:
    async with world() as w:
        await w.taking_part()
        first = w.membership.broker_epoch
        w.fail_all(is_frozen=True)
        await w.until(lambda: w.me.fenced)
        await asyncio.sleep(20)
        assert w.seen("registered") == ["registered"], "it has not heard of it"
        w.fail_all()
        await w.taking_part()
        assert w.membership.broker_epoch == w.me.broker_epoch > first
        assert w.seen("registered", "lease gained", "lease lost") == [
            *("registered", "lease gained", "lease lost"),
            *("registered", "lease gained"),
        ]


@virtually
async def test_fenced_by_others_it_stops_at_once_and_comes_back() -> None:
    async with world() as w:
        await w.taking_part()
        await w.fence()
        fenced_at = await w.until(lambda: not w.membership.may_lead())
        assert w.membership.broker_epoch == 0
        assert w.seen("lease gained", "lease lost") == ["lease gained", "lease lost"]
        await w.taking_part()
        assert w.now - fenced_at < 0.5


@virtually
async def test_with_more_to_say_it_lets_go_and_registers_anew() -> None:
    async with world() as w:
        await w.taking_part()
        first = w.membership.broker_epoch
        w.membership.register_anew("its log is whole")
        w.membership.register_anew("and another one")
        assert not w.membership.may_lead()
        assert w.membership.broker_epoch == 0
        await w.taking_part()
        assert w.membership.broker_epoch == w.me.broker_epoch > first
        assert w.seen("registered", "lease lost") == ["registered", "lease lost", "registered"]


@virtually
async def test_lease_of_a_broker_that_is_fenced_never_outlasts_it() -> None:
    """Whenever it is cut off, and whatever was lost before: when it is shut out it has stopped by itself."""
    for seed in range(20):
        async with world(seed=seed) as w:
            await w.taking_part()
            await asyncio.sleep(seed * 0.037)
            w.fail_all(loses_answers=True)
            await asyncio.sleep(seed * 0.21)
            w.fail_all(is_frozen=True)
            while not w.me.fenced:
                led_before = w.membership.may_lead()
                await asyncio.sleep(MILLISECOND)
            assert not led_before


@virtually
async def test_another_process_with_its_number_ends_it() -> None:
    w = World()
    running = asyncio.create_task(ending(w))
    await w.taking_part()
    listeners = [
        metadata_pb2.Listener(name="client", protocol=metadata_pb2.LISTENER_PROTOCOL_GRPC, host="elsewhere", port=7)
    ]
    await w.services.register(1, node_id="node-9", listeners=listeners)
    error = await running
    assert isinstance(error, StaleBrokerEpochError)
    assert "another process of node 'node-9' (elsewhere:7) has registered as broker 1" in error.message
    assert "no two may have the same number" in error.message
    assert not w.membership.may_lead()
    assert w.seen("lease gained", "lease lost") == ["lease gained", "lease lost"]


@virtually
async def test_another_process_is_noticed_by_a_refused_heartbeat_too() -> None:
    w = World()
    running = asyncio.create_task(ending(w))
    await w.taking_part()
    for member in w.members:
        member.fail(streams_frozen=True)
    await w.services.register(1)
    error = await running
    assert isinstance(error, StaleBrokerEpochError)
    assert "another process has registered as broker 1" in error.message


@virtually
async def test_own_registration_that_was_taken_for_lost_is_not_anothers() -> None:
    async with world(config=MembershipConfig(register_ms_max=500)) as w:
        w.fail_all(loses_answers=True)
        await w.until(lambda: w.me is not None)
        await asyncio.sleep(1)
        w.fail_all()
        await w.taking_part()
        assert w.seen("registered") == ["registered"]
        # The controllers carry one out that they had for long.
        await w.services.register(1)
        await w.until(lambda: len(w.seen("registered")) == 2)
        await w.taking_part()
        assert w.membership.broker_epoch == w.me.broker_epoch


@virtually
async def test_unregistered_broker_ends() -> None:
    w = World()
    running = asyncio.create_task(ending(w))
    await w.taking_part()
    await w.services.admin.UnregisterBroker(controller_pb2.UnregisterBrokerRequest(broker_id=1), None)
    error = await running
    assert isinstance(error, UnknownBrokerError)
    assert "broker 1 was unregistered" in error.message


@virtually
async def test_readiness_is_asked_again_in_each_registration() -> None:
    async with world() as w:
        w.is_ready.clear()
        await w.until(lambda: w.seen("asked whether ready") == ["asked whether ready"])
        # Fenced before it was let in it is still in its registration; a newer one ends it.
        await w.fence()
        await asyncio.sleep(5)
        assert w.seen("registered") == ["registered"]
        w.is_ready.set()
        await w.taking_part()
        w.is_ready.clear()
        await w.fence()
        await w.until(lambda: len(w.seen("asked whether ready")) == 2)
        await asyncio.sleep(5)
        assert w.me.fenced
        w.is_ready.set()
        await w.taking_part()


async def _session() -> Session:
    session = Session(broker_epoch=5, version=5, applied_version=9)
    session.lease.on_heartbeat_sent(1, 1000)
    session.lease.on_heartbeat_answered(1, 5, 3000, 9)
    assert session.may_lead(3999)
    return session


@virtually
@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        ([(4, None)], None),
        ([(4, (3, True))], None),
        ([(5, (5, True)), (6, (5, True))], None),
        ([(8, (5, True))], Ending.FENCED),
        ([(9, (5, True))], Ending.FENCED),
        ([(7, (5, True)), (8, (5, False))], None),
        ([(6, (5, False)), (7, (5, True))], Ending.FENCED),
        ([(6, (6, True))], Ending.SUPERSEDED),
        ([(6, None)], Ending.UNREGISTERED),
        ([(6, None), (7, (7, True))], Ending.UNREGISTERED),
    ],
)
async def test_what_the_metadata_says_of_a_session(
    looks: list[tuple[int, tuple[int, bool] | None]], expected: Ending | None
) -> None:
    """(version, what it says of the broker: its epoch, and whether it is fenced). It was let in at version 8."""
    session = await _session()
    session.on_unfenced(8)
    for version, told in looks:
        broker = None if told is None else metadata_pb2.Broker(broker_id=1, broker_epoch=told[0], fenced=told[1])
        session.look(broker, version)
    assert (session.over.result() if session.is_over else None) is expected
    assert session.may_lead(3999) is (expected is None)
    session.lease.on_heartbeat_sent(2, 3000)
    assert (session.lease.expires_ms is None) is (expected is not None), "what was granted is void"


# --- leaving -------------------------------------------------------------------------------------------------------


@virtually
async def test_leaving_ends_the_lease_at_once() -> None:
    w = World()
    running = asyncio.create_task(w.membership.run())
    await w.taking_part()
    began = w.now
    await w.membership.leave()
    await running
    assert w.me.fenced
    assert w.now - began < 0.1
    assert not w.membership.may_lead()
    assert w.seen("lease gained", "lease lost") == ["lease gained", "lease lost"]
    beats = w.heartbeats()
    await asyncio.sleep(10)
    assert (w.heartbeats(), w.seen("registered")) == (beats, ["registered"])
    await w.membership.leave()


@virtually
@pytest.mark.parametrize("fate", [{"is_frozen": True}, {"refusal": UnavailableError("gone")}])
async def test_leaving_without_controllers_takes_as_long_as_it_may(fate: dict[str, Any]) -> None:
    w = World()
    running = asyncio.create_task(w.membership.run())
    await w.taking_part()
    w.fail_all(**fate)
    began = w.now
    leaving = asyncio.create_task(w.membership.leave(timeout_s=2))
    await asyncio.sleep(0)
    assert not w.membership.may_lead(), "whether or not they are told"
    await leaving
    await running
    assert w.now - began <= 2 + MILLISECOND
    assert not w.membership.may_lead()


@virtually
async def test_leaving_before_it_belongs_to_anything() -> None:
    w = World()
    w.fail_all(is_frozen=True)
    running = asyncio.create_task(w.membership.run())
    await asyncio.sleep(1)
    await w.membership.leave()
    await running
    w = World()
    await w.membership.leave()
    await w.membership.run()
    assert w.me is None


# --- the metadata --------------------------------------------------------------------------------------------------


@virtually
async def test_follows_another_controller_when_one_falls_silent_or_fails() -> None:
    async with world(config=MembershipConfig(silence_ms_max=1000)) as w:
        await w.taking_part()
        fates: list[dict[str, Any]] = [{"streams_frozen": True}, {"refusal": UnavailableError("stopping")}]
        for number, fate in enumerate(fates * 3):
            followed = next(member for member in w.members if member.open_streams)
            followed.fail(**fate)
            topic_id = await w.services.create(f"topic-{number}")
            await w.until(partial(w.knows, topic_id), within_s=3)
            followed.fail()
        versions = [version for _, event, version in w.events if event == "changes"]
        assert versions == sorted(versions)
        assert w.seen("lease lost") == []


@virtually
async def test_controller_that_falls_behind_is_not_followed_any_more() -> None:
    """It is up and has nothing new to say, while others name a version that it lacks: the lease depends on that."""
    async with world(config=MembershipConfig(silence_ms_max=60_000)) as w:
        await w.taking_part()
        for number in range(6):
            followed = next(member for member in w.members if member.open_streams)
            followed.fail(streams_frozen=True)
            topic_id = await w.services.create(f"topic-{number}")
            await w.until(partial(w.knows, topic_id), within_s=0.5 + LEASE_S / 8 + 0.2)
            followed.fail()
            await asyncio.sleep(3)
        assert w.seen("lease lost") == []


@virtually
async def test_controllers_that_lost_their_past_end_it() -> None:
    """What they had published once is not there any more: nobody knows what else is not."""
    w = World()
    running = asyncio.create_task(ending(w))
    await w.taking_part()
    w.fail_all(refusal=UnavailableError("restarting"))
    fresh = World()
    for member in w.members:
        member.services = fresh.services
    w.fail_all()
    error = await running
    assert isinstance(error, QuireError)
    assert isinstance(error, InvalidArgumentError | UnknownBrokerError)


@virtually
async def test_leadership_that_is_waited_for_is_given_up_without_delay() -> None:
    async with world() as w:
        await w.taking_part()
        await w.services.register(2)
        where = [commands_pb2.ReplicaAssignment(replicas=[1, 2])]
        ref = topics_pb2.TopicRef(topic_id=await w.services.create("orders", assignments=where))
        assert w.services.state.partitions_of(ref.topic_id)[0].leader == 1
        await w.until(partial(w.knows, ref.topic_id))
        move = controller_pb2.LeaderChoice(partition=controller_pb2.PartitionRef(topic=ref), to_broker=2)
        await w.services.admin.MoveLeaders(controller_pb2.MoveLeadersRequest(moves=[move]), None)
        began = w.now
        await w.until(lambda: w.services.state.partitions_of(ref.topic_id)[0].leader == 2)
        assert w.now - began <= 0.1, "not after the next heartbeat's turn"


@virtually
async def test_deleted_topics_without_files_are_confirmed() -> None:
    async with world() as w:
        await w.taking_part()
        topic_ids = [await w.services.create(f"t{number}") for number in range(3)]
        for topic_id in topic_ids:
            request = controller_pb2.DeleteTopicRequest(topic=topics_pb2.TopicRef(topic_id=topic_id))
            await w.services.admin.DeleteTopic(request, None)
        await w.until(lambda: all(map(w.image.is_deleted, topic_ids)))
        w.fail_all(refusal=UnavailableError("electing"))
        for topic_id in topic_ids:
            w.membership.confirm_deletion(topic_id)
        w.membership.confirm_deletion(b"u" * 16)
        await asyncio.sleep(2)
        w.fail_all()
        await w.until(lambda: not w.services.state.deleted_topics)
        sent = [controller_pb2.ConfirmDeletionsRequest.FromString(data) for data in w.requests("ConfirmDeletions")]
        assert list(sent[-1].topic_ids) == sorted(topic_ids)


# --- producer ids --------------------------------------------------------------------------------------------------


@virtually
async def test_producer_ids_come_in_blocks_and_are_nobody_elses() -> None:
    async with world() as w:
        with pytest.raises(UnavailableError, match="not part of the cluster"):
            await w.membership.next_producer_id()
        await w.taking_part()
        first = [await w.membership.next_producer_id() for _ in range(BLOCK + 1)]
        others = await asyncio.gather(*(w.membership.next_producer_id() for _ in range(2 * BLOCK)))
        assert len({*first, *others}) == 3 * BLOCK + 1
        assert sum(len(member.named("AllocateProducerIds")) for member in w.members) == 4
        assert w.services.state.next_producer_id == 4 * BLOCK
        w.fail_all(refusal=UnavailableError("electing"))
        for _ in range(BLOCK - 1):
            await w.membership.next_producer_id()
        with pytest.raises(UnavailableError, match="gave this broker no producer ids"):
            await w.membership.next_producer_id()
        w.fail_all()
        await w.until(lambda: w.membership.broker_epoch != 0 and not w.me.fenced)
        await w.taking_part()
        assert await w.membership.next_producer_id() == 4 * BLOCK


@virtually
async def test_producer_ids_asked_together_fail_together_and_one_who_gives_up_fails_alone() -> None:
    asked: list[asyncio.Future[range]] = []

    async def allocate(count: int) -> range:
        asked.append(asyncio.get_running_loop().create_future())
        return await asked[-1]

    ids = ProducerIds(allocate)
    waiting = [asyncio.create_task(ids.next()) for _ in range(3)]
    await asyncio.sleep(0.1)
    asked[0].set_exception(OutcomeUnknownError("lost"))
    assert all(
        isinstance(each, OutcomeUnknownError) for each in await asyncio.gather(*waiting, return_exceptions=True)
    )
    waiting = [asyncio.create_task(ids.next()) for _ in range(3)]
    await asyncio.sleep(0.1)
    waiting[0].cancel()
    await asyncio.sleep(0.1)
    assert len(asked) == 3, "another one asks in its place"
    asked[2].set_result(range(10, 12))
    assert sorted(await asyncio.gather(*waiting[1:])) == [10, 11]
    assert len(asked) == 3


# --- determinism ---------------------------------------------------------------------------------------------------


def test_same_seed_same_events() -> None:
    async def trace(seed: int) -> list[Any]:
        async with world(seed=seed) as w:
            await w.taking_part()
            for fate in ({"is_frozen": True}, {"refusal": UnavailableError("electing")}):
                w.fail_all(**fate)
                await asyncio.sleep(5)
                w.fail_all()
                await w.taking_part()
            return [*w.events, [len(member.calls) for member in w.members], w.now]

    assert in_virtual_time(lambda: trace(3)) == in_virtual_time(lambda: trace(3))
    assert in_virtual_time(lambda: trace(3)) != in_virtual_time(lambda: trace(4))
