"""The journal on a simulated disk against a plain list, through everything that a crash can do.

What is claimed after each reopening: what was flushed is there, exactly; of what was not, a prefix may be, in order;
what was deleted, and the deletion flushed, stays away; and no crash is ever taken for damage.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Final

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from quire.disk.sim_disk import SimulatedCrash
from quire.errors import DiskFullError, SyncFailedError
from quire_controller.raft.entry import NO_OP, REGULAR, Entry
from quire_controller.raft.journal import Journal
from tests.unit.raft_crafting import DIRECTORY, kept, new_disk

EXAMPLES: Final = int(os.environ.get("QUIRE_RAFT_EXAMPLES", "400"))
"""More of them, and other ones each time, when the number is given."""
SEGMENT_BYTES: Final = 1_200
NEVER: Final = 1 << 30
BATCH: Final = st.lists(st.sampled_from([0, 1, 30, 60, 100, 400, 700, 1_500]), min_size=1, max_size=12)
DYING: Final = st.sampled_from([*[None] * 12, 0, 1, 1, 2, 3, 4, 6])
"""In which of a call's changes the process dies."""


def common(one: list[Entry], other: list[Entry]) -> list[Entry]:
    """Where two lists are the same from the beginning."""
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return one[:count]


class JournalMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = new_disk()
        self.randomness = random.Random(1)
        self.ahead_bytes = 0
        self.journal = Journal.create(self.disk, DIRECTORY, self.randomness, segment_bytes=SEGMENT_BYTES)
        self.all: list[Entry] = []
        """The list as it is to be in memory, with all that was trimmed."""
        self.safe: list[Entry] = []
        """What must be there after any crash."""
        self.possible: list[list[Entry]] = [[]]
        """The disk may hold any beginning of one of these that has all that is safe."""
        self.first = (2, 2)
        """The first entry may be any of these, both included."""
        self.trimmed = 1
        """The index up to which a snapshot is said to be there."""
        self.term = 1
        self.next = 0
        """Makes every entry different from all others."""

    @initialize(ahead_bytes=st.sampled_from([0, 300, 1_000]))
    def begin(self, ahead_bytes: int) -> None:
        """Some members write zeros ahead of their records, some do not."""
        self.ahead_bytes = ahead_bytes
        self._restart(None, NEVER)

    # -- what the quorum does --------------------------------------------------------------------------------------

    @rule(sizes=BATCH, step=st.integers(0, 1), dying=DYING)
    def append(self, sizes: list[int], step: int, dying: int | None) -> None:
        self._add(sizes, step)
        self._flush(dying)

    @rule(share=st.floats(0, 1), sizes=BATCH, dying=DYING)
    def replace(self, share: float, sizes: list[int], dying: int | None) -> None:
        self._delete(share)
        self._add(sizes, 0)
        self._flush(dying)

    @rule(sizes=BATCH, step=st.integers(0, 1))
    def add(self, sizes: list[int], step: int) -> None:
        self._add(sizes, step)

    @rule(share=st.floats(0, 1))
    def delete(self, share: float) -> None:
        self._delete(share)

    @rule(dying=DYING)
    def flush(self, dying: int | None) -> None:
        self._flush(dying)

    @rule(dying=DYING)
    def mark(self, dying: int | None) -> None:
        self._run(self.journal.mark, dying)

    @rule(dying=DYING, room=st.none() | st.integers(0, 31))
    def roll(self, dying: int | None, room: int | None) -> None:
        """With room for all of the new file's header, or not."""
        self.fill_the_disk(room)
        self.safe = common(self.safe, self.all)
        if self._run(self.journal.roll, dying):
            # It takes off the disk what was deleted, and adds nothing to it.
            self.possible = [list(self.safe)]
        self.fill_the_disk(None)

    @rule(share=st.floats(0, 1), dying=DYING)
    def trim(self, share: float, dying: int | None) -> None:
        """A snapshot is there: of entries that are safe and that no leader can delete any more."""
        floor = max(self.trimmed, self.journal.first_index - 1)
        index = floor + int((len(common(self.safe, self.all)) + 1 - floor) * share)
        if index < floor:
            return
        self.trimmed = index
        before = self.journal.first_index
        self.first = (before, index + 1)
        if self._run(lambda: self.journal.trim(index), dying):
            assert before <= self.journal.first_index <= index + 1
            self.first = (self.journal.first_index, self.journal.first_index)

    # -- what goes wrong -------------------------------------------------------------------------------------------

    @rule(steps=st.integers(0, 12))
    def plan_a_crash(self, steps: int) -> None:
        """In some later call, whichever it is."""
        self.disk.crash_after(steps)

    @rule(seed=st.none() | st.integers(0, 1 << 32), steps=st.integers(0, 6))
    def restart(self, seed: int | None, steps: int) -> None:
        self._restart(seed, steps)

    @rule(room=st.none() | st.integers(0, 31) | st.integers(0, 3_000))
    def fill_the_disk(self, room: int | None) -> None:
        self.disk.capacity_bytes = None if room is None else self.disk.used_bytes() + room

    @rule(often=st.integers(0, 3))
    def fail_the_next_sync(self, often: int) -> None:
        if often == 0:
            self.disk.failing_syncs.add(f"{DIRECTORY}/{self.disk.names(DIRECTORY)[-1]}")

    # -- how it is checked -----------------------------------------------------------------------------------------

    @invariant()
    def list_is_the_list(self) -> None:
        first = self.journal.first_index
        assert kept(self.journal) == self.all[first - 2 :]
        assert self.journal.last_index == len(self.all) + 1
        assert self.journal[0][1] == first - 1
        assert self.journal[0][2] == (self.all[first - 3][2] if first > 2 else 0)

    def teardown(self) -> None:
        self._restart(None, NEVER)

    def _add(self, sizes: list[int], step: int) -> None:
        self.term += step
        for size in sizes:
            self.next += 1
            data = NO_OP if size == 0 else REGULAR + b"%d" % self.next + bytes([self.next & 0xFF]) * size
            new = (data, len(self.all) + 2, self.term)
            self.journal.add(*new)
            self.all.append(new)

    def _delete(self, share: float) -> None:
        """Some of what is not in a snapshot."""
        lowest = max(self.trimmed + 1, self.journal.first_index)
        index = lowest + int((len(self.all) + 2 - lowest) * share)
        self.journal.deleteEntriesFrom(index - self.journal[0][1])
        if index < len(self.all) + 2:
            del self.all[index - 2 :]
            self.term += 1  # what follows comes from another leader

    def _flush(self, dying: int | None) -> None:
        target = list(self.all)
        self.safe = common(self.safe, target)
        self.possible.append(target)
        if self._run(self.journal.flush, dying):
            assert not self.journal.is_dirty
            self.safe, self.possible = target, [target]

    def _run(self, work: Callable[[], None], dying: int | None) -> bool:
        """Do something to the journal; false if there was no room, or the process died in it."""
        if dying is not None:
            self.disk.crash_after(dying)
        is_cutting = self.journal._cut_from is not None or self.journal._tail_is_dirty
        try:
            work()
        except DiskFullError:
            assert self.disk.capacity_bytes is not None
            return False
        except SimulatedCrash:
            self._restart(self.next if self.next % 4 else None, self.next % 5)
            return False
        except SyncFailedError:
            # The process must not go on; the machine may, unless a cut was to be synced.
            self._restart(self.next if self.next % 2 or is_cutting else None, NEVER)
            return False
        if dying is not None:
            self.disk.crash_after(NEVER)
        return True

    def _restart(self, seed: int | None, steps: int) -> None:
        """After a power cut, or (without a seed) after a kill; opening may be cut short like anything else."""
        for left in (steps, NEVER):
            if seed is None:
                self.disk.kill()
            else:
                self.disk.power_cut(random.Random(seed))
            self.disk.capacity_bytes = None
            self.disk.crash_after(left)
            try:
                self._open()
            except SimulatedCrash:
                continue
            self.disk.crash_after(NEVER)
            return

    def _open(self) -> None:
        """Whether what is opened is something that may have come from what there was."""
        journal = Journal.open(
            self.disk, DIRECTORY, self.randomness, segment_bytes=SEGMENT_BYTES, ahead_bytes=self.ahead_bytes
        )
        first, found = journal.first_index, kept(journal)
        lowest, highest = self.first
        assert lowest <= first <= highest
        for index, entry in enumerate(found, start=first):
            assert entry[1] == index
        safe = self.safe[first - 2 :]
        assert found[: len(safe)] == safe, "what was flushed is not there"
        matching = [one for one in self.possible if one[first - 2 :][: len(found)] == found]
        assert matching, "there is what was never written, or was deleted"
        assert self._files() == [one.path for one in journal._segments], "a file is left of which nobody knows"
        assert journal.size_bytes <= self.disk.used_bytes()
        self.journal = journal
        self.all = matching[0][: first - 2 + len(found)]
        self.safe, self.possible = list(self.all), [list(self.all)]
        self.first = (first, first)
        self.term += 1

    def _files(self) -> list[str]:
        return [f"{DIRECTORY}/{name}" for name in self.disk.names(DIRECTORY)]


JournalMachine.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    derandomize="QUIRE_RAFT_EXAMPLES" not in os.environ,
    # No shrinking: it takes minutes, and the steps as they are can be read.
    phases=[Phase.generate],
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
TestJournal = JournalMachine.TestCase
