"""A broker with a bug that no test may let pass: it acknowledges before its followers have anything.

    python -m tests.chaos.planted <file> late|alone <flags …>

While the file is there nothing is pushed to followers: that is slow, and right. `alone` also ignores `min_isr` and
the ISR: the high watermark is the end of the leader's own log.
"""

from __future__ import annotations

import os
import runpy
import sys

from quire_broker.replica.leader import LeaderCore, Offer


def push_late(held: str) -> None:
    next_push = LeaderCore.next_push

    def late(core: LeaderCore, broker_id: int, stream: int) -> Offer | None:
        if os.path.exists(held):
            return None  # it is offered again at the next tick
        return next_push(core, broker_id, stream)

    LeaderCore.next_push = late  # type: ignore[method-assign,assignment]  # that is what this module is for


def acknowledge_alone() -> None:
    def alone(core: LeaderCore) -> list[int]:
        return [core.broker_id]

    def enough(core: LeaderCore) -> bool:
        return True

    LeaderCore.waited_for = alone  # type: ignore[method-assign,assignment]  # that is the bug
    LeaderCore._is_isr_large_enough = enough  # type: ignore[method-assign,assignment]  # and so is this


if __name__ == "__main__":
    push_late(sys.argv.pop(1))
    if sys.argv.pop(1) == "alone":
        acknowledge_alone()
    runpy.run_module("quire_broker", run_name="__main__", alter_sys=True)
