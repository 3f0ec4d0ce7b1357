"""What a tail answers is what the log would."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from quire_broker.runtime.tail import TAIL_BYTES_MAX, Tail, TailRoom


def tail_of(*sizes: int, first: int = 0, room: TailRoom | None = None) -> Tail:
    """Batches of two records each."""
    tail = Tail(room or TailRoom())
    for number, size in enumerate(sizes):
        base = first + 2 * number
        tail.add(base, base + 2, [bytes([number]), bytes([number]) * (size - 1)])
    return tail


def test_reads_from_the_batch_that_holds_the_offset() -> None:
    tail = tail_of(10, 20, 30)
    for offset in (2, 3):
        found = tail.read(offset, bytes_max=1000, end_offset=6)
        assert found is not None
        assert (bytes(found.data), found.base_offset, found.end_offset) == (b"\1" * 20 + b"\2" * 30, 2, 6)


def test_the_first_batch_comes_whole_and_the_others_within_the_limit() -> None:
    tail = tail_of(10, 20, 30)
    for bytes_max, end in ((0, 2), (1, 2), (29, 2), (30, 4), (59, 4), (60, 6)):
        found = tail.read(0, bytes_max=bytes_max, end_offset=6)
        assert found is not None
        assert found.end_offset == end


def test_nothing_reaches_across_the_end_that_is_asked_for() -> None:
    tail = tail_of(10, 20)
    found = tail.read(0, bytes_max=1000, end_offset=3)
    assert found is not None
    assert (len(found.data), found.end_offset) == (10, 2)
    nothing = tail.read(2, bytes_max=1000, end_offset=3)
    assert nothing is not None
    assert (len(nothing.data), nothing.base_offset, nothing.end_offset) == (0, 2, 2)


def test_the_log_is_asked_for_what_is_not_kept() -> None:
    tail = tail_of(10, 20, first=4)
    for offset in (0, 3, 8, 9):
        assert tail.read(offset, bytes_max=1000, end_offset=100) is None
    assert Tail(TailRoom()).read(0, bytes_max=1000, end_offset=100) is None


def test_what_does_not_follow_is_the_beginning_of_another_tail() -> None:
    tail = tail_of(10, 20)
    tail.add(7, 8, [b"x"])
    assert tail.read(0, bytes_max=1000, end_offset=100) is None
    found = tail.read(7, bytes_max=1000, end_offset=100)
    assert found is not None
    assert bytes(found.data) == b"x"
    assert tail.size_bytes == 1


def test_a_large_batch_is_not_kept_and_ends_what_was() -> None:
    tail = tail_of(10, TAIL_BYTES_MAX + 1)
    assert tail.size_bytes == 0
    assert tail.read(0, bytes_max=1000, end_offset=4) is None
    tail.add(4, 6, [b"y" * TAIL_BYTES_MAX])
    assert tail.size_bytes == TAIL_BYTES_MAX


def test_what_is_kept_is_a_copy() -> None:
    data = bytearray(b"good")
    tail = Tail(TailRoom())
    tail.add(0, 1, [memoryview(data)])
    data[:] = b"evil"
    found = tail.read(0, bytes_max=1000, end_offset=1)
    assert found is not None
    assert bytes(found.data) == b"good"


def test_the_tail_written_longest_ago_makes_room_for_the_others() -> None:
    room = TailRoom(100)
    oldest, older = tail_of(40, room=room), tail_of(40, room=room)
    oldest.add(2, 4, [b"z"])  # now the other one is older
    newest = tail_of(40, room=room)
    assert [each.size_bytes for each in (oldest, older, newest)] == [41, 0, 40]
    assert room.used_bytes == 81
    for each in (oldest, newest):
        each.forget()
    assert room.used_bytes == 0


@settings(max_examples=200)
@given(
    sizes=st.lists(st.integers(1, TAIL_BYTES_MAX // 3), min_size=1, max_size=12),
    offset=st.integers(0, 24),
    bytes_max=st.integers(0, TAIL_BYTES_MAX),
    end=st.integers(0, 24),
)
def test_it_answers_as_a_list_of_all_batches_would(sizes: list[int], offset: int, bytes_max: int, end: int) -> None:
    room = TailRoom()
    tail = tail_of(*sizes, room=room)
    assert tail.size_bytes == room.used_bytes <= TAIL_BYTES_MAX
    found = tail.read(offset, bytes_max=bytes_max, end_offset=end)
    if found is None:
        return
    expected: list[int] = []
    size = 0
    for number, each in enumerate(sizes):
        if 2 * number + 2 <= offset:
            continue
        if 2 * number + 2 > end or (expected and size + each > bytes_max):
            break
        expected.append(number)
        size += each
    assert bytes(found.data) == b"".join(bytes([number]) * sizes[number] for number in expected)
    assert found.end_offset == (2 * expected[-1] + 2 if expected else offset)
