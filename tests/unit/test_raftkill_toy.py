"""The kill harness's state machine applies each (client, seq) once and survives its snapshots."""

from __future__ import annotations

import pytest

from quire.errors import DamagedFileError
from quire_controller.ports import StateMachine
from tests.raftkill.toy import Toy
from tests.raftkill.toy_machine import PIECE_VALUES, ToyMachine, decode_result, encode_command


@pytest.mark.parametrize(
    ("seq", "index"),
    [pytest.param(2, 5, id="the last: where it stands"), pytest.param(1, 0, id="an earlier one: forgotten")],
)
def test_toy_applies_each_seq_once(seq: int, index: int) -> None:
    toy = Toy()
    assert toy.apply(index=4, client="a", seq=1, value="a-1") == 4
    assert toy.apply(index=5, client="a", seq=2, value="a-2") == 5
    assert toy.apply(index=9, client="a", seq=seq, value=f"a-{seq}") == index
    assert toy.values == ["a-1", "a-2"]
    assert toy.apply(index=10, client="b", seq=1, value="b-1") == 10


def machine(count: int) -> ToyMachine:
    found = ToyMachine()
    for seq in range(1, count + 1):
        assert decode_result(found.apply(seq + 1, encode_command("a", seq, f"a-{seq}"))) == seq + 1
    return found


@pytest.mark.parametrize("count", [0, 1, PIECE_VALUES, PIECE_VALUES + 1, 10 * PIECE_VALUES])
def test_machine_becomes_what_another_froze(count: int) -> None:
    one: StateMachine = machine(count)
    other = machine(3)
    other.restore(one.freeze())
    assert other.values == tuple(f"a-{seq}" for seq in range(1, count + 1))
    # It knows what it has, too.
    assert decode_result(other.apply(99, encode_command("a", count, "again"))) == (count + 1 if count else 0)
    assert decode_result(other.apply(100, encode_command("a", count + 1, "next"))) == 100


def test_frozen_picture_is_that_of_the_call() -> None:
    one = machine(3)
    pieces = one.freeze()
    one.apply(99, encode_command("a", 4, "a-4"))
    other = ToyMachine()
    other.restore(pieces)
    assert other.values == ("a-1", "a-2", "a-3")


@pytest.mark.parametrize("pieces", [[], [b"{"], [b"[]"], [b'{"a": 1}'], [b"{}", b"1"]])
def test_damaged_snapshot_is_refused_and_changes_nothing(pieces: list[bytes]) -> None:
    one = machine(2)
    with pytest.raises(DamagedFileError):
        one.restore(pieces)
    assert one.values == ("a-1", "a-2")
