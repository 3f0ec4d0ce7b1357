"""Whatever the network, the clocks and pauses do: no controller ends a lease that the broker believes to hold.

One broker, a row of leading controllers, each with a clock of its own that began anywhere and runs a little too fast
or too slow. Heartbeats and answers are late, lost or overtake each other; the broker and the controllers stand still
for a while; metadata arrives when it arrives.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import pytest

from quire.lease import BrokerLease
from quire_controller.state import leases
from quire_controller.state.leases import LeaseKeeper
from quire_controller.state.model import Broker

LEASE_MS: Final = 1_000
END_MS: Final = 60_000
RUNS: Final = 300
EPOCH: Final = 10


@dataclass
class Clock:
    offset_ms: float
    rate: float

    def read(self, now_ms: float) -> int:
        return int(self.offset_ms + now_ms * self.rate)


class Simulation:
    """Times in events are true ones, which nobody in it can see."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now_ms = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers = itertools.count()
        self.version = 1
        self.broker = Broker(1, EPOCH, b"i" * 16, "1", "", (), 1, 1, fenced=False, lease_ms=LEASE_MS)
        self.broker_clock = self.clock()
        self.lease = BrokerLease(broker_epoch=EPOCH)
        self.sequence = itertools.count()
        self.delay_ms = self.chance.choice([5, 50, 400, 1_500])
        self.loss = self.chance.choice([0.0, 0.2, 0.6])
        self.broker_stands_still_until = 0.0
        self.fences = self.held = self.looks = 0
        self.take_over()
        self.heartbeat()
        self.look()

    def clock(self) -> Clock:
        return Clock(self.chance.uniform(0, 1e9), 1 + self.chance.uniform(-0.004, 0.004))

    def at(self, delay_ms: float, event: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now_ms + delay_ms, next(self.numbers), event))

    def later(self, event: Callable[[], None]) -> None:
        """When the network has carried it, if it does."""
        if self.chance.random() >= self.loss:
            self.at(self.chance.expovariate(1 / self.delay_ms), event)

    def run(self) -> None:
        while self.events and self.events[0][0] < END_MS:
            self.now_ms, _, event = heapq.heappop(self.events)
            event()
            self.check()

    def check(self) -> None:
        believes = self.lease.is_held(self.broker_clock.read(self.now_ms))
        self.looks += 1
        self.held += believes
        assert not (believes and self.broker.fenced), (
            f"at {self.now_ms} the broker believes in a lease that was ended"
        )

    # -- controllers -----------------------------------------------------------------------------------------------

    def take_over(self) -> None:
        """Another controller leads from now on; its predecessor can have nothing confirmed any more."""
        self.controller_clock = self.clock()
        self.keeper = LeaseKeeper(
            term=self.version, now_ms=self.controller_clock.read(self.now_ms), brokers={1: self.broker}
        )
        self.at(self.chance.expovariate(1 / 10_000), self.take_over)

    def look(self) -> None:
        controller_ms = self.controller_clock.read(self.now_ms)
        self.keeper.observe({1: self.broker}, controller_ms)
        if self.keeper.expired(controller_ms):
            self.fences += 1
            self.change(fenced=True)
            self.at(self.chance.uniform(0, 5_000), lambda: self.change(fenced=False))
        pause_ms = self.chance.uniform(500, 5_000) if self.chance.random() < 0.01 else 0
        self.at(50 + pause_ms, self.look)

    def change(self, *, fenced: bool) -> None:
        """Committed at once. The broker learns of it sometime; metadata arrives in order and is never lost."""
        self.version += 1
        self.broker = replace(self.broker, fenced=fenced)
        version = self.version
        self.at(self.chance.expovariate(1 / self.delay_ms), lambda: self.lease.on_applied(version))

    def receive(self, sequence: int) -> None:
        keeper, received_ms = self.keeper, self.controller_clock.read(self.now_ms)

        def confirmed() -> None:
            if keeper is self.keeper:  # else the quorum round fails: there is another leader
                self.keeper.observe({1: self.broker}, self.controller_clock.read(self.now_ms))
                lease_ms = keeper.on_heartbeat_confirmed(broker_id=1, broker_epoch=EPOCH, received_ms=received_ms)
                version = self.version
                self.later(lambda: self.awake(lambda: self.answer(sequence, lease_ms, version)))

        self.at(self.chance.expovariate(1 / self.delay_ms), confirmed)

    # -- the broker ------------------------------------------------------------------------------------------------

    def heartbeat(self) -> None:
        sequence = next(self.sequence)
        self.lease.on_heartbeat_sent(sequence, self.broker_clock.read(self.now_ms))
        self.later(lambda: self.receive(sequence))
        if self.chance.random() < 0.01:
            self.broker_stands_still_until = self.now_ms + self.chance.uniform(0, 5_000)
        self.at(self.chance.uniform(100, 400), lambda: self.awake(self.heartbeat))

    def answer(self, sequence: int, lease_ms: int, version: int) -> None:
        self.lease.on_heartbeat_answered(sequence, EPOCH, lease_ms, version)

    def awake(self, event: Callable[[], None]) -> None:
        """What happens to a broker that stands still happens when it goes on."""
        self.at(max(0.0, self.broker_stands_still_until - self.now_ms), event)


def test_no_lease_is_ended_that_the_broker_believes_to_hold() -> None:
    fences = held = looks = 0
    for seed in range(RUNS):
        simulation = Simulation(seed)
        simulation.run()
        fences += simulation.fences
        held += simulation.held
        looks += simulation.looks
    assert fences > RUNS, "leases must also end, or nothing was shown"
    assert held > looks / 4, "and be held"


def test_the_simulation_finds_a_keeper_that_counts_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(lease_ms: int, percent: int) -> int:
        return lease_ms * 9 // 10

    monkeypatch.setattr(leases, "_longer", broken)
    with pytest.raises(AssertionError, match="believes"):
        test_no_lease_is_ended_that_the_broker_believes_to_hold()


def test_the_simulation_finds_a_broker_that_counts_from_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Simulation.answer

    def broken(self: Simulation, sequence: int, lease_ms: int, version: int) -> None:
        self.lease.on_heartbeat_sent(sequence, self.broker_clock.read(self.now_ms))
        original(self, sequence, lease_ms, version)

    monkeypatch.setattr(Simulation, "answer", broken)
    with pytest.raises(AssertionError, match="believes"):
        test_no_lease_is_ended_that_the_broker_believes_to_hold()
