"""Faults as data: each names what clusters can do, and schedules are a seed's."""

from __future__ import annotations

import random
from collections import Counter
from itertools import islice

import pytest

from tests.chaos.cluster import Ability
from tests.chaos.containers import Containers
from tests.chaos.nemesis import FAULTS, SETTLE, Fault, Hold, inflict, possible, roles, shuffled, struck
from tests.chaos.processes import Processes

NODES = ("n1", "n2", "n3")

UNDONE = {
    "kill": "restart",
    "terminate": "restart",
    "pause": "resume",
    "disconnect": "connect",
    "pause_controllers": "resume_controllers",
    "isolate": "heal",
    "cut": "heal",
    "bridge": "heal",
}


class Recorded:
    """A cluster that only remembers. It has every method there is."""

    nodes = NODES
    lease_ms = 0

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[object, ...]]] = []

    def __getattr__(self, name: str) -> object:
        assert hasattr(Containers, name), name

        async def method(*arguments: object) -> None:
            self.calls.append((name, arguments))

        return method


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
async def test_fault_is_undone_by_its_own_steps(fault: Fault) -> None:
    cluster, randomness = Recorded(), random.Random(1)
    settled = 0

    async def settle() -> None:
        nonlocal settled
        settled += 1

    cast = roles(NODES, "n2", randomness)
    await inflict(fault, cluster, cast, randomness, settle=settle)  # type: ignore[arg-type]  # it has all methods
    assert settled == fault.steps.count(SETTLE)
    names = [name for name, _ in cluster.calls]
    for name, arguments in cluster.calls:
        if name in UNDONE:
            later = cluster.calls[cluster.calls.index((name, arguments)) + 1 :]
            assert any(
                then == UNDONE[name] and (then == "heal" or set(arguments) <= set(told)) for then, told in later
            ), (name, arguments)
        if name in ("slow_syncs", "set_clock"):
            last = [told for then, told in cluster.calls if then == name and told[0] == arguments[0]][-1]
            assert last[1] == 0
    if "wipe" in names:
        assert names.index("kill") < names.index("wipe") < names.index("restart")
    assert set(struck(fault, cast)) <= set(NODES)


def test_leader_is_who_leads_and_the_others_are_others() -> None:
    for seed in range(20):
        cast = roles(NODES, "n2", random.Random(seed))
        assert cast["leader"] == ("n2",)
        assert {*cast["follower"], *cast["other"]} == {"n1", "n3"}
        assert cast["all"] == NODES


def test_every_fault_comes_as_often_as_any_other() -> None:
    faults = possible(Containers.able)
    drawn = list(islice(shuffled(faults, random.Random(3)), 3 * len(faults)))
    assert Counter(fault.name for fault in drawn) == dict.fromkeys((fault.name for fault in faults), 3)
    assert drawn == list(islice(shuffled(faults, random.Random(3)), len(drawn)))
    assert drawn != list(islice(shuffled(faults, random.Random(4)), len(drawn)))


def test_what_a_cluster_cannot_suffer_is_left_out() -> None:
    names = {fault.name for fault in possible(frozenset())}
    assert "leader killed" in names
    assert not names & {"leader isolated", "node disconnected", "slow syncs", "clock jumps"}
    everything = {fault.name for fault in possible(Containers.able)} | {
        fault.name for fault in possible(Processes.able)
    }
    assert everything == {fault.name for fault in FAULTS}
    assert {fault.needs for fault in FAULTS} - {None} == set(Ability)


def test_holds_are_in_leases() -> None:
    holds = [step for fault in FAULTS for step in fault.steps if isinstance(step, Hold)]
    assert all(0 <= each.least <= each.most <= 5 for each in holds)
    past = next(fault for fault in FAULTS if fault.name == "leader paused past its lease")
    assert all(each.least > 1 for each in past.steps if isinstance(each, Hold))
