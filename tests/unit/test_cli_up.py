"""What `quire up` plans, and what a directory remembers of it."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import pytest

from quire.config import load
from quire.errors import DamagedFileError, InvalidArgumentError
from quire_broker.cli.up_directory import DESCRIPTION, settle
from quire_broker.cli.up_plan import (
    NODES_ALLOWED,
    PORT_BASE_MAX,
    Cluster,
    arguments_of,
    bootstrap_of,
    nodes_of,
    settings_of,
)
from quire_broker.cli.up_screen import as_typed


def cluster(nodes: int = 3, port_base: int = 7400) -> Cluster:
    return Cluster(cluster_id="up-test", nodes=nodes, port_base=port_base)


def test_one_node_has_the_documented_ports() -> None:
    [node] = nodes_of(cluster(1), Path("data"))
    config = load(arguments_of(settings_of(node, [node], cluster(1)), []), environ={}).config
    default = load(["--node-id=n1", "--node-cluster-id=x"], environ={}).config
    assert config.broker.listeners == default.broker.listeners
    assert config.broker.peer_port == default.broker.peer_port
    assert config.controller.grpc_port == default.controller.grpc_port
    assert config.controller.peer_port == default.controller.peer_port
    assert config.metrics == default.metrics
    assert bootstrap_of([node]) == "localhost:7400"


@pytest.mark.parametrize("count", NODES_ALLOWED)
@pytest.mark.parametrize("port_base", [1, 7400, PORT_BASE_MAX])
def test_nodes_share_no_port_and_have_configurations_that_hold(count: int, port_base: int) -> None:
    nodes = nodes_of(cluster(count, port_base), Path("data"))
    assert [node.id for node in nodes] == [f"n{number}" for number in range(1, count + 1)]
    ports = list(chain.from_iterable(node.ports for node in nodes))
    assert len(ports) == len(set(ports)) == 6 * count
    assert max(ports) <= 65_535
    for node in nodes:
        settings = settings_of(node, nodes, cluster(count, port_base))
        config = load(arguments_of(settings, ["--log-level", "debug"]), environ={"QUIRE_NODE_ID": "other"}).config
        assert (config.node.id, config.broker_id, config.node.rack) == (node.id, node.number, node.id)
        assert [address.port for address in config.controllers] == [each.controller_port for each in nodes]
        assert len(config.controller.quorum(node.id)) == count


@pytest.mark.parametrize("given", [["--node-id", "x"], ["--broker-peer-port=1"]])
def test_what_up_decides_cannot_be_given(given: list[str]) -> None:
    nodes = nodes_of(cluster(1), Path("data"))
    with pytest.raises(InvalidArgumentError, match="is for 'quire up' itself to decide"):
        arguments_of(settings_of(nodes[0], nodes, cluster(1)), given)


# --- the directory -------------------------------------------------------------------------------------------------


def test_directory_remembers(tmp_path: Path) -> None:
    first = settle(tmp_path, nodes=3, port_base=8400)
    assert (first.nodes, first.port_base) == (3, 8400)
    assert settle(tmp_path, nodes=None, port_base=None) == first
    assert settle(tmp_path, nodes=3, port_base=9400).port_base == 9400
    assert settle(tmp_path, nodes=None, port_base=None).port_base == 9400
    with pytest.raises(InvalidArgumentError, match="is of a cluster of 3, and cannot become one of 1: leave out"):
        settle(tmp_path, nodes=1, port_base=None)


def test_new_directory_has_one_node_and_an_id_of_its_own(tmp_path: Path) -> None:
    ids = set()
    for name in ("a", "b"):
        (tmp_path / name / "logs").mkdir(parents=True)
        begun = settle(tmp_path / name, nodes=None, port_base=None)
        assert (begun.nodes, begun.port_base) == (1, 7400)
        ids.add(begun.cluster_id)
    assert len(ids) == 2


def test_directory_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(InvalidArgumentError, match=r"is not empty \('thesis.tex' is there\)"):
        settle(tmp_path, nodes=None, port_base=None)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\xff",
        b'"text"',
        json.dumps({"format": 2, "cluster_id": "x", "nodes": 1, "port_base": 7400}).encode(),
        json.dumps({"format": 1, "cluster_id": "x", "nodes": 2, "port_base": 7400}).encode(),
        json.dumps({"format": 1, "cluster_id": "x", "nodes": 1, "port_base": 70000}).encode(),
        json.dumps({"format": 1, "cluster_id": 7, "nodes": 1, "port_base": 7400}).encode(),
        json.dumps({"format": 1, "cluster_id": "x", "nodes": [], "port_base": 7400}).encode(),
        json.dumps({"format": 1, "cluster_id": "x", "nodes": 1}).encode(),
    ],
)
def test_damaged_description_is_not_guessed_at(tmp_path: Path, body: bytes) -> None:
    (tmp_path / DESCRIPTION).write_bytes(body)
    with pytest.raises(DamagedFileError, match=r"up\.json is not as 'quire up' wrote it"):
        settle(tmp_path, nodes=None, port_base=None)
    assert (tmp_path / DESCRIPTION).read_bytes() == body


# --- the screen ----------------------------------------------------------------------------------------------------


def test_command_is_named_as_it_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "my env" / "bin" / "quire"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert as_typed(program) == f"'{program}'"
    monkeypatch.chdir(tmp_path)
    assert as_typed(program) == "'my env/bin/quire'"
    monkeypatch.setenv("PATH", str(program.parent))
    assert as_typed(program) == "quire"
