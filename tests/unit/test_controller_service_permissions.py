"""Every method that is served, of whatever service, says what its caller must be allowed to do."""

from __future__ import annotations

from pathlib import Path

from google.protobuf import descriptor_pool, symbol_database
from google.protobuf.descriptor import ServiceDescriptor

from quire.process.rpc.permissions import FOREIGN, UNDECLARED, declared, methods_of
from quire.v1 import controller_pb2_grpc, options_pb2
from quire_controller.app import SERVICES

PROTO = Path(__file__).resolve().parents[2] / "proto"


def our_services() -> list[ServiceDescriptor]:
    """All services of all .proto files, also those that no server serves yet."""
    symbol_database.Default()
    pool = descriptor_pool.Default()
    found: list[ServiceDescriptor] = []
    for path in sorted(PROTO.rglob("*.proto")):
        name = path.relative_to(PROTO).with_suffix("")
        __import__(".".join(name.parts) + "_pb2")
        found += pool.FindFileByName(f"{name}.proto").services_by_name.values()
    return found


def test_every_method_that_is_served_has_a_permission() -> None:
    permissions = declared(SERVICES)
    assert set(permissions) == set(methods_of(SERVICES))
    assert [method for method, permission in permissions.items() if permission == UNDECLARED] == []


def test_every_method_of_every_proto_has_a_permission() -> None:
    services = our_services()
    assert len(services) >= 2
    assert [method for method, permission in declared(services).items() if permission == UNDECLARED] == []


def test_a_service_that_says_nothing_is_undeclared() -> None:
    """The table can fail: a foreign service that nobody has listed has no permission."""
    health = next(service for service in SERVICES if service.full_name == "grpc.health.v1.Health")
    assert set(declared([health])) <= set(FOREIGN)
    for method in health.methods:
        assert method.GetOptions().Extensions[options_pb2.permission] == UNDECLARED


def test_what_only_nodes_may_do_is_asked_of_nodes() -> None:
    permissions = declared(SERVICES)
    for method, permission in permissions.items():
        if method.startswith("/quire.v1.ControllerService/"):
            assert permission == options_pb2.PERMISSION_CLUSTER_NODE
        elif method.startswith("/quire.v1.ControllerAdminService/"):
            assert permission not in (options_pb2.PERMISSION_NONE, options_pb2.PERMISSION_CLUSTER_NODE)
            is_reading = method.rpartition("/")[2].startswith(("Describe", "List"))
            assert is_reading == options_pb2.Permission.Name(permission).endswith("_DESCRIBE")


def test_the_servicers_have_all_methods() -> None:
    from quire_controller.service.brokers import ControllerServicer
    from quire_controller.service.cluster import ControllerAdminServicer

    for servicer, base in (
        (ControllerServicer, controller_pb2_grpc.ControllerServiceServicer),
        (ControllerAdminServicer, controller_pb2_grpc.ControllerAdminServiceServicer),
    ):
        methods = [name for name in vars(base) if not name.startswith("_")]
        assert methods
        assert [name for name in methods if getattr(servicer, name) is getattr(base, name)] == []
