"""What is said when nobody answers, and the variable that names who should."""

from __future__ import annotations

import socket

import pytest

from quire.cli import options, where
from quire.cli.where import Where
from quire.config import load
from quire.errors import InvalidArgumentError, UnavailableError


@pytest.fixture
def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def test_who_listens_is_reached(free_port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        Where(f"127.0.0.1:{port}").check()
        Where(f"127.0.0.1:{free_port}, 127.0.0.1:{port}").check()


def test_nobody_there(free_port: int) -> None:
    address = f"127.0.0.1:{free_port}"
    with pytest.raises(UnavailableError) as caught:
        Where(address).check()
    assert caught.value.message == (
        f"nothing answers at {address} ({address}: Connection refused); is a broker running there?"
    )


def test_nobody_where_one_is_by_default(monkeypatch: pytest.MonkeyPatch, free_port: int) -> None:
    address = f"127.0.0.1:{free_port}"
    monkeypatch.setattr(where, "DEFAULT", address)
    with pytest.raises(UnavailableError) as caught:
        Where(address).check()
    assert caught.value.message == (
        f"nothing answers at {address}; start one with `quire up`, or name another with -b or QUIRE_BOOTSTRAP"
    )


def test_what_is_no_address() -> None:
    with pytest.raises(InvalidArgumentError, match="write HOST:PORT"):
        Where("a:0").check()


@pytest.mark.parametrize("variable", [options.VARIABLE, options.TLS_CA_VARIABLE, options.TLS_CERT_VARIABLE])
def test_the_variables_of_the_command_keep_no_process_from_starting(variable: str) -> None:
    flags = ["--node-id=n1", "--node-cluster-id=x"]
    assert load(flags, environ={variable: "elsewhere"}).config.node.id == "n1"
