"""What docs/PROTOCOL.md demands of .proto files, as far as a machine can check it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)

from quire.v1 import options_pb2

LOWER_SNAKE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
UPPER_SNAKE = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*")
CAMEL = re.compile(r"([A-Z][a-z0-9]*)+")

Place = tuple[int, ...]
"""The way to a declaration: pairs of a field number in a descriptor and an index, as SourceCodeInfo counts."""


def compile_protos(*roots: Path, names: Sequence[str]) -> FileDescriptorSet:
    """What the compiler makes of these files, comments included."""
    command = [sys.executable, "-m", "grpc_tools.protoc", "--include_source_info", "--descriptor_set_out=/dev/stdout"]
    command += [f"-I{root}" for root in roots]
    return FileDescriptorSet.FromString(subprocess.run([*command, *names], check=True, capture_output=True).stdout)


def violations(files: FileDescriptorSet) -> list[str]:
    """One line for each place where the files break a convention."""
    found = [line for file in files.file for line in _File(file).violations()]
    return [*found, *_different_options(files), *_shared_messages(files)]


class _File:
    def __init__(self, file: FileDescriptorProto) -> None:
        self.file = file
        self.commented: set[Place] = {
            tuple(location.path)
            for location in file.source_code_info.location
            if location.leading_comments.strip() or location.trailing_comments.strip()
        }

    def violations(self) -> Iterator[str]:
        for line in self._all():
            yield f"{self.file.name}: {line}"

    def _all(self) -> Iterator[str]:
        file, number = self.file, FileDescriptorProto.DESCRIPTOR.fields_by_name
        folder, _, name = file.name.rpartition("/")
        if file.syntax != "proto3":
            yield f"is written in {file.syntax or 'proto2'}, not in proto3"
        if file.package != folder.replace("/", "."):
            yield f"lies in '{folder}' but has package '{file.package}'"
        if not re.search(r"\.v[1-9][0-9]*$", file.package):
            yield f"package '{file.package}' has no version"
        yield from self._name(name.removesuffix(".proto"), LOWER_SNAKE)
        yield from self._comment((number["syntax"].number,), "the file")
        for index, message in enumerate(file.message_type):
            yield from self._message(message, (number["message_type"].number, index), message.name)
        for index, enum in enumerate(file.enum_type):
            yield from self._enum(enum, (number["enum_type"].number, index), enum.name)
        for index, extension in enumerate(file.extension):
            yield from self._name(extension.name, LOWER_SNAKE)
            yield from self._comment((number["extension"].number, index), extension.name)
        for index, service in enumerate(file.service):
            yield from self._service(service, (number["service"].number, index))

    def _message(self, message: DescriptorProto, place: Place, title: str) -> Iterator[str]:
        number = DescriptorProto.DESCRIPTOR.fields_by_name
        yield from self._name(message.name, CAMEL)
        yield from self._comment(place, title)
        for index, field in enumerate(message.field):
            yield from self._name(field.name, LOWER_SNAKE)
            yield from self._comment((*place, number["field"].number, index), f"{title}.{field.name}")
        synthetic = {field.oneof_index for field in message.field if field.proto3_optional}
        for index, oneof in enumerate(message.oneof_decl):
            if index not in synthetic:
                yield from self._name(oneof.name, LOWER_SNAKE)
                yield from self._comment((*place, number["oneof_decl"].number, index), f"{title}.{oneof.name}")
        for index, nested in enumerate(message.nested_type):
            if not nested.options.map_entry:
                inner = (*place, number["nested_type"].number, index)
                yield from self._message(nested, inner, f"{title}.{nested.name}")
        for index, enum in enumerate(message.enum_type):
            yield from self._enum(enum, (*place, number["enum_type"].number, index), f"{title}.{enum.name}")

    def _enum(self, enum: EnumDescriptorProto, place: Place, title: str) -> Iterator[str]:
        yield from self._name(enum.name, CAMEL)
        yield from self._comment(place, title)
        prefix = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", enum.name).upper()
        first = enum.value[0]
        if (first.name, first.number) != (f"{prefix}_UNSPECIFIED", 0):
            yield f"{title} begins with {first.name} = {first.number}, not with {prefix}_UNSPECIFIED = 0"
        for index, value in enumerate(enum.value):
            yield from self._name(value.name, UPPER_SNAKE)
            if not value.name.startswith(f"{prefix}_"):
                yield f"{title}.{value.name} does not begin with {prefix}_"
            values = EnumDescriptorProto.DESCRIPTOR.fields_by_name["value"].number
            yield from self._comment((*place, values, index), f"{title}.{value.name}")

    def _service(self, service: ServiceDescriptorProto, place: Place) -> Iterator[str]:
        yield from self._name(service.name, CAMEL)
        yield from self._comment(place, service.name)
        if not service.name.endswith("Service"):
            yield f"the service {service.name} is not named …Service"
        for index, method in enumerate(service.method):
            title = f"{service.name}.{method.name}"
            methods = ServiceDescriptorProto.DESCRIPTOR.fields_by_name["method"].number
            yield from self._name(method.name, CAMEL)
            yield from self._comment((*place, methods, index), title)
            for kind, type_name in (("Request", method.input_type), ("Response", method.output_type)):
                wanted = f".{self.file.package}.{method.name}{kind}"
                if type_name != wanted:
                    yield f"{title} takes or gives {type_name}, not a message of its own, {wanted}"
            if method.options.Extensions[options_pb2.permission] == options_pb2.PERMISSION_UNSPECIFIED:
                yield f"{title} declares no permission"

    def _comment(self, place: Place, title: str) -> Iterator[str]:
        if place not in self.commented:
            yield f"{title} has no comment"

    @staticmethod
    def _name(name: str, form: re.Pattern[str]) -> Iterator[str]:
        if not form.fullmatch(name):
            yield f"the name '{name}' has the wrong form"


def _different_options(files: FileDescriptorSet) -> Iterator[str]:
    """Files of one package go into one package of every other language, or into none."""
    first: dict[str, FileDescriptorProto] = {}
    for file in files.file:
        model = first.setdefault(file.package, file)
        if file.options != model.options:
            yield f"{file.name}: has other file options than {model.name}"


def _shared_messages(files: FileDescriptorSet) -> Iterator[str]:
    """A message that two methods share cannot grow for one of them alone."""
    methods = [method for file in files.file for service in file.service for method in service.method]
    uses = Counter(name for method in methods for name in (method.input_type, method.output_type))
    for name, count in sorted(uses.items()):
        if count > 1:
            yield f"{name} is used by methods {count} times"
