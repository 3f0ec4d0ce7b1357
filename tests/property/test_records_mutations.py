"""A hundred thousand damaged and lying batches: each decodes or fails as it should, in bounded memory and time.

The run is a process of its own with little address space, so that a decoder that believes a length, or inflates a
bomb, dies there and not in the test run. It is seeded: the same mutations every time.

    python -m tests.property.test_records_mutations [count] [seed]
"""

from __future__ import annotations

import json
import random
import re
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from crc32c import crc32c

from quire.errors import ChecksumMismatchError, QuireError
from quire.records import (
    DEFAULT_LIMITS,
    HEADER_BYTES,
    Attributes,
    BatchHeader,
    Codec,
    Limits,
    Record,
    decode,
    pack_batch,
    parse_header,
)
from quire.records.compression import compress, decompress
from quire.records.header import CRC_FIELD, CRC_START, LENGTH_FIELD_END, pack_header
from quire.records.structure import check_records
from quire.records.varint import encode_varint
from tests.unit.records_bombs import BOMBS
from tests.unit.records_crafting import batch_around, rows
from tests.unit.records_oracle import DefaultRecordBatch

ROOT: Final = Path(__file__).resolve().parents[2]
COUNT: Final = 100_000
SEED: Final = 20_240_229
ADDRESS_SPACE_BYTES: Final = 512 << 20
"""Beyond what the process has when it starts: a few times what a batch may inflate to, far less than any bomb."""
DECODE_S_MAX: Final = 60.0
"""Of processor time, for one batch: several times what the worst of them takes."""

HOSTILE: Final[Sequence[bytes]] = [
    *map(encode_varint, (-1, -2, -64, -(2**31), -(2**63), 0, 1, 7, 63, 64, 300, 2**31 - 1, 2**31, 2**32, 2**53)),
    *(encode_varint(2**63 - less) for less in (1, 2, 33, 34, 62, 75, 100, 130, 200, 1000)),
    b"\x80\x00",  # zero, in more bytes than it needs
    b"\x81\x80\x80\x00",
    b"\xff" * 9 + b"\x01",
    b"\xff" * 9 + b"\x7f",
    b"\xff" * 10 + b"\x01",
    b"\x80" * 30,
    b"",
]

TOO_WIDE: Final = re.compile(rb"[\x80-\xff]{9}[\x02-\x7f]")
"""A number of more than 64 bits. We cut it to 64, as Kafka does; kafka-python, being Python, does not."""

Token = bytes | int
"""A record is spelled in these: numbers, and bytes as they are."""


@dataclass(frozen=True)
class Base:
    """A good batch, in parts that can be told to lie."""

    header: BatchHeader
    records: list[list[Token]]
    data: bytes

    @property
    def codec(self) -> Codec:
        return Codec(self.header.codec)


def spell(tokens: Sequence[Token]) -> bytes:
    return b"".join(encode_varint(token) if isinstance(token, int) else token for token in tokens)


def make_base(rng: random.Random, codec: Codec) -> Base:
    count = rng.choice((1, 2, 5, 20))
    records: list[list[Token]] = []
    for offset_delta in range(count):
        tokens: list[Token] = [0, rng.randrange(-1000, 1000), offset_delta]
        for content in (
            rng.choice((None, b"", b"key-%d" % rng.randrange(9))),
            rng.choice((None, b"", b"value " * rng.randrange(1, 30), rng.randbytes(20))),
        ):
            tokens += [-1] if content is None else [len(content), content]
        headers = rng.choice((0, 0, 1, 3))
        tokens.append(headers)
        for _ in range(headers):
            key = rng.choice(("", "k", "schlüssel")).encode()
            value = rng.choice((None, b"", b"header"))
            tokens += [len(key), key]
            tokens += [-1] if value is None else [len(value), value]
        records.append(tokens)
    gap = rng.choice((0, 0, 3))
    flags = rng.choice((0, 0, 0x08, 0x10, 0x1D00))
    header = BatchHeader(
        rng.choice((0, 1 << 40)), 0, 5, 2, 0, codec | flags, count - 1 + gap, 10**12, 10**12, 7, 0, 9, count
    )
    return Base(header, records, reassemble(header, records))


def reassemble(header: BatchHeader, records: Sequence[Sequence[Token]]) -> bytes:
    plain = b"".join(encode_varint(len(body)) + body for body in map(spell, records))
    return pack_batch(header, compress(Codec(header.codec), plain))


# --- mutations -----------------------------------------------------------------------------------------------------


def flip_bits(rng: random.Random, base: Base) -> bytes:
    data = bytearray(base.data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def lie_in_header(rng: random.Random, base: Base) -> bytes:
    def number(bits: int) -> int:
        return rng.choice((-(1 << bits - 1), -2, -1, 0, 1, 2, 30, 1000, 1 << bits - 2, (1 << bits - 1) - 1))

    header = parse_header(base.data)
    change = rng.choice(
        (
            {"record_count": header.record_count + rng.choice((-1, 1))},
            {"record_count": number(32)},
            {"last_offset_delta": number(32)},
            {"length": header.length + rng.choice((-1, 1, -50, 50))},
            {"length": number(32)},
            {"attributes": header.attributes ^ 1 << rng.randrange(15)},
            {"attributes": number(16)},
            {"base_timestamp_ms": number(64)},
            {"base_offset": number(64)},
            {"magic": rng.choice((0, 1, 3, -1))},
        )
    )
    return pack_header(header._replace(**change)) + base.data[HEADER_BYTES:]


def lie_in_record(rng: random.Random, base: Base) -> bytes:
    """A number in a record is another one, within a record and a stream that are otherwise whole."""
    records = [list(tokens) for tokens in base.records]
    tokens = rng.choice(records)
    numbers = [index for index, token in enumerate(tokens) if isinstance(token, int)]
    tokens[rng.choice(numbers)] = rng.choice(HOSTILE)
    return reassemble(base.header, records)


def lie_about_record_length(rng: random.Random, base: Base) -> bytes:
    bodies = list(map(spell, base.records))
    liar = rng.randrange(len(bodies))
    plain = b"".join(
        (rng.choice(HOSTILE) if index == liar else encode_varint(len(body))) + body
        for index, body in enumerate(bodies)
    )
    return pack_batch(base.header, compress(base.codec, plain))


def damage_plain(rng: random.Random, base: Base) -> bytes:
    """Bytes are wrong before they were compressed."""
    plain = bytearray(decompress(base.codec, base.data[HEADER_BYTES:], plain_bytes_max=1 << 20))
    for _ in range(rng.choice((1, 1, 3))):
        plain[rng.randrange(len(plain))] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    if rng.random() < 0.3:
        del plain[rng.randrange(len(plain)) :]
    return pack_batch(base.header, compress(base.codec, plain))


def splice_payload(rng: random.Random, base: Base) -> bytes:
    """Parts of the stored bytes are missing, doubled, or followed by others."""
    payload = bytearray(base.data[HEADER_BYTES:])
    start = rng.randrange(len(payload))
    end = rng.randrange(start, len(payload) + 1)
    action = rng.randrange(4)
    if action == 0:
        del payload[start:end]
    elif action == 1:
        payload[start:start] = payload[start:end]
    elif action == 2:
        payload += rng.randbytes(rng.choice((1, 4, 30)))
    else:
        payload[start:end] = rng.randbytes(end - start)
    return pack_batch(base.header, payload)


def bomb(rng: random.Random, base: Base) -> bytes:
    codec, payload = rng.choice(list(BOMBS.values()))
    return batch_around(payload, codec, record_count=base.header.record_count)


MUTATIONS: Final[Sequence[tuple[Callable[[random.Random, Base], bytes], int]]] = [
    (flip_bits, 250),
    (lie_in_header, 200),
    (lie_in_record, 250),
    (lie_about_record_length, 80),
    (damage_plain, 120),
    (splice_payload, 100),
    (bomb, 2),
]


# --- the run -------------------------------------------------------------------------------------------------------


@dataclass
class Report:
    """What came of it all; the other process sends it as JSON."""

    mutated: int = 0
    crc_repaired: int = 0
    survived: int = 0
    compared: int = 0
    decode_s_max: float = 0.0
    errors: Counter[str] = field(default_factory=Counter)
    survived_by_mutation: Counter[str] = field(default_factory=Counter)
    failed_by_mutation: Counter[str] = field(default_factory=Counter)


def good_crc(data: bytes) -> int:
    """The CRC of as many bytes as the batch says it has: it may lie about that."""
    length = int.from_bytes(data[8:LENGTH_FIELD_END], "big", signed=True)
    return crc32c(data[CRC_START : max(CRC_START, length + LENGTH_FIELD_END)])


def with_crc(data: bytes, crc: int) -> bytes:
    return data[:CRC_FIELD] + crc.to_bytes(4, "big") + data[CRC_START:]


def check_survivor(data: bytes, records: Sequence[Record]) -> bool:
    """Whatever decodes must mean the same to a reader that nobody here wrote, if the two can be compared."""
    header = parse_header(data)
    plain = bytes(decompress(header.codec, data[HEADER_BYTES : header.size_bytes], plain_bytes_max=1 << 20))
    check_records(plain, record_count=header.record_count)
    if TOO_WIDE.search(plain):
        return False
    # Plain, and without the control bit: kafka-python would look for a marker in the key.
    plain_header = header._replace(attributes=header.attributes & Attributes.LOG_APPEND_TIME)
    theirs = DefaultRecordBatch(pack_header(plain_header) + plain)
    read = [(r.offset, _wrap(r.timestamp), r.key, r.value, r.headers) for r in theirs]
    if read != rows(records):
        raise AssertionError(f"we read {rows(records)}, kafka-python reads {read}")
    return True


def _wrap(timestamp: int) -> int:
    """As 64 bits hold it, in Kafka too; only Python has larger ones."""
    return (timestamp + (1 << 63)) % (1 << 64) - (1 << 63)


def timed_decode(
    report: Report, data: bytes, *, check: bool = True, limits: Limits = DEFAULT_LIMITS
) -> Sequence[Record]:
    started = time.process_time()
    try:
        return decode(data, check=check, limits=limits)
    finally:
        report.decode_s_max = max(report.decode_s_max, time.process_time() - started)


def run(count: int, seed: int) -> Report:
    rng = random.Random(seed)
    report = Report()
    bases = [make_base(rng, codec) for codec in Codec for _ in range(20)]
    mutations, weights = zip(*MUTATIONS, strict=True)
    limits = Limits(plain_bytes_max=1 << 20)
    while report.mutated < count:
        base = rng.choice(bases)
        (mutate,) = rng.choices(mutations, weights)
        data = mutate(rng, base)
        repaired = report.mutated % 2 == 0
        # Without repair the batch keeps the CRC that it had, as damage on the way would leave it.
        data = with_crc(data, good_crc(data) if repaired else parse_header(base.data).crc)
        if data == base.data:
            continue
        report.mutated += 1
        report.crc_repaired += repaired
        # A reader that leaves out the CRC, having checked it, must be as safe.
        for check in (True,) if repaired else (True, False):
            try:
                records = timed_decode(report, data, check=check, limits=limits)
            except QuireError as error:
                if repaired and isinstance(error, ChecksumMismatchError):
                    raise AssertionError("the CRC was not made good, so nothing behind it was tried") from error
                report.errors[type(error).__name__] += 1
                report.failed_by_mutation[mutate.__name__] += 1
            else:
                report.survived += 1
                report.survived_by_mutation[mutate.__name__] += 1
                report.compared += check_survivor(data, records)
    for name, (codec, payload) in BOMBS.items():
        # With the limits that everyone has.
        try:
            timed_decode(report, batch_around(payload, codec))
        except QuireError as error:
            report.errors[type(error).__name__] += 1
        else:
            raise AssertionError(f"{name} passed for a batch")
    return report


def main(argv: Sequence[str]) -> None:
    count, seed = int(argv[0]) if argv else COUNT, int(argv[1]) if argv[1:] else SEED
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ADDRESS_SPACE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    print(json.dumps(vars(run(count, seed))))


def test_mutated_batches_decode_or_fail_as_they_should() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.property.test_records_mutations", str(COUNT), str(SEED)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,  # only so that a hang ends
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    names = {mutate.__name__ for mutate, _ in MUTATIONS}
    assert report["mutated"] == COUNT
    assert report["crc_repaired"] == COUNT // 2
    assert report["decode_s_max"] < DECODE_S_MAX
    # Both ends were reached, or the mutations are too harsh or too weak to show anything.
    assert report["survived"] > COUNT // 100
    assert report["compared"] > 0.9 * report["survived"]
    assert sum(report["errors"].values()) > COUNT // 2
    assert set(report["failed_by_mutation"]) == names
    assert set(report["survived_by_mutation"]) >= names - {"bomb", "lie_about_record_length"}
    assert set(report["errors"]) == {
        "BatchTooLargeError",
        "ChecksumMismatchError",
        "MalformedBatchError",
        "PoisonBatchError",
        "UnsupportedBatchError",
    }


def test_the_address_space_would_not_hold_a_bomb() -> None:
    # A bound that was never seen to bind proves nothing.
    inflate = (
        "import resource, sys, zlib; from tests.property import test_records_mutations as m;"
        "pages = int(open('/proc/self/statm').read().split()[0]);"
        "limit = pages * resource.getpagesize() + m.ADDRESS_SPACE_BYTES;"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit));"
        "zlib.decompress(m.BOMBS['gzip'][1], wbits=31)"
    )
    done = subprocess.run(
        [sys.executable, "-c", inflate], cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
    )
    assert "MemoryError" in done.stderr


if __name__ == "__main__":
    main(sys.argv[1:])
