"""The .proto files keep to the conventions, and the check of that can fail."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.unit.proto_conventions import compile_protos, violations

PROTO = Path(__file__).resolve().parents[2] / "proto"

GOOD = """\
// A service to plant faults in.
syntax = "proto3";

package planted.v1;

import "quire/v1/options.proto";

// A thing to look at.
message Thing {
  // Its name.
  optional string name = 1;
  // What it is like.
  oneof look {
    // Round.
    Shape shape = 2;
  }
  // Names and values.
  map<string, string> labels = 3;

  // Something inside.
  message Part {
    // How many.
    int32 count = 1;
  }
}

// What form a thing has.
enum Shape {
  // Nobody said.
  SHAPE_UNSPECIFIED = 0;
  // Round.
  SHAPE_ROUND = 1;
}

// What GetThing is asked.
message GetThingRequest {}

// What GetThing answers.
message GetThingResponse {
  // The thing.
  Thing thing = 1;
}

// What PutThing is asked.
message PutThingRequest {}

// What PutThing answers.
message PutThingResponse {}

// Keeps things.
service ThingService {
  // Look one up.
  rpc GetThing(GetThingRequest) returns (GetThingResponse) {
    option (quire.v1.permission) = PERMISSION_NONE;
  }
  // Store one.
  rpc PutThing(PutThingRequest) returns (stream PutThingResponse) {
    option (quire.v1.permission) = PERMISSION_CLUSTER_ALTER;
  }
}
"""


def check(folder: Path, text: str, *, name: str = "planted/v1/things.proto") -> list[str]:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return violations(compile_protos(folder, PROTO, names=[name]))


def test_our_files_keep_to_the_conventions() -> None:
    names = sorted(str(path.relative_to(PROTO)) for path in PROTO.rglob("*.proto"))
    files = compile_protos(PROTO, names=names)
    assert [file.name for file in files.file if file.package == "quire.v1"]
    assert violations(files) == []


def test_a_good_file_is_accepted(tmp_path: Path) -> None:
    assert check(tmp_path, GOOD) == []


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("  // Its name.\n", "", "Thing.name has no comment"),
        ("    // Round.\n    Shape", "    Shape", "Thing.shape has no comment"),
        ("  // What it is like.\n", "", "Thing.look has no comment"),
        ("// A thing to look at.\n", "", "Thing has no comment"),
        ("  // Something inside.\n", "", "Thing.Part has no comment"),
        ("    // How many.\n", "", "Thing.Part.count has no comment"),
        ("// What form a thing has.\n", "", "Shape has no comment"),
        ("  // Round.\n  SHAPE", "  SHAPE", "Shape.SHAPE_ROUND has no comment"),
        ("// Keeps things.\n", "", "ThingService has no comment"),
        ("  // Store one.\n", "", "ThingService.PutThing has no comment"),
        ("// A service to plant faults in.\n", "", "the file has no comment"),
        ("  // Its name.\n", "  //\n", "Thing.name has no comment"),
        ("SHAPE_UNSPECIFIED", "SHAPE_SQUARE", "Shape begins with SHAPE_SQUARE = 0, not with SHAPE_UNSPECIFIED = 0"),
        ("SHAPE_ROUND", "ROUND", "Shape.ROUND does not begin with SHAPE_"),
        ("SHAPE_ROUND", "SHAPE_Round", "the name 'SHAPE_Round' has the wrong form"),
        ("string name", "string theName", "the name 'theName' has the wrong form"),
        ("message Part", "message part", "the name 'part' has the wrong form"),
        ("    option (quire.v1.permission) = PERMISSION_NONE;\n", "", "ThingService.GetThing declares no permission"),
        ("PERMISSION_NONE", "PERMISSION_UNSPECIFIED", "ThingService.GetThing declares no permission"),
        (
            "PutThing(PutThingRequest)",
            "PutThing(GetThingRequest)",
            ".planted.v1.GetThingRequest is used by methods 2",
        ),
        ("PutThing(PutThingRequest)", "PutThing(Thing)", "not a message of its own, .planted.v1.PutThingRequest"),
        ("(stream PutThingResponse)", "(stream Thing)", "not a message of its own, .planted.v1.PutThingResponse"),
        ("service ThingService", "service Things", "the service Things is not named …Service"),
        ("package planted.v1;", "package other.v1;", "lies in 'planted/v1' but has package 'other.v1'"),
        ('"proto3"', '"proto2"', "is written in proto2, not in proto3"),
    ],
)
def test_a_planted_fault_is_found(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    assert GOOD.count(old) >= 1
    planted = GOOD.replace(old, new)
    if new == '"proto2"':  # which has other rules for what may stand in a message
        planted = '// A file.\nsyntax = "proto2";\n\npackage planted.v1;\n'
    found = check(tmp_path, planted)
    assert any(complaint in line for line in found), found


def test_package_without_a_version_is_found(tmp_path: Path) -> None:
    found = check(tmp_path, GOOD.replace("planted.v1", "planted"), name="planted/things.proto")
    assert found == ["planted/things.proto: package 'planted' has no version"]


def test_file_with_other_options_is_found(tmp_path: Path) -> None:
    text = '// A file.\nsyntax = "proto3";\n\npackage planted.v1;\n'
    first, second = tmp_path / "planted/v1/a.proto", tmp_path / "planted/v1/b.proto"
    first.parent.mkdir(parents=True)
    first.write_text(text, encoding="utf-8")
    second.write_text(f'{text}\noption java_package = "x";\n', encoding="utf-8")
    found = violations(compile_protos(tmp_path, names=["planted/v1/a.proto", "planted/v1/b.proto"]))
    assert found == ["planted/v1/b.proto: has other file options than planted/v1/a.proto"]


def test_file_that_does_not_compile_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        check(tmp_path, GOOD.replace("service", "servis"))
