"""The verbs that work with a cluster, on real brokers: what they do, print and refuse."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from tests.integration.cli_runs import Command, run_here
from tests.integration.cli_terminal import Terminal
from tests.integration.controller_cluster import WAIT_S_MAX
from tests.integration.up_processes import QUIRE, Up, environment, running_up
from tests.raftkill.processes import free_ports

NOBODY: Final = "nosuch"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with running_up(tmp_path_factory.mktemp("cli") / "data") as up:
        yield up


@pytest.fixture(scope="module")
def quire(up: Up) -> Command:
    return Command(up)


_numbers = count(1)


@pytest.fixture
def new_topic(quire: Command) -> Callable[..., str]:
    """Makes a topic that no other test has."""

    def new_topic(*arguments: object) -> str:
        name = f"orders-{next(_numbers)}"
        quire.out("topic", "create", name, *arguments)
        return name

    return new_topic


@pytest.fixture
def topic(new_topic: Callable[..., str]) -> str:
    return new_topic()


def produced(quire: Command, topic: str, *lines: str, arguments: tuple[object, ...] = ()) -> None:
    quire.run("produce", topic, *arguments, input="".join(f"{line}\n" for line in lines).encode())


# --- topic ---------------------------------------------------------------------------------------------------------


def test_topic_from_its_making_to_its_end(quire: Command) -> None:
    assert quire.out("topic", "create", "life", "-n", 3, "-c", "retention_ms=3600000", "-c", "flush=os") == (
        "made topic life: 3 partitions, 1 replica each\n"
    )
    assert re.search(r"^life +3 +1  flush=os, retention_ms=3600000$", quire.out("topic", "list"), re.MULTILINE)
    described = quire.out("topic", "describe", "life")
    topic_id = quire.json("topic", "describe", "life")["topic_id"]
    assert (
        described
        == f"""\
topic life: 3 partitions, 1 replica each
  id        {topic_id}
  settings  flush=os
            retention_ms=3600000 (1 h)

partition  leader  epoch  replicas  in sync  earliest  latest
        0       1      0  1         1               0       0
        1       1      0  1         1               0       0
        2       1      0  1         1               0       0
"""
    )
    assert quire.out("topic", "alter", "life", "-n", 4, "-c", "min_isr=1", "--unset", "flush") == (
        "topic life: 4 partitions, 1 replica each; min_isr=1, retention_ms=3600000\n"
    )
    assert quire.out("topic", "delete", "life", "--yes") == "deleted topic life\n"
    assert "there is no topic 'life'" in quire.refused("topic", "describe", "life")


def test_topics_for_programs(quire: Command, topic: str) -> None:
    [listed] = [each for each in quire.json("topic", "list") if each["name"] == topic]
    assert (listed["partitions"], listed["replication_factor"], listed["config"]) == (1, 1, {})
    described = quire.json("topic", "describe", topic)
    assert described["topic_id"] == listed["topic_id"]
    assert described["partitions"] == [
        {
            "partition": 0,
            "leader": 1,
            "leader_epoch": 0,
            "replicas": [1],
            "isr": [1],
            "target": None,
            "original": None,
            "cancelled": False,
            "earliest": 0,
            "latest": 0,
            "followers": [],
        }
    ]


def test_moves_and_drains_that_make_no_sense(quire: Command, topic: str) -> None:
    for arguments, expected in (
        (("cluster", "drain", "nosuch"), "there is no broker 'nosuch'; there are n1 (1)"),
        (("cluster", "drain", "n1"), "no broker could take "),
        (("cluster", "drain", "n1", "--undo", "--leaders"), "leave out --leaders"),
        (("cluster", "--json", "drain", "n1"), "give --json behind 'drain'"),
        (("cluster", "unregister", "1"), "n1 (broker 1) is running, and would register again; stop it first"),
        (("topic", "move", topic, 0), "give --replicas with the brokers that are to have it, or --cancel"),
        (("topic", "move", topic, 0, "--cancel", "-r", "n1"), "give --replicas"),
        (("topic", "move", topic, 0, "-r", "n1,n2"), "there is no broker 'n2'; there are n1 (1)"),
        (("topic", "move", topic, 9, "-r", "n1"), "has no partition 9; it has 1, from 0 on"),
        (("topic", "move", topic, 0, "--cancel"), "NO_REASSIGNMENT_IN_PROGRESS"),
        (("topic", "move", "nosuch", 0, "-r", "n1"), "there is no topic 'nosuch'"),
    ):
        assert expected in quire.refused(*arguments)
    assert quire.out("topic", "move", topic, 0, "-r", "n1") == f"{topic}/0 is at 1\n"
    assert quire.out("cluster", "drain", "1", "--undo") == "n1 (broker 1) was not being drained\n"


def test_topic_is_deleted_only_if_it_is_meant(quire: Command, topic: str) -> None:
    assert "--yes means it" in quire.refused("topic", "delete", topic)
    with Terminal([QUIRE, "topic", "delete", topic], quire.environ) as terminal:
        terminal.until(rf"Delete topic {topic} \(1 partition, 1 replica each\) with all its messages\? \[y/N\]: ")
        terminal.type("n\n")
        assert terminal.ended() == 1
    quire.out("topic", "describe", topic)
    with Terminal([QUIRE, "topic", "delete", topic], quire.environ) as terminal:
        terminal.until(r"\[y/N\]: ")
        terminal.type("y\n")
        assert terminal.ended() == 0
    assert "there is no topic" in quire.refused("topic", "describe", topic)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["create", "a b"], "'a b' cannot be a topic's name"),
        (["create", "x", "-r", "2"], "(NOT_ENOUGH_BROKERS)"),
        (["create", "x", "-c", "colour=red"], "there is no topic setting 'colour'; there are"),
        (["create", "x", "-c", "min_isr"], "--config 'min_isr' is not NAME=VALUE"),
        (["create", "x", "-c", "flush=os", "-c", "flush=fsync"], "--config flush is there more than once"),
        (["describe", NOBODY], "there is no topic 'nosuch'; make it with 'quire topic create nosuch'"),
        (["alter", NOBODY], "nothing is to be changed"),
        (["alter", NOBODY, "-c", "flush=os"], "(UNKNOWN_TOPIC)"),
        (["delete", NOBODY, "--yes"], "(UNKNOWN_TOPIC)"),
    ],
)
def test_topic_refusals(quire: Command, arguments: list[str], complaint: str) -> None:
    assert complaint in quire.refused("topic", *arguments)


def test_topic_that_is_there_already(quire: Command, topic: str) -> None:
    assert "(TOPIC_ALREADY_EXISTS)" in quire.refused("topic", "create", topic)


# --- produce and consume -------------------------------------------------------------------------------------------


def test_line_goes_in_and_comes_out(quire: Command, topic: str) -> None:
    done = quire.run("produce", topic, "--key", "k", input=b"hello\n")
    assert done.stdout == b""
    assert done.stderr == f"1 message stored in {topic}: partition 0, offset 0; on 1 replica, fsynced\n"
    with quire.start("consume", topic, "--from", "earliest", "--max", 1) as consumer:
        assert consumer.communicate(timeout=WAIT_S_MAX) == (b"hello\n", b"")
        assert consumer.returncode == 0


def test_every_byte_goes_through_a_pipe(quire: Command, topic: str) -> None:
    lines = [b"", b"\x00\xff\xfe", "é\u2028".encode(), b"\x1b[2J", b"x" * 100_000, b"\r"]
    quire.run("produce", topic, "-q", input=b"\n".join(lines))
    assert quire.run("consume", topic, "-e").stdout == b"".join(line + b"\n" for line in lines)


def test_keys_headers_and_formats(quire: Command, topic: str) -> None:
    produced(quire, topic, "a=1", "b=", arguments=("-K", "=", "-Z", "-H", "source=web", "-H", "n=1"))
    assert quire.out("consume", topic, "-e", "-f", r"%t/%p@%o %k=%s (%K,%S) [%h]\n", "--null", "NULL") == (
        f"{topic}/0@0 a=1 (1,1) [source=web,n=1]\n{topic}/0@1 b=NULL (1,-1) [source=web,n=1]\n"
    )


def test_json_there_and_back(quire: Command, new_topic: Callable[..., str]) -> None:
    source, copy = new_topic("-n", 2), new_topic("-n", 2)
    messages = [
        {"value": "plain"},
        {"value": {"id": 7}, "key": "k", "headers": {"a": "1"}},
        {"value": None, "key": {"base64": "/w=="}, "headers": [["a", None], ["a", {"base64": "AA=="}]]},
        {"value": "", "partition": 1, "timestamp_ms": 1_700_000_000_000},
    ]
    produced(quire, source, *map(json.dumps, messages), arguments=("--json", "--keep"))
    first = quire.run("consume", source, "-e", "--json").stdout
    quire.run("produce", copy, "--json", "--keep", "-q", input=first)
    second = quire.run("consume", copy, "-e", "--json").stdout
    assert sorted(first.replace(source.encode(), b"").splitlines()) == sorted(
        second.replace(copy.encode(), b"").splitlines()
    )
    read = [json.loads(line) for line in first.splitlines()]
    assert {json.dumps(each["value"]) for each in read} == {'"plain"', '"{\\"id\\":7}"', "null", '""'}
    [kept] = [each for each in read if each["value"] == ""]
    assert (kept["partition"], kept["timestamp_ms"]) == (1, 1_700_000_000_000)


def test_files_by_lines_and_whole(quire: Command, topic: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1\n2\n")
    (tmp_path / "b").write_bytes(b"3\n")
    quire.run("produce", topic, tmp_path / "a", "-", tmp_path / "b", "-q", input=b"stdin\n")
    assert quire.out("consume", topic, "-e") == "1\n2\nstdin\n3\n"
    quire.run("produce", topic, "--whole", tmp_path / "a", tmp_path / "b", "-q")
    assert quire.out("consume", topic, "-e", "--from", "-2") == "1\n2\n\n3\n\n"


def test_partition_acks_and_compression(quire: Command, new_topic: Callable[..., str]) -> None:
    topic = new_topic("-n", 3)
    for n, (acks, codec) in enumerate([("all", "zstd"), ("leader", "lz4"), ("none", "gzip"), ("all", "snappy")]):
        done = quire.run("produce", topic, "-p", 2, "--acks", acks, "-z", codec, input=b"%d %s\n" % (n, b"x" * 500))
        said = done.stderr
        assert ("nobody" in said or "waits for nothing" in said) == (acks == "none")
    out = quire.out("consume", topic, "-p", 2, "--from", "earliest", "--max", 4)
    assert [line[0] for line in out.splitlines()] == list("0123")
    assert quire.out("consume", topic, "-p", 0, "-p", 1, "-e") == ""


def test_report_says_where_each_message_is(quire: Command, topic: str) -> None:
    done = quire.run("produce", topic, "--report", input=b"a\nb\n")
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(each["topic"], each["partition"], each["offset"]) for each in reports] == [(topic, 0, 0), (topic, 0, 1)]
    assert all(each["fsynced"] and each["replicas"] == 1 and not each["duplicate"] for each in reports)


def test_nothing_in_nothing_out(quire: Command, topic: str) -> None:
    assert quire.run("produce", topic).stderr == f"0 messages stored in {topic}\n"
    assert quire.out("consume", topic, "-e") == ""
    assert quire.out("consume", topic, "-e", "--from", "latest") == ""


def test_summary_of_many(quire: Command, new_topic: Callable[..., str]) -> None:
    topic = new_topic("-n", 4)
    done = quire.run("produce", topic, "-K", "=", input=b"".join(b"%d=v\n" % n for n in range(2_000)))
    assert done.stderr == f"2,000 messages stored in {topic}: 4 partitions; on 1 replica, fsynced\n"
    assert len(quire.out("consume", topic, "-e").splitlines()) == 2_000


@pytest.mark.parametrize(
    ("place", "values"),
    [
        ("earliest", "012345"),
        ("3", "345"),
        ("-2", "45"),
        ("-100", "012345"),
        ("2023-11-14T22:13:23", "345"),
        ("@1700000005000", "5"),
        ("1m", ""),
        ("latest", ""),
    ],
)
def test_where_to_begin(quire: Command, dated: str, place: str, values: str) -> None:
    assert "".join(quire.out("consume", dated, "-e", "--from", place).split()) == values


@pytest.fixture(scope="module")
def dated(quire: Command) -> str:
    """A topic with a message a second, long ago."""
    quire.out("topic", "create", "dated", "-c", "retention_ms=-1")
    lines = [json.dumps({"value": str(n), "timestamp_ms": 1_700_000_000_000 + n * 1_000}) for n in range(6)]
    produced(quire, "dated", *lines, arguments=("--json", "--keep"))
    return "dated"


def test_follows_what_comes_and_stops_on_ctrl_c(quire: Command, topic: str) -> None:
    with quire.start("consume", topic, "--from", "earliest") as consumer:
        assert consumer.stdout is not None
        assert consumer.stderr is not None
        for line in ("one", "two"):
            produced(quire, topic, line)
            assert consumer.stdout.readline() == f"{line}\n".encode()
        consumer.send_signal(signal.SIGINT)
        assert consumer.wait(timeout=WAIT_S_MAX) == 130
        assert consumer.stderr.read() == b""


def test_several_topics(quire: Command, new_topic: Callable[..., str]) -> None:
    first, second = new_topic(), new_topic()
    produced(quire, first, "1")
    produced(quire, second, "2")
    out = quire.out("consume", first, second, "-e", "-f", r"%t %s\n")
    assert sorted(out.splitlines()) == sorted([f"{first} 1", f"{second} 2"])


def test_lines_are_sent_as_they_come(quire: Command, topic: str) -> None:
    """The producer's input does not end, and the consumer has the message all the same."""
    with quire.start("produce", topic, stdin=subprocess.PIPE) as producer:
        assert producer.stdin is not None
        assert producer.stderr is not None
        producer.stdin.write(b"early\n")
        producer.stdin.flush()
        assert quire.out("consume", topic, "--from", "earliest", "--max", 1) == "early\n"
        producer.send_signal(signal.SIGINT)
        assert producer.wait(timeout=WAIT_S_MAX) == 130
        assert producer.stderr.read().decode().startswith("1 message stored in ")


def test_reader_that_leaves_is_no_failure(quire: Command, topic: str) -> None:
    produced(quire, topic, *map(str, range(1_000)))
    with quire.start("consume", topic, "--from", "earliest") as consumer:
        assert consumer.stdout is not None
        assert consumer.stderr is not None
        assert consumer.stdout.readline() == b"0\n"
        consumer.stdout.close()
        produced(quire, topic, *map(str, range(100_000)))
        assert consumer.wait(timeout=WAIT_S_MAX) == 141
        assert consumer.stderr.read() == b""


def test_what_cannot_be_sent_is_said_with_what_was(quire: Command, topic: str) -> None:
    done = quire.run("produce", topic, "-K", "=", input=b"k=v\noops\nk=never\n", code=1)
    assert done.stderr == (
        f"1 message stored in {topic}: partition 0, offset 0; on 1 replica, fsynced\n"
        "quire produce: standard input, line 2: there is no '=' behind a key (INVALID_ARGUMENT)\n"
    )
    assert quire.out("consume", topic, "-e") == "v\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([NOBODY], "there is no topic 'nosuch'; make it with 'quire topic create nosuch'"),
        (["TOPIC", "-p", "7"], "7"),
        (["TOPIC", "/no/such/file"], "/no/such/file cannot be read: No such file or directory"),
        (["TOPIC", "/"], "/ cannot be read: Is a directory"),
        (["TOPIC", "--whole"], "--whole is for FILEs"),
        (["TOPIC", "--keep"], "--keep is for --json"),
        (["TOPIC", "--json", "-Z"], "--json says by itself"),
        (["TOPIC", "-k", "a", "-K", "="], "give one"),
        (["TOPIC", "-H", "x"], "--header 'x' is not NAME=VALUE"),
        (["TOPIC", "-K", "\\q"], "--key-separator '\\\\q': it has '\\q'"),
    ],
)
def test_produce_refusals(quire: Command, topic: str, arguments: list[str], complaint: str) -> None:
    given = [topic if each == "TOPIC" else each for each in arguments]
    assert complaint in quire.refused("produce", *given, input=b"x\n")


def test_message_that_is_too_large(quire: Command, new_topic: Callable[..., str]) -> None:
    topic = new_topic("-c", "message_bytes_max=2000")
    said = quire.refused("produce", topic, input=b"x" * 4_000)
    assert re.search(r"\((BATCH|MESSAGE)_TOO_LARGE\)$", said.rstrip()) or "too large" in said


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([NOBODY], "there is no topic 'nosuch'"),
        ([NOBODY, "-e"], "there is no topic 'nosuch'"),
        (["TOPIC", "-p", "7"], "7"),
        (["TOPIC", "--from", "soon"], "--from 'soon' is no place: there are earliest, latest"),
        (["TOPIC", "--from", "1000"], "(OFFSET_OUT_OF_RANGE)"),
        (["TOPIC", "--json", "-f", "%s"], "--json and --format say different things"),
        (["TOPIC", "-f", "%q"], "--format '%q': it has '%q'; there are %s value"),
    ],
)
def test_consume_refusals(quire: Command, topic: str, arguments: list[str], complaint: str) -> None:
    given = [topic if each == "TOPIC" else each for each in arguments]
    assert complaint in quire.refused("consume", *given)


# --- offsets, cluster, bench ---------------------------------------------------------------------------------------


def test_offsets(quire: Command, dated: str) -> None:
    assert (
        quire.out("offsets", dated) == "partition  earliest  latest  between\n        0         0       6        6\n"
    )
    assert quire.out("offsets", dated, "--at", "2023-11-14T22:13:23") == (
        "partition  earliest  latest  between  at\n        0         0       6        6   3\n"
    )
    assert quire.json("offsets", dated) == [{"partition": 0, "earliest": 0, "latest": 6}]
    assert quire.json("offsets", dated, "--at", "1m") == [{"partition": 0, "earliest": 0, "latest": 6, "at": None}]
    assert "none so late" in quire.out("offsets", dated, "--at", "1m")
    assert "--at 'x' is no place" in quire.refused("offsets", dated, "--at", "x")
    assert "(UNKNOWN_TOPIC)" in quire.refused("offsets", NOBODY)


def test_cluster_that_is_well(quire: Command, topic: str) -> None:
    said = quire.out("cluster")
    described = quire.json("cluster")
    [broker] = described["brokers"]
    address = quire.up.bootstrap.replace("localhost", "127.0.0.1")
    assert re.match(r"cluster up-[0-9a-f]{12}: 1 broker, \d+ topics?, \d+ partitions?\n\nbroker  node  rack  ", said)
    assert re.search(rf"^ +1  n1    n1    {address}  active +\d+ +\d+ +{broker['broker_epoch']}$", said, re.MULTILINE)
    assert re.search(r"^n1 +127\.0\.0\.1:\d+  leader +0$", said, re.MULTILINE)
    assert said.endswith("\nEvery partition has a leader, and all its replicas are in sync.\n")
    assert max(map(len, said.splitlines())) <= 80
    assert (described["leaderless"], described["under_replicated"], described["troubled"]) == (0, 0, [])
    assert [each["member_id"] for each in described["quorum"]["members"]] == ["n1"]


def test_cluster_with_a_broker_that_does_not_answer(tmp_path: Path) -> None:
    with running_up(tmp_path / "data", "--controller-lease-ms=1000", "--broker-heartbeat-ms=100", nodes=3) as up:
        # By brokers that run: of those that are named any may be asked.
        quire = Command(up, bootstrap=",".join(up.bootstrap.split(",")[:2]))
        assert quire.out("topic", "create", "orders", "-n", 3) == "made topic orders: 3 partitions, 3 replicas each\n"
        paused = up.pid("broker", "n3")
        os.kill(paused, signal.SIGSTOP)
        said = _until(lambda: quire.out("cluster"), "not in sync: 3")
        assert re.search(r"^ +3  n3    n3    127\.0\.0\.1:\d+  fenced +0 ", said, re.MULTILINE)
        assert "\n3 partitions with replicas that are not in sync:\n" in said
        assert len(re.findall(r"^orders +\d +[12] +\d+  [123 ]+  1 2 +not in sync: 3$", said, re.MULTILINE)) == 3
        assert quire.out("topic", "describe", "orders").count("not in sync: 3") == 3
        stored = quire.run("produce", "orders", input=b"x\n").stderr
        assert stored.endswith("; on 2 replicas, fsynced\n")
        os.kill(paused, signal.SIGCONT)
        _until(lambda: quire.out("cluster"), "all its replicas are in sync")


def test_cluster_without_a_majority_shows_who_is_missing(tmp_path: Path) -> None:
    with running_up(tmp_path / "data", nodes=3) as up:
        # Of the three brokers any may be asked; each gets to the one controller that answers.
        environ = Command(up).environ

        def said() -> str:
            return run_here(["cluster"], input=b"", environ=environ).stdout.decode()

        paused = [up.pid("controller", node) for node in ("n2", "n3")]
        for pid in paused:
            os.kill(pid, signal.SIGSTOP)
        for node in ("n2", "n3"):  # n1 may find out about one of them before it does about the other
            shown = _until_matches(said, rf"^{node} +127\.0\.0\.1:\d+ +- +-  not reached by n1")
        assert re.match(r"cluster up-[0-9a-f]{12}, as controller n1 sees it:\n\ncontroller ", shown)
        done = run_here(["cluster", "--json"], input=b"", environ=environ)
        assert done.code == 1
        assert json.loads(done.stdout)["quorum"]["member_id"] == "n1"
        assert done.stderr.count("\n") == 1
        for pid in paused:
            os.kill(pid, signal.SIGCONT)
        _until(said, "all its replicas are in sync")


def _until(say: Callable[[], str], wanted: str) -> str:
    return _until_matches(say, re.escape(wanted))


def _until_matches(say: Callable[[], str], wanted: str) -> str:
    deadline = time.monotonic() + 2 * WAIT_S_MAX
    while not re.search(wanted, said := say(), re.MULTILINE):
        assert time.monotonic() < deadline, said
    return said


def test_bench(quire: Command) -> None:
    said = quire.out("bench", "--seconds", 0.2, "--size", 50, "-n", 2)
    assert said.startswith("messages of 50 bytes, 2 partitions, 1 replica, acks=all, 0.2 s each\n\n")
    phases = ["produce, one at a time", "produce, send()", "produce, send_many()", "consume", "end to end"]
    assert [line.partition("  ")[0] for line in said.splitlines()[3:]] == phases
    measured = quire.json("bench", "--seconds", 0.2, "--acks", "leader")
    assert all(each["messages"] > 0 and each["messages_per_second"] > 0 for each in measured)
    assert measured[0]["latencies_ms"]["p50"] <= measured[0]["latencies_ms"]["max"]
    assert not [each for each in quire.json("topic", "list") if each["name"].startswith("quire-bench-")]


# --- on a terminal -------------------------------------------------------------------------------------------------


# --- verify --------------------------------------------------------------------------------------------------------


def test_verify_judges_what_was_sent_and_read(quire: Command, topic: str) -> None:
    produced(quire, topic, "a", "b")
    read = [json.loads(line) for line in quire.out("consume", topic, "-e", "--json").splitlines()]
    offsets = [each["offset"] for each in read]
    lines: list[dict[str, Any]] = [
        {"format": "quire-history", "version": 1},
        {"time": 1, "process": "p", "type": "invoke", "op": "send", "topic": topic, "values": ["a", "b"]},
        {**_line(2, "p", "send", topic), "values": ["a", "b"], "offsets": offsets},
        {
            **_line(3, "full", "read", topic),
            "values": [each["value"] for each in read],
            "offsets": offsets,
            "from": 0,
        },
    ]
    assert quire.run("verify", "-", input=_history(lines)).stderr == ""
    lines[-1] |= {"values": ["b"], "offsets": offsets[1:]}
    done = quire.run("verify", "-", input=_history(lines), code=1)
    assert b"lost" in done.stdout
    done = quire.run("verify", "-", input=b"no history\n", code=2)
    assert "standard input" in done.stderr


def _line(time: int, process: str, op: str, topic: str) -> dict[str, Any]:
    return {"time": time, "process": process, "type": "ok", "op": op, "topic": topic, "partition": 0}


def _history(lines: list[dict[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(line)}\n" for line in lines).encode()


# --- all verbs -----------------------------------------------------------------------------------------------------


def test_terminal_is_safe_from_messages(quire: Command, topic: str) -> None:
    quire.run("produce", topic, "-q", input=b"\x1b[2J\x07evil\n")
    with Terminal([QUIRE, "consume", topic, "-e"], quire.environ) as terminal:
        assert terminal.ended() == 0
    assert terminal.output == "\\x1b[2J\\x07evil\r\n"


def test_terminal_is_told_what_is_awaited(quire: Command, topic: str) -> None:
    with Terminal([QUIRE, "consume", topic], quire.environ) as terminal:
        terminal.until(r"Waiting for new messages; --from earliest shows those that are there\.\r\n")
        produced(quire, topic, "here")
        terminal.until(r"here\r\n")
        terminal.type("\x03")
        assert terminal.ended() == 130


def test_lines_are_typed(quire: Command, topic: str) -> None:
    with Terminal([QUIRE, "produce", topic], quire.environ) as terminal:
        terminal.until(r"One message a line; Ctrl-D ends\.\r\n")
        terminal.type("typed\n\x04")
        terminal.until(r"1 message stored in ")
        assert terminal.ended() == 0
    assert quire.out("consume", topic, "-e") == "typed\n"


def test_bar_shows_how_far_a_file_is(quire: Command, topic: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"line\n" * 20_000)
    with Terminal([QUIRE, "produce", topic, str(tmp_path / "lines")], quire.environ) as terminal:
        terminal.until(r"━.*KiB.* stored")
        terminal.until(r"20,000 messages stored in ")
        assert terminal.ended() == 0


# --- nobody there --------------------------------------------------------------------------------------------------

VERBS: Final = [
    ["topic", "list"],
    ["topic", "create", "x"],
    ["topic", "describe", "x"],
    ["topic", "alter", "x", "-n", "2"],
    ["topic", "delete", "x", "-y"],
    ["produce", "x"],
    ["consume", "x"],
    ["consume", "x", "-e"],
    ["offsets", "x"],
    ["cluster"],
    ["bench"],
]


@pytest.mark.parametrize("arguments", VERBS, ids=" ".join)
def test_nobody_there(arguments: list[str]) -> None:
    address = f"localhost:{free_ports(1)[0]}"
    done = run_here([*arguments, "-b", address], input=b"", environ=environment())
    assert (done.code, done.stdout) == (1, b"")
    assert done.stderr == (
        f"quire: nothing answers at {address} ({address}: Connection refused); "
        "is a broker running there? (UNAVAILABLE)\n"
    )
