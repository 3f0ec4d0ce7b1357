"""Batches frozen in tests/golden/records: logs on disk hold such bytes, so they must stay readable and the same.

To add a case, put it into `CASES` and write its file once:

    for name, make in CASES.items(): (GOLDEN / f"{name}.batch").write_bytes(make())

in a Python prompt at the root of the repository, after `from tests.unit.test_records_golden import *`. A file that is
there already is never written anew: if it no longer matches, what changed is the format.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from quire.records import Attributes, BatchBuilder, BatchOptions, Codec, Lane, decode, parse_batch, patch
from tests.unit.records_crafting import Row, batch, field, record, rows

GOLDEN: Final = Path(__file__).resolve().parents[1] / "golden" / "records"
NOW_MS: Final = 1_700_000_000_000

PLAIN_ROWS: Final[list[Row]] = [
    (i, NOW_MS + i, b"key-%d" % (i % 3), b'{"id":%d,"note":"golden"}' % i, []) for i in range(100)
]
EDGE_ROWS: Final[list[Row]] = [
    (0, NOW_MS, None, None, []),
    (1, NOW_MS - 1000, b"", b"", [("", None)]),
    (
        2,
        NOW_MS + (1 << 40),
        b"k" * 64,
        b"v" * 8192,
        [("ключ", b""), ("traceparent", b"00-4bf9-00f0-01"), ("x", None)],
    ),
    (3, 0, None, b"\x00\xff", []),
]
MARKER_ROWS: Final[list[Row]] = [(0, NOW_MS, b"\x00\x00\x00\x00", b"\x00\x00\x00\x00\x00\x01", [])]


def build(expected: list[Row], options: BatchOptions) -> bytes:
    builder = BatchBuilder()
    for _, timestamp_ms, key, value, headers in expected:
        assert builder.append(key, value, headers, timestamp_ms)
    return builder.build(**options)


def patched(data: bytes) -> bytes:
    stored = bytearray(data)
    patch(stored, base_offset=1 << 33, leader_epoch=12)
    return bytes(stored)


ALL_FLAGS: Final[BatchOptions] = {
    "producer_id": 1 << 40,
    "producer_epoch": 300,
    "base_sequence": 1 << 20,
    "transactional": True,
    "lane": Lane.LOW,
    "delayed": True,
    "has_ttl": True,
    "traced": True,
    "codec": Codec.ZSTD,
}

CASES: Final[dict[str, Callable[[], bytes]]] = {
    "none": lambda: build(PLAIN_ROWS, {}),
    "gzip": lambda: build(PLAIN_ROWS, {"codec": Codec.GZIP}),
    "snappy": lambda: build(PLAIN_ROWS, {"codec": Codec.SNAPPY}),
    "lz4": lambda: build(PLAIN_ROWS, {"codec": Codec.LZ4}),
    "zstd": lambda: build(PLAIN_ROWS, {"codec": Codec.ZSTD}),
    "nulls-and-headers": lambda: build(EDGE_ROWS, {}),
    "all-flags": lambda: build(PLAIN_ROWS, ALL_FLAGS),
    "marker": lambda: build(
        MARKER_ROWS, {"producer_id": 7, "producer_epoch": 1, "transactional": True, "control": True}
    ),
    "stored": lambda: patched(build(PLAIN_ROWS, {"lane": Lane.HIGH})),
    "compacted-append-time": lambda: batch(
        record(3, key=field(b"a")),
        record(7, key=field(b"b"), value=field(None)),
        attributes=Attributes.LOG_APPEND_TIME,
        last_offset_delta=9,
        max_timestamp_ms=NOW_MS + 5,
    ),
}

EXPECTED: Final[dict[str, list[Row]]] = {
    "nulls-and-headers": EDGE_ROWS,
    "marker": MARKER_ROWS,
    "stored": [(offset + (1 << 33), *rest) for offset, *rest in PLAIN_ROWS],  # type: ignore[misc]  # a row again
    "compacted-append-time": [(3, NOW_MS + 5, b"a", b"value", []), (7, NOW_MS + 5, b"b", None, [])],
}


@pytest.mark.parametrize("name", CASES)
def test_frozen_batches_decode(name: str) -> None:
    assert rows(decode((GOLDEN / f"{name}.batch").read_bytes())) == EXPECTED.get(name, PLAIN_ROWS)


# gzip's bytes are those of whichever zlib Python was built with; the others come with the package that we pin.
@pytest.mark.parametrize("name", sorted(set(CASES) - {"gzip"}))
def test_frozen_batches_are_still_what_we_write(name: str) -> None:
    assert CASES[name]() == (GOLDEN / f"{name}.batch").read_bytes()


def test_frozen_flags() -> None:
    header = parse_batch((GOLDEN / "all-flags.batch").read_bytes())
    assert header.attributes == 0x1E14
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (1 << 40, 300, 1 << 20)
    marker = parse_batch((GOLDEN / "marker.batch").read_bytes())
    assert marker.is_control
    assert marker.is_transactional
    stored = parse_batch((GOLDEN / "stored.batch").read_bytes())
    assert (stored.base_offset, stored.leader_epoch, stored.lane) == (1 << 33, 12, Lane.HIGH)


def test_no_file_is_without_a_case() -> None:
    assert {path.stem for path in GOLDEN.glob("*.batch")} == set(CASES)
