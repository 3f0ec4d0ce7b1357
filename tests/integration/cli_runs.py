"""Runs of the `quire` command: in this process, over in milliseconds, and in processes of their own."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from quire.cli import main
from tests.integration.up_processes import QUIRE, Up, environment


class Done(NamedTuple):
    """What a run came to."""

    code: int
    stdout: bytes
    stderr: str


class Command:
    """`quire` for people who work with one cluster."""

    def __init__(self, up: Up, *, bootstrap: str | None = None) -> None:
        self.up = up
        self.environ = {
            **environment(),
            "QUIRE_BOOTSTRAP": bootstrap or up.bootstrap,
            "COLUMNS": "80",
            "TZ": "UTC",
        }

    def run(self, *arguments: object, input: bytes = b"", code: int = 0) -> Done:
        done = run_here([str(each) for each in arguments], input=input, environ=self.environ)
        assert done.code == code, (done.stdout, done.stderr)
        return done

    def out(self, *arguments: object, input: bytes = b"") -> str:
        """What it prints when all is well, and it has nothing else to say."""
        done = self.run(*arguments, input=input)
        assert done.stderr == ""
        return done.stdout.decode()

    def json(self, *arguments: object) -> Any:
        return json.loads(self.out(*arguments, "--json"))

    def refused(self, *arguments: object, input: bytes = b"") -> str:
        """The one line that it says of why it did nothing."""
        done = self.run(*arguments, input=input, code=1)
        assert done.stdout == b""
        assert done.stderr.count("\n") == 1, done.stderr
        return done.stderr

    def start(self, *arguments: object, stdin: int | None = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        """The installed command, in a process of its own."""
        before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # it would stay ignored if the tests ignore it
        try:
            return subprocess.Popen(
                [QUIRE, *map(str, arguments)],
                env=self.environ,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        finally:
            signal.signal(signal.SIGINT, before)


def run_here(arguments: list[str], *, input: bytes, environ: Mapping[str, str]) -> Done:
    """`main` as the installed script calls it. Clients that it would leave open are warnings, and so errors."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    with _file_of(input) as stdin, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "environ", dict(environ))
        for name, value in {"argv": ["quire", *arguments], "stdin": stdin, "stdout": out, "stderr": err}.items():
            patch.setattr(sys, name, value)
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    out.flush()
    err.flush()
    assert isinstance(code, int)
    return Done(code, _bytes(out), _bytes(err).decode())


def _bytes(stream: io.TextIOWrapper) -> bytes:
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue()


@contextmanager
def _file_of(content: bytes) -> Iterator[io.TextIOWrapper]:
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        yield io.TextIOWrapper(file, "utf-8")
