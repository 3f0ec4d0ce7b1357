"""What users write: addresses, starts, settings, options."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from quire._client.addresses import parse
from quire._client.options import connection
from quire._client.starts import EARLIEST, LATEST, at_time, start_of
from quire._client.topic_config import NAMES, from_wire, to_wire
from quire.errors import InvalidArgumentError
from quire.link.network import Address
from quire.v1 import metadata_pb2


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("localhost:7400", [("localhost", 7400)]),
        ("localhost", [("localhost", 7400)]),
        (" a:1 , b ", [("a", 1), ("b", 7400)]),
        (["a:1", "a:1", "b:2"], [("a", 1), ("b", 2)]),
        ("[::1]:7500", [("::1", 7500)]),
        ("[fd00::1]", [("fd00::1", 7400)]),
    ],
)
def test_addresses(written: Any, meant: list[tuple[str, int]]) -> None:
    assert parse(written) == [Address(*each) for each in meant]


@pytest.mark.parametrize(
    "written",
    [
        "",
        ":7400",
        "a:",
        "a:0",
        "a:65536",
        "a:x",
        "a b:1",
        "http://a:1",
        "::1",
        "[::1",
        "[::1]x",
        [],
        [7],
        "a:１",
        "a,",
    ],
)
def test_addresses_that_are_none(written: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        parse(written)


def test_certificates_make_every_connection_safe(tmp_path: Path) -> None:
    given: dict[str, Any] = {"client_id": "", "tls_ca": None, "tls_cert": None, "connect_ms_max": 1}
    assert not connection("a", **given).tls
    (tmp_path / "ca.pem").write_bytes(b"-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n")
    for name in ("tls_ca", "tls_cert"):
        assert connection("a", **given | {name: tmp_path / "ca.pem"}).tls
        with pytest.raises(InvalidArgumentError, match="cannot be read"):
            connection("a", **given | {name: tmp_path})


def test_starts() -> None:
    assert start_of("earliest") is EARLIEST
    assert start_of("latest") is LATEST
    assert start_of(7) == 7
    assert start_of(datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)) == at_time(2000) == start_of(("timestamp", 2000))
    for wrong in ("first", -1, True, None, 1.0, ("timestamp", -1), ("timestamp", 1.5), ("then", 1), datetime.min):
        with pytest.raises(InvalidArgumentError):
            start_of(wrong)


def test_settings_there_and_back() -> None:
    config: dict[str, Any] = {
        "partitioner": "murmur3",
        "flush": "interval(5)",
        "min_isr": 2,
        "retention_ms": -1,
        "retention_bytes": 1 << 40,
        "retention_segments": 3,
        "segment_bytes": 1 << 20,
        "cleanup": "compact",
        "message_bytes_max": 4096,
        "unclean_election": False,
    }
    assert set(config) == set(NAMES)
    assert from_wire(to_wire(config)) == config
    assert from_wire(to_wire({name: str(value) for name, value in config.items() if type(value) is int})) == {
        name: value for name, value in config.items() if type(value) is int
    }
    assert to_wire({"unclean_election": "true"}).unclean_election
    for flush in ("fsync", "os"):
        assert from_wire(to_wire({"flush": flush})) == {"flush": flush}
    assert from_wire(metadata_pb2.TopicConfig()) == {}


def test_setting_of_a_newer_version_is_shown_as_such() -> None:
    newer = metadata_pb2.TopicConfig(cleanup=9)  # type: ignore[arg-type]  # that is what is tested
    assert from_wire(newer) == {"cleanup": "unknown (9)"}
