"""Faults as data, what carries them out, and in which order.

A fault is a few steps. Each names a method of the cluster, and on whom: `leader` is the node that leads one
partition, drawn by the seed, `follower` and `other` are the two that follow; `any` is one of the three, `all` is all.
`hold` waits for so many leases, `settle` until all is well again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.chaos.cluster import Ability, Cluster

HOUR_MS: Final = 3_600_000
SYNC_MS: Final = 500


@dataclass(frozen=True)
class Step:
    method: str
    roles: tuple[str, ...] = ()
    number: int | None = None


@dataclass(frozen=True)
class Fault:
    name: str
    steps: tuple[Step, ...]
    needs: Ability | None = None


@dataclass(frozen=True)
class Hold(Step):
    """For so many leases, from `least` to `most`."""

    least: float = 0.5
    most: float = 1.5


def do(method: str, *roles: str, number: int | None = None) -> Step:
    return Step(method, roles, number)


def hold(least: float, most: float) -> Step:
    return Hold("hold", least=least, most=most)


SETTLE: Final = do("settle")

FAULTS: Final = (
    Fault("leader killed", (do("kill", "leader"), hold(0.3, 2.0), do("restart", "leader"))),
    Fault("follower killed", (do("kill", "follower"), hold(0.3, 2.0), do("restart", "follower"))),
    Fault("all killed", (do("kill", "all"), hold(0.1, 0.5), do("restart", "all"))),
    Fault("leader isolated", (do("isolate", "leader"), hold(1.5, 3.0), do("heal")), Ability.NETWORK),
    Fault(
        "one direction cut: from the leader",
        (do("cut", "leader", "follower"), do("cut", "leader", "other"), hold(1.5, 3.0), do("heal")),
        Ability.NETWORK,
    ),
    Fault(
        "one direction cut: to the leader",
        (do("cut", "follower", "leader"), do("cut", "other", "leader"), hold(1.5, 3.0), do("heal")),
        Ability.NETWORK,
    ),
    Fault("bridge partition", (do("bridge", "follower"), hold(1.5, 3.0), do("heal")), Ability.NETWORK),
    Fault("leader paused past its lease", (do("pause", "leader"), hold(1.5, 3.0), do("resume", "leader"))),
    Fault(
        "controller majority lost",
        (
            do("pause_controllers", "leader", "follower"),
            hold(1.5, 3.0),
            do("resume_controllers", "leader", "follower"),
        ),
    ),
    Fault(
        "node disconnected", (do("disconnect", "leader"), hold(1.5, 3.0), do("connect", "leader")), Ability.DISCONNECT
    ),
    Fault(
        "rolling restart",
        tuple(
            step
            for role in ("follower", "other", "leader")
            for step in (do("terminate", role), do("restart", role), SETTLE)
        ),
    ),
    Fault("node wiped", (do("kill", "any"), do("wipe", "any"), hold(0.3, 1.5), do("restart", "any"))),
    Fault(
        "slow syncs",
        (do("slow_syncs", "any", number=SYNC_MS), hold(2.0, 4.0), do("slow_syncs", "any", number=0)),
        Ability.SLOW_SYNCS,
    ),
    Fault(
        "clock jumps",
        (
            do("set_clock", "leader", number=HOUR_MS),
            hold(0.5, 1.5),
            do("set_clock", "leader", number=-HOUR_MS),
            do("set_clock", "follower", number=HOUR_MS),
            hold(0.5, 1.5),
            do("set_clock", "leader", number=0),
            do("set_clock", "follower", number=0),
        ),
        Ability.CLOCK,
    ),
)


def named(name: str) -> Fault:
    return next(fault for fault in FAULTS if fault.name == name)


def possible(able: frozenset[Ability]) -> list[Fault]:
    """Those that this kind of cluster can suffer."""
    return [fault for fault in FAULTS if fault.needs is None or fault.needs in able]


def shuffled(faults: Sequence[Fault], randomness: random.Random) -> Iterator[Fault]:
    """Without an end, all of them as often as each other, and in another order each time."""
    while True:
        yield from randomness.sample(faults, len(faults))


def roles(nodes: Sequence[str], leader: str, randomness: random.Random) -> Mapping[str, tuple[str, ...]]:
    followers = randomness.sample([node for node in nodes if node != leader], len(nodes) - 1)
    return {
        "leader": (leader,),
        "follower": (followers[0],),
        "other": (followers[1],),
        "any": (randomness.choice(list(nodes)),),
        "all": tuple(nodes),
    }


async def inflict(
    fault: Fault,
    cluster: Cluster,
    cast: Mapping[str, tuple[str, ...]],
    randomness: random.Random,
    *,
    settle: Callable[[], Awaitable[None]],
) -> None:
    """From its first step to its last."""
    for step in fault.steps:
        if isinstance(step, Hold):
            await asyncio.sleep(randomness.uniform(step.least, step.most) * cluster.lease_ms / 1000)
        elif step == SETTLE:
            await settle()
        else:
            method: Callable[..., Awaitable[None]] = getattr(cluster, step.method)
            nodes = [node for role in step.roles for node in cast[role]]
            await method(*nodes, *([] if step.number is None else [step.number]))


def struck(fault: Fault, cast: Mapping[str, tuple[str, ...]]) -> list[str]:
    """The nodes that it is done to."""
    return sorted({node for step in fault.steps for role in step.roles for node in cast[role]})
