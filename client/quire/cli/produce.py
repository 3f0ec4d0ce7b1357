"""Send messages to a topic: lines, files or JSON."""

from __future__ import annotations

import enum
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final

import typer

from quire.cli import message_input, options, progress
from quire.cli.message_format import unescaped
from quire.cli.message_input import Given, Parse
from quire.cli.sending import Tally
from quire.cli.where import Where
from quire.errors import InvalidArgumentError, OutcomeUnknownError, QuireError

if TYPE_CHECKING:
    from quire import Producer

STDIN: Final = "-"
FILE_BYTES_MAX: Final = 64 * 1024 * 1024
EXIT_FAILED: Final = 1


class Acks(enum.StrEnum):
    ALL = "all"
    LEADER = "leader"
    NONE = "none"


class Compression(enum.StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


app = options.app(None)


@app.command(
    help=f"""{__doc__}

    Reads lines from standard input, or from the FILEs, and sends each as a message until the input ends. Then it says
    how many are stored, and how safely. Exits with 1 if one is not.

    \b
    echo hello | quire produce orders --key customer-7
    quire produce orders --key-separator = < orders.txt
    quire produce photos --whole *.jpg
    quire consume orders -e --json | quire produce copy --json
    """
)
def produce(
    topic: options.Topic,
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", show_default=False, help="What to read; '-' is standard input."),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", "-k", metavar="KEY", help="The key of every message.", show_default=False)
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator",
            "-K",
            metavar="TEXT",
            help="Lines are KEY TEXT VALUE, as in a=1 with '='; '\\t' is a tab.",
            show_default=False,
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header",
            "-H",
            metavar="NAME=VALUE",
            help="A header of every message; may be repeated.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Lines are JSON objects as `quire consume --json` prints them.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="With --json: keep each message's partition and timestamp, too.")
    ] = False,
    whole: Annotated[bool, typer.Option("--whole", help="Each FILE is one message.")] = False,
    null: Annotated[
        bool, typer.Option("--null", "-Z", help="What is empty is null: the tombstone of a compacted topic.")
    ] = False,
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", metavar="N", min=0, help="Where all messages go.", show_default=False),
    ] = None,
    acks: Annotated[Acks, typer.Option("--acks", help="Whom to wait for.")] = Acks.ALL,
    compression: Annotated[Compression, typer.Option("--compression", "-z", help="How batches are packed.")] = (
        Compression.NONE
    ),
    timeout_s: Annotated[
        float,
        typer.Option("--timeout", metavar="S", min=0.1, max=86_400, help="How long a message may take to be stored."),
    ] = 60.0,
    report: Annotated[
        bool, typer.Option("--report", help="Print a JSON line for each message: where it is stored, or why not.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing if all is well.")] = False,
    bootstrap: options.Bootstrap = options.DEFAULT,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
) -> None:
    parse = _parser(key=key, key_separator=key_separator, header=header, as_json=as_json, keep=keep, null=null)
    if whole and (as_json or key_separator is not None or not files):
        raise InvalidArgumentError("--whole is for FILEs that are a message each, without --json or --key-separator")
    sources = files or [Path(STDIN)]
    for source in sources:
        _check_readable(source)
    where = Where(bootstrap, tls_ca, tls_cert)
    tally = Tally(topic, report=report)
    interrupted = False
    with ExitStack() as stack:
        producer = where.producer(
            acks=acks.value, compression=compression.value, delivery_ms_max=round(timeout_s * 1000)
        )
        stack.callback(_close, producer)
        total = _total(sources)
        advance = stack.enter_context(progress.bar(topic, total, unit_bytes=True)) if total else None
        done_bytes = 0
        try:
            for given, took_bytes in _messages(sources, parse, whole=whole):
                if tally.failed:
                    break
                done_bytes += took_bytes
                tally.add(
                    producer.send(
                        topic,
                        given.value,
                        key=given.key,
                        headers=given.headers,
                        partition=given.partition if partition is None else partition,
                        timestamp_ms=given.timestamp_ms,
                    )
                )
                if advance is not None:
                    advance(done_bytes, f"{tally.stored:,} stored")
        except QuireError as error:
            tally.refuse(error)
        except KeyboardInterrupt:
            interrupted = True
        # After Ctrl-C, too: what was read is on its way, and somebody wants to know what became of it.
        with suppress(KeyboardInterrupt):  # unless he has lost patience
            producer.flush()
    tally.finish(quiet=quiet)
    if interrupted:
        raise KeyboardInterrupt
    if tally.failed:
        raise typer.Exit(EXIT_FAILED)


def _close(producer: Producer) -> None:
    """At once: what is on its way still is unknown, and the tally is told so."""
    with suppress(OutcomeUnknownError):
        producer.close(timeout_s=0)


def _parser(
    *, key: str | None, key_separator: str | None, header: list[str] | None, as_json: bool, keep: bool, null: bool
) -> Parse:
    headers = tuple(map(message_input.header, header or ()))
    if key is not None and key_separator is not None:
        raise InvalidArgumentError("--key is the key of all messages, --key-separator finds one in each: give one")
    key_bytes = None if key is None else os.fsencode(key)
    if as_json:
        if key_separator is not None or null:
            raise InvalidArgumentError("--json says by itself what the key is, and what is null")
        return message_input.json_parser(key=key_bytes, headers=headers, keep_partition=keep, keep_timestamp=keep)
    if keep:
        raise InvalidArgumentError("--keep is for --json")
    if key_separator is not None:
        separator = unescaped(key_separator, "--key-separator")
        return message_input.keyed_parser(separator, headers=headers, null_empty=null)
    return message_input.value_parser(key=key_bytes, headers=headers, null_empty=null)


# --- reading -------------------------------------------------------------------------------------------------------


def _messages(sources: Iterable[Path], parse: Parse, *, whole: bool) -> Iterator[tuple[Given, int]]:
    for source in sources:
        if whole:
            content = _whole(source)
            yield parse(content), len(content)
        elif str(source) == STDIN:
            if sys.stdin.isatty():
                print("One message a line; Ctrl-D ends.", file=sys.stderr)
            yield from message_input.parsed(sys.stdin.buffer, parse, name="standard input")
        else:
            with _open(source) as file:
                yield from message_input.parsed(file, parse, name=str(source))


def _whole(source: Path) -> bytes:
    with _open(source) as file:
        content = file.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise InvalidArgumentError(f"{source} is larger than {FILE_BYTES_MAX:,} bytes, too large for one message")
    return content


def _open(source: Path) -> BinaryIO:
    try:
        return source.open("rb")
    except OSError as error:
        raise InvalidArgumentError(f"{source} cannot be read: {error.strerror}") from error


def _check_readable(source: Path) -> None:
    """Before the first message is sent: half of the files would be worse than none."""
    if str(source) != STDIN:
        _open(source).close()
        if source.is_dir():
            raise InvalidArgumentError(f"{source} is a directory")


def _total(sources: Iterable[Path]) -> int | None:
    sizes = [_size(source) for source in sources]
    return None if None in sizes else sum(filter(None, sizes))


def _size(source: Path) -> int | None:
    """How much there is to read; None where nobody knows."""
    about = os.fstat(sys.stdin.fileno()) if str(source) == STDIN else source.stat()
    return about.st_size if stat.S_ISREG(about.st_mode) else None
