"""How a member without a vote gets one: never while anything of what it forgot could still matter."""

from __future__ import annotations

import itertools

import pytest

from quire_controller.raft.joining import Join, Joining

OTHERS = ["n2", "n3"]


def joining(others: list[str] = OTHERS) -> Joining:
    return Joining(others, pause=0.25)


def admitted(leader: Joining, matches: dict[str, int], commit_index: int) -> list[str]:
    return [peer for peer, _ in leader.admissible(matches, commit_index=commit_index)]


# --- the member without a vote -------------------------------------------------------------------------------------


def test_it_probes_once_in_a_while() -> None:
    member = joining()
    times = [now / 100 for now in range(0, 100, 5) if member.is_due(now / 100)]
    assert times == [0, 0.25, 0.5, 0.75]


def test_quorum_begins_when_all_others_are_new_and_not_before() -> None:
    member = joining()
    assert not member.heard("n2", is_pristine=True)
    assert not member.heard("n2", is_pristine=True)
    assert member.heard("n3", is_pristine=True)


def test_member_that_is_not_new_any_more_does_not_count() -> None:
    member = joining()
    member.heard("n2", is_pristine=True)
    assert not member.heard("n2", is_pristine=False)
    assert not member.heard("n3", is_pristine=True)


def test_majority_of_new_members_is_not_enough() -> None:
    member = joining(["n2", "n3", "n4", "n5"])
    assert not any(member.heard(peer, is_pristine=True) for peer in ("n2", "n3", "n4"))
    assert not member.heard("n5", is_pristine=False)


# --- the leader ----------------------------------------------------------------------------------------------------


def test_entry_is_made_for_a_directorys_first_probe() -> None:
    leader = joining()
    assert leader.needs_entry("n2", 77)
    leader.begin("n2", Join(77, 10))
    assert not leader.needs_entry("n2", 77)
    assert leader.needs_entry("n2", 78), "it was wiped once more"
    assert leader.needs_entry("n3", 77)


def test_admission_needs_the_entry_here_there_and_committed() -> None:
    """Of three members: both others of the one that joins must have it."""
    for own, other, joiner, commit in itertools.product((9, 10, 11), repeat=4):
        leader = joining()
        leader.begin("n2", Join(77, 10))
        expected = ["n2"] if min(own, other, joiner, commit) >= 10 else []
        assert admitted(leader, {"n1": own, "n2": joiner, "n3": other}, commit) == expected


@pytest.mark.parametrize("size", [3, 4, 5, 7])
def test_admission_needs_a_majority_of_the_others(size: int) -> None:
    """The joiner's own copy does not count: without it, as many must have the entry as elect a leader."""
    names = [f"n{number}" for number in range(1, size + 1)]
    for have in range(size):
        leader = joining(names[1:])
        leader.begin("n2", Join(77, 10))
        others = [name for name in names if name != "n2"]
        matches = {name: 10 if number < have else 9 for number, name in enumerate(others)} | {"n2": 10}
        assert admitted(leader, matches, 10) == (["n2"] if 2 * have > size - 1 else [])


def test_admission_is_told_once_and_again_when_asked() -> None:
    leader = joining()
    leader.begin("n2", Join(77, 10))
    matches = {"n1": 12, "n2": 12, "n3": 12}
    assert admitted(leader, matches, 12) == ["n2"]
    assert admitted(leader, matches, 12) == []
    assert not leader.needs_entry("n2", 77)  # it probes on: the word was lost
    assert admitted(leader, matches, 12) == ["n2"]


def test_two_that_join_at_once() -> None:
    """Each counts towards the other's admission only by what it has."""
    leader = joining(["n2", "n3", "n4", "n5"])
    leader.begin("n5", Join(5, 11))
    leader.begin("n2", Join(2, 10))
    matches = {"n1": 11, "n2": 10, "n3": 11, "n4": 9, "n5": 11}
    assert admitted(leader, matches, 11) == ["n2"]
    assert admitted(leader, matches | {"n2": 11}, 11) == ["n5"]


def test_leadership_that_is_over_admits_nobody() -> None:
    leader = joining()
    leader.begin("n2", Join(77, 10))
    leader.forget()
    assert admitted(leader, {"n1": 12, "n2": 12, "n3": 12}, 12) == []
    assert leader.needs_entry("n2", 77)
