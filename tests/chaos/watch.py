"""Writes down who leads, and who is in sync, each time that changes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from quire import aio
from quire.aio import TopicDescription
from quire.errors import QuireError
from quire.verify import HistoryWriter, Type

LOOK_S: Final = 0.2
CALL_MS_MAX: Final = 2_000


async def watch(bootstrap: Sequence[str], history: HistoryWriter, topic: str) -> None:
    """Until it is cancelled. While nobody answers it is written that nothing is known."""
    before: dict[int, tuple[int | None, int, tuple[int, ...]]] = {}
    known = True
    while True:
        described = await describe(bootstrap, topic)
        if described is None:
            if known:
                history.add("watch", Type.INFO, "watch", topic=topic, known=False)
            known = False
            before.clear()
        else:
            known = True
            for each in described.partitions:
                now = (each.leader, each.leader_epoch, each.isr)
                if before.get(each.partition) != now:
                    before[each.partition] = now
                    history.add(
                        "watch",
                        Type.INFO,
                        "watch",
                        topic=topic,
                        partition=each.partition,
                        known=True,
                        leader=each.leader,
                        epoch=each.leader_epoch,
                        isr=each.isr,
                    )
        await asyncio.sleep(LOOK_S)


async def describe(bootstrap: Sequence[str], topic: str) -> TopicDescription | None:
    """The topic, as whoever answers first has it."""
    for address in bootstrap:
        try:
            async with aio.Admin(address, call_ms_max=CALL_MS_MAX) as admin:
                return await admin.describe_topic(topic)
        except QuireError:
            continue
    return None
