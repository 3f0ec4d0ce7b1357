"""Turns and budgets of what goes to one follower."""

from __future__ import annotations

import pytest

from quire.errors import InvalidArgumentError
from quire_broker.replica.window import Turn, Window, WindowConfig

CONFIG = WindowConfig(hot_bytes_max=100, hot_turn_bytes=40, catch_up_bytes_max=20, catch_up_turn_bytes=10)


def test_lanes_take_turns() -> None:
    window: Window[str] = Window(CONFIG)
    window.ready("a", is_catch_up=False)
    window.ready("b", is_catch_up=False)
    turns = []
    for end in (10, 20):
        for _ in range(2):
            turn = window.next()
            assert turn is not None
            turns.append(turn.lane)
            window.sent(turn.lane, end_offset=end, size_bytes=10)
    assert turns == ["a", "b", "a", "b"]


def test_what_is_on_its_way_is_bounded_until_it_counts() -> None:
    window: Window[str] = Window(CONFIG)
    window.ready("a", is_catch_up=False)
    for end in (1, 2, 3):
        assert window.next() == Turn("a", 40 if end < 3 else 20)
        window.sent("a", end_offset=end, size_bytes=40)
    assert window.next() is None
    window.counted("a", 1)
    assert window.in_flight_bytes(is_catch_up=False) == 80
    assert window.next() == Turn("a", 20)
    window.counted("a", 3)
    assert window.in_flight_bytes(is_catch_up=False) == 0


def test_a_batch_larger_than_the_window_goes_alone() -> None:
    window: Window[str] = Window(CONFIG)
    window.ready("a", is_catch_up=True)
    assert window.next() == Turn("a", 10)
    window.sent("a", end_offset=7, size_bytes=5_000)
    assert window.next() is None
    window.counted("a", 6)
    assert window.next() is None
    window.counted("a", 7)
    assert window.next() == Turn("a", 10)


def test_catching_up_and_the_hot_path_do_not_keep_each_other_waiting() -> None:
    window: Window[str] = Window(CONFIG)
    window.ready("hot", is_catch_up=False)
    window.ready("cold", is_catch_up=True)
    lanes = []
    for end in range(1, 5):
        turn = window.next()
        assert turn is not None
        assert turn.bytes_max == (40 if turn.lane == "hot" else 10)
        lanes.append(turn.lane)
        window.sent(turn.lane, end_offset=end, size_bytes=10)
    assert lanes == ["hot", "cold", "hot", "cold"]
    # The budget of what catches up is spent, that of the hot path is not.
    assert window.next() == Turn("hot", 40)
    window.sent("hot", end_offset=5, size_bytes=80)
    assert window.next() is None
    window.counted("cold", 4)
    assert window.next() == Turn("cold", 10)


def test_a_lane_that_has_caught_up_frees_the_budget_that_it_used() -> None:
    window: Window[str] = Window(CONFIG)
    window.ready("a", is_catch_up=True)
    window.sent("a", end_offset=1, size_bytes=15)
    window.ready("a", is_catch_up=False)
    window.sent("a", end_offset=2, size_bytes=30)
    assert window.in_flight_bytes(is_catch_up=True) == 15
    window.counted("a", 2)
    assert window.in_flight_bytes(is_catch_up=True) == window.in_flight_bytes(is_catch_up=False) == 0


def test_a_lane_without_more_to_send_gets_no_turn() -> None:
    window: Window[str] = Window(CONFIG)
    window.ready("a", is_catch_up=False)
    window.sent("a", end_offset=1, size_bytes=10)
    window.idle("a")
    assert window.next() is None
    assert window.in_flight_bytes(is_catch_up=False) == 10


def test_what_an_attempt_that_is_over_had_on_its_way_is_not_waited_for() -> None:
    window: Window[str] = Window(CONFIG)
    window.ready("a", is_catch_up=False)
    window.sent("a", end_offset=1, size_bytes=100)
    window.ready("b", is_catch_up=False)
    assert window.next() is None
    window.drop("a")
    assert window.next() == Turn("b", 40)
    window.counted("a", 1)  # too late, and of no consequence


@pytest.mark.parametrize("name", ["hot_turn_bytes", "catch_up_turn_bytes"])
@pytest.mark.parametrize("value", [0, -1, 1 << 40])
def test_a_turn_fits_its_budget(name: str, value: int) -> None:
    with pytest.raises(InvalidArgumentError):
        WindowConfig(**{name: value})
