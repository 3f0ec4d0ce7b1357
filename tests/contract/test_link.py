"""What sessions promise, on every network: TCP in plain text, TCP with mTLS, simulated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from quire.errors import InvalidArgumentError, LinkBusyError, PeerRefusedError, QuireError, UnavailableError
from quire.link.frames import FIRST_USER_KIND, HEADER_BYTES_MAX, KIND_MAX, Frame
from quire.link.inbox import Inbox
from quire.link.session import Session
from tests.contract.link_harness import (
    CONFIG,
    NEVER_MS,
    Harness,
    Recorder,
    SimHarness,
    TcpHarness,
    make_certificates,
)

KIND = 20


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certificates") / "made")


@pytest.fixture(params=["tcp", "tls", "sim"])
async def harness(request: pytest.FixtureRequest, certificates: Path) -> AsyncIterator[Harness]:
    secure = request.param == "tls"
    made = SimHarness() if request.param == "sim" else TcpHarness(certificates if secure else None)
    yield made
    await made.close()


def send_numbered(session: Session, count: int, *, body: bytes = b"") -> None:
    for number in range(count):
        session.send(KIND, b"%d" % number, [body])


def numbers(recorder: Recorder) -> list[int]:
    return [int(frame.header) for frame in recorder.frames]


async def fill(harness: Harness, session: Session) -> int:
    """Send numbered frames to a peer that does not read until no more is taken: how many were."""
    for taken in range(10_000):
        try:
            session.send(KIND, b"%d" % taken, [bytes(50_000)])
        except LinkBusyError:
            return taken
        if taken % 4 == 3:
            await harness.settle()
    raise AssertionError("a peer that does not read is not felt")


# --- greeting ------------------------------------------------------------------------------------------------------


async def test_both_sides_learn_who_and_which_session(harness: Harness) -> None:
    a, b = await harness.pair()
    assert (a.session.peer_id, b.session.peer_id) == ("b", "a")
    assert a.session.session_id == b.session.session_id
    assert len(a.session.session_id) == 16
    assert a.session.version == b.session.version == 1


@pytest.mark.parametrize(
    ("node", "wanted", "cluster", "plain", "secure"),
    [
        ("b", "a", "another", "wrong_cluster", "certificate"),
        ("b", "c", "cluster-1", "unexpected_node", "certificate"),
        ("d", "a", "cluster-1", "unexpected_node", "unexpected_node"),
        ("a", "a", "cluster-1", "same_node", "same_node"),
    ],
    ids=["wrong cluster", "another node's address", "unknown to the acceptor", "same node"],
)
async def test_refusal_is_typed_and_does_not_end_the_attempts(
    harness: Harness, node: str, wanted: str, cluster: str, plain: str, secure: str
) -> None:
    a, refused = Recorder(), Recorder()
    listener = harness.listener("a", a, knows=lambda node: node != "d")
    address = listener.start(harness.address("a"))
    dialer = harness.dialer(node, wanted, address, refused, cluster=cluster)
    dialer.start()
    await harness.until(lambda: dialer.last_error is not None)
    error = dialer.last_error
    assert isinstance(error, PeerRefusedError), error
    assert error.details["refusal"] == (secure if harness.secure else plain)
    dialer.last_error = None
    await harness.until(lambda: dialer.last_error is not None)
    assert refused.events == a.events == []


async def test_more_peers_than_allowed_are_refused(harness: Harness) -> None:
    a, b, c = Recorder(), Recorder(), Recorder()
    address = harness.listener("a", a, config=replace(CONFIG, sessions_max=1)).start(harness.address("a"))
    first, second = harness.dialer("b", "a", address, b), harness.dialer("c", "a", address, c)
    first.start()
    await harness.until(lambda: bool(b.ups))
    second.start()
    await harness.until(lambda: second.last_error is not None)
    assert isinstance(second.last_error, PeerRefusedError)
    assert second.last_error.details["refusal"] == "too_many_sessions"
    assert b.session.is_up
    first.close()
    await harness.until(lambda: bool(c.ups))


# --- frames --------------------------------------------------------------------------------------------------------


async def test_frames_of_all_kinds_and_sizes_arrive_in_order_both_ways(harness: Harness) -> None:
    a, b = await harness.pair()
    sizes = [0, 1, 100, 65_536, 65_537, 200_000, 3_000_000, 0, 7]
    kinds = [FIRST_USER_KIND, KIND_MAX, 999]
    sent = [Frame(kinds[n % 3], bytes(n), harness.randomness.randbytes(size)) for n, size in enumerate(sizes)] + [
        Frame(KIND, bytes(HEADER_BYTES_MAX), b"")
    ]
    for session in (a.session, b.session):
        for frame in sent:
            half = len(frame.body) // 2
            session.send(frame.kind, frame.header, [memoryview(frame.body)[:half], memoryview(frame.body)[half:]])
    await harness.until(lambda: len(a.frames) == len(b.frames) == len(sent))
    assert a.frames == b.frames == sent


async def test_what_is_sent_in_a_handler_arrives(harness: Harness) -> None:
    a, b = await harness.pair()
    a.then = lambda session, frame: session.send(frame.kind, frame.header, [frame.body])
    send_numbered(b.session, 500, body=b"echo")
    await harness.until(lambda: len(b.frames) == 500)
    assert b.frames == [Frame(KIND, b"%d" % number, b"echo") for number in range(500)]


async def test_frame_that_the_peer_would_not_take_is_refused_here(harness: Harness) -> None:
    a, b = await harness.pair(accepting=replace(CONFIG, body_bytes_max=1000))
    with pytest.raises(InvalidArgumentError, match="1000"):
        b.session.send(KIND, b"", [bytes(501), bytes(500)])
    with pytest.raises(InvalidArgumentError, match="header"):
        b.session.send(KIND, bytes(HEADER_BYTES_MAX + 1))
    for kind in (0, FIRST_USER_KIND - 1, KIND_MAX + 1, -1):
        with pytest.raises(InvalidArgumentError, match="kind"):
            b.session.send(kind)
    b.session.send(KIND, b"0", [bytes(1000)])
    a.session.send(KIND, b"0", [bytes(1001)])
    await harness.until(lambda: numbers(a) == numbers(b) == [0])


# --- flow control --------------------------------------------------------------------------------------------------


async def test_full_link_is_an_error_and_becomes_ready_again(harness: Harness) -> None:
    a, b = await harness.pair(dialing=replace(CONFIG, outgoing_bytes_max=400_000))
    a.session.pause_receiving()
    taken = await fill(harness, b.session)
    assert b.session.outgoing_bytes <= 400_000
    waiting = [asyncio.ensure_future(b.session.ready()) for _ in range(3)]
    await harness.settle()
    assert not any(task.done() for task in waiting)
    waiting[0].cancel()
    await asyncio.wait(waiting[:1])
    assert a.frames == []
    a.session.resume_receiving()
    await harness.until(lambda: all(task.done() for task in waiting))
    assert [task.cancelled() for task in waiting] == [True, False, False]
    await asyncio.gather(*waiting[1:])
    b.session.send(KIND, b"%d" % taken)
    await harness.until(lambda: len(a.frames) > taken)
    assert numbers(a) == list(range(taken + 1))


async def test_single_frame_over_the_limit_passes_when_nothing_else_waits(harness: Harness) -> None:
    a, b = await harness.pair(dialing=replace(CONFIG, outgoing_bytes_max=100))
    b.session.send(KIND, b"0", [bytes(100_000)])
    with pytest.raises(LinkBusyError):
        b.session.send(KIND, b"1")
    await harness.until(lambda: numbers(a) == [0])


async def test_ready_link_takes_a_frame_of_any_size(harness: Harness) -> None:
    a, b = await harness.pair(dialing=replace(CONFIG, outgoing_bytes_max=1_000_000))
    b.session.send(KIND, b"0", [bytes(400_000)])
    await b.session.ready()  # without waiting: less than half of what may wait does
    b.session.send(KIND, b"1", [bytes(700_000)])
    with pytest.raises(LinkBusyError):
        b.session.send(KIND, b"2")
    await harness.until(lambda: numbers(a) == [0, 1])


async def test_receiver_stops_the_frames_at_once(harness: Harness) -> None:
    a, b = await harness.pair()

    def stop_at_third(session: Session, frame: Frame) -> None:
        if len(a.frames) % 3 == 0:
            session.pause_receiving()

    a.then = stop_at_third
    send_numbered(b.session, 9)
    for count in (3, 6, 9):
        await harness.until(lambda count=count: len(a.frames) == count)  # type: ignore[misc]  # bound now
        await harness.settle()
        assert len(a.frames) == count
        a.session.resume_receiving()
        a.session.pause_receiving()
        a.session.resume_receiving()
    assert numbers(a) == list(range(9))


async def test_inbox_is_bounded_and_cancelling_loses_nothing(harness: Harness) -> None:
    a, b = await harness.pair()
    inbox = Inbox(a.session, frames_max=10, bytes_max=1_000_000)
    a.then = lambda session, frame: inbox.put(frame)
    send_numbered(b.session, 200)
    b.session.send(KIND, b"200", [bytes(1_000_001)])
    b.session.send(KIND, b"201")
    await harness.until(lambda: len(inbox) == 10)
    got: list[int] = []

    async def receive() -> None:
        async for frame in inbox:
            got.append(int(frame.header))
            assert len(inbox) <= 10
            if frame.header in (b"5", b"150"):
                await asyncio.Event().wait()

    for count in (6, 151):
        task = asyncio.ensure_future(receive())
        await harness.until(lambda count=count: len(got) == count)  # type: ignore[misc]  # bound now
        task.cancel()
        await asyncio.wait([task])
    task = asyncio.ensure_future(receive())
    await harness.until(lambda: len(got) == 202)
    b.session.close()
    await harness.until(lambda: bool(a.downs))
    inbox.end()
    await harness.until(task.done)
    await task
    assert got == list(range(202))


async def test_what_is_flushed_leaves_before_the_loop_turns(harness: Harness) -> None:
    a, b = await harness.pair()
    send_numbered(b.session, 3)
    waiting = b.session.outgoing_bytes
    b.session.flush()
    assert waiting > 0
    assert b.session._queued_bytes == 0  # the transport has it, which what `outgoing_bytes` says may include
    b.session.flush()
    send_numbered(b.session, 1)
    await harness.until(lambda: len(a.frames) == 4)
    assert numbers(a) == [0, 1, 2, 0]


# --- endings -------------------------------------------------------------------------------------------------------


async def test_closing_sends_what_is_queued(harness: Harness) -> None:
    a, b = await harness.pair(dialing=replace(CONFIG, close_ms_max=NEVER_MS))
    session = b.session
    send_numbered(session, 50, body=bytes(600_000))  # far more than the operating system takes at once
    session.close()
    assert not session.is_up
    with pytest.raises(UnavailableError, match="this side closed"):
        session.send(KIND)
    with pytest.raises(UnavailableError):
        await session.ready()
    await harness.until(lambda: bool(a.downs and b.downs))
    assert numbers(a) == list(range(50))
    assert [error.message for _, error in a.downs] == ["node 'b' closed the session"]


async def test_pausing_a_session_that_closes_does_not_delay_its_end(harness: Harness) -> None:
    a, b = await harness.pair(dialing=replace(CONFIG, close_ms_max=NEVER_MS))
    session, started = b.session, harness.network("b").scheduler.time()
    session.close()
    session.pause_receiving()
    await harness.until(lambda: bool(a.downs and b.downs))
    assert harness.network("b").scheduler.time() - started < NEVER_MS / 1000


async def test_both_sides_may_close_at_once(harness: Harness) -> None:
    a, b = await harness.pair(
        accepting=replace(CONFIG, close_ms_max=NEVER_MS), dialing=replace(CONFIG, close_ms_max=NEVER_MS)
    )
    for recorder in (a, b):
        send_numbered(recorder.session, 10, body=bytes(600_000))
        recorder.session.close()
    await harness.until(lambda: bool(a.downs and b.downs))
    assert {error.message for _, error in (*a.downs, *b.downs)} == {"this side closed the session"}


async def test_closing_loses_nothing_while_the_peer_goes_on_sending(harness: Harness) -> None:
    a, b = await harness.pair(dialing=replace(CONFIG, close_ms_max=NEVER_MS))
    a.then = lambda session, frame: session.send(KIND, frame.header, [bytes(100_000)])
    send_numbered(b.session, 20, body=bytes(600_000))
    b.session.close()
    await harness.until(lambda: bool(a.downs and b.downs))
    assert numbers(a) == list(range(20))


async def test_closing_a_session_whose_peer_does_not_read_ends_too(harness: Harness) -> None:
    a, b = await harness.pair(dialing=replace(CONFIG, close_ms_max=50))
    a.session.pause_receiving()
    send_numbered(b.session, 15, body=bytes(2_000_000))
    b.session.close()
    await harness.until(lambda: bool(b.downs))


async def test_aborting_reports_at_once_and_loses_a_suffix(harness: Harness) -> None:
    a, b = await harness.pair()
    send_numbered(b.session, 500, body=bytes(5_000))
    await harness.until(lambda: bool(a.frames))
    b.session.abort(UnavailableError("enough"))
    assert [error.message for _, error in b.downs] == ["enough"]
    await harness.until(lambda: bool(a.downs))
    assert numbers(a) == list(range(len(a.frames)))
    assert len(b.downs) == 1


async def test_waiting_for_a_session_that_ends_is_an_error(harness: Harness) -> None:
    a, b = await harness.pair(dialing=replace(CONFIG, outgoing_bytes_max=100))
    a.session.pause_receiving()
    b.session.send(KIND, b"0", [bytes(20_000_000)])
    waiting = asyncio.ensure_future(b.session.ready())
    await harness.settle()
    assert not waiting.done()
    b.session.abort(UnavailableError("enough"))
    with pytest.raises(UnavailableError, match="enough"):
        await waiting


async def test_silent_peer_is_found_out(harness: Harness) -> None:
    mute = replace(CONFIG, ping_ms=NEVER_MS)
    a, b = await harness.pair(accepting=mute, dialing=replace(CONFIG, ping_ms=10, silence_ms_max=50))
    await harness.until(lambda: bool(b.downs))
    assert b.downs[0][1].message == "nothing came from 'a' for 50 ms"
    await harness.until(lambda: bool(a.downs))


async def test_peer_that_takes_nothing_is_given_up(harness: Harness) -> None:
    a, b = await harness.pair(dialing=replace(CONFIG, ping_ms=10, stall_ms_max=50))
    a.session.pause_receiving()
    b.session.send(KIND, b"0", [bytes(30_000_000)])
    await harness.until(lambda: bool(b.downs))
    assert b.downs[0][1].message == "node 'a' took nothing for 50 ms"


# --- dialing -------------------------------------------------------------------------------------------------------


async def test_session_comes_back_under_another_id(harness: Harness) -> None:
    a, b = await harness.pair()
    first = a.session.session_id
    a.session.abort(UnavailableError("the test ends it"))
    await harness.until(lambda: len(a.ups) == len(b.ups) == 2)
    assert a.session.session_id == b.session.session_id != first
    b.session.send(KIND, b"0")
    await harness.until(lambda: numbers(a) == [0])
    for recorder in (a, b):
        assert [event.split()[0] for event in recorder.events] == ["up", "down", "up"]


async def test_dialer_waits_for_a_peer_that_comes_late_and_comes_again(harness: Harness) -> None:
    a, b = Recorder(), Recorder()
    early = harness.listener("a", a)
    address = early.start(harness.address("a"))
    early.close()
    await early.wait_closed()
    dialer = harness.dialer("b", "a", address, b)
    dialer.start()
    assert dialer.session is None
    await harness.until(lambda: dialer.last_error is not None)
    for count in (1, 2):
        listener = harness.listener("a", a)
        listener.start(address)
        await harness.until(lambda count=count: len(b.ups) == count)  # type: ignore[misc]  # bound now
        assert dialer.session is b.session
        listener.close()
        await harness.until(lambda count=count: len(b.downs) == count)
        assert dialer.session is None


async def test_newest_session_of_a_peer_wins(harness: Harness) -> None:
    a, older, newer = Recorder(), Recorder(), Recorder()
    address = harness.listener("a", a).start(harness.address("a"))
    first = harness.dialer("b", "a", address, older)
    first.start()
    await harness.until(lambda: bool(older.ups))
    second = harness.dialer("b", "a", address, newer)
    second.start()
    await harness.until(lambda: bool(older.downs))
    first.close()
    await harness.until(lambda: bool(newer.ups) and newer.session.is_up and a.ups[-1].is_up)
    assert a.downs[0][1].message == "node 'b' opened a newer session"
    # Never two at a time: each but the first comes up right after the one before it went down.
    up = [event.split()[1] for event in a.events if event.startswith("up")]
    down = [event.split()[1] for event in a.events if event.startswith("down")]
    assert [event.split()[0] for event in a.events] == ["up"] + ["down", "up"] * (len(up) - 1)
    assert down == up[:-1]


async def test_listener_closed_by_its_handler_closes_the_newest_session_too(harness: Harness) -> None:
    class Closing(Recorder):
        def on_down(self, session: Session, error: QuireError) -> None:
            super().on_down(session, error)
            listener.close()

    a = Closing()
    listener = harness.listener("a", a)
    address = listener.start(harness.address("a"))
    for handler in (Recorder(), Recorder()):
        harness.dialer("b", "a", address, handler, config=replace(CONFIG, backoff_ms_min=20)).start()
        await harness.until(lambda handler=handler: bool(handler.ups))  # type: ignore[misc]  # bound now
    await harness.until(lambda: len(a.downs) == len(a.ups) == 2)
    assert listener.sessions == []
    await harness.done(listener.wait_closed())


async def test_closing_a_dialer_ends_all_attempts(harness: Harness) -> None:
    b = Recorder()
    silent = harness.listener("a", Recorder())
    address = silent.start(harness.address("a"))
    dialer = harness.dialer("b", "a", address, b)
    dialer.start()
    dialer.close()
    await harness.done(dialer.wait_closed())
    await harness.settle()
    assert b.events == []
    assert dialer.session is None


async def test_address_in_use_is_an_error(harness: Harness) -> None:
    address = harness.listener("a", Recorder()).start(harness.address("a"))
    with pytest.raises(UnavailableError, match="cannot listen on"):
        harness.listener("a", Recorder()).start(address)
