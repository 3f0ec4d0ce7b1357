"""The broker's section: how listeners are written, which broker a node is, and what does not go together."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from quire.config import BrokerListener, Config, broker_id, load
from quire.errors import InvalidArgumentError
from quire.link.network import Address

WHO = ("--node-id", "node-3", "--node-cluster-id", "prod")
CERTIFIED: Mapping[str, str] = {"QUIRE_TLS_CA_FILE": "ca.pem", "QUIRE_TLS_NODE_FILE": "c1.pem"}


def config(*flags: str, environ: Mapping[str, str] | None = None) -> Config:
    return load([*WHO, *flags], environ=environ or {}).config


def complaint(*flags: str, environ: Mapping[str, str] | None = None) -> str:
    with pytest.raises(InvalidArgumentError) as raised:
        config(*flags, environ=environ)
    return raised.value.message


# --- which broker --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node_id", "number"),
    [("node-1", 1), ("b12", 12), ("7", 7), ("rack2-node007", 7), ("n2147483647", 2147483647), ("a00000000000009", 9)],
)
def test_number_at_the_end_of_the_node_id(node_id: str, number: int) -> None:
    assert broker_id(node_id) == number


@pytest.mark.parametrize("node_id", ["node", "node-0", "1-node", "n2147483648", "n99999999999999999999", "n٣"])
def test_node_id_that_names_no_broker(node_id: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"or set broker\.id") as raised:
        broker_id(node_id)
    assert raised.value.details == {"node_id": node_id}


def test_a_configured_number_comes_first() -> None:
    assert config().broker_id == 3
    assert config("--broker-id=9").broker_id == 9


# --- listeners -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "listener"),
    [
        ("client=127.0.0.1:7400", BrokerListener("client", Address("127.0.0.1", 7400))),
        (
            "out=0.0.0.0:1/b1.example:2",
            BrokerListener("out", Address("0.0.0.0", 1), Address("b1.example", 2)),
        ),
        ("in.side-1+plain=host:65535", BrokerListener("in.side-1", Address("host", 65535), plain=True)),
        (
            "six+plain=[::]:1/[fd00::1]:2",
            BrokerListener("six", Address("::", 1), Address("fd00::1", 2), plain=True),
        ),
    ],
)
def test_listener_is_read_and_written(text: str, listener: BrokerListener) -> None:
    assert BrokerListener.parse(text) == listener
    assert str(listener) == text


def test_clients_are_told_the_address_unless_another_one_is_named() -> None:
    assert BrokerListener.parse("a=h:1").advertised == Address("h", 1)
    assert BrokerListener.parse("a=h:1/g:2").advertised == Address("g", 2)


@pytest.mark.parametrize(
    "text",
    [
        *("", "client", "client=", "=h:1", "client=h", "client=h:0", "client=h:65536", "client=h:1/", "client=h:1/g"),
        *("client=::1:1", "client=[]:1", "client=a b:1", "a b=h:1", "client+tls=h:1", "client+plain+plain=h:1"),
        *("peer=h:1", "client=h:1/g:2/i:3", "client=h:1/g:0"),
    ],
)
def test_text_that_is_no_listener(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        BrokerListener.parse(text)


# --- controllers ---------------------------------------------------------------------------------------------------


def test_controllers_are_those_named_or_the_quorum_or_the_local_one() -> None:
    members = "--controller-members=c2=localhost:2/12,c1=localhost:1/11,c3=localhost:3/13"
    assert config("--controller-grpc-port=5").controllers == (Address("127.0.0.1", 5),)
    assert config(members).controllers == tuple(Address("localhost", port) for port in (11, 12, 13))
    named = config(members, "--broker-controllers=[::1]:7,localhost:8")
    assert named.controllers == (Address("::1", 7), Address("localhost", 8))
    assert "'localhost' is not HOST:PORT; allowed is a list of HOST:PORT" in complaint(
        "--broker-controllers=localhost"
    )


# --- what does not go together -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            ["--broker-heartbeat-ms=1000"],
            "broker.heartbeat_ms = 1000 (--broker-heartbeat-ms), controller.lease_ms = 3000 (default): the first is",
        ),
        (["--controller-lease-ms=1500"], "the first is to be less than a third of the second"),
        (["--broker-replica-ack-ms-max=10001"], "it is the stricter of the two"),
        (["--broker-partition-bytes-max=65536"], "a request that is allowed would never find room"),
        (["--broker-connection-bytes-max=1_000_000"], "a request that is allowed would never find room"),
        (["--broker-process-bytes-max=50_000_000"], "broker.process_bytes_max = 50000000"),
        (["--broker-listeners="], "without a listener nobody can call"),
        (["--broker-listeners=a=localhost:1,a=localhost:2"], "the name 'a' is there more than once"),
        (["--broker-listeners=a=localhost:1,b=localhost:1"], "the address 'localhost:1' is there more than once"),
        (["--broker-listeners=a=127.0.0.1:7410"], "clients and brokers need ports of their own"),
        (
            ["--broker-listeners=a+plain=0.0.0.0:1"],
            "clients cannot connect to 0.0.0.0:1: say behind a '/' which address to tell them, as in a=0.0.0.0:1/",
        ),
        (["--broker-peer-host=0.0.0.0"], "say in the second under which host they reach this one"),
        (
            ["--broker-listeners=a=10.0.0.1:1"],
            "'10.0.0.1' needs TLS: make certificates with 'quire certs init', or, if everybody on that network may "
            "read and write everything, say so with a+plain=",
        ),
        (["--broker-peer-host=10.0.0.1"], "'10.0.0.1' needs TLS, since nodes speak plain text on loopback only"),
        (["--broker-controllers=far.example:1"], "'far.example' needs TLS, since nodes"),
    ],
)
def test_values_that_do_not_go_together(flags: list[str], expected: str) -> None:
    assert expected in complaint(*flags)


@pytest.mark.parametrize(
    ("flags", "environ"),
    [
        (["--broker-listeners=a=10.0.0.1:1,b+plain=10.0.0.1:2"], CERTIFIED),
        (["--broker-listeners=a=0.0.0.0:1/b1.example:1"], CERTIFIED),
        (["--broker-peer-host=0.0.0.0", "--broker-peer-advertised-host=b1.example"], CERTIFIED),
        (["--broker-controllers=far.example:1"], CERTIFIED),
        (["--broker-listeners=a+plain=10.0.0.1:1"], {}),
        (["--broker-heartbeat-ms=999"], {}),
    ],
)
def test_what_is_told_apart_goes_together(flags: list[str], environ: Mapping[str, str]) -> None:
    config(*flags, environ=environ)
