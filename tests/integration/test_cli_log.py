"""`quire log` as its users meet it: the installed script on real files, sound and damaged."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from quire.disk.os_disk import OsDisk
from quire.disk.read_only_disk import ReadOnlyDisk
from quire.records import BatchBuilder, Codec, Lane, encode_columns
from quire_broker.cli.log_picture import steadily, take
from quire_broker.cli.log_stat import stat
from quire_broker.cli.log_verify import verify_steadily
from quire_broker.log.checkpoint import Checkpoint, Cut
from quire_broker.log.config import LogConfig
from quire_broker.log.log import Log

QUIRE: Final = Path(sys.executable).parent / "quire"
NOW_MS: Final = 1_700_000_000_000
BATCHES: Final = 64
CONFIG: Final = LogConfig(segment_bytes=20 * 138, index_interval_bytes=512, checkpoint_bytes=1_500)
SEGMENTS: Final = [0, 40, 80, 120]
"""Of 20 batches each, but for the last one, which has 4."""
VERBS: Final = ("stat", "dump", "verify")


def batch(n: int) -> bytes:
    """Two records; every other batch is of idempotent producer 7."""
    return encode_columns(
        [b"value-%02d " % n * 5, b"\xff\x00\x1b[2J"],
        keys=[b"key-%02d" % n, b"second"],
        timestamp_ms=NOW_MS + n * 1000,
        producer_id=7 if n % 2 else -1,
        producer_epoch=0 if n % 2 else -1,
        base_sequence=n - 1 if n % 2 else -1,
    )


def append(log: Log, first: int, end: int) -> None:
    for n in range(first, end):
        log.append([batch(n)], epoch=log.latest_epoch, now_ms=NOW_MS + n)


def open_log(directory: Path) -> Log:
    return Log.open(OsDisk(), str(directory), CONFIG, now_ms=NOW_MS)


def write_log(directory: Path) -> None:
    """Offsets 0 to 127, leader epoch 1 up to 63 and then 4, cleanly closed."""
    log = open_log(directory)
    log.begin_epoch(1)
    for first in range(0, BATCHES, 4):
        if first == 32:
            log.begin_epoch(4)
        append(log, first, first + 4)
        log.sync()
    log.close()


@pytest.fixture(scope="module")
def sound_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sound") / "log"
    write_log(directory)
    return directory


@pytest.fixture
def log(sound_log: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(sound_log, tmp_path / "log"))


def run(*arguments: object, columns: int = 100, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [QUIRE, "log", *map(str, arguments)],
        env={**os.environ, "COLUMNS": str(columns), **environment},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        timeout=60,
    )


def run_json(*arguments: object, code: int = 0) -> Any:
    done = run(*arguments, "--json")
    assert (done.returncode, done.stderr) == (code, "")
    return json.loads(done.stdout)


def verified(log: Path, *, code: int) -> dict[str, Any]:
    document = run_json("verify", log, code=code)
    [verdict] = document["logs"]
    assert document["sound"] is verdict["sound"] is (code == 0)
    assert isinstance(verdict, dict)
    return verdict


def only_damage(log: Path) -> dict[str, Any]:
    [damage] = verified(log, code=1)["damage"]
    assert isinstance(damage, dict)
    return damage


def segment(log: Path, base: int, suffix: str = ".log") -> Path:
    return log / f"{base:020d}{suffix}"


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)


def contents(directory: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


# -- a sound log ---------------------------------------------------------------------------------------------------


def test_stat_tells_what_the_log_is(sound_log: Path) -> None:
    [body] = run_json("stat", sound_log)["logs"]
    segments = body.pop("segments")
    assert body == {
        "directory": str(sound_log),
        "start_offset": 0,
        "end_offset": 128,
        "recovery_point": 128,
        "synced_mark": 128,
        "size_bytes": BATCHES * len(batch(10)),
        "leader_epochs": [{"epoch": 1, "start_offset": 0}, {"epoch": 4, "start_offset": 64}],
        "producers": 1,
        "quarantined": [],
        "notes": [],
    }
    assert [each["base_offset"] for each in segments] == SEGMENTS
    assert [each["end_offset"] for each in segments] == [*SEGMENTS[1:], 128]
    assert [each["sealed"] for each in segments] == [True] * 3 + [False]
    assert segments[0]["max_timestamp"] == "2023-11-14T22:13:39.000Z"
    assert segments[-1]["max_timestamp"] == "2023-11-14T22:14:23.000Z"
    assert segments[0]["path"] == str(segment(sound_log, 0))


@pytest.mark.parametrize("columns", [100, 80])
def test_stat_prints_tables(sound_log: Path, columns: int) -> None:
    done = run("stat", sound_log, columns=columns)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{sound_log}\n")
    assert re.search(r"^end offset +128 *$", done.stdout, re.MULTILINE)
    assert re.search(r"^leader epochs +1 from offset 0, 4 from offset 64 *$", done.stdout, re.MULTILINE)
    assert re.search(r"^ +0 +40 +[\d,]+ +2023-11-14T22:13:39\.000Z +sealed *$", done.stdout, re.MULTILINE)
    assert max(map(len, done.stdout.splitlines()[1:])) <= columns


def test_stat_does_not_pretend_to_know_what_only_the_checkpoint_knew(log: Path) -> None:
    (log / "checkpoint").unlink()
    [stat] = run_json("stat", log)["logs"]
    assert [stat[name] for name in ("start_offset", "leader_epochs", "quarantined", "recovery_point")] == [None] * 4
    assert run("stat", log).stdout.count("unknown") == 4


def test_stat_reads_seals_and_tail_only(sound_log: Path) -> None:
    read: dict[str, int] = {}

    class CountingDisk(ReadOnlyDisk):
        def open(self, path: str, *, create: bool = False) -> Any:
            file = super().open(path)
            whole, name = file.read, Path(path).name

            def counted(position: int, size: int) -> bytes:
                data = whole(position, size)
                read[name] = read.get(name, 0) + len(data)
                return data

            file.read = counted  # type: ignore[method-assign]  # counts what passes through
            return file

    stat(take(CountingDisk(), str(sound_log)))
    assert [name for name in read if name.endswith(".log")] == [segment(sound_log, 120).name]


def test_verify_of_a_sound_log(sound_log: Path) -> None:
    verdict = verified(sound_log, code=0)
    assert (verdict["damage"], verdict["notes"]) == ([], [])
    assert sum(each["batches"] for each in verdict["segments"]) == BATCHES
    assert sum(each["records"] for each in verdict["segments"]) == 2 * BATCHES
    done = run("verify", sound_log)
    assert (done.returncode, done.stderr) == (0, "")
    assert "sound · 64 good batches, 128 records" in done.stdout


def test_dump_prints_a_line_a_batch(sound_log: Path) -> None:
    done = run("dump", sound_log, "--from", 39, "--max", 3)
    assert done.returncode == 0
    assert done.stderr == f"{sound_log}: more follows, --from 44\n"
    lines = done.stdout.splitlines()
    assert lines[0] == str(segment(sound_log, 0))
    assert re.fullmatch(
        rf" +38 +2 +{19 * len(batch(10))} +{len(batch(10))}  none +1  2023-11-14T22:13:39\.000Z  7/0 seq 18", lines[2]
    )
    assert lines[3] == str(segment(sound_log, 40))
    assert [line.split()[0] for line in (lines[5], lines[6])] == ["40", "42"]
    assert len(lines) == 7


def test_dump_of_records_prints_bytes_safely(sound_log: Path) -> None:
    done = run("dump", sound_log, "--from", 41, "--max", 2, "--records")
    assert done.returncode == 0
    assert '41  2023-11-14T22:13:40.000Z  "second": 0xff001b5b324a\n' in done.stdout
    assert '42  2023-11-14T22:13:41.000Z  "key-21": "value-21 value-21 ' in done.stdout
    assert "\x1b" not in done.stdout
    assert done.stderr == f"{sound_log}: more follows, --from 43\n"


def test_dump_as_json_lines(sound_log: Path) -> None:
    done = run("dump", sound_log, "--from", 2, "--max", 2, "--records", "--json")
    header, first, second = map(json.loads, done.stdout.splitlines())
    assert header == {
        "type": "batch",
        "path": str(segment(sound_log, 0)),
        "position": len(batch(10)),
        "base_offset": 2,
        "end_offset": 4,
        "records": 2,
        "size_bytes": len(batch(10)),
        "leader_epoch": 1,
        "crc": int.from_bytes(batch(1)[17:21], "big"),
        "compression": "none",
        "lane": "normal",
        "flags": [],
        "base_timestamp_ms": NOW_MS + 1000,
        "max_timestamp_ms": NOW_MS + 1000,
        "producer_id": 7,
        "producer_epoch": 0,
        "base_sequence": 0,
    }
    assert first == {
        "type": "record",
        "offset": 2,
        "timestamp_ms": NOW_MS + 1000,
        "key": "key-01",
        "value": "value-01 " * 5,
        "headers": [],
    }
    assert (second["key"], second["value_base64"]) == ("second", "/wAbWzJK")


def test_dump_without_a_limit_goes_to_the_end(sound_log: Path) -> None:
    done = run("dump", sound_log, "--max", 0, "--json")
    assert [json.loads(line)["base_offset"] for line in done.stdout.splitlines()] == list(range(0, 128, 2))
    assert done.stderr == ""


def test_dump_past_the_end_says_so(sound_log: Path) -> None:
    done = run("dump", sound_log, "--from", 128)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"{sound_log}: nothing from offset 128 on\n"


def test_dump_shows_compression_lane_flags_and_headers(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    log.begin_epoch(0)
    builder = BatchBuilder()
    builder.append(None, b"a" * 500, [("trace\x07", b"\x01\xfe"), ("none", None)], NOW_MS)
    log.append([builder.build(codec=Codec.ZSTD, lane=Lane.HIGH, traced=True)], epoch=0, now_ms=NOW_MS)
    log.close()
    done = run("dump", tmp_path / "log", "--records")
    assert re.search(r" zstd +0 .* -  lane=high traced$", done.stdout, re.MULTILINE)
    assert done.stdout.endswith(f'null: "{"a" * 500}"  "trace\\u0007"=0x01fe  "none"=null\n')


# -- reading only --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_nothing_on_the_disk_changes(log: Path, verb: str) -> None:
    flip(segment(log, 40), 200)
    flip(segment(log, 80, ".timeindex"), 3)
    flip(log / "checkpoint", 60)
    with segment(log, 120).open("ab") as file:
        file.write(b"torn")
    (log / "checkpoint.tmp").write_bytes(b"left by a crash")
    segment(log, 0, ".log.deleted").write_bytes(b"left by a crash")
    for path in log.iterdir():
        path.chmod(0o444)
    log.chmod(0o555)
    before = contents(log)
    try:
        for options in ([], ["--json"]):
            assert run(verb, log, *options).returncode in (0, 1)
        assert contents(log) == before
    finally:
        log.chmod(0o755)


@pytest.mark.parametrize("verb", VERBS)
def test_works_while_a_broker_is_writing(tmp_path: Path, verb: str) -> None:
    log = open_log(tmp_path / "log")
    log.begin_epoch(1)
    append(log, 0, 30)
    log.sync()
    log.begin_epoch(2)
    append(log, 30, 50)  # neither synced nor in any checkpoint, and rolled without a seal
    done = run(verb, tmp_path / "log", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    log.sync()
    assert run(verb, tmp_path / "log").returncode == 0
    log.close()


def test_segment_that_a_broker_removes_meanwhile_is_no_error(log: Path) -> None:
    class Removing(ReadOnlyDisk):
        def names(self, directory: str) -> list[str]:
            names = super().names(directory)
            if segment(log, 0).exists():
                broker = open_log(log)
                broker.advance_start(40)
                broker.close()
            return names

    verdict = verify_steadily(Removing(), str(log), lambda _done, _total: None)
    assert (verdict.start_offset, verdict.damage) == (40, [])
    assert steadily(Removing(), str(log), stat).start_offset == 40


def test_leader_epoch_that_begins_meanwhile_is_known(tmp_path: Path) -> None:
    broker = open_log(tmp_path / "log")
    broker.begin_epoch(1)
    append(broker, 0, 3)
    broker.sync()

    class Electing(ReadOnlyDisk):
        def names(self, directory: str) -> list[str]:
            if broker.latest_epoch == 1:
                broker.begin_epoch(2)
                append(broker, 3, 5)
                broker.sync(checkpoint=True)
            return super().names(directory)

    verdict = verify_steadily(Electing(), str(tmp_path / "log"), lambda _done, _total: None)
    assert (verdict.damage, verdict.end_offset) == ([], 10)
    broker.close()


# -- damage --------------------------------------------------------------------------------------------------------

SIZE: Final = len(batch(10))
AT: Final = 5
"""Of the second segment the batch that is damaged."""


@pytest.mark.parametrize(
    ("byte", "reason"),
    [
        (SIZE - 3, r"batch at base offset 50 has CRC 0x\w{8}, its header says 0x\w{8}"),
        (7, "base offset is 114 where 50 belongs"),
        (15, "leader epoch is 65 where 1 belongs"),
        (10, r"batch of \d+ bytes is cut off after \d+|batch at base offset 50 has CRC .*"),
        (16, "batch has magic 66.*"),
    ],
    ids=["value", "base-offset", "epoch", "length", "magic"],
)
def test_flipped_byte_in_a_batch(log: Path, byte: int, reason: str) -> None:
    path = segment(log, 40)
    flip(path, AT * SIZE + byte)
    damage = only_damage(log)
    assert re.fullmatch(reason, damage.pop("reason"))
    assert "readers go on at 52" in damage.pop("advice")
    assert damage == {
        "kind": "batch",
        "path": str(path),
        "position": AT * SIZE,
        "end_position": (AT + 1) * SIZE,
        "first_offset": 50,
        "end_offset": 52,
        "quarantined": False,
    }
    done = run("verify", log)
    assert (done.returncode, done.stderr) == (1, "")
    assert "damage 1 of 1: a batch does not check" in done.stdout
    assert f"  file    {path}\n" in done.stdout
    assert f"  bytes   {AT * SIZE} to {(AT + 1) * SIZE - 1}\n  offsets 50–51\n" in done.stdout
    assert "DAMAGED in 1 place · 63 good batches" in done.stdout


def test_dump_goes_on_behind_damage(log: Path) -> None:
    flip(segment(log, 40), AT * SIZE + 100)
    done = run("dump", log, "--from", 48, "--max", 3)
    assert done.returncode == 1
    assert re.search(rf"^DAMAGED: offsets 50–51, bytes {AT * SIZE}–{(AT + 1) * SIZE - 1} of ", done.stdout, re.M)
    lines = [json.loads(line) for line in run("dump", log, "--from", 48, "--max", 3, "--json").stdout.splitlines()]
    assert [line["type"] for line in lines] == ["batch", "damage", "batch", "batch"]
    assert (lines[1]["first_offset"], lines[1]["end_offset"]) == (50, 52)


@pytest.mark.parametrize("whole", [True, False])
def test_truncated_sealed_segment(log: Path, whole: bool) -> None:
    path = segment(log, 40)
    size = 10 * SIZE if whole else 10 * SIZE + 30
    os.truncate(path, size)
    damage = only_damage(log)
    assert damage["kind"] == ("segment" if whole else "batch")
    assert (damage["path"], damage["first_offset"], damage["end_offset"]) == (str(path), 60, 80)
    assert damage["position"] == 10 * SIZE
    [body] = run_json("stat", log)["logs"]
    assert str(path) in body["notes"][0]


@pytest.mark.parametrize(("base", "end"), [(0, 40), (40, 80), (120, 128)])
def test_missing_segment(log: Path, base: int, end: int) -> None:
    segment(log, base).unlink()
    damage = only_damage(log)
    assert (damage["kind"], damage["path"]) == ("missing", str(log))
    assert (damage["first_offset"], damage["end_offset"]) == (base, end)
    assert run("dump", log, "--max", 0, "--json").returncode == 1
    [body] = run_json("stat", log)["logs"]
    assert any(f"offsets {base}–{end - 1} are missing" in note for note in body["notes"])


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("where", [0, 5, -1])
def test_damaged_index(log: Path, suffix: str, where: int) -> None:
    path = segment(log, 40, suffix)
    flip(path, where % path.stat().st_size)
    damage = only_damage(log)
    assert (damage["kind"], damage["path"]) == (suffix[1:], str(path))
    assert "rebuilt at the next opening" in damage["advice"]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("how", ["missing", "odd", "short"])
def test_index_that_is_not_whole(log: Path, suffix: str, how: str) -> None:
    path = segment(log, 40, suffix)
    if how == "missing":
        path.unlink()
    else:
        os.truncate(path, path.stat().st_size - (1 if how == "odd" else 8 if suffix == ".index" else 16))
    damages = verified(log, code=1)["damage"]
    assert str(path) in [damage["path"] for damage in damages]
    assert {damage["kind"] for damage in damages} == {suffix[1:]}


def test_index_that_lies_in_the_active_segment(log: Path) -> None:
    broker = open_log(log)
    append(broker, BATCHES, BATCHES + 8)
    broker.close()
    path = segment(log, 120, ".index")
    assert path.stat().st_size
    flip(path, 3)
    assert only_damage(log)["path"] == str(path)


def test_damaged_producer_snapshot(log: Path) -> None:
    path = sorted(log.glob("*.producers"))[-1]
    flip(path, path.stat().st_size - 1)
    damage = only_damage(log)
    assert (damage["kind"], damage["path"]) == ("producers", str(path))
    assert "rebuilt at the next opening" in damage["advice"]


def test_producer_snapshot_of_another_log(log: Path, tmp_path: Path) -> None:
    other = open_log(tmp_path / "other")
    other.begin_epoch(1)
    other.append(
        [encode_columns([b"x"] * 128, timestamp_ms=NOW_MS, producer_id=9, producer_epoch=3, base_sequence=0)],
        epoch=1,
        now_ms=NOW_MS,
    )
    other.close()
    path = log / f"{128:020d}.producers"
    shutil.copy(tmp_path / "other" / path.name, path)
    assert only_damage(log)["reason"] == (
        "it has producer 9 epoch 3 sequence 0 at offset 0, the log has producer -1 epoch -1 sequence -1"
    )


@pytest.mark.parametrize("lost", [True, False])
def test_damaged_checkpoint(log: Path, lost: bool) -> None:
    path = log / "checkpoint"
    if lost:
        path.unlink()
    else:
        flip(path, 60)
    damage = only_damage(log)
    assert (damage["kind"], damage["path"]) == ("checkpoint", str(path))
    [body] = run_json("stat", log)["logs"]
    assert (body["end_offset"], body["recovery_point"]) == (128, None)
    assert str(path) in body["notes"][0]
    assert "unknown" in run("stat", log).stdout


def test_several_kinds_of_damage_are_all_told(log: Path) -> None:
    flip(segment(log, 0), 100)
    flip(segment(log, 40), 7)
    flip(segment(log, 80, ".index"), 0)
    segment(log, 120).unlink()
    kinds = [damage["kind"] for damage in verified(log, code=1)["damage"]]
    assert kinds == ["batch", "batch", "index", "missing"]
    assert "damage 4 of 4: offsets are missing" in run("verify", log).stdout


def test_quarantined_range_is_still_damage(log: Path) -> None:
    flip(segment(log, 120), 100)
    os.truncate(log / "synced", 0)
    saved = Checkpoint.from_bytes((log / "checkpoint").read_bytes(), path="")
    (log / "checkpoint").write_bytes(Checkpoint(epochs=saved.epochs, recovery_point=80).to_bytes())
    open_log(log).close()
    assert only_damage(log)["quarantined"] is True
    done = run("verify", log)
    assert done.returncode == 1
    assert "(known to the broker)" in done.stdout
    assert re.search(r"^quarantined +offsets 120–121 *$", run("stat", log).stdout, re.MULTILINE)
    flip(segment(log, 120), 100)
    assert only_damage(log)["kind"] == "quarantined"


# -- what is no damage ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tail", [batch(64)[:40], batch(64)[:-1], b"\0" * 600], ids=["header", "cut", "blank"])
def test_torn_tail_is_a_note(log: Path, tail: bytes) -> None:
    path = segment(log, 120)
    with path.open("ab") as file:
        file.write(tail)
    verdict = verified(log, code=0)
    [note] = verdict["notes"]
    assert (note["kind"], note["path"], note["position"], note["offset"]) == ("torn_tail", str(path), 4 * SIZE, 128)
    assert run("verify", log).returncode == 0
    assert "note: torn tail" in run("verify", log).stdout
    assert "torn tail: offset 128 on" in run("dump", log, "--from", 124).stdout
    assert "torn tail" in run("stat", log).stdout


def test_synced_mark_that_is_not_whole_is_a_note(log: Path) -> None:
    flip(log / "synced", 3)
    [note] = verified(log, code=0)["notes"]
    assert (note["kind"], note["path"]) == ("synced_mark", str(log / "synced"))
    assert run_json("stat", log)["logs"][0]["synced_mark"] is None


def test_tail_that_was_acknowledged_is_no_torn_tail(log: Path) -> None:
    os.truncate(segment(log, 120), 4 * SIZE - 1)
    damage = only_damage(log)
    assert (damage["kind"], damage["first_offset"], damage["end_offset"]) == ("batch", 126, 128)


def test_truncation_cut_short_by_a_crash_is_a_note(log: Path) -> None:
    saved = Checkpoint.from_bytes((log / "checkpoint").read_bytes(), path="")
    cut = Checkpoint(recovery_point=60, epochs=saved.epochs[:1], cut=Cut(40, 10 * SIZE, 60))
    (log / "checkpoint").write_bytes(cut.to_bytes())
    verdict = verified(log, code=0)
    assert verdict["end_offset"] == 60
    assert [note["path"] for note in verdict["notes"]] == [str(segment(log, 80)), str(segment(log, 120))]
    assert run_json("stat", log)["logs"][0]["end_offset"] == 60


def test_removed_beginning_is_no_damage(log: Path) -> None:
    broker = open_log(log)
    broker.advance_start(50)
    broker.close()
    assert verified(log, code=0)["start_offset"] == 50
    assert run("dump", log, "--max", 1).stdout.splitlines()[2].split()[0] == "50"


def test_empty_log_is_sound(tmp_path: Path) -> None:
    open_log(tmp_path / "log").close()
    assert verified(tmp_path / "log", code=0)["segments"][0]["batches"] == 0
    for verb in VERBS:
        assert run(verb, tmp_path / "log").returncode == 0


# -- many logs, wrong use ------------------------------------------------------------------------------------------


def test_all_logs_below_a_directory(sound_log: Path, tmp_path: Path) -> None:
    logs = [tmp_path / "data" / "orders" / partition / "main" for partition in ("0", "1")]
    for each in logs:
        shutil.copytree(sound_log, each)
    flip(segment(logs[1], 40), 100)
    document = run_json("verify", tmp_path / "data", code=1)
    assert [(each["directory"], each["sound"]) for each in document["logs"]] == [
        (str(logs[0]), True),
        (str(logs[1]), False),
    ]
    for verb in VERBS:
        done = run(verb, f"{tmp_path}/data/")
        assert [line for line in done.stdout.splitlines() if line in map(str, logs)] == [
            str(each) for each in logs if verb != "dump"
        ]
    assert [each["end_offset"] for each in run_json("stat", tmp_path)["logs"]] == [128, 128]


def test_no_such_directory(tmp_path: Path) -> None:
    for verb in VERBS:
        done = run(verb, tmp_path / "nowhere")
        assert (done.returncode, done.stdout) == (2, "")
        assert (
            done.stderr == f"quire log: {tmp_path}/nowhere: no such directory; give that of a log, or one above it\n"
        )


def test_not_a_log(tmp_path: Path) -> None:
    done = run("verify", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"quire log: {tmp_path}: no log here or below; ")
    assert done.stderr.count("\n") == 1


def test_a_file_is_no_directory(sound_log: Path) -> None:
    done = run("stat", segment(sound_log, 0))
    assert (done.returncode, done.stdout) == (2, "")
    assert "not a directory; give the directory" in done.stderr


UNPRIVILEGED: Final = """
import contextlib, io, os
from quire_broker.cli.log import app
if os.geteuid() == 0:  # root may read everything; whom it becomes may not even read Python's modules
    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
        app(["stat", "/nowhere"])
    os.setuid(65534)
app(prog_name="quire log")
"""


@pytest.mark.parametrize("verb", VERBS)
def test_permission_denied(log: Path, verb: str) -> None:
    log.chmod(0)
    try:
        done = subprocess.run(
            [sys.executable, "-c", UNPRIVILEGED, verb, log], capture_output=True, text=True, check=False, timeout=60
        )
    finally:
        log.chmod(0o755)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(
        rf"quire log: cannot \w+ {log}: Permission denied; run this as the user that the log belongs to\n",
        done.stderr,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("stat",),
        ("dump", ".", "--from", "-1"),
        ("dump", ".", "--from", "x"),
        ("dump", ".", "--max", "-1"),
        ("verify", ".", "--records"),
        ("mend", "."),
    ],
)
def test_wrong_use_exits_2(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


def test_every_option_has_a_help_text() -> None:
    for verb in VERBS:
        text = run(verb, "--help").stdout
        for line in re.findall(r"^  (--\S+.*)$", text, re.MULTILINE):
            assert re.search(r"  +[A-Z]", line), line


def test_reader_that_leaves_is_no_failure(sound_log: Path) -> None:
    with subprocess.Popen(
        [QUIRE, "log", "dump", sound_log, "--max", "0", "--records", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) in (0, 141)


def test_output_survives_a_terminal_without_unicode(sound_log: Path, log: Path) -> None:
    flip(segment(log, 40), 100)
    done = run("verify", log, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (1, "")


# -- on a terminal -------------------------------------------------------------------------------------------------


def on_terminal(*arguments: object, columns: int) -> tuple[str, str]:
    """What goes to standard output and to standard error, each a terminal of its own."""
    ends = [pty.openpty(), pty.openpty()]
    process = subprocess.Popen(
        [QUIRE, "log", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=ends[0][1],
        stderr=ends[1][1],
        env={**os.environ, "COLUMNS": str(columns), "TERM": "xterm"},
    )
    for _, slave in ends:
        os.close(slave)
    texts = [_drain(master) for master, _ in ends]
    process.wait(timeout=60)
    return texts[0], texts[1]


def _drain(master: int) -> str:
    data = b""
    with open(master, "rb", buffering=0) as file:
        while True:
            try:
                chunk = file.read(65536)
            except OSError:  # Linux's way to say that the other end is closed
                chunk = b""
            if not chunk:
                return data.decode()
            data += chunk


def without_styles(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_progress_is_shown_on_a_terminal_and_only_there(sound_log: Path) -> None:
    out, error = on_terminal("verify", sound_log, columns=80)
    assert "checking" in error
    assert "checking" not in out
    assert "good batches" in out


def test_line_stays_one_on_a_terminal(sound_log: Path) -> None:
    out, _ = on_terminal("dump", sound_log, "--records", columns=70)
    lines = without_styles(out).splitlines()
    assert max(map(len, lines[1:])) == 70
    assert any(line.endswith("…") for line in lines)
    wide, _ = on_terminal("dump", sound_log, "--records", "--wide", columns=70)
    assert max(map(len, without_styles(wide).splitlines())) > 70
