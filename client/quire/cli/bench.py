"""Measure how fast messages go in and out of a cluster."""

from __future__ import annotations

import enum
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Final
from uuid import uuid4

import typer

from quire.cli import options, progress, tables
from quire.cli.produce import Acks, Compression
from quire.cli.text import count, size
from quire.cli.topic import settings_of
from quire.cli.where import Where
from quire.errors import InvalidArgumentError, UnavailableError

if TYPE_CHECKING:
    from quire import Consumer, Producer

CONSUME_RECORDS_MAX: Final = 10_000
ARRIVAL_S_MAX: Final = 30.0
SIZE_MAX: Final = 1_000_000
BATCH: Final = 1_000


class Phase(enum.StrEnum):
    ONE = "produce, one at a time"
    SEND = "produce, send()"
    SEND_MANY = "produce, send_many()"
    CONSUME = "consume"
    END_TO_END = "end to end"


@dataclass(kw_only=True)
class Measured:
    """What one phase came to."""

    phase: Phase
    messages: int
    seconds: float
    message_bytes: int
    latencies_ms: dict[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return self.messages / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, object]:
        return {
            **asdict(self),
            "phase": self.phase.name.lower(),
            "messages_per_second": round(self.rate),
            "bytes_per_second": round(self.rate * self.message_bytes),
        }


app = options.app(None)


@app.command(
    help=f"""{__doc__}

    Makes a topic of its own, and deletes it when it is done. Client and cluster share the machine where they are on
    the same: what is measured is both.
    """
)
def bench(
    seconds: Annotated[
        float, typer.Option("--seconds", "-s", metavar="S", min=0.1, help="How long each phase takes.")
    ] = 3.0,
    message_bytes: Annotated[
        int, typer.Option("--size", metavar="BYTES", min=1, max=SIZE_MAX, help="How large a message is.")
    ] = 100,
    partitions: Annotated[
        int, typer.Option("--partitions", "-n", metavar="N", min=1, help="How many partitions it makes.")
    ] = 1,
    acks: Annotated[Acks, typer.Option("--acks", help="Whom to wait for.")] = Acks.ALL,
    compression: Annotated[Compression, typer.Option("--compression", "-z", help="How batches are packed.")] = (
        Compression.NONE
    ),
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="NAME=VALUE", help="A setting of the topic.", show_default=False),
    ] = None,
    as_json: options.AsJson = False,
    bootstrap: options.Bootstrap = options.DEFAULT,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
) -> None:
    where = Where(bootstrap, tls_ca, tls_cert)
    topic = f"quire-bench-{uuid4().hex[:8]}"
    with where.admin() as admin:
        admin.create_topic(topic, partitions=partitions, config=settings_of(config))
        try:
            made = admin.describe_topic(topic)
            bench = _Bench(
                where, topic, seconds=seconds, message_bytes=message_bytes, acks=acks, compression=compression
            )
            measured = bench.run()
        finally:
            admin.delete_topic(topic)
    if as_json:
        tables.show_json([each.to_json() for each in measured])
        return
    print(
        f"messages of {size(message_bytes)}, {count(partitions, 'partition')}, "
        f"{count(made.replication_factor, 'replica')}, acks={acks.value}, {seconds:g} s each"
    )
    print()
    tables.show(["", "messages/s>", "MB/s>", "p50 ms>", "p99 ms>", "max ms>"], [_row(each) for each in measured])


class _Bench:
    def __init__(
        self,
        where: Where,
        topic: str,
        *,
        seconds: float,
        message_bytes: int,
        acks: Acks,
        compression: Compression,
    ) -> None:
        self._where = where
        self._topic = topic
        self._seconds = seconds
        self._value = os.urandom(message_bytes)
        self._producer_options = {"acks": acks.value, "compression": compression.value}
        self._sent = 0

    def run(self) -> list[Measured]:
        with self._where.producer(**self._producer_options) as producer:
            producer.send(self._topic, self._value).result()  # whoever is first also connects
            self._sent += 1
            measured = [self._one_at_a_time(producer), self._send(producer), self._send_many(producer)]
            with self._where.consumer(self._topic, start="earliest") as consumer:
                measured.append(self._consume(consumer))
            with self._where.consumer(self._topic, start="latest") as consumer:
                measured.append(self._end_to_end(producer, consumer))
        return measured

    def _one_at_a_time(self, producer: Producer) -> Measured:
        return self._timed(Phase.ONE, lambda: producer.send(self._topic, self._value).result())

    def _send(self, producer: Producer) -> Measured:
        began = time.perf_counter()
        messages = 0
        with progress.bar(Phase.SEND, round(self._seconds * 1000)) as advance:
            while (passed := time.perf_counter() - began) < self._seconds:
                for _ in range(BATCH):
                    producer.send(self._topic, self._value)
                messages += BATCH
                advance(round(passed * 1000), f"{messages:,}")
            producer.flush()
        return self._made(Phase.SEND, messages, time.perf_counter() - began)

    def _send_many(self, producer: Producer) -> Measured:
        began = time.perf_counter()
        messages = 0
        values = [self._value] * BATCH
        with progress.bar(Phase.SEND_MANY, round(self._seconds * 1000)) as advance:
            while (passed := time.perf_counter() - began) < self._seconds:
                producer.send_many(self._topic, values)
                messages += BATCH
                advance(round(passed * 1000), f"{messages:,}")
            producer.flush()
        return self._made(Phase.SEND_MANY, messages, time.perf_counter() - began)

    def _consume(self, consumer: Consumer) -> Measured:
        began = time.perf_counter()
        messages = 0
        with progress.bar(Phase.CONSUME, self._sent) as advance:
            while messages < self._sent:
                polled = consumer.poll(timeout_s=ARRIVAL_S_MAX, records_max=CONSUME_RECORDS_MAX)
                if not polled:
                    raise UnavailableError(
                        f"no message came for {ARRIVAL_S_MAX:g} s; {messages:,} of {self._sent:,} did"
                    )
                messages += len(polled)
                advance(messages, f"{messages:,}")
        return Measured(
            phase=Phase.CONSUME,
            messages=messages,
            seconds=time.perf_counter() - began,
            message_bytes=len(self._value),
        )

    def _end_to_end(self, producer: Producer, consumer: Consumer) -> Measured:
        def there_and_back() -> None:
            producer.send(self._topic, self._value)
            if not consumer.poll(timeout_s=ARRIVAL_S_MAX):
                raise UnavailableError(f"a message did not come within {ARRIVAL_S_MAX:g} s")

        return self._timed(Phase.END_TO_END, there_and_back)

    def _timed(self, phase: Phase, once: Callable[[], object]) -> Measured:
        """Again and again for so many seconds, each time on its own."""
        took_s: list[float] = []
        began = time.perf_counter()
        with progress.bar(phase, round(self._seconds * 1000)) as advance:
            while (before := time.perf_counter()) - began < self._seconds:
                once()
                took_s.append(time.perf_counter() - before)
                advance(round((before - began) * 1000), f"{len(took_s):,}")
        measured = self._made(phase, len(took_s), time.perf_counter() - began)
        measured.latencies_ms = percentiles(took_s)
        return measured

    def _made(self, phase: Phase, messages: int, seconds: float) -> Measured:
        self._sent += messages
        return Measured(phase=phase, messages=messages, seconds=seconds, message_bytes=len(self._value))


def percentiles(took_s: list[float]) -> dict[str, float]:
    """In milliseconds, by nearest rank."""
    if not took_s:
        raise InvalidArgumentError("nothing was measured in that time; give more --seconds")
    ordered = sorted(took_s)

    def rank(per_hundred: int) -> float:
        return ordered[max(0, math.ceil(len(ordered) * per_hundred / 100) - 1)] * 1000

    return {"p50": rank(50), "p99": rank(99), "max": ordered[-1] * 1000}


def _row(each: Measured) -> tuple[str, ...]:
    took = [f"{each.latencies_ms[name]:.2f}" if each.latencies_ms else "" for name in ("p50", "p99", "max")]
    return each.phase.value, f"{each.rate:,.0f}", f"{each.rate * each.message_bytes / 1e6:,.1f}", *took
