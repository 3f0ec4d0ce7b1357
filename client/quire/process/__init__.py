"""What every server process of Quire is made of, whatever it serves. Needs `quire[server]`; clients do not use it.

    start      from the command line to a configuration and a log
    run        the event loop, signals, a graceful stop with a deadline, and what a bug does
    exits      the codes with which a process ends
    lock       one process a data directory
    logs       structured logs, bounded in every direction
    throttle   how often the same may be said
    sidedoor   `/metrics` and `/healthz`
    malloc     how the C library gets and keeps memory
    rpc        what stands before every gRPC method

A server's `__main__` is three lines:

    effective = start.configured("controller", sys.argv[1:])
    config = effective.config
    run.run(lambda stop: serve(config, stop), stop_ms_max=config.node.stop_ms_max)
"""

import os

# gRPC's core writes to standard error by itself, a line for each failed handshake: past our log and its limits. It
# looks at this when it is imported, which a server does after this package.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
