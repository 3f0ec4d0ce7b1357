"""`quire up` as people meet it: what it says, and what becomes of it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import grpc
import pytest

from quire.process.exits import Exit
from quire.v1 import controller_pb2, controller_pb2_grpc, topics_pb2
from tests.integration.controller_cluster import WAIT_S_MAX
from tests.integration.up_processes import QUIRE, Up, environment, free_port_base, is_over, running_up, started
from tests.raftkill.processes import REPOSITORY


def failing(*arguments: str | Path) -> str:
    """What it says when it does not even start."""
    done = subprocess.run(
        [QUIRE, "up", *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S_MAX,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    return done.stderr


def cluster(up: Up) -> controller_pb2.DescribeClusterResponse:
    with grpc.insecure_channel(up.bootstrap.split(",")[0]) as channel:
        admin = controller_pb2_grpc.ControllerAdminServiceStub(channel)
        return admin.DescribeCluster(controller_pb2.DescribeClusterRequest(), timeout=WAIT_S_MAX, wait_for_ready=True)


def create_topic(up: Up, name: str) -> bytes:
    with grpc.insecure_channel(up.bootstrap.split(",")[0]) as channel:
        admin = controller_pb2_grpc.ControllerAdminServiceStub(channel)
        return admin.CreateTopic(
            controller_pb2.CreateTopicRequest(name=name, partition_count=1), timeout=WAIT_S_MAX, wait_for_ready=True
        ).topic_id


def topic_id(up: Up, name: str) -> bytes:
    with grpc.insecure_channel(up.bootstrap.split(",")[0]) as channel:
        admin = controller_pb2_grpc.ControllerAdminServiceStub(channel)
        request = controller_pb2.DescribeTopicRequest(topic=topics_pb2.TopicRef(name=name))
        return admin.DescribeTopic(request, timeout=WAIT_S_MAX, wait_for_ready=True).topic.topic_id


# --- one node ------------------------------------------------------------------------------------------------------


def test_says_what_a_person_needs_and_stops_on_ctrl_c(tmp_path: Path) -> None:
    base = free_port_base()
    with running_up(tmp_path / "data", port_base=base) as up:
        assert up.stop(signal.SIGINT) == Exit.OK
    said = re.sub(r"after \d+\.\d s", "after 1.0 s", up.output)
    assert (
        said.replace(str(tmp_path), "").partition("\n")[2]
        == f"""\
  clients connect to  localhost:{base}
  controller          localhost:{base + 1}
  metrics             localhost:{base + 80} to {base + 81}, at /metrics
  logs                /data/logs/

Ready after 1.0 s. To try it, in another terminal:

  quire topic create orders -b localhost:{base}
  echo hello | quire produce orders -b localhost:{base}
  quire consume orders --from earliest -b localhost:{base}

Ctrl-C stops it.

Stopping, brokers first …
Stopped. All is in /data/; 'quire up' goes on from there.
"""
    )
    broker, controller = (up.data_dir / "logs" / f"n1-{role}.log" for role in ("broker", "controller"))
    for log in (broker, controller):
        assert " stopped node=n1 " in log.read_text().splitlines()[-1]


def test_script_starts_it_from_a_clone(tmp_path: Path) -> None:
    base = free_port_base()
    arguments = ["--data-dir", str(tmp_path / "data"), "--port-base", str(base)]
    with started([str(REPOSITORY / "scripts" / "up"), *arguments]) as process:
        up = Up(process, tmp_path / "data", f"localhost:{base}")
        try:
            up.ready()
            create_topic(up, "orders")
            assert up.stop(signal.SIGINT) == Exit.OK
        finally:
            process.kill()
    assert " topic create orders -b " in up.output


def test_starting_again_finds_everything(tmp_path: Path) -> None:
    base = free_port_base()
    with running_up(tmp_path / "data", port_base=base) as up:
        before = cluster(up).cluster.cluster_id
        made = create_topic(up, "orders")
        assert up.stop() == Exit.OK
    # Without a word of ports or nodes.
    with started([str(QUIRE), "up", "--data-dir", str(tmp_path / "data")]) as process:
        again = Up(process, tmp_path / "data", f"localhost:{base}")
        try:
            again.ready()
            assert topic_id(again, "orders") == made
            assert cluster(again).cluster.cluster_id == before
        finally:
            process.kill()


def test_what_dies_is_started_again_and_said(tmp_path: Path) -> None:
    with running_up(tmp_path / "data") as up:
        made = create_topic(up, "orders")
        for role in ("broker", "controller"):
            os.kill(up.pid(role), signal.SIGKILL)
            up.until(f"^the {role} of n1 was killed by SIGKILL; it is started again$")
            up.until(f"^the {role} of n1 is back, after ")
        assert topic_id(up, "orders") == made
        assert up.stop() == Exit.OK
    log = (up.data_dir / "logs" / "up.log").read_text()
    assert log.count("a controller heard that the broker died") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_stop_it_too(tmp_path: Path, number: signal.Signals) -> None:
    with running_up(tmp_path / "data") as up:
        assert up.stop(number) == Exit.OK


def test_goes_on_without_its_terminal_if_it_is_to(tmp_path: Path) -> None:
    base = free_port_base()
    arguments = ["--data-dir", str(tmp_path / "data"), "--port-base", str(base)]
    with started([str(QUIRE), "up", *arguments], hangups=signal.SIG_IGN) as process:
        up = Up(process, tmp_path / "data", f"localhost:{base}")
        try:
            up.ready()
            up.send(signal.SIGHUP)
            create_topic(up, "orders")
            assert up.stop() == Exit.OK
        finally:
            process.kill()
    assert "why=SIGTERM" in (up.data_dir / "logs" / "up.log").read_text()


def test_nothing_is_left_when_it_is_killed(tmp_path: Path) -> None:
    with running_up(tmp_path / "data") as up:
        watched = [os.pidfd_open(up.pid(role)) for role in ("broker", "controller")]
        try:
            up.send(signal.SIGKILL)
            assert all(map(is_over, watched))
        finally:
            for each in watched:
                os.close(each)


def test_goes_on_when_nobody_listens(tmp_path: Path) -> None:
    with running_up(tmp_path / "data") as up:
        assert up.process.stdout is not None
        up.process.stdout.close()
        os.kill(up.pid("broker"), signal.SIGKILL)
        up.send(signal.SIGTERM)
        assert up.process.wait(timeout=WAIT_S_MAX) == Exit.OK


def test_setting_may_be_given_as_a_flag(tmp_path: Path) -> None:
    with running_up(tmp_path / "data", "--controller-lease-ms", "2345", "--log-level=debug") as up:
        [broker] = cluster(up).brokers
        assert broker.broker.lease_ms == 2345
        assert up.stop() == Exit.OK


# --- three nodes ---------------------------------------------------------------------------------------------------


def test_three_nodes_are_a_cluster(tmp_path: Path) -> None:
    with running_up(tmp_path / "data", nodes=3) as up:
        found = cluster(up)
        assert [(each.broker.node_id, each.broker.rack) for each in found.brokers] == [
            ("n1", "n1"),
            ("n2", "n2"),
            ("n3", "n3"),
        ]
        assert not any(each.broker.fenced for each in found.brokers)
        addresses = ",".join(f"localhost:{each.broker.listeners[0].port}" for each in found.brokers)
        up.until(f"^  export QUIRE_BOOTSTRAP={addresses}$")  # whichever is killed, others are asked
        made = create_topic(up, "orders")
        os.kill(up.pid("controller", found.active_controller.controller_id), signal.SIGKILL)
        up.until("^the controller of n. is back")
        assert topic_id(up, "orders") == made
        assert up.stop() == Exit.OK
    logs = {path.name for path in (up.data_dir / "logs").iterdir()}
    assert logs == {"up.log", *(f"n{n}-{role}.log" for n in (1, 2, 3) for role in ("broker", "controller"))}
    assert "is of a cluster of 3, and cannot become one of 1" in failing("--data-dir", up.data_dir, "--nodes", "1")


# --- what stands in the way ----------------------------------------------------------------------------------------


def test_second_one_on_a_directory_is_told_of_the_first(tmp_path: Path) -> None:
    with running_up(tmp_path / "data") as up:
        said = failing("--data-dir", tmp_path / "data")
        assert (
            f"'quire up' is running on {tmp_path}/data already at {up.bootstrap} (process {up.process.pid} on" in said
        )
        assert "stop that one first with Ctrl-C, or give this one another --data-dir and --port-base" in said
        assert up.stop() == Exit.OK


def test_port_that_is_taken_is_named_with_who_has_it(tmp_path: Path) -> None:
    base = free_port_base()
    with socket.create_server(("127.0.0.1", base + 10)):
        said = failing("--data-dir", tmp_path / "data", "--port-base", str(base))
    assert said.startswith(f"quire: port {base + 10} (between brokers) is taken by process {os.getpid()} (")
    assert re.search(r"; stop that, or give another --port-base, such as \d+ \(UNAVAILABLE\)$", said)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--nodes", "2"], "--nodes 2: 1, 3 and 5 nodes form a quorum"),
        (["--port-base", "65500"], "--port-base 65500: it may be from 1 to"),
        (["--broker-id", "7"], "--broker-id is for 'quire up' itself to decide"),
        (["--controller-lease-ms", "x"], "--controller-lease-ms: 'x' is not an integer"),
        (["--colour", "red"], "'--colour' is no flag"),
    ],
)
def test_wrong_use(tmp_path: Path, arguments: list[str], complaint: str) -> None:
    assert complaint in failing("--data-dir", tmp_path / "data", *arguments)


def test_directory_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    assert "is not empty ('thesis.tex' is there)" in failing("--data-dir", tmp_path)


def test_process_that_cannot_start_is_given_up_with_its_words(tmp_path: Path) -> None:
    raft = tmp_path / "data" / "n1" / "controller" / "raft"
    with running_up(tmp_path / "data") as up:
        assert up.stop() == Exit.OK
    (raft / "member").write_bytes(b"damaged")
    with running_up(tmp_path / "data", ready=False) as up:
        assert up.ended() == Exit.FAILED
    assert up.output.count("the controller of n1 ended with code 1; it is started again\n") == 2
    assert "the controller of n1 ended with code 1, and starting it again is of no use\n" in up.output
    assert "member is damaged" in " ".join(up.output.split())
    assert "  more is in " in up.output
