"""Where a verb works: the addresses and certificates of the command line, and clients made from them.

Before the first client is made it is seen whether anybody is there. The SDK would try for long; what most often is
wrong has a short answer.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from quire.cli.options import DEFAULT, VARIABLE
from quire.errors import UnavailableError

if TYPE_CHECKING:
    from quire import Admin, Consumer, Producer

CONNECT_MS_MAX: Final = 5_000
CLIENT_ID: Final = "quire-cli"


@dataclass(frozen=True, slots=True)
class Where:
    bootstrap: str
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    connect_ms_max: int = CONNECT_MS_MAX

    def admin(self, **options: Any) -> Admin:
        from quire import Admin

        self.check()
        return Admin(self.bootstrap, **self._connection, **options)

    def producer(self, **options: Any) -> Producer:
        from quire import Producer

        self.check()
        return Producer(self.bootstrap, **self._connection, **options)

    def consumer(self, *topics: str, **options: Any) -> Consumer:
        from quire import Consumer

        self.check()
        return Consumer(self.bootstrap, *topics, **self._connection, **options)

    @property
    def _connection(self) -> dict[str, Any]:
        return {
            "client_id": CLIENT_ID,
            "tls_ca": self.tls_ca,
            "tls_cert": self.tls_cert,
            "connect_ms_max": self.connect_ms_max,
        }

    def check(self) -> None:
        """Raises UnavailableError, with what to do, if none of the addresses takes a connection."""
        from quire._client import addresses

        problems = []
        for address in addresses.parse(self.bootstrap):
            try:
                socket.create_connection(address, timeout=self.connect_ms_max / 1000).close()
            except OSError as error:
                problems.append(f"{address}: {error.strerror or error}")
            else:
                return
        if self.bootstrap == DEFAULT:
            text = f"nothing answers at {DEFAULT}; start one with `quire up`, or name another with -b or {VARIABLE}"
        else:
            text = f"nothing answers at {self.bootstrap} ({'; '.join(problems)}); is a broker running there?"
        raise UnavailableError(text, bootstrap=self.bootstrap)
