"""`python -m quire_controller`: one member of the controller quorum."""

from __future__ import annotations

import sys

from quire.process import run, start
from quire_controller.app import serve


def main() -> None:
    config = start.configured("controller", sys.argv[1:]).config
    run.run(lambda stop: serve(config, stop), stop_ms_max=config.node.stop_ms_max)


if __name__ == "__main__":
    main()
