"""A process that appends to a log until it is killed, and says after each sync what it would acknowledge.

Run as `python -m tests.integration.log_appender <directory> <seed>`.
"""

from __future__ import annotations

import random
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from quire.disk.os_disk import OsDisk
from quire_broker.log.config import LogConfig
from quire_broker.log.log import Log
from tests.unit.log_crafting import NOW_MS, append, batch

CONFIG: Final = LogConfig(
    segment_bytes=24 * 1024, index_interval_bytes=1024, checkpoint_bytes=32 * 1024, retention_ms=None
)


def expected_value(offset: int) -> bytes:
    return b"%d " % offset * (1 + offset * 7919 % 97)


def append_some(log: Log, chance: random.Random) -> None:
    offset, batches = log.end_offset, []
    for _ in range(chance.randint(1, 4)):
        count = chance.randint(1, 5)
        batches.append(batch(*map(expected_value, range(offset, offset + count))))
        offset += count
    append(log, *batches)


def main(directory: str, seed: int) -> None:
    chance = random.Random(seed)
    log = Log.open(OsDisk(), directory, CONFIG, now_ms=NOW_MS)
    log.begin_epoch(log.latest_epoch + 1)
    with ThreadPoolExecutor(1) as pool:
        while True:
            append_some(log, chance)
            plan = log.begin_sync()
            if plan is None:
                raise SystemExit("nothing to sync after an append")
            running = pool.submit(plan.run)
            append_some(log, chance)  # as a broker does: appending goes on while a sync is in flight
            running.result()
            log.finish_sync(plan)
            print(log.synced_offset, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
