"""What a broker counts and measures. docs/OPERATING.md lists all of it, with what to look out for."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter

from quire.process.rpc.metrics import CallMetrics, GaugeCollector


class Metrics:
    """All metrics of a broker, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.call_ended = CallMetrics(self.registry).call_ended
        self._batches = Counter(
            "quire_broker_produced_batches", "Batches that producers brought.", registry=self.registry
        )
        self._bytes = Counter("quire_broker_produced_bytes", "Their bytes.", registry=self.registry)
        self._fetched = Counter(
            "quire_broker_fetched_bytes", "Bytes of records that readers were given.", registry=self.registry
        )

    def collect_from(self, gauges: Callable[[], Iterable[tuple[str, str, float]]]) -> None:
        """At every scrape tell these gauges, too: (name, what it is, value)."""
        self.registry.register(GaugeCollector(gauges))

    def produced(self, *, batches: int, size_bytes: int) -> None:
        self._batches.inc(batches)
        self._bytes.inc(size_bytes)

    def fetched(self, size_bytes: int) -> None:
        self._fetched.inc(size_bytes)
