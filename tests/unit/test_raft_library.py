"""PySyncObj is the version that our Raft was made for, and what of it we replace or reach into is there.

The private names are read from our own source, so one that is added there is checked here.
"""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import pickle
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

import pysyncobj.journal
import pysyncobj.pickle
import pytest
from pysyncobj import syncobj
from pysyncobj.config import SyncObjConf
from pysyncobj.node import Node
from pysyncobj.syncobj import SyncObj

from quire_controller.raft import library
from quire_controller.raft.core import Core
from tests.raftkill.toy_machine import ToyMachine
from tests.sim.raft_steps import Writer, all_have, start, status_of
from tests.sim.raft_world import World

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGE: Final = ROOT / "controller" / "quire_controller" / "raft"
SOURCES: Final = sorted(PACKAGE.glob("*.py"))
MANGLED: Final = "_SyncObj__"
OURS: Final = Core.__mro__[: Core.__mro__.index(SyncObj)]
"""The classes of which a member is made, without the library's own."""


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module


def used_names() -> set[str]:
    """Private names of the library that our source reads, writes, calls or defines."""
    used = set()
    for path in SOURCES:
        for node in ast.walk(parsed(path)):
            name = ""
            if isinstance(node, ast.Attribute):
                name = node.attr
            elif isinstance(node, ast.FunctionDef):
                name = node.name
            if name.startswith(MANGLED):
                used.add(name)
    return used


def overridden() -> dict[str, FunctionType]:
    """Methods of ours that stand in for the library's."""
    return {
        name: value
        for kind in OURS
        for name, value in vars(kind).items()
        if isinstance(value, FunctionType) and not name.startswith("__") and hasattr(SyncObj, name)
    }


def called_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from called_names(constant)


@pytest.fixture
def stock() -> Iterator[Any]:
    """The library as it comes, with everything that its constructor makes."""
    transport = library._Outbox(lambda peer, message: None)
    conf = SyncObjConf(autoTick=False, dynamicMembershipChange=False)
    made = SyncObj(Node("a"), [Node("b")], conf=conf, transport=transport)
    yield made
    made.destroy()


# --- names ---------------------------------------------------------------------------------------------------------


def test_version_is_the_pinned_one() -> None:
    assert importlib.metadata.version("pysyncobj") == syncobj.VERSION == library.VERSION
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [line for line in project["optional-dependencies"]["server"] if line.startswith("pysyncobj")]
    assert wanted == [f"pysyncobj=={library.VERSION}"]


def test_every_private_name_is_there(stock: Any) -> None:
    names = used_names()
    assert len(names) > 20, "the names are no longer found in our source"
    assert [name for name in sorted(names) if not hasattr(stock, name)] == []


def test_names_that_are_set_by_us_are_set_by_the_library_too(stock: Any) -> None:
    """A value that the library keeps under another name would be ignored, and nobody would notice."""
    written = {
        target.attr
        for path in SOURCES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute) and target.attr.startswith(MANGLED)
    }
    assert written
    assert written <= set(vars(stock))


def test_every_override_replaces_a_method_of_the_same_shape() -> None:
    replaced = overridden()
    assert {name for name in used_names() if any(name in vars(kind) for kind in OURS)} <= set(replaced)
    assert len(replaced) > 5
    for name, ours in replaced.items():
        theirs = getattr(SyncObj, name)
        assert len(inspect.signature(ours).parameters) == len(inspect.signature(theirs).parameters), name


def test_every_override_is_called_by_the_library() -> None:
    called = {
        name
        for value in vars(SyncObj).values()
        if isinstance(value, FunctionType)
        for name in called_names(value.__code__)
    }
    assert [name for name in sorted(overridden()) if name not in called] == []


def test_nothing_else_of_the_library_is_hidden_by_accident(stock: Any) -> None:
    """A name of ours that the library has too, or gets in its next version, would break one of the two."""
    ours = {name for kind in OURS for name in vars(kind) if not name.endswith("__")}
    modules = {kind.__module__.rpartition(".")[2] for kind in OURS}
    for path in SOURCES:
        if path.stem in modules:
            ours |= {
                node.attr
                for node in ast.walk(parsed(path))
                if isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and isinstance(node.value, ast.Name)
                and node.value.id == "self"
            }
    hidden = {name for name in ours if hasattr(stock, name) and not name.startswith(MANGLED)}
    assert hidden == {"_checkCommandsToApply"}


def test_names_of_the_module_are_there(stock: Any) -> None:
    for name in ("createJournal", "createPoller", "monotonicTime", "PIPE_NOTIFIER_ENABLED", "_RAFT_STATE", "Queue"):
        assert hasattr(syncobj, name), name
        assert name in SyncObj.__init__.__globals__, name
    assert (library.FOLLOWER, library.CANDIDATE, library.LEADER) == (0, 1, 2)
    assert stock._SyncObj__commandsQueue.get_nowait
    with pytest.raises(syncobj.Queue.Empty):
        stock._SyncObj__commandsQueue.get_nowait()


def test_our_log_has_what_the_library_asks_of_one() -> None:
    """Whatever it calls on its log in the parts that we use."""
    asked = {"add", "deleteEntriesFrom", "getCurrentTerm", "setCurrentTerm", "getVotedForNodeId", "onOneSecondTimer"}
    asked |= {"getRaftCommitIndex", "setRaftCommitIndex", "__getitem__", "__len__", "_destroy"}
    theirs = {name for name in dir(pysyncobj.journal.MemoryJournal) if name in asked}
    assert asked == theirs
    assert all(callable(getattr(library._Log, name)) for name in asked)


def test_library_is_imported_in_one_place() -> None:
    users = [
        path.relative_to(ROOT).as_posix()
        for part in ("client", "broker", "controller")
        for path in sorted((ROOT / part).rglob("*.py"))
        if any(name.split(".")[0] == "pysyncobj" for name in imported(path))
    ]
    assert users == ["controller/quire_controller/raft/library.py"]


# --- pickle --------------------------------------------------------------------------------------------------------


def test_no_source_of_the_controller_imports_what_runs_code() -> None:
    dangerous = {"pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle"}
    for path in sorted((ROOT / "controller").rglob("*.py")):
        assert not {name.split(".")[0] for name in imported(path)} & dangerous, path


@pytest.fixture
def no_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_(*_: object, **__: object) -> None:
        raise AssertionError("pickle was called")

    for name in ("load", "loads", "dump", "dumps"):
        monkeypatch.setattr(pysyncobj.pickle, name, raise_)
        monkeypatch.setattr(pickle, name, raise_)
    for name in ("loads", "dumps"):
        monkeypatch.setattr(pysyncobj.journal, name, raise_)
    for name in ("Pickler", "Unpickler", "_loads", "_load"):
        monkeypatch.setattr(pickle, name, raise_)


@pytest.mark.usefixtures("no_pickle")
@pytest.mark.parametrize("over_link", [False, True])
def test_quorum_works_without_pickle(over_link: bool) -> None:
    """From its beginning, through an election, snapshots, a snapshot that is sent, and restarts."""
    world = World(seed=5, size=3, make_machine=ToyMachine, over_link=over_link)
    leader = start(world)
    writer = Writer(world)
    writer.write(10)
    away = next(name for name in world.names if name != leader.name)
    world.wipe(away)
    writer.write(100)
    assert status_of(world, leader.name).first_index > 2, "its first entries are to be gone"
    world.start(away)
    all_have(world, writer.acked)
    assert status_of(world, away).snapshot_index > 0, "it was to be sent a snapshot"
    world.run_until(lambda: status_of(world, away).votes, within=30, what="the admission")
    world.crash(leader.name, lose_unsynced=True)
    start(world, leader.name)
    writer.write(10)
    all_have(world, writer.acked)
    assert sum(" leads term " in line for line in world.trace) > 1


@pytest.mark.usefixtures("no_pickle")
def test_library_as_it_comes_would_have_been_caught(stock: Any) -> None:
    with pytest.raises(AssertionError, match="pickle was called"):
        stock.setCodeVersion(0)
    with pytest.raises(AssertionError, match="pickle was called"):
        stock._SyncObj__doApplyCommand(b"\x00" + pickle.PROTO)
