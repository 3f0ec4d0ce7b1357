"""What is said of moves, drains and followers: lines, JSON, a bar, and never more than a terminal is wide."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator

import pytest

from quire import (
    BrokerDescription,
    ClusterDescription,
    FollowerLag,
    MoveDescription,
    PartitionDescription,
    TopicDescription,
)
from quire.cli import cluster, draining, lag, moving, watching
from quire.cli.watching import Stage, until_done
from quire.errors import InvalidArgumentError, NotEnoughBrokersError, UnknownBrokerError

WIDE = 80


def stages(*left: int, problem: InvalidArgumentError | None = None) -> Iterator[Stage]:
    for each in left:
        yield Stage(each, f"{each} to go", {"left": each}, is_done=each == 0, note=f"{each} bytes")
    if problem is not None:
        yield Stage(0, "", {}, problem=problem)


@pytest.fixture(autouse=True)
def in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "LOOK_S", 0)


def watch(found: Iterator[Stage], *, as_json: bool = False) -> None:
    until_done("moving", lambda: next(found), as_json=as_json, interrupted="it goes on")


def test_lines_say_what_has_changed(capsys: pytest.CaptureFixture[str]) -> None:
    watch(stages(3, 3, 2, 2, 0))
    assert capsys.readouterr() == ("3 to go\n2 to go\n0 to go\n", "")


def test_json_is_a_line_for_each_change(capsys: pytest.CaptureFixture[str]) -> None:
    watch(stages(2, 2, 0), as_json=True)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [{"left": 2}, {"left": 0}]


def test_terminal_gets_a_bar_and_the_last_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    watch(stages(3, 2, 0))
    assert capsys.readouterr().out == "0 to go\n"
    assert "moving" in terminal.getvalue()


def test_ctrl_c_says_that_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    def found() -> Iterator[Stage]:
        yield from stages(3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch(found())
    assert capsys.readouterr() == ("3 to go\n", "it goes on\n")


def test_what_will_never_be_done_is_an_error() -> None:
    with pytest.raises(InvalidArgumentError, match="turned back"):
        watch(stages(3, problem=InvalidArgumentError("it was turned back")))


# --- followers -----------------------------------------------------------------------------------------------------

AWAY = FollowerLag(broker_id=3, records=None, size_bytes=None)
BEHIND = FollowerLag(broker_id=2, records=1_234_567_890, size_bytes=98_765_432_109)
UNKNOWN_SIZE = FollowerLag(broker_id=2, records=1, size_bytes=None)
EQUAL = FollowerLag(broker_id=1, records=0, size_bytes=0)


def test_only_followers_that_are_behind_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    lag.show({0: (EQUAL, BEHIND), 1: (AWAY, UNKNOWN_SIZE), 2: (EQUAL,)})
    assert capsys.readouterr().out == (
        "\n"
        "partition  follower  behind\n"
        "        0         2  1,234,567,890 records, 92.0 GiB\n"
        "        1         3  does not follow\n"
        "        1         2  1 record\n"
    )
    lag.show({0: (EQUAL,)})
    assert capsys.readouterr().out == ""


def test_brokers_that_are_behind_are_summed_up(capsys: pytest.CaptureFixture[str]) -> None:
    cluster._show_lags({("a", 0): (BEHIND, AWAY), ("a", 1): (BEHIND, AWAY), ("b", 0): (UNKNOWN_SIZE, AWAY)})
    out = capsys.readouterr().out
    assert out == (
        "\n"
        "broker     behind in  by\n"
        "     2  3 partitions  2,469,135,781 records\n"
        "     3  3 partitions  -                      3 not followed\n"
    )
    assert max(map(len, out.splitlines())) <= WIDE
    cluster._show_lags({("a", 0): (EQUAL,)})
    assert capsys.readouterr().out == ""


# --- drains --------------------------------------------------------------------------------------------------------


def broker(broker_id: int, *, drain: str | None = None, fenced: bool = False, replicas: int = 0) -> BrokerDescription:
    return BrokerDescription(
        broker_id=broker_id,
        broker_epoch=1,
        node_id=f"n{broker_id}",
        rack="",
        listeners=(),
        fenced=fenced,
        drain=drain,
        replicas=replicas,
        leaderships=min(replicas, 1),
    )


class Admin:
    """One that knows this of the cluster."""

    def __init__(self, *brokers: BrokerDescription, moves: int = 0) -> None:
        self._brokers, self._moves = brokers, moves

    def describe_cluster(self) -> ClusterDescription:
        return ClusterDescription(
            cluster_id="c",
            feature_level=1,
            version=1,
            controller_id="c1",
            brokers=self._brokers,
            topics=1,
            partitions=9,
            leaderless=0,
            under_replicated=0,
            moving=0,
            reassigning=self._moves,
            deleted_topics=0,
        )

    def list_moves(self) -> list[MoveDescription]:
        lags = (FollowerLag(broker_id=3, records=10, size_bytes=2048),)
        return [
            MoveDescription(topic="t", partition=n, original=(1, 2), target=(3, 2), cancelled=False, followers=lags)
            for n in range(self._moves)
        ]


def stage(*brokers: BrokerDescription, moves: int = 0, goal: str = "replicas") -> Stage:
    return draining._stage(Admin(*brokers, moves=moves), brokers[0], goal)  # type: ignore[arg-type]  # as much as it uses


def test_stages_of_a_drain() -> None:
    drained, other = broker(1, drain="replicas", replicas=5), broker(2)
    begun = stage(drained, other, moves=2)
    assert (begun.left, begun.is_done) == (6, False)
    assert begun.text == "n1 (broker 1): 1 leadership and 5 replicas (2 moves under way) to go"
    assert begun.note == "20 records, 4.0 KiB to copy"
    assert len(begun.text) <= WIDE
    over = stage(broker(1, drain="replicas"), other)
    assert over.is_done
    assert over.document["done"]
    led = stage(broker(1, drain="leaderships", replicas=5), other, goal="leaderships")
    assert (led.left, led.text) == (1, "n1 (broker 1): 1 leadership to go")


def test_drain_that_somebody_ended_or_that_has_nowhere_to_go_is_a_problem() -> None:
    ended = stage(broker(1, replicas=5), broker(2))
    assert isinstance(ended.problem, InvalidArgumentError)
    nobody = stage(broker(1, drain="replicas", replicas=5), broker(2, fenced=True), broker(3, drain="replicas"))
    assert isinstance(nobody.problem, NotEnoughBrokersError)
    alone = stage(broker(1, drain="leaderships", replicas=5), goal="leaderships")
    assert isinstance(alone.problem, NotEnoughBrokersError)
    gone = draining._stage(Admin(broker(2)), broker(1), "replicas")  # type: ignore[arg-type]  # as much as it uses
    assert isinstance(gone.problem, UnknownBrokerError)


def test_move_that_is_turned_back_while_it_is_looked_at_ends_where_it_came_from() -> None:
    class Turned:
        """A move from broker 1 to broker 2, turned back by somebody, and over by the second look."""

        def cancel_move(self, topic: str, partition: int) -> None:
            raise AssertionError("it is turned back already")

        def describe_topic(self, topic: str) -> TopicDescription:
            raise AssertionError("what is known by now says where it goes")

    now = PartitionDescription(
        partition=0,
        leader=1,
        leader_epoch=3,
        replicas=(1, 2),
        isr=(1,),
        target=(1,),
        original=(2,),
        cancelled=True,
    )
    assert moving._turn_back(Turned(), "t", now) == (1,)  # type: ignore[arg-type]  # as much as it uses


def test_nodes_are_found_by_name_first() -> None:
    odd = [broker(1), broker(2)]
    assert draining.broker_named(odd, "n2").broker_id == 2
    assert draining.broker_named(odd, "2").broker_id == 2
    with pytest.raises(UnknownBrokerError, match="there are n1 \\(1\\), n2 \\(2\\)"):
        draining.broker_named(odd, "3")
