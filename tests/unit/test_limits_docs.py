"""The limits that docs/PROTOCOL.md tells are those of the code; beyond them are errors that there are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from quire.config.sections import KEYS
from quire.errors import ERRORS_BY_REASON
from quire.link.config import LinkConfig
from quire.process.rpc import server
from quire.process.rpc.gate import Limits
from quire_broker.log.config import LogConfig
from quire_broker.runtime import topic_config
from quire_broker.service import (
    answers,
    broker,
    encode,
    fetch,
    follow,
    followers,
    forward,
    offsets,
    produce,
    produce_stream,
    subscribe,
    wire,
)
from quire_controller.state import limits

DOCUMENT: Final = Path(__file__).resolve().parents[2] / "docs" / "PROTOCOL.md"
UNITS: Final = {"": 1, "KiB": 1024, "MiB": 1024 * 1024, "ms": 1, "s": 1_000, "h": 3_600_000}
"""Of times: in milliseconds."""
LOG: Final = LogConfig()
LINK: Final = LinkConfig()

# By what the document calls them. None: a setting, which names itself.
LIMITS: Final[dict[str, dict[str, tuple[float, ...] | None]]] = {
    "Limits of a broker": {
        "a request": None,
        "a request without records": (wire.REQUEST_BYTES_MAX,),
        "a message of `Subscribe`": (broker.SUBSCRIBE_BYTES_MAX,),
        "a request to `ControllerAdminService`": (forward.REQUEST_BYTES_MAX,),
        "metadata of a call": (server.METADATA_BYTES_MAX,),
        "messages within a request of more than 64 KiB: entries, records, headers": (wire.PARTS_MAX,),
        "entries of `Produce`": (produce.ENTRIES_MAX,),
        "raw batches of a request": (produce.BATCHES_MAX,),
        "records of a request that are messages": (encode.RECORDS_MAX,),
        "a batch, and so a record": (topic_config.MESSAGE_BYTES_MAX, topic_config.BATCH_OVERHEAD_BYTES),
        "`wait_ms_max` of `Produce`": (produce.WAIT_MS_MAX,),
        "partitions of `Fetch`": (fetch.PARTITIONS_MAX,),
        "`bytes_max` of `Fetch`": (fetch.BYTES_MAX,),
        "`wait_ms_max` of `Fetch`": (fetch.WAIT_MS_MAX,),
        "a batch that is decoded for `Fetch` or `Subscribe`": (encode.DECODING.plain_bytes_max,),
        "queries of `ListOffsets`": (offsets.QUERIES_MAX,),
        "partitions of `DescribeFollowers`": (followers.PARTITIONS_MAX,),
        "topics of `FollowTopics`": (follow.TOPICS_MAX,),
        "credit of a subscription": (subscribe.CREDIT_BYTES_MAX,),
        "`bytes_max` of `Subscribe`": (subscribe.PIECE_BYTES_MAX,),
        "partitions of a subscription": (subscribe.PARTITIONS_MAX,),
        "partitions of all subscriptions": (subscribe.FEEDS_MAX,),
        "from the beginning of `Subscribe` to its `start`": (subscribe.START_S_MAX * 1_000,),
        "requests of a `ProduceStream` that are not answered": (produce_stream.UNANSWERED_MAX,),
        "idempotent producers, a partition": (LOG.producers_max, LOG.producer_expiry_ms),
        "calls at once, a listener": None,
        "streams at once, a listener": None,
        "streams and calls at once, a connection": (server.STREAMS_A_CONNECTION_MAX,),
        "calls at once that are passed on to the controllers": (forward.CALLS_MAX,),
        "in memory, a connection": None,
        "waiting to be written, a partition": None,
        "in memory, all connections: half for requests, half for answers": None,
        "a message that its caller does not take": (answers.STALL_S_MAX * 1_000,),
        "free room on the disk, at least": None,
    },
    "Limits of a controller": {
        "calls at once, a member": None,
        "streams at once, a member": (Limits().streams_max,),
        "streams and calls at once, a connection": (server.STREAMS_A_CONNECTION_MAX,),
        "a request": None,
        "a command made of it": None,
        "metadata of a call": (server.METADATA_BYTES_MAX,),
        "partitions of a change": (limits.PARTITIONS_PER_COMMAND_MAX,),
        "partitions of a topic": (limits.PARTITIONS_PER_TOPIC_MAX,),
        "replicas of a partition": (limits.REPLICATION_FACTOR_MAX,),
        "topics": (limits.TOPICS_MAX,),
        "partitions": (limits.PARTITIONS_MAX,),
        "brokers": (limits.BROKERS_MAX,),
        "changes of a client that are under way": (limits.RESULTS_PER_CLIENT_MAX,),
    },
    "Sessions": {
        "from the first packet to the end of the greeting": (LINK.handshake_ms_max,),
        "connections that have not greeted, a listener": (LINK.half_open_max,),
        "sessions, a listener": (LINK.sessions_max,),
        "waiting to be sent, a session": (LINK.outgoing_bytes_max,),
        "silence of the peer (both sides ping every 500 ms)": (LINK.silence_ms_max,),
        "no progress in sending": (LINK.stall_ms_max,),
        "sending the rest when a session is closed": (LINK.close_ms_max,),
    },
}
WITHOUT_REASON: Final = (
    "status `RESOURCE_EXHAUSTED`, without details; for certain from 20 KiB on",
    *("status `RESOURCE_EXHAUSTED`, without details", "the next ones are not read", "wait in the client"),
    *("the caller is hung up on", "the same", "the connection is closed", "the oldest is closed", "refused"),
    *("the session ends", "the connection is reset"),
)


def rows(heading: str) -> dict[str, tuple[str, str]]:
    section = re.split(r"\n#+ ", DOCUMENT.read_text(encoding="utf-8").partition(f"\n### {heading}\n")[2])[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"
    ]
    return {what: (limit, beyond) for what, limit, beyond in cells[2:]}


def numbers(text: str) -> tuple[float, ...]:
    """`32 MiB, and 24 h of silence`: what it says, without names."""
    plain = re.sub(r"`[^`]*`", "", text)
    found = re.findall(r"(\d[\d,]*)(?: (KiB|MiB|ms|s|h)\b)?", plain)
    return tuple(int(number.replace(",", "")) * UNITS[unit] for number, unit in found)


@pytest.mark.parametrize("heading", LIMITS)
def test_limits_are_those_of_the_code(heading: str) -> None:
    documented = rows(heading)
    assert list(documented) == list(LIMITS[heading])
    for what, expected in LIMITS[heading].items():
        limit, _ = documented[what]
        if expected is None:
            [name] = re.findall(r"`(\w+\.\w+)`", limit)
            expected = (KEYS[name].default,)
        assert numbers(limit) == expected, what


@pytest.mark.parametrize("heading", LIMITS)
def test_what_lies_beyond_is_an_error_that_there_is(heading: str) -> None:
    for what, (_, beyond) in rows(heading).items():
        reason = re.match(r"(?:forgotten: )?`([A-Z_]+)`", beyond)
        if reason is None:
            assert beyond in WITHOUT_REASON, what
            continue
        error = ERRORS_BY_REASON[reason[1]]
        assert (", for now" in beyond) == (error.retry_after_ms is not None and not heading.startswith("Sess")), what


def test_numbers_are_read_as_people_do() -> None:
    assert numbers("`broker.x` (32 MiB)") == (32 * 1024 * 1024,)
    assert numbers("100,000, and 24 h of silence") == (100_000, 86_400_000)
    assert numbers("`a_1` (1,000)") == (1_000,)
