"""Where logs part, round by round, until they agree."""

from __future__ import annotations

import itertools
import random

import pytest

from quire_broker.replica import divergence
from quire_broker.replica.effects import Reset, Truncate
from quire_broker.replica.streams import NO_LOG, RECORDS, LogView
from tests.property.replica_world import SimLog
from tests.unit.replica_crafting import extend, log_of


def step_of(own: LogView, leader: LogView) -> divergence.Step | None:
    at = divergence.position(RECORDS, own)
    return divergence.next_step(own, at, divergence.compare(leader, at))


def rounds(own: SimLog, leader: LogView, *, limit: int = 20) -> int:
    """Do what is to be done, until nothing is; how often that was."""
    for done in range(limit):
        step = step_of(own, leader)
        if step is None:
            return done
        if isinstance(step.trim, Truncate):
            own.truncate(step.trim.end_offset)
        else:
            own.reset(step.trim.start_offset)
    pytest.fail(f"the logs do not agree after {limit} rounds")


def test_the_beginning_of_the_leaders_log_agrees() -> None:
    assert step_of(log_of(1, 1, 2), log_of(1, 1, 2, 2, 3)) is None
    assert step_of(log_of(), log_of(1, 1)) is None
    assert step_of(NO_LOG, NO_LOG) is None
    assert step_of(NO_LOG, log_of(1)) is None


def test_what_the_leader_does_not_have_goes() -> None:
    assert step_of(log_of(1, 1, 2, 2), log_of(1, 1, 2)) == divergence.Step(Truncate(RECORDS, 3), 3)
    assert step_of(log_of(1, 1, 2), log_of(1, 1, 3, 3, 3)) == divergence.Step(Truncate(RECORDS, 2), 2)


def test_a_log_of_the_same_length_is_not_the_same() -> None:
    own = log_of(1, 1, 2, 2)
    assert rounds(own, log_of(1, 1, 3, 3)) == 1
    assert own.end_offset == 2


def test_one_round_is_not_enough_where_epochs_alternate() -> None:
    own, leader = log_of(1, 3, 3, 5, 5, 5), log_of(1, 2, 4, 4, 6)
    assert rounds(own, leader) > 1
    assert own.read(0, own.end_offset) == leader.read(0, own.end_offset)
    assert own.end_offset == 1


def test_an_epoch_without_a_batch_goes_too() -> None:
    own = log_of(1, 1)
    own.known_epochs.begin(2, 2)
    step = step_of(own, log_of(1, 1, 3))
    assert step == divergence.Step(Truncate(RECORDS, 2), 2)
    own.truncate(2)
    assert own.latest_epoch == 1
    assert step_of(own, log_of(1, 1, 3)) is None


def test_a_follower_that_ends_below_the_leaders_start_begins_there() -> None:
    leader = log_of(2, 2, 2, start=10)
    assert step_of(log_of(1, 1), leader) == divergence.Step(Reset(RECORDS, 10), 10)
    assert step_of(NO_LOG, leader) == divergence.Step(Reset(RECORDS, 10), 10)


def test_a_follower_that_begins_behind_the_leader_keeps_what_agrees() -> None:
    leader = log_of(*[1] * 10)
    own = log_of(*[1] * 10)
    own.advance_start(6)
    assert step_of(own, leader) is None
    extend(own, 2)
    assert step_of(own, leader) == divergence.Step(Truncate(RECORDS, 10), 10)


def test_an_empty_follower_beyond_the_leaders_end_begins_anew() -> None:
    step = step_of(log_of(start=20), log_of(1, 1))
    assert step == divergence.Step(Reset(RECORDS, 0), 2)


def test_a_stream_that_the_leader_never_had_is_emptied() -> None:
    own = log_of(1, 1)
    assert step_of(own, NO_LOG) == divergence.Step(Reset(RECORDS, 0), 0)
    own.reset(0)
    assert step_of(own, NO_LOG) is None


def test_logs_that_were_cut_and_went_on_agree_in_the_end() -> None:
    """Random histories: whoever leads writes, sometimes a follower takes some of it, logs are cut."""
    for seed in range(300):
        chance = random.Random(seed)
        logs = [log_of(), log_of(), log_of()]
        for epoch in itertools.count(1):
            leader = chance.choice(logs)
            leader.known_epochs.begin(epoch, leader.end_offset)
            extend(leader, *[epoch] * chance.randint(0, 3))
            if chance.random() < 0.3:
                leader.advance_start(chance.randint(leader.start_offset, leader.end_offset))
            for other in logs:
                if other is not leader and chance.random() < 0.5:
                    rounds(other, leader)
                    first = max(other.start_offset, leader.start_offset)
                    assert other.read(first, other.end_offset) == leader.read(first, other.end_offset), seed
                    missing = leader.read(other.end_offset, leader.end_offset)
                    other.append(missing[: chance.randint(0, len(missing))])
            if epoch > 12:
                break
