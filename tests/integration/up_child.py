"""A process to be supervised: `python -m up_child <port> <events file> <name> <behaviour>`.

It serves `/healthz` and writes what happens to it into the events file, a line each.

    serve       until SIGTERM
    stubborn    the same, and does not stop for it
    ill         the same as serve, but never says that it is well
    exit-<n>    ends with this code after it was well
    <n>         ends with this code at once
"""

from __future__ import annotations

import http.server
import os
import signal
import sys
import threading
from types import FrameType


def main() -> None:
    port, events, name, behaviour = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]

    def tell(what: str) -> None:
        with open(events, "a", encoding="utf-8") as file:
            file.write(f"{name} {what}\n")

    def on_signal(number: int, frame: FrameType | None) -> None:
        tell("asked")
        if behaviour != "stubborn":
            stop.set()

    class Door(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503 if behaviour == "ill" else 200)
            self.end_headers()
            asked.set()

        def log_message(self, format: str, *args: object) -> None:
            pass

    if behaviour.isdigit():
        print(f'{{"level": "error", "event": "cannot go on", "message": "as {name} was told"}}', file=sys.stderr)
        tell("ended")
        sys.exit(int(behaviour))
    stop, asked = threading.Event(), threading.Event()
    signal.signal(signal.SIGTERM, on_signal)
    with http.server.HTTPServer(("127.0.0.1", port), Door) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        tell(f"started {os.getpid()}")
        if behaviour.startswith("exit-"):
            asked.wait()
            server.shutdown()
            sys.exit(int(behaviour.removeprefix("exit-")))
        while not stop.wait(0.05):
            pass
        server.shutdown()
    tell("stopped")


if __name__ == "__main__":
    main()
