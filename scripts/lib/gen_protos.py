"""Make typed Python stubs from .proto files. Run through scripts/gen_protos, which finds the right interpreter.

Every file gets `x_pb2.py` and its types; a file with services gets `x_pb2_grpc.py` and its types too.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from google.protobuf import descriptor_pb2

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", "*_pb2_grpc.pyi")
"""The names that belong to the generator: a file with such a name and without a source is deleted."""


def generate(proto_root: Path) -> dict[Path, bytes]:
    """The stubs of every .proto file below `proto_root`, by their path below the root of the Python packages."""
    # Sorted, because the order of a directory listing must not show in what is generated.
    sources = sorted(str(path.relative_to(proto_root)) for path in proto_root.rglob("*.proto"))
    if not sources:
        raise SystemExit(f"gen_protos: no .proto file in {proto_root}")
    with tempfile.TemporaryDirectory(prefix="gen-protos-") as temporary:
        out = Path(temporary)
        descriptors = out / "descriptors.binpb"
        _protoc(
            proto_root,
            sources,
            f"--python_out={out}",
            f"--mypy_out=quiet:{out}",
            f"--descriptor_set_out={descriptors}",
        )
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors.read_bytes()).file
        with_services = [file.name for file in files if file.service]
        if with_services:
            _protoc(proto_root, with_services, f"--grpc_python_out={out}", f"--mypy_grpc_out=quiet:{out}")
        return {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.suffix in (".py", ".pyi")}


def _protoc(proto_root: Path, sources: Sequence[str], *options: str) -> None:
    """Run the compiler of grpcio-tools with mypy-protobuf's plugins, all from the interpreter's own environment."""
    scripts = Path(sys.executable).parent
    plugins = [f"--plugin={name}={scripts / name}" for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{proto_root}", *plugins, *options, *sources]
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit("gen_protos: the compiler refused the files, see above; nothing was written")


def changes(stubs: dict[Path, bytes], python_root: Path) -> dict[Path, bytes | None]:
    """What to write below `python_root` (None: delete) so that it holds these stubs and no others."""
    wanted: dict[Path, bytes | None] = {
        path: content
        for path, content in stubs.items()
        if not (python_root / path).is_file() or (python_root / path).read_bytes() != content
    }
    for pattern in GENERATED:
        present = (path.relative_to(python_root) for path in python_root.rglob(pattern))
        wanted.update({path: None for path in present if path not in stubs})
    return dict(sorted(wanted.items()))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/gen_protos", description="Make the Python stubs from proto/.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if something would change")
    parser.add_argument("--proto", type=Path, default=ROOT / "proto", help="where the .proto files are")
    parser.add_argument("--out", type=Path, default=ROOT / "client", help="where the Python packages are")
    options = parser.parse_args(arguments)

    todo = changes(generate(options.proto.resolve()), options.out)
    for path, content in todo.items():
        if options.check:
            print(f"out of date: {options.out / path}")
        elif content is None:
            (options.out / path).unlink()
            print(f"deleted {options.out / path}")
        else:
            (options.out / path).parent.mkdir(parents=True, exist_ok=True)
            (options.out / path).write_bytes(content)
            print(f"wrote {options.out / path}")
    if todo and options.check:
        print("Run scripts/gen_protos and commit what it writes.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
