"""Which test shows what: whether a test that is named for something is there, runs, and uses it.

Only the text of the tests is looked at. Of a test that is: the function, and what it stands on: helpers, fixtures and
constants of its module and of other modules of the tests.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
DUNDERS: Final = {
    "__enter__": (ast.With,),
    "__aenter__": (ast.AsyncWith,),
    "__iter__": (ast.For, ast.comprehension),
    "__aiter__": (ast.AsyncFor, ast.comprehension),
    "__await__": (ast.Await,),
}
"""What stands in a text that uses them."""
BUILTINS: Final = {"__next__": "next", "__anext__": "anext", "__len__": "len"}


class Module:
    """A file of tests."""

    def __init__(self, path: Path) -> None:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        self.functions: dict[str, ast.AST] = {}
        self.named: dict[str, ast.AST] = {}
        """Functions, classes and constants."""
        self.imported: dict[str, str] = {}
        """Where names of other files of tests come from: `tests/integration/sdk_cluster.py`."""
        for node in tree.body:
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                self.named[node.name] = node
                if isinstance(node, FUNCTIONS):
                    self.functions[node.name] = node
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                self.named |= {target.id: node for target in targets if isinstance(target, ast.Name)}
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests."):
                path_of = (node.module or "").replace(".", "/") + ".py"
                self.imported |= {alias.asname or alias.name: path_of for alias in node.names}


@cache
def module(path: str) -> Module:
    return Module(ROOT / path)


def test(name: str) -> ast.AST:
    """The function behind `folder/file.py::test_name`. Raises LookupError where none would run."""
    path, _, function = name.partition("::")
    file = ROOT / "tests" / path
    if not file.is_file() or not file.name.startswith("test_"):
        raise LookupError(f"there is no tests/{path}")
    node = module(f"tests/{path}").functions.get(function)
    if node is None or not function.startswith("test_"):
        raise LookupError(f"there is no test {function} in tests/{path}")
    assert isinstance(node, FUNCTIONS)
    if any("skip" in ast.unparse(each) or "xfail" in ast.unparse(each) for each in node.decorator_list):
        raise LookupError(f"{function} does not always run")
    return node


def stands_on(name: str) -> list[ast.AST]:
    """The test, and all that it uses of the tests."""
    path, _, function = name.partition("::")
    todo, found = [(f"tests/{path}", function)], dict[tuple[str, str], ast.AST]()
    while todo:
        place, symbol = todo.pop()
        here = module(place)
        if (place, symbol) in found:
            continue
        if symbol in here.named:
            node = found[place, symbol] = here.named[symbol]
            todo += [(place, each) for each in _names(node)]
        elif symbol in here.imported and (ROOT / here.imported[symbol]).is_file():
            todo.append((here.imported[symbol], symbol))
    return list(found.values())


def _names(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield each.id
        elif isinstance(each, ast.arg):
            yield each.arg  # a fixture, perhaps


def calls_method(name: str, kind: str, method: str) -> bool:
    """Whether the test uses a method of the class, here `aio.Producer` or `Producer`.

    What is made of it is followed through names only: `with Producer(…) as producer`, `producer = Producer(…)`,
    `producer: Producer`. What `send` gives has any name.
    """
    within = [each for node in stands_on(name) for each in ast.walk(node)]
    is_async, _, plain = kind.rpartition(".")
    if plain in ("Delivery", "Deliveries"):
        ways = {"send"} if plain == "Delivery" else {"send_many"}
        is_made = any(isinstance(each, ast.Attribute) and each.attr in ways for each in within)
        is_right_face = bool(is_async) == isinstance(test(name), ast.AsyncFunctionDef)
        used = (
            {each.attr for each in within if isinstance(each, ast.Attribute)} if is_made and is_right_face else set()
        )
    else:
        objects = set(_made_of(within, kind))
        used = {
            each.attr
            for each in within
            if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id in objects
        }
        is_made = is_right_face = bool(objects)
    if method in DUNDERS:
        return is_made and is_right_face and any(isinstance(each, DUNDERS[method]) for each in within)
    if method in BUILTINS:
        called = {each.func.id for each in within if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)}
        return is_made and is_right_face and BUILTINS[method] in called
    return method in used


def _made_of(within: list[ast.AST], kind: str) -> Iterator[str]:
    def is_kind(node: ast.AST | None) -> bool:
        return isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) == kind

    for each in within:
        if isinstance(each, ast.withitem) and isinstance(each.context_expr, ast.Call):
            if is_kind(each.context_expr.func) and isinstance(each.optional_vars, ast.Name):
                yield each.optional_vars.id
        elif isinstance(each, ast.Assign) and isinstance(each.value, ast.Call) and is_kind(each.value.func):
            yield from (target.id for target in each.targets if isinstance(target, ast.Name))
        elif isinstance(each, ast.arg) and is_kind(each.annotation):
            yield each.arg


def says(name: str, *words: str) -> bool:
    """Whether all of these stand in the test's texts."""
    texts = [
        each.value
        for node in stands_on(name)
        for each in ast.walk(node)
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    ]
    return all(any(word in text for text in texts) for word in words)


def runs_verb(name: str, *words: str) -> bool:
    """Whether the test has the words of a command as arguments: `"topic", "create"`."""
    texts = {
        text
        for node in stands_on(name)
        for each in ast.walk(node)
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
        for text in (each.value, *each.value.split())
    }
    return set(words) <= texts


def names_error(name: str, kind: str, reason: str) -> bool:
    """Whether the test expects an error, by its class or its reason."""
    names = {each for node in stands_on(name) for each in _names(node)}
    return kind in names or says(name, reason)


def expects_code(name: str, number: int) -> bool:
    """Whether the test compares something with an exit code, or says `code=…` to a helper, or lets that say it."""
    names = {0: {"OK"}, 130: {"EXIT_INTERRUPTED", "INTERRUPTED"}, 141: {"EXIT_BROKEN_PIPE"}}.get(number, set())
    expected: list[ast.expr | None] = []
    for each in (each for node in stands_on(name) for each in ast.walk(node)):
        if isinstance(each, ast.Compare):
            for side in (each.left, *each.comparators):
                expected += side.elts if isinstance(side, ast.Tuple) else [side]
        elif isinstance(each, ast.keyword) and each.arg == "code":
            expected.append(each.value)
        elif isinstance(each, ast.arguments):
            expected += [
                default for arg, default in zip(each.kwonlyargs, each.kw_defaults, strict=True) if arg.arg == "code"
            ]
    return any(
        (isinstance(each, ast.Constant) and each.value == number and not isinstance(each.value, bool))
        or (isinstance(each, ast.Attribute | ast.Name) and ast.unparse(each).rpartition(".")[2] in names)
        for each in expected
    )
