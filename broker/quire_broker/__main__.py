"""`python -m quire_broker`: one broker."""

from __future__ import annotations

import sys

from quire.process import malloc, run, start

if __name__ == "__main__":
    effective = start.configured("broker", sys.argv[1:])
    config = effective.config
    # Large messages come and go all the time: without this each would be fresh pages, zeroed by the kernel.
    malloc.tune(
        mmap_threshold_bytes=256 * 1024 * 1024,
        trim_threshold_bytes=64 * 1024 * 1024,
        top_pad_bytes=16 * 1024 * 1024,
        arenas_max=2,
    )

    from quire_broker.app import serve  # after malloc: what it imports allocates

    run.run(lambda stop: serve(config, stop), stop_ms_max=config.node.stop_ms_max)
