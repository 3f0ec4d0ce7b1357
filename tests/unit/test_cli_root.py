"""The root of the `quire` command, as its users meet it: the installed script in a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

QUIRE = Path(sys.executable).parent / "quire"

VERBS = {
    "planted_greet": '''
        # A comment before it.
        """Say hello.

        And more that the list of verbs leaves out.
        """
        import os
        import typer
        from pathlib import Path

        Path(os.environ["IMPORTED"]).touch()
        app = typer.Typer()

        @app.command()
        def world(name: str = "world", shout: bool = False) -> None:
            print(f"hello {name}" + "!" * shout)

        @app.command()
        def echo(words: list[str]) -> None:
            print(words)
        ''',
    "planted_fail": '''
        """Fail."""
        import typer
        from quire.errors import DiskFullError

        app = typer.Typer()

        @app.command()
        def on_purpose() -> None:
            raise DiskFullError("no room in '/data'\\n\\x1b[2Jfree some", free_bytes=0)

        @app.command()
        def by_mistake() -> None:
            raise RuntimeError("a bug")

        @app.command()
        def with_code() -> None:
            raise typer.Exit(7)
        ''',
    "planted_needy": '"""Need a module that is missing."""\nimport planted_missing_module',
    "planted_partial": '"""Need a name that is missing."""\nfrom json import no_such_name',
    "planted_broken": "this is not Python",
    "planted_print": """
        import typer

        app = typer.Typer()

        @app.command()
        def forever() -> None:
            while True:
                print("x" * 1000)

        @app.command()
        def unflushed() -> None:
            input()
            print("x")
        """,
    "planted_wait": '''
        """Wait."""
        import time
        import typer

        app = typer.Typer()

        @app.command()
        def wait() -> None:
            print("ready", flush=True)
            while True:  # a signal that comes just before one long sleep would not end it
                time.sleep(0.01)
        ''',
}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment in which a package with all of VERBS is installed beside Quire."""
    for name, source in VERBS.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source), encoding="utf-8")
    info = tmp_path / "planted-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n", encoding="utf-8")
    points = [f"{name.removeprefix('planted_')} = {name}:app" for name in VERBS]
    points.append("gone = planted_nowhere.cli:app")
    (info / "entry_points.txt").write_text("\n".join(["[quire.cli]", *points]), encoding="utf-8")
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("_TYPER", "TYPER"))},
        "PYTHONPATH": str(tmp_path),
        "IMPORTED": str(tmp_path / "imported"),
        "COLUMNS": "100",
    }


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(environment: dict[str, str]) -> Run:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [QUIRE, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=60
        )

    return run


def test_version(run: Run) -> None:
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"quire {version('quire')}\n", "")


def test_help_lists_the_verbs_without_importing_them(run: Run, environment: dict[str, str]) -> None:
    done = run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^ +greet +Say hello\.$", done.stdout, re.MULTILINE)
    assert re.search(r"^ +needy +Need a module that is missing\.$", done.stdout, re.MULTILINE)
    assert re.search(r"^ +broken +\(from planted_broken\)$", done.stdout, re.MULTILINE)
    assert re.search(r"^ +gone +\(from planted_nowhere\.cli\)$", done.stdout, re.MULTILINE)
    assert re.search(r"^ +log ", done.stdout, re.MULTILINE), "the broker's own verb"
    assert not Path(environment["IMPORTED"]).exists()


def test_without_arguments_it_helps(run: Run) -> None:
    done = run()
    assert done.returncode == 2
    assert "Usage: quire" in done.stdout + done.stderr


def test_unknown_verb_is_an_error_of_use(run: Run) -> None:
    done = run("no-such-verb")
    assert (done.returncode, done.stdout) == (2, "")
    assert "No such command 'no-such-verb'" in done.stderr


def test_verb_gets_all_that_follows_it(run: Run, environment: dict[str, str]) -> None:
    assert run("greet", "world", "--name", "Ada", "--shout").stdout == "hello Ada!\n"
    assert Path(environment["IMPORTED"]).exists()
    assert run("greet", "echo", "a", "--", "--version", "-x").stdout == "['a', '--version', '-x']\n"


def test_verb_has_its_own_help(run: Run) -> None:
    done = run("greet", "--help")
    assert done.returncode == 0
    assert "quire greet [OPTIONS]" in done.stdout
    assert "echo" in done.stdout
    assert "quire greet world [OPTIONS]" in run("greet", "world", "--help").stdout


def test_wrong_use_of_a_verb_exits_2(run: Run) -> None:
    done = run("greet", "world", "--no-such-option")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--no-such-option" in done.stderr


def test_exit_code_of_a_verb_is_kept(run: Run) -> None:
    assert run("fail", "with-code").returncode == 7


def test_error_is_one_line_without_a_traceback(run: Run) -> None:
    done = run("fail", "on-purpose")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "quire: no room in '/data'  [2Jfree some (DISK_FULL)\n"


def test_bug_is_not_hidden(run: Run) -> None:
    done = run("fail", "by-mistake")
    assert done.returncode == 1
    assert "RuntimeError" in done.stderr
    assert "a bug" in done.stderr


@pytest.mark.parametrize(
    ("verb", "complaint"),
    [
        ("needy", "the module 'planted_missing_module' is not installed"),
        ("gone", "the module 'planted_nowhere' is not installed"),
        ("partial", "cannot import name 'no_such_name'"),
    ],
)
def test_missing_package_is_named_with_the_remedy(run: Run, verb: str, complaint: str) -> None:
    done = run(verb, "anything", "--help")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"quire {verb}: {complaint}")
    assert done.stderr.endswith("; run: pip install 'quire[server]'\n")
    assert done.stderr.count("\n") == 1


def test_reader_that_leaves_is_no_failure(environment: dict[str, str]) -> None:
    with subprocess.Popen(
        [QUIRE, "print", "forever"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 141


def test_reader_that_has_left_before_the_last_flush_is_no_failure(environment: dict[str, str]) -> None:
    with subprocess.Popen(
        [QUIRE, "print", "unflushed"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.write(b"\n")
        process.stdin.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 141


def test_interrupt_ends_it_quietly(environment: dict[str, str]) -> None:
    with subprocess.Popen(
        [QUIRE, "wait"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Whoever runs the tests in the background ignores it, and a child would too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 130
