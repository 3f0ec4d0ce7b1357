"""A member's directory: hard state, journal and newest snapshot, and the order in which they change.

- Before a snapshot is synced and has its name, no entry that it contains is removed from the journal.
- A journal that is replaced by a snapshot from the leader is so marked in the hard state first, so that a crash in
  between can be told from a journal that lost its end.
- Whatever a crash cannot explain is a refusal to start, never a guess.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace

from quire.disk.framed import TEMPORARY_SUFFIX
from quire.disk.port import Disk, DiskFile
from quire.errors import DamagedFileError, DiskFullError, DiskIoError, InvalidArgumentError, invariant
from quire_controller.ports import StateMachine
from quire_controller.raft import hard_state, snapshot
from quire_controller.raft.entry import FIRST, FIRST_INDEX
from quire_controller.raft.hard_state import HardState
from quire_controller.raft.journal import SEGMENT_BYTES, Journal, journal_exists
from quire_controller.raft.segment import damaged
from quire_controller.raft.snapshot import SnapshotId, SnapshotReceiver, SnapshotWriter


class Storage:
    def __init__(
        self,
        disk: Disk,
        directory: str,
        randomness: random.Random,
        *,
        hard: HardState,
        journal: Journal,
        newest: SnapshotId | None,
        segment_bytes: int,
        ahead_bytes: int,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._randomness = randomness
        self._segment_bytes = segment_bytes
        self._ahead_bytes = ahead_bytes
        self.hard = hard
        self.journal = journal
        self.snapshot = newest

    # -- opening ---------------------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        state_machine: StateMachine,
        randomness: random.Random,
        *,
        cluster_id: str,
        member_id: str,
        segment_bytes: int = SEGMENT_BYTES,
        ahead_bytes: int = 0,
    ) -> Storage:
        """What is there, or a new directory. Brings the state machine to the newest snapshot.

        Raises DamagedFileError where a crash cannot explain what is there, and InvalidArgumentError for a directory
        that is another member's.
        """
        disk.make_dirs(directory)
        for name in disk.names(directory):
            if name.endswith(TEMPORARY_SUFFIX):
                disk.remove(f"{directory}/{name}")
        hard = hard_state.read(disk, directory)
        if hard is None:
            if journal_exists(disk, directory) or snapshot.indexes(disk, directory):
                path = f"{directory}/{hard_state.FILE}"
                raise DamagedFileError(
                    f"{path} is missing although the directory is in use: without its term and vote this member "
                    "could vote twice. Put the file back, or move the directory away and start the member again: it "
                    "comes back without a vote and catches up",
                    path=path,
                )
            hard = HardState(
                cluster_id=cluster_id,
                member_id=member_id,
                incarnation=randomness.getrandbits(64),
                # A crash before the journal is there must not look like a journal that was lost.
                resetting_to=FIRST_INDEX,
            )
            hard_state.write(disk, directory, hard)
        if (hard.cluster_id, hard.member_id) != (cluster_id, member_id):
            raise InvalidArgumentError(
                f"{directory} belongs to member '{hard.member_id}' of cluster '{hard.cluster_id}', and this is "
                f"'{member_id}' of '{cluster_id}'; give each member a directory of its own"
            )
        newest = _restore(disk, directory, state_machine, cluster_id)
        if hard.resetting_to is not None:
            hard, journal = _finish_reset(disk, directory, randomness, hard, newest, segment_bytes, ahead_bytes)
        else:
            journal = Journal.open(disk, directory, randomness, segment_bytes=segment_bytes, ahead_bytes=ahead_bytes)
        _check_continuity(directory, journal, newest)
        storage = cls(
            disk,
            directory,
            randomness,
            hard=hard,
            journal=journal,
            newest=newest,
            segment_bytes=segment_bytes,
            ahead_bytes=ahead_bytes,
        )
        storage._remove_old_snapshots()
        return storage

    def close(self) -> None:
        self.journal.close()

    # -- hard state ------------------------------------------------------------------------------------------------

    def set_vote(self, term: int, voted_for: str) -> None:
        self._set_hard(replace(self.hard, term=term, voted_for=voted_for))

    def admit(self, term: int, voted_for: str) -> None:
        """The member votes from now on, but no more in this term."""
        self._set_hard(replace(self.hard, votes=True, term=term, voted_for=voted_for))

    def _set_hard(self, hard: HardState) -> None:
        if hard == self.hard:
            return
        try:
            hard_state.write(self._disk, self._directory, hard)
        except DiskFullError:
            self.journal.let_go_of_room()
            hard_state.write(self._disk, self._directory, hard)
        self.hard = hard

    # -- snapshots -------------------------------------------------------------------------------------------------

    def begin_snapshot(self, contains: SnapshotId) -> SnapshotWriter:
        """Begin to write down the state as it is after the entry that `contains` names."""
        self.journal.roll()
        return SnapshotWriter(self._disk, self._directory, self.hard.cluster_id, contains)

    def publish_snapshot(self, writer: SnapshotWriter) -> None:
        """The file is written and synced: it becomes the newest snapshot, and what it contains is let go."""
        writer.publish()
        self.snapshot = writer.snapshot
        self.journal.trim(writer.snapshot.last_index)
        self._remove_old_snapshots()

    def open_snapshot(self) -> DiskFile:
        """The newest snapshot's file. Can be read to its end although a newer one takes its place meanwhile."""
        invariant(self.snapshot is not None, "there is no snapshot to open")
        return self._disk.open(snapshot.path_of(self._directory, snapshot.indexes(self._disk, self._directory)[-1]))

    def begin_install(self, contains: SnapshotId, *, size: int) -> SnapshotReceiver:
        return SnapshotReceiver(self._disk, self._directory, contains, size=size)

    def install(self, receiver: SnapshotReceiver, state_machine: StateMachine) -> None:
        """Become what the leader's snapshot says, in place of all that this member has.

        Raises DamagedFileError, before anything is changed, for a snapshot that was damaged on its way. Any other
        error is final.
        """
        receiver.check(self.hard.cluster_id)
        self._set_hard(replace(self.hard, resetting_to=receiver.snapshot.last_index))
        # From here on there is no going on, nor back: the next start finishes what was begun, when there is room.
        try:
            receiver.publish()
            self.snapshot = _restore(self._disk, self._directory, state_machine, self.hard.cluster_id)
            self.journal.close()
            self.hard, self.journal = self._reset_journal()
        except (DamagedFileError, DiskFullError) as error:
            raise DiskIoError(f"the leader's snapshot was not installed completely: {error.message}") from error
        self._remove_old_snapshots()

    def _reset_journal(self) -> tuple[HardState, Journal]:
        return _finish_reset(
            self._disk,
            self._directory,
            self._randomness,
            self.hard,
            self.snapshot,
            self._segment_bytes,
            self._ahead_bytes,
        )

    def _remove_old_snapshots(self) -> None:
        for index in snapshot.indexes(self._disk, self._directory)[:-1]:
            with suppress(DiskFullError, DiskIoError):  # one that stays is in nobody's way, and tried again next time
                self._disk.remove(snapshot.path_of(self._directory, index))


def _restore(disk: Disk, directory: str, state_machine: StateMachine, cluster_id: str) -> SnapshotId | None:
    found = snapshot.indexes(disk, directory)
    if not found:
        return None
    path = snapshot.path_of(directory, found[-1])
    file = disk.open(path)
    try:
        contains, pieces = snapshot.read(file, path, cluster_id=cluster_id)
        state_machine.restore(pieces)
        # A state machine may stop reading when it has what it needs; the checksums at the end count all the same.
        for _ in pieces:
            pass
    finally:
        file.close()
    if contains.last_index != found[-1]:
        raise DamagedFileError(
            f"{path} contains entries up to {contains.last_index}, not what its name says", path=path
        )
    return contains


def _finish_reset(
    disk: Disk,
    directory: str,
    randomness: random.Random,
    hard: HardState,
    newest: SnapshotId | None,
    segment_bytes: int,
    ahead_bytes: int,
) -> tuple[HardState, Journal]:
    """Put an empty journal behind the snapshot that was to replace the old one, if it came so far."""
    if newest is None and hard.resetting_to == FIRST_INDEX:
        journal = Journal.create(disk, directory, randomness, segment_bytes=segment_bytes, ahead_bytes=ahead_bytes)
    elif newest is not None and newest.last_index == hard.resetting_to:
        previous = (FIRST[0], newest.last_index, newest.last_term)
        journal = Journal.create(
            disk, directory, randomness, previous=previous, segment_bytes=segment_bytes, ahead_bytes=ahead_bytes
        )
    else:
        # The snapshot never got its name: the journal is as it was.
        journal = Journal.open(disk, directory, randomness, segment_bytes=segment_bytes, ahead_bytes=ahead_bytes)
    hard = replace(hard, resetting_to=None)
    hard_state.write(disk, directory, hard)
    return hard, journal


def _check_continuity(directory: str, journal: Journal, newest: SnapshotId | None) -> None:
    """The journal must go on where the snapshot ends, or before; else entries are missing."""
    first, last = journal[0][1], journal.last_index
    if newest is None:
        if first != FIRST_INDEX:
            raise damaged(directory, 0, f"the journal begins after entry {first} and there is no snapshot")
        return
    if not first <= newest.last_index <= last:
        raise damaged(
            directory, 0, f"the snapshot ends with entry {newest.last_index}, the journal holds {first + 1} to {last}"
        )
    term = journal[newest.last_index - first][2]
    if term != newest.last_term:
        raise damaged(
            directory, 0, f"entry {newest.last_index} has term {term}, in the snapshot term {newest.last_term}"
        )
