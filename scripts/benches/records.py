"""How quick the record codec is, against those of aiokafka (Cython) and kafka-python (Python), in one run."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from quire.records import (
    BATCH_BYTES_MAX,
    BatchBuilder,
    Codec,
    Header,
    check_produced,
    decode,
    encode_columns,
    parse_batch,
    parse_header,
)
from scripts.benches.contest import Contest, Work, arguments_for, run

TIMESTAMP_MS = 1_700_000_000_000
VALUE_BYTES = 100
COLUMNAR_RATIO_MIN = 2.0

# --- the work ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Data:
    """Records as columns; JSON-like, so that compressing them means something."""

    values: Sequence[bytes]
    keys: Sequence[bytes] | None = None
    headers: Sequence[Header] = ()

    def rows(self) -> list[tuple[bytes | None, bytes]]:
        return [(None if self.keys is None else self.keys[i], value) for i, value in enumerate(self.values)]


def make_values(count: int, *, varying: bool, rng: random.Random) -> list[bytes]:
    values = []
    for index in range(count):
        size = rng.randrange(VALUE_BYTES // 2, VALUE_BYTES * 3 // 2) if varying else VALUE_BYTES
        text = b'{"id":%d,"customer":%d,"total":%d,"note":"' % (index, rng.randrange(1000), rng.randrange(10**6))
        values.append(text.ljust(size, b"x")[:size])
    return values


def ours_at_a_time(data: Data, codec: Codec = Codec.NONE) -> Callable[[], bytes]:
    rows, headers = data.rows(), list(data.headers)

    def work() -> bytes:
        builder = BatchBuilder()
        append = builder.append
        for key, value in rows:
            append(key, value, headers, TIMESTAMP_MS)
        return builder.build(codec=codec)

    return work


def theirs_at_a_time(
    builder_class: type[AiokafkaBuilder] | type[KafkaPythonBuilder], data: Data, codec: Codec = Codec.NONE
) -> Work:
    rows, headers = list(enumerate(data.rows())), list(data.headers)

    def work() -> object:
        builder = builder_class(2, int(codec), 0, -1, -1, -1, BATCH_BYTES_MAX)
        append = builder.append
        for offset, (key, value) in rows:
            append(offset, TIMESTAMP_MS, key, value, headers)
        return builder.build()

    return work


def ours_columnar(data: Data) -> Work:
    return lambda: encode_columns(data.values, keys=data.keys, timestamp_ms=TIMESTAMP_MS)


def theirs_decoding(batch_class: type[AiokafkaBatch] | type[KafkaPythonBatch], batch: bytes) -> Work:
    def work() -> object:
        reader = batch_class(batch)
        reader.validate_crc()
        return list(reader)

    return work


def contests(rng: random.Random) -> list[Contest]:
    rows = []
    for count in (1_000, 10_000):
        plain = Data(make_values(count, varying=False, rng=rng))
        keyed = Data(plain.values, keys=[b"customer-%03d" % rng.randrange(1000) for _ in range(count)])
        varying = Data(make_values(count, varying=True, rng=rng))
        keyed_varying = Data(varying.values, keys=keyed.keys)
        mixed = Data(varying.values, keys=[b"k%d" % rng.randrange(10**6) for _ in range(count)])
        rows += [
            Contest(
                f"encode columns, {count} x {VALUE_BYTES} B",
                "M records",
                count / 1e6,
                ours_columnar(plain),
                "aiokafka builder",
                theirs_at_a_time(AiokafkaBuilder, plain),
                COLUMNAR_RATIO_MIN,
            )
        ]
        rows += [
            Contest(
                f"encode columns, {count}, {name}",
                "M records",
                count / 1e6,
                ours_columnar(data),
                "aiokafka builder",
                theirs_at_a_time(AiokafkaBuilder, data),
            )
            for name, data in (
                ("keyed", keyed),
                ("varying", varying),
                ("keyed, varying", keyed_varying),
                ("keyed, both varying", mixed),
            )
        ]
    data = Data(make_values(1_000, varying=False, rng=rng))
    with_headers = Data(data.values, keys=[b"k"] * 1_000, headers=[("traceparent", b"0" * 55), ("n", None)])
    for name, each in (("plain", data), ("key, 2 headers", with_headers)):
        batch = ours_at_a_time(each)()
        for baseline, builder_class, batch_class in (
            ("aiokafka", AiokafkaBuilder, AiokafkaBatch),
            ("kafka-python", KafkaPythonBuilder, KafkaPythonBatch),
        ):
            rows += [
                Contest(
                    f"encode a record at a time, {name}",
                    "M records",
                    1_000 / 1e6,
                    ours_at_a_time(each),
                    baseline,
                    theirs_at_a_time(builder_class, each),
                ),
                Contest(
                    f"decode, {name}",
                    "M records",
                    1_000 / 1e6,
                    partial(decode, batch),
                    baseline,
                    theirs_decoding(batch_class, batch),
                ),
            ]
    for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        name = codec.name.lower()
        batch = encode_columns(data.values, timestamp_ms=TIMESTAMP_MS, codec=codec)
        rows += [
            Contest(
                f"encode, {name}",
                "M records",
                1_000 / 1e6,
                ours_at_a_time(data, codec),
                "aiokafka",
                theirs_at_a_time(AiokafkaBuilder, data, codec),
            ),
            Contest(
                f"decode, {name}",
                "M records",
                1_000 / 1e6,
                partial(decode, batch),
                "aiokafka",
                theirs_decoding(AiokafkaBatch, batch),
            ),
        ]
    for count in (1, 100, 10_000):
        batch = encode_columns([b"x" * VALUE_BYTES] * count, timestamp_ms=TIMESTAMP_MS)
        rows.append(Contest(f"header and CRC, {len(batch)} B", "M batches", 1 / 1e6, partial(parse_batch, batch)))
    header = parse_header(batch)
    rows.append(Contest("check_produced", "M batches", 1 / 1e6, partial(check_produced, header)))
    return rows


def main(argv: Sequence[str]) -> int:
    parser = arguments_for("records", __doc__)
    parser.add_argument("--seed", type=int, default=1, help="for the data (1)")
    arguments = parser.parse_args(argv)
    return run("quire.records: million a second, medians", contests(random.Random(arguments.seed)), arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
