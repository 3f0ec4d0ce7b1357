"""What a leader believes of another member."""

from __future__ import annotations

from quire.disk.port import DiskFile
from quire.errors import DiskIoError
from quire_controller.raft.progress import Install, Progress
from quire_controller.raft.snapshot import SnapshotId
from tests.unit.raft_crafting import DIRECTORY, new_disk

LAST = 100


def progress() -> Progress:
    return Progress(LAST + 1)


def install() -> tuple[Install, DiskFile]:
    file = new_disk().open(f"{DIRECTORY}/some.snap", create=True)
    return Install(SnapshotId(50, 2), file, 1_000), file


def is_closed(file: DiskFile) -> bool:
    try:
        file.size()
    except DiskIoError:
        return True
    return False


def test_it_begins_by_asking_where_the_logs_part() -> None:
    one = progress()
    assert (one.is_probing, one.is_probe_due, one.match_index, one.next_index) == (True, True, 0, LAST + 1)


def test_match_ends_the_probing_and_never_falls() -> None:
    one = progress()
    one.matched(40)
    assert (one.is_probing, one.match_index, one.next_index) == (False, 40, LAST + 1)
    one.matched(30)
    assert one.match_index == 40
    one.next_index = 41
    one.matched(90)
    assert (one.match_index, one.next_index) == (90, 91)


def test_rejection_goes_back_to_where_the_member_says() -> None:
    one = progress()
    one.is_probe_due = False
    one.rejected(60, last_index=LAST)
    assert (one.is_probing, one.is_probe_due, one.next_index) == (True, True, 60)


def test_rejections_of_messages_sent_in_a_row_make_one_probe() -> None:
    one = progress()
    one.matched(50)
    one.rejected(60, last_index=LAST)
    assert one.is_probe_due
    one.is_probe_due = False  # sent
    one.rejected(60, last_index=LAST)
    assert not one.is_probe_due


def test_rejection_from_before_the_match_is_late() -> None:
    one = progress()
    one.matched(70)
    one.rejected(70, last_index=LAST)
    assert (one.is_probing, one.next_index) == (False, LAST + 1)


def test_hints_are_held_within_what_is_there() -> None:
    one = progress()
    one.rejected(1 << 62, last_index=LAST)
    assert one.next_index == LAST + 1
    one.rejected(1, last_index=LAST)
    assert one.next_index == 2, "the entry before the first one is never sent"
    one.matched(70)
    one.rejected(71, last_index=LAST)
    assert one.next_index == 71


def test_hint_of_zero_changes_nothing() -> None:
    one = progress()
    one.rejected(0, last_index=LAST)
    assert one.next_index == LAST + 1


def accepts(one: Progress, incarnation: int, *, answered: int, latest: int) -> bool:
    return one.accepts(incarnation, answered_round=answered, latest_round=latest, next_index=LAST + 1)


def test_wiped_member_has_nothing_of_what_it_had() -> None:
    one = progress()
    assert accepts(one, 7, answered=0, latest=3)
    one.matched(80)
    one.install, file = install()
    assert accepts(one, 8, answered=4, latest=4)
    assert (one.match_index, one.is_probing, one.is_probe_due) == (0, True, True)
    assert one.install is None
    assert is_closed(file)


def test_what_an_old_directory_acknowledged_comes_too_late() -> None:
    one = progress()
    assert accepts(one, 7, answered=0, latest=3)
    assert accepts(one, 8, answered=4, latest=6)
    one.matched(30)
    for round_ in range(7):
        assert not accepts(one, 7, answered=round_, latest=9)
    assert (one.match_index, one.incarnation) == (30, 8)


def test_what_an_old_directory_acknowledged_may_be_heard_first() -> None:
    # Then the one that is there proves it by answering a later round, and is believed from then on.
    one = progress()
    assert accepts(one, 7, answered=2, latest=3)
    assert not accepts(one, 8, answered=3, latest=3)
    assert accepts(one, 8, answered=4, latest=4)
    assert not accepts(one, 7, answered=3, latest=4)
    assert accepts(one, 8, answered=0, latest=4)


def test_first_answer_says_which_directory_it_is() -> None:
    one = progress()
    one.sent_round = 3
    assert accepts(one, 7, answered=0, latest=3)
    assert (one.incarnation, one.sent_round, one.known_since_round) == (7, 3, 3)


def test_new_connection_begins_anew_but_remembers_the_directory() -> None:
    one = progress()
    accepts(one, 7, answered=0, latest=5)
    one.matched(80)
    one.sent_round, one.sent_commit, one.round = 5, 80, 5
    one.install, file = install()
    one.restart(next_index=LAST + 1)
    assert (one.match_index, one.next_index, one.is_probing, one.is_probe_due) == (0, LAST + 1, True, True)
    assert (one.sent_round, one.sent_commit, one.incarnation) == (0, 0, 7)
    assert one.round == 5, "what it has confirmed stays confirmed"
    assert is_closed(file)


def test_end_of_an_install_closes_its_file() -> None:
    one = progress()
    one.end_install()
    one.install, file = install()
    one.end_install()
    assert one.install is None
    assert is_closed(file)
