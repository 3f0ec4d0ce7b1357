"""Damaged ranges are fetched again, from whoever has them, and from nobody else's leadership."""

from __future__ import annotations

from quire_broker.log.ranges import OffsetRange
from quire_broker.replica.effects import Mend, MenderEffect, Send
from quire_broker.replica.mending import Batch, Mender
from quire_broker.replica.messages import Want
from quire_broker.replica.streams import RECORDS
from tests.property.replica_world import OTHER, SimLog
from tests.unit.replica_crafting import CONFIG, log_of

WAIT_MS = CONFIG.want_ms_max


def damaged_log(first: int = 2, end: int = 5) -> SimLog:
    log = log_of(1, 1, 1, 2, 2, 2)
    log.quarantined = [OffsetRange(first, end)]
    return log


def mender_of(**logs: SimLog) -> Mender:
    return Mender(logs={RECORDS if name == "records" else OTHER: log for name, log in logs.items()}, config=CONFIG)


def asked(effects: list[MenderEffect]) -> tuple[int, Want]:
    [effect] = effects
    assert isinstance(effect, Send)
    assert isinstance(effect.message, Want)
    return effect.to, effect.message


def test_nothing_is_asked_for_while_nothing_is_damaged() -> None:
    assert mender_of(records=log_of(1)).on_tick([2, 3], 0) == []
    assert mender_of(records=damaged_log()).on_tick([], 0) == []


def test_a_range_is_fetched_and_written() -> None:
    mender = mender_of(records=damaged_log())
    to, want = asked(mender.on_tick([3, 2], 0))
    assert (to, want.stream, want.base_offset, want.end_offset) == (2, RECORDS, 2, 5)
    assert mender.on_tick([2, 3], 1) == []  # one at a time
    batches = [Batch(2, 3, 1), Batch(3, 5, 2)]
    assert mender.on_piece(want.request_id, batches, 2) == [Mend(RECORDS, 2, 5)]
    assert mender.on_piece(want.request_id, batches, 2) == []  # once


def test_a_part_is_better_than_nothing() -> None:
    mender = mender_of(records=damaged_log())
    _, want = asked(mender.on_tick([2], 0))
    assert mender.on_piece(want.request_id, [Batch(2, 3, 1)], 1) == [Mend(RECORDS, 2, 3)]


def test_batches_that_are_not_what_was_lost_are_refused() -> None:
    for batches in (
        [],
        [Batch(2, 3, 2)],  # of another leadership than the one that wrote this offset here
        [Batch(3, 5, 2)],  # not from the beginning
        [Batch(2, 6, 1)],  # beyond the end
    ):
        mender = mender_of(records=damaged_log())
        _, want = asked(mender.on_tick([2], 0))
        assert mender.on_piece(want.request_id, batches, 1) == []


def test_the_next_one_is_asked_and_after_all_of_them_there_is_a_pause() -> None:
    mender = mender_of(records=damaged_log())
    to, want = asked(mender.on_tick([2, 3], 0))
    assert to == 2
    assert mender.on_piece(want.request_id, [], 1) == []
    to, want = asked(mender.on_tick([2, 3], 2))
    assert to == 3
    assert mender.on_piece(want.request_id, [], 3) == []
    assert mender.on_tick([2, 3], 4) == []
    to, _ = asked(mender.on_tick([2, 3], 2 + WAIT_MS))
    assert to == 2


def test_who_does_not_answer_is_passed_over() -> None:
    mender = mender_of(records=damaged_log())
    _, silent = asked(mender.on_tick([2, 3], 0))
    assert mender.on_tick([2, 3], WAIT_MS - 1) == []
    to, _ = asked(mender.on_tick([2, 3], WAIT_MS))
    assert to == 3
    assert mender.on_piece(silent.request_id, [Batch(2, 5, 1)], WAIT_MS + 1) == []


def test_ranges_of_all_streams_are_asked_for_in_turn() -> None:
    mender = mender_of(records=damaged_log(), other=damaged_log(0, 1))
    streams = []
    for turn in range(2):
        _, want = asked(mender.on_tick([2], turn))
        streams.append(want.stream)
        mender.on_piece(want.request_id, [], turn)
    assert streams == [RECORDS, OTHER]


def test_what_was_truncated_meanwhile_is_not_written() -> None:
    log = damaged_log()
    mender = mender_of(records=log)
    _, want = asked(mender.on_tick([2], 0))
    log.truncate(3)
    log.quarantined = [OffsetRange(2, 3)]
    assert mender.on_piece(want.request_id, [Batch(2, 3, 1), Batch(3, 5, 2)], 1) == []
