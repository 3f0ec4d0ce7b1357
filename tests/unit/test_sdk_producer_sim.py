"""The producer's promises, under every fault that the core can meet (docs/SDK.md, "What holds")."""

from __future__ import annotations

import pytest

from tests.unit.sdk_world import World, refuse_sometimes

SEEDS = range(150)


def run(world: World, *, steps: int, faults: bool) -> dict[str, int]:
    quiet = [
        world.send,
        world.send,
        world.pump,
        world.pump,
        world.deliver,
        world.deliver,
        world.answer,
        world.pass_time,
    ]
    loud = [world.cut, world.connect, world.connect, world.elect, world.learn, world.learn, world.haunt]
    choices = quiet * 3 + (loud if faults else [])
    for _ in range(steps):
        world.random.choice(choices)()
        if faults and world.random.random() < 0.002:
            world.hang()
    world.settle()
    return world.check()


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_doubled_or_reordered(seed: int) -> None:
    world = World(seed)
    world.refuse = refuse_sometimes
    run(world, steps=600, faults=True)


@pytest.mark.parametrize("seed", range(30))
def test_without_idempotence_nothing_is_doubled_either(seed: int) -> None:
    world = World(seed, idempotent=False)
    world.refuse = refuse_sometimes
    run(world, steps=600, faults=True)


@pytest.mark.parametrize("seed", range(20))
def test_without_faults_all_is_stored(seed: int) -> None:
    tally = run(World(seed), steps=600, faults=False)
    assert tally["failed"] == tally["unknown"] == 0
    assert tally["stored"] > 100


def test_faults_make_every_outcome() -> None:
    # Else the tests above would show less than they seem to.
    total = {"stored": 0, "failed": 0, "unknown": 0}
    for seed in range(40):
        world = World(1000 + seed)
        world.refuse = refuse_sometimes
        for outcome, count in run(world, steps=600, faults=True).items():
            total[outcome] += count
    assert min(total.values()) > 50
    assert total["stored"] > total["failed"] + total["unknown"]
