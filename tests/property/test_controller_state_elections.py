"""Few partitions whose brokers come and go all the time: nothing that was acknowledged is lacking where it must be.

The steps and the checkers are those of the state machine's test. Here they are weighted for what elections are about,
and there are many more of them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any, Final

from quire.v1 import commands_pb2 as c
from quire.v1 import metadata_pb2
from tests.property.test_controller_state_machine import ControllerMachine

RUNS: Final = int(os.environ.get("QUIRE_CONTROLLER_EXAMPLES", "300"))
STEPS: Final = 150
BROKERS: Final = (1, 2, 3, 4)


class Driver:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.machine = ControllerMachine()
        self.machine.begin(len(BROKERS))
        self.lossy = self.chance.random() < 0.3
        """Whether restarts lose records: as if nobody ever synced."""
        self.steps: list[tuple[Callable[[], None], int]] = [
            (self.fence, 4),
            (self.unfence, 8),
            (self.restart, 5),
            (self.wipe, 1),
            (self.alter, 6),
            (self.expand, 6),
            (self.configure, 2),
            (self.move, 2),
            (self.elect, 5),
            (self.complete, 4),
            (self.reassign, 1),
            (self.finish, 2),
            (self.cancel, 1),
            (self.create, 1),
            (self.restore, 1),
        ]

    def run(self) -> None:
        steps, weights = zip(*self.steps, strict=True)
        for step in self.chance.choices(steps, weights, k=STEPS):
            step()
            self.machine.wiped_brokers_are_not_in_sync()
        self.machine.teardown()

    def broker(self) -> int:
        return self.chance.choice(BROKERS)

    def number(self) -> int:
        return self.chance.randrange(20)

    def fence(self) -> None:
        self.machine.fence(self.broker(), 0, 2)

    def unfence(self) -> None:
        self.machine.unfence(self.broker(), 0)

    def restart(self) -> None:
        lost = self.chance.randrange(4) if self.lossy else 0
        self.machine.register(self.broker(), wiped=False, lost=lost, reports=self.chance.random() < 0.9, client="")

    def wipe(self) -> None:
        self.machine.register(self.broker(), wiped=True, lost=0, reports=True, client="")

    def alter(self) -> None:
        members = {broker_id for broker_id in BROKERS if self.chance.random() < 0.5}
        self.machine.alter_partition(self.number(), members, with_leader=True, staleness=0, client="")

    def expand(self) -> None:
        self.machine.expand_isr(self.number())

    def configure(self) -> None:
        if self.chance.random() < 0.2:
            body = c.ConfigureTopic(topic_id=self.machine.topic_id(1), unset=["min_isr"])
        else:
            config = metadata_pb2.TopicConfig(min_isr=self.chance.randrange(1, 4))
            body = c.ConfigureTopic(topic_id=self.machine.topic_id(1), set=config)
        self.machine.run(configure_topic=body)

    def move(self) -> None:
        self.machine.move_leader(self.number(), self.broker(), 0)

    def each(self, kind: int) -> None:
        self.machine.many({self.number() for _ in range(3)}, 0, kind)

    def elect(self) -> None:
        self.each(2)

    def complete(self) -> None:
        self.each(1)

    def finish(self) -> None:
        self.each(3)

    def reassign(self) -> None:
        self.machine.reassign(self.number(), self.chance.sample(BROKERS, 3), 0)

    def cancel(self) -> None:
        self.machine.cancel(self.number(), 0)

    def create(self) -> None:
        options: dict[str, Any] = {"unclean": False, "assigned": [], "client": ""}
        self.machine.create_topic(self.chance.randrange(1, 4), 1, self.chance.randrange(1, 4), None, **options)

    def restore(self) -> None:
        self.machine.restore_twin()


def test_nothing_acknowledged_is_lacking_where_it_must_be() -> None:
    for seed in range(RUNS):
        try:
            Driver(seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error
