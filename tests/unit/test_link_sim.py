"""The simulated network's faults, and what sessions make of them in virtual time."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from quire.errors import InvalidArgumentError, UnavailableError
from quire.link.backoff import Backoff
from quire.link.config import LinkConfig
from quire.link.frames import Frame
from quire.link.session import Session
from quire.link.sim import SimTransport
from tests.contract.link_harness import Recorder, SimHarness

KIND = 20
CONFIG = LinkConfig()


class Pair:
    """Node a, which listens, and node b, which dials, with everything at its default."""

    def __init__(self, seed: int = 1) -> None:
        self.harness = SimHarness(seed)
        self.sim, self.scheduler = self.harness.sim, self.harness.scheduler
        self.a, self.b = Recorder(), Recorder()
        self.listener = self.harness.listener("a", self.a, config=CONFIG)
        self.address = self.listener.start(self.harness.address("a"))
        self.dialer = self.harness.dialer("b", "a", self.address, self.b, config=CONFIG)
        self.dialer.start()
        self.run(1)

    def run(self, seconds: float) -> None:
        self.scheduler.run_for(seconds)

    @property
    def is_up(self) -> bool:
        return self.dialer.session is not None and any(session.is_up for session in self.listener.sessions)

    def numbers(self) -> list[int]:
        return [int(frame.header) for frame in self.a.frames]


def test_idle_session_stays_up() -> None:
    pair = Pair()
    pair.run(3600)
    assert pair.is_up
    assert len(pair.a.ups) == 1


def test_one_turn_of_the_loop_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair()
    writes: list[tuple[str, int]] = []
    write_lines = SimTransport.writelines

    def count(self: SimTransport, data: list[bytes]) -> None:
        writes.append((self.outgoing.source.name, len(data)))
        write_lines(self, data)

    monkeypatch.setattr(SimTransport, "writelines", count)
    for number in range(100):
        pair.b.session.send(KIND, b"%d" % number, [b"small"])
    assert writes == []
    pair.run(0.1)
    assert [write for write in writes if write[0] == "b"] == [("b", 1)], "one call, one buffer"
    assert pair.numbers() == list(range(100))


@pytest.mark.parametrize(("source", "target"), [("a", "b"), ("b", "a")])
def test_one_way_cut_ends_the_session_on_both_sides(source: str, target: str) -> None:
    pair = Pair()
    pair.sim.cut(source, target)
    pair.run(CONFIG.silence_ms_max / 1000 + 1)
    deaf = pair.b if target == "b" else pair.a
    assert deaf.downs[0][1].message == f"nothing came from '{source}' for 3000 ms"
    pair.run(60)
    assert not pair.is_up
    pair.sim.heal()
    pair.run(10)
    assert pair.is_up
    assert len(pair.a.ups) == len(pair.a.downs) + 1


def test_short_cut_only_delays() -> None:
    pair = Pair()
    pair.sim.partition({"a"}, {"b"})
    for number in range(100):
        pair.b.session.send(KIND, b"%d" % number)
    pair.run(2)
    assert pair.numbers() == []
    pair.sim.heal()
    pair.run(1)
    assert pair.numbers() == list(range(100))
    assert len(pair.a.ups) == 1


def test_dialing_over_a_cut_gives_up_and_comes_again() -> None:
    pair = Pair()
    pair.sim.partition({"a"}, {"b", "c"})
    c = Recorder()
    dialer = pair.harness.dialer("c", "a", pair.address, c, config=CONFIG)
    dialer.start()
    pair.run(CONFIG.handshake_ms_max / 1000 + 0.1)
    assert dialer.last_error is not None
    assert "no greeting came within 5000 ms" in dialer.last_error.message
    pair.sim.heal()
    pair.run(CONFIG.handshake_ms_max / 1000 + 5)
    assert dialer.session is not None
    assert len(pair.listener.sessions) == 2
    assert pair.listener.half_open_count == 0


def test_dialing_given_up_leaves_nothing_behind() -> None:
    pair = Pair()
    before = pair.sim.connection_count
    pair.sim.cut("a", "c")
    dialer = pair.harness.dialer("c", "a", pair.address, Recorder(), config=CONFIG)
    dialer.start()
    pair.run(1)  # a has accepted, and c does not know it
    dialer.close()
    pair.sim.heal()
    pair.run(1)
    assert pair.sim.connection_count == before == 1


@pytest.mark.parametrize("seed", range(30))
def test_broken_connection_loses_a_suffix(seed: int) -> None:
    pair = Pair(seed)
    randomness = random.Random(seed)
    for number in range(300):
        pair.b.session.send(KIND, b"%d" % number, [bytes(randomness.randint(0, 3000))])
        if number % 10 == 0:
            pair.run(0.0002)
    pair.run(randomness.uniform(0, 0.002))
    pair.sim.break_connections("a", "b")
    pair.run(0.02)
    assert len(pair.a.downs) == len(pair.b.downs) == 1
    first = pair.numbers()
    assert first == list(range(len(first)))
    pair.run(5)
    assert pair.is_up
    assert pair.numbers() == first, "nothing of the old session comes later"
    pair.b.session.send(KIND, b"300")
    pair.run(1)
    assert pair.numbers() == [*first, 300]


def test_breaking_does_lose_frames() -> None:
    lost = 0
    for seed in range(10):
        pair = Pair(seed)
        for number in range(10):
            pair.b.session.send(KIND, b"%d" % number, [bytes(30_000)])
        pair.run(0.001)
        pair.sim.break_connections("a", "b")
        pair.run(1)
        lost += 10 - len(pair.a.frames)
    assert lost > 10, "or the test above proves nothing"


def test_sessions_overtake_each_other_but_not_themselves() -> None:
    overtaken = 0
    for seed in range(20):
        pair = Pair(seed)
        c = Recorder()
        pair.harness.dialer("c", "a", pair.address, c, config=CONFIG).start()
        pair.run(1)
        for number in range(20):
            sender = (pair.b, c)[number % 2].session
            sender.send(KIND, b"%d" % number)
            pair.run(0.0001)
        pair.run(1)
        got = pair.numbers()
        assert [n for n in got if n % 2 == 0] == list(range(0, 20, 2))
        assert [n for n in got if n % 2 == 1] == list(range(1, 20, 2))
        overtaken += got != sorted(got)
    assert overtaken


def test_short_pause_is_survived_and_a_long_one_is_not() -> None:
    pair = Pair()
    pair.sim.pause("a")
    pair.b.session.send(KIND, b"0")
    pair.run(2)
    assert pair.numbers() == []
    pair.sim.resume("a")
    pair.run(1)
    assert pair.numbers() == [0]
    assert len(pair.a.ups) == 1
    pair.sim.pause("a")
    pair.run(10)
    assert len(pair.b.downs) == 1
    assert pair.a.downs == []
    pair.sim.resume("a")
    pair.run(10)
    assert len(pair.a.downs) == 1
    assert pair.is_up


def test_late_tick_after_a_pause_is_no_silence_of_the_peer() -> None:
    # b sleeps for longer than anybody may be silent; a does not mind, and b must not take its own sleep for a's.
    pair = Pair()
    pair.a.session.pause_receiving()
    pair.run(1)
    pair.sim.pause("b")
    pair.run(CONFIG.silence_ms_max / 1000 + 5)
    pair.sim.resume("b")
    pair.a.session.resume_receiving()
    pair.run(10)
    assert len(pair.b.ups) == 1
    assert pair.b.downs == []


def test_crashed_node_does_nothing_and_may_come_back() -> None:
    pair = Pair()
    pair.sim.crash("b")
    frames = len(pair.b.events)
    pair.run(60)
    assert len(pair.b.events) == frames
    assert len(pair.a.downs) == 1
    again = Recorder()
    dialer = pair.harness.dialer("b", "a", pair.address, again, config=CONFIG)
    dialer.start()
    pair.run(5)
    assert dialer.session is not None
    pair.sim.crash("a")
    pair.run(5)
    assert len(again.downs) == 1
    assert dialer.last_error is not None
    assert "ConnectionRefusedError" in dialer.last_error.message


def test_bug_in_a_handler_ends_the_session_and_is_not_swallowed() -> None:
    pair = Pair()

    def fail(session: Session, frame: Frame) -> None:
        raise ZeroDivisionError

    pair.a.then = fail
    pair.b.session.send(KIND, b"0")
    pair.b.session.send(KIND, b"1")
    with pytest.raises(ZeroDivisionError):
        pair.run(1)
    assert pair.numbers() == [0], "what follows is not delivered as if nothing had happened"
    assert len(pair.a.downs) == 1


def history(seed: int) -> list[object]:
    """A session's life under faults that the seed decides."""
    pair = Pair(seed)
    randomness = random.Random(seed)
    pair.a.then = lambda session, frame: session.send(frame.kind, frame.header, [frame.body])
    seen: list[object] = []
    for number in range(200):
        fault = randomness.random()
        if fault < 0.03:
            pair.sim.break_connections("a", "b")
        elif fault < 0.06:
            pair.sim.cut(*randomness.sample(["a", "b"], 2))
        elif fault < 0.09:
            pair.sim.pause(randomness.choice(["a", "b"]))
        elif fault < 0.3:
            pair.sim.heal()
            pair.sim.resume("a")
            pair.sim.resume("b")
        if pair.dialer.session is not None:
            pair.dialer.session.send(KIND, b"%d" % number)
        pair.run(randomness.uniform(0, 1))
        seen.append((pair.scheduler.time(), len(pair.a.frames), len(pair.b.frames)))
    return [*seen, pair.a.events, pair.b.events, pair.numbers()]


@pytest.mark.parametrize("seed", range(10))
def test_same_seed_same_history(seed: int) -> None:
    first = history(seed)
    assert first == history(seed)
    assert first != history(seed + 1000)


@pytest.mark.parametrize("seed", range(40))
def test_each_session_gives_a_prefix_under_any_faults(seed: int) -> None:
    *_, up_and_down, _, numbers = history(seed)
    assert isinstance(numbers, list)
    assert numbers == sorted(set(numbers)), "lost at most, never repeated or reordered"
    assert isinstance(up_and_down, list)
    kinds = [event.split()[0] for event in up_and_down]
    assert kinds == (["up", "down"] * len(kinds))[: len(kinds)]


def test_everything_heals() -> None:
    for seed in range(20):
        pair = Pair(seed)
        pair.sim.partition({"a"}, {"b"})
        pair.run(seed)
        pair.sim.pause("a")
        pair.run(seed)
        pair.sim.heal()
        pair.sim.resume("a")
        pair.run(CONFIG.silence_ms_max / 1000 + CONFIG.handshake_ms_max / 1000 + CONFIG.backoff_ms_max / 1000 + 1)
        assert pair.is_up, seed


def test_backoff_grows_to_its_limit_with_jitter() -> None:
    upper = Backoff(ms_min=50, ms_max=400, uniform=lambda low, high: high)
    assert [upper.next_ms() for _ in range(6)] == [50, 100, 200, 400, 400, 400]
    upper.reset()
    assert upper.next_ms() == 50
    lower = Backoff(ms_min=50, ms_max=400, uniform=lambda low, high: low)
    assert [lower.next_ms() for _ in range(5)] == [25, 50, 100, 200, 200]


def test_sessions_that_do_not_last_do_not_reset_the_wait() -> None:
    pair = Pair()
    ups = len(pair.a.ups)
    for _ in range(100):
        for session in pair.listener.sessions:
            session.abort(UnavailableError("the test ends it"))
        pair.run(0.1)
    assert len(pair.a.ups) - ups < 20
    pair.run(2 * CONFIG.backoff_ms_max / 1000)
    assert pair.is_up


@pytest.mark.parametrize(
    "change", [{"ping_ms": 0}, {"ping_ms": 4000}, {"backoff_ms_min": 5000}, {"sessions_max": -1}]
)
def test_impossible_config_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(InvalidArgumentError, match="is to be") as caught:
        replace(CONFIG, **change)
    assert next(iter(change)) in str(caught.value)
