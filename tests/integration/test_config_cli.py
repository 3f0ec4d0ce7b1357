"""The real `quire config` command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from quire.config import documents


def quire(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from quire.cli import main; main()", "config", *map(str, arguments)]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env={**inherited, **environment}
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "quire.toml"
    path.write_text("[node]\nid = 'c1'\ncluster_id = 'prod'\n[log]\nlevel = 'debug'\n", encoding="utf-8")
    return path


def test_effective_configuration_is_toml_with_sources(file: Path) -> None:
    done = quire("--file", file, "--controller-grpc-port", "7001", QUIRE_NODE_RACK="r1")
    assert (done.returncode, done.stderr) == (0, "")
    shown = tomllib.loads(done.stdout)
    assert shown["node"] == {
        "id": "c1",
        "cluster_id": "prod",
        "data_dir": "quire-data",
        "rack": "r1",
        "stop_ms_max": 10000,
    }
    assert shown["controller"]["grpc_port"] == 7001
    first_sections = done.stdout.split("[broker]")[0]
    remarks = {line.split(" = ")[0]: line.split("# ")[-1] for line in first_sections.splitlines() if " = " in line}
    assert remarks["id"] == f"{file} [node] id"
    assert remarks["rack"] == "QUIRE_NODE_RACK"
    assert remarks["grpc_port"] == "--controller-grpc-port"
    assert remarks["peer_port"] == "default"


def test_json_names_value_and_source(file: Path) -> None:
    done = quire("--json", "--log-level=error", QUIRE_CONFIG=str(file))
    assert (done.returncode, done.stderr) == (0, "")
    shown = json.loads(done.stdout)
    assert shown["problems"] == []
    assert shown["settings"]["log"]["level"] == {"value": "error", "source": "flag", "name": "--log-level"}
    assert shown["settings"]["node"]["id"] == {"value": "c1", "source": "file", "name": f"{file} [node] id"}
    assert shown["settings"]["node"]["rack"] == {"value": None, "source": "default", "name": "default"}


def test_what_is_wrong_is_said_and_the_rest_shown(file: Path) -> None:
    done = quire("--config", file, "--log-levle", "info", "--controller-tick-ms", "x", QUIRE_NODE_IDD="c2")
    assert done.returncode == 1
    assert tomllib.loads(done.stdout)["node"]["id"] == "c1"
    assert done.stderr.splitlines() == [
        "quire config: '--log-levle' is no flag; did you mean --log-level?",
        "quire config: the variable QUIRE_NODE_IDD is no setting; did you mean QUIRE_NODE_ID?",
        "quire config: --controller-tick-ms: 'x' is not an integer; allowed is an integer from 1 to 1000",
    ]
    shown = json.loads(quire("--json").stdout)
    assert len(shown["problems"]) == 2
    assert shown["settings"]["node"]["id"] == {"value": None, "source": "nowhere", "name": "not set"}


def test_docs_in_three_forms() -> None:
    text, as_json, markdown = quire("--docs"), quire("--docs", "--json"), quire("--docs", "--markdown")
    assert (text.returncode, as_json.returncode, markdown.returncode) == (0, 0, 0)
    assert text.stdout == documents.as_text()
    assert json.loads(as_json.stdout) == documents.documents()
    assert markdown.stdout == documents.as_markdown()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [(["--docs", "--node-id", "c1"], "leave out '--node-id'"), (["--markdown"], "--markdown is for --docs")],
)
def test_wrong_use(arguments: list[str], complaint: str) -> None:
    done = quire(*arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1


def test_help_is_not_swallowed_as_a_flag() -> None:
    done = quire("--help")
    assert done.returncode == 0
    assert "--docs" in done.stdout
