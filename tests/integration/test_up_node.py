"""`quire node` as compose and Kubernetes run it."""

from __future__ import annotations

import datetime
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quire.link import certs
from quire.link.network import Address
from quire.process.exits import Exit
from quire_broker.cli.supervisor.health import is_healthy
from tests.integration.cli_runs import run_here
from tests.integration.controller_cluster import LOOPBACK, WAIT_S_MAX, eventually
from tests.integration.up_processes import QUIRE, environment, is_over
from tests.raftkill.processes import free_ports


class Node:
    """`quire node --roles controller` in a directory of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.grpc_port, self.peer_port, self.metrics_port = free_ports(3)
        self.log = folder / "log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def settings(self) -> dict[str, str]:
        return {
            "QUIRE_NODE_ID": "n1",
            "QUIRE_NODE_CLUSTER_ID": "test",
            "QUIRE_NODE_DATA_DIR": str(self.folder / "data"),
            "QUIRE_CONTROLLER_GRPC_PORT": str(self.grpc_port),
            "QUIRE_CONTROLLER_PEER_PORT": str(self.peer_port),
            "QUIRE_METRICS_CONTROLLER_PORT": str(self.metrics_port),
            # Where somebody works with a cluster it may be set, and is no mistake.
            "QUIRE_BOOTSTRAP": "localhost:7400",
        }

    def start(self, *arguments: str, **changed: str) -> subprocess.Popen[bytes]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [QUIRE, "node", *(arguments or ("--roles", "controller"))],
                env={**environ, **self.settings, **changed},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        return self.process

    def events(self, role: str = "supervisor") -> list[dict[str, Any]]:
        lines = self.log.read_text().splitlines()
        return [event for line in lines if (event := json.loads(line))["role"] == role]

    def pids(self, role: str = "controller") -> list[int]:
        return [event["pid"] for event in self.events(role) if event["event"] == "starting"]

    async def ready(self) -> None:
        door = Address(LOOPBACK, self.metrics_port)
        await eventually(lambda: is_healthy(door), lambda: self.log.read_text())

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(timeout=WAIT_S_MAX)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    if node.process is not None:
        node.process.kill()
        node.process.wait()


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [QUIRE, "node", *arguments],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S_MAX,
    )


async def test_runs_its_role_and_stops(node: Node) -> None:
    node.start()
    await node.ready()
    assert node.stop() == Exit.OK
    assert [event["event"] for event in node.events("controller")][-1] == "stopped"
    # The supervisor may not have asked for its health yet when the test did.
    names = [event["event"] for event in node.events() if event["event"] != "ready"]
    assert names == ["starting", "asked to stop", "stopping", "stopped"]


async def test_role_that_dies_is_started_again(node: Node) -> None:
    node.start()
    await node.ready()
    [first] = node.pids()
    os.kill(first, signal.SIGKILL)

    async def another() -> bool:
        return len(node.pids()) == 2

    await eventually(another, lambda: node.log.read_text())
    await node.ready()
    [event] = [event for event in node.events() if event["event"] == "ended, and is started again"]
    assert (event["process"], event["how"]) == ("controller", "was killed by SIGKILL")
    assert node.stop() == Exit.OK


async def test_nothing_is_left_of_a_supervisor_that_is_killed(node: Node) -> None:
    node.start()
    await node.ready()
    [pid] = node.pids()
    watched = os.pidfd_open(pid)
    try:
        assert node.stop(signal.SIGKILL) == -signal.SIGKILL
        assert is_over(watched)
    finally:
        os.close(watched)
    node.start()
    await node.ready()
    assert node.stop() == Exit.OK


async def test_second_one_on_a_directory_is_told_of_the_first(node: Node) -> None:
    first = node.start()
    await node.ready()
    second = run("--roles", "controller", **node.settings)
    assert second.returncode == Exit.DIRECTORY_IN_USE
    assert f"data is in use by process {first.pid} on " in second.stderr.splitlines()[-1]
    assert node.stop() == Exit.OK


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--roles", "broker,chef"], "--roles 'broker,chef': there are broker and controller"),
        (["--roles", ""], "--roles '': there are broker and controller"),
        (["--node-colour", "red"], "'--node-colour' is no flag"),
        (
            ["--controller-members", "c1=localhost"],
            "node 'n1' is to be a controller, and controller.members does not",
        ),
        (["--node-id", "eve", "--roles", "broker"], "node 'eve' does not say which broker it is"),
    ],
)
def test_what_a_process_would_refuse_is_said_before_any_starts(
    node: Node, arguments: list[str], complaint: str
) -> None:
    settings = {name: value for name, value in node.settings.items() if name != "QUIRE_NODE_ID"}
    done = run(*(["--node-id", "n1"] if "--node-id" not in arguments else []), *arguments, **settings)
    assert done.returncode == Exit.MISCONFIGURED
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (node.folder / "data").exists()


def test_wrong_configuration_of_a_process_ends_all(node: Node) -> None:
    """What only the process itself finds: here, certificates that are not there."""
    files = {"QUIRE_TLS_CA_FILE": "/no/ca.pem", "QUIRE_TLS_NODE_FILE": "/no/n1.pem"}
    node.start("--roles", "controller", **files)
    assert node.process is not None
    assert node.process.wait(timeout=WAIT_S_MAX) == Exit.MISCONFIGURED
    [gave_up] = [event for event in node.events() if event["level"] == "error"]
    assert gave_up["event"] == "ended, and starting it again is of no use"
    assert "/no/ca.pem" in node.events("controller")[-1]["message"]


# --- with certificates ---------------------------------------------------------------------------------------------


async def test_node_with_certificates_and_tools_that_have_one(node: Node, tmp_path: Path) -> None:
    made = tmp_path / "certs"
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    names = [certs.NodeSpec(name, (LOOPBACK,)) for name in ("n1", "operator")]
    certs.init(made, cluster_id="test", nodes=names, days=2, now=now)
    client_port, link_port, metrics_port = free_ports(3)
    node.start(
        "--roles=broker,controller",
        QUIRE_TLS_CA_FILE=f"{made}/ca.pem",
        QUIRE_TLS_NODE_FILE=f"{made}/n1.pem",
        QUIRE_BROKER_LISTENERS=f"client={LOOPBACK}:{client_port}",
        QUIRE_BROKER_PEER_PORT=str(link_port),
        QUIRE_METRICS_BROKER_PORT=str(metrics_port),
    )
    door = Address(LOOPBACK, metrics_port)
    await eventually(lambda: is_healthy(door), lambda: node.log.read_text())
    where = ["-b", f"{LOOPBACK}:{client_port}", "--tls-ca", f"{made}/ca.pem", "--tls-cert", f"{made}/operator.pem"]

    def quire(*arguments: str, input: bytes = b"") -> bytes:
        done = run_here([*arguments, *where], input=input, environ=environment())
        assert done.code == 0, done.stderr
        return done.stdout

    quire("topic", "create", "orders")
    quire("produce", "orders", input=b"secret\n")
    assert quire("consume", "orders", "-e") == b"secret\n"
    assert b"Every partition has a leader" in quire("cluster")
    # The crash of a broker is reported with the node's own certificate.
    os.kill(node.pids("broker")[-1], signal.SIGKILL)

    async def reported() -> bool:
        return any(event["event"] == "a controller heard that the broker died" for event in node.events())

    await eventually(reported, lambda: node.log.read_text())
    assert node.stop() == Exit.OK
