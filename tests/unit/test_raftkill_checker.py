"""Each anomaly is planted in a sound run of the kill harness, and the checker names it and nothing else."""

from __future__ import annotations

import json

import pytest

from tests.raftkill.checker import Anomaly, Kind, Replica, check, lost_everywhere
from tests.raftkill.history import Event, History
from tests.raftkill.history import Kind as EventKind

INVOKE, OK, FAIL, INFO = EventKind


def history(*steps: tuple[EventKind, str, int | None]) -> History:
    """From (what, "client-seq", index)."""
    found = History()
    for time_ms, (kind, value, index) in enumerate(steps):
        client, _, seq = value.partition("-")
        found.add(Event(kind, client, int(seq), value, "n1", time_ms, index))
    return found


def sound() -> History:
    """a-1, b-1, a-2, b-2 stand at 1, 2, 4, 5; a-3 may or may not be there; b-3 may not."""
    return history(
        (INVOKE, "a-1", None),
        (INVOKE, "b-1", None),
        (OK, "a-1", 1),
        (INFO, "b-1", None),
        (INVOKE, "b-1", None),
        (OK, "b-1", 2),
        (INVOKE, "a-2", None),
        (FAIL, "a-2", None),
        (INVOKE, "b-2", None),
        (INVOKE, "a-2", None),
        (OK, "a-2", 4),
        (OK, "b-2", 5),
        (INVOKE, "a-3", None),
        (INFO, "a-3", None),
        (INVOKE, "b-3", None),
        (FAIL, "b-3", None),
    )


VALUES = ("a-1", "b-1", "a-2", "b-2")


def same(*values: str) -> dict[str, Replica]:
    return {member: Replica(applied_index=6, values=values) for member in ("n1", "n2", "n3")}


def one_differs(*values: str, applied_index: int = 6) -> dict[str, Replica]:
    return {**same(*VALUES), "n2": Replica(applied_index=applied_index, values=values)}


def kinds(anomalies: list[Anomaly]) -> set[tuple[Kind, str]]:
    return {(anomaly.kind, anomaly.member) for anomaly in anomalies}


def everywhere(kind: Kind) -> set[tuple[Kind, str]]:
    return {(kind, member) for member in ("n1", "n2", "n3")}


@pytest.mark.parametrize(
    "replicas",
    [
        pytest.param(same(*VALUES), id="acknowledged only"),
        pytest.param(same(*VALUES, "a-3"), id="the unknown one too"),
    ],
)
def test_sound_run_has_no_anomaly(replicas: dict[str, Replica]) -> None:
    assert check(sound(), replicas) == []


def test_empty_run_has_no_anomaly() -> None:
    assert check(History(), same()) == []
    assert check(History(), {}) == []


@pytest.mark.parametrize(
    ("replicas", "expected", "values"),
    [
        pytest.param(same("a-1", "b-1", "b-2"), everywhere(Kind.LOST), ("a-2",), id="lost in the middle"),
        pytest.param(same("a-1", "b-1", "a-2"), everywhere(Kind.LOST), ("b-2",), id="lost at the end"),
        pytest.param(same(), everywhere(Kind.LOST), VALUES, id="all lost"),
        pytest.param(
            one_differs("a-1", "b-1", "a-2"),
            {(Kind.LOST, "n2"), (Kind.DIVERGED, "n2")},
            ("b-2",),
            id="lost on one member",
        ),
        pytest.param(same("a-1", "b-1", "a-2", "b-2", "a-2"), everywhere(Kind.DUPLICATE), ("a-2",), id="duplicate"),
        pytest.param(
            same("a-1", "b-1", "a-2", "b-2", "a-3", "a-3"), everywhere(Kind.DUPLICATE), ("a-3",), id="unknown twice"
        ),
        pytest.param(one_differs(*VALUES, "a-3"), {(Kind.DIVERGED, "n2")}, (), id="the unknown one at one member"),
        pytest.param(one_differs(*VALUES, applied_index=5), {(Kind.DIVERGED, "n2")}, (), id="another index"),
        pytest.param(same(*VALUES, "c-1"), everywhere(Kind.PHANTOM), ("c-1",), id="phantom"),
        pytest.param(same(*VALUES, "b-3"), everywhere(Kind.REFUSED), ("b-3",), id="refused"),
        pytest.param(
            same("a-1", "b-1", "b-2", "a-2"),
            everywhere(Kind.INDEX),
            ("a-2",),
            id="concurrent, but not as acknowledged",
        ),
        pytest.param(
            same("a-1", "a-2", "b-1", "b-2"),
            everywhere(Kind.INDEX) | everywhere(Kind.REAL_TIME),
            ("b-1",),
            id="acknowledged before, stands behind",
        ),
        pytest.param(
            same("a-3", *VALUES),
            everywhere(Kind.ORDER) | everywhere(Kind.REAL_TIME),
            None,
            id="a client's last first",
        ),
    ],
)
def test_planted_anomaly_is_found(
    replicas: dict[str, Replica], expected: set[tuple[Kind, str]], values: tuple[str, ...] | None
) -> None:
    found = check(sound(), replicas)
    assert kinds(found) == expected
    for anomaly in found:
        if anomaly.kind is not Kind.DIVERGED and values is not None:
            assert anomaly.values == values
        assert str(anomaly).startswith(f"{anomaly.kind} at {anomaly.member}: ")


def test_order_within_a_client_needs_no_acknowledgement() -> None:
    told_nothing = history((INVOKE, "a-1", None), (INFO, "a-1", None), (INVOKE, "a-2", None), (INFO, "a-2", None))
    assert kinds(check(told_nothing, same("a-2", "a-1"))) == everywhere(Kind.ORDER)
    assert check(told_nothing, same("a-2")) == []


def test_two_values_acknowledged_at_one_index() -> None:
    twice = history((INVOKE, "a-1", None), (INVOKE, "b-1", None), (OK, "a-1", 7), (OK, "b-1", 7))
    assert kinds(check(twice, same("a-1", "b-1"))) == everywhere(Kind.INDEX)


def test_lost_everywhere_is_what_no_member_has() -> None:
    replicas = {**same("a-1", "b-1"), "n2": Replica(applied_index=6, values=("a-1", "b-1", "a-2"))}
    assert lost_everywhere(check(sound(), replicas), replicas) == {"b-2"}
    assert lost_everywhere(check(sound(), same(*VALUES)), replicas) == set()


def test_many_values_are_counted_and_some_are_shown() -> None:
    anomaly = Anomaly(Kind.LOST, "n1", tuple(f"c-{number}".ljust(500, ".") for number in range(40)))
    assert str(anomaly).startswith("lost at n1: 40: c-0...")
    assert len(str(anomaly)) < 200


def test_answer_without_a_question_is_a_broken_history() -> None:
    with pytest.raises(ValueError, match="before it was asked for"):
        check(history((OK, "a-1", 1)), same("a-1"))


def test_history_counts_and_prints_its_events() -> None:
    found = sound()
    assert (found.acks, len(found)) == (4, len(list(found)))
    assert found.last_ack is not None
    assert (found.last_ack.value, found.last_ack.index) == ("b-2", 5)
    lines = [json.loads(line) for line in found.lines()]
    assert lines[2] == {
        "kind": "ok",
        "client": "a",
        "seq": 1,
        "value": "a-1",
        "member": "n1",
        "time_ms": 2,
        "index": 1,
    }
