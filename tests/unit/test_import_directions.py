"""Imports go one way through the layers, and the check of that can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.import_directions import BASE, CLIENT_SHELLS, CORES, LAYERS, WITH_STUBS, check, check_tree

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("client", "broker", "controller", "pipeline")


@pytest.mark.parametrize("folder", [folder for folder in FOLDERS if (ROOT / folder).is_dir()])
def test_our_imports_go_one_way(folder: str) -> None:
    count, found = check_tree(ROOT / folder)
    assert count > 0
    assert [str(violation) for violation in found] == []


def test_what_is_listed_is_there() -> None:
    def is_there(name: str) -> bool:
        places = [ROOT / folder / name.replace(".", "/") for folder in FOLDERS]
        return any(place.is_dir() or place.with_suffix(".py").is_file() for place in places)

    assert [name for name in (*BASE, *WITH_STUBS, *CLIENT_SHELLS) if not is_there(name)] == []


def test_no_cycle_among_the_layers() -> None:
    # The cores know of each other; taken as one, each layer must stand above all that it imports.
    merged = {name: {"core" if target in CORES else target for target in targets} for name, targets in LAYERS.items()}
    above = {name: targets for name, targets in merged.items() if name not in CORES}
    above["core"] = set().union(*(merged[core] for core in CORES)) - {"core"}
    while above:
        lowest = [name for name, targets in above.items() if not targets & set(above)]
        assert lowest, f"these import each other: {sorted(above)}"
        for name in lowest:
            del above[name]


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        # the client knows no server
        ("quire.producer", "import quire_broker", "imports no server"),
        ("quire.cli", "from quire_controller.raft import node", "imports no server"),
        ("quire.cli.log", "import quire_spark.source", "imports no server"),
        ("quire.cli", "import importlib\nimportlib.import_module('quire_broker.app')", "imports no server"),
        ("quire.cli", "def load():\n    from quire_broker import app", "imports no server"),
        # layers, in every spelling of an import
        ("quire_broker.runtime.loop", "from quire_broker.service import produce", "'runtime' stands below"),
        ("quire_broker.runtime.loop", "from ..service import produce", "'runtime' stands below"),
        ("quire_broker.runtime.loop", "from .. import service", "'runtime' stands below"),
        ("quire_broker.runtime.loop", "import quire_broker.service.produce as p", "'runtime' stands below"),
        ("quire_broker.log.segment", "from quire_broker.runtime import writer", "'log' stands below"),
        ("quire_broker.queue.lease", "from quire_broker.service import x", "'queue' stands below"),
        ("quire_broker.runtime.loop", "from quire_broker.adapters.os_disk import OsDisk", "'runtime' stands below"),
        ("quire_broker.service.produce", "from quire_broker import adapters", "'service' stands below"),
        ("quire_broker.log.log", "from quire_broker.adapters import os_disk", "'log' stands below"),
        ("quire_broker.adapters.os_disk", "from quire_broker.runtime import x", "'adapters' stands below"),
        ("quire_broker.adapters.os_disk", "from quire_broker.log import x", "'adapters' stands below"),
        ("quire_broker.ports", "from quire_broker.log import segment", "'ports' stands below"),
        ("quire_broker.ports", "from .adapters import os_disk", "'ports' stands below"),
        ("quire_broker.runtime.loop", "from quire_broker.app import build", "'runtime' stands below"),
        ("quire_broker.app", "from quire_broker.cli import log", "'app' stands below"),
        ("quire_broker", "from quire_broker.app import build", "'__init__' stands below"),
        ("quire_controller.service.admin", "from quire_controller.raft import node", "'service' stands below"),
        ("quire_broker.misc.things", "", "no place among the layers"),
        # purity
        *(
            ("quire_broker.log.log", f"import {name}", "is to be pure")
            for name in ("asyncio", "grpc", "os", "time", "random", "logging", "threading", "socket", "subprocess")
        ),
        ("quire_broker.group.state", "from os.path import join", "is to be pure"),
        ("quire_broker.txn.state", "import grpc.aio", "is to be pure"),
        ("quire_broker.replica.state", "from pathlib import Path", "is to be pure"),
        ("quire_broker.log.log", "open('x')", "calls open()"),
        ("quire.records.codec", "import time", "is to be pure"),
        ("quire.types", "import random", "is to be pure"),
        ("quire.errors", "import grpc", "is to be pure"),
        ("quire.errors", "if TYPE_CHECKING:\n    import asyncio", "is to be pure"),
        ("quire_broker.log.log", "from quire.rpc_errors import abort", "may use only"),
        ("quire_broker.log.log", "from quire import v1", "may use only"),
        ("quire.records.codec", "from quire.v1 import records_pb2", "may use only"),
        *(("quire.link.frames", f"import {name}", "is to be pure") for name in ("asyncio", "ssl", "random", "time")),
        ("quire.link.handshake", "from quire.link.session import Session", "may use only"),
        *((f"quire._client.{name}", "import time", "is to be pure") for name in ("outbox", "intake", "picture")),
        ("quire._client.dispatch", "from quire._client.cluster import Cluster", "may use only"),
        ("quire._client.intake", "from quire.rpc_errors import from_rpc_error", "may use only"),
        (
            "quire._client.outbox",
            "if TYPE_CHECKING:\n    from quire._client.aio_admin import Admin",
            "may use only",
        ),
        ("quire._client.newcomer", "", "give it a place"),
        ("quire.refusals", "import grpc", "is to be pure"),
        ("quire.verify.judge", "import tempfile", "is to be pure"),
        ("quire.verify.judge", "from quire.verify.spill import Spill", "may use only"),
        # what one place alone may import
        ("quire.records.codec", "from aiokafka.record import x", "only quire.records._cython does"),
        ("quire_broker.runtime.loop", "import aiokafka", "only quire.records._cython does"),
        ("quire_controller.runtime.loop", "import pysyncobj", "only quire_controller.raft does"),
        ("quire_broker.runtime.loop", "import pysyncobj.transport", "only quire_controller.raft does"),
        ("quire.link.tls", "from cryptography import x509", "only quire.link.certs does"),
        ("quire_broker.service.errors", "from google.rpc import status_pb2", "only quire.rpc_errors does"),
        ("quire_broker.runtime.loop", "import structlog", "only quire.process.logs does"),
        # what is for servers
        ("quire.producer", "from quire.process import logs", "is for servers"),
        ("quire.producer", "from quire.config import load", "is for servers"),
        ("quire.cli", "import uvloop", "is for servers"),
        ("quire.link.session", "from prometheus_client import Counter", "is for servers"),
    ],
)
def test_planted_import_is_found(module: str, source: str, complaint: str) -> None:
    found = check(module, source)
    assert any(complaint in violation.what for violation in found), found


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("quire.producer", "import asyncio, grpc\nfrom quire.v1 import records_pb2\nfrom quire import rpc_errors"),
        ("quire.records._cython", "from aiokafka.record import _crecords"),
        ("quire.link.handshake", "from quire.link.frames import Frame\nfrom quire.v1 import peer_pb2"),
        ("quire.link.session", "import asyncio\nfrom quire.link.frames import Frame"),
        ("quire.verify.judge", "from quire.verify.line import Operation\nfrom quire.errors import QuireError"),
        ("quire.records.codec", "from quire.errors import QuireError\nfrom . import header\nimport struct"),
        ("quire._client.outbox", "from quire._client.batch import Batch\nfrom quire.link.backoff import Backoff"),
        ("quire._client.intake", "from quire.refusals import from_refusal\nfrom quire.v1 import broker_pb2"),
        ("quire._client.cluster", "import asyncio\nfrom quire._client.picture import Picture"),
        ("quire.rpc_errors", "import grpc\nfrom google.rpc import status_pb2"),
        ("quire_broker.log.log", "from quire_broker.ports import Disk\nfrom .segment import Segment\nimport crc32c"),
        ("quire_broker.log.names", "from pathlib import PurePosixPath"),
        ("quire_broker.log.log", "self.disk.open('x')"),
        ("quire_broker.group.state", "from quire_broker import log"),
        ("quire_broker.runtime.loop", "import asyncio, os\nfrom quire_broker.log.log import Log"),
        ("quire_broker.runtime.loop", "from quire_broker import __version__"),
        ("quire_broker.service.produce", "import grpc\nfrom quire_broker.runtime import loop"),
        ("quire_broker.adapters.os_disk", "import os\nfrom quire_broker.ports import Disk"),
        ("quire_broker.app", "from quire_broker.adapters.os_disk import OsDisk"),
        ("quire_broker.cli.log", "from quire_broker.adapters.os_disk import OsDisk\nfrom quire.cli import x"),
        ("quire_controller.raft.node", "import pysyncobj, asyncio"),
        ("quire_controller.app", "import prometheus_client\nfrom quire.process import logs, sidedoor"),
        ("quire.process.sidedoor", "import prometheus_client\nfrom quire.config.sections import Config"),
        ("quire_spark.source", "from quire import Consumer"),
        ("quirelike", "import quire_broker"),
    ],
)
def test_import_in_the_right_direction_is_accepted(module: str, source: str) -> None:
    assert check(module, source) == []


def test_relative_import_in_a_package_counts_from_the_package() -> None:
    assert check("quire_broker.runtime", "from . import loop", is_package=True) == []
    assert check("quire_broker.runtime", "from ..service import x", is_package=True) != []


def test_tree_is_walked(tmp_path: Path) -> None:
    for name, source in (("__init__", "from .service import x"), ("log/__init__", ""), ("log/a", "import os")):
        path = tmp_path / "quire_broker" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    count, found = check_tree(tmp_path)
    assert count == 3
    assert [(violation.module, violation.line) for violation in found] == [
        ("quire_broker", 1),
        ("quire_broker.log.a", 1),
    ]
