"""Which module may import which: the layers of the code base as a table, and a check of source text against it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CORES: Final = frozenset({"log", "replica", "group", "queue", "txn", "state"})

LAYERS: Final[dict[str, frozenset[str]]] = {
    # Of a server package's folders and top-level modules, which may import which others of the same package.
    "": frozenset(),
    "ports": frozenset(),
    **{core: CORES | {"ports"} for core in CORES},
    "adapters": frozenset({"ports"}),
    "raft": frozenset({"ports"}),
    "config": frozenset(),
    "runtime": CORES | {"ports", "raft", "config"},
    "service": CORES | {"ports", "runtime", "config"},
    "app": CORES | {"ports", "runtime", "service", "adapters", "raft", "config"},
    "cli": CORES | {"ports", "runtime", "service", "adapters", "raft", "config", "app"},
    "__main__": frozenset({"config", "app", "cli"}),
}

SERVERS: Final = ("quire_broker", "quire_controller")
NOT_FOR_CLIENTS: Final = (*SERVERS, "quire_spark")

BASE: Final = ("quire.records", "quire.types", "quire.errors", "quire.lease", "quire.disk.port", "quire.disk.framed")
"""What the cores stand on: as pure as they are, and all that they may use of the client package."""

PURE_LINK: Final = tuple(f"quire.link.{name}" for name in ("frames", "handshake", "liveness", "backoff"))
"""The part of the peer link that decides."""
CLIENT_CORES: Final = tuple(
    f"quire._client.{name}"
    for name in (
        *("accumulator", "arguments", "batch", "descriptions", "dispatch", "intake", "message", "outbox"),
        *("partitioners", "picture", "promise", "reading", "room", "starts", "stored", "topic_config", "verdicts"),
    )
)
"""The part of the SDK that decides: what waits, goes where and when, and means what. Only they may use each other."""
CLIENT_SHELLS: Final = tuple(
    f"quire._client.{name}"
    for name in (
        *("addresses", "admin", "aio_admin", "aio_consumer", "aio_producer", "channels", "cluster", "collector"),
        *("consumer", "consuming", "deliveries", "followers", "loop_thread", "offsets", "options", "produce_link"),
        *("producer", "producer_options", "producing", "signals", "subscribe_link", "tasks"),
    )
)
"""The part that runs them."""
PURE_VERIFY: Final = tuple(f"quire.verify.{name}" for name in ("line", "anomalies", "sorting", "gaps", "judge"))
"""The checks of a history. What reads and writes files stands beside them."""
WITH_STUBS: Final = (*PURE_LINK, *CLIENT_CORES, "quire.refusals", "quire_controller.state", "quire_broker.state")
"""Pure code that reads and writes messages, so unlike the base it may use the stubs."""

IMPURE: Final = (
    *("asyncio", "concurrent", "grpc", "logging", "multiprocessing", "os", "pathlib", "random", "secrets", "select"),
    *("shutil", "signal", "socket", "ssl", "subprocess", "tempfile", "threading", "time", "uvloop"),
)
"""Modules with a clock, randomness, threads or I/O: what would make a core behave differently under simulation."""
PURE_PARTS: Final = ("pathlib.PurePath", "pathlib.PurePosixPath")
IMPURE_CALLS: Final = frozenset({"open", "print", "input"})

ONLY_IN: Final = {
    # What is semi-private, hardened or translated in one place is imported there alone.
    "aiokafka": "quire.records._cython",
    "pysyncobj": "quire_controller.raft",
    "google.rpc": "quire.rpc_errors",
    "cryptography": "quire.link.certs",
    "structlog": "quire.process.logs",
}

FOR_SERVERS: Final = ("quire.config", "quire.process")
"""The part of the client package that is for server processes. The rest uses neither this nor what it needs."""
SERVER_LIBRARIES: Final = ("prometheus_client", "uvloop")


@dataclass(frozen=True)
class Violation:
    module: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line}: {self.what}"


def check(module: str, source: str, *, is_package: bool = False) -> list[Violation]:
    """Every import in `source`, the text of `module`, that goes the wrong way."""
    tree = ast.parse(source)
    found: list[Violation] = []
    if module.startswith("quire._client.") and not _within(module, *CLIENT_CORES, *CLIENT_SHELLS):
        what = "is neither among CLIENT_CORES nor CLIENT_SHELLS: give it a place there"
        found.append(Violation(module, 1, what))
    if _within(module, *SERVERS) and _layer(module) not in LAYERS:
        what = f"is in '{_layer(module)}', which has no place among the layers: give it one in LAYERS"
        found.append(Violation(module, 1, what))
    found += [
        Violation(module, line, what)
        for line, imported in _imports(tree, module if is_package else module.rpartition(".")[0])
        for what in _complaints(module, imported)
    ]
    if _is_pure(module):
        found += [
            Violation(module, node.lineno, f"calls {node.func.id}(), and is to be pure")
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS
        ]
    return found


def check_tree(root: Path) -> tuple[int, list[Violation]]:
    """All modules below `root`, a folder with packages: how many there are, and what is wrong with them."""
    found: list[Violation] = []
    count = 0
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        module = ".".join(parts[:-1] if is_package else parts)
        found += check(module, path.read_text(encoding="utf-8"), is_package=is_package)
        count += 1
    return count, found


def _imports(tree: ast.Module, package: str) -> Iterator[tuple[int, str]]:
    """(line, absolute name) of each import. What comes from a module counts as a module below it: it may be one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *filter(None, [base])])
            yield from ((node.lineno, f"{base}.{alias.name}".removesuffix(".*")) for alias in node.names)
        elif isinstance(node, ast.Call) and (name := _dynamic_import(node)):
            yield node.lineno, name


def _dynamic_import(call: ast.Call) -> str | None:
    """The module that `import_module("x")` or `__import__("x")` names; one that is computed cannot be judged."""
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", None)
    if function not in ("import_module", "__import__") or not call.args:
        return None
    name = call.args[0]
    return name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else None


def _complaints(module: str, imported: str) -> Iterator[str]:
    if _within(module, "quire") and _within(imported, *NOT_FOR_CLIENTS):
        yield f"imports {imported}, and the client imports no server"
    if _within(module, "quire") and not _within(module, *FOR_SERVERS):
        for part in (*FOR_SERVERS, *SERVER_LIBRARIES):
            if _within(imported, part):
                yield f"imports {imported}, which is for servers"
    if _is_pure(module):
        if _within(imported, *IMPURE) and not _within(imported, *PURE_PARTS):
            yield f"imports {imported}, and is to be pure"
        allowed = (*BASE, *PURE_LINK, "quire.refusals", "quire.v1") if _within(module, *WITH_STUBS) else BASE
        if _within(module, *CLIENT_CORES):
            allowed = (*allowed, *CLIENT_CORES)
        if _within(module, *PURE_VERIFY):
            allowed = (*allowed, *PURE_VERIFY)
        if _within(imported, "quire") and not _within(imported, *allowed):
            yield f"imports {imported}, and may use only {', '.join(allowed)} of the client package"
    for library, home in ONLY_IN.items():
        if _within(imported, library) and not _within(module, home):
            yield f"imports {imported}, which only {home} does"
    package, layer, target = module.split(".")[0], _layer(module), _layer(imported)
    # A target that is no layer is a name that the package's own __init__ defines.
    inside = package in SERVERS and _within(imported, package) and target in LAYERS
    if inside and target not in ("", layer, *LAYERS.get(layer, ())):
        yield f"imports {imported}, but '{layer or '__init__'}' stands below or beside '{target}'"


def _layer(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def _is_pure(module: str) -> bool:
    if _within(module, *BASE, *WITH_STUBS, *PURE_VERIFY):
        return True
    return _within(module, *SERVERS) and _layer(module) in CORES


def _within(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)
