"""The port through which a judge puts facts in order: a history may have more of them than memory has room for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

Fact = tuple[Any, ...]
"""Texts and whole numbers. Facts of one sorter have the same shape, and are compared as tuples are."""


class Sorter(Protocol):
    def add(self, fact: Fact) -> None: ...

    def sorted(self) -> Iterator[Fact]:
        """All of them, in order. Once, and then nothing is added."""
        ...


NewSorter = Callable[[], Sorter]


class InMemory:
    """For histories that are small."""

    def __init__(self) -> None:
        self._facts: list[Fact] = []

    def add(self, fact: Fact) -> None:
        self._facts.append(fact)

    def sorted(self) -> Iterator[Fact]:
        self._facts.sort()
        return iter(self._facts)
