"""Python's search for cycles is as it was after a pause, whoever was in it and however it ended."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from quire._client.collector import PAUSED, Paused


@pytest.fixture(params=[True, False], ids=["on", "off"])
def was_on(request: pytest.FixtureRequest) -> Iterator[bool]:
    before = gc.isenabled()
    is_on: bool = request.param
    (gc.enable if is_on else gc.disable)()
    try:
        yield is_on
    finally:
        (gc.enable if before else gc.disable)()


def test_pause_ends_with_the_block(was_on: bool) -> None:
    with PAUSED:
        assert not gc.isenabled()
        with PAUSED:
            pass
        assert not gc.isenabled()
    assert gc.isenabled() is was_on


def test_pause_ends_with_an_error(was_on: bool) -> None:
    with pytest.raises(ValueError, match="within"), PAUSED:
        raise ValueError("within")
    assert gc.isenabled() is was_on


def test_last_thread_to_leave_ends_it(was_on: bool) -> None:
    paused = Paused()
    inside, leave = threading.Barrier(4), threading.Event()

    def work() -> None:
        with paused:
            inside.wait(30)
            leave.wait(30)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    inside.wait(30)
    with paused:
        assert not gc.isenabled()
    assert not gc.isenabled()
    leave.set()
    for thread in threads:
        thread.join()
    assert gc.isenabled() is was_on
