"""Where values come from, which of them wins, and what is said of those that cannot be used."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from quire.config import Config, ControllerSection, LogFormat, LogLevel, Member, NodeSection, load, survey, toml
from quire.config.load import FILE_BYTES_MAX, PROBLEMS_SHOWN_MAX, SourceKind
from quire.config.sections import KEYS, SECTIONS
from quire.errors import InvalidArgumentError
from quire.link.handshake import NodeIdentity
from quire.link.network import Address
from quire.link.tls import TlsFiles

WHO = ("--node-id", "c1", "--node-cluster-id", "prod")
NODE = NodeSection(id="c1", cluster_id="prod")

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        path = tmp_path / "quire.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def complaint(
    *flags: str, file: Path | None = None, who: tuple[str, ...] = WHO, environ: Mapping[str, str] | None = None
) -> str:
    with pytest.raises(InvalidArgumentError) as raised:
        load([*who, *flags], environ=environ or {}, file=file)
    return raised.value.message


# --- defaults and precedence ---------------------------------------------------------------------------------------


def test_only_who_it_is_must_be_said() -> None:
    effective = load(WHO, environ={"PATH": "/bin"})
    assert effective.config == Config(node=NODE)
    assert {path for path, key in KEYS.items() if key.is_required} == {"node.id", "node.cluster_id"}
    assert effective.chosen() == {"node.id": "c1 (--node-id)", "node.cluster_id": "prod (--node-cluster-id)"}


def test_nothing_said_is_two_problems() -> None:
    message = complaint(who=())
    assert message.startswith(
        "2 problems: 1) node.id is not set and has no default: give --node-id, QUIRE_NODE_ID or"
    )
    assert "'cluster_id' in [node]" in message


def test_each_source_overrides_the_weaker_ones(write: Write) -> None:
    file = write("[controller]\ngrpc_port = 1001\npeer_port = 1002\nlease_ms = 2003")
    effective = load(
        [*WHO, "--controller-grpc-port", "3001"],
        environ={"QUIRE_CONTROLLER_GRPC_PORT": "2001", "QUIRE_CONTROLLER_PEER_PORT": "2002"},
        file=file,
    )
    controller = effective.config.controller
    assert (controller.grpc_port, controller.peer_port, controller.lease_ms) == (3001, 2002, 2003)
    assert controller.heartbeat_ms == ControllerSection().heartbeat_ms
    sources = {
        name: effective.settings[f"controller.{name}"].source for name in ("grpc_port", "peer_port", "lease_ms")
    }
    assert {name: (source.kind, source.name) for name, source in sources.items()} == {
        "grpc_port": (SourceKind.FLAG, "--controller-grpc-port"),
        "peer_port": (SourceKind.VARIABLE, "QUIRE_CONTROLLER_PEER_PORT"),
        "lease_ms": (SourceKind.FILE, f"{file} [controller] lease_ms"),
    }
    assert effective.settings["controller.heartbeat_ms"].source.kind is SourceKind.DEFAULT


def test_every_key_can_come_from_every_source(write: Write, tmp_path: Path) -> None:
    """Each with a value that is not its default, all together, from one source at a time."""
    other: dict[str, Any] = {
        "node.id": "n9",
        "node.cluster_id": "other",
        "node.data_dir": "/var/lib/quire",
        "node.rack": "r1",
        "controller.listen_host": "::1",
        "controller.members": ["n9=[::1]:1/2"],
        "broker.listeners": ["out+plain=10.0.0.1:1/b9.example:2"],
        "broker.peer_host": "127.0.0.2",
        "broker.peer_advertised_host": "b9.example",
        "broker.controllers": ["[::1]:2"],
        "tls.ca_file": "ca.pem",
        "tls.node_file": "n9.pem",
        "log.level": "debug",
        "log.format": "text",
        "metrics.host": "0.0.0.0",
    }
    for path, key in KEYS.items():
        if isinstance(key.default, int):
            other[path] = key.default + 1
    texts = {path: ",".join(value) if isinstance(value, list) else str(value) for path, value in other.items()}
    flags = [word for path, text in texts.items() for word in (KEYS[path].flag, text)]
    lines = (
        [f"[{section}]"]
        + [
            f"{KEYS[path].name} = {toml.value_text(value)}"
            for path, value in other.items()
            if path.startswith(f"{section}.")
        ]
        for section in SECTIONS
    )
    file = write("\n".join(line for block in lines for line in block))

    found = [
        load(flags, environ={}),
        load([f"{flag}={text}" for flag, text in zip(flags[::2], flags[1::2], strict=True)], environ={}),
        load([], environ={KEYS[path].variable: text for path, text in texts.items()}),
        load([], environ={}, file=file),
    ]
    assert all(effective.config == found[0].config for effective in found)
    config = found[0].config
    shown = {path: KEYS[path].kind.show(each.value) for path, each in found[0].settings.items()}
    assert shown == other, "and each is read as what was written"
    for section in dataclasses.fields(config):
        mine, default = getattr(config, section.name), SECTIONS[section.name]
        for each in dataclasses.fields(mine):
            assert getattr(mine, each.name) != next(
                f.default for f in dataclasses.fields(default) if f.name == each.name
            )


def test_what_the_sections_derive(tmp_path: Path) -> None:
    arguments = [
        "--tls-ca-file",
        "ca.pem",
        "--tls-node-file",
        "c1.pem",
        "--log-format",
        "text",
        "--log-level",
        "error",
    ]
    config = load([*WHO, *arguments], environ={}).config
    assert config.node.identity == NodeIdentity("prod", "c1")
    assert config.tls.files == TlsFiles(Path("ca.pem"), Path("c1.pem"))
    assert (config.log.format, config.log.level) == (LogFormat.TEXT, LogLevel.ERROR)
    assert load(WHO, environ={}).config.tls.files is None


@pytest.mark.parametrize("way", ["argument", "flag", "variable", "flag over variable"])
def test_file_can_be_named_in_three_ways(write: Write, way: str) -> None:
    file = write("[log]\nlevel = 'debug'")
    flags = ["--config", str(file)] if "flag" in way else []
    environ = {"QUIRE_CONFIG": str(file) if way == "variable" else "/nowhere"} if "variable" in way else {}
    effective = load([*WHO, *flags], environ=environ, file=file if way == "argument" else None)
    assert effective.config.log.level is LogLevel.DEBUG


def test_empty_text_takes_back_what_may_be_absent(write: Write) -> None:
    file = write("[node]\nrack = 'r1'\n[controller]\nmembers = ['c1=localhost']")
    config = load(WHO, environ={"QUIRE_NODE_RACK": "", "QUIRE_CONTROLLER_MEMBERS": ""}, file=file).config
    assert (config.node.rack, config.controller.members) == (None, ())
    assert load([*WHO, "--node-rack="], environ={}, file=file).config.node.rack is None


@pytest.mark.parametrize(
    "variable",
    [
        *("QUIRE_SERVICE_HOST", "QUIRE_SERVICE_PORT", "QUIRE_SERVICE_PORT_GRPC", "QUIRE_PORT", "QUIRE_PORT_7400_TCP"),
        *("QUIRE_PORT_7400_TCP_ADDR", "QUIRE_CONTROLLER_SERVICE_HOST", "QUIRE_CONTROLLER_PORT_7401_TCP_PROTO"),
    ],
)
def test_links_that_kubernetes_sets_are_no_settings(variable: str) -> None:
    assert load(WHO, environ={variable: "tcp://10.0.0.1:7400"}).config == Config(node=NODE)


# --- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[contoller]\n", "quire.toml: there is no section [contoller]; did you mean [controller]?"),
        ("[zzz]\n", "there is no section [zzz]; 'quire config --docs' lists them all"),
        ("['a\\u001b[2J']\n", "there is no section [a\\u001b[2J]"),
        ('["a\\u001b[2J"]\n', "there is no section [a?[2J]"),
        (
            "[controller]\ngrcp_port = 1",
            "quire.toml [controller]: there is no key 'grcp_port'; did you mean 'grpc_port'?",
        ),
        ("[node]\nlease_ms = 1", "quire.toml [node]: there is no key 'lease_ms'; did you mean controller.lease_ms?"),
        ("controller = 5", "'controller' is to be a section, [controller], not 5"),
        ("[[controller]]\n", "'controller' is to be a section, [controller], not [{}]"),
        (
            "[controller]\ngrpc_port = 70_000",
            "quire.toml [controller] grpc_port: 70000 is too large; allowed is an integer from 1 to 65535",
        ),
        ("[controller]\ngrpc_port = 0", "0 is too small; allowed is an integer from 1 to 65535"),
        ("[controller]\ngrpc_port = '7401'", "'7401' is not an integer"),
        ("[controller]\ngrpc_port = 7401.0", "7401.0 is not an integer"),
        ("[controller]\ngrpc_port = true", "true is not an integer"),
        ("[controller.grpc_port]\nx = 1", "a table is not an integer"),
        (f"[controller]\ngrpc_port = {'9' * 1000}", "a number of more than 30 digits is too large"),
        (f"[controller]\ngrpc_port = {'9' * 5000}", "quire.toml is not TOML that can be read: "),
        ("[controller]\nmembers = 'c1=localhost'", "'c1=localhost' is not an array in [brackets]"),
        ("[controller]\nmembers = [1]", "1 is not text in quotes; allowed is a list of ID=HOST"),
        (f"[controller]\nmembers = {['c=h'] * 65}", "it has 65 items, and 64 are the most"),
        (
            "[node]\nrack = 5",
            "5 is not text in quotes; allowed is 1 to 63 letters, digits, '.', '_' and '-', or empty",
        ),
        ("[log]\nformat = 'xml'", "quire.toml [log] format: 'xml' is none of the choices; allowed is json or text"),
        ("[node]\nid = ''", "quire.toml [node] id: it is empty"),
        ('[node]\ndata_dir = "a\\nb"', "'a\\nb' has characters that cannot be printed"),
        (f"[node]\ndata_dir = '{'x' * 5000}'", "it is longer than 4096 characters"),
        ("[node\n", "quire.toml is not TOML that can be read: "),
        ("[node]\nid = 'a'\nid = 'b'", "quire.toml is not TOML that can be read: "),
        ("x = " + "[" * 100_000, "quire.toml is not TOML that can be read: "),
        ("#" * (FILE_BYTES_MAX + 1), f"quire.toml is larger than {FILE_BYTES_MAX} bytes"),
    ],
)
def test_file_that_cannot_be_used(write: Write, text: str, expected: str) -> None:
    assert expected in complaint(file=write(text))


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert (
        complaint("--config", str(tmp_path / "no.toml"))
        == f"{tmp_path}/no.toml cannot be read: No such file or directory"
    )
    assert complaint(environ={"QUIRE_CONFIG": str(tmp_path)}) == f"{tmp_path} cannot be read: Is a directory"
    (tmp_path / "latin").write_bytes(b"# caf\xe9")
    assert complaint(file=tmp_path / "latin") == f"{tmp_path}/latin is not UTF-8 at byte 5"


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        (
            "QUIRE_CONTROLLER_GRPC_PORT",
            "abc",
            "QUIRE_CONTROLLER_GRPC_PORT: 'abc' is not an integer; allowed is an integer from 1 to 65535",
        ),
        ("QUIRE_CONTROLLER_GRPC_PORT", "", "'' is not an integer"),
        ("QUIRE_CONTROLLER_GRPC_PORT", " 1", "' 1' is not an integer"),
        ("QUIRE_CONTROLLER_GRPC_PORT", "٣", "'٣' is not an integer"),
        ("QUIRE_CONTROLLER_GRPC_PORT", "1e3", "'1e3' is not an integer"),
        ("QUIRE_CONTROLLER_GRPC_PORT", "-1", "-1 is too small"),
        ("QUIRE_CONTROLLER_GRPC_PORT", "9" * 10_000, "is not an integer"),
        ("QUIRE_NODE_DATA_DIR", "", "QUIRE_NODE_DATA_DIR: it is empty; allowed is a path"),
        ("QUIRE_NODE_DATA_DIR", "\udcff", "has characters that cannot be printed"),
        ("QUIRE_NODE_RACK", "a/b", "QUIRE_NODE_RACK: 'a/b' is no id"),
        ("QUIRE_METRICS_HOST", "a b", "'a b' is neither a host name nor an IP address"),
        ("QUIRE_LOG_LEVEL", "INFO", "'INFO' is none of the choices; allowed is debug, info, warning or error"),
        ("QUIRE_LOG_LEVLE", "info", "the variable QUIRE_LOG_LEVLE is no setting; did you mean QUIRE_LOG_LEVEL?"),
        ("QUIRE_NOED_RACK", "r", "the variable QUIRE_NOED_RACK is no setting; did you mean QUIRE_NODE_RACK?"),
        ("QUIRE_\x1b[2J", "r", "the variable QUIRE_?[2J is no setting"),
        # the name of one that Kubernetes sets, the value of a person
        ("QUIRE_METRICS_PORT", "9000", "QUIRE_METRICS_PORT is no setting; did you mean QUIRE_METRICS_"),
        ("QUIRE_CONTROLLER_PORT", "7401", "QUIRE_CONTROLLER_PORT is no setting; did you mean QUIRE_CONTROLLER_"),
    ],
)
def test_variable_that_cannot_be_used(variable: str, text: str, expected: str) -> None:
    message = complaint(environ={variable: text})
    assert expected in message
    assert message.isprintable()
    assert len(message) < 300


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            ["--controller-grcp-port", "1"],
            "'--controller-grcp-port' is no flag; did you mean --controller-grpc-port?",
        ),
        (["--confg=x"], "'--confg' is no flag; did you mean --config?"),
        (["extra"], "'extra' is no flag"),
        (["--controller-grpc-port"], "--controller-grpc-port is to be followed by a value"),
        (["--controller-grpc-port", "--log-level", "info"], "--controller-grpc-port is to be followed by a value"),
        (["--log-level", "info", "--log-level=info"], "--log-level is there more than once"),
        (["--config", "a", "--config", "b"], "--config is there more than once"),
        (["--controller-tick-ms=0"], "--controller-tick-ms: 0 is too small; allowed is an integer from 1 to 1000"),
        (["--controller-tick-ms", "-1"], "--controller-tick-ms: -1 is too small"),
    ],
)
def test_flag_that_cannot_be_used(flags: list[str], expected: str) -> None:
    assert expected in complaint(*flags)


def test_wrong_value_is_found_although_another_source_overrides_it(write: Write) -> None:
    message = complaint(
        "--log-level", "info", file=write("[log]\nlevel = 'loud'"), environ={"QUIRE_LOG_LEVEL": "quiet"}
    )
    assert message.startswith("2 problems: ")
    assert "'loud'" in message
    assert "'quiet'" in message


def test_all_that_is_wrong_is_said_at_once_up_to_a_limit(write: Write) -> None:
    wrong = write("[log]\n" + "\n".join(f"unknown_{number} = 1" for number in range(1000)))
    message = complaint(file=wrong)
    assert message.startswith("1000 problems: 1) ")
    assert message.endswith(f" and {1000 - PROBLEMS_SHOWN_MAX} more")
    assert len(message) < 5000


def test_key_with_a_wrong_value_is_not_also_reported_as_missing() -> None:
    assert complaint(who=("--node-id", "/", "--node-cluster-id", "prod")).startswith("--node-id: '/' is no id")


# --- members of the quorum -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "member", "canonical"),
    [
        ("c1=10.0.0.1:1/2", Member("c1", "10.0.0.1", 1, 2), "c1=10.0.0.1:1/2"),
        ("c1=10.0.0.1", Member("c1", "10.0.0.1", 7411, 7401), "c1=10.0.0.1:7411/7401"),
        ("c1=host.example:1", Member("c1", "host.example", 1, 7401), "c1=host.example:1/7401"),
        ("c1=host/2", Member("c1", "host", 7411, 2), "c1=host:7411/2"),
        ("c1=[fe80::1]:1/2", Member("c1", "fe80::1", 1, 2), "c1=[fe80::1]:1/2"),
    ],
)
def test_member_is_read_and_written(text: str, member: Member, canonical: str) -> None:
    assert Member.parse(text) == member
    assert str(member) == canonical
    assert Member.parse(canonical) == member
    assert (member.peer_address.port, member.grpc_address.port) == (member.peer_port, member.grpc_port)


@pytest.mark.parametrize(
    "text",
    ["", "c1", "=h", "c1=", "c1=h:", "c1=h:1/", "c1=h:0", "c1=h:1/65536", "c1=::1", "c 1=h", "c1=a b", "c1=[]"],
)
def test_text_that_is_no_member(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        Member.parse(text)


def test_node_alone_is_a_quorum_at_its_own_address() -> None:
    controller = load([*WHO, "--controller-peer-port", "5"], environ={}).config.controller
    assert controller.quorum("c1") == (Member("c1", "127.0.0.1", 5, 7401),)
    assert controller.quorum("c1")[0].peer_address == Address("127.0.0.1", 5)


def test_quorum_is_in_order_and_has_this_node() -> None:
    members = "c2=localhost:2/12,c1=localhost:1/11, c3=localhost:3/13"
    controller = load([*WHO, "--controller-members", members], environ={}).config.controller
    assert [member.id for member in controller.quorum("c1")] == ["c1", "c2", "c3"]
    with pytest.raises(InvalidArgumentError, match="members does not name it but c1, c2, c3"):
        controller.quorum("b1")


# --- what does not go together -------------------------------------------------------------------------------------

CERTIFIED: Mapping[str, str] = {"QUIRE_TLS_CA_FILE": "ca.pem", "QUIRE_TLS_NODE_FILE": "c1.pem"}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            ["--controller-election-ms-min=600"],
            "controller.election_ms_min = 600 (--controller-election-ms-min), "
            "controller.election_ms_max = 600 (default): the first is to be less than the second",
        ),
        (["--controller-heartbeat-ms=100"], "the first is to be less than a third of the second"),
        (["--controller-tick-ms=61"], "the first is to be at most the second"),
        (["--controller-lease-ms=600"], "the first is to be more than the second"),
        (["--controller-members=c1=localhost:1/2,c2=localhost:3/4"], "2 are no quorum: 1, 3 or 5 are"),
        (
            ["--controller-members=c1=localhost:1/2,c1=localhost:3/4,c2=localhost:5/6"],
            "the id 'c1' is there more than once",
        ),
        (
            ["--controller-members=c1=localhost,c2=localhost:1/2,c3=localhost:2/1"],
            "the address 'localhost:1' is there",
        ),
        (["--controller-members=c1=localhost:1/1"], "the address 'localhost:1' is there more than once"),
        (
            ["--tls-ca-file=ca.pem"],
            "tls.ca_file = ca.pem (--tls-ca-file), tls.node_file = None (default): TLS needs both",
        ),
        (["--controller-listen-host=0.0.0.0"], "nobody can connect to this address"),
        (["--controller-listen-host=10.0.0.1"], "'10.0.0.1' needs TLS, since only loopback addresses may do without"),
        (["--controller-members=c1=far.example"], "'far.example' needs TLS"),
    ],
)
def test_values_that_do_not_go_together(flags: list[str], expected: str) -> None:
    assert expected in complaint(*flags)


@pytest.mark.parametrize(
    "flags",
    [
        ["--controller-listen-host=10.0.0.1"],
        ["--controller-listen-host=0.0.0.0", "--controller-members=c1=far.example"],
    ],
)
def test_certificates_open_other_interfaces(flags: list[str]) -> None:
    assert load([*WHO, *flags], environ=CERTIFIED).config.tls.files is not None


# --- shown ---------------------------------------------------------------------------------------------------------


def test_what_is_shown_is_a_file_that_gives_the_same(write: Write) -> None:
    flags = ["--node-data-dir", 'a "quoted" \\ path é 🂡', "--controller-members", "c1=localhost", "--node-rack", "r1"]
    shown = toml.render(survey([*WHO, *flags], environ={}))
    assert "# --node-data-dir" in shown
    assert load(environ={}, file=write(shown)).config == load([*WHO, *flags], environ={}).config


def test_what_is_missing_is_shown_as_such() -> None:
    found = survey([], environ={"QUIRE_LOG_LEVEL": "loud"})
    shown = toml.render(found)
    assert "# id =                   # not set; give --node-id or QUIRE_NODE_ID" in shown
    assert len(found.problems) == 3
    assert tomllib.loads(shown)["log"]["level"] == "info"
