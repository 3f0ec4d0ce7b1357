"""What every client may be told about its connections, checked."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from quire._client import addresses
from quire._client.arguments import check_whole
from quire.errors import InvalidArgumentError
from quire.link.network import Address

CLIENT_ID_CHARACTERS_MAX: Final = 128
CONNECT_MS_MAX: Final = 10_000
"""How long a new client looks for a broker that answers, before it says that there is none."""
MS_MAX: Final = 24 * 3600 * 1000

PathArgument = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection:
    addresses: tuple[Address, ...]
    client_id: str
    ca: bytes | None
    """The certificates that brokers are checked against; None for those of the system."""
    certificate: bytes | None
    """The client's own key and certificate."""
    connect_ms_max: int

    @property
    def tls(self) -> bool:
        """Whether every connection is to be encrypted, whatever brokers say of themselves."""
        return self.ca is not None or self.certificate is not None


def connection(
    where: addresses.Addresses,
    *,
    client_id: str,
    tls_ca: PathArgument | None,
    tls_cert: PathArgument | None,
    connect_ms_max: int,
) -> Connection:
    """Raises InvalidArgumentError for what cannot be used."""
    if not isinstance(client_id, str) or len(client_id) > CLIENT_ID_CHARACTERS_MAX or not client_id.isascii():
        raise InvalidArgumentError(f"client_id is ASCII text of at most {CLIENT_ID_CHARACTERS_MAX} characters")
    if not client_id.isprintable():
        raise InvalidArgumentError("client_id has characters that cannot be printed")
    return Connection(
        addresses=tuple(addresses.parse(where)),
        client_id=client_id,
        ca=_read("tls_ca", tls_ca, b"CERTIFICATE"),
        certificate=_read("tls_cert", tls_cert, b"CERTIFICATE", b"PRIVATE KEY"),
        connect_ms_max=check_whole("connect_ms_max", connect_ms_max, 1, MS_MAX),
    )


def _read(name: str, path: PathArgument | None, *parts: bytes) -> bytes | None:
    if path is None:
        return None
    try:
        pem = Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgumentError(f"{name}: {os.fspath(path)} cannot be read: {error.strerror}") from error
    for part in parts:
        if part + b"-----" not in pem:
            raise InvalidArgumentError(f"{name}: {os.fspath(path)} holds no {part.decode().lower()} in PEM")
    return pem
