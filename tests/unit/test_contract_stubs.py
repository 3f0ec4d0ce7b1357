"""The committed stubs are those of the committed .proto files, and what they mean agrees with the codec."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from quire.records.header import Codec, Lane
from quire.v1 import records_pb2

ROOT = Path(__file__).resolve().parents[2]
PROTO, CLIENT = ROOT / "proto", ROOT / "client"

SERVICE = """
syntax = "proto3";
package planted.v1;
message PingRequest {}
message PingResponse {}
service PingService { rpc Ping(PingRequest) returns (PingResponse); }
"""


def gen_protos(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "scripts" / "lib" / "gen_protos.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def stubs(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*_pb2*.py*") if path.suffix != ".pyc"
    }


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The committed .proto files and stubs, to be tampered with."""
    shutil.copytree(PROTO, tmp_path / "proto")
    shutil.copytree(CLIENT / "quire" / "v1", tmp_path / "client" / "quire" / "v1")
    return tmp_path


def test_generating_anew_changes_nothing(tmp_path: Path) -> None:
    done = gen_protos("--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert stubs(tmp_path) == stubs(CLIENT)
    assert gen_protos("--check").returncode == 0


def test_check_finds_a_changed_proto_and_writes_nothing(copy: Path) -> None:
    before = stubs(copy / "client")
    file = copy / "proto" / "quire" / "v1" / "topics.proto"
    file.write_text(file.read_text(encoding="utf-8").replace("int32 partition", "int64 partition"), encoding="utf-8")
    done = gen_protos("--check", "--proto", copy / "proto", "--out", copy / "client")
    assert done.returncode == 1
    assert "topics_pb2.py" in done.stdout
    assert stubs(copy / "client") == before


def test_stub_without_a_source_is_found_and_deleted(copy: Path) -> None:
    stale = copy / "client" / "quire" / "v1" / "gone_pb2.py"
    stale.touch()
    arguments = ("--proto", copy / "proto", "--out", copy / "client")
    assert gen_protos("--check", *arguments).returncode == 1
    assert stale.exists()
    assert gen_protos(*arguments).returncode == 0
    assert not stale.exists()
    assert (copy / "client" / "quire" / "v1" / "__init__.py").exists(), "written by hand, not the generator's"


def test_service_gets_typed_grpc_stubs(copy: Path) -> None:
    file = copy / "proto" / "planted" / "v1" / "ping.proto"
    file.parent.mkdir(parents=True)
    file.write_text(SERVICE, encoding="utf-8")
    done = gen_protos("--proto", copy / "proto", "--out", copy / "client")
    assert done.returncode == 0, done.stderr
    made = {path.name for path in (copy / "client" / "planted" / "v1").iterdir()}
    assert made == {"ping_pb2.py", "ping_pb2.pyi", "ping_pb2_grpc.py", "ping_pb2_grpc.pyi"}
    assert set(stubs(copy / "client" / "quire")) == set(stubs(CLIENT / "quire")), "no grpc stub without a service"


def test_proto_that_does_not_compile_writes_nothing(copy: Path) -> None:
    (copy / "proto" / "quire" / "v1" / "bad.proto").write_text("not a proto", encoding="utf-8")
    done = gen_protos("--proto", copy / "proto", "--out", copy / "client")
    assert done.returncode == 1
    assert "bad.proto" in done.stderr
    assert stubs(copy / "client") == stubs(CLIENT)


def test_messages_tell_null_from_empty() -> None:
    sent = records_pb2.Record(key=b"", headers=[records_pb2.Header(key="a"), records_pb2.Header(key="a", value=b"")])
    got = records_pb2.Record.FromString(sent.SerializeToString())
    assert (got.HasField("key"), got.HasField("value"), got.HasField("offset")) == (True, False, False)
    assert [header.HasField("value") for header in got.headers] == [False, True]


def test_record_set_has_one_form() -> None:
    records = records_pb2.RecordSet(raw_batches=b"batch")
    records.decoded.records.add(value=b"v")
    assert records.WhichOneof("form") == "decoded"


def test_enums_name_what_the_batch_header_can_say() -> None:
    def names(values: list[str], prefix: str) -> set[str]:
        return {name.removeprefix(prefix) for name in values} - {"UNSPECIFIED"}

    assert names(list(records_pb2.Compression.DESCRIPTOR.values_by_name), "COMPRESSION_") == set(Codec.__members__)
    assert names(list(records_pb2.Lane.DESCRIPTOR.values_by_name), "LANE_") == set(Lane.__members__)
