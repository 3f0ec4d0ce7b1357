"""What each method demands of its caller, as its own `.proto` declares it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from google.protobuf.descriptor import ServiceDescriptor

from quire.v1 import options_pb2

Permission: TypeAlias = options_pb2.Permission.ValueType
UNDECLARED: Final = options_pb2.PERMISSION_UNSPECIFIED

FOREIGN: Final[Mapping[str, Permission]] = {
    # Services that we serve and did not write cannot carry our option.
    "/grpc.health.v1.Health/Check": options_pb2.PERMISSION_NONE,
    "/grpc.health.v1.Health/List": options_pb2.PERMISSION_NONE,
    "/grpc.health.v1.Health/Watch": options_pb2.PERMISSION_NONE,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": options_pb2.PERMISSION_NONE,
}


def methods_of(services: Iterable[ServiceDescriptor]) -> list[str]:
    """The names of all methods as gRPC calls them, `/package.Service/Method`."""
    return [f"/{service.full_name}/{method.name}" for service in services for method in service.methods]


def declared(services: Iterable[ServiceDescriptor]) -> dict[str, Permission]:
    """The permission of each method, by name; UNDECLARED where nobody has decided."""
    permissions: dict[str, Permission] = {}
    for service in services:
        for method in service.methods:
            name = f"/{service.full_name}/{method.name}"
            stated: Permission = method.GetOptions().Extensions[options_pb2.permission]
            permissions[name] = stated or FOREIGN.get(name, UNDECLARED)
    return permissions
