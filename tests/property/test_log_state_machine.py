"""The log on a simulated disk against a plain list, through everything that a disk and a power cut can do.

What is claimed after each reopening: everything synced is there, in order; nothing is returned that was not
appended; what a flipped bit has touched is never returned.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quire.disk.sim_disk import SimDisk, SimulatedCrash
from quire.errors import (
    DamagedRangeError,
    DiskFullError,
    DiskIoError,
    InvalidArgumentError,
    LogOfflineError,
    OutOfOrderSequenceError,
)
from quire.records import encode_columns, make_prefix, parse_header
from quire_broker.log.appender import Appended
from quire_broker.log.config import LogConfig
from quire_broker.log.log import Log
from quire_broker.log.reader import Batches
from quire_broker.log.sync_plan import Books, SyncPlan

T = TypeVar("T")

DIRECTORY: Final = "/log"
EXAMPLES: Final = int(os.environ.get("QUIRE_LOG_EXAMPLES", "1000"))
"""More of them, and other ones each time, when the number is given: scripts/soak does."""
INTERVAL_BYTES: Final = 512
CONFIG: Final = LogConfig(
    segment_bytes=6_000,
    index_interval_bytes=INTERVAL_BYTES,
    checkpoint_bytes=3_000,
    retention_ms=None,
    retention_segments=3,
    open_files_max=2,
)


@dataclass
class Entry:
    """A batch as it must be read."""

    base_offset: int
    end_offset: int
    data: bytes
    timestamp_ms: int
    producer: tuple[int, int, int] | None
    """(producer id, epoch, first sequence)."""
    flipped: bool = False
    rewritten: bool = False
    """A mending cut short may have put it right since it was flipped."""


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk()
        self.entries: list[Entry] = []
        self.start = 0
        self.synced = 0
        self.epoch = 0
        self.now_ms = 1_000_000
        self.sequences: dict[int, int] = {}
        self.producer_epoch = 0
        self.plan: SyncPlan | None = None
        self.books: Books | None = None
        self.opened = True
        self.tampered = False
        self.flips = False
        self.flipped: list[int] = []
        self.forgetful = False
        self.mark_flipped = False
        self.may_end_at: set[int] = set()
        """Where a truncation under way would leave the end."""
        self.may_start_at: int | None = None
        """How far a removal under way may move the start."""
        self.may_reset_to: int | None = None
        """Where an emptying under way would begin anew."""
        self.log = self._open()
        self._begin_epoch()

    # -- what people do --------------------------------------------------------------------------------------------

    @precondition(lambda self: self.epoch >= 0)
    @rule(
        sizes=st.lists(st.integers(1, 1_500), min_size=1, max_size=5),
        count=st.integers(1, 4),
        fill=st.sampled_from([0, 1, 0xFF]),
        producer=st.sampled_from([None, 7, 8]),
        step_ms=st.integers(-5, 20),
        follow=st.sampled_from(["", "", "", "same epoch", "new epoch"]),
    )
    def append(
        self, sizes: list[int], count: int, fill: int, producer: int | None, step_ms: int, follow: str
    ) -> None:
        """As a leader, or as a follower that is sent what a leader has stored."""
        self.now_ms += 1
        if follow == "new epoch" and self.plan is None and self.books is None and self.log.offline is None:
            self.epoch += 1
        batches, entries, end = [], [], self.end
        sequence = self.sequences.get(producer, 0) if producer is not None else -1
        for n, size in enumerate(sizes):
            timestamp_ms = max(0, self.now_ms + step_ms * n)
            batch = encode_columns(
                [bytes([fill]) * size] * count,
                timestamp_ms=timestamp_ms,
                producer_id=-1 if producer is None else producer,
                producer_epoch=-1 if producer is None else self.producer_epoch,
                base_sequence=sequence,
            )
            batches.append(batch)
            prefix = make_prefix(base_offset=end, length=parse_header(batch).length, leader_epoch=self.epoch)
            identity = None if producer is None else (producer, self.producer_epoch, sequence)
            entries.append(Entry(end, end + count, prefix + batch[16:], timestamp_ms, identity))
            end += count
            sequence += count if producer is not None else 0
        self.entries += entries  # may be there after a crash, whether or not anyone was told
        if follow:
            data = b"".join(entry.data for entry in entries)
            new_end = self._run(lambda: self.log.append_stored(data, now_ms=self.now_ms))
            if new_end is None:
                self.epoch = self.log.latest_epoch
                return
            assert new_end == end
        else:
            outcomes = self._run(lambda: self.log.append(batches, epoch=self.epoch, now_ms=self.now_ms))
            if outcomes is None:
                return
            assert outcomes == [Appended(e.base_offset, e.end_offset, False) for e in entries]
        if producer is not None:
            self.sequences[producer] = sequence

    @precondition(lambda self: self.epoch >= 0)
    @rule(which=st.integers(0, 4))
    def send_again(self, which: int) -> None:
        """A retry of one of a producer's last batches is answered with where it is."""
        mine = [e for e in self.entries if e.producer is not None and e.producer[1] == self.producer_epoch]
        if not mine or self.flips or self.forgetful:
            return
        newest = mine[-1].producer
        assert newest is not None
        same = [e for e in mine if e.producer is not None and e.producer[0] == newest[0]][-5:]
        entry = same[which % len(same)]
        outcomes = self._run(lambda: self.log.append([entry.data], epoch=self.epoch, now_ms=self.now_ms))
        if outcomes is not None:
            assert outcomes == [Appended(entry.base_offset, entry.end_offset, True)]

    @precondition(lambda self: self.epoch >= 0)
    @rule()
    def send_with_a_gap(self) -> None:
        batch = encode_columns(
            [b"x"],
            timestamp_ms=self.now_ms,
            producer_id=7,
            producer_epoch=self.producer_epoch,
            base_sequence=self.sequences.get(7, 0) + 1,
        )
        outcomes = self._run(lambda: self.log.append([batch], epoch=self.epoch, now_ms=self.now_ms))
        if outcomes is not None and not self.flips:
            assert isinstance(outcomes[0], OutOfOrderSequenceError)

    @precondition(lambda self: self.plan is None)
    @rule()
    def begin_sync(self) -> None:
        self.plan = self._run(lambda: self.log.begin_sync())

    @precondition(lambda self: self.plan is not None)
    @rule()
    def run_sync(self) -> None:
        plan = self.plan
        assert plan is not None
        log = self.log
        self._run(plan.run)
        self.plan = None
        if self.log is log:
            self.books = log.finish_sync(plan) or self.books
            self.synced = max(self.synced, log.synced_offset)
            assert log.synced_offset >= plan.end_offset or log.offline is not None

    @precondition(lambda self: self.books is not None)
    @rule()
    def keep_books(self) -> None:
        books, log = self.books, self.log
        assert books is not None
        self._run(books.run)
        self.books = None
        if self.log is log:
            log.finish_books(books)

    @precondition(lambda self: self.plan is None and self.books is None)
    @rule(checkpoint=st.booleans())
    def sync(self, checkpoint: bool) -> None:
        self._run(lambda: self.log.sync(checkpoint=checkpoint))
        self.synced = max(self.synced, self.log.synced_offset)
        if self.log.offline is None:
            assert self.log.synced_offset == self.log.end_offset

    @precondition(lambda self: self.plan is None and self.books is None)
    @rule()
    def begin_epoch(self) -> None:
        self._begin_epoch()

    @precondition(lambda self: self.plan is None and self.books is None)
    @rule(share=st.floats(0.5, 1))
    def truncate(self, share: float) -> None:
        if not self.entries or self.log.offline is not None:
            return
        target = self.start + int((self.end - self.start) * share)
        if target >= self.end:
            return
        kept = [e for e in self.entries if e.end_offset <= target]
        new_end = kept[-1].end_offset if kept else min(self.start, self.entries[0].base_offset)
        lost = [r for r in self.log.quarantined if r.first_offset <= target < r.end_offset]
        if lost:
            new_end = min(new_end, lost[0].first_offset)
            kept = [e for e in kept if e.end_offset <= new_end]
        before = self.synced
        readable = [e for e in kept if not (e.flipped or self._is_lost(e))]
        # Damage that the truncation itself finds goes whole.
        self.may_end_at = {new_end, *(e.base_offset for e in kept if e not in readable)}
        end = self._run(lambda: self.log.truncate(target))
        if end is None:
            if self.log.offline is None:
                self.may_end_at = set()
            return
        self.may_end_at = set()
        assert end <= new_end
        assert end == new_end or self.flips
        assert all(e.end_offset <= end for e in readable)
        new_end = end
        self.entries = [e for e in kept if e.end_offset <= end]
        self.start = min(self.start, new_end)
        self.synced = min(before, new_end)
        self._count_sequences()
        self._begin_epoch()

    @precondition(lambda self: self.plan is None and self.books is None and self.log.offline is None)
    @rule(chance=st.integers(0, 9), ahead=st.integers(0, 50))
    def reset(self, chance: int, ahead: int) -> None:
        if chance:
            return  # seldom, or there would be little left to look at
        target = self.start + ahead
        self.may_reset_to = target
        self._run(lambda: self.log.reset(target))
        if self.log.offline is None:
            self.may_reset_to = None
            if self.log.start_offset == self.log.end_offset == target:
                self._empty(target)
            self._begin_epoch()

    def _empty(self, start: int) -> None:
        self.entries, self.start, self.synced = [], start, start
        self._count_sequences()

    @precondition(lambda self: self.plan is None and self.books is None and self.log.offline is None)
    @rule(share=st.floats(0, 1))
    def advance_start(self, share: float) -> None:
        target = self.start + int((self.end - self.start) * share)
        self.may_start_at = target
        self._run(lambda: self.log.advance_start(target))
        if self.log.offline is None:
            self._moved_start()

    @precondition(lambda self: self.plan is None and self.books is None and self.log.offline is None)
    @rule()
    def retention(self) -> None:
        self.may_start_at = self.synced
        self._run(lambda: self.log.apply_retention(now_ms=self.now_ms))
        if self.log.offline is None:
            assert self.log.start_offset <= max(self.start, self.synced)
            self._moved_start()

    @precondition(lambda self: self.plan is None and self.books is None and self.flips and self.log.offline is None)
    @rule(which=st.integers(0, 9), count=st.integers(1, 8), look=st.booleans())
    def mend(self, which: int, count: int, look: bool) -> None:
        """As a replica that was sent what another one has of a damaged range."""
        if look:
            self._check_everything()
        before = self.log.quarantined
        if not before:
            return
        damaged = before[which % len(before)]
        first = damaged.first_offset if which % 2 else max(damaged.first_offset, self.start)
        copies = [e for e in self.entries if first < e.end_offset <= damaged.end_offset][:count]
        if not copies:
            return
        for entry in copies:
            entry.rewritten = True
        data = b"".join(entry.data for entry in copies)
        try:
            end = self._run(lambda: self.log.mend(data, now_ms=self.now_ms))
        except InvalidArgumentError:
            # More turned out to be damaged, or nothing before or behind the copies tells where they begin.
            behind_damage = any(lost.end_offset == first for lost in before) or damaged.first_offset < self.start
            assert behind_damage or self.log.quarantined != before
            return
        if end is None:
            return
        assert end == copies[-1].end_offset
        self.synced = self.log.synced_offset
        assert self.synced == self.end
        for entry in copies:
            entry.flipped = False
            assert not self._is_lost(entry)
        self._check_read(max(copies[0].base_offset, self.start), 1)

    @rule(share=st.floats(0, 1), bytes_max=st.sampled_from([1, 700, 1_000_000]))
    def read(self, share: float, bytes_max: int) -> None:
        offset = self.start + int((self.end - self.start) * share)
        self._check_read(offset, bytes_max)

    @rule(back_ms=st.integers(-30, 300))
    def find_time(self, back_ms: int) -> None:
        timestamp_ms = self.now_ms - back_ms
        if self.log.offline is not None:
            with pytest.raises(LogOfflineError):
                self.log.find_time(timestamp_ms)
            return
        found = self.log.find_time(timestamp_ms)
        late = [
            e
            for e in self.entries
            if e.timestamp_ms >= timestamp_ms and e.end_offset > self.start and not self._is_lost(e)
        ]
        wanted = [e for e in late if not e.flipped]
        if found is None:
            assert not wanted
        else:
            # The first one, or one before it that a mending may have put right.
            places = {(e.timestamp_ms, max(e.base_offset, self.start)) for e in late if e.rewritten and e.flipped}
            places |= {(e.timestamp_ms, max(e.base_offset, self.start)) for e in wanted[:1]}
            assert (found.timestamp_ms, found.offset) in places
            assert not wanted or found.offset <= max(wanted[0].base_offset, self.start)

    # -- what goes wrong -------------------------------------------------------------------------------------------

    @precondition(lambda self: self.plan is None and self.books is None)
    @rule()
    def close_and_reopen(self) -> None:
        log = self.log
        self._run(log.close)
        if log is not self.log:
            return  # it died
        if log.offline is not None:
            self.kill()
            return
        end = self.end
        try:
            opened = self._open()
        except (SimulatedCrash, LogOfflineError, DiskIoError):
            self.kill()
            return
        self.log = opened
        assert self.log.recovery.torn is None
        self._compare(floor=end, power=False)
        assert self.end == end
        self._begin_epoch()

    @rule(steps=st.integers(0, 30))
    def plan_a_crash(self, steps: int) -> None:
        self.disk.crash_after(steps)

    @rule(seed=st.integers(0, 1 << 32))
    def power_cut(self, seed: int) -> None:
        self._crash(lambda: self.disk.power_cut(random.Random(seed)), power=True)

    @rule()
    def kill(self) -> None:
        self._crash(self.disk.kill, power=False)

    @rule()
    def fail_the_next_sync(self) -> None:
        names = [name for name in self.disk.names(DIRECTORY) if name.endswith(".log")]
        self.disk.failing_syncs.add(f"{DIRECTORY}/{names[-1]}")

    @rule()
    def fail_writes(self) -> None:
        names = [name for name in self.disk.names(DIRECTORY) if name.endswith(".log")]
        self.disk.failing_writes.add(f"{DIRECTORY}/{names[-1]}")

    @rule(room=st.integers(0, 4_000))
    def fill_the_disk(self, room: int) -> None:
        self.disk.capacity_bytes = self.disk.used_bytes() + room

    @rule()
    def make_room(self) -> None:
        self.disk.capacity_bytes = None

    @rule(
        kind=st.sampled_from([".log", ".log", ".log", ".index", ".timeindex", ".producers", "synced"]),
        at=st.floats(0, 1, exclude_max=True),
        field=st.sampled_from([None, None, range(8), range(8, 12), range(12, 16), range(16, 61)]),
        bit=st.integers(0, 7),
    )
    def flip(self, kind: str, at: float, field: range | None, bit: int) -> None:
        """Change a bit in some file: anywhere, or in a certain part of a batch's header."""
        self.tampered = True
        if kind == ".log":
            alive = [e for e in self.entries if e.end_offset > self.start]
            if not alive:
                return
            entry = alive[int(at * len(alive))]
            where = self._find(entry)
            if where is None:
                return
            path, position = where
            inside = range(len(entry.data)) if field is None else field
            self.disk.flip(path, position + inside[int(at * 7919) % len(inside)], bit)
            entry.flipped, entry.rewritten, self.flips = True, False, True
            self.flipped.append(entry.base_offset)
            return
        paths = [f"{DIRECTORY}/{name}" for name in self.disk.names(DIRECTORY) if name.endswith(kind)]
        paths = [path for path in paths if self.disk.open(path).size()]
        if paths:
            path = paths[int(at * len(paths))]
            self.disk.flip(path, int(at * 7919) % self.disk.open(path).size(), bit)
            # A damaged snapshot is replaced by an older one, which may be gone.
            self.forgetful = self.forgetful or kind == ".producers"
            self.mark_flipped = self.mark_flipped or kind == "synced"

    # -- how it is checked -----------------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        return self.log.end_offset

    @invariant()
    def bounds(self) -> None:
        assert self.log.start_offset <= self.log.end_offset
        assert self.log.recovery_point <= self.log.synced_offset <= self.log.end_offset

    def teardown(self) -> None:
        if self.log.offline is None and self.opened:
            self._check_everything()

    def _open(self) -> Log:
        return Log.open(self.disk, DIRECTORY, CONFIG, now_ms=self.now_ms)

    def _begin_epoch(self) -> None:
        self.epoch += 1
        self._run(lambda: self.log.begin_epoch(self.epoch))
        if self.log.latest_epoch != self.epoch:
            self.epoch = self.log.latest_epoch  # the disk was full, or it died and began another one

    def _run(self, work: Callable[[], T]) -> T | None:
        """Do something to the log. None if the process died in it, or the log refuses."""
        try:
            result = work()
        except SimulatedCrash:
            if self.now_ms % 3:
                self.power_cut(self.now_ms)
            else:
                self.kill()
            return None
        except DiskFullError:
            assert self.disk.capacity_bytes is not None
            self._keep_what_is_there()
            return None
        except (LogOfflineError, DiskIoError):
            assert self.log.offline is not None
            self._keep_what_is_there()
            return None
        if isinstance(result, list) and any(isinstance(outcome, DiskFullError | DiskIoError) for outcome in result):
            refused = next(n for n, outcome in enumerate(result) if isinstance(outcome, DiskFullError | DiskIoError))
            assert self.disk.capacity_bytes is not None or self.log.offline is not None
            assert all(outcome is result[refused] for outcome in result[refused:])
            self._keep_what_is_there()
            return None
        return result

    def _keep_what_is_there(self) -> None:
        self.entries = [e for e in self.entries if e.end_offset <= self.end]
        self._count_sequences()

    def _count_sequences(self) -> None:
        """What comes next of each producer, by the batches that are there."""
        if self.start > 0 or self.flips or self.forgetful:
            # Batches that are gone or damaged may have been the only witness: begin as a client would.
            self.producer_epoch += 1
        self.sequences = {}
        for entry in self.entries:
            if entry.producer is not None and entry.producer[1] == self.producer_epoch:
                producer, _, first = entry.producer
                self.sequences[producer] = first + entry.end_offset - entry.base_offset

    def _moved_start(self) -> None:
        self.may_start_at = None
        self.synced = max(self.synced, self.log.synced_offset)  # what goes must be synced first
        assert self.start <= self.log.start_offset
        self.start = self.log.start_offset

    def _find(self, entry: Entry) -> tuple[str, int] | None:
        for name in self.disk.names(DIRECTORY):
            if name.endswith(".log"):
                file = self.disk.open(f"{DIRECTORY}/{name}")
                position = file.read(0, file.size()).find(entry.data)
                if position >= 0:
                    return f"{DIRECTORY}/{name}", position
        return None

    def _crash(self, restart: Callable[[], None], *, power: bool) -> None:
        floor, self.plan, self.books, self.opened = self.synced, None, None, False
        restart()
        self.disk.capacity_bytes = None
        # Opening may be cut short like anything else.
        self.disk.crash_after(self.now_ms % 60)
        try:
            self.log = self._open()
            self.disk.crash_after(1 << 30)
        except SimulatedCrash:
            restart()
            self.log = self._open()
        self.opened = True
        self._compare(floor=floor, power=power)
        self._begin_epoch()

    def _compare(self, *, floor: int, power: bool) -> None:
        """Whether the log that was opened is one that may have come from the one before."""
        start, end = self.log.start_offset, self.log.end_offset
        may_end_at, may_start_at, may_reset_to = self.may_end_at, self.may_start_at, self.may_reset_to
        self.may_end_at, self.may_start_at, self.may_reset_to = set(), None, None
        if start == end == may_reset_to:
            self._empty(start)
            return
        if end in may_end_at:
            floor = min(floor, end)
            assert start in (self.start, min(self.start, end))
        elif may_start_at is not None:
            assert self.start <= start <= max(self.start, may_start_at)
        else:
            assert start == self.start
        if power or self.mark_flipped:
            # Where the mark is lost, damage past the recovery point cannot be told from a torn tail.
            floor = min([floor, *(e.base_offset for e in self.entries if e.flipped)])
        assert end >= floor, f"ends at {end}, though {floor} was synced"
        assert end in {self.start, start, *(e.end_offset for e in self.entries)}
        self.start = start
        self.entries = [e for e in self.entries if e.end_offset <= end]
        self.synced = self.log.synced_offset
        assert self.synced == end
        for lost in self.log.quarantined:
            near = range(lost.first_offset - 40, lost.end_offset)
            assert any(offset in near for offset in self.flipped), f"{lost} is quarantined for no reason"
        self._count_sequences()
        self._check_everything()

    def _check_everything(self) -> None:
        offset = self.start
        while offset < self.end:
            offset = self._check_read(offset, 1_000_000)
        assert len(self.log.read(self.end, bytes_max=1).data) == 0

    def _check_read(self, offset: int, bytes_max: int) -> int:
        """Read and compare; answers where to go on."""
        if self.log.offline is not None:
            with pytest.raises(LogOfflineError):
                self.log.read(offset, bytes_max=bytes_max)
            return self.end
        try:
            batches = self.log.read(offset, bytes_max=bytes_max)
        except DamagedRangeError as damage:
            lost = damage
        else:
            return self._check_batches(batches, offset, bytes_max)
        assert self.flips
        assert lost.first_offset <= offset < lost.end_offset
        return lost.end_offset

    def _check_batches(self, batches: Batches, offset: int, bytes_max: int) -> int:
        at = next((n for n, e in enumerate(self.entries) if offset < e.end_offset), len(self.entries))
        expected = b""
        first = at
        while len(expected) < len(batches.data):
            assert not self.entries[at].flipped or self.entries[at].rewritten, "a damaged batch was returned"
            expected += self.entries[at].data
            at += 1
        assert batches.data == expected
        assert len(expected) <= bytes_max or at == first + 1
        assert batches.end_offset == (self.entries[at - 1].end_offset if at > first else offset)
        assert at > first or offset == self.end
        return batches.end_offset

    def _is_lost(self, entry: Entry) -> bool:
        return any(
            lost.first_offset < entry.end_offset and entry.base_offset < lost.end_offset
            for lost in self.log.quarantined
        )


LogMachine.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    derandomize="QUIRE_LOG_EXAMPLES" not in os.environ,
    # No shrinking: it takes minutes, and the steps as they are can be read.
    phases=[Phase.generate],
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
TestLog = LogMachine.TestCase
