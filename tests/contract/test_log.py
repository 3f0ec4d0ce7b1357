"""What a log promises, on every disk."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from quire.disk.os_disk import OsDisk
from quire.disk.port import Disk
from quire.disk.sim_disk import SimDisk
from quire.errors import (
    BatchTooLargeError,
    ChecksumMismatchError,
    DamagedFileError,
    DuplicateSequenceError,
    InvalidArgumentError,
    MalformedBatchError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    QuireError,
    StaleEpochError,
    UnsupportedBatchError,
)
from quire.records import BatchHeader, iter_batches, pack_batch, parse_header
from quire_broker.log.appender import Appended
from quire_broker.log.config import LogConfig
from quire_broker.log.log import Log
from tests.unit.log_crafting import (
    NOW_MS,
    append,
    append_one,
    batch,
    fill,
    numbered,
    producer,
    records,
    stored,
    value_at,
    values,
)

BATCH_BYTES: Final = len(batch(bytes(100)))
TEN_A_SEGMENT: Final = LogConfig(segment_bytes=10 * BATCH_BYTES, index_interval_bytes=300, retention_ms=None)

Sidecars = tuple["MarkerKind", ...]


class Place:
    """A directory on some disk, and logs in it."""

    def __init__(self, disk: Disk, root: str) -> None:
        self.disk = disk
        self.root = root

    def open(
        self, name: str = "log", *, config: LogConfig = TEN_A_SEGMENT, now_ms: int = NOW_MS, sidecars: Sidecars = ()
    ) -> Log:
        return Log.open(self.disk, f"{self.root}/{name}", config, now_ms=now_ms, sidecars=sidecars)

    def files(self, name: str = "log") -> dict[str, bytes]:
        """Content of every segment by its name."""
        found = {}
        for file_name in self.disk.names(f"{self.root}/{name}"):
            if file_name.endswith(".log"):
                file = self.disk.open(f"{self.root}/{name}/{file_name}")
                found[file_name] = file.read(0, file.size())
                file.close()
        return found


@pytest.fixture(params=[SimDisk, OsDisk])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(SimDisk(), "/data") if request.param is SimDisk else Place(OsDisk(), str(tmp_path))


@pytest.fixture
def log(place: Place) -> Log:
    return place.open()


# --- beginnings ---------------------------------------------------------------------------------------------------


def test_a_new_log_is_empty(log: Log) -> None:
    assert (log.start_offset, log.end_offset, log.synced_offset, log.size_bytes) == (0, 0, 0, 0)
    assert log.latest_epoch == -1
    assert list(log.epochs) == []
    assert log.quarantined == []
    assert len(log.read(0, bytes_max=1).data) == 0
    assert log.find_time(0) is None
    assert log.begin_sync() is None


def test_appended_batches_get_offsets_in_order(log: Log) -> None:
    log.begin_epoch(4)
    outcomes = log.append([batch(b"a", b"b"), batch(b"c")], epoch=4, now_ms=NOW_MS)
    assert outcomes == [Appended(0, 2, duplicate=False), Appended(2, 3, duplicate=False)]
    assert log.end_offset == 3
    assert values(log) == {0: b"a", 1: b"b", 2: b"c"}
    headers = [header for _, header in iter_batches(stored(log))]
    assert [(header.base_offset, header.leader_epoch) for header in headers] == [(0, 4), (2, 4)]


def test_stored_batches_are_the_sent_ones_but_for_offset_and_epoch(log: Log) -> None:
    sent = batch(b"a", b"b")
    append(log, batch(), sent)
    assert stored(log, first=1)[16:] == sent[16:]


def test_nothing_appended_is_nothing_written(log: Log) -> None:
    log.begin_epoch(0)
    assert log.append([], epoch=0, now_ms=NOW_MS) == []
    assert log.append_stored(b"", now_ms=NOW_MS) == 0


def test_any_buffer_can_be_appended(log: Log) -> None:
    append(log, bytearray(batch(b"a")), memoryview(batch(b"b")))
    assert values(log) == {0: b"a", 1: b"b"}


def test_a_log_goes_on_where_it_was_closed(place: Place) -> None:
    log = place.open()
    fill(log, 25)
    log.close()
    log = place.open()
    assert (log.end_offset, log.synced_offset, log.recovery_point) == (25, 25, 25)
    assert log.recovery.scanned_bytes < 10 * BATCH_BYTES
    fill(log, 10)
    log.close()
    assert values(place.open()) == numbered(0, 35)


def test_a_log_goes_on_where_its_process_was_killed(place: Place) -> None:
    fill(place.open(), 25)
    log = place.open()
    assert (log.end_offset, log.synced_offset) == (25, 25)
    assert values(log) == numbered(0, 25)


def test_closing_twice_is_harmless(log: Log) -> None:
    fill(log, 3)
    log.close()
    log.close()


def test_synced_follows_what_was_synced(log: Log) -> None:
    fill(log, 3)
    assert log.synced_offset == 0
    plan = log.begin_sync()
    assert plan is not None
    assert log.syncing
    fill(log, 2)
    plan.run()
    log.finish_sync(plan)
    assert not log.syncing
    assert (log.synced_offset, log.end_offset) == (3, 5)
    log.sync()
    assert log.synced_offset == 5
    assert log.begin_sync() is None


# --- reading ------------------------------------------------------------------------------------------------------


def test_how_much_is_left_to_read_is_known_to_an_index_interval(log: Log) -> None:
    fill(log, 25)  # of three segments
    log.sync()
    interval = log.config.index_interval_bytes + BATCH_BYTES
    for offset in range(26):
        left = BATCH_BYTES * (25 - offset)
        assert left <= log.bytes_from(offset) <= left + (interval if left else 0)


def test_how_much_is_left_to_read_is_not_known_where_an_index_is_damaged(place: Place, log: Log) -> None:
    fill(log, 25)
    log.sync(checkpoint=True)  # so that what is full is searched in its file
    place.disk.remove(f"{log.directory}/{0:020d}.index")
    with pytest.raises(DamagedFileError):
        log.bytes_from(5)
    assert log.bytes_from(25) == 0
    log.read(5, bytes_max=1)  # whoever reads there makes it anew
    assert log.bytes_from(5) >= 20 * BATCH_BYTES


def test_a_read_stays_below_bytes_max(log: Log) -> None:
    fill(log, 8)
    for bytes_max in range(BATCH_BYTES, 8 * BATCH_BYTES + 10, 50):
        batches = log.read(0, bytes_max=bytes_max)
        assert len(batches.data) == bytes_max // BATCH_BYTES * BATCH_BYTES
        assert (batches.base_offset, batches.end_offset) == (0, bytes_max // BATCH_BYTES)


@pytest.mark.parametrize("bytes_max", [0, 1, 61, 100])
def test_the_first_batch_always_comes_whole(log: Log, bytes_max: int) -> None:
    append(log, batch(b"a" * 200, b"b" * 200), batch(b"c"))
    batches = log.read(1, bytes_max=bytes_max)
    assert (batches.base_offset, batches.end_offset) == (0, 2)
    assert [record.offset for record in records(batches.data)] == [0, 1]


def test_a_read_stays_below_end_offset(log: Log) -> None:
    append(log, batch(b"a"), batch(b"b", b"c"), batch(b"d"))
    assert log.read(0, bytes_max=1 << 20, end_offset=3).end_offset == 3
    # A batch that reaches across is not returned: its later records may not be seen yet.
    assert log.read(0, bytes_max=1 << 20, end_offset=2).end_offset == 1
    assert len(log.read(1, bytes_max=1 << 20, end_offset=2).data) == 0
    assert len(log.read(3, bytes_max=1 << 20, end_offset=3).data) == 0
    assert log.read(0, bytes_max=1 << 20, end_offset=100).end_offset == 4


def test_every_offset_can_be_read_from(place: Place) -> None:
    log = place.open()
    fill(log, 35)
    for opened in (log, place.open()):
        for offset in random.Random(1).sample(range(35), 35):
            batches = opened.read(offset, bytes_max=1)
            assert batches.base_offset == offset
            assert records(batches.data)[0].value == value_at(offset)


def test_reading_at_the_end_gives_nothing(log: Log) -> None:
    fill(log, 3)
    batches = log.read(3, bytes_max=1)
    assert (len(batches.data), batches.base_offset, batches.end_offset) == (0, 3, 3)


@pytest.mark.parametrize("offset", [-1, 4, 11, 1 << 62])
def test_an_offset_outside_is_out_of_range(log: Log, offset: int) -> None:
    fill(log, 10)
    log.advance_start(5)
    with pytest.raises(OffsetOutOfRangeError) as caught:
        log.read(offset, bytes_max=1)
    assert caught.value.details == {"offset": str(offset), "start_offset": "5", "end_offset": "10"}


def test_more_segments_than_open_files_can_be_read(place: Place) -> None:
    log = place.open(config=LogConfig(segment_bytes=1, open_files_max=2, retention_ms=None))
    fill(log, 20)
    log.sync()
    assert log.segment_count == 20
    assert values(log) == values(log) == numbered(0, 20)


# --- rolling ------------------------------------------------------------------------------------------------------


def test_a_segment_is_rolled_before_it_grows_past_its_size(place: Place) -> None:
    fill(place.open(), 25)
    assert {name: len(data) for name, data in place.files().items()} == {
        "00000000000000000000.log": 10 * BATCH_BYTES,
        "00000000000000000010.log": 10 * BATCH_BYTES,
        "00000000000000000020.log": 5 * BATCH_BYTES,
    }


def test_a_batch_larger_than_a_segment_gets_one_of_its_own(log: Log) -> None:
    append(log, batch(b"a"), batch(bytes(20 * BATCH_BYTES)), batch(b"b"))
    assert log.segment_count == 3
    assert values(log) == {0: b"a", 1: bytes(20 * BATCH_BYTES), 2: b"b"}


def test_a_segment_is_rolled_when_its_first_append_is_old(place: Place) -> None:
    config = LogConfig(segment_ms=1_000, retention_ms=None)
    log = place.open(config=config)

    def segments_at(after_ms: int) -> int:
        append(log, batch(timestamp_ms=NOW_MS + after_ms), now_ms=NOW_MS + after_ms)
        return log.segment_count

    assert [segments_at(after_ms) for after_ms in (0, 999, 1_000, 1_999)] == [1, 1, 2, 2]
    log.close()
    log = place.open(config=config, now_ms=NOW_MS + 1_999)
    assert [segments_at(after_ms) for after_ms in (1_999, 2_000, 2_999, 3_000)] == [2, 3, 3, 4]
    assert log.end_offset == 8


# --- timestamps ---------------------------------------------------------------------------------------------------


def test_the_first_record_at_or_after_a_timestamp_is_found(log: Log) -> None:
    append(log, *(batch(timestamp_ms=NOW_MS + 10 * n) for n in range(30)))
    assert log.find_time(0) == (NOW_MS, 0)
    assert log.find_time(NOW_MS + 120) == (NOW_MS + 120, 12)
    assert log.find_time(NOW_MS + 121) == (NOW_MS + 130, 13)
    assert log.find_time(NOW_MS + 291) is None


def test_timestamps_may_go_back(place: Place) -> None:
    chance = random.Random(3)
    log = place.open()
    times = [NOW_MS + chance.randint(0, 500) for _ in range(60)]
    append(log, *(batch(bytes(80), timestamp_ms=time) for time in times))
    for opened in (log, place.open()):
        for wanted in [*times, *(time + 1 for time in times)]:
            first = next((n for n, time in enumerate(times) if time >= wanted), None)
            assert opened.find_time(wanted) == (None if first is None else (times[first], first))


def test_a_record_below_the_start_is_not_found_by_time(log: Log) -> None:
    append(log, *(batch(timestamp_ms=NOW_MS + 10 * n) for n in range(30)))
    log.advance_start(15)
    assert log.find_time(NOW_MS) == (NOW_MS + 150, 15)


# --- idempotent producers -----------------------------------------------------------------------------------------


def sent(sequence: int, *, count: int = 1, epoch: int = 0, producer_id: int = 7) -> bytes:
    return batch(
        *(b"%d" % (sequence + n) for n in range(count)), **producer(sequence, producer_id=producer_id, epoch=epoch)
    )


def test_a_retry_of_each_of_the_last_five_is_answered_with_its_place(log: Log) -> None:
    append(log, *(sent(2 * n, count=2) for n in range(8)))
    for n in range(3, 8):
        assert append_one(log, sent(2 * n, count=2)) == Appended(2 * n, 2 * n + 2, duplicate=True)
    assert log.end_offset == 16


def test_a_retry_in_the_same_call_is_a_duplicate(log: Log) -> None:
    outcomes = append(log, sent(0), sent(0), sent(1))
    assert outcomes == [Appended(0, 1, False), Appended(0, 1, True), Appended(1, 2, False)]


def test_an_older_retry_is_refused_as_stored_before(log: Log) -> None:
    append(log, *(sent(n) for n in range(8)))
    error = append_one(log, sent(2))
    assert type(error) is DuplicateSequenceError
    assert error.details == {"producer_id": "7", "producer_epoch": "0"}


def test_a_gap_is_refused(log: Log) -> None:
    append(log, sent(0))
    error = append_one(log, sent(2))
    assert type(error) is OutOfOrderSequenceError
    assert error.details == {"producer_id": "7", "producer_epoch": "0", "expected": "1"}
    assert append_one(log, sent(1)) == Appended(1, 2, duplicate=False)


def test_an_overlap_is_refused(log: Log) -> None:
    append(log, sent(0, count=3))
    assert type(append_one(log, sent(2, count=3))) is OutOfOrderSequenceError


def test_an_unknown_producer_must_begin_at_zero(log: Log) -> None:
    log.begin_epoch(0)
    assert type(append_one(log, sent(5))) is OutOfOrderSequenceError


def test_a_new_epoch_begins_at_zero_and_fences_the_old(log: Log) -> None:
    append(log, sent(0), sent(1))
    assert type(append_one(log, sent(2, epoch=1))) is OutOfOrderSequenceError
    assert append_one(log, sent(0, epoch=1)) == Appended(2, 3, duplicate=False)
    error = append_one(log, sent(2, epoch=0))
    assert type(error) is ProducerFencedError
    assert error.details == {"producer_id": "7", "producer_epoch": "0"}


def test_producers_do_not_mix(log: Log) -> None:
    append(log, sent(0), sent(0, producer_id=8), sent(1))
    assert append_one(log, sent(0, producer_id=8)) == Appended(1, 2, duplicate=True)


def test_sequences_wrap_around(log: Log) -> None:
    # No client gets here in a test; what a leader has stored is taken as it is.
    last = lying(batch(b"x", **producer(2**31 - 1)), base_offset=0, leader_epoch=0)
    log.append_stored(last, now_ms=NOW_MS)
    assert append_one(log, sent(0)) == Appended(1, 2, duplicate=False)
    assert append_one(log, last) == Appended(0, 1, duplicate=True)


@pytest.mark.parametrize("how", ["closed", "killed", "checkpointed and killed"])
def test_producers_are_known_after_opening_anew(place: Place, how: str) -> None:
    log = place.open()
    append(log, *(sent(n) for n in range(15)))
    if how == "closed":
        log.close()
    elif how == "checkpointed and killed":
        log.sync(checkpoint=True)
        append(log, *(sent(n) for n in range(15, 18)))
    log = place.open()
    end = log.end_offset
    for n in range(end - 5, end):
        assert append_one(log, sent(n)) == Appended(n, n + 1, duplicate=True)
    assert type(append_one(log, sent(end - 6))) is DuplicateSequenceError
    assert append_one(log, sent(end)) == Appended(end, end + 1, duplicate=False)


def test_a_truncation_makes_producers_forget_what_is_gone(log: Log) -> None:
    append(log, *(sent(n) for n in range(18)))
    log.truncate(13)
    log.begin_epoch(1)
    assert append_one(log, sent(12)) == Appended(12, 13, duplicate=True)
    assert append_one(log, sent(9)) == Appended(9, 10, duplicate=True)
    assert append_one(log, sent(13)) == Appended(13, 14, duplicate=False)


def test_a_reset_makes_producers_be_forgotten(log: Log) -> None:
    append(log, sent(0), sent(1))
    log.reset(50)
    log.begin_epoch(1)
    assert append_one(log, sent(0)) == Appended(50, 51, duplicate=False)


def test_a_removed_segment_does_not_make_producers_be_forgotten(place: Place) -> None:
    log = place.open()
    append(log, *(sent(n) for n in range(20)), batch())
    log.advance_start(20)
    log.close()
    log = place.open()
    assert append_one(log, sent(20)) == Appended(21, 22, duplicate=False)


def test_too_many_producers_make_the_most_silent_forgotten(place: Place) -> None:
    log = place.open(config=LogConfig(producers_max=2))
    append(log, sent(0, producer_id=1), sent(0, producer_id=2), sent(1, producer_id=1), sent(0, producer_id=3))
    assert len(log.producers) == 2
    assert type(append_one(log, sent(1, producer_id=2))) is OutOfOrderSequenceError
    assert isinstance(append_one(log, sent(2, producer_id=1)), Appended)
    assert isinstance(append_one(log, sent(1, producer_id=3)), Appended)


def test_a_silent_producer_is_forgotten(place: Place) -> None:
    log = place.open(config=LogConfig(producer_expiry_ms=1_000))
    append(log, sent(0, producer_id=1), now_ms=NOW_MS)
    append(log, sent(0, producer_id=2), now_ms=NOW_MS + 1_000)
    assert len(log.producers) == 2
    append(log, sent(1, producer_id=2), now_ms=NOW_MS + 1_001)
    assert type(append_one(log, sent(1, producer_id=1), now_ms=NOW_MS + 1_001)) is OutOfOrderSequenceError


# --- what is refused ----------------------------------------------------------------------------------------------


def lying(data: bytes, **changes: Any) -> bytes:
    """A batch with other values in its header, and a CRC that holds."""
    return pack_batch(parse_header(data)._replace(**changes), data[61:])


def wrong_crc(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


REFUSED: Final[dict[str, tuple[Callable[[], bytes], type[QuireError]]]] = {
    "oversized": (lambda: batch(bytes(5_000)), BatchTooLargeError),
    "wrong CRC": (lambda: wrong_crc(batch()), ChecksumMismatchError),
    "too high a count": (lambda: lying(batch(), record_count=2), MalformedBatchError),
    "too low a count": (lambda: lying(batch(b"a", b"b"), record_count=1), MalformedBatchError),
    "no records": (lambda: lying(batch(), record_count=0), MalformedBatchError),
    "a negative count": (lambda: lying(batch(), record_count=-1), MalformedBatchError),
    "more than fits": (lambda: lying(batch(), record_count=10**6, last_offset_delta=10**6 - 1), MalformedBatchError),
    "control": (lambda: batch(control=True, **producer(0)), UnsupportedBatchError),
    "append time": (lambda: lying(batch(), attributes=0x8), UnsupportedBatchError),
    "trailing bytes": (lambda: batch() + b"\x00", MalformedBatchError),
    "two in one": (lambda: batch() + batch(), MalformedBatchError),
    "cut off": (lambda: batch()[:-1], MalformedBatchError),
    "a header alone": (lambda: batch()[:61], MalformedBatchError),
    "nothing": (lambda: b"", MalformedBatchError),
    "old magic": (lambda: lying(batch(), magic=1), MalformedBatchError),
    "no producer epoch": (lambda: batch(producer_id=7, producer_epoch=-1, base_sequence=0), MalformedBatchError),
    "no sequence": (lambda: batch(producer_id=7, producer_epoch=0, base_sequence=-1), MalformedBatchError),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_bad_batch_is_refused_and_its_neighbours_are_stored(place: Place, what: str) -> None:
    make, error = REFUSED[what]
    log = place.open(config=LogConfig(batch_bytes_max=5_000))
    log.begin_epoch(0)
    outcomes = log.append([batch(b"a"), make(), batch(b"b")], epoch=0, now_ms=NOW_MS)
    assert outcomes[0] == Appended(0, 1, duplicate=False)
    assert isinstance(outcomes[1], error)
    assert outcomes[2] == Appended(1, 2, duplicate=False)
    assert values(log) == {0: b"a", 1: b"b"}


def test_an_oversized_batch_is_told_its_limit(place: Place) -> None:
    log = place.open(config=LogConfig(batch_bytes_max=5_000))
    log.begin_epoch(0)
    data = batch(bytes(5_000))
    error = append_one(log, data)
    assert isinstance(error, BatchTooLargeError)
    assert error.details == {"size_bytes": str(len(data)), "limit_bytes": "5000"}


def test_a_topic_can_refuse_attributes(log: Log) -> None:
    log.begin_epoch(0)
    [outcome] = log.append([batch(delayed=True)], epoch=0, now_ms=NOW_MS, attributes_allowed=0)
    assert isinstance(outcome, UnsupportedBatchError)


# --- leader epochs ------------------------------------------------------------------------------------------------


def test_only_the_latest_epoch_may_append(log: Log) -> None:
    for epoch in (-1, 0):
        with pytest.raises(StaleEpochError):
            log.append([batch()], epoch=epoch, now_ms=NOW_MS)
    log.begin_epoch(3)
    for epoch in (-1, 2, 4):
        with pytest.raises(StaleEpochError) as caught:
            log.append([batch()], epoch=epoch, now_ms=NOW_MS)
        assert caught.value.details == {"epoch": str(epoch)}
    assert log.end_offset == 0


def test_epochs_rise(log: Log) -> None:
    log.begin_epoch(3)
    log.begin_epoch(3)
    with pytest.raises(StaleEpochError):
        log.begin_epoch(2)
    assert list(log.epochs) == [(3, 0)]


def test_epochs_are_known_after_opening_anew(place: Place) -> None:
    log = place.open()
    for epoch in (1, 2, 5):
        log.begin_epoch(epoch)
        fill(log, 3)
    log.begin_epoch(6)
    for opened in (log, place.open()):
        assert list(opened.epochs) == [(1, 0), (2, 3), (5, 6), (6, 9)]
        assert [opened.epoch_end(epoch) for epoch in (0, 1, 4, 5, 9)] == [(-1, 0), (1, 3), (2, 6), (5, 9), (6, 9)]


def test_a_truncation_forgets_the_epochs_it_removes(place: Place) -> None:
    log = place.open()
    for epoch in (1, 2, 3):
        log.begin_epoch(epoch)
        fill(log, 3)
    log.begin_epoch(4)
    assert log.truncate(100) == 9
    assert log.latest_epoch == 3
    assert log.truncate(6) == 6
    assert place.open().latest_epoch == 2


# --- replication --------------------------------------------------------------------------------------------------


def test_a_follower_has_the_same_bytes(place: Place) -> None:
    leader, follower = place.open("leader"), place.open("follower")
    for epoch in (1, 4):
        leader.begin_epoch(epoch)
        fill(leader, 17)
        append(leader, *(sent(n, epoch=epoch) for n in range(3)))
    while follower.end_offset < leader.end_offset:
        batches = leader.read(follower.end_offset, bytes_max=7 * BATCH_BYTES)
        assert follower.append_stored(batches.data, now_ms=NOW_MS) == batches.end_offset
    assert place.files("follower") == place.files("leader")
    assert list(follower.epochs) == list(leader.epochs)
    assert dict(follower.producers.items()) == dict(leader.producers.items())


def test_a_follower_has_the_same_bytes_whatever_the_portions(place: Place) -> None:
    leader, follower = place.open("leader"), place.open("follower")
    fill(leader, 35)
    follower.append_stored(stored(leader), now_ms=NOW_MS)
    assert place.files("follower") == place.files("leader")


def stored_batch(base_offset: int, *, epoch: int = 0, **changes: Any) -> bytes:
    header: BatchHeader = parse_header(batch())._replace(base_offset=base_offset, leader_epoch=epoch, **changes)
    return pack_batch(header, batch()[61:])


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (stored_batch(5), MalformedBatchError),
        (stored_batch(3), MalformedBatchError),
        (stored_batch(4, epoch=1), StaleEpochError),
        (stored_batch(4, epoch=2, record_count=2), MalformedBatchError),
        (wrong_crc(stored_batch(4, epoch=2)), ChecksumMismatchError),
        (stored_batch(4, epoch=2)[:-1], MalformedBatchError),
    ],
    ids=["gap", "overlap", "stale epoch", "lying count", "wrong CRC", "cut off"],
)
def test_stored_batches_are_taken_all_or_none(log: Log, bad: bytes, error: type[QuireError]) -> None:
    log.begin_epoch(2)
    fill(log, 3)
    before = stored(log)
    with pytest.raises(error):
        log.append_stored(stored_batch(3, epoch=2) + bad, now_ms=NOW_MS)
    assert stored(log) == before
    assert log.append_stored(stored_batch(3, epoch=2), now_ms=NOW_MS) == 4


# --- removing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [0, 1, 9, 10, 11, 19, 20, 24])
def test_a_truncated_log_ends_where_it_was_cut(place: Place, end: int) -> None:
    log = place.open()
    fill(log, 25)
    assert log.truncate(end) == log.end_offset == end
    assert log.synced_offset <= end
    log.begin_epoch(1)
    fill(log, 4)
    assert values(log) == numbered(0, end + 4)
    log.close()
    assert values(place.open()) == numbered(0, end + 4)
    assert sum(map(len, place.files().values())) == (end + 4) * BATCH_BYTES


@pytest.mark.parametrize("end", [3, 4])
def test_a_batch_across_the_cut_goes_whole(log: Log, end: int) -> None:
    append(log, batch(b"a", b"b"), batch(b"c", b"d", b"e"), batch(b"f"))
    assert log.truncate(end) == log.end_offset == 2
    assert values(log) == {0: b"a", 1: b"b"}


def test_truncating_above_the_end_changes_nothing(log: Log) -> None:
    fill(log, 5)
    assert log.truncate(5) == log.truncate(9) == 5
    assert values(log) == numbered(0, 5)


def test_truncating_below_the_start_is_refused(log: Log) -> None:
    fill(log, 15)
    log.advance_start(7)
    with pytest.raises(InvalidArgumentError):
        log.truncate(6)


def test_time_lookups_follow_a_truncation(log: Log) -> None:
    fill(log, 25)
    log.truncate(13)
    assert log.find_time(NOW_MS + 12) == (NOW_MS + 12, 12)
    assert log.find_time(NOW_MS + 13) is None


@pytest.mark.parametrize(("start", "segments"), [(1, 3), (9, 3), (10, 2), (15, 2), (20, 1), (25, 1)])
def test_what_lies_below_the_start_is_gone(place: Place, start: int, segments: int) -> None:
    log = place.open()
    fill(log, 25)
    log.advance_start(start)
    for opened in (log, place.open()):
        assert (opened.start_offset, opened.end_offset, opened.segment_count) == (start, 25, segments)
        assert values(opened) == numbered(start, 25)
    assert len(place.files()) == segments


@pytest.mark.parametrize("start", [4, 16])
def test_the_start_moves_forward_within_the_log(log: Log, start: int) -> None:
    fill(log, 15)
    log.advance_start(5)
    with pytest.raises(InvalidArgumentError):
        log.advance_start(start)


@pytest.mark.parametrize("start", [0, 12, 1_000])
def test_a_reset_log_begins_elsewhere(place: Place, start: int) -> None:
    log = place.open()
    fill(log, 25)
    log.reset(start)
    for opened in (log, place.open()):
        assert (opened.start_offset, opened.end_offset, opened.latest_epoch) == (start, start, -1)
    assert list(place.files()) == [f"{start:020d}.log"]
    log = place.open()
    fill(log, 15)
    assert values(log) == numbered(start, start + 15)


def test_a_log_cannot_be_reset_to_before_zero(log: Log) -> None:
    with pytest.raises(InvalidArgumentError):
        log.reset(-1)


# --- retention ----------------------------------------------------------------------------------------------------


def retaining(place: Place, *, count: int = 35, **limits: int) -> Log:
    """A synced log of ten batches a segment, each a millisecond apart, with limits of retention."""
    settings: dict[str, Any] = {"retention_ms": None, **limits}
    config = LogConfig(segment_bytes=10 * BATCH_BYTES, index_interval_bytes=300, **settings)
    log = place.open(config=config)
    fill(log, count)
    log.sync()
    return log


def test_segments_go_when_their_newest_record_is_too_old(place: Place) -> None:
    log = retaining(place, retention_ms=1_000)
    assert log.apply_retention(now_ms=NOW_MS + 1_009) == 0
    assert log.apply_retention(now_ms=NOW_MS + 1_010) == 1
    assert log.apply_retention(now_ms=NOW_MS + 1_025) == 1
    assert (log.start_offset, values(log)) == (20, numbered(20, 35))


def test_an_old_active_segment_is_rolled_and_goes_too(place: Place) -> None:
    log = retaining(place, retention_ms=1_000, segment_ms=2_000)
    assert log.apply_retention(now_ms=NOW_MS + 10_000) == 4
    assert (log.start_offset, log.end_offset, log.segment_count) == (35, 35, 1)
    fill(log, 2)
    assert values(log) == numbered(35, 37)


@pytest.mark.parametrize(("batches", "removed"), [(36, 0), (35, 0), (26, 0), (25, 1), (16, 1), (15, 2), (0, 3)])
def test_segments_go_when_the_others_are_large_enough(place: Place, batches: int, removed: int) -> None:
    log = retaining(place, retention_bytes=batches * BATCH_BYTES)
    assert log.apply_retention(now_ms=NOW_MS) == removed
    assert log.start_offset == 10 * removed


@pytest.mark.parametrize(("segments", "removed"), [(5, 0), (4, 0), (3, 1), (1, 3), (0, 3)])
def test_segments_go_when_there_are_too_many(place: Place, segments: int, removed: int) -> None:
    log = retaining(place, retention_segments=segments)
    assert log.apply_retention(now_ms=NOW_MS) == removed
    assert log.start_offset == 10 * removed


@pytest.mark.parametrize(("end_offset_max", "removed"), [(0, 0), (9, 0), (10, 1), (29, 2), (100, 3)])
def test_retention_stops_at_what_others_still_need(place: Place, end_offset_max: int, removed: int) -> None:
    log = retaining(place, retention_segments=1)
    assert log.apply_retention(now_ms=NOW_MS, end_offset_max=end_offset_max) == removed


def test_retention_does_not_touch_what_is_not_synced(place: Place) -> None:
    log = place.open(config=LogConfig(segment_bytes=10 * BATCH_BYTES, retention_ms=None, retention_segments=1))
    fill(log, 35)
    assert log.apply_retention(now_ms=NOW_MS) == 0


# --- sidecars -----------------------------------------------------------------------------------------------------


class Marker:
    """Which offsets begin a batch of a traced producer, as a feature might want to know."""

    def __init__(self, offsets: list[int]) -> None:
        self.offsets = offsets

    def observe(self, header: BatchHeader, position: int) -> None:
        self.offsets.append(header.base_offset)

    def to_bytes(self) -> bytes:
        return b",".join(b"%d" % offset for offset in self.offsets)


class MarkerKind:
    name = "marker"

    def __init__(self, version: int = 1) -> None:
        self.version = version
        self.loads = 0

    def new(self) -> Marker:
        return Marker([])

    def from_bytes(self, data: bytes) -> Marker:
        self.loads += 1
        return Marker([int(part) for part in data.split(b",") if part])


def marked(log: Log) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for base_offset, sidecar in log.sidecars("marker"):
        assert isinstance(sidecar, Marker)
        found[base_offset] = sidecar.offsets
    return found


MARKED: Final = {0: [*range(10)], 10: [*range(10, 20)], 20: [*range(20, 25)]}


def test_sidecars_see_every_batch_and_are_kept(place: Place) -> None:
    kind = MarkerKind()
    log = place.open(sidecars=(kind,))
    fill(log, 25)
    assert marked(log) == MARKED
    log.close()
    log = place.open(sidecars=(kind,))
    assert marked(log) == MARKED
    assert kind.loads > 0
    fill(log, 1)
    assert marked(log)[20] == [*range(20, 26)]


@pytest.mark.parametrize("base_offset", [0, 10, 20])
@pytest.mark.parametrize("how", ["flipped", "gone", "empty"])
def test_a_lost_sidecar_is_made_anew(place: Place, base_offset: int, how: str) -> None:
    log = place.open(sidecars=(MarkerKind(),))
    fill(log, 25)
    log.close()
    path = f"{place.root}/log/{base_offset:020d}.marker"
    if how == "gone":
        place.disk.remove(path)
    else:
        file = place.disk.open(path)
        if how == "empty":
            file.truncate(0)
        else:
            file.write(file.size() - 1, [bytes([file.read(file.size() - 1, 1)[0] ^ 1])])
        file.close()
    assert marked(place.open(sidecars=(MarkerKind(),))) == MARKED


def test_a_sidecar_of_a_newer_version_is_made_anew(place: Place) -> None:
    log = place.open(sidecars=(MarkerKind(version=2),))
    fill(log, 25)
    log.close()
    assert marked(place.open(sidecars=(MarkerKind(version=1),))) == MARKED


def test_a_feature_can_be_added_to_an_old_log(place: Place) -> None:
    log = place.open()
    fill(log, 25)
    log.close()
    assert marked(place.open(sidecars=(MarkerKind(),))) == MARKED


def test_sidecars_follow_a_truncation(place: Place) -> None:
    log = place.open(sidecars=(MarkerKind(),))
    fill(log, 25)
    log.sync()
    log.truncate(13)
    assert marked(log) == {0: [*range(10)], 10: [10, 11, 12]}
    log.close()
    assert marked(place.open(sidecars=(MarkerKind(),))) == {0: [*range(10)], 10: [10, 11, 12]}


# --- mending ------------------------------------------------------------------------------------------------------


def damage(place: Place, offset: int) -> None:
    """Flip a bit in the value of a batch that `fill` has made."""
    file = place.disk.open(f"{place.root}/log/{offset // 10 * 10:020d}.log")
    position = offset % 10 * BATCH_BYTES + 80
    file.write(position, [bytes([file.read(position, 1)[0] ^ 1])])
    file.close()


def test_a_damaged_batch_is_mended_with_a_copy_of_it(place: Place) -> None:
    log, replica = place.open(), place.open("replica")
    fill(log, 35)
    replica.append_stored(stored(log), now_ms=NOW_MS)
    log.sync()
    for offset in (4, 13, 17, 34):
        damage(place, offset)
    assert len(values(log)) == 31
    for first, end in log.quarantined:
        copy = stored(replica, first=first, end=end)
        assert log.mend(copy, now_ms=NOW_MS) == end
    for opened in (log, place.open()):
        assert opened.quarantined == []
        assert values(opened) == numbered(0, 35)
    assert place.files() == place.files("replica")


@pytest.mark.parametrize("portion", [1, 7, 35])
def test_lost_segments_are_mended_in_portions(place: Place, portion: int) -> None:
    log, replica = place.open(), place.open("replica")
    fill(log, 35)
    replica.append_stored(stored(log), now_ms=NOW_MS)
    log.close()
    for base in (0, 10, 30):
        place.disk.remove(f"{place.root}/log/{base:020d}.log")
    log = place.open()
    assert log.quarantined == [(0, 20), (30, 35)]
    while log.quarantined:
        first, end = log.quarantined[0]
        log.mend(stored(replica, first=first, end=min(end, first + portion)), now_ms=NOW_MS)
    log.close()
    assert values(place.open()) == numbered(0, 35)
    assert {name: data for name, data in place.files().items() if data} == place.files("replica")


def test_time_lookups_and_sidecars_see_what_was_mended(place: Place) -> None:
    log = place.open(sidecars=(MarkerKind(),))
    fill(log, 25)
    copy = stored(log, first=13, end=14)
    log.sync()
    damage(place, 13)
    assert 13 not in values(log)
    assert log.find_time(NOW_MS + 13) == (NOW_MS + 14, 14)
    assert marked(log)[10] == [10, 11, 12, *range(14, 20)]
    log.mend(copy, now_ms=NOW_MS)
    for opened in (log, place.open(sidecars=(MarkerKind(),))):
        assert opened.find_time(NOW_MS + 13) == (NOW_MS + 13, 13)
        assert marked(opened) == MARKED
