"""Which leader epoch wrote which offsets."""

from __future__ import annotations

import pytest

from quire.errors import InvariantViolation, StaleEpochError
from quire_broker.log.epochs import LeaderEpochs


@pytest.fixture
def epochs() -> LeaderEpochs:
    return LeaderEpochs([(2, 10), (3, 20), (7, 25)])


@pytest.mark.parametrize(
    ("epoch", "answer"),
    [
        (1, (-1, 10)),  # before all that is known: a follower has nothing in common with this log
        (2, (2, 20)),
        (3, (3, 25)),
        (5, (3, 25)),  # unknown here: the largest that both may have
        (7, (7, 40)),  # the latest ends where the log does
        (9, (7, 40)),
    ],
)
def test_the_end_of_an_epoch_is_where_the_next_begins(
    epochs: LeaderEpochs, epoch: int, answer: tuple[int, int]
) -> None:
    assert epochs.end_of(epoch, 40) == answer


def test_without_epochs_the_end_is_that_of_the_log() -> None:
    assert LeaderEpochs().end_of(5, 40) == (-1, 40)


@pytest.mark.parametrize(("offset", "epoch"), [(9, -1), (10, 2), (19, 2), (20, 3), (24, 3), (25, 7), (1 << 40, 7)])
def test_every_offset_has_the_epoch_that_wrote_it(epochs: LeaderEpochs, offset: int, epoch: int) -> None:
    assert epochs.at(offset) == epoch


def test_a_span_ends_where_the_next_epoch_begins(epochs: LeaderEpochs) -> None:
    assert epochs.span(0) == (-1, 10)
    assert epochs.span(12) == (2, 20)
    assert epochs.span(25)[0] == 7
    assert epochs.span(25)[1] > 1 << 62


def test_an_epoch_begins_once(epochs: LeaderEpochs) -> None:
    assert epochs.begin(8, 30)
    assert not epochs.begin(8, 35)
    assert list(epochs)[-1] == (8, 30)


def test_an_epoch_that_has_ended_does_not_begin_again(epochs: LeaderEpochs) -> None:
    with pytest.raises(StaleEpochError) as caught:
        epochs.begin(6, 30)
    assert caught.value.details == {"epoch": "6"}


def test_an_epoch_that_wrote_nothing_leaves_no_trace(epochs: LeaderEpochs) -> None:
    epochs.begin(8, 25)
    epochs.begin(9, 25)
    assert list(epochs) == [(2, 10), (3, 20), (9, 25)]


@pytest.mark.parametrize(("end", "left"), [(40, 3), (26, 3), (25, 2), (20, 1), (10, 0)])
def test_a_truncation_forgets_epochs_from_its_end_on(epochs: LeaderEpochs, end: int, left: int) -> None:
    assert epochs.truncate(end) == (left < 3)
    assert list(epochs) == [(2, 10), (3, 20), (7, 25)][:left]


@pytest.mark.parametrize(("offset", "gone"), [(0, 0), (10, 0), (19, 0), (20, 1), (24, 1), (25, 2), (99, 2)])
def test_epochs_that_ended_below_are_forgotten(epochs: LeaderEpochs, offset: int, gone: int) -> None:
    epochs.forget_below(offset)
    assert list(epochs) == [(2, 10), (3, 20), (7, 25)][gone:]


@pytest.mark.parametrize("entries", [[(3, 0), (2, 5)], [(2, 5), (3, 5)], [(2, 5), (2, 6)]])
def test_epochs_out_of_order_are_a_bug(entries: list[tuple[int, int]]) -> None:
    with pytest.raises(InvariantViolation):
        LeaderEpochs(entries)
